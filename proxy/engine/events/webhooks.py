"""Webhooks: each event of the stream as a signed request to addresses that the settings name (docs/events.md).

They follow the convention of Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`,
which is an HMAC-SHA256 over all three of id, time and body. Nothing waits for them. A request that fails is repeated
with growing pauses; one that the receiver refuses is not. While a receiver takes nothing, events wait in a queue of
bounded length, and what comes after is dropped and counted. What still waits when the process ends is lost: the log has
what the events tell of.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from proxy.engine.events.stream import EventStream, make_encodable
from proxy.engine.policy import SecretFile, refuse_both
from proxy.engine.ports import Clock
from proxy.engine.runtime import EngineBus, attempt
from proxy.model.errors import ProxyError
from proxy.model.events import WEBHOOK_EVENTS, StreamedEvent, WebhookEnded, name_type
from proxy.model.exchange import Headers
from proxy.model.settings import Rule, Seconds, Secret, WebhookUrl

RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0, 300.0)
"""The pauses before a request is repeated. After the last one it has failed."""

_AT_ONCE = 4  # requests under way to one receiver
_AGAIN = frozenset({408, 425, 429})  # of what is otherwise a refusal
_LONGEST = 200  # characters of a reason in the log


_log = logging.getLogger("palimpsest.webhooks")

_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


class WebhookReceiver(Protocol):
    """Sends requests to one address."""

    async def post(self, headers: Headers, body: bytes) -> int:
        """Return the status of the response. Raises ProxyError or TimeoutError."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


