"""Sessions that are closed, cancelled and called from within: nothing waits for itself, and nothing stays open."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.engine.runtime import SystemIds
from proxy.model.errors import Conflict
from proxy.model.events import RequestRecorded, SessionClosedEvent
from proxy.model.results import TokenUsage
from proxy.sdk import events as sdk_events
from proxy.sdk import session as sdk_session
from proxy.sdk.engines import ENGINES, close_all
from proxy.sdk.errors import DuplicateIDError, SessionClosedError, StoreError
from proxy.sdk.events import EventBus
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, call, say
from tests.support.scripted import LIMIT

CLOSED = SessionClosedEvent(at_ms=1, session="s1")
WAYS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "itself": lambda session: session.close(),
    "in another task": lambda session: asyncio.wait_for(session.close(), LIMIT),
    "all": lambda session: close_all(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_tool", [False, True])
async def test_closing_within_a_call_takes_effect_when_that_has_ended(
    create: Create, provider: ChatProvider, way: str, is_tool: bool
) -> None:
    session, stopped = await create(), list[str]()
    provider.queue += [call(("c1", "stop", {})), say("done")]

    async def stop() -> str:
        """Stop."""
        if not stopped:
            stopped.append("yes")
            await WAYS[way](session)
        return "stopped"

    async def hear(part: object) -> None:
        if not is_tool:
            await stop()

    async with asyncio.timeout(LIMIT):
        if is_tool:
            assert (await session.run_tools("go", [stop])).text == "done"
        else:
            await session.send("go", on_part=hear)
    assert (stopped, ENGINES.open) == (["yes"], {})
    with pytest.raises(SessionClosedError):
        await session.send("more")
    await session.close()


async def test_a_thread_of_a_tool_may_close_its_session(create: Create, provider: ChatProvider) -> None:
    session, loop = await create(), asyncio.get_running_loop()
    provider.queue += [call(("c1", "stop", {})), say("done")]

    def stop() -> str:
        """Stop."""
        asyncio.run_coroutine_threadsafe(session.close(), loop).result(LIMIT)
        return "stopped"

    async with asyncio.timeout(LIMIT):
        await session.run_tools("go", [stop])
    assert ENGINES.open == {}


async def test_a_handler_may_close_its_session(create: Create) -> None:
    session, ended = await create(), asyncio.Event()

    async def stop(event: str, payload: object) -> None:
        await asyncio.wait_for(session.close(), LIMIT)
        ended.set()

    session.subscribe("CALL_COMPLETED", stop)
    async with asyncio.timeout(LIMIT):
        await session.send("go")
        await ended.wait()
    assert ENGINES.open == {}


async def test_whoever_closes_second_waits_for_the_first(create: Create, provider: ChatProvider) -> None:
    session = await create()
    provider.gate.clear()
    sending = asyncio.ensure_future(session.send("a"))
    await provider.called.wait()
    closing = [asyncio.ensure_future(each) for each in (session.close(), session.close(), close_all())]
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in closing)
    provider.gate.set()
    assert (await sending).text == "word 1"
    await asyncio.gather(*closing)


async def test_an_engine_is_closed_though_who_closes_it_is_cancelled(create: Create) -> None:
    session = await create()
    (shared,) = ENGINES.open.values()
    closing = asyncio.ensure_future(session.close())
    while not shared.is_closed:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(LIMIT):
        async with await create():  # the log is free
            pass


async def test_a_message_from_within_another_is_refused(create: Create, provider: ChatProvider) -> None:
    later = list[asyncio.Task[Any]]()
    async with await create() as session:

        async def hear(part: object) -> None:
            if not later:
                later.append(asyncio.ensure_future(session.send("later")))
                await session.send("now")

        async with asyncio.timeout(LIMIT):
            with pytest.raises(Conflict, match="waits for its on_part"):
                await session.send("a", on_part=hear)
            assert (await later[0]).text == "word 2"
        assert provider.said[1:] == ["a", "word 1", "later"]


async def test_tokens_are_counted_of_calls_whose_answer_was_not_taken(create: Create) -> None:
    def fail(part: object) -> None:
        raise KeyError("mine")

    async with await create() as session:
        with pytest.raises(KeyError):
            await session.send("a", on_part=fail)
        await session.send("b")
        assert session.token_usage == TokenUsage(20, 6, 0, 0, 26)


async def test_calls_whose_answer_was_not_taken_are_executed_by_the_next_run(
    create: Create, provider: ChatProvider
) -> None:
    def fail(part: object) -> None:
        raise KeyError("mine")

    def add(a: int) -> int:
        """Add one."""
        return a + 1

    provider.queue += [call(("c1", "add", {"a": 1}), text="look"), say("done")]
    async with await create() as session:
        with pytest.raises(KeyError):
            await session.run_tools("go", [add], on_part=fail)
        assert (await session.run_tools(None, [add])).text == "done"
        assert provider.said[-1] == "2"


async def test_a_recording_that_nobody_waits_for_counts(create: Create, provider: ChatProvider) -> None:
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    provider.queue.append(say("done"))
    async with await create() as session:
        (shared,) = ENGINES.open.values()
        begun = asyncio.Event()
        shared.engine.bus.subscribe(RequestRecorded, lambda event: begun.set())
        recording = asyncio.ensure_future(session.record("go", {"role": "assistant", "tool_calls": [made]}))
        await begun.wait()
        recording.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recording
        while not (await shared.engine.archive.find_session(session.id)).recorded > 1:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
        assert (await session.run_tools(None, [add])).text == "done"
        assert provider.said[-1] == "2"


async def test_another_loop_is_told_where_the_session_is_open(create: Create) -> None:
    async with await create() as session:
        problems = list[BaseException]()

        def use() -> None:
            for ask in (session.messages, session.close):
                try:
                    asyncio.run(ask())
                except StoreError as error:
                    problems.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert ["another event loop" in str(each) for each in problems] == [True, True]
        await session.send("a")


async def test_a_name_that_is_taken_is_an_error_of_its_own(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await create(agent="scout") as session:
        (shared,) = ENGINES.open.values()
        number = (await shared.engine.archive.find_key(session.id)).family.removeprefix("scout-")
        monkeypatch.setattr(SystemIds, "next_exchange", lambda self: number)
        with pytest.raises(DuplicateIDError, match="of the name 'scout-"):
            await create(agent="scout")
        assert shared.users == 1


async def test_a_slow_handler_misses_what_comes_and_the_others_do_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_events, "MOST_WAITING", 3)
    bus, heard, slow, release = EventBus(), list[str](), list[str](), asyncio.Event()

    async def wait(event: str, payload: object) -> None:
        await release.wait()
        slow.append(event)

    bus.subscribe_all(wait)
    bus.subscribe_all(lambda event, payload: heard.append(event))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            bus.publish(CLOSED)
    assert (len(heard), bus.dropped) == (5, 2)
    assert caplog.text.count("slower than its events: 3 of its tasks are under way") == 1
    release.set()
    await bus.settle()
    bus.publish(CLOSED)
    await bus.settle()
    assert len(slow) == 4


async def test_handlers_that_do_not_end_are_cancelled_at_the_end(
    create: Create, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_session, "HANDLER_SECONDS", 0.05)
    cancelled = list[str]()

    async def wait(event: str, payload: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(event)
            raise

    session = await create()
    session.subscribe("SESSION_CLOSED", wait)
    async with asyncio.timeout(LIMIT):
        with caplog.at_level(logging.WARNING):
            await session.close()
    assert cancelled == ["SESSION_CLOSED"]
    assert "1 tasks of handlers have not ended after 0.05 s" in caplog.text
