"""Which items of memory count on a path, and which of them a model is shown."""

from typing import Any

import msgspec
import pytest

from proxy.context.memory.facts import (
    PINNED,
    choose_items,
    count_items,
    find_request,
    format_turn,
    is_on_path,
    list_items,
)
from proxy.model.memory import (
    CLAIMED,
    FactKind,
    LearnedFact,
    MemoryBundle,
    MemoryOrder,
    OrderKind,
    Remembered,
    Semantic,
    StoredMemory,
)

PATH = [bytes([n]) * 16 for n in range(10)]


def report(
    number: int, stop: int, *facts: LearnedFact, start: int = 0, first_fact: int = 0, **given: Any
) -> Remembered:
    """A report on the messages up to `stop`, whose facts begin with ten times its number."""
    about = {"summary": f"report {number}", "made_ms": 1000 * number, **given}
    first = first_fact or 10 * number
    return Remembered("s", start, stop, PATH[stop - 1], 1, 2, number, first, facts=facts, **about)


def remember(*records: Remembered | MemoryOrder) -> StoredMemory:
    numbered = list(enumerate(records, 1))
    return StoredMemory(
        tuple((n, each) for n, each in numbered if isinstance(each, Remembered)),
        tuple((n, each) for n, each in numbered if isinstance(each, MemoryOrder)),
    )


def order(kind: OrderKind, item: str = "") -> MemoryOrder:
    return MemoryOrder("s", kind, item, 0)


def fact(text: str, kind: FactKind = "fact", node: int = 0, **given: Any) -> LearnedFact:
    return LearnedFact(kind, text, nodes=(PATH[node],), **given)


def list_facts(*records: Remembered | MemoryOrder, path: list[bytes] = PATH) -> list[Semantic]:
    return list(list_items(remember(*records), path).semantic)


def test_an_item_counts_on_paths_that_have_its_whole_span() -> None:
    entry = report(1, 4, fact("one"))
    assert is_on_path(entry, PATH) and is_on_path(entry, PATH[:4])
    other = [*PATH[:3], b"x" * 16, *PATH[4:]]
    assert not is_on_path(entry, PATH[:3]) and not is_on_path(entry, other)
    for bad in (msgspec.structs.replace(entry, start=4), msgspec.structs.replace(entry, start=-1)):
        assert not is_on_path(bad, PATH)
    assert list_items(remember(entry), other) == MemoryBundle()


def test_reports_come_in_the_order_of_their_spans_with_all_that_is_known() -> None:
    second, first = report(1, 8, start=4, tags=("digest",)), report(2, 4, report="a" * 10)
    found = list_items(remember(second, first), PATH).episodic
    assert [(each.id, each.ts, each.tags) for each in found] == [
        ("ep_0002", 2.0, ("ref:aaaaaaaaaa",)), ("ep_0001", 1.0, ("digest",)),
    ]  # fmt: skip
    assert found[0].turn_ids == (format_turn(1), format_turn(2)) and found[0].salience == 0.5


def test_a_newer_report_on_the_same_messages_or_more_stands_for_the_older() -> None:
    entries = report(1, 4), report(2, 6, start=4), report(3, 4)
    assert [each.id for each in list_items(remember(*entries), PATH).episodic] == ["ep_0003", "ep_0002"]
    wide = list_items(remember(*entries, report(4, 6)), PATH).episodic
    assert [each.id for each in wide] == ["ep_0004"]
    again = list_items(remember(*entries, report(4, 6), order("retract", "ep_0004")), PATH).episodic
    assert [each.id for each in again] == ["ep_0003", "ep_0002"]


def test_equal_facts_are_one_with_the_first_id_and_the_newest_time() -> None:
    claimed = LearnedFact("fact", "Never push, to main", ("git", CLAIMED), (PATH[5],), 0.5, 0.7)
    own = LearnedFact("constraint", "never push to MAIN.", ("vcs",), (PATH[2],), 1.0, 0.9)
    (found,) = list_facts(report(1, 4, claimed), report(2, 6, own), report(3, 8, own, claimed))
    assert found == Semantic(
        "sem_0010", 3.0, "never push to MAIN.", ("git", "vcs"), 1.0, 0.9, "constraint", (PATH[2].hex(),)
    )
    (found,) = list_facts(report(1, 4, claimed), report(2, 6, msgspec.structs.replace(claimed, nodes=(PATH[6],))))
    assert found.nodes == (PATH[5].hex(), PATH[6].hex()) and CLAIMED in found.tags


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (fact("The port is 8080."), fact("The port is 9090")),
        (fact("test runner: unittest"), fact("Test runner = pytest")),
        (
            fact("The parser is written by hand.", "decision"),
            fact("It is made.", replaces="the parser is written by hand"),
        ),
        (fact("Use tabs.", "constraint"), fact("Use spaces.", "constraint", replaces="Use tabs, please: use tabs")),
        (fact("The port is 1.", tags=(CLAIMED,)), fact("The port is 2.", tags=(CLAIMED,))),
        (fact("The port is 1.", tags=(CLAIMED,)), fact("The port is 2.")),
    ],
)
def test_a_newer_fact_replaces_an_older_one_that_it_changes(old: LearnedFact, new: LearnedFact) -> None:
    (found,) = list_facts(report(1, 4, old), report(2, 6, new))
    assert (found.id, found.fact, found.supersedes) == ("sem_0020", new.text, ("sem_0010",))
    third = fact("nobody knows", replaces=new.text + " and " + new.text)
    assert list_facts(report(1, 4, old), report(2, 6, new), report(3, 8, third))[-1].id == "sem_0030"