def _check_events(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in WEBHOOK_EVENTS:
            raise ValueError(f'"{name}" is no event; there are {", ".join(WEBHOOK_EVENTS)}')
    return names


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """A receiver of events."""

    url: WebhookUrl
    """Address to which each event is posted."""
    secret: Secret = field(default="", repr=False)
    """Secret by which requests are signed: whsec_ and 24 to 64 random bytes in base64 (docs/events.md)."""
    secret_file: SecretFile = field(default="", repr=False)
    """File with the secret, instead of the setting."""
    events: Annotated[tuple[str, ...], Rule(check=_check_events)] = ()
    """Types of the events that it gets. Empty: all."""
    timeout: Seconds = 10.0
    """Longest time for its response; seconds."""
    most_waiting: Annotated[int, Rule(ge=1)] = 1000
    """Most events that wait for it; what comes after is dropped."""

    def __post_init__(self) -> None:
        """Raise ValueError without a secret that can be one."""
        refuse_both(self, "secret")
        self.decode_secret()

    def decode_secret(self) -> bytes:
        """Return the bytes by which requests are signed. Raises ValueError."""
        prefix, text = (given := self.secret_file or self.secret)[:6], given[6:]
        try:
            secret = base64.b64decode(text, validate=True)
        except ValueError:
            secret = b""
        if prefix != _SECRET_PREFIX or len(secret) not in _SECRET_BYTES:
            raise ValueError(
                "needs a secret, or secret_file: whsec_ and 24 to 64 random bytes in base64 (docs/events.md)"
            )
        return secret

    @property
    def host(self) -> str:
        """The name of the receiver. The rest of its address may be secret."""
        return urlsplit(self.url).hostname or ""


class WebhookBody(msgspec.Struct, frozen=True, gc=False):
    """The body of a request, as Standard Webhooks has it."""

    type: str
    timestamp: str
    data: StreamedEvent


_encoder = msgspec.json.Encoder()


def sign(secret: bytes, id: str, seconds: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    digest = hmac.new(secret, b"%b.%d.%b" % (id.encode(), seconds, body), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhook:
    """Sends events to one receiver, a few at once."""

    def __init__(
        self,
        policy: WebhookPolicy,
        receiver: WebhookReceiver,
        bus: EngineBus,
        *,
        clock: Clock,
        next_id: Callable[[], str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._policy = policy
        self._receiver = receiver
        self._bus = bus
        self._clock = clock
        self._next_id = next_id
        self._sleep = sleep
        self._waiting: deque[StreamedEvent] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_failing = self._is_full = False

    def put(self, event: StreamedEvent) -> None:
        """Have an event sent, if it is wanted. Above the limit it is dropped."""
        if self._policy.events and name_type(type(event)) not in self._policy.events:
            return
        if len(self._waiting) >= self._policy.most_waiting:
            self._note_full()
            return
        self._waiting.append(event)
        if len(self._tasks) < _AT_ONCE:
            task = asyncio.get_running_loop().create_task(self._run(), name=f"webhook {self._policy.host}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> int:
        """Wait for what was put, at most so many seconds, and close. Return how many events were not sent."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        under_way = tuple(self._tasks)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self._receiver.aclose()
        return len(self._waiting) + len(under_way)

    async def _run(self) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            self._is_full = self._is_full and bool(self._waiting)
            verdict = await attempt(self._deliver(event), self._note_fault)
            self._bus.publish(WebhookEnded(self._policy.host, verdict or "failed"))

    async def _deliver(self, event: StreamedEvent) -> Literal["delivered", "refused", "failed"]:
        """Send an event until it is taken, or refused, or has failed too often. Its id stays the same."""
        at = datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        message = WebhookBody(name_type(type(event)), at.replace("+00:00", "Z"), event)
        id, body = f"msg_{self._next_id()}", _encode(message)
        for pause in (0.0, *RETRY_SECONDS):
            if pause:
                await self._sleep(pause)
            status, problem = await self._try(id, body)
            if 200 <= status < 300:
                self._note_taken()
                return "delivered"
            self._note_failure(problem)
            if 300 <= status < 500 and status not in _AGAIN:
                return "refused"
        return "failed"

    async def _try(self, id: str, body: bytes) -> tuple[int, str]:
        """Send a request once. Return the status of its response, 0 if there was none, and why it was not taken."""
        seconds = self._clock.now_ms() // 1000
        headers = (
            (b"content-type", b"application/json"),
            (b"user-agent", b"palimpsest"),
            (b"webhook-id", id.encode()),
            (b"webhook-timestamp", b"%d" % seconds),
            (b"webhook-signature", sign(self._policy.decode_secret(), id, seconds, body).encode()),
        )
        try:
            status = await self._receiver.post(headers, body)
        except TimeoutError:
            return 0, f"no response within {self._policy.timeout:g} s"
        except ProxyError as error:
            return 0, str(error)[:_LONGEST]
        return status, f"it responded with status {status}"

    def _note_fault(self, error: Exception) -> None:
        _log.error("an event could not be sent to %s; others are", self._policy.host, exc_info=error)

    def _note_full(self) -> None:
        self._bus.publish(WebhookEnded(self._policy.host, "dropped"))
        if not self._is_full:
            self._is_full = True
            _log.warning(
                "%d events wait for the webhook at %s; more are dropped", len(self._waiting), self._policy.host
            )

    def _note_failure(self, problem: str) -> None:
        """Tell of the first failure of several."""
        if not self._is_failing:
            self._is_failing = True
            _log.warning("the webhook at %s took no event: %s; see palimpsest_webhooks", self._policy.host, problem)

    def _note_taken(self) -> None:
        if self._is_failing:
            self._is_failing = False
            _log.info("the webhook at %s takes events again", self._policy.host)


class Webhooks:
    """All webhooks of an engine."""

    def __init__(self, stream: EventStream, hooks: Sequence[Webhook]) -> None:
        self._stream = stream
        self._hooks = hooks
        for hook in hooks:
            stream.listen(hook.put)

    async def finish(self, seconds: float) -> None:
        """Send what has happened so far, within so many seconds. Nothing is sent after that."""
        if not self._hooks:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stream.settle(), seconds)
        for hook in self._hooks:
            self._stream.stop_listening(hook.put)
        left = await asyncio.gather(*[hook.finish(seconds) for hook in self._hooks])
        if any(left):
            _log.warning("%d events were not sent to webhooks; the log has what they tell of", sum(left))


def _encode(message: WebhookBody) -> bytes:
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:  # half a surrogate pair, of a client or a provider
        return _encoder.encode(WebhookBody(message.type, message.timestamp, make_encodable(message.data)))
