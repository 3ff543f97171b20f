"""Sessions of programs: what the model is sent, what comes back, and that nothing is lost when something fails."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from proxy.engine.turns.tools import make_tool
from proxy.model.errors import BadRequest, UpstreamRefused, UpstreamUnreachable
from proxy.model.parts import (
    FileRefPart,
    MessagePart,
    PatchPart,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolPart,
    ToolStatus,
)
from proxy.model.results import TokenUsage
from proxy.sdk.errors import ImmutableFieldError, SessionClosedError, SessionNotFoundError
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, call, say

ADD = [("c1", "add", {"a": 1, "b": 2}), ("c2", "add", {"a": 3, "b": 4})]


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


async def test_each_message_brings_what_is_new_and_the_model_gets_all(create: Create, provider: ChatProvider) -> None:
    async with await create(system_prompt="Be brief.") as session:
        first = await session.send("a")
        second = await session.send("b")
        assert provider.said == ["Be brief.", "a", "word 1", "b"]
        assert provider.seen[-1]["model"] == "m"
        assert "stream" not in provider.seen[-1]
        assert (first.text, first.finish_reason, first.cost) == ("word 1", "stop", None)
        assert first.tokens == TokenUsage(10, 3, 0, 0, 13)
        assert session.token_usage == TokenUsage(20, 6, 0, 0, 26)
        told = await session.messages()
        assert [(each.role, [part.text for part in each.parts if isinstance(part, TextPart)]) for each in told] == [
            ("user", ["a"]), ("assistant", ["word 1"]), ("user", ["b"]), ("assistant", ["word 2"]),
        ]  # fmt: skip
        assert [each.id for each in told if each.role == "assistant"] == [first.message_id, second.message_id]


async def test_what_no_call_can_have_is_refused_before_it_is_made(create: Create, provider: ChatProvider) -> None:
    def other(a: int) -> int:
        return a

    messages: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (None, {}, BadRequest, "a text or a list of parts"),
        ({"role": "user"}, {}, BadRequest, "a text or a list of parts"),
        ([ToolPart("add", "c1", output={"a": 1})], {}, BadRequest, "an output, which is a text"),  # type: ignore[arg-type]
        ("a", {"system_prompt": 5}, BadRequest, "system_prompt is a text"),
        ("a", {"on_part": 5}, TypeError, "on_part is a function"),
        ("a", {"tools": add}, TypeError, "tools are a list"),
        ("a", {"tools": [lambda x: x]}, TypeError, "a tool has a name of letters"),
        ("a", {"tools": [add, make_tool(other, name="add")]}, TypeError, "two tools have the name 'add'"),
    ]
    async with await create() as session:
        for message, options, kind, why in messages:
            with pytest.raises(kind, match=why):
                await session.send(message, **options)
            if message is not None:
                with pytest.raises(kind, match=why):
                    await session.run_tools(message, **{"tools": [], **options})
        assert provider.seen == [] and await session.messages() == []
        assert (await session.send("a")).text == "word 1"


async def test_a_session_is_begun_with_texts_and_settings(create: Create) -> None:
    for options in ({"model": 5}, {"agent": 5}, {"system_prompt": None}):
        with pytest.raises(BadRequest, match=f"{next(iter(options))} is a text"):
            await create(**options)
    with pytest.raises(TypeError, match=r"config is Settings\(...\)"):
        await create(config={"data": "x"})


async def test_a_session_without_a_message_has_none_and_can_be_loaded(
    create: Create, load: Create, provider: ChatProvider
) -> None:
    async with await create(system_prompt="Be brief.", agent="critic") as session:
        assert await session.messages() == []
        again = await load(session.id)
        assert (again.model, again.agent) == ("m", "critic")
        await again.send("a")
        assert provider.said == ["Be brief.", "a"]
        await again.close()


async def test_a_system_prompt_of_one_message_does_not_stay(create: Create, provider: ChatProvider) -> None:
    async with await create(system_prompt="own") as session:
        await session.send("a", system_prompt="other")
        assert provider.said[0] == "other"
        await session.send("b")
        assert provider.said == ["own", "a", "word 1", "b"]
        await session.send("c", system_prompt="")
        assert provider.said == ["own", "a", "word 1", "b", "word 2", "c"]


async def test_parts_of_an_answer_come_as_they_arrive_each_waited_for(create: Create, provider: ChatProvider) -> None:
    heard = list[MessagePart]()
    first = asyncio.Event()

    async def hear(part: MessagePart) -> None:
        await asyncio.sleep(0)
        heard.append(part)
        first.set()

    provider.queue.append(say("one| two", reasoning_content="so"))
    provider.queue.append(call(*ADD[:1], text="look"))
    provider.gate.clear()
    async with await create() as session:
        sending = asyncio.ensure_future(session.send("a", on_part=hear))
        await first.wait()
        assert heard[0] == StepStartPart(1)
        assert not sending.done()
        provider.gate.set()
        result = await sending
        assert (result.text, result.tokens.output) == ("one two", 3)
        assert heard[1] == ReasoningPart("so")
        assert "".join(part.text for part in heard if isinstance(part, TextPart)) == "one two"
        assert heard[-1] == StepFinishPart(1, 13)
        others = list[MessagePart]()
        await session.send("b", tools=[add], on_part=others.append)
        made = ToolPart("add", "c1", {"a": 1, "b": 2})
        assert others == [StepStartPart(2), TextPart("look"), made, StepFinishPart(2, 13)]


async def test_what_a_part_callback_raises_is_raised_and_the_answer_is_kept(
    create: Create, provider: ChatProvider
) -> None:
    def fail(part: MessagePart) -> None:
        raise KeyError("mine")

    async with await create() as session:
        with pytest.raises(KeyError, match="mine"):
            await session.send("a", on_part=fail)
        await session.send("b")
        assert provider.said[1:] == ["a", "word 1", "b"]


async def test_tools_run_until_an_answer_calls_none(create: Create, provider: ChatProvider) -> None:
    heard = list[MessagePart]()
    provider.queue += [call(*ADD), say("3 and 7")]
    async with await create() as session:
        result = await session.run_tools("add", [add], on_part=heard.append)
        assert (result.text, result.finish_reason) == ("3 and 7", "stop")
        assert result.tokens == TokenUsage(20, 6, 0, 0, 26) == session.token_usage
        outputs = [(part.tool_call_id, part.output) for part in heard if isinstance(part, ToolPart) and part.output]
        assert outputs == [("c1", "3"), ("c2", "7")]
        offered = provider.seen[0]["tools"][0]["function"]
        assert (offered["name"], offered["description"]) == ("add", "Add two numbers.")
        assert offered["parameters"]["required"] == ["a"]
        assert provider.said[-2:] == ["3", "7"]


async def test_calls_of_one_answer_run_at_the_same_time(create: Create, provider: ChatProvider) -> None:
    both, meeting = threading.Barrier(2, timeout=30), asyncio.Barrier(2)

    def block() -> str:
        both.wait()
        return "blocked"

    async def wait() -> dict[str, int]:
        await meeting.wait()
        return {"n": 1}

    provider.queue.append(call(*[(f"c{i}", name, {}) for i, name in enumerate(("block", "wait", "block", "wait"))]))
    async with await create() as session:
        await session.run_tools("go", [block, wait])
    assert provider.said[-4:] == ["blocked", '{"n":1}', "blocked", '{"n":1}']


async def test_what_goes_wrong_in_a_tool_is_the_result_of_its_call(create: Create, provider: ChatProvider) -> None:
    def fail() -> None:
        raise OSError("no disk")

    provider.queue.append(
        call(("1", "fail", {}), ("2", "none", {}), ("3", "add", {"a": "x"}), ("4", "add", "{"), ("5", "shown", {}))
    )
    shown = {"type": "function", "function": {"name": "shown", "description": "", "parameters": {"type": "object"}}}
    heard = list[MessagePart]()
    async with await create() as session:
        await session.run_tools("go", [fail, add, shown], on_part=heard.append)
    failed = provider.said[-5:]
    assert failed[0] == "Error: OSError: no disk"
    assert failed[1] == "Error: there is no tool 'none'; there are: fail, add"
    assert failed[2].startswith("Error: the arguments are not valid: a: Input should be a valid integer")
    assert failed[3] == "Error: the arguments of add are a JSON object, not '{'"
    assert failed[4] == "Error: there is no tool 'shown'; there are: fail, add"
    states = [part.status.state for part in heard if isinstance(part, ToolPart) and part.output is not None]
    assert states == ["error"] * 5


async def test_calls_that_are_left_waiting_are_executed_by_the_next_run(
    create: Create, load: Create, provider: ChatProvider
) -> None:
    provider.queue += [call(*ADD[:1]), call(*ADD[1:]), say("done")]
    async with await create() as session:
        result = await session.run_tools("go", [add], max_turns=2)
        assert result.finish_reason == "tool_use"
        with pytest.raises(BadRequest, match="'c2': they come first"):
            await session.send("never mind")
        again = await load(session.id)
        assert (await again.run_tools(None, [add])).text == "done"
        assert provider.said[-1] == "7"
        await again.close()
        with pytest.raises(BadRequest, match="max_turns"):
            await session.run_tools("go", [add], max_turns=0)
        with pytest.raises(BadRequest, match="says nothing"):
            await session.run_tools(None, [add])


async def test_results_and_other_parts_are_sent_as_messages(create: Create, provider: ChatProvider) -> None:
    provider.queue.append(call(*ADD))
    async with await create() as session:
        asked = await session.send("go", tools=[add])
        assert asked.finish_reason == "tool_use"
        await session.send(
            [
                TextPart("see"),
                PatchPart("--- a\n+++ b", ["b"]),
                FileRefPart("abc", "x.py", "python", 12_000, "def f"),
                ToolPart("add", "c1", None, "3"),
                ToolPart("add", "c2", None, None, ToolStatus("error", error_message="no")),
            ]
        )
        assert provider.said[-3:-1] == ["3", "no"]
        begins = "see\n\n--- a\n+++ b\n\n[FILE: x.py]\nref:abc · python · 12,000 tokens\n  def f\n"
        assert provider.said[-1].startswith(begins)
        for bad in ("", [], [ReasoningPart("hm")], [ToolPart("add", "c1")]):
            with pytest.raises(BadRequest):
                await session.send(bad)
        for unknown in (3, {"description": "no name"}):
            with pytest.raises(TypeError, match="a tool"):
                await session.send("a", tools=[unknown])  # type: ignore[list-item]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_refusal_raises_with_its_status_and_body_and_loses_no_results(
    create: Create, provider: ChatProvider, is_streamed: bool
) -> None:
    options: dict[str, Any] = {"on_part": lambda part: None} if is_streamed else {}
    provider.queue += [call(*ADD[:1]), {"status": 429, "error": {"message": "slow down"}}, say("fine")]
    async with await create() as session:
        with pytest.raises(UpstreamRefused, match="status 429: slow down") as refused:
            await session.run_tools("go", [add], **options)
        assert refused.value.status == 429
        assert json.loads(refused.value.body) == {"error": {"message": "slow down"}}
        assert (await session.send("go on", tools=[add], **options)).text == "fine"
        assert provider.said[-2:] == ["3", "go on"]
        await session.send("more")
        assert provider.said[-4:] == ["3", "go on", "fine", "more"]


async def test_an_answer_that_its_provider_broke_off_is_no_part_of_the_history(
    create: Create, provider: ChatProvider
) -> None:
    provider.queue.append(say("half", fault="overloaded"))
    async with await create() as session:
        result = await session.send("a", on_part=lambda part: None)
        assert (result.finish_reason, result.text) == ("error", "half")
        await session.send("b")
        assert provider.said[1:] == ["b"]


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_tokens"), ("content_filter", "error"), ("function_call", "tool_use")]
)
async def test_why_an_answer_ended(create: Create, provider: ChatProvider, finish: str, reason: str) -> None:
    provider.queue.append(say("x", finish=finish, usage=None))
    async with await create() as session:
        result = await session.send("a")
        assert (result.finish_reason, result.tokens, result.cost) == (reason, TokenUsage(), None)


async def test_a_second_message_waits_for_the_first(create: Create, load: Create, provider: ChatProvider) -> None:
    async with await create() as session:
        other = await load(session.id)
        provider.gate.clear()
        first = asyncio.ensure_future(session.send("a"))
        await provider.called.wait()
        later = [asyncio.ensure_future(session.send("b")), asyncio.ensure_future(other.send("c"))]
        await asyncio.sleep(0.05)
        assert len(provider.seen) == 1
        provider.gate.set()
        await asyncio.gather(first, *later)
        assert provider.said[1:] == ["a", "word 1", "b", "word 2", "c"]
        await other.close()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_cancelled_message_is_recorded_and_the_session_goes_on(
    create: Create, provider: ChatProvider, is_streamed: bool
) -> None:
    begun = asyncio.Event()
    options: dict[str, Any] = {"on_part": lambda part: begun.set()} if is_streamed else {}
    async with await create() as session:
        await session.send("a")
        provider.gate.clear()
        provider.called.clear()
        sending = asyncio.ensure_future(session.send("lost", **options))
        await (begun if is_streamed else provider.called).wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        provider.gate.set()
        await session.send("b")
        assert provider.said[1:] == ["a", "word 1", "b"]
        assert len(await session.messages()) == 4


async def test_an_upstream_that_is_not_there(create: Create, provider: ChatProvider) -> None:
    nowhere = {"upstreams": [{"base_url": "http://127.0.0.1:9/v1"}]}
    async with await create(nowhere) as session:
        with pytest.raises(UpstreamUnreachable):
            await session.send("a")


async def test_a_closed_session_says_so(create: Create, provider: ChatProvider) -> None:
    session = await create()
    await session.send("a")
    await session.close()
    await session.close()
    for asked in (session.send("b"), session.messages(), session.compact(), session.run_tools("b", [])):
        with pytest.raises(SessionClosedError, match=f"Session.load\\('{session.id}'\\)"):
            await asked


async def test_what_never_changes_cannot_be_set(create: Create) -> None:
    async with await create() as session:
        for name in ("id", "model", "parent_id", "token_usage"):
            with pytest.raises(ImmutableFieldError, match=name):
                setattr(session, name, "x")
        assert repr(session) == f"Session(id={session.id!r}, model='m')"


async def test_what_is_unknown_is_named(create: Create, provider: ChatProvider, tmp_path: Path) -> None:
    config = provider.settings(tmp_path)
    with pytest.raises(SessionNotFoundError):
        await Session.load("00000000000000000000", config)
    with pytest.raises(SessionNotFoundError):
        await create(parent_id="00000000000000000000")
    for agent in ("", "a b", "ü"):
        with pytest.raises(BadRequest, match="agent is a name"):
            await create(agent=agent)


async def test_a_child_is_linked_with_its_parent(create: Create, load: Create) -> None:
    async with await create() as parent, await create(agent="scout", parent_id=parent.id) as child:
        await child.send("a")
        assert (parent.parent_id, child.parent_id, child.agent) == (None, parent.id, "scout")
        again = await load(child.id)
        assert (again.parent_id, again.agent) == (parent.id, "scout")
        await again.close()


async def test_closing_waits_for_a_summary_that_is_being_made(create: Create, provider: ChatProvider) -> None:
    upstream = {"base_url": provider.base_url, "cache": "prefix"}  # it serves several requests at a time
    session = await create({"upstreams": [upstream], "budget.ceiling_tokens": 6_000, "budget.output_reserve": 500})
    told = list[str]()
    session.event_bus.subscribe_all(lambda event, payload: told.append(event))
    provider.holds = lambda asked: not str(asked["messages"][-1]["content"]).startswith("turn")
    provider.gate.clear()
    provider.usage = None  # its tokens are counted by us
    triggered = list[bool]()
    while True not in triggered:
        said = f"look at the file of the host number {len(triggered)} again. " * 40
        triggered.append((await session.send(f"turn {len(triggered)}: {said}")).compaction_triggered)
        assert len(triggered) < 40
    assert triggered[0] is False
    assert not session.compaction_in_progress
    compacting = asyncio.ensure_future(session.compact())
    provider.called.clear()
    await provider.called.wait()
    assert session.compaction_in_progress
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    provider.gate.set()
    await closing
    assert (await compacting).session_id == session.id
    order = ["SESSION_CREATED", "EPOCH_OPENED", "COMPACTION_TRIGGERED", "COMPACTION_COMPLETED", "SESSION_CLOSED"]
    assert [each for each in dict.fromkeys(told) if each in order][-3:] == order[-3:]
    assert told[-1] == "SESSION_CLOSED"


async def test_a_message_that_begins_with_a_file_does_not_end_management(
    create: Create, provider: ChatProvider
) -> None:
    provider.usage = None
    file = FileRefPart("abcdefghij", "x.py", "python", 12_000, "def f")
    async with await create({"budget.ceiling_tokens": 6_000, "budget.output_reserve": 500}) as session:
        await session.send([file, TextPart("what is in it?")])
        assert provider.said[-1].startswith("Here is a file.\n\n[FILE: x.py]\nref:abcdefghij · ")
        for number in range(20):
            said = f"look at the file of the host number {number} again. " * 40
            if (await session.send(said)).compaction_triggered:
                return
    raise AssertionError("no epoch was opened")
