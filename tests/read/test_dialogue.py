"""A conversation a piece at a time, and what one call added to it, over sessions with turns, branches and epochs."""

import dataclasses
import json

import pytest

from proxy.engine.recorded.lookup import find_exchange
from proxy.model.errors import NotFound
from proxy.model.parts import ReasoningPart, TextPart, ToolPart
from proxy.read.dialogue import MOST_SHOWN, Dialogues, load_added
from tests.engine.memory.test_messages import SYSTEM, call, result
from tests.support.compacting import Workshop
from tests.support.fake_log import EXCHANGE, FakeLog
from tests.support.managing import Message
from tests.support.remembering import report_with_facts, talk

TEXTS = ("Fix the parser.", "Now the lexer.", "And the docs.")
USER: Message = {"role": "user", "content": "go"}


def make_shop(ceiling: int = 100_000) -> Workshop:
    return Workshop(report_with_facts, ceiling=ceiling)


# --- a piece ---------------------------------------------------------------------------------------------------------


async def test_a_piece_has_all_turns_and_some_messages_each_with_its_name() -> None:
    shop = make_shop()
    await talk(shop, TEXTS, system=SYSTEM)
    dialogues = Dialogues(shop.log)
    whole = await dialogues.load_piece(shop.session, "", "", None, 100)
    assert [turn.title for turn in whole.turns] == list(TEXTS)
    assert [(turn.start, turn.stop) for turn in whole.turns] == [(0, 4), (4, 8), (8, 12)]
    assert [turn.name for turn in whole.turns] == [whole.items[turn.start].name for turn in whole.turns]
    assert (whole.count, whole.start, whole.stop, whole.is_newest) == (len(whole.items), 0, len(whole.items), True)
    names = [each.name for each in whole.items]
    assert len(set(names)) == len(names)
    assert [name.partition("-")[0] for name in names] == [str(each.n) for each in whole.items]
    assert [each.turn for each in whole.items] == [turn.number for turn in whole.turns for _ in range(4)]
    newest = await dialogues.load_piece(shop.session, "", "", None, 3)
    assert (newest.start, newest.items) == (whole.count - 3, whole.items[-3:])
    middle = await dialogues.load_piece(shop.session, "", "", 5, 2)
    assert middle.items == whole.items[5:7]
    around = await dialogues.load_piece(shop.session, "", names[6], None, 4)
    assert (around.start, around.items[1].name) == (5, names[6])
    assert (await dialogues.load_piece(shop.session, "", "", 1000, 4)).items == whole.items[-1:]


async def test_what_is_not_sent_any_more_is_told() -> None:
    shop = make_shop(ceiling=3000)
    await talk(shop, TEXTS * 4, system=SYSTEM)
    found = await Dialogues(shop.log).load_piece(shop.session, "", "", None, 1000)
    held = [each.held_ms is not None for each in found.items]
    assert held[3]
    assert not held[-1]


async def test_a_long_text_is_cut_until_the_whole_message_is_asked_for() -> None:
    shop = make_shop()
    thought, said, written, output = "t" * 5000, "s" * 5000, "w" * 5000, "o" * 5000
    thinking = {**call("c1", "write", text=written), "content": said, "reasoning_content": thought}
    free = call("c2", "patch")
    free["tool_calls"][0]["function"]["arguments"] = written
    await shop.ask([USER, thinking, result("c1", output), free, result("c2", "ok"), {"role": "user", "content": "on"}])
    dialogues = Dialogues(shop.log)
    found = await dialogues.load_piece(shop.session, "", "", None, 100)
    assert [each.is_cut for each in found.items] == [False, True, True, False, False]
    cut = found.items[1]
    texts = [part.text for part in cut.parts if isinstance(part, TextPart | ReasoningPart)]
    (tool,) = (part for part in cut.parts if isinstance(part, ToolPart))
    assert (list(map(len, texts)), len(tool.output or "")) == ([MOST_SHOWN] * 2, MOST_SHOWN)
    assert tool.input == json.dumps({"text": written}, separators=(",", ":"))[:MOST_SHOWN]
    whole = await dialogues.load_message(shop.session, "", cut.id)
    tool = next(part for part in whole.parts if isinstance(part, ToolPart))
    assert (tool.input, tool.output) == ({"text": written}, output)
    with pytest.raises(NotFound):
        await dialogues.load_message(shop.session, "", "0123")


