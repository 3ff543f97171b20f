"""Reading recorded responses: their messages, usage and stop reasons.

All of it is derived from recorded bytes. After a failure only the reading is missing.
"""

import asyncio
import json
import logging
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.ports import Archive
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.errors import StoreUnavailable
from proxy.model.events import CallUnreadableEvent, ExchangeRecorded, ResponseRead
from proxy.model.exchange import Answer, Headers, Reading, Usage
from proxy.wire import FORMATS
from proxy.wire.body import decode_content
from proxy.wire.credentials import redact
from proxy.wire.format import Format, read_diagnosis
from proxy.wire.headers import find_header
from proxy.wire.json_values import read_object
from proxy.wire.streams import read_events

_INLINE_BYTES = 64 * 1024
# About as many responses as one process relays in two seconds: a limit for the memory of the queue.
_MOST_WAITING = 4096
_MOST_WAITING_BYTES = 32 * 1024 * 1024
GATHER_SECONDS = 0.05
# The most that are read in one loop iteration. With 64 clients that never pause, about thirty arrive in one.
_MOST_AT_ONCE = 64

_MOST_SECONDS = 0.5
_BEGINNING_BYTES = 256
_FIELDS = (b"event:", b"data:", b"id:", b"retry:")

_log = logging.getLogger("palimpsest.responses")


AnswerKind = Literal["whole", "hidden", "stitched", "refused"]
"""What a response has: an answer, a round in which a model recalled, the last round of an answer with such ones, or a
refusal in place of which something else was sent."""


class UnreadAnswer(msgspec.Struct, frozen=True, gc=False):
    """A recorded response that waits to be read.

    `round` is how its round ended, None if an earlier process recorded it.
    `secrets` are credentials that it may echo, possibly split over several events. The answer of a `hidden` round is no
    part of the conversation, and that of a `stitched` one has been placed in it already.
    """

    exchange: str
    k: int
    format: Format
    headers: Headers
    content: bytes
    round: ExchangeRecorded | None = None
    secrets: tuple[bytes, ...] = ()
    kind: AnswerKind = "whole"

    @property
    def name(self) -> str:
        """The name under which it waits: of an exchange, only the last round counts for the conversation."""
        return f"{self.exchange} {self.k}" if self.kind == "hidden" else self.exchange


class ReadResponse(NamedTuple):
    """The bytes of a response as they were recorded, what they say, and the same as JSON."""

    content: bytes
    answer: Answer
    plain: bytes


def read_received(form: Format, headers: Headers, content: bytes, cap: int) -> tuple[Answer, bytes]:
    """Parse an upstream's body, decoded to at most `cap` bytes. Return the answer, and the same as JSON.

    The body may be a stream. Raises ValueError if the bytes contain no answer.
    """
    plain = decode_content(content, find_header(headers, b"content-encoding").decode("latin-1"), cap)
    if is_event_stream(headers, plain):
        answer = form.read_events(read_events(plain))
        return answer, _render(answer.value)
    value = read_object(plain.decode("utf-8", "replace"))
    if value is None:
        raise ValueError("the answer is not a JSON object")
    return form.read_answer(value), plain


def _render(value: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError, OverflowError):
        return json.dumps(value).encode()  # lone surrogates, integers of any size


def is_event_stream(headers: Headers, beginning: bytes = b"") -> bool:
    """Return whether a body is a stream of server-sent events.

    What it begins with counts, as far as that is known: some upstreams give a stream no content-type or another one,
    and an error may be labelled as a stream.
    """
    begun = _strip_beginning(beginning) if beginning else b""
    if find_header(headers, b"content-type").lower().startswith(b"text/event-stream"):
        return not begun.startswith(b"{")
    return begun.startswith((*_FIELDS, b":"))


def is_too_short(beginning: bytes) -> bool:
    """Return whether too little of a body is known to tell whether it is a stream of events."""
    begun = _strip_beginning(beginning)
    return any([field.startswith(begun) for field in _FIELDS])


