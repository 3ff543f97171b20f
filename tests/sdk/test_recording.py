"""Sessions of programs that make their calls elsewhere: what is recorded, and what they are given to send."""

from pathlib import Path
from typing import Any

import pytest

from proxy.model.errors import BadRequest
from proxy.model.events import AnswerRead
from proxy.model.parts import ToolPart
from proxy.model.results import TokenUsage
from proxy.sdk.engines import ENGINES
from proxy.sdk.errors import SessionClosedError
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, say

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


async def test_what_was_recorded_is_the_context_of_the_next_call(create: Create, provider: ChatProvider) -> None:
    async with await create(system_prompt="Be brief.") as session:
        first = await session.context()
        assert (first.messages, first.token_estimate > 0) == ([SYSTEM], True)
        told = TokenUsage(input=10, output=2, cache_read=5)
        kept = await session.record("hello", "hi", tokens=told)
        assert (kept.tokens.input, kept.tokens.cache_read, kept.tokens.total) == (10, 5, 17)
        assert session.token_usage == kept.tokens and not kept.compaction_triggered
        assert [each.id for each in await session.messages()] == [kept.user_message_id, kept.assistant_message_id]
        built = await session.context()
        assert built.messages == [SYSTEM, *HELLO] and built.token_estimate > first.token_estimate
        assert provider.seen == []
        await session.send("And now?")
        assert provider.seen[-1]["messages"] == [*built.messages, {"role": "user", "content": "And now?"}]


async def test_the_answer_has_been_read_when_it_is_recorded_so_that_a_close_loses_no_event(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.engine.call.response_reader.GATHER_SECONDS", 0.5)  # by itself it is read only later
    read: list[str] = []
    async with await create() as session:
        (shared,) = ENGINES.open.values()

        def note(event: AnswerRead) -> None:
            assert event.reply is not None
            read.append(event.reply.nodes[-1].node.hex())

        shared.engine.bus.subscribe(AnswerRead, note)
        kept = await session.record("hello", "hi")
        assert read == [kept.assistant_message_id]


async def test_what_is_no_turn_is_refused_and_leaves_no_trace(create: Create, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[tuple[Any, Any, dict[str, Any], str]] = [
        (None, "hi", {}, "messages as mappings"),
        ("hello", object(), {}, "model_dump"),
        (["hello"], "hi", {}, "messages as mappings"),
        ("hello", "hi", {"finish_reason": "done"}, "finish_reason is one of stop, max_tokens"),
        ("hello", "hi", {"tokens": {"input": 1}}, "tokens are a TokenUsage"),
        ("hello", "hi", {"tokens": TokenUsage(input=-1)}, "at least 0"),
    ]
    async with await create() as session:
        for asked, answered, options, why in turns:
            with pytest.raises(BadRequest, match=why):
                await session.record(asked, answered, **options)
        assert await session.messages() == []
        await session.record("hello", "hi")
    assert not caplog.records


async def test_a_context_is_written_for_each_api(create: Create) -> None:
    async with await create(system_prompt="Be brief.") as session:
        told: list[Any] = [CALLING, {"role": "tool", "tool_call_id": "c1", "content": "a b"}, HELLO[1]]
        await session.record("list", told)
        unknown: Any = "soap"
        messages, items = await session.context("messages"), await session.context("responses")
        assert (messages.system, items.system) == ("Be brief.", "Be brief.")
        assert [each["role"] for each in messages.messages] == ["user", "assistant", "user", "assistant"]
        assert [each["type"] for each in items.messages] == [
            "message", "function_call", "function_call_output", "message",
        ]  # fmt: skip
        with pytest.raises(BadRequest, match="wire is one of chat, messages, responses"):
            await session.context(unknown)


async def test_calls_that_were_recorded_wait_for_their_results(create: Create, provider: ChatProvider) -> None:
    async with await create() as session:
        await session.record("list", CALLING)
        with pytest.raises(BadRequest, match="c1"):
            await session.record("and?", "no")
        provider.queue.append(say("Two files."))

        def ls() -> str:
            """List files."""
            return "a b"

        result = await session.run_tools(None, [ls])
        assert result.text == "Two files."
        assert [each["content"] for each in provider.seen[-1]["messages"][-1:]] == ["a b"]
        parts = [part for each in await session.messages() for part in each.parts if isinstance(part, ToolPart)]
        assert [part.output for part in parts] == ["a b"]


async def test_a_failed_call_and_another_prompt_leave_no_trace_in_the_context(
    create: Create, provider: ChatProvider
) -> None:
    async with await create(system_prompt="Be brief.") as session:
        await session.record("hello", "hi")
        before = await session.context()
        provider.queue.append(say("busy", status=500))
        with pytest.raises(Exception, match="500"):
            await session.send("lost")
        assert await session.context() == before
        await session.send("more", system_prompt="Be long.")
        assert (await session.context()).messages[0] == SYSTEM


async def test_what_was_recorded_outlives_the_program(create: Create, provider: ChatProvider, tmp_path: Path) -> None:
    async with await create(system_prompt="Be brief.") as session:
        await session.record("hello", "hi", finish_reason="max_tokens")
        built = await session.context()
    with pytest.raises(SessionClosedError):
        await session.record("more", "no")
    async with await Session.load(session.id, provider.settings(tmp_path)) as again:
        assert await again.context() == built
        assert again.token_usage == session.token_usage
        await again.record("more", "yes")
        assert [each["content"] for each in (await again.context()).messages][1:] == ["hello", "hi", "more", "yes"]
