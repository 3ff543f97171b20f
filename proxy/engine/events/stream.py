"""The stream of events: a ring of the newest ones, and a queue for each reader.

An event is encoded once. Publishing it appends the same bytes to the queue of each reader that asked for it, and waits
for none: a reader whose queue is full is dropped, and its last event says so.

The id of an event is that of this run of the server and a number, `RUN-NUMBER`. A reader that comes back with the id of
its last event gets all since, if the ring has them. Else it is told to load its data anew (`RESET`): after a restart of
the server, and when it was away for too long. While nobody reads, nothing is collected, but for a while after the last
reader has left, so that it may come back.

A listener is in this process. It is called with the events of one session, or of all, as they are.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from proxy.model.errors import ProxyError
from proxy.model.events import ResetEvent, StreamedEvent, StreamEndedEvent, name_type

_RETRY_MS = 1000
_encoder = msgspec.json.Encoder()

Reason = Literal["slow", "stopping"]
Told = TypeVar("Told", bound=StreamedEvent)


class TooManyReaders(ProxyError):
    """No more streams of events are served now."""

    status = 503
    code = "too_many_streams"


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """The bounds of the stream. Times are in seconds."""

    most_readers: int = 64
    most_waiting: int = 8192  # events that wait for one reader: what is kept may come at once
    most_kept: int = 4096  # events for readers that come back
    heartbeat: float = 15.0
    linger: float = 60.0  # how long events are collected after the last reader has left


class Timer(Protocol):
    """A call that was ordered for later."""

    def cancel(self) -> None:
        """Do not make it."""
        ...


CallLater = Callable[[float, Callable[[], object]], Timer]
"""Makes a call after so many seconds."""

_DEFAULT_POLICY = StreamPolicy()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asked for: the sessions and the types of events, None for all of them."""

    sessions: Collection[str] | None = None
    types: Collection[str] | None = None

    def accepts(self, kind: str, session: str) -> bool:
        """Return whether an event is to be told to the reader."""
        return (self.types is None or kind in self.types) and (self.sessions is None or session in self.sessions)


EVERYTHING = Wanted()


Hear = Callable[[StreamedEvent], object]
"""Is called with an event. It must not raise."""


class EventReader:
    """One reader of the stream, and the events that wait for it."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.waiting: list[bytes] = []
        self.is_ended = False
        self._news = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Add bytes to what waits."""
        self.waiting.append(frame)
        self._news.set()

    def end(self, frame: bytes = b"") -> None:
        """End the stream after a last event."""
        self.is_ended = True
        self.put(frame)

    async def read(self) -> bytes:
        """Return all that waits, or wait for more. Return nothing at the end."""
        while not self.waiting:
            if self.is_ended:
                return b""
            self._news.clear()
            await self._news.wait()
        waiting, self.waiting = self.waiting, []
        return b"".join(waiting)


def _do_nothing() -> None:
    pass


async def _settle_nothing() -> None:
    pass


