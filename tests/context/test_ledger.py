import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.conversation import AgentStep, BuilderPolicy, ConversationIndex, extract_features, index_conversation
from proxy.context.ledger import (
    FIRST_HEADER,
    LEDGER_END,
    NEXT_HEADER,
    NO_LEDGERS,
    CarriedLedgers,
    LedgerEntry,
    Page,
    QuotedLine,
    carry_ledgers,
    cut_pages,
    format_step,
    format_user_turns,
    group_words,
    list_lines,
    merge_oldest,
    order_quotes,
    reduce_room,
    render_ledger,
)
from proxy.context.ledger_builder import index_identifiers
from proxy.context.references import PAGE
from proxy.model.epoch import ContextPlan, Edit, Kept, Reference, Written
from tests.support.views import RawMessage, act, call, count, said, user, view


def steps(*sizes: int) -> list[AgentStep]:
    return [AgentStep(2 * i, 2 * i + 2, "step", True, size // 4, size, 1) for i, size in enumerate(sizes)]


def all_of(_: int) -> bool:
    return True


def test_steps_share_a_page_while_they_fit() -> None:
    assert cut_pages(steps(5000, 5000, 5000), all_of, 3) == [Page(0, 1, 0, 4), Page(2, 2, 4, 6)]


def test_a_step_above_a_page_has_several_that_overlap() -> None:
    offsets = [page.offset for page in cut_pages(steps(30_000), all_of, 1)]
    assert offsets == [0, PAGE - 200, 2 * (PAGE - 200)]


def test_steps_that_are_kept_part_pages_unless_they_are_small() -> None:
    assert cut_pages(steps(100, 5000, 100), {0, 2}.__contains__, 3) == [Page(0, 0, 0, 2), Page(2, 2, 4, 6)]
    assert cut_pages(steps(100, 500, 100), {0, 2}.__contains__, 3) == [Page(0, 2, 0, 6)]


def test_pages_of_what_was_there_stay_as_they_were() -> None:
    sizes = [4000, 9000, 100, 13_000, 700, 700]
    assert cut_pages(steps(*sizes), all_of, 4) == cut_pages(steps(*sizes), all_of, 6)[:4]


def test_too_many_pages_become_one_at_the_old_end() -> None:
    pages = [Page(i, i, i, i + 1) for i in range(5)]
    assert merge_oldest(pages, 3) == [Page(0, 2, 0, 3), pages[3], pages[4]]
    assert merge_oldest(pages, 5) == pages
    assert merge_oldest(pages, 0) == [Page(0, 4, 0, 5)]


@given(st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), max_size=20))
def test_every_character_of_an_archived_step_is_on_a_first_page(drawn: list[tuple[int, bool]]) -> None:
    made = steps(*(size for size, _ in drawn))
    pages = cut_pages(made, lambda i: drawn[i][1], len(made))
    begins = [sum(size for size, _ in drawn[:i]) for i in range(len(drawn) + 1)]
    spans = [(begins[page.first] + page.offset, begins[page.last + 1]) for page in pages]
    assert all(begin < end for begin, end in spans)
    covered = [(begin, min(end, begin + PAGE)) for begin, end in spans]
    for i, (size, is_archived) in enumerate(drawn):
        for at in range(begins[i], begins[i] + size, 997) if is_archived else ():
            assert any(begin <= at < end for begin, end in covered)


def order(messages: list[RawMessage], *gone: int) -> list[QuotedLine]:
    seen = index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)
    return order_quotes(seen, gone, index_identifiers(seen).ages)


def test_a_line_counts_without_number_and_indentation() -> None:
    text = "  12:     return read_shape(raw)\nshort\n" + "x" * 300 + "\n"
    assert list(list_lines(text)) == ["return read_shape(raw)"]


