"""The mock upstream: an OpenAI-compatible server on the loopback that must outrun everything measured.

The rule: answers are serialised before they are asked for, and of a request only what chooses one is looked at:
`"stream": true` in the body gives SSE, anything else a small JSON answer.  Headers shape it: `x-bench-answer: NONCE`
(12 digits) which words, `x-bench-chunks` how many pieces, `x-bench-delay-ms` how far apart (0: in one burst).
Requests need a content-length; pipelining is not served.

Prints its port on one line, then serves until stdin closes or its lifetime is over.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
from functools import lru_cache
from typing import NamedTuple, cast

import uvloop

from benchmarks import corpus

_STREAM = re.compile(rb'"stream":\s*true')
_EDGE = 1024  # clients put "stream" at either end of a body: no need to search 800 KB
_JSON_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_bench\r\ncontent-length: %d\r\n\r\n"
)
_SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: req_bench\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"
_FIRST_NONCE = b"0" * len(corpus.NONCE)


class Request(NamedTuple):
    """What the mock wants to know of a request's head."""

    length: int
    nonce: bytes
    chunks: int
    delay: float


def _find_value(head: bytes, name: bytes) -> bytes:
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


@lru_cache(maxsize=4096)
def parse_head(head: bytes) -> Request:
    """Read the few headers that shape the answer."""
    lowered = head.lower()
    return Request(
        length=int(_find_value(lowered, b"content-length") or 0),
        nonce=_find_value(lowered, b"x-bench-answer") or _FIRST_NONCE,
        chunks=int(_find_value(lowered, b"x-bench-chunks") or 20),
        delay=int(_find_value(lowered, b"x-bench-delay-ms") or 0) / 1000,
    )


def _find_turn(nonce: bytes) -> int:
    """The turn a nonce is of, so that the answer is the one which the client shows in its next call."""
    return int(nonce[6:])


@lru_cache(maxsize=corpus.POOL)
def _render_json(index: int) -> bytes:
    body = corpus.answer_body(index)
    return _JSON_HEAD % len(body) + body


@lru_cache(maxsize=64)
def _render_frames(index: int, chunks: int) -> tuple[bytes, ...]:
    events = corpus.stream_events(index, chunks)
    return tuple(b"%x\r\n%s\r\n" % (len(event), event) for event in events)


@lru_cache(maxsize=64)
def _render_burst(index: int, chunks: int) -> bytes:
    return _SSE_HEAD + b"".join(_render_frames(index, chunks)) + _LAST_CHUNK


@lru_cache(maxsize=2)
def _render_plain(nonce: bytes) -> bytes:
    return _render_json(_find_turn(nonce) % corpus.POOL).replace(corpus.NONCE, nonce)


def _fill(answer: bytes, request: Request) -> bytes:
    return _fill_tokens(answer.replace(corpus.NONCE, request.nonce), request)


def _fill_tokens(answer: bytes, request: Request) -> bytes:
    """Fill in the prompt's tokens, a quarter of its bytes, in as many characters as the placeholder has."""
    return answer.replace(corpus.PROMPT, b"%*d" % (len(corpus.PROMPT), request.length // 4))


class Connection(asyncio.Protocol):
    """One keep-alive connection of the measured proxy, or of the load generator itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held = b""
        self._request: Request | None = None
        self._missing = 0
        self._first = b""
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._request is not None:
            self._take_body(self._request, data, 0)
            return
        if self._held:
            data = self._held + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._held = data
            return
        self._held = b""
        self._request = request = parse_head(data[:end])
        self._missing = request.length
        self._first = self._last = b""
        self._take_body(request, data, end + 4)

    def _take_body(self, request: Request, data: bytes, start: int) -> None:
        """Count the bytes from `start` on and keep the edges; no slice of a large piece, which would cost its copy."""
        length = len(data) - start
        self._missing -= length
        if not self._first:
            self._first = data[start : start + _EDGE]
        self._last = data[-_EDGE:] if length >= _EDGE else (self._last + data[start:])[-_EDGE:]
        if self._missing > 0:
            return
        self._request = None
        if _STREAM.search(self._last) or _STREAM.search(self._first):
            self._answer_stream(request)
        elif request.nonce == _FIRST_NONCE:
            self._write(_fill_tokens(_render_plain(request.nonce), request))
        else:
            self._write(_fill(_render_json(_find_turn(request.nonce) % corpus.POOL), request))

    def _answer_stream(self, request: Request) -> None:
        index = _find_turn(request.nonce) % corpus.STREAM_POOL
        if request.delay:
            frames = _render_frames(index, request.chunks)
            self._write(_SSE_HEAD + _fill(frames[0], request))
            self._pace(request, frames, 1, self._loop.time())
        else:
            self._write(_fill(_render_burst(index, request.chunks), request))

    def _pace(self, request: Request, frames: tuple[bytes, ...], sent: int, begun: float) -> None:
        """Send frame `sent` when its time has come; deadlines count from the first, so that pacing does not drift."""

        def send() -> None:
            self._timer = None
            frame = _fill(frames[sent], request)
            if sent + 4 > len(frames):  # finish, usage and [DONE] leave together, as providers send them
                rest = _fill(b"".join(frames[sent + 1 :]), request)
                self._write(frame + rest + _LAST_CHUNK)
            else:
                self._write(frame)
                self._pace(request, frames, sent + 1, begun)

        self._timer = self._loop.call_at(begun + sent * request.delay, send)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> None:
    """Serve on a free port of the loopback until stdin closes."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1024)
    ended = asyncio.Event()

    def read_stdin() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            ended.set()

    loop.add_reader(sys.stdin.fileno(), read_stdin)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


def main() -> None:
    """Start the mock from the command line."""
    parser = argparse.ArgumentParser(description="mock upstream on the loopback; prints its port")
    parser.add_argument("--lifetime", type=int, default=1800, help="seconds after which it ends by itself")
    signal.alarm(parser.parse_args().lifetime)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