def _strip_beginning(beginning: bytes) -> bytes:
    return beginning[:_BEGINNING_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()


class ResponseReader:
    """Reads recorded responses one after another, outside of calls, the long ones in a thread.

    It waits a moment before reading, so that reading one does not delay the next call. `own_keys` are credentials that
    even responses of a killed process are searched for.
    """

    def __init__(
        self,
        archive: Archive,
        bus: EngineBus,
        tasks: TaskRunner,
        lineage: LineageTracker,
        cap: int,
        *,
        own_keys: tuple[bytes, ...] = (),
    ) -> None:
        self.archive = archive
        self._bus = bus
        self._tasks = tasks
        self.lineage = lineage
        self._cap = cap
        self._own_keys = own_keys
        self._waiting: dict[str, UnreadAnswer] = {}
        self._waiting_bytes = 0
        self._running: asyncio.Task[None] | None = None
        bus.subscribe(ExchangeRecorded, lineage.note_outcome)
        bus.subscribe(CallUnreadableEvent, lineage.note_unread)

    def submit(self, received: UnreadAnswer) -> None:
        """Queue a response for reading. Above a limit the oldest are left unread; they can be read at any time."""
        self._waiting[received.name] = received
        self._waiting_bytes += len(received.content)
        while self._is_too_much:
            dropped = self._take(next(iter(self._waiting)))
            if dropped is not None:
                self._bus.publish(
                    CallUnreadableEvent(exchange=dropped.exchange, error="too many answers wait to be read")
                )
        if self._running is None or self._running.done():
            self._running = self._tasks.spawn(self._run())

    def read_refusal(self, received: UnreadAnswer) -> None:
        """Read at once a short refusal that the client never gets. It is no part of a conversation."""
        outcome = _try_to_read(received, _INLINE_BYTES)
        if not isinstance(outcome, Exception):
            self.archive.append(self._make_reading(received, *outcome), is_urgent=False)

    async def read_now(self, exchange: str) -> ReadResponse | None:
        """Read an answer now if it still waits, since a request already contains it. Return what was read now."""
        received = self._waiting.get(exchange)
        if received is None:
            return None
        if len(received.content) <= _INLINE_BYTES:
            outcome = _try_to_read(received, self._cap)
        else:
            outcome = await asyncio.to_thread(_try_to_read, received, self._cap)
        if self._take(exchange) is not None:  # else it was read meanwhile
            self._keep(received, outcome)
        return None if isinstance(outcome, Exception) else ReadResponse(received.content, *outcome)

    async def finish(self) -> None:
        """Return when nothing waits to be read."""
        while self._running is not None and not self._running.done():
            await asyncio.wait((self._running,))

    async def _run(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            for exchange in tuple(islice(self._waiting, self._count_due())):
                await self.read_now(exchange)
            await asyncio.sleep(0)
        self.archive.flush()

    def _count_due(self) -> int:
        """Return how many to read now: one, since calls have priority, but more once the queue is half full.

        When it was always one, 7,800 of 13,000 calls that came without a pause were left unread.
        """
        fullness = max(len(self._waiting) / _MOST_WAITING, self._waiting_bytes / _MOST_WAITING_BYTES)
        return 1 + int(max(0.0, 2 * fullness - 1) * _MOST_AT_ONCE)

    @property
    def _is_too_much(self) -> bool:
        count = len(self._waiting)
        return count > _MOST_WAITING or (count > 1 and self._waiting_bytes > _MOST_WAITING_BYTES)

    def _take(self, exchange: str) -> UnreadAnswer | None:
        received = self._waiting.pop(exchange, None)
        if received is not None:
            self._waiting_bytes -= len(received.content)
        return received

    def _keep(self, received: UnreadAnswer, outcome: tuple[Answer, bytes] | Exception) -> None:
        if isinstance(outcome, Exception):
            if received.kind != "hidden":
                problem = f"{type(outcome).__name__}: {outcome}"
                self._bus.publish(CallUnreadableEvent(exchange=received.exchange, error=problem))
            return
        answer, content = outcome
        reading = self._make_reading(received, *outcome)
        reply = None
        if received.kind == "whole":
            reply = self.lineage.note_answer(received.exchange, received.k, received.format, answer.value)
        elif received.kind == "stitched":
            self.lineage.close(received.exchange)
        self.archive.append(reading, *([reply] if reply is not None else []), is_urgent=False)
        self._bus.publish(
            ResponseRead(
                received.exchange,
                received.k,
                answer.usage or Usage(),
                received.round.first_byte_s if received.round is not None else 0.0,
                answer.finish,
                read_diagnosis(answer.value),
                reading.answer,
                content,
                received.format.name,
                reply,
                received.kind == "hidden",
                received.round,
                answer.usage is not None or bool(answer.finish),
            )
        )

    def _make_reading(self, received: UnreadAnswer, answer: Answer, rendered: bytes) -> Reading:
        """Build the reading for the log, and redact it again: joined events of a stream may contain a credential."""
        secrets = received.secrets or self._own_keys
        error = answer.error.encode("utf-8", "surrogatepass")
        redacted = redact(rendered, secrets, is_error=bool(error))
        problem = redact(error, secrets, is_error=True).decode("utf-8", "surrogatepass") if error else ""
        return Reading(received.exchange, received.k, redacted, answer.usage, answer.finish, problem)

    async def read_left(self, most_seconds: float = _MOST_SECONDS) -> None:
        """Read what an earlier process left unread, for at most `most_seconds`, and the rest while calls are served."""
        await asyncio.wait((self._tasks.spawn(self._read_left()),), timeout=most_seconds)

    async def take_up_left(self) -> set[str]:
        """Queue what was left, newest first, as if this process had recorded it. Return the exchanges."""
        taken: set[str] = set()
        for row in await self.archive.list_unread():
            form = FORMATS.get(row.wire)
            if form is None:
                continue
            if row.exchange in taken:  # the client saw only the last of several rounds
                self.submit(UnreadAnswer(row.exchange, row.k, form, row.headers, row.received, kind="hidden"))
                continue
            if row.tip and not await self.lineage.reopen(row.exchange, row.session, row.tip):
                continue
            self.submit(UnreadAnswer(row.exchange, row.k, form, row.headers, row.received))
            taken.add(row.exchange)
        return taken

    async def _read_left(self) -> None:
        failures: list[CallUnreadableEvent] = []
        self._bus.subscribe(CallUnreadableEvent, failures.append)
        try:
            taken = await self.take_up_left()
            await self.finish()
        except StoreUnavailable as error:
            _log.warning(
                "what responses from before the start say could not be read; the next start tries again: %s", error
            )
            return
        finally:
            self._bus.unsubscribe(failures.append)
        if failed := [failure for failure in failures if failure.exchange in taken]:
            first = (len(failed), failed[0].error)
            _log.info(
                "%d responses from before the start cannot be read and stay unread; the log has them. The first: %s",
                *first,
            )


def _try_to_read(received: UnreadAnswer, cap: int) -> tuple[Answer, bytes] | Exception:
    try:
        return read_received(received.format, received.headers, received.content, cap)
    except Exception as error:  # noqa: BLE001 - a boundary: an answer nobody can read must not stop the reader
        return error
