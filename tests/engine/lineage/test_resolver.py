"""How a session is recognised, and how a request extends it: every sign that counts, and those that do not."""

import pytest
from msgspec.structs import replace

from proxy.engine.lineage.resolver import list_shown_fingerprints, name_answer
from proxy.engine.lineage.session_index import Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import LONGEST_TAIL, Lineage, extend_chain
from proxy.wire.identity import Item
from tests.engine.lineage.resolver_setup import (
    HI,
    MAIN,
    MORE,
    ONE,
    ROOT,
    SO,
    STRONG,
    THEN,
    THERE,
    TWO,
    Setup,
    bot,
    say,
    user,
)


def give(text: str, call: str) -> Item:
    return replace(say("tool", text), results=(call,))


UNDER_WAY = (HI, bot("a", STRONG), give("b", STRONG), user("q"))


def test_equal_first_messages_are_conversations_apart(setup: Setup) -> None:
    assert setup.place(HI).session.id != setup.place(HI).session.id


def test_equal_canned_examples_are_conversations_apart(setup: Setup) -> None:
    example = (user("e"), bot("a", STRONG), user("q"))
    first = setup.place(*example, answer=THERE)
    second = setup.place(*example, answer=SO)
    assert first.session.id != second.session.id
    assert setup.place(*example, THERE, MORE).session == first.session
    assert setup.place(*example, SO, MORE).session == second.session


def test_the_same_history_of_a_conversation_that_is_under_way_is_no_other_conversation(setup: Setup) -> None:
    first = setup.place(*UNDER_WAY, answer=THERE)
    for answer in (THERE, SO):
        again = setup.place(*UNDER_WAY, answer=answer)
        assert (again.session, again.lineage.relation) == (first.session, "retry")
        assert (again.lineage.tip, again.lineage.nodes, again.lineage.fingerprints) == (first.lineage.tip, (), ())
    assert setup.place(*UNDER_WAY, SO, MORE).session == first.session
    assert setup.place(*UNDER_WAY).session == first.session  # it may have gone on


@pytest.mark.parametrize(
    "history",
    [
        (HI, bot("a", STRONG), user("q")),
        (HI, bot("a", "call_1"), give("b", "call_1")),
        (*16 * (HI, THERE), MORE),
    ],
    ids=["examples", "a counted call", "many examples"],
)
def test_examples_and_a_first_question_are_not_under_way(setup: Setup, history: tuple[Item, ...]) -> None:
    assert setup.place(*history).session != setup.place(*history).session


def test_a_history_with_more_answers_than_examples_have_is_under_way(setup: Setup) -> None:
    history = (*17 * (HI, THERE), MORE)
    assert setup.place(*history).session == setup.place(*history).session


def test_the_same_history_of_others_is_another_conversation(setup: Setup) -> None:
    first = setup.place(*UNDER_WAY)
    named = setup.place(*UNDER_WAY, name="n")
    others = [setup.place(*UNDER_WAY, tenant=TWO)]
    changes = ({"model": "n"}, {"system": b"other"}, {"has_tools": False}, {"is_stream": False})
    others += [setup.place(*UNDER_WAY, traits=replace(MAIN, **change)) for change in changes]
    assert len({each.session.id for each in (first, named, *others)}) == 7
    assert setup.place(*UNDER_WAY).session == first.session
    assert setup.place(*UNDER_WAY, traits=replace(MAIN, model="n")).session == others[1].session


def test_a_session_that_was_dropped_from_memory_is_not_joined(setup: Setup) -> None:
    first = setup.place(*UNDER_WAY)
    setup.index.clear()
    second = setup.place(*UNDER_WAY)
    assert second.session != first.session
    assert setup.place(*UNDER_WAY).session == second.session