async def test_a_message_of_another_branch_is_found_by_its_name() -> None:
    shop = make_shop()
    await shop.ask([SYSTEM, USER])
    first: Message = {"role": "user", "content": "one way"}
    await shop.ask([SYSTEM, USER, first])
    await shop.ask([SYSTEM, USER, {"role": "user", "content": "another way"}])
    dialogues = Dialogues(shop.log)
    newest = await dialogues.load_piece(shop.session, "", "3", None, 10)
    assert newest.is_newest
    assert TextPart("another way") in newest.items[-2].parts
    found = await dialogues.load_piece(shop.session, "", "2", None, 10)
    assert (found.is_newest, found.last) == (False, 2)
    assert TextPart("one way") in found.items[-2].parts
    with pytest.raises(NotFound, match="call 9 is no part"):
        await dialogues.load_piece(shop.session, "", "9-2", None, 10)


async def test_what_was_read_is_read_again_once_there_is_more() -> None:
    shop = make_shop()
    await talk(shop, TEXTS[:1], system=SYSTEM)
    dialogues = Dialogues(shop.log)
    before = await dialogues.load_piece(shop.session, "", "", None, 100)
    history = await talk(shop, TEXTS[:2], system=SYSTEM)
    after = await dialogues.load_piece(shop.session, "", "", None, 100)
    assert (len(before.turns), len(after.turns)) == (1, 2)
    assert history


# --- what a call added -----------------------------------------------------------------------------------------------


async def test_a_call_added_what_its_session_did_not_know_and_results_have_their_calls() -> None:
    shop = make_shop()
    await shop.ask([SYSTEM, USER])
    asked = call("c1", "bash", command="ls")
    await shop.ask([SYSTEM, USER, asked, result("c1", "a.py")])
    both = [SYSTEM, USER, asked, result("c1", "a.py"), call("c2", "bash", command="cat"), result("c2", "x")]
    await shop.ask([*both, result("gone", "late"), {"role": "user", "content": "on", "name": "ann"}])
    found = await load_added(shop.log, await find_exchange(shop.log, shop.session, 2))
    assert (found.before, [each.role for each in found.added]) == (1, ["assistant", "tool"])
    (part,) = found.added[1].parts
    assert isinstance(part, ToolPart)
    assert (part.tool_name, part.input, part.output, part.status.state) == (
        "bash",
        {"command": "ls"},
        "a.py",
        "completed",
    )
    assert [each.role for each in found.answer] == ["assistant"]
    assert found.missing == found.error == ""
    found = await load_added(shop.log, await find_exchange(shop.log, shop.session, 3))
    assert [each.place for each in found.added] == [3, 4, 5, 6]
    assert [
        (part.tool_name, part.output) for each in found.added for part in each.parts if isinstance(part, ToolPart)
    ] == [
        ("bash", None),
        ("bash", "x"),
        ("", "late"),
    ]
    assert found.added[-1].sender == "ann"


async def test_the_same_request_again_shows_its_newest_message() -> None:
    shop = make_shop()
    await shop.ask([SYSTEM, USER])
    await shop.ask([SYSTEM, USER])
    found = await load_added(shop.log, await find_exchange(shop.log, shop.session, 2))
    assert [each.parts for each in found.added] == [[TextPart("go")]]


async def test_what_cannot_be_read_says_why() -> None:
    found = await load_added(FakeLog(), dataclasses.replace(EXCHANGE, wire=""))
    assert (found.added, found.answer) == ([], [])
    assert "wire format" in found.missing
    found = await load_added(FakeLog(bodies={}), EXCHANGE)
    assert found.missing == "this content was erased"
