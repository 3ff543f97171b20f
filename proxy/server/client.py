"""The client of one request that is passed on. Rule: never a clean end that the engine did not ask for.

Implements the engine's `Client` and `RequestBody`.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, NoReturn

from starlette.types import Scope
from uvicorn._types import HTTPRequestEvent

from proxy.model.errors import ProxyError, TooLarge
from proxy.model.exchange import ClientRequest, Headers
from proxy.server.cycle import Cycle
from proxy.server.errors import Refused, render_error
from proxy.server.policy import ServerPolicy
from proxy.server.protocol import CONNECTION, CYCLE, TARGET, GuardedProtocol
from proxy.wire.headers import find, find_credential, is_shared, narrow_sharing

SMALL_BYTES = 1024 * 1024
_SMALL_FRACTION = 0.25


class Share:
    """What one request holds of the budget. Close it when the request is done with."""

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> bool:
        """Hold so many bytes in all from now on; False where there is no room for them, or others have come before."""
        return self._budget.resize(self, size)

    def wait(self, size: int) -> "asyncio.Future[bool]":
        """As `grow`, resolved with True once there is room. Resolve it with False to give up."""
        return self._budget.queue(self, size)

    def close(self) -> None:
        """Give back what is held."""
        self._budget.release(self)


class BodyBudget:
    """Bytes that are `held`, and who waits for some. `most` is their number; one body always has room, if alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0
        self._held_large = 0
        self._small_part = int(most * _SMALL_FRACTION)
        self._waiting: dict[bool, deque[tuple[Share, int, asyncio.Future[bool]]]] = {False: deque(), True: deque()}

    def resize(self, share: Share, size: int) -> bool:
        """Have a share hold so many bytes, if there is room and nobody of its kind waits."""
        if self._waiting[size > SMALL_BYTES] or not self._has_room(share, size):
            return False
        self._set(share, size)
        return True

    def queue(self, share: Share, size: int) -> "asyncio.Future[bool]":
        """Have a share wait for so many bytes."""
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[_is_large(size)].append((share, size, granted))
        granted.add_done_callback(lambda _: self._grant())  # who gave up is not in the way of those behind
        return granted

    def release(self, share: Share) -> None:
        """Have a share hold nothing, and let those in for whom there is room now."""
        if share.size:
            self._set(share, 0)
            self._grant()

    def _grant(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                share, size, granted = waiting[0]
                if not granted.done() and not self._has_room(share, size):
                    break
                waiting.popleft()
                if not granted.done():
                    self._set(share, size)
                    granted.set_result(True)

    def _has_room(self, share: Share, size: int) -> bool:
        others = self.held - share.size
        others_large = self._held_large - (share.size if _is_large(share.size) else 0)
        if not _is_large(size):
            return others + size <= self._most or others == others_large
        return not others_large or max(others, others_large + self._small_part) + size <= self._most

    def _set(self, share: Share, size: int) -> None:
        self.held += size - share.size
        self._held_large += (size if _is_large(size) else 0) - (share.size if _is_large(share.size) else 0)
        share.size = size


def _is_large(size: int) -> bool:
    return size > SMALL_BYTES


_RETRY_SECONDS = 2


def read_request(scope: Scope, body: bytes = b"") -> ClientRequest:
    """The request line and headers of an ASGI scope, raw, and a body that was read."""
    target: bytes = scope["extensions"][TARGET]
    if not target.startswith(b"/"):  # absolute form, as sent to a proxy: whose host it names does not matter here
        target = scope["raw_path"] + b"?" * bool(scope["query_string"]) + scope["query_string"]
    return ClientRequest(scope["method"], target, scope["headers"], body)


def find_patience(policy: ServerPolicy, received: int, waited: float) -> float:
    """How long to wait for more of a body of which so much has come in so much waiting.

    It may be silent for `body_timeout`, and be behind `body_min_rate` by that much in all.
    """
    if not policy.body_min_rate:
        return policy.body_timeout
    return min(policy.body_timeout, policy.body_timeout + received / policy.body_min_rate - waited)


class ServedClient:
    """Reads a request's body, writes its answer, notices that the client has left."""

    def __init__(self, scope: Scope, policy: ServerPolicy) -> None:
        self._headers: Headers = scope["headers"]
        extensions = scope["extensions"]
        connection: GuardedProtocol | None = extensions[CONNECTION]()
        cycle: Cycle | None = extensions[CYCLE]()
        assert connection is not None and cycle is not None, "they serve the request"
        self._connection = connection
        self._cycle = cycle
        self._policy = policy
        self._labels: Headers = ()
        self._is_started = False
        self._is_body_ended = False
        self._received = 0
        self._waited = 0.0  # for the client to send more
        self.is_finished = False

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        headers = self._headers
        return find(headers, b"content-length") not in (b"", b"0") or bool(find(headers, b"transfer-encoding"))

    async def read_whole(self, share: Share) -> bytes:
        """The whole body, for which `share` takes room of the budget: before it is read where its length is announced.

        Raises TooLarge above the cap, early where the length is announced, and Refused.
        """
        cap = self._policy.max_body_bytes
        announced = find(self._headers, b"content-length")
        length = int(announced) if announced.isdigit() else 0
        if length > cap:
            raise _too_large(cap)
        if not share.grow(length):
            await self._wait_for_room(share, length)
        pieces: list[bytes] = []
        size = 0
        while self._cycle.more_body:
            pieces.append((await self._next_message())["body"])
            size += len(pieces[-1])
            self._check_size(share, size)
        pieces.append(self._cycle.take())
        self._is_body_ended = True
        self._check_size(share, size + len(pieces[-1]))
        return b"".join(pieces)

    async def read(self) -> bytes:
        """The next bytes of the body, empty at the end. Never returns when the client leaves: the call is cancelled."""
        while not self._is_body_ended:
            try:
                message = await self._next_message()
            except ProxyError:
                self.abort()
                await _never()
            if not message["more_body"]:
                self._is_body_ended = True
            if message["body"]:
                return bytes(message["body"])
        return b""

    def expect_nothing(self) -> None:
        """The request has no body to wait for."""
        self._is_body_ended = True

    async def see_through(self, call: Coroutine[Any, Any, None]) -> None:
        """Let a call run to its end; a client that leaves before cancels it."""
        task = asyncio.current_task()
        assert task is not None, "uvicorn serves every request in a task"
        leave = task.cancel
        self._connection.watch(leave)
        try:
            await call
        except asyncio.CancelledError:
            pass  # the call has put its things in order, and this task ends with it
        finally:
            self._connection.unwatch(leave)

    def label(self, fields: Headers) -> None:
        """What the head of the answer bears besides its own fields, our own errors included."""
        self._labels = fields

    def start(self, status: int, headers: Headers) -> None:
        """The answer's head; nothing if it has been sent."""
        if not self._is_started:
            self._is_started = True
            if is_shared(headers) and (self._policy.has_own_key or not find_credential(self._headers)):
                headers = narrow_sharing(self._headers, headers)
            self._cycle.start_answer(status, (*headers, *self._labels))

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Body bytes; False: no more should come before `drain` returns."""
        if self.is_finished or (not content and not is_last):
            return True
        self.is_finished = is_last
        return self._cycle.write_answer(content, is_last=is_last)

    async def drain(self) -> None:
        """Wait until the client's side can take more."""
        await self._cycle.flow.drain()

    def fail(self, error: ProxyError) -> None:
        """Answer with our own error, or break off."""
        if self._is_started or self.is_finished:
            self.abort()
            return
        status, headers, body = render_error(error)
        self.start(status, headers)
        self.write(body, is_last=True)
        if not self._is_body_ended:
            self._connection.ending.linger(self._cycle)

    def dismiss(self) -> None:
        """The server must stop: say so where nothing was sent, else break off."""
        self.fail(Refused(503, "shutting_down", "the server is shutting down; try again"))

    def abort(self) -> None:
        """Break off; nothing after a whole answer."""
        if not self.is_finished:
            self.is_finished = True
            self._connection.break_off(self._cycle)

    def _check_size(self, share: Share, size: int) -> None:
        if size > self._policy.max_body_bytes:
            raise _too_large(self._policy.max_body_bytes)
        if size > share.size and not share.grow(size):  # what was read cannot wait, or all could wait for one another
            raise _no_room(self._policy)

    async def _wait_for_room(self, share: Share, size: int) -> None:
        granted = share.wait(size)

        def give_up() -> None:
            if not granted.done():
                granted.set_result(False)

        self._connection.pause()
        self._connection.watch(give_up)
        try:
            async with asyncio.timeout(self._policy.body_timeout):
                has_room = await granted
        except TimeoutError:
            raise _no_room(self._policy) from None
        finally:
            give_up()
            self._connection.unwatch(give_up)
        if not has_room:
            self.abort()
            raise _client_left()

    async def _next_message(self) -> HTTPRequestEvent:
        policy, loop = self._policy, asyncio.get_running_loop()
        asked_at, seconds = loop.time(), find_patience(policy, self._received, self._waited)
        try:
            async with asyncio.timeout(seconds):
                message = await self._cycle.receive()
        except TimeoutError:
            raise _too_slow(policy, is_silent=seconds == policy.body_timeout) from None
        if message["type"] == "http.disconnect":
            self.abort()
            raise _client_left()
        self._waited += loop.time() - asked_at
        self._received += len(message["body"])
        return message


def _too_large(cap: int) -> TooLarge:
    return TooLarge(f"the request body exceeds server.max_body_bytes ({cap}); raise it, or use an upload endpoint")


def _too_slow(policy: ServerPolicy, *, is_silent: bool) -> Refused:
    if is_silent:
        text = f"no byte of the request body for {policy.body_timeout:g} s (server.body_timeout)"
    else:
        text = f"the request body comes in slower than {policy.body_min_rate} bytes a second (server.body_min_rate)"
    return Refused(408, "body_timeout", text)


def _no_room(policy: ServerPolicy) -> Refused:
    text = f"request bodies under way take all of server.max_buffered_bytes ({policy.max_buffered_bytes}); try again"
    return Refused(503, "no_room", text, retry_after=_RETRY_SECONDS)


def _client_left() -> Refused:
    return Refused(400, "client_left", "the client left before its request was whole")


async def _never() -> NoReturn:
    """Wait to be cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody resolves this future")