def test_a_session_is_joined_by_no_more_than_fit_into_memory(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.lineage.resolver.MOST_SIBLINGS", 2)
    sessions = [setup.place(*UNDER_WAY, answer=bot(f"answer {i}")).session.id for i in range(8)]
    assert sessions == [each for each in dict.fromkeys(sessions) for _ in range(3)][:8]
    assert len(set(sessions)) == 3


def test_a_recorded_answer_in_its_own_chain_proves_where_a_request_belongs(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    after = setup.place(HI, THERE, MORE)
    assert (after.session, after.lineage.relation, after.lineage.base, after.lineage.depth) == (
        first.session,
        "append",
        2,
        3,
    )
    assert [row.parent for row in after.lineage.nodes] == [extend_chain(ROOT, [HI.form, THERE.form])[-1]]


def test_the_deepest_answer_decides(setup: Setup) -> None:
    first, second = setup.place(HI, answer=THERE), setup.place(HI, answer=THERE)
    assert setup.place(HI, THERE, MORE, answer=SO).session == second.session  # the newest of those alike
    assert setup.place(HI, THERE, MORE, answer=bot("other")).session == second.session  # a retry of it
    assert setup.place(HI, THERE, THEN, answer=SO).session == first.session  # here nothing went on yet
    assert setup.place(HI, THERE, MORE, SO, THEN).session == second.session
    assert setup.place(HI, THERE, THEN, SO, MORE).session == first.session


def test_of_namesakes_one_without_a_name_is_preferred_by_a_request_without_one(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    named = setup.place(HI, answer=THERE, name="n")
    assert setup.place(HI, THERE, MORE).session == first.session
    assert setup.place(HI, THERE, MORE, name="n").session == named.session


def test_a_name_decides_whatever_the_chain_says(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    other = setup.place(HI, THERE, MORE, name="n")
    assert (other.session.id != first.session.id, other.lineage.relation, other.lineage.base) == (True, "root", 0)
    assert setup.place(MORE, name="n").session == other.session


def test_nothing_of_another_tenant_proves_anything(setup: Setup) -> None:
    first = setup.place(HI, answer=bot("there", STRONG))
    for chain in ((HI, bot("there", STRONG), MORE), (MORE, bot("there", STRONG))):
        other = setup.place(*chain, tenant=TWO)
        assert (other.session.id != first.session.id, other.session.tenant) == (True, TWO)


def relations(setup: Setup, *chains: tuple[Item, ...]) -> list[str]:
    return [setup.place(*chain, name="n").lineage.relation for chain in chains]


def test_relations(setup: Setup) -> None:
    setup.place(HI, name="n", answer=THERE)
    chains = ((HI,), (HI, THERE, MORE), (HI, THERE, MORE), (HI, THERE, THEN), (HI, THERE), (THEN,), (HI, MORE))
    assert relations(setup, *chains) == ["retry", "append", "retry", "branch", "branch", "root", "branch"]


def test_a_history_that_ends_with_its_answer_goes_on_from_it(setup: Setup) -> None:
    setup.place(HI, name="n", answer=THERE)
    assert relations(setup, (HI, THERE), (HI, THERE), ()) == ["append", "retry", "root"]


def test_an_edit_forth_and_back_adds_nothing_the_second_time(setup: Setup) -> None:
    setup.place(HI, answer=THERE)
    steps = [setup.place(HI, THERE, user(f"u{i % 3}"), SO, THEN).lineage for i in range(9)]
    assert [len(step.nodes) for step in steps] == [3, 3, 3, 0, 0, 0, 0, 0, 0]
    assert [step.relation for step in steps] == ["append", "branch", "branch", *["retry"] * 6]


def test_a_first_request_that_came_to_nothing_is_tried_again(setup: Setup) -> None:
    first = setup.place(HI)
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    again = setup.place(HI)
    assert (again.session, again.lineage.relation, again.lineage.nodes) == (first.session, "retry", ())
    assert setup.place(HI).session != first.session  # the second like it is another conversation


def test_a_retry_goes_on_from_the_same_stored_answer_known_or_not(setup: Setup) -> None:
    one, other = (replace(setup.ask(HI), previous=previous) for previous in ("resp_A", "resp_B"))
    first = setup.resolve(one)
    setup.resolver.record_unanswered(setup.index.open(first.session), one.likeness)
    assert setup.resolve(other).session != first.session
    assert setup.resolve(replace(setup.ask(HI), previous="resp_A")).session == first.session


def test_of_very_many_calls_that_a_client_brings_the_newest_are_names(setup: Setup) -> None:
    calls = [f"call_Zk93{n}x{n}" for n in range(3000)]
    brought = [bot("a", *calls[:2500]), *[bot(f"b{call}", call) for call in calls[2500:]]]
    fingerprints = setup.place(*brought, user("u")).lineage.fingerprints
    assert [fingerprint.name for fingerprint in fingerprints] == [f"call:{call}" for call in calls[-2048:]]


def test_a_retry_has_the_same_tenant_and_the_same_orders(setup: Setup) -> None:
    first = setup.place(HI)
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    titled = replace(MAIN, system=b"other")
    assert setup.place(HI, tenant=TWO).session != first.session
    assert setup.place(HI, traits=titled).session != first.session
    assert setup.place(HI, traits=replace(MAIN, is_stream=False, model="n")).session == first.session


def test_a_retry_joins_no_session_that_has_gone_on_or_was_dropped_or_has_a_name(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    setup.place(HI, THERE, MORE)
    assert setup.place(HI).session != first.session
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    assert setup.place(HI).session != first.session
    named = setup.place(HI, name="n")
    setup.resolver.record_unanswered(setup.known(named), setup.ask(HI).likeness)
    assert setup.place(HI).session != named.session
    other = setup.place(MORE)
    setup.resolver.record_unanswered(setup.known(other), setup.ask(MORE).likeness)
    setup.index.clear()
    assert setup.place(MORE).session != other.session


def test_a_retry_after_a_part_of_an_answer_is_a_retry_all_the_same(setup: Setup) -> None:
    first = setup.place(HI, answer=bot("hal"))
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    assert setup.place(HI).session == first.session


def test_only_the_newest_of_many_failures_are_kept_in_mind(setup: Setup) -> None:
    first = setup.place(HI)
    setup.resolver.record_unanswered(setup.known(first), setup.ask(HI).likeness)
    for i in range(4096):
        place = setup.place(user(str(i)))
        setup.resolver.record_unanswered(setup.known(place), setup.ask(user(str(i))).likeness)
    assert setup.place(HI).session != first.session
    assert setup.place(user("0")).session.id == "x3"


def test_another_credential_goes_on_from_three_nodes_with_an_answer(setup: Setup) -> None:
    first = setup.place(HI, answer=THERE)
    assert setup.place(HI, THERE, THEN, tenant=TWO).origin is None  # of which two are known
    setup.place(HI, THERE, MORE)
    node = extend_chain(ROOT, [each.form for each in (HI, THERE, MORE)])[-1]
    moved = setup.place(HI, THERE, MORE, SO, tenant=TWO)
    assert (moved.session.id != first.session.id, moved.origin) == (True, (first.session.id, node))
    named = setup.place(HI, THERE, MORE, SO, tenant=TWO, name="n")
    assert named.origin == (first.session.id, node)


def test_what_adds_no_node_is_no_evidence_for_an_adoption(setup: Setup) -> None:
    silent = Item("assistant", b"")
    setup.place(HI, silent, answer=THERE)
    assert setup.place(HI, silent, THERE, MORE, tenant=TWO).origin is None  # two nodes of three messages are known


def test_what_is_a_credentials_own_needs_no_source(setup: Setup) -> None:
    setup.place(HI, THERE, answer=THERE)
    for chain in ((HI, THERE, THERE, MORE), (HI,)):
        assert setup.place(*chain).origin is None
    setup.place(HI, THERE, THERE, tenant=TWO, answer=SO)
    assert setup.place(HI, THERE, THERE, SO, THEN, tenant=TWO).origin is None


def test_a_retry_under_another_credential_still_knows_its_source(setup: Setup) -> None:
    setup.place(HI, THERE, MORE, answer=SO)
    chain = (HI, THERE, MORE, SO, THEN)
    first = setup.place(*chain, tenant=TWO)
    setup.resolver.record_unanswered(setup.known(first), setup.ask(*chain, tenant=TWO).likeness)
    again = setup.place(*chain, tenant=TWO)
    assert (again.session, again.origin) == (first.session, first.origin)
    assert again.origin is not None
    for _ in range(2):
        assert setup.place(*chain, tenant=TWO, name="n").origin == first.origin


def test_a_request_goes_on_from_the_stored_answer_that_is_its_root(setup: Setup) -> None:
    first = setup.place(HI)
    root = setup.answer(first, THERE)
    after = setup.place(MORE, root=root)
    assert (after.session, after.lineage.relation, after.lineage.base) == (first.session, "append", 0)
    assert setup.place(THEN, root=root).lineage.relation == "branch"
    assert setup.place(MORE, root=root).lineage.relation == "retry"
    assert setup.place(root=root).lineage.relation == "branch"


def test_a_message_without_a_form_adds_no_node(setup: Setup) -> None:
    silent = Item("assistant", b"")
    step = setup.place(silent, HI, silent, THERE, name="n").lineage
    assert (step.depth, [row.node for row in step.nodes]) == (4, extend_chain(ROOT, [HI.form, THERE.form]))
    assert [row.parent for row in step.nodes] == [ROOT, step.nodes[0].node]


SIDES = [
    ({}, {}, (HI, THERE, MORE), False),
    ({"has_tools": False}, {}, (HI, THERE, MORE), False),  # `llm` drops its tools
    ({"has_tools": False, "is_stream": False}, {}, (HI, THERE, MORE), False),  # and does not stream
    ({"has_tools": False, "model": "n"}, {}, (HI, THERE, MORE), True),
    ({"has_tools": False, "system": b"o"}, {}, (HI, THERE, MORE), True),
    ({"model": "n", "system": b"o", "is_stream": False}, {}, (HI, THERE, MORE), False),
    ({}, {"output": 64}, (HI, THERE, MORE), False),
    ({"has_tools": False}, {}, (THEN,), True),
    ({}, {"output": 64}, (THEN,), True),
    ({}, {"output": 65}, (THEN,), False),
    ({"model": "n"}, {}, (THEN,), True),
    ({"system": b"o"}, {}, (THEN,), True),
    ({"is_stream": False}, {}, (THEN,), True),
    ({"is_stream": False}, {}, (THEN, HI, SO, MORE), False),
    ({"is_stream": False, "model": "n"}, {}, (THEN, HI, SO, MORE), True),
]


@pytest.mark.parametrize(("changes", "fields", "chain", "is_side"), SIDES)
def test_signs_of_a_call_beside_the_conversation(
    setup: Setup, changes: dict[str, object], fields: dict[str, int], chain: tuple[Item, ...], *, is_side: bool
) -> None:
    setup.place(HI, name="n", answer=THERE)
    traits = replace(MAIN, **changes)
    assert setup.place(*chain, name="n", traits=traits, output=fields.get("output", 0)).lineage.is_side is is_side
    assert setup.place(HI, THERE, MORE, name="n").lineage.is_side is False  # it does not count for what comes


def test_the_first_call_is_not_beside_for_a_tiny_answer_alone(setup: Setup) -> None:
    bare = Traits("m", has_tools=False, system=b"", is_stream=False)
    assert [setup.place(HI, traits=bare, output=n).lineage.is_side for n in (0, 64, 65)] == [False, False, False]
    assert not setup.place(HI, name="with tools", output=64).lineage.is_side
    assert not setup.place(HI, THERE, MORE, SO, name="long", traits=bare, output=64).lineage.is_side
    assert [setup.place(HI, name=f"{n}", traits=bare, output=n).lineage.is_side for n in (0, 64, 65)] == [
        False,
        True,
        False,
    ]


def test_a_conversation_of_tiny_answers_is_none_beside_another(setup: Setup) -> None:
    bare = Traits("m", has_tools=False, system=b"", is_stream=False)
    for name in ("", "n"):
        setup.place(HI, name=name, traits=bare, output=64, answer=THERE)
        assert not setup.place(HI, THERE, MORE, name=name, traits=bare, output=64, answer=SO).lineage.is_side


def test_in_a_known_conversation_a_tiny_answer_is_one_sign_of_two(setup: Setup) -> None:
    setup.place(HI, THERE, MORE, SO, THEN, name="n")
    other, another = (MORE, SO, HI, THERE), (THEN, SO, HI, THERE)
    assert not setup.place(*other, name="n", output=64).lineage.is_side
    assert setup.place(*another, name="n", output=64, traits=replace(MAIN, system=b"t")).lineage.is_side


def test_a_title_that_is_asked_for_first_does_not_put_the_conversation_beside_it(setup: Setup) -> None:
    title = replace(MAIN, has_tools=False, system=b"t")
    setup.place(MORE, HI, name="n", traits=title)
    assert not setup.place(HI, name="n", answer=THERE).lineage.is_side
    assert not setup.place(HI, THERE, MORE, name="n").lineage.is_side
    assert setup.place(MORE, THEN, name="n", traits=title).lineage.is_side


ASK = replace(MAIN, has_tools=False, system=b"ask")


def test_what_goes_on_from_the_answer_to_a_call_beside_it_is_a_conversation(setup: Setup) -> None:
    """A client whose user goes on without tools and under other orders, and comes back in the end."""
    chain: tuple[Item, ...] = (HI, THERE, user("discuss"))
    setup.place(HI, name="n", answer=THERE)
    sides = []
    for number in range(3):
        answer = bot(f"point {number}")
        sides.append(setup.place(*chain, name="n", traits=ASK, answer=answer).lineage.is_side)
        chain = (*chain, answer, user(f"and {number}?"))
    assert sides == [True, False, False]
    assert not setup.place(*chain, name="n", answer=SO).lineage.is_side  # with tools again
    assert setup.place(*chain, SO, MORE, name="n", traits=ASK).lineage.is_side


def test_both_ways_of_a_client_that_goes_to_and_fro_are_conversations(setup: Setup) -> None:
    setup.place(HI, name="n", answer=THERE)
    talk = (HI, THERE, user("discuss"))
    setup.place(*talk, name="n", traits=ASK, answer=SO)
    setup.place(HI, THERE, MORE, name="n", answer=SO)
    assert not setup.place(*talk, SO, THEN, name="n", traits=ASK).lineage.is_side
    assert not setup.place(HI, THERE, MORE, SO, THEN, name="n").lineage.is_side


def test_titles_and_summaries_stay_beside_the_conversation(setup: Setup) -> None:
    """Nobody goes on from their answers; a title that is asked for again has not begun in the conversation."""
    summary, again = user("summarise"), bot("a title")
    title = replace(ASK, system=b"title")
    setup.place(HI, name="n", answer=THERE)
    sides = [
        setup.place(HI, THERE, summary, name="n", traits=ASK, answer=bot("a summary")),
        setup.place(HI, THERE, summary, name="n", traits=ASK, answer=bot("another summary")),
        setup.place(HI, THERE, MORE, SO, summary, name="n", traits=ASK),
        setup.place(HI, name="n", traits=title, answer=again),
        setup.place(HI, again, user("shorter"), name="n", traits=title),
        setup.place(THEN, name="n", traits=title, answer=again),
        setup.place(THEN, again, user("shorter"), name="n", traits=title),
    ]
    assert [placed.lineage.is_side for placed in sides] == [True] * 7


def test_an_answer_counts_more_than_what_stands_behind_a_shallower_one(setup: Setup) -> None:
    setup.place(HI, name="a", answer=THERE)
    setup.place(HI, THERE, MORE, SO, THEN, name="a")
    other = setup.place(HI, THERE, MORE, name="b", answer=SO)
    assert setup.place(HI, THERE, MORE, SO, THEN).session == other.session


@pytest.mark.parametrize("item", [bot("a", STRONG), bot("text", weight=40)])
def test_an_answer_that_is_kept_elsewhere_tells_whose_request_it_is(setup: Setup, item: Item) -> None:
    first = setup.place(HI, answer=item)
    after = setup.place(user("sum", 600), item, MORE)
    assert (after.session, after.lineage.base) == (first.session, 0)
    assert setup.place(user("sum", 600), item, MORE).session == first.session  # nothing was answered yet


@pytest.mark.parametrize(
    "item",
    [
        bot("short", weight=39),
        *[bot("a", call) for call in ("call_1", "read:0", "functions.read:3", "12", "call7", "read_file_2")],
    ],
)
def test_short_texts_and_ids_that_are_counted_up_tell_nothing(setup: Setup, item: Item) -> None:
    first = setup.place(HI, answer=item)
    assert setup.place(user("sum", 600), item, MORE).session.id != first.session.id
    assert not name_answer(item, "", first.session) and not list_shown_fingerprints(setup.ask(item))


@pytest.mark.parametrize(
    "call", [STRONG, "D681PevKs", "365174485", "call_s1_1", "toolu_01A09q90qw90lq917835lq9", "DkQpXWvsR"]
)
def test_ids_that_are_drawn_are_names(call: str) -> None:
    assert name_answer(bot("a", call), "own", SessionKey("s", ONE, "main", "")) == [f"call:{call}", "item:own"]


def test_a_kept_answer_counts_only_with_the_same_form(setup: Setup) -> None:
    first = setup.place(HI, answer=bot("a", STRONG))
    assert setup.place(user("sum"), bot("b", STRONG), MORE).session.id != first.session.id


def test_a_kept_answer_that_two_sessions_gave_tells_nothing(setup: Setup) -> None:
    for text in ("q", "r"):
        setup.place(user(text), answer=bot("a", STRONG))
    assert setup.place(user("sum"), bot("a", STRONG), MORE).session.id == "x3"


def test_kept_answers_of_two_sessions_tell_nothing(setup: Setup) -> None:
    setup.place(HI, answer=bot("a", STRONG))
    setup.place(HI, answer=bot("b", STRONG + "x"))
    assert setup.place(user("sum"), bot("a", STRONG), bot("b", STRONG + "x")).session.id == "x3"


def test_what_a_client_brought_along_was_never_an_answer(setup: Setup) -> None:
    setup.place(user("q"), bot("a", STRONG), MORE)
    assert setup.place(user("r"), bot("a", STRONG), MORE).session.id == "x2"


def test_what_a_client_brought_along_makes_an_answer_ambiguous(setup: Setup) -> None:
    setup.place(HI, answer=bot("a", STRONG))
    setup.place(user("r"), bot("a", STRONG), MORE, name="n")
    assert setup.place(user("t"), bot("a", STRONG), MORE).session.id == "x3"


def test_of_what_a_request_shows_the_newest_names_are_asked_for(setup: Setup) -> None:
    asked = setup.ask(*[bot("a", f"{STRONG}{i}") for i in range(100)], user("u"))
    assert list_shown_fingerprints(asked) == [f"call:{STRONG}{i}" for i in range(68, 100)]


def test_what_was_said_in_a_session_that_its_client_names_is_found_by_the_name_alone(setup: Setup) -> None:
    text, call = bot("text", weight=40), bot("a", STRONG)
    named = setup.place(HI, name="n", answer=text)
    assert (name_answer(text, "", named.session), list(setup.known(named).fingerprints)) == ((), [])
    assert setup.place(user("sum", 600), text, MORE).session != named.session
    assert setup.place(user("sum", 600), text, MORE, name="n").session == named.session
    assert name_answer(call, "", named.session) == [f"call:{STRONG}"]


SUMMARY, PASTE = user("so far", 500), user("a long file", 600)
CALL, RESULT = bot("a", STRONG), say("tool", "r", weight=900)


def talk(setup: Setup) -> None:
    """Two turns of the user, a call between them, and the answers to all of it."""
    setup.place(HI, answer=CALL, name="n")
    setup.place(HI, CALL, RESULT, answer=THERE, name="n")
    setup.place(HI, CALL, RESULT, THERE, MORE, answer=SO, name="n")
    setup.place(HI, CALL, RESULT, THERE, MORE, SO, THEN, answer=SO, name="n")


COMPACTED = {
    "claude-code: the summary and the next turn": (SUMMARY, user("next")),
    "claude-code in the middle of a turn: the summary alone": (SUMMARY,),
    "opencode: the summary is an answer": (user("What did we do?"), bot("so far", weight=500), user("go on")),
    "qwen-code: an answer behind the summary": (SUMMARY, bot("Understood."), user("next")),
    "codex: what the user said first, the summary, the next turn": (HI, SUMMARY, user("next")),
    "codex in the middle of a turn: all the user has said, and the summary": (HI, MORE, THEN, SUMMARY),
    "cline: the beginning, the summary, the end": (HI, SUMMARY, SO, THEN),
}
NOT_COMPACTED = {
    "an edit of a turn into a long one": ((HI, CALL, RESULT, THERE, PASTE), "branch"),
    "an edit of the last turn": ((HI, CALL, RESULT, THERE, MORE, SO, PASTE), "branch"),
    "a rewind": ((HI, CALL, RESULT, THERE), "branch"),
    "a rewind, and another turn": ((HI, CALL, RESULT, THERE, user("else")), "branch"),
    "another answer to the same, and a long turn": ((HI, bot("other", weight=600), PASTE), "branch"),
    "the middle is dropped, and nothing new was said": ((HI, MORE, SO, THEN), "branch"),
    "a long result of a tool is no summary": ((HI, user("again"), CALL, RESULT), "branch"),
    "a short beginning": ((user("short", 499),), "root"),
    "as long as the history was": (tuple(user(f"u{i}", 600) for i in range(7)), "root"),
}


@pytest.mark.parametrize("chain", COMPACTED.values(), ids=COMPACTED)
def test_a_shorter_history_with_a_long_new_text_is_a_compaction(setup: Setup, chain: tuple[Item, ...]) -> None:
    talk(setup)
    step = setup.place(*chain, name="n").lineage
    assert (step.relation, step.is_side) == ("compaction", False)
    assert setup.place(*chain, answer=THERE, name="n").lineage.relation == "retry"
    assert setup.place(*chain, THERE, user("on"), name="n").lineage.relation == "append"


@pytest.mark.parametrize(("chain", "relation"), NOT_COMPACTED.values(), ids=NOT_COMPACTED)
def test_an_edit_or_a_rewind_is_none(setup: Setup, chain: tuple[Item, ...], relation: str) -> None:
    talk(setup)
    assert setup.place(*chain, name="n").lineage.relation == relation


def test_an_edit_behind_what_the_client_says_of_itself_is_none(setup: Setup) -> None:
    """codex puts a message of the user's role before the first turn."""
    where = user("cwd")
    setup.place(where, HI, answer=THERE, name="n")
    setup.place(where, HI, THERE, MORE, answer=SO, name="n")
    assert setup.place(where, HI, SUMMARY, name="n").lineage.relation == "compaction"
    assert setup.place(where, PASTE, name="n").lineage.relation == "branch"


def test_a_turn_after_one_that_was_not_answered_is_none(setup: Setup) -> None:
    setup.place(HI, name="n")
    assert setup.place(HI, PASTE, name="n").lineage.relation == "append"


@pytest.mark.parametrize("chain", [(SUMMARY,), (HI, SUMMARY)])
def test_a_call_beside_the_conversation_is_none(setup: Setup, chain: tuple[Item, ...]) -> None:
    talk(setup)
    titles = replace(MAIN, system=b"titles", has_tools=False)
    step = setup.place(*chain, name="n", traits=titles).lineage
    assert (step.is_side, step.relation == "compaction") == (True, False)


FILE, OK, REMINDER = user("the files"), bot("Ok."), user("a reminder")


def move_files(setup: Setup, turns: int, *, name: str = "n") -> list[Lineage]:
    """The calls of a client that moves its files and a reminder to the end of each request."""
    history, steps = [HI, THERE], []
    for i in range(turns):
        steps.append(setup.place(*history, FILE, OK, user(f"task {i}"), REMINDER, name=name).lineage)
        history += [user(f"task {i}"), bot(f"done {i}")]
    return steps


def test_a_tail_that_is_rewritten_three_times_in_a_row_is_volatile(setup: Setup) -> None:
    relations = [step.relation for step in move_files(setup, 7)]
    assert relations == ["root", "branch", "branch", "volatile", "volatile", "volatile", "volatile"]


def test_the_base_of_a_request_with_a_volatile_tail_is_all_that_is_stable(setup: Setup) -> None:
    steps = move_files(setup, 6)
    assert [step.base for step in steps[3:]] == [6, 8, 10]
    assert all(step.depth - step.base == 6 for step in steps[3:])


def test_retries_and_side_calls_do_not_change_that_a_tail_is_volatile(setup: Setup) -> None:
    move_files(setup, 4)
    history = [HI, THERE, *(each for i in range(4) for each in (user(f"task {i}"), bot(f"done {i}")))]
    tail = (FILE, OK, user("task 4"), REMINDER)
    other = replace(MAIN, model="small", system=b"title", has_tools=False)
    assert setup.place(*history, *tail, name="n").lineage.relation == "volatile"
    assert setup.place(*history, *tail, name="n").lineage.relation == "retry"
    assert setup.place(user("sum up"), name="n", traits=other).lineage.is_side
    history += [user("task 4"), bot("done 4")]
    assert setup.place(*history, FILE, OK, user("task 5"), REMINDER, name="n").lineage.relation == "volatile"


@pytest.mark.parametrize("is_edit", [False, True])
def test_what_a_person_says_again_otherwise_is_a_branch_however_often(setup: Setup, *, is_edit: bool) -> None:
    history = [HI, THERE, MORE, SO] if is_edit else []
    setup.place(*history, user("first"), name="n")
    relations = [setup.place(*history, user(f"again {i}"), name="n").lineage.relation for i in range(5)]
    assert set(relations) == {"branch" if is_edit else "root"}


def test_a_rewind_ends_a_run_of_rewritten_tails(setup: Setup) -> None:
    move_files(setup, 5)
    assert setup.place(HI, THERE, user("task 0"), bot("done 0"), user("no"), name="n").lineage.relation == "branch"
    relations = [step.relation for step in move_files(setup, 8)]
    assert relations == [*5 * ["retry"], "branch", "branch", "volatile"]


def test_branches_that_take_turns_are_no_volatile_tail(setup: Setup) -> None:
    left, right = [HI, THERE], [HI, THERE]
    relations = set()
    for i in range(5):
        left += [user(f"l{i}"), bot(f"L{i}")]
        right += [user(f"r{i}"), bot(f"R{i}")]
        relations |= {setup.place(*side, MORE, name="n").lineage.relation for side in (left, right)}
    assert "volatile" not in relations


def test_a_long_tail_is_a_branch(setup: Setup) -> None:
    history: list[Item] = [HI]
    for i in range(6):
        step = setup.place(*history, *(user(f"{i}:{n}") for n in range(LONGEST_TAIL + 1 + i)), name="n").lineage
        history += [bot(f"{i}")]
        assert step.relation in ("root", "branch")
