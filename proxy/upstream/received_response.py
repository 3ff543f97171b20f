"""A response that a task of its own receives, for libraries in which a cancelled read ends the response.

Readers may stop waiting and read again later. The task waits while more than `_HIGH_WATER` bytes are unread.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.exchange import Headers

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

_HIGH_WATER = 256 * 1024


class ReceivedResponse:
    """Implements the port `UpstreamResponse`. A subclass says in `receive_body` where the bytes come from."""

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.is_received = False
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._error: ProxyError | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_started = self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ended(self) -> bool:
        """Whether every byte has been read."""
        return self.is_received and not self._pieces

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end."""
        while not self._pieces:
            if self.is_received:
                return b""
            await self._wait()
        return self._take()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Pass received bytes to `take` until that returns False or the whole response has come."""
        while not self.is_received:
            if not self._pieces:
                await self._wait()
            elif not take(self._take()):
                return

    def close(self) -> None:
        """Stop receiving unless the whole response has come."""
        self._is_closed = True
        if self._task is not None and self._is_started and not self.is_received:
            self._task.cancel()

    def raise_early_error(self) -> None:
        """Raise the error that ended the response before anything came."""
        if self._error is not None and not self._pieces:
            raise self._error

    def start(self, spawn: Spawn) -> None:
        """Start the task that receives the response."""
        self._task = spawn(self.receive())

    async def receive(self) -> None:
        """Receive the body; what ends it early is raised to the reader."""
        self._is_started = True
        try:
            if not self._is_closed:
                await self.receive_body()
                self.is_received = True
        except ProxyError as error:
            self._error = error
        finally:
            if not self.is_received and self._error is None:
                self._error = UpstreamUnreachable("the response was given up")
            _resolve(self._arrival)

    async def receive_body(self) -> None:
        """Pass the body to `put`, piece by piece. Raises ProxyError."""
        raise NotImplementedError

    async def put(self, piece: bytes) -> None:
        """Take a piece of the body; wait while too much is unread."""
        self._pieces.append(piece)
        self._buffered += len(piece)
        _resolve(self._arrival)
        if self._buffered > _HIGH_WATER:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def _wait(self) -> None:
        """Wait until the task has received something. Raises the error that ended the response."""
        if self._error is not None:
            raise self._error
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _take(self) -> bytes:
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        _resolve(self._room)
        return content


def _resolve(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
