"""How a session is recognised, and how a request extends it: every sign that counts, and those that do not."""

import pytest
from msgspec.structs import replace

from proxy.engine.lineage.resolver import list_shown_marks, name_answer
from proxy.engine.lineage.session_index import Traits
from proxy.model.exchange import SessionKey
from proxy.model.lineage import extend_chain
from proxy.wire.identity import Item
from tests.engine.lineage.desk import HI, MAIN, MORE, ONE, ROOT, SO, STRONG, THEN, THERE, TWO, Desk, bot, say, user


def test_equal_first_messages_are_conversations_apart(desk: Desk) -> None:
    assert desk.place(HI).session.id != desk.place(HI).session.id


def test_equal_canned_examples_are_conversations_apart(desk: Desk) -> None:
    example = (user("e"), bot("a", STRONG), user("q"))
    first = desk.place(*example, answer=THERE)
    second = desk.place(*example, answer=SO)
    assert first.session.id != second.session.id
    assert desk.place(*example, THERE, MORE).session == first.session
    assert desk.place(*example, SO, MORE).session == second.session


def test_a_recorded_answer_in_its_own_chain_proves_where_a_request_belongs(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    after = desk.place(HI, THERE, MORE)
    assert (after.session, after.step.relation, after.step.base, after.step.depth) == (first.session, "append", 2, 3)
    assert [row.parent for row in after.step.nodes] == [extend_chain(ROOT, [HI.form, THERE.form])[-1]]


def test_the_deepest_answer_decides(desk: Desk) -> None:
    first, second = desk.place(HI, answer=THERE), desk.place(HI, answer=THERE)
    assert desk.place(HI, THERE, MORE, answer=SO).session == second.session  # the newest of those alike
    assert desk.place(HI, THERE, MORE, answer=bot("other")).session == second.session  # a retry of it
    assert desk.place(HI, THERE, THEN, answer=SO).session == first.session  # here nothing went on yet
    assert desk.place(HI, THERE, MORE, SO, THEN).session == second.session
    assert desk.place(HI, THERE, THEN, SO, MORE).session == first.session


def test_of_namesakes_one_without_a_name_is_preferred_by_a_request_without_one(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    named = desk.place(HI, answer=THERE, name="n")
    assert desk.place(HI, THERE, MORE).session == first.session
    assert desk.place(HI, THERE, MORE, name="n").session == named.session


def test_a_name_decides_whatever_the_chain_says(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    other = desk.place(HI, THERE, MORE, name="n")
    assert (other.session.id != first.session.id, other.step.relation, other.step.base) == (True, "root", 0)
    assert desk.place(MORE, name="n").session == other.session


def test_nothing_of_another_tenant_proves_anything(desk: Desk) -> None:
    first = desk.place(HI, answer=bot("there", STRONG))
    for chain in ((HI, bot("there", STRONG), MORE), (MORE, bot("there", STRONG))):
        other = desk.place(*chain, tenant=TWO)
        assert (other.session.id != first.session.id, other.session.tenant) == (True, TWO)


def relations(desk: Desk, *chains: tuple[Item, ...]) -> list[str]:
    return [desk.place(*chain, name="n").step.relation for chain in chains]


def test_relations(desk: Desk) -> None:
    desk.place(HI, name="n", answer=THERE)
    chains = ((HI,), (HI, THERE, MORE), (HI, THERE, MORE), (HI, THERE, THEN), (HI, THERE), (THEN,), (HI, MORE))
    assert relations(desk, *chains) == ["retry", "append", "retry", "branch", "branch", "root", "branch"]


def test_a_history_that_ends_with_its_answer_goes_on_from_it(desk: Desk) -> None:
    desk.place(HI, name="n", answer=THERE)
    assert relations(desk, (HI, THERE), (HI, THERE), ()) == ["append", "retry", "root"]


def test_an_edit_forth_and_back_adds_nothing_the_second_time(desk: Desk) -> None:
    desk.place(HI, answer=THERE)
    steps = [desk.place(HI, THERE, user(f"u{i % 3}"), SO, THEN).step for i in range(9)]
    assert [len(step.nodes) for step in steps] == [3, 3, 3, 0, 0, 0, 0, 0, 0]
    assert [step.relation for step in steps] == ["append", "branch", "branch", *["retry"] * 6]


def test_a_first_request_that_came_to_nothing_is_tried_again(desk: Desk) -> None:
    first = desk.place(HI)
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    again = desk.place(HI)
    assert (again.session, again.step.relation, again.step.nodes) == (first.session, "retry", ())
    assert desk.place(HI).session != first.session  # the second like it is another conversation


def test_a_retry_goes_on_from_the_same_stored_answer_known_or_not(desk: Desk) -> None:
    one, other = (replace(desk.ask(HI), previous=previous) for previous in ("resp_A", "resp_B"))
    first = desk.resolve(one)
    desk.resolver.record_unanswered(desk.index.open(first.session), one.likeness)
    assert desk.resolve(other).session != first.session
    assert desk.resolve(replace(desk.ask(HI), previous="resp_A")).session == first.session


def test_of_very_many_calls_that_a_client_brings_the_newest_are_names(desk: Desk) -> None:
    calls = [f"call_Zk93{n}x{n}" for n in range(3000)]
    brought = [bot("a", *calls[:2500]), *[bot(f"b{call}", call) for call in calls[2500:]]]
    marks = desk.place(*brought, user("u")).step.marks
    assert [mark.name for mark in marks] == [f"call:{call}" for call in calls[-2048:]]


def test_a_retry_has_the_same_tenant_and_the_same_orders(desk: Desk) -> None:
    first = desk.place(HI)
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    titled = replace(MAIN, system=b"other")
    assert desk.place(HI, tenant=TWO).session != first.session
    assert desk.place(HI, traits=titled).session != first.session
    assert desk.place(HI, traits=replace(MAIN, is_stream=False, model="n")).session == first.session


def test_a_retry_joins_no_session_that_has_gone_on_or_was_dropped_or_has_a_name(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    desk.place(HI, THERE, MORE)
    assert desk.place(HI).session != first.session
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    assert desk.place(HI).session != first.session
    named = desk.place(HI, name="n")
    desk.resolver.record_unanswered(desk.known(named), desk.ask(HI).likeness)
    assert desk.place(HI).session != named.session
    other = desk.place(MORE)
    desk.resolver.record_unanswered(desk.known(other), desk.ask(MORE).likeness)
    desk.index.clear()
    assert desk.place(MORE).session != other.session


def test_a_retry_after_a_part_of_an_answer_is_a_retry_all_the_same(desk: Desk) -> None:
    first = desk.place(HI, answer=bot("hal"))
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    assert desk.place(HI).session == first.session


def test_only_the_newest_of_many_failures_are_kept_in_mind(desk: Desk) -> None:
    first = desk.place(HI)
    desk.resolver.record_unanswered(desk.known(first), desk.ask(HI).likeness)
    for i in range(4096):
        place = desk.place(user(str(i)))
        desk.resolver.record_unanswered(desk.known(place), desk.ask(user(str(i))).likeness)
    assert desk.place(HI).session != first.session
    assert desk.place(user("0")).session.id == "x3"


def test_another_credential_goes_on_from_three_nodes_with_an_answer(desk: Desk) -> None:
    first = desk.place(HI, answer=THERE)
    assert desk.place(HI, THERE, THEN, tenant=TWO).source is None  # of which two are known
    desk.place(HI, THERE, MORE)
    node = extend_chain(ROOT, [each.form for each in (HI, THERE, MORE)])[-1]
    moved = desk.place(HI, THERE, MORE, SO, tenant=TWO)
    assert (moved.session.id != first.session.id, moved.source) == (True, (first.session.id, node))
    named = desk.place(HI, THERE, MORE, SO, tenant=TWO, name="n")
    assert named.source == (first.session.id, node)


def test_what_adds_no_node_is_no_evidence_for_an_adoption(desk: Desk) -> None:
    silent = Item("assistant", b"")
    desk.place(HI, silent, answer=THERE)
    assert desk.place(HI, silent, THERE, MORE, tenant=TWO).source is None  # two nodes of three messages are known


def test_what_is_a_credentials_own_needs_no_source(desk: Desk) -> None:
    desk.place(HI, THERE, answer=THERE)
    for chain in ((HI, THERE, THERE, MORE), (HI,)):
        assert desk.place(*chain).source is None
    desk.place(HI, THERE, THERE, tenant=TWO, answer=SO)
    assert desk.place(HI, THERE, THERE, SO, THEN, tenant=TWO).source is None


def test_a_retry_under_another_credential_still_knows_its_source(desk: Desk) -> None:
    desk.place(HI, THERE, MORE, answer=SO)
    chain = (HI, THERE, MORE, SO, THEN)
    first = desk.place(*chain, tenant=TWO)
    desk.resolver.record_unanswered(desk.known(first), desk.ask(*chain, tenant=TWO).likeness)
    again = desk.place(*chain, tenant=TWO)
    assert (again.session, again.source) == (first.session, first.source)
    assert again.source is not None
    for _ in range(2):
        assert desk.place(*chain, tenant=TWO, name="n").source == first.source


def test_a_request_goes_on_from_the_stored_answer_that_is_its_root(desk: Desk) -> None:
    first = desk.place(HI)
    root = desk.answer(first, THERE)
    after = desk.place(MORE, root=root)
    assert (after.session, after.step.relation, after.step.base) == (first.session, "append", 0)
    assert desk.place(THEN, root=root).step.relation == "branch"
    assert desk.place(MORE, root=root).step.relation == "retry"
    assert desk.place(root=root).step.relation == "branch"


def test_a_message_without_a_form_adds_no_node(desk: Desk) -> None:
    silent = Item("assistant", b"")
    step = desk.place(silent, HI, silent, THERE, name="n").step
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
    desk: Desk, changes: dict[str, object], fields: dict[str, int], chain: tuple[Item, ...], *, is_side: bool
) -> None:
    desk.place(HI, name="n", answer=THERE)
    traits = replace(MAIN, **changes)
    assert desk.place(*chain, name="n", traits=traits, output=fields.get("output", 0)).step.is_side is is_side
    assert desk.place(HI, THERE, MORE, name="n").step.is_side is False  # it does not count for what comes


def test_the_first_call_is_not_beside_for_a_tiny_answer_alone(desk: Desk) -> None:
    bare = Traits("m", has_tools=False, system=b"", is_stream=False)
    assert [desk.place(HI, traits=bare, output=n).step.is_side for n in (0, 64, 65)] == [False, False, False]
    assert not desk.place(HI, name="with tools", output=64).step.is_side
    assert not desk.place(HI, THERE, MORE, SO, name="long", traits=bare, output=64).step.is_side
    assert [desk.place(HI, name=f"{n}", traits=bare, output=n).step.is_side for n in (0, 64, 65)] == [
        False,
        True,
        False,
    ]


def test_a_conversation_of_tiny_answers_is_none_beside_another(desk: Desk) -> None:
    bare = Traits("m", has_tools=False, system=b"", is_stream=False)
    for name in ("", "n"):
        desk.place(HI, name=name, traits=bare, output=64, answer=THERE)
        assert not desk.place(HI, THERE, MORE, name=name, traits=bare, output=64, answer=SO).step.is_side


def test_in_a_known_conversation_a_tiny_answer_is_one_sign_of_two(desk: Desk) -> None:
    desk.place(HI, THERE, MORE, SO, THEN, name="n")
    other, another = (MORE, SO, HI, THERE), (THEN, SO, HI, THERE)
    assert not desk.place(*other, name="n", output=64).step.is_side
    assert desk.place(*another, name="n", output=64, traits=replace(MAIN, system=b"t")).step.is_side


def test_a_title_that_is_asked_for_first_does_not_put_the_conversation_beside_it(desk: Desk) -> None:
    title = replace(MAIN, has_tools=False, system=b"t")
    desk.place(MORE, HI, name="n", traits=title)
    assert not desk.place(HI, name="n", answer=THERE).step.is_side
    assert not desk.place(HI, THERE, MORE, name="n").step.is_side
    assert desk.place(MORE, THEN, name="n", traits=title).step.is_side


ASK = replace(MAIN, has_tools=False, system=b"ask")


def test_what_goes_on_from_the_answer_to_a_call_beside_it_is_a_conversation(desk: Desk) -> None:
    """A client whose user goes on without tools and under other orders, and comes back in the end."""
    chain: tuple[Item, ...] = (HI, THERE, user("discuss"))
    desk.place(HI, name="n", answer=THERE)
    sides = []
    for number in range(3):
        answer = bot(f"point {number}")
        sides.append(desk.place(*chain, name="n", traits=ASK, answer=answer).step.is_side)
        chain = (*chain, answer, user(f"and {number}?"))
    assert sides == [True, False, False]
    assert not desk.place(*chain, name="n", answer=SO).step.is_side  # with tools again
    assert desk.place(*chain, SO, MORE, name="n", traits=ASK).step.is_side


def test_both_ways_of_a_client_that_goes_to_and_fro_are_conversations(desk: Desk) -> None:
    desk.place(HI, name="n", answer=THERE)
    talk = (HI, THERE, user("discuss"))
    desk.place(*talk, name="n", traits=ASK, answer=SO)
    desk.place(HI, THERE, MORE, name="n", answer=SO)
    assert not desk.place(*talk, SO, THEN, name="n", traits=ASK).step.is_side
    assert not desk.place(HI, THERE, MORE, SO, THEN, name="n").step.is_side


def test_titles_and_summaries_stay_beside_the_conversation(desk: Desk) -> None:
    """Nobody goes on from their answers; a title that is asked for again has not begun in the conversation."""
    summary, again = user("summarise"), bot("a title")
    title = replace(ASK, system=b"title")
    desk.place(HI, name="n", answer=THERE)
    sides = [
        desk.place(HI, THERE, summary, name="n", traits=ASK, answer=bot("a summary")),
        desk.place(HI, THERE, summary, name="n", traits=ASK, answer=bot("another summary")),
        desk.place(HI, THERE, MORE, SO, summary, name="n", traits=ASK),
        desk.place(HI, name="n", traits=title, answer=again),
        desk.place(HI, again, user("shorter"), name="n", traits=title),
        desk.place(THEN, name="n", traits=title, answer=again),
        desk.place(THEN, again, user("shorter"), name="n", traits=title),
    ]
    assert [placed.step.is_side for placed in sides] == [True] * 7


def test_an_answer_counts_more_than_what_stands_behind_a_shallower_one(desk: Desk) -> None:
    desk.place(HI, name="a", answer=THERE)
    desk.place(HI, THERE, MORE, SO, THEN, name="a")
    other = desk.place(HI, THERE, MORE, name="b", answer=SO)
    assert desk.place(HI, THERE, MORE, SO, THEN).session == other.session


@pytest.mark.parametrize("item", [bot("a", STRONG), bot("text", weight=40)])
def test_an_answer_that_is_kept_elsewhere_tells_whose_request_it_is(desk: Desk, item: Item) -> None:
    first = desk.place(HI, answer=item)
    after = desk.place(user("sum", 600), item, MORE)
    assert (after.session, after.step.base) == (first.session, 0)
    assert desk.place(user("sum", 600), item, MORE).session == first.session  # nothing was answered yet


@pytest.mark.parametrize(
    "item",
    [
        bot("short", weight=39),
        *[bot("a", call) for call in ("call_1", "read:0", "functions.read:3", "12", "call7", "read_file_2")],
    ],
)
def test_short_texts_and_ids_that_are_counted_up_tell_nothing(desk: Desk, item: Item) -> None:
    first = desk.place(HI, answer=item)
    assert desk.place(user("sum", 600), item, MORE).session.id != first.session.id
    assert not name_answer(item, "", first.session) and not list_shown_marks(desk.ask(item))


@pytest.mark.parametrize(
    "call", [STRONG, "D681PevKs", "365174485", "call_s1_1", "toolu_01A09q90qw90lq917835lq9", "DkQpXWvsR"]
)
def test_ids_that_are_drawn_are_names(call: str) -> None:
    assert name_answer(bot("a", call), "own", SessionKey("s", ONE, "main", "")) == [f"call:{call}", "item:own"]


def test_a_kept_answer_counts_only_with_the_same_form(desk: Desk) -> None:
    first = desk.place(HI, answer=bot("a", STRONG))
    assert desk.place(user("sum"), bot("b", STRONG), MORE).session.id != first.session.id


def test_a_kept_answer_that_two_sessions_gave_tells_nothing(desk: Desk) -> None:
    for text in ("q", "r"):
        desk.place(user(text), answer=bot("a", STRONG))
    assert desk.place(user("sum"), bot("a", STRONG), MORE).session.id == "x3"


def test_kept_answers_of_two_sessions_tell_nothing(desk: Desk) -> None:
    desk.place(HI, answer=bot("a", STRONG))
    desk.place(HI, answer=bot("b", STRONG + "x"))
    assert desk.place(user("sum"), bot("a", STRONG), bot("b", STRONG + "x")).session.id == "x3"


def test_what_a_client_brought_along_was_never_an_answer(desk: Desk) -> None:
    desk.place(user("q"), bot("a", STRONG), MORE)
    assert desk.place(user("r"), bot("a", STRONG), MORE).session.id == "x2"


def test_what_a_client_brought_along_makes_an_answer_ambiguous(desk: Desk) -> None:
    desk.place(HI, answer=bot("a", STRONG))
    desk.place(user("r"), bot("a", STRONG), MORE, name="n")
    assert desk.place(user("t"), bot("a", STRONG), MORE).session.id == "x3"


def test_of_what_a_request_shows_the_newest_names_are_asked_for(desk: Desk) -> None:
    asked = desk.ask(*[bot("a", f"{STRONG}{i}") for i in range(100)], user("u"))
    assert list_shown_marks(asked) == [f"call:{STRONG}{i}" for i in range(68, 100)]


def test_what_was_said_in_a_session_that_its_client_names_is_found_by_the_name_alone(desk: Desk) -> None:
    text, call = bot("text", weight=40), bot("a", STRONG)
    named = desk.place(HI, name="n", answer=text)
    assert (name_answer(text, "", named.session), list(desk.known(named).marks)) == ((), [])
    assert desk.place(user("sum", 600), text, MORE).session != named.session
    assert desk.place(user("sum", 600), text, MORE, name="n").session == named.session
    assert name_answer(call, "", named.session) == [f"call:{STRONG}"]


SUMMARY, PASTE = user("so far", 500), user("a long file", 600)
CALL, RESULT = bot("a", STRONG), say("tool", "r", weight=900)


def talk(desk: Desk) -> None:
    """Two turns of the user, a call between them, and the answers to all of it."""
    desk.place(HI, answer=CALL, name="n")
    desk.place(HI, CALL, RESULT, answer=THERE, name="n")
    desk.place(HI, CALL, RESULT, THERE, MORE, answer=SO, name="n")
    desk.place(HI, CALL, RESULT, THERE, MORE, SO, THEN, answer=SO, name="n")


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
def test_a_shorter_history_with_a_long_new_text_is_a_compaction(desk: Desk, chain: tuple[Item, ...]) -> None:
    talk(desk)
    step = desk.place(*chain, name="n").step
    assert (step.relation, step.is_side) == ("compaction", False)
    assert desk.place(*chain, answer=THERE, name="n").step.relation == "retry"
    assert desk.place(*chain, THERE, user("on"), name="n").step.relation == "append"


@pytest.mark.parametrize(("chain", "relation"), NOT_COMPACTED.values(), ids=NOT_COMPACTED)
def test_an_edit_or_a_rewind_is_none(desk: Desk, chain: tuple[Item, ...], relation: str) -> None:
    talk(desk)
    assert desk.place(*chain, name="n").step.relation == relation


def test_an_edit_behind_what_the_client_says_of_itself_is_none(desk: Desk) -> None:
    """codex puts a message of the user's role before the first turn."""
    where = user("cwd")
    desk.place(where, HI, answer=THERE, name="n")
    desk.place(where, HI, THERE, MORE, answer=SO, name="n")
    assert desk.place(where, HI, SUMMARY, name="n").step.relation == "compaction"
    assert desk.place(where, PASTE, name="n").step.relation == "branch"


def test_a_turn_after_one_that_was_not_answered_is_none(desk: Desk) -> None:
    desk.place(HI, name="n")
    assert desk.place(HI, PASTE, name="n").step.relation == "append"


@pytest.mark.parametrize("chain", [(SUMMARY,), (HI, SUMMARY)])
def test_a_call_beside_the_conversation_is_none(desk: Desk, chain: tuple[Item, ...]) -> None:
    talk(desk)
    titles = replace(MAIN, system=b"titles", has_tools=False)
    step = desk.place(*chain, name="n", traits=titles).step
    assert (step.is_side, step.relation == "compaction") == (True, False)
