"""What recorded answers say. Rule: derived from bytes that are already safe; any failure here is a missing reading."""

import asyncio
import json
from collections import deque
from dataclasses import dataclass

import msgspec

from proxy.engine.bus import EventBus
from proxy.engine.ports import Archive
from proxy.engine.tasks import TaskRunner
from proxy.model.events import ReadingFailed
from proxy.model.exchange import Answer, Headers, Reading
from proxy.wire.encoding import decode_content
from proxy.wire.evidence import read_object
from proxy.wire.format import Format
from proxy.wire.headers import find
from proxy.wire.sse import read_events

_INLINE_BYTES = 64 * 1024
_MOST_WAITING = 1024
_GATHER_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Received:
    """A recorded answer that waits to be read."""

    exchange: str
    k: int
    format: Format
    headers: Headers
    content: bytes


def read_received(form: Format, headers: Headers, content: bytes, cap: int) -> tuple[Answer, bytes]:
    """The answer in an upstream's body, streamed or not, decoded to at most `cap` bytes; and the same as JSON.

    Raises ValueError where the bytes hold no answer.
    """
    plain = decode_content(content, find(headers, b"content-encoding").decode("latin-1"), cap)
    if is_event_stream(headers) and not plain.startswith(b"{"):  # an error may be labelled as a stream
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


def is_event_stream(headers: Headers) -> bool:
    """Whether a body is a stream of server-sent events."""
    return find(headers, b"content-type").lower().startswith(b"text/event-stream")


class Readings:
    """Reads recorded answers one after another, off the hot path, the long ones in a thread.

    They are gathered for a moment, so that reading one does not delay the call that comes right behind it.
    """

    def __init__(self, archive: Archive, bus: EventBus, tasks: TaskRunner, cap: int) -> None:
        self._archive = archive
        self._bus = bus
        self._tasks = tasks
        self._cap = cap
        self._waiting: deque[Received] = deque()
        self._running: asyncio.Task[None] | None = None

    def submit(self, received: Received) -> None:
        """Have an answer read soon; beyond a bound the oldest that wait are left unread (they can be read any time)."""
        if len(self._waiting) >= _MOST_WAITING:
            dropped = self._waiting.popleft()
            self._bus.publish(ReadingFailed(dropped.exchange, "too many answers wait to be read"))
        self._waiting.append(received)
        if self._running is None or self._running.done():
            self._running = self._tasks.spawn(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        while self._waiting:
            await self._read(self._waiting.popleft())
        self._archive.flush()

    async def _read(self, received: Received) -> None:
        arguments = (received.format, received.headers, received.content, self._cap)
        try:
            if len(received.content) > _INLINE_BYTES:
                answer, rendered = await asyncio.to_thread(read_received, *arguments)
            else:
                await asyncio.sleep(0)
                answer, rendered = read_received(*arguments)
        except Exception as error:  # noqa: BLE001 - a boundary: an answer nobody can read must not stop the reader
            self._bus.publish(ReadingFailed(received.exchange, f"{type(error).__name__}: {error}"))
            return
        reading = Reading(received.exchange, received.k, rendered, answer.usage, answer.finish, answer.error)
        self._archive.append(reading, is_urgent=False)
