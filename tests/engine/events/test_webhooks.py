"""Webhooks: what is sent and signed, what is repeated, and what becomes of the rest."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.engine.events.stream import EventStream
from proxy.engine.events.webhooks import RETRY_SECONDS, Webhook, WebhookPolicy, Webhooks
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import CallUnreadableEvent, RungFailedEvent, StreamedEvent, WebhookEnded
from proxy.model.exchange import Headers
from tests.support.scripted import LIMIT

SECRET = b"s" * 24
URL = "https://hooks.example/in?token=hidden"


def event(name: str, error: str = "why") -> StreamedEvent:
    return CallUnreadableEvent(at_ms=1_700_000_000_123, session="s1", exchange=name, error=error)


class Clock:
    def now_ms(self) -> int:
        return 1_800_000_000_900

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Receiver:
    """Responds as it is told: with a status, by an exception, or not at all (None). Afterwards with 204."""

    script: list[int | Exception | None] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    pauses: list[float] = field(default_factory=list)
    is_closed: bool = False

    async def post(self, headers: Headers, body: bytes) -> int:
        self.requests.append(({name.decode(): value.decode() for name, value in headers}, body))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            answer = self.script.pop(0) if self.script else 204
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None
            return answer
        finally:
            self.under_way -= 1

    async def aclose(self) -> None:
        self.is_closed = True

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    @property
    def names(self) -> list[str]:
        return [json.loads(body)["data"]["exchange"] for _, body in self.requests]


def make_hook(receiver: Receiver, **policy: Any) -> tuple[Webhook, list[str]]:
    """A webhook, and the verdicts on its events."""
    bus, verdicts = EngineBus(TaskRunner()), list[str]()
    bus.subscribe(WebhookEnded, lambda ended: verdicts.append(ended.verdict))
    ids = iter(range(100))
    hook = Webhook(
        WebhookPolicy(URL, f"whsec_{base64.b64encode(SECRET).decode()}", **policy),
        receiver,
        bus,
        clock=Clock(),
        next_id=lambda: str(next(ids)),
        sleep=receiver.sleep,
    )
    return hook, verdicts


async def deliver(receiver: Receiver, *events: StreamedEvent, **policy: Any) -> list[str]:
    hook, verdicts = make_hook(receiver, **policy)
    for each in events:
        hook.put(each)
    assert await hook.finish(LIMIT) == 0
    assert receiver.is_closed
    return verdicts


async def test_a_request_is_signed_over_its_id_its_time_and_its_body() -> None:
    receiver = Receiver()
    assert await deliver(receiver, event("x1")) == ["delivered"]
    ((headers, body),) = receiver.requests
    digest = hmac.new(SECRET, b"msg_0.1800000000." + body, hashlib.sha256).digest()
    assert headers == {
        "content-type": "application/json",
        "user-agent": "palimpsest",
        "webhook-id": "msg_0",
        "webhook-timestamp": "1800000000",
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }
    assert json.loads(body) == {
        "type": "CALL_UNREADABLE",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": {
            "type": "CALL_UNREADABLE",
            "at_ms": 1_700_000_000_123,
            "session": "s1",
            "exchange": "x1",
            "n": None,
            "error": "why",
        },
    }


@pytest.mark.parametrize(
    "failures",
    [
        [500, UpstreamUnreachable("no")],
        [TimeoutError(), 429],
        [408, 425],
        [0, 199],
    ],
)
async def test_what_fails_is_repeated_with_growing_pauses_under_its_id(failures: list[int | Exception | None]) -> None:
    receiver = Receiver(script=failures)
    assert await deliver(receiver, event("x1")) == ["delivered"]
    assert receiver.pauses == [1.0, 5.0]
    assert {headers["webhook-id"] for headers, _ in receiver.requests} == {"msg_0"}


async def test_after_the_last_pause_it_has_failed() -> None:
    receiver = Receiver(script=[503] * 6)
    assert await deliver(receiver, event("x1")) == ["failed"]
    assert tuple(receiver.pauses) == RETRY_SECONDS


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 410])
async def test_what_is_refused_or_redirected_is_not_repeated(status: int) -> None:
    receiver = Receiver(script=[status])
    assert await deliver(receiver, event("x1"), event("x2")) == ["refused", "delivered"]
    assert receiver.pauses == []


async def test_a_receiver_gets_the_types_that_it_wants() -> None:
    receiver = Receiver()
    failed = RungFailedEvent(at_ms=1, session="s1", exchange="x2", rung="plan", error="why")
    assert await deliver(receiver, event("x1"), failed, events=("RUNG_FAILED",)) == ["delivered"]
    assert receiver.names == ["x2"]


async def test_only_some_are_sent_at_once_and_what_does_not_fit_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    hook, verdicts = make_hook(receiver, most_waiting=6)
    for i in range(9):
        hook.put(event(f"x{i}"))
    assert verdicts == ["dropped"] * 3
    assert await hook.finish(LIMIT) == 0
    assert (receiver.names, receiver.most) == ([f"x{i}" for i in range(6)], 4)
    assert [record.message for record in caplog.records] == [
        "6 events wait for the webhook at hooks.example; more are dropped"
    ]


async def test_a_receiver_that_hangs_holds_up_nobody_and_is_left_at_the_end() -> None:
    receiver = Receiver(script=[None] * 4)
    hook, verdicts = make_hook(receiver)
    for i in range(6):
        hook.put(event(f"x{i}"))
    assert await hook.finish(0.01) == 6
    assert (verdicts, receiver.under_way) == ([], 0)


async def test_a_failing_receiver_is_told_of_once_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await deliver(Receiver(script=[500, 500, TimeoutError()]), event("x1"))
    assert [record.message for record in caplog.records] == [
        "the webhook at hooks.example took no event: it responded with status 500; see palimpsest_webhooks",
        "the webhook at hooks.example takes events again",
    ]
    caplog.clear()
    await deliver(Receiver(script=[TimeoutError(), ValueError("ours")]), event("x1"), event("x2"))
    assert "no response within 10 s" in caplog.text
    assert "an event could not be sent to hooks.example; others are" in caplog.text
    assert "hidden" not in caplog.text


async def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    receiver = Receiver()
    assert await deliver(receiver, event("x1", "half \ud83d of it")) == ["delivered"]
    assert json.loads(receiver.requests[0][1])["data"]["error"] == "half ? of it"


class Timer:
    def cancel(self) -> None: ...


async def test_the_end_waits_for_what_is_told_and_then_nothing_more_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    stream = EventStream("run", lambda seconds, call: Timer(), lambda: 7)
    receiver, hanging = Receiver(), Receiver(script=[None])

    async def settle() -> None:
        stream.publish([event("x1")])

    stream.settle = settle
    hooks = Webhooks(stream, [make_hook(receiver)[0], make_hook(hanging)[0]])
    await hooks.finish(0.05)
    stream.publish([event("x2")])
    assert (receiver.names, hanging.names) == (["x1"], ["x1"])
    assert "1 events were not sent to webhooks" in caplog.text


async def test_the_end_does_not_wait_for_ever_for_the_log() -> None:
    stream = EventStream("run", lambda seconds, call: Timer(), lambda: 7)

    async def settle() -> None:
        await asyncio.Event().wait()

    stream.settle = settle
    async with asyncio.timeout(LIMIT):
        await Webhooks(stream, [make_hook(Receiver())[0]]).finish(0.01)
    assert not stream.is_heard


async def test_without_webhooks_nothing_is_collected() -> None:
    stream = EventStream("run", lambda seconds, call: Timer(), lambda: 7)

    async def settle() -> None:
        raise AssertionError("nobody is told")

    stream.settle = settle
    hooks: Sequence[Webhook] = ()
    await Webhooks(stream, hooks).finish(1.0)
    assert not stream.is_collecting