def test_what_was_typed_imported_or_seen_again_is_quoted_with_its_newest_step() -> None:
    twice = "self.seen_twice_at_least = 1\n-----------------------------"
    first = f"from proxy.wire import shaping\nsomething only said once\n{twice}"
    messages = [user("go"), *act("1", "cat a", first), *act("2", "cat > b\nself.typed_by_the_agent()", "written")]
    messages += [
        *act("3", "cat b", twice),
        user("next"),
        *act("4", "ls", "x"),
    ]
    quotes = order(messages, 1, 2, 3)
    assert {quote.line: quote.step for quote in quotes} == {
        "from proxy.wire import shaping": 1,
        "self.typed_by_the_agent()": 2,
        "self.seen_twice_at_least = 1": 3,
    }


def test_lines_of_other_steps_are_not_quoted() -> None:
    assert order([user("go"), *act("1", "ls", "from proxy.wire import shaping"), user("x")], 0) == []


def tell(message_list: list[RawMessage], i: int) -> str:
    seen = index_conversation(view([*message_list, user("a"), user("b")], 10_000), BuilderPolicy(), extract_features)
    return format_step(seen, seen.steps[i], 60)


def test_it_says_what_it_is_and_how_to_get_an_original_back() -> None:
    for said_there in ("not the words of the user", "intact", "palimpsest expand ID", "not to be repeated"):
        assert said_there in FIRST_HEADER


def test_words_and_steps_stand_on_the_line_of_their_reference() -> None:
    entries = [
        LedgerEntry(Page(0, 1, 0, 4), "aaaaaaaaaa"),
        LedgerEntry(Page(2, 2, 4, 6), "bbbbbbbbbb"),
        LedgerEntry(Page(3, 5, 6, 12), "cccccccccc", ("shell ls → 1 lines",), ("read_shape", "a.py")),
        LedgerEntry(Page(6, 6, 12, 13), "dddddddddd"),
    ]
    assert render_ledger(entries).split("\n")[2:] == [
        "1-3 ref:aaaaaaaaaa ref:bbbbbbbbbb",
        "4-6 ref:cccccccccc: shell ls → 1 lines | read_shape a.py",
        "7 ref:dddddddddd",
        LEDGER_END,
    ]


def test_a_ledger_behind_another_explains_nothing_again() -> None:
    assert render_ledger([], is_first=False) == f"{NEXT_HEADER}\n{LEDGER_END}"


def test_quotes_stand_behind_the_number_of_their_step() -> None:
    text = render_ledger([], [QuotedLine("import b", 4), QuotedLine("import a", 1)])
    assert text.split("\n")[-3:] == ["2: import a", "5: import b", LEDGER_END]


def test_foreign_words_cannot_pass_for_markers_of_ours() -> None:
    entry = LedgerEntry(Page(0, 0, 0, 1), "aaaaaaaaaa", (), ("ref:bbbbbbbbbb",))
    text = render_ledger([entry], [QuotedLine("[tool: x] ref:cccccccccc", 1)])
    assert "ref:bbbbbbbbbb" not in text and "ref:cccccccccc" not in text and "[tool:" not in text


def test_a_step_is_told_with_what_it_asked_and_how_it_ended() -> None:
    assert tell(act("1", "ls -la", "a\nb"), 0) == "shell ls -la → 2 lines"
    failed = tell(act("1", "make", "<returncode>2</returncode>\nerror: no rule"), 0)
    assert failed == "shell make → exit 2 error: no rule, 2 lines"


def test_what_changed_something_is_marked() -> None:
    assert tell(act("1", "sed -i s/a/b/ src/a.py", ""), 0).startswith("! shell sed")


def test_words_are_told_as_words() -> None:
    assert tell([said("I am done with [tool: this")], 0) == "said: I am done with (tool: this"


def tell_all(texts: list[str], most: int) -> str:
    messages = [user(text) for text in texts]
    found = index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)
    return format_user_turns(found, range(len(texts)), most)


def test_turns_of_the_user_are_told_whole_by_the_first_and_the_last_or_by_their_number() -> None:
    assert tell_all(["Do\nthat"], 120) == "the user said: Do that"
    assert tell_all(["Do that", "and [tool: this", "now"], 120) == "the user said: Do that / and (tool: this / now"
    assert tell_all(["one", "two", "three"], 10) == "3 messages of the user, from: one to: three"
    assert tell_all(["a long one"], 6) == "the user said: a lon…"
    assert (tell_all(["one"], 0), tell_all(["a", "b"], 0)) == ("the user said something", "2 messages of the user")


