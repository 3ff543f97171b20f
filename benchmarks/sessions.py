"""The requests a load generator's connection sends, call after call: one source per connection.

The rule: a request is rendered before its clock starts, and two sources never share a session or a message.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple, Protocol

from benchmarks import corpus
from benchmarks.jobs import Job

_SESSION = corpus.NONCE[:6]
_SESSIONS = 1_000_000  # as many as six digits tell apart
_session_numbers = itertools.count(1)


class Source(Protocol):
    """Where a connection takes its next request from."""

    new_bytes: int

    def render(self) -> bytes:
        """The next request, head and body; counts what in it the target has not seen."""
        ...


class Base(NamedTuple):
    """A history before the first measured call; the session's six digits are still the placeholder."""

    messages: bytes
    turns: int


@lru_cache(maxsize=16)
def _build_base(size: int, messages: int, chunks: int, spaced: bool) -> Base:
    comma = b", " if spaced else b","
    is_short = _is_short(size, messages)
    parts = [corpus.encode(message, spaced=spaced) for message in corpus.opening_messages(is_short)]
    parts = [part.replace(corpus.NONCE, _SESSION + b"opened") for part in parts]
    length = sum(map(len, parts))
    turn = 0
    while not is_short and (length < size or len(parts) < messages):
        for message in corpus.turn_messages(turn, chunks):
            part = corpus.encode(message, spaced=spaced).replace(corpus.NONCE, _SESSION + b"%06d" % turn)
            length += len(part) + 1
            parts.append(part)
        turn += 1
    return Base(comma.join(parts), turn)


@lru_cache(maxsize=4 * corpus.POOL)
def _encode_turn(turn: int, chunks: int, spaced: bool) -> bytes:
    comma = b", " if spaced else b","
    return b"".join(comma + corpus.encode(message, spaced=spaced) for message in corpus.turn_messages(turn, chunks))


def _is_short(size: int, messages: int) -> bool:
    return size <= 1_000 and messages <= 2


def _render_head(job: Job, session: bytes, nonce: bytes, length: int) -> bytes:
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: 127.0.0.1:%d" % job.port,
        b"authorization: Bearer bench",
        b"user-agent: palimpsest-bench/1",
        b"accept: " + (b"text/event-stream" if job.chunks else b"application/json"),
        b"content-type: application/json",
    ]
    if not job.is_anonymous:
        lines.append(b"x-palimpsest-session: bench-" + session)
    if nonce:
        lines.append(b"x-bench-answer: " + nonce)
    if job.chunks:
        lines.append(b"x-bench-chunks: %d" % job.chunks)
        lines.append(b"x-bench-delay-ms: %d" % job.delay_ms)
    lines.append(b"content-length: %d\r\n\r\n" % length)
    return b"\r\n".join(lines)


def name_session() -> bytes:
    """The six digits of a session that no other source has."""
    return b"%06d" % next(_session_numbers)


def build_body(job: Job, session: bytes) -> bytes:
    """The body of a history as the job describes it."""
    base = _build_base(job.size, job.messages, job.chunks, False)
    tail = corpus.suffix(job.chunks, is_short=_is_short(job.size, job.messages))
    return b'{"messages":[' + base.messages.replace(_SESSION, session) + tail


class RepeatSource:
    """The same bytes on every call: what a client's retry looks like, and what most comparisons measure."""

    def __init__(self, job: Job) -> None:
        session = name_session()
        body = build_body(job, session)
        self._differs, self._session = job.differs, session
        self._request = _render_head(job, session, corpus.NONCE if job.differs else b"", len(body)) + body
        self._calls = 0
        self.new_bytes = 0

    def render(self) -> bytes:
        if not self._differs:
            return self._request
        self._calls += 1
        return self._request.replace(corpus.NONCE, self._session + b"%06d" % self._calls, 1)


class NewSource:
    """Another session with another content on every call: nothing a target has seen before."""

    def __init__(self, job: Job) -> None:
        base = _build_base(job.size, job.messages, job.chunks, False)
        tail = corpus.suffix(job.chunks, is_short=_is_short(job.size, job.messages))
        body = b'{"messages":[' + base.messages + tail
        head = _render_head(job, corpus.NONCE, corpus.NONCE, len(body))
        self._request = (head + body).replace(corpus.NONCE, _SESSION + b"000001")
        self._new_per_call = len(body)
        self.new_bytes = 0

    def render(self) -> bytes:
        self.new_bytes += self._new_per_call
        return self._request.replace(_SESSION, b"%06d" % (next(_session_numbers) % _SESSIONS))


class GrowSource:
    """A session: every call repeats the messages before it byte for byte and appends the answer and what follows it."""

    def __init__(self, job: Job, spellings: tuple[bool, ...] = (False,)) -> None:
        self._job = job
        self._session = name_session()
        self._spellings = spellings
        self._histories: list[bytearray] = []
        self._tails: list[bytes] = []
        compact = _build_base(job.size, job.messages, job.chunks, False)
        known = 2 + 2 * compact.turns
        self._turn = compact.turns
        for spaced in spellings:
            base = _build_base(0, known, job.chunks, spaced) if spaced else compact
            self._histories.append(bytearray(b'{"messages":[' + base.messages.replace(_SESSION, self._session)))
            self._tails.append(corpus.suffix(job.chunks, is_short=_is_short(job.size, job.messages), spaced=spaced))
        self._calls = 0
        self.new_bytes = len(self._histories[0]) + len(self._tails[0])
        for turn in range(self._turn, self._turn + job.warm_turns + job.turns):  # now, not between two calls
            for spaced in spellings:
                _encode_turn(turn % corpus.POOL, job.chunks, spaced)

    def render(self) -> bytes:
        if self._calls:
            self._append_turn()
        spelling = self._calls % len(self._spellings)
        self._calls += 1
        body = bytes(self._histories[spelling]) + self._tails[spelling]
        return _render_head(self._job, self._session, self._session + b"%06d" % self._turn, len(body)) + body

    def _append_turn(self) -> None:
        nonce = self._session + b"%06d" % self._turn
        for history, spaced in zip(self._histories, self._spellings, strict=True):
            history += _encode_turn(self._turn % corpus.POOL, self._job.chunks, spaced).replace(corpus.NONCE, nonce)
        self.new_bytes += len(_encode_turn(self._turn % corpus.POOL, self._job.chunks, False))
        self._turn += 1


def open_source(job: Job) -> Source:
    """A source for one connection of the job."""
    if job.mode == "repeat":
        return RepeatSource(job)
    if job.mode == "new":
        return NewSource(job)
    return GrowSource(job, (False, True) if job.mode == "respell" else (False,))
