"""What spares programs work: sessions by name, parts as they come, turns told by parts, figures, plain results."""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import proxy
from proxy.config import ConfigError
from proxy.model.errors import BadRequest, UpstreamRefused
from proxy.model.events import BUS_EVENTS
from proxy.model.parts import MessagePart, ReasoningPart, StepFinishPart, StepStartPart, TextPart, ToolPart, ToolStatus
from proxy.model.results import TokenUsage
from proxy.sdk import engines
from proxy.sdk.engines import find_folder
from proxy.sdk.errors import StoreError
from proxy.sdk.events import Event, EventBus
from proxy.sdk.files import LargeFileHandler
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, call, say


async def test_a_session_is_opened_by_its_name_before_and_after_a_restart(
    provider: ChatProvider, tmp_path: Path
) -> None:
    config = provider.settings(tmp_path)
    async with await Session.open("nightly-report", model="m", agent="lead-1", config=config) as first:
        await first.send("a")
        same = await Session.open("nightly-report", model="m", agent="lead-1", config=config)
        assert same.id == first.id
        await same.close()
        other = await Session.open("nightly-report", model="m", config=config)
        assert (other.id == first.id, other.agent, first.agent) == (False, "default", "lead-1")
        await other.close()
    async with await Session.open("nightly-report", model="another", agent="lead-1", config=config) as again:
        assert (again.id, again.model) == (first.id, "m")
        await again.send("b")
        assert provider.said[1:] == ["a", "word 1", "b"]
    for name in ("", "a#b", "x" * 81):
        with pytest.raises(BadRequest, match="name is a name of letters"):
            await Session.open(name, model="m", config=config)


async def test_parts_come_by_a_loop(create: Create, provider: ChatProvider) -> None:
    async with await create() as session:
        provider.queue.append(say("one |two", reasoning_content="hm"))
        parts = [part async for part in session.stream("a")]
        assert list(dict.fromkeys(map(type, parts))) == [StepStartPart, ReasoningPart, TextPart, StepFinishPart]
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == "one two"
        provider.queue.append({"status": 429, "error": {"message": "later"}})
        with pytest.raises(UpstreamRefused):
            [part async for part in session.stream("b")]
        provider.gate.clear()
        async with aclosing(session.stream("c")) as streaming:
            async for _ in streaming:
                break
        provider.gate.set()
        await session.send("d")
        assert provider.said[1:] == ["a", "one two", "d"], "a call that was left has no answer"


async def test_a_turn_is_told_by_parts(create: Create, provider: ChatProvider) -> None:
    answer: list[MessagePart] = [
        StepStartPart(1),
        ReasoningPart("Let me look."),
        TextPart("I "),
        TextPart("look."),
        ToolPart("read", "c1", {"path": "a"}, "text of a"),
        ToolPart("read", "c2", '{"path": "b"}', status=ToolStatus("error", error_message="no such file")),
        TextPart("Both."),
        StepFinishPart(1),
    ]
    async with await create() as session:
        await session.record([TextPart("Read a and b.")], answer, tokens=TokenUsage(5, 1))
        await session.record("Once more.", [ToolPart("read", "c3", None)])
        await session.record([ToolPart("read", "c3", output="text")], "Done.")
        await session.send("Thanks.")
        _, *sent = provider.seen[-1]["messages"]
        assert [(each["role"], each["content"]) for each in sent] == [
            ("user", "Read a and b."), ("assistant", "I look."), ("tool", "text of a"), ("tool", "no such file"),
            ("assistant", "Both."), ("user", "Once more."), ("assistant", ""), ("tool", "text"), ("assistant", "Done."),
            ("user", "Thanks."),
        ]  # fmt: skip
        calls = [json.loads(each["function"]["arguments"]) for each in sent[1]["tool_calls"]]
        assert calls == [{"path": "a"}, {"path": "b"}]
        broken: list[Any] = [[TextPart("b"), {"role": "assistant", "content": "c"}], [StepStartPart(1)]]
        for answered in broken:
            with pytest.raises(BadRequest):
                await session.record("a", answered)


async def test_a_session_with_nothing_to_compact_has_a_result_of_no_message(create: Create) -> None:
    async with await create() as session:
        empty = await session.compact()
        assert (empty.compacted_message_count, empty.tokens_before, empty.session_id) == (0, 0, session.id)
        await session.send("a")
        short = await session.compact()
        assert (short.compacted_message_count, short.summary_message_id) == (0, None)
        assert short.tokens_before == short.tokens_after > 0
        assert short.model_dump()["compacted_message_count"] == 0


async def test_a_loop_is_told_with_each_of_its_calls(create: Create, provider: ChatProvider) -> None:
    async with await create() as session:
        found = []
        result: Any = "go"
        for n in range(7):
            provider.queue.append(call((f"c{n}", "look", {"at": 1})))
            found.append((await session.send(result)).doom_loop_detected)
            result = [ToolPart("look", f"c{n}", output="nothing")]
        provider.queue.append(say("I give up."))
        found.append((await session.send(result)).doom_loop_detected)
        assert found == [False, False, True, True, True, True, True, False]


async def test_the_figures_of_each_call(create: Create, provider: ChatProvider) -> None:
    async with await create({"pricing": {"m": {"input": 1.0, "output": 2.0}}}) as session:
        assert await session.history() == []
        await session.send("a")
        provider.queue.append({"status": 400, "error": {"message": "no"}})
        with pytest.raises(UpstreamRefused):
            await session.send("refused")
        await session.send("b")
        first, second = await session.history()
        assert (first.tokens, first.model) == (TokenUsage(10, 3, 0, 0, 13), "m")
        assert first.cost == pytest.approx(16e-6)
        assert first.n < second.n and first.at_ms <= second.at_ms and first.seconds > 0
        assert first.model_dump()["tokens"]["input"] == 10


async def test_the_original_of_a_file_is_the_file(create: Create, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("".join(f"line {n} \u00e9\r\n" for n in range(3_000)).encode() + b"--- user\n\n\n")
    async with await create({"files.inline_tokens": 100}) as session:
        found = await LargeFileHandler(session).handle_file(path)
        assert found.file_ref is not None
        assert (await session.original(found.file_ref.content_id)).encode() == path.read_bytes()


@pytest.mark.parametrize("name", ["sessions.db", "log.db/x.db"])
def test_a_log_is_never_a_directory_that_is_named_like_a_file(
    name: str, provider: ChatProvider, tmp_path: Path
) -> None:
    config = provider.settings(tmp_path)
    with pytest.raises(StoreError, match="names a file; db_path is the directory of a log"):
        find_folder(config, tmp_path / name)
    (tmp_path / name).mkdir(parents=True)
    assert find_folder(config, tmp_path / name) == (tmp_path / name).resolve()


async def test_a_model_of_litellm_needs_it_also_with_the_settings_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setattr(engines, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"none takes 'anthropic/claude-sonnet-4-5'.*providers"):
        await Session.create(model="anthropic/claude-sonnet-4-5", db_path=tmp_path)


def test_events_are_named_by_an_enum_of_their_texts() -> None:
    assert {*Event} == {*BUS_EVENTS, "*"}
    assert proxy.Event.MAP_STARTED == "MAP_STARTED"
    EventBus().subscribe(Event.DOOM_LOOP_DETECTED, print)


def test_a_tool_part_tells_its_error_and_when_it_was_compacted() -> None:
    part = ToolPart("read", "c", status=ToolStatus("error", compacted_at=7, error_message="no"))
    assert (part.error_message, part.compacted_at) == ("no", 7)