class EventStream:
    """The events of this run of the server. `run` names the run; `on_listen` and `on_idle` begin and end collecting.

    `settle` waits until all that has happened before was told.
    """

    def __init__(
        self,
        run: str,
        call_later: CallLater,
        now_ms: Callable[[], int],
        policy: StreamPolicy = _DEFAULT_POLICY,
        *,
        on_listen: Callable[[], object] = _do_nothing,
        on_idle: Callable[[], object] = _do_nothing,
        settle: Callable[[], Coroutine[Any, Any, None]] = _settle_nothing,
    ) -> None:
        self.policy = policy
        self.on_listen = on_listen
        self.on_idle = on_idle
        self.settle = settle
        self._run = run
        self._call_later = call_later
        self._now_ms = now_ms
        self._readers: set[EventReader] = set()
        self._listeners: dict[str, tuple[Hear, ...]] = {}  # by their session, empty for all
        self._kept: deque[tuple[int, str, str, bytes]] = deque(maxlen=policy.most_kept)
        self._newest = 0
        self._oldest = 0  # the number before the first event that was kept without a gap up to the newest
        self._is_collecting = self._is_closed = False
        self._beat: Timer | None = None
        self._end: Timer | None = None

    @property
    def is_collecting(self) -> bool:
        """Whether events are collected now."""
        return self._is_collecting

    @property
    def readers(self) -> int:
        """How many read the stream."""
        return len(self._readers)

    @property
    def position(self) -> str:
        """The id of the newest event."""
        return f"{self._run}-{self._newest}"

    @property
    def is_heard(self) -> bool:
        """Whether anybody in this process listens, whom events are told at once."""
        return bool(self._listeners)

    def listen(self, hear: Hear, session: str = "") -> None:
        """Call `hear` with the events of a session, or of all, from now on."""
        self._listeners[session] = (*self._listeners.get(session, ()), hear)
        self._collect()

    def stop_listening(self, hear: Hear, session: str = "") -> None:
        """Do not call `hear` any more with the events of a session, or of all."""
        left = tuple([each for each in self._listeners.pop(session, ()) if each != hear])
        if left:
            self._listeners[session] = left
        self._rest()

    def begin(self) -> str:
        """Collect events for a while, and return the id of the newest: a stream that begins there misses none."""
        if not self._is_closed:
            self._collect()
            self._rest()
        return self.position

    def open(self, wanted: Wanted = EVERYTHING, after: str = "") -> EventReader:
        """Return a reader of the events after the id `after`, or of those from now on. Raises TooManyReaders."""
        if self._is_closed:
            raise TooManyReaders("the server is stopping; open the stream again when it is back")
        if len(self._readers) >= self.policy.most_readers:
            raise TooManyReaders(f"{len(self._readers)} streams are open, the most at a time; close one of them")
        self._collect()
        reader, missing = EventReader(wanted), self._find_gap(after)
        number = self._newest if missing or not after else int(after.rpartition("-")[2])
        reader.put(b"retry: %d\nid: %b-%d\n: palimpsest\n\n" % (_RETRY_MS, self._run.encode(), number))
        if missing is not None:
            reader.put(self._write(ResetEvent(at_ms=self._now_ms(), reason=missing), self._newest))
        elif after:
            first = len(self._kept) - (self._newest - number)
            for _, kind, session, frame in islice(self._kept, first, None):
                if wanted.accepts(kind, session):
                    reader.put(frame)
        self._readers.add(reader)
        return reader

    def leave(self, reader: EventReader) -> None:
        """Forget a reader. Without any, events are collected for a while longer."""
        self._readers.discard(reader)
        self._rest()

    def publish(self, events: Iterable[StreamedEvent]) -> None:
        """Give events their ids, keep them, and queue them for all who want them."""
        for event in events:
            self._newest += 1
            kind, frame = name_type(type(event)), self._write(event, self._newest)
            if len(self._kept) == self.policy.most_kept:
                self._oldest = self._kept[0][0]
            self._kept.append((self._newest, kind, event.session, frame))
            for reader in self._readers:
                if reader.wanted.accepts(kind, event.session):
                    reader.put(frame)
            for hear in self._list_listeners(event.session):
                hear(event)
        most = self.policy.most_waiting
        for reader in [reader for reader in self._readers if len(reader.waiting) > most]:
            self._drop(reader, "slow")

    def close(self) -> None:
        """End all streams at once, and open no other. Who listens in this process hears what comes."""
        self._is_closed = True
        for reader in tuple(self._readers):
            self._drop(reader, "stopping", is_kept=True)
        self._rest()

    def _list_listeners(self, session: str) -> tuple[Hear, ...]:
        if not self._listeners:
            return ()
        own = self._listeners.get(session, ()) if session else ()
        return own + self._listeners.get("", ())

    def _find_gap(self, after: str) -> Literal["restarted", "expired", "unknown"] | None:
        """Return why events after this id are missing, None if they are not."""
        if not after:
            return None
        run, _, number = after.rpartition("-")
        if not (run and number.isascii() and number.isdigit() and len(number) < 16):
            return "unknown"
        if run != self._run:
            return "restarted"
        return None if self._oldest <= int(number) <= self._newest else "expired"

    def _collect(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._is_collecting:
            self._is_collecting = True
            self._kept.clear()
            self._oldest = self._newest = self._newest + 1  # what happened while nobody read has no number of its own
            self._beat = self._call_later(self.policy.heartbeat, self._send_heartbeat)
            self.on_listen()

    def _rest(self) -> None:
        """Have collecting end if nobody is there: after a while, or at once if nobody can come back."""
        if not self._is_collecting or self._readers or self._listeners:
            return
        if self._is_closed:
            self._stop()
        elif self._end is None:
            self._end = self._call_later(self.policy.linger, self._stop)

    def _stop(self) -> None:
        for timer in (self._beat, self._end):
            if timer is not None:
                timer.cancel()
        self._beat = self._end = None
        if self._is_collecting:
            self._is_collecting = False
            self._kept.clear()
            self.on_idle()

    def _send_heartbeat(self) -> None:
        """Send a comment to each reader, with the id up to which it has everything that it asked for."""
        beat = b"id: %b\n: heartbeat\n\n" % self.position.encode()
        for reader in self._readers:
            if len(reader.waiting) < self.policy.most_waiting:
                reader.put(beat)
        self._beat = self._call_later(self.policy.heartbeat, self._send_heartbeat)

    def _drop(self, reader: EventReader, reason: Reason, *, is_kept: bool = False) -> None:
        if not is_kept:
            reader.waiting.clear()
        reader.end(self._write(StreamEndedEvent(at_ms=self._now_ms(), reason=reason)))
        self.leave(reader)

    def _write(self, event: StreamedEvent, number: int | None = None) -> bytes:
        """Return an event as it is sent. Without a number its reader's last id stays as it is."""
        id = b"" if number is None else b"id: %b-%d\n" % (self._run.encode(), number)
        return b"event: %b\n%bdata: %b\n\n" % (name_type(type(event)).encode(), id, _encode(event))


def _encode(event: StreamedEvent) -> bytes:
    """Return an event as JSON, which has no line break."""
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # half a surrogate pair, of a client or a provider
        return _encoder.encode(make_encodable(event))


def make_encodable(event: Told) -> Told:
    """Return an event without halves of surrogate pairs."""
    fields: dict[str, Any] = {name: _replace_lone(getattr(event, name)) for name in event.__struct_fields__}
    return type(event)(**fields)


def _replace_lone(value: object) -> object:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
