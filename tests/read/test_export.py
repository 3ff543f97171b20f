"""A session written out, and a conversation for another client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from proxy.model.epoch import StoredContext
from proxy.model.errors import Erased, NotFound
from proxy.model.messages import LEDGER_HEAD
from proxy.read.calls import describe_whole
from proxy.read.export import Form, open_export, read_exported, write_handoff
from tests.support.contexts import make_epoch
from tests.support.fake_log import ANSWER, REQUEST, TREE, FakeLog, tree_log
from tests.support.managing import make_history
from tests.support.scripted import LIMIT
from tests.support.talking import Talk


async def write(log: FakeLog, form: Form, tip: str = "") -> bytes:
    return b"".join([piece async for piece in await open_export(log, "abc", form, tip)])


async def test_a_document_has_all_exchanges_or_those_of_a_branch() -> None:
    whole = json.loads(await write(tree_log(), "json"))
    assert (whole["session"], [row["n"] for row in whole["exchanges"]]) == ("abc1", list(range(1, 9)))
    one = json.loads(await write(tree_log(), "json", b"five".hex()))
    assert [row["n"] for row in one["exchanges"]] == [1, 4, 5]
    assert [row["request"]["messages"][0]["content"] for row in one["exchanges"]] == ["1", "4", "5"]


async def test_lines_have_an_exchange_each() -> None:
    lines = (await write(tree_log(), "jsonl", b"five".hex())).splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 4, 5]


async def test_a_conversation_is_that_of_the_branch() -> None:
    async def read(tip: str) -> Any:
        return json.loads(await write(tree_log(), "openai", tip))[0]["content"]

    assert [await read(tip) for tip in ("", b"five".hex(), b"three".hex(), b"seven".hex())] == ["6", "5", "3", "7"]


async def test_a_session_without_exchanges_is_still_a_document() -> None:
    assert json.loads(await write(FakeLog(exchanges=()), "json")) == {"session": "abc1", "exchanges": []}
    assert await write(FakeLog(exchanges=()), "jsonl") == b""


@pytest.mark.parametrize(("form", "tip"), [("json", "ff"), ("jsonl", "ff"), ("openai", "ff")])
async def test_what_is_not_there_is_told_before_the_first_piece(form: Form, tip: str) -> None:
    with pytest.raises(NotFound, match="its branches are"):
        await open_export(tree_log(), "abc", form, tip)
    with pytest.raises(NotFound, match="no session"):
        await open_export(tree_log(), "x", form)


async def test_what_an_export_is_made_of_is_read_again_by_itself() -> None:
    assert [row.n async for row in read_exported(tree_log(), "abc", b"five".hex())] == [1, 4, 5]
    assert [row.n async for row in read_exported(tree_log(), "abc")] == list(range(1, 9))


async def test_pieces_are_loaded_as_they_are_asked_for() -> None:
    log = tree_log()
    pieces = await open_export(log, "abc", "jsonl")
    assert json.loads(await anext(pieces))["request"]["messages"]
    log.bodies.clear()
    assert json.loads(await anext(pieces))["missing"] == "this content was erased"


async def test_an_exchange_whose_request_was_erased_is_described_with_the_reason() -> None:
    described = await describe_whole(FakeLog(bodies={}), TREE[0])
    assert (described.request, described.missing) == (None, "this content was erased")
    whole = await describe_whole(FakeLog(bodies={"x1": REQUEST}), TREE[0])
    assert (whole.request, whole.rounds[0].answer) == (msgspec.Raw(REQUEST), msgspec.Raw(ANSWER))


async def test_of_what_was_erased_a_handoff_says_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(exchange: str) -> bytes:
        raise Erased("this call was erased", "abc")

    log = tree_log()
    monkeypatch.setattr(log, "load_request", load)
    with pytest.raises(Erased, match=r"^this call was erased$"):
        await write_handoff(log, "abc")


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    yield talk
    assert await talk.engine.tasks.finish(LIMIT)
    await talk.close()


async def test_what_was_archived_is_told_in_short_and_the_rest_word_for_word(talk: Talk) -> None:
    history = await talk.grow_to(1)
    assert await talk.engine.tasks.finish(LIMIT)
    text = await write_handoff(talk.log, talk.session)
    (epoch,) = (await talk.log.load_context(talk.session)).epochs
    assert text.count(LEDGER_HEAD) == 1
    assert f"## The first {epoch.depth} messages, in short" in text
    archived = [message["content"] for message in history[2:] if message["content"] not in text]
    assert archived
    for message in history[1 + epoch.depth :]:
        assert message["content"] in text
    for each in epoch.originals:
        assert f"- `palimpsest expand {each.id}`: messages {each.place} to " in text
    assert f"word {talk.step}" in text
    assert "You are an agent." not in text
    assert await write_handoff(talk.log, talk.session[:5]) == text


@pytest.mark.parametrize(("model", "is_told"), [("claude-fable-5-2", True), ("gpt-4o", False)])
async def test_reasoning_that_is_bound_to_an_epoch_is_no_part_of_it(talk: Talk, model: str, *, is_told: bool) -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "I wonder.", "signature": "c2ln"}]}
    history = [{**each, **(thought if each["role"] == "assistant" else {})} for each in make_history(60)]
    for steps in range(40, 60):
        if not talk.opened:
            await talk.ask(history[: 2 + 2 * steps], model=model)
    text = await write_handoff(talk.log, talk.session)
    assert "in short" in text
    assert ("is accepted only through the proxy" in text) == is_told
    assert "I wonder." not in text


async def test_without_an_epoch_all_is_word_for_word(talk: Talk) -> None:
    history = await talk.grow(2)
    assert await talk.engine.tasks.finish(LIMIT)
    text = await write_handoff(talk.log, talk.session)
    for message in history[1:]:
        assert message["content"] in text
    assert "in short" not in text
    assert "## References" not in text
    assert "command: sed -n 0p src/module_0.py" in text


async def test_a_branch_is_handed_on_by_its_tip(talk: Talk) -> None:
    history = await talk.grow(2)
    await talk.ask([*history[:3], {"role": "user", "content": "otherwise"}])
    first, second = await talk.log.list_branches(talk.session)
    assert "otherwise" not in await write_handoff(talk.log, talk.session, first.tip.hex())
    assert "otherwise" in await write_handoff(talk.log, talk.session, second.tip.hex()[:9])
    with pytest.raises(NotFound, match="no branch begins with"):
        await write_handoff(talk.log, talk.session, "zz")


async def test_fences_hold_what_has_fences(talk: Talk) -> None:
    history = await talk.grow(1)
    history[-1] = {**history[-1], "content": "a\n````\nb"}
    await talk.ask(history)
    text = await write_handoff(talk.log, talk.session)
    assert "`````\na\n````\nb\n`````" in text


async def test_it_is_short_after_a_revert_too(talk: Talk) -> None:
    await talk.grow_to(1)
    before = await write_handoff(talk.log, talk.session)
    await talk.care.revert(talk.session, 1)
    assert await write_handoff(talk.log, talk.session) == before


async def test_an_unknown_session_is_told() -> None:
    with pytest.raises(NotFound):
        await write_handoff(tree_log(), "zzz")


async def test_what_is_no_text_is_named() -> None:
    content = b'[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]'
    log = FakeLog(bodies={"x1": b'{"messages":[{"role":"user","content":%b}]}' % content})
    text = await write_handoff(log, "abc1")
    assert "\nlook\n(" in text
    assert "base64" not in text


class EpochLog(FakeLog):
    """Has an epoch, and a request whose messages have no place in the log."""

    async def load_context(self, session: str) -> StoredContext:
        return StoredContext(epochs=(make_epoch("e1"),))


async def test_an_epoch_stands_for_nothing_of_a_request_without_a_place() -> None:
    text = await write_handoff(EpochLog(), "abc1")
    assert "in short" not in text
    assert text.count("### ") == 2
