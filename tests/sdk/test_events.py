"""The bus of a program: who is called, in which order, and that nobody's failure is anybody else's."""

import asyncio
import base64
import contextlib
import io
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.config.settings import Settings
from proxy.engine.events.stream import EventStream
from proxy.engine.events.webhooks import sign
from proxy.model.events import (
    CallUnreadableEvent,
    CompactionCompletedEvent,
    MapStartedEvent,
    SessionClosedEvent,
    StreamedEvent,
)
from proxy.model.results import CompactionResult
from proxy.sdk.events import EventBus
from tests.support.scripted import LIMIT

CLOSED = SessionClosedEvent(at_ms=1, session="s1")
STARTED = MapStartedEvent(at_ms=1, run="r", operator="llm_map", model="m", items=2)


class Timer:
    """A call that never comes."""

    def cancel(self) -> None: ...


def make_stream() -> EventStream:
    return EventStream("run", lambda seconds, call: Timer(), lambda: 7)


def unreadable(session: str) -> StreamedEvent:
    return CallUnreadableEvent(at_ms=1, session=session, exchange="x", error="why")


def keep(heard: list[Any], *name: str) -> Callable[[str, Any], None]:
    return lambda event, payload: heard.append((*name, event, payload))


def test_a_handler_can_be_called() -> None:
    with pytest.raises(TypeError, match="a handler is a function of an event and its payload, not 5"):
        EventBus().subscribe_all(5)  # type: ignore[arg-type]


def test_handlers_are_called_in_the_order_of_their_registration() -> None:
    bus, heard = EventBus(), list[Any]()
    bus.subscribe("MAP_STARTED", keep(heard, "first"))
    bus.subscribe_all(keep(heard, "second"))
    bus.subscribe("MAP_STARTED", keep(heard, "third"))
    bus.subscribe("SESSION_CLOSED", keep(heard, "other"))
    bus.publish(STARTED)
    assert heard == [(name, "MAP_STARTED", STARTED) for name in ("first", "second", "third")]


def test_a_handler_that_was_removed_is_not_called() -> None:
    bus, heard = EventBus(), list[Any]()
    first, second = keep(heard, "first"), keep(heard, "second")
    bus.subscribe("SESSION_CLOSED", first)
    bus.subscribe_all(second)
    bus.unsubscribe("MAP_STARTED", first)  # it is not registered for that
    bus.publish(CLOSED)
    bus.unsubscribe("SESSION_CLOSED", first)
    bus.publish(CLOSED)
    bus.unsubscribe("*", second)
    bus.publish(CLOSED)
    assert [name for name, *_ in heard] == ["first", "second", "second"]


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="'CLOSED' is no event; there are SESSION_CREATED"):
        EventBus().subscribe("CLOSED", print)
    with pytest.raises(ValueError, match="STREAM_ENDED"):
        EventBus().subscribe("STREAM_ENDED", print)  # of a connection


async def test_an_asynchronous_handler_is_a_task_that_settling_waits_for() -> None:
    bus, heard, release = EventBus(), list[Any](), asyncio.Event()

    async def hear(event: str, payload: object) -> None:
        await release.wait()
        heard.append(event)
        if event == "MAP_STARTED":
            bus.publish(CLOSED)
            await bus.settle()  # neither for itself nor for the other

    bus.subscribe_all(hear)
    bus.publish(STARTED)
    bus.publish(STARTED)
    assert heard == []
    release.set()
    async with asyncio.timeout(LIMIT):
        await bus.settle()
    assert sorted(heard) == ["MAP_STARTED", "MAP_STARTED", "SESSION_CLOSED", "SESSION_CLOSED"]


