"""A client's own compaction, told from an edit, a rewind and a call beside the conversation, from both sides."""

import pytest
from msgspec.structs import replace

from proxy.wire.identity import Item
from tests.engine.lineage.desk import HI, MAIN, MORE, SO, STRONG, THEN, THERE, Desk, bot, say, user

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