def test_what_is_replaced_names_all_that_it_had_replaced() -> None:
    ports = [report(n, 4, fact(f"The port is {n}.")) for n in (1, 2, 3)]
    assert list_facts(*ports)[0].supersedes == ("sem_0010", "sem_0020")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (fact("Never edit a.py", "constraint"), fact("Never edit b.py", "constraint")),
        (fact("style: black", "constraint"), fact("style: ruff", "constraint")),
        (fact("The port is 1."), fact("The port is 2.", tags=(CLAIMED,))),
        (fact("The port is 1."), fact("It changed", tags=(CLAIMED,), replaces="The port is 1.")),
        (fact("The port is 1."), fact("The host is 2.")),
        (fact("The port of the test server is 1."), fact("All is well", replaces="is")),
        (fact("The port of the test server is 1."), fact("All is well", replaces="of the test")),
    ],
)
def test_what_does_not_change_a_fact_leaves_it(old: LearnedFact, new: LearnedFact) -> None:
    assert len(list_facts(report(1, 4, old), report(2, 6, new))) == 2


def test_on_a_branch_without_the_newer_fact_the_older_one_holds() -> None:
    entries = report(1, 4, fact("The port is 1.")), report(2, 6, fact("The port is 2."))
    assert [each.fact for each in list_facts(*entries, path=PATH[:5])] == ["The port is 1."]


def test_a_retracted_fact_is_gone_and_may_be_stated_anew() -> None:
    first, second = report(1, 4, fact("one"), fact("two")), report(2, 6, fact("one"))
    assert [each.id for each in list_facts(first, order("retract", "sem_0010"))] == ["sem_0011"]
    assert [each.id for each in list_facts(first, order("retract", "sem_0010"), second)] == ["sem_0011", "sem_0020"]


def test_a_retracted_fact_is_gone_with_equal_ones_that_were_stated_before() -> None:
    first, second = report(1, 4, fact("one")), report(2, 6, fact("one"))
    third = report(3, 4, fact("two", replaces="one"))
    for id in ("sem_0010", "sem_0020"):
        assert list_facts(first, second, order("retract", id)) == []
        assert [each.id for each in list_facts(first, second, order("retract", id), third)] == ["sem_0030"]


def test_pinned_items_come_first_until_they_are_unpinned() -> None:
    entries = [report(n, n, fact(f"fact {n}", salience=n / 10)) for n in (1, 2, 3, 4)]
    for n, entry in enumerate(entries):
        entries[n] = msgspec.structs.replace(entry, start=n)
    pins = order("pin", "sem_0010"), order("pin", "ep_0001")
    items = list_items(remember(*entries, *pins), PATH)
    chosen = choose_items(items, 2, 2)
    assert [each.id for each in chosen.episodic] == ["ep_0001", "ep_0004"]
    assert [(each.id, each.salience) for each in chosen.semantic] == [("sem_0010", 1.0), ("sem_0040", 0.4)]
    assert PINNED in chosen.semantic[0].tags and PINNED in chosen.episodic[0].tags
    unpinned = list_items(remember(*entries, *pins, order("unpin", "sem_0010"), order("unpin", "ep_0001")), PATH)
    assert [each.id for each in choose_items(unpinned, 2, 1).episodic] == ["ep_0003", "ep_0004"]
    assert choose_items(unpinned, 0, 0) == MemoryBundle() == choose_items(unpinned, -1, -1)
    assert [each.id for each in choose_items(items, 1, 1).episodic] == ["ep_0001"]
    retracted = list_items(remember(*entries, *pins, order("retract", "ep_0001")), PATH)
    assert "ep_0001" not in [each.id for each in retracted.episodic]


def test_facts_are_ordered_by_salience_then_recency_then_id() -> None:
    facts = [report(1, 4, fact("a"), fact("b"), fact("c", salience=0.9)), report(2, 6, fact("d"))]
    chosen = choose_items(list_items(remember(*facts), PATH), 3, 20)
    assert [each.id for each in chosen.semantic] == ["sem_0012", "sem_0020", "sem_0010", "sem_0011"]


def test_a_reset_forgets_what_was_before_it() -> None:
    stored = remember(report(1, 4, fact("one")), order("reset"), report(2, 6, fact("two")))
    assert [each.id for each in list_items(stored, PATH).semantic] == ["sem_0020"]
    assert [each.id for each in list_items(stored, PATH).episodic] == ["ep_0002"]


@pytest.mark.parametrize(
    ("kinds", "is_requested"),
    [
        ((), False),
        (("request",), True),
        (("request", "clear"), False),
        (("clear", "request", "pin"), True),
        (("request", "reset"), False),
    ],
)
def test_the_newest_order_says_whether_memory_is_asked_for(kinds: tuple[OrderKind, ...], is_requested: bool) -> None:
    assert find_request(remember(*map(order, kinds))) is is_requested


def test_numbers_go_on_through_the_whole_session() -> None:
    assert count_items(StoredMemory()) == (0, 0)
    stored = remember(report(1, 4, fact("a"), fact("b"), first_fact=1), report(2, 4, first_fact=3))
    assert count_items(stored) == (2, 2)