async def test_what_a_handler_raises_is_logged_and_the_next_one_is_called(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = EventBus(), list[Any]()

    def fail(event: str, payload: object) -> None:
        raise RuntimeError("mine")

    async def fail_later(event: str, payload: object) -> None:
        raise RuntimeError("mine, later")

    async def give_up(event: str, payload: object) -> None:
        raise asyncio.CancelledError

    for handler in (fail, fail_later, give_up, keep(heard)):
        bus.subscribe("SESSION_CLOSED", handler)
    with caplog.at_level(logging.ERROR):
        bus.publish(CLOSED)
        assert heard == [("SESSION_CLOSED", CLOSED)]
        await bus.settle()
    assert caplog.text.count("a handler of the event SESSION_CLOSED failed") == 2
    assert "RuntimeError: mine, later" in caplog.text


def test_a_bus_hears_of_its_session_only_and_only_while_it_has_handlers() -> None:
    stream, bus, heard = make_stream(), EventBus(), list[Any]()
    bus.follow(stream, "s1")
    assert not stream.is_collecting
    handler = keep(heard)
    bus.subscribe_all(handler)
    assert stream.is_collecting
    assert stream.is_heard
    mine = unreadable("s1")
    stream.publish([mine, unreadable("s2"), unreadable("")])
    bus.unsubscribe("*", handler)
    assert not stream.is_heard
    stream.publish([mine])
    bus.subscribe("CALL_UNREADABLE", handler)
    stream.publish([mine])
    bus.leave()
    stream.publish([mine])
    assert heard == [("CALL_UNREADABLE", mine)] * 2


def test_a_bus_that_follows_a_session_leaves_another() -> None:
    stream, bus, heard = make_stream(), EventBus(), list[Any]()
    bus.subscribe_all(keep(heard))
    bus.follow(stream, "s1")
    bus.follow(stream, "s2")
    stream.publish([unreadable("s1"), unreadable("s2")])
    assert [payload.session for _, payload in heard] == ["s2"]


async def test_settling_waits_for_what_has_happened_before() -> None:
    stream, bus, waited = make_stream(), EventBus(), list[str]()

    async def settle() -> None:
        waited.append("stream")

    stream.settle = settle
    bus.follow(stream, "s1")
    await bus.settle()
    assert waited == []  # nothing is collected for it
    bus.subscribe_all(print)
    await bus.settle()
    assert waited == ["stream"]


def test_the_payload_of_a_compaction_is_its_result() -> None:
    bus, heard = EventBus(), list[Any]()
    bus.subscribe("COMPACTION_COMPLETED", keep(heard))
    sizes = {"messages": 4, "tokens_before": 900, "tokens_after": 70, "elapsed_ms": 12}
    told = {"session": "s1", "exchange": "x1", "summary": "m1", "reason": "", "is_manual": False}
    bus.publish(CompactionCompletedEvent(at_ms=1, level=2, **told, **sizes))  # type: ignore[arg-type]
    result = CompactionResult(
        session_id="s1",
        summary_message_id="m1",
        level_used=2,
        compacted_message_count=4,
        summary_token_count=70,
        tokens_before=900,
        tokens_after=70,
        elapsed_ms=12,
    )
    assert heard == [("COMPACTION_COMPLETED", result)]


# --- docs/events.md --------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
BUS_EXAMPLE, SECRET_EXAMPLE, VERIFYING_EXAMPLE = re.findall(r"(?s)```python\n(.*?)```", PAGE)


def run_example(text: str) -> tuple[dict[str, Any], str]:
    """The names that an example defines, and what it prints."""
    names, printed = dict[str, Any](), io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(text, names)  # an example of ours
    return names, printed.getvalue()


def test_the_example_of_a_bus_does_what_it_says() -> None:
    assert run_example(BUS_EXAMPLE)[1] == "MAP_STARTED some-model\nlater: MAP_STARTED\n"


def test_the_example_of_a_secret_makes_one_that_the_settings_take() -> None:
    webhook: dict[str, Any] = {"url": "https://hooks.example/", "secret": run_example(SECRET_EXAMPLE)[1].strip()}
    (policy,) = Settings(events={"webhooks": [webhook]}).events.webhooks
    assert len(policy.decode_secret()) == 32


def test_the_example_of_verifying_accepts_what_is_ours_and_new_only() -> None:
    verify, secret = run_example(VERIFYING_EXAMPLE)[0]["verify"], b"s" * 32
    text, now, body = "whsec_" + base64.b64encode(secret).decode(), int(time.time()), b'{"type":"SESSION_CREATED"}'

    def make(seconds: int) -> dict[str, str]:
        signature = sign(secret, "msg_1", seconds, body)
        return {"webhook-id": "msg_1", "webhook-timestamp": str(seconds), "webhook-signature": f"v1,x {signature}"}

    assert verify(text, make(now), body)
    assert not verify(text, make(now), body + b" ")
    assert not verify(text, make(now - 400), body)
    assert not verify(text, {**make(now), "webhook-id": "msg_2"}, body)
    assert not verify("whsec_" + base64.b64encode(b"t" * 32).decode(), make(now), body)