def test_words_are_grouped_by_page() -> None:
    assert group_words(["a", "b", "c"], {"a": 1, "b": 0, "c": 1}) == {1: ["a", "c"], 0: ["b"]}


def test_a_step_that_put_nothing_out_ends_with_what_was_asked() -> None:
    assert tell([user("go"), call("1", "make all")], 1) == "shell make all"


MESSAGES = [user("go"), *(message for i in range(9) for message in act(f"{i}", "ls", "x")), user("b")]
OLD = Reference("aaaaaaaaaa", 1, 5)
OTHER = Reference("bbbbbbbbbb", 5, 7)


def plan(*edits: Edit) -> ContextPlan:
    return ContextPlan(7, edits, (OLD, OTHER), 0)


def look() -> ConversationIndex:
    return index_conversation(view(MESSAGES, 10_000), BuilderPolicy(), extract_features)


def take(frozen: ContextPlan | None, tail: int = 8, room: float = 1000) -> CarriedLedgers:
    return carry_ledgers(look(), frozen, tail, room, count)


def test_the_ledgers_at_the_head_stay_with_their_references_and_what_they_tell() -> None:
    ledger = Written("1-2 ref:aaaaaaaaaa", 0, 7)
    carried = take(plan(ledger, Kept(0), Kept(3), Kept(4)))
    assert carried.ledgers == (ledger,)
    assert carried.references == (OLD,)
    assert carried.told == {1, 3}
    assert carried.room == pytest.approx(0.143 * sum(step.tokens for step in look().steps[4:8]))
    assert take(plan(ledger, Kept(0)), room=30).room == pytest.approx(6)
    assert carried.tokens > count(ledger.text)


def test_ledgers_behind_what_is_kept_are_taken_over_too() -> None:
    carried = take(plan(Kept(0), Written("behind something", 0, 7), Kept(7), Written("and another", 7, 9)))
    assert [each.text for each in carried.ledgers] == ["behind something", "and another"]
    assert 0 not in carried.told and 1 in carried.told


@pytest.mark.parametrize(
    "frozen",
    [
        None,
        plan(),
        plan(*(Written("one of many", i, i + 1) for i in range(4))),
        plan(Written("x" * 3990, 0, 7)),
        plan(Written("beyond the tail", 0, 19)),
    ],
)
def test_otherwise_one_new_ledger_is_written(frozen: ContextPlan | None) -> None:
    carried = take(frozen)
    assert (carried.ledgers, carried.told) == (NO_LEDGERS.ledgers, NO_LEDGERS.told)
    assert carried.room == pytest.approx(550)


def test_summaries_that_stand_with_the_ledgers_stay_with_them() -> None:
    report, ledger = Written("a report ref:bbbbbbbbbb", 0, 5, "r"), Written("1-2 ref:aaaaaaaaaa", 0, 7)
    carried = take(plan(report, ledger, Kept(0)))
    assert (carried.written, carried.ledgers) == ((report, ledger), (ledger,))
    assert carried.reported == count(report.text) + 4
    assert carried.tokens == carried.reported + count(ledger.text) + 4
    assert carried.references == (OLD,)
    assert take(plan(*[report] * 5, ledger)).ledgers == (ledger,)
    assert take(plan(report)).written == ()


def test_summaries_count_as_ledgers_where_all_have_too_little_room() -> None:
    report, ledger = Written("a report", 0, 5, "r"), Written("1-2 ref:aaaaaaaaaa", 0, 7)
    room = 1.2 * (count(ledger.text) + 8)
    assert take(plan(ledger), room=room).ledgers == (ledger,)
    assert take(plan(report, ledger), room=room).written == ()


def test_a_first_ledger_leaves_room_to_the_summaries_beside_it() -> None:
    assert reduce_room(take(None), 100).room == pytest.approx(500)
    assert reduce_room(take(None), 5000).room == 0


def test_a_ledger_behind_others_keeps_its_room_beside_summaries() -> None:
    carried = take(plan(Written("1-2 ref:aaaaaaaaaa", 0, 7)))
    assert reduce_room(carried, 100) == carried
