"""The client of one proxied request: reads the request body, writes the response, notices a disconnect.

Also the memory budget for request bodies. A response ends cleanly only if the engine has completed it.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace
from starlette.types import Scope

from proxy.model.errors import ProxyError, TooLarge
from proxy.model.exchange import ClientRequest, Headers
from proxy.server.errors import Refused, render_error
from proxy.server.http11 import RESPONSE
from proxy.server.http11_response import Http11Response
from proxy.server.policy import ServerPolicy
from proxy.wire.body import decode_pieces
from proxy.wire.headers import (
    allows_cross_origin,
    find_credential,
    find_header,
    read_encoding,
    restrict_cross_origin,
)

SMALL_BYTES = 1024 * 1024
_SMALL_FRACTION = 0.25
# What is decoded in the event loop, and at a time in a thread: about a quarter of a millisecond, and five.
_DECODED_HERE, _DECODED_BY_THREAD = 256 * 1024, 4 * 1024 * 1024
_RETRY_SECONDS = 2


class BodyBudget:
    """Bounds the memory of request bodies that are read whole; for streamed ones, back-pressure of the upstream does.

    `most` is the number of bytes. A body that is alone always has room. Bodies above `SMALL_BYTES` may take three
    quarters of the budget together, and wait in the order in which they came. The rest is reserved for small bodies, so
    that a few large uploads never block all other calls.
    """

    def __init__(self, most: int) -> None:
        self.used = 0
        self._most = most
        self._used_large = 0
        self._small_part = int(most * _SMALL_FRACTION)
        self._waiting: dict[bool, deque[tuple[Share, int, asyncio.Future[bool]]]] = {False: deque(), True: deque()}

    def resize(self, share: "Share", size: int) -> bool:
        """Set the bytes that a share has. Return False if there is no room, or others of its kind already wait."""
        if self._waiting[size > SMALL_BYTES] or not self._has_room(share, size):
            return False
        self._set(share, size)
        return True

    def queue(self, share: "Share", size: int) -> "asyncio.Future[bool]":
        """Queue a share for `size` bytes. The caller resolves the future with False to give up."""
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[size > SMALL_BYTES].append((share, size, granted))
        granted.add_done_callback(lambda _: self._grant())  # a waiter that gave up must not block those behind it
        return granted

    def release(self, share: "Share") -> None:
        """Release the bytes that a share has, and admit waiters for which there is room now."""
        if share.size:
            self.used -= share.size
            if share.size > SMALL_BYTES:
                self._used_large -= share.size
            share.size = 0
            if self._waiting[False] or self._waiting[True]:
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

    def _has_room(self, share: "Share", size: int) -> bool:
        others = self.used - share.size
        others_large = self._used_large - (share.size if share.size > SMALL_BYTES else 0)
        if size <= SMALL_BYTES:
            return others + size <= self._most or others == others_large
        return not others_large or max(others, others_large + self._small_part) + size <= self._most

    def _set(self, share: "Share", size: int) -> None:
        self.used += size - share.size
        self._used_large += (size if size > SMALL_BYTES else 0) - (share.size if share.size > SMALL_BYTES else 0)
        share.size = size


class Share:
    """The bytes of the budget that one request has."""

    size = 0


def read_request(scope: Scope, body: bytes = b"") -> ClientRequest:
    """Return the raw request line and headers of an ASGI scope, with a body that was read."""
    target: bytes = scope["extensions"][RESPONSE].target
    if not target.startswith(b"/"):  # absolute form, as sent to a proxy: the host that it names is ignored
        target = scope["raw_path"] + b"?" * bool(scope["query_string"]) + scope["query_string"]
    return ClientRequest(scope["method"], target, scope["headers"], body)


def compute_patience(policy: ServerPolicy, received: int, waited: float) -> float:
    """Return how many seconds to wait for more of a body, given the bytes received and the seconds waited so far.

    A client may be silent for `body_timeout` at a time, and fall behind `body_min_rate` by that much in total.
    """
    if not policy.body_min_rate:
        return policy.body_timeout
    return min(policy.body_timeout, policy.body_timeout + received / policy.body_min_rate - waited)


class ServedClient:
    """The engine's `Client` and `RequestBody` over an HTTP/1.1 response."""

    def __init__(self, scope: Scope, policy: ServerPolicy) -> None:
        self._headers: Headers = scope["headers"]
        self._response: Http11Response = scope["extensions"][RESPONSE]
        self._policy = policy
        self._labels: Headers = ()
        self._is_body_ended = False
        self._received = 0
        self._waited = 0.0  # for the client to send more
        self.is_finished = False

    @property
    def has_body(self) -> bool:
        """True if the request announces a body."""
        headers = self._headers
        return find_header(headers, b"content-length") not in (b"", b"0") or bool(
            find_header(headers, b"transfer-encoding")
        )

    # --- the request -------------------------------------------------------------------------------------------------

    async def read_whole(self, budget: BodyBudget, share: Share) -> bytes:
        """Return the whole body. If its length is announced, wait until `share` has room before reading it.

        Raises TooLarge above the cap, and Refused on a timeout, for lack of room, and if the client leaves.
        """
        response, cap = self._response, self._policy.max_body_bytes
        announced = find_header(self._headers, b"content-length")
        length = int(announced) if announced.isdigit() else 0
        if length > cap:
            raise _too_large(cap)
        if not budget.resize(share, length):
            await self._wait_for_room(budget.queue(share, length))
        pieces: list[bytes] = []
        size = 0
        while response.has_more_body:
            pieces.append(await self._read_piece())
            size += len(pieces[-1])
            self._check_size(budget, share, size)
        pieces.append(response.take_body())
        self._is_body_ended = True
        if (size := size + len(pieces[-1])) > share.size:  # else the announced length was checked
            self._check_size(budget, share, size)
        return b"".join(pieces)

    async def decode(self, request: ClientRequest, budget: BodyBudget, share: Share) -> ClientRequest:
        """Return a request that was read whole with its content-encoding undone, or as it is if that cannot be done.

        The decoded bytes count like those of any body. Raises TooLarge above the cap, and Refused for lack of room.
        """
        encoding = read_encoding(request.headers)
        if encoding in ("", "identity"):
            return request
        decoding, cap = decode_pieces(request.body, encoding), self._policy.max_body_bytes
        try:
            content = _take(decoding, _DECODED_HERE)
            is_whole = len(content) < _DECODED_HERE
            while True:
                if len(content) > cap:
                    raise _too_large(cap)
                self._check_room(budget, share, len(request.body) + len(content))
                if is_whole:
                    return replace(request, body=bytes(content), encoded=request.body)
                taken = await asyncio.to_thread(_take, decoding, _DECODED_BY_THREAD)
                content += taken
                is_whole = len(taken) < _DECODED_BY_THREAD
        except ValueError:
            return request

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end.

        If the client leaves or is too slow, this does not return: the call is cancelled.
        """
        while not self._is_body_ended:
            try:
                piece = await self._read_piece()
            except ProxyError:
                self.abort()
                await asyncio.get_running_loop().create_future()  # until this is cancelled
            if not self._response.has_more_body:
                self._is_body_ended = True
            if piece:
                return piece
        return b""

    def expect_nothing(self) -> None:
        """Note that there is no body to wait for."""
        self._is_body_ended = True

    def cancel_on_disconnect(self) -> None:
        """Cancel the current task when the client leaves, or at once if it has left; until `ignore_disconnect`."""
        task = asyncio.current_task()
        assert task is not None, "every request is served in a task"
        self._response.watch(task.cancel)

    def ignore_disconnect(self) -> None:
        """Undo `cancel_on_disconnect`."""
        self._response.on_disconnect = None

    # --- the response ------------------------------------------------------------------------------------------------

    def label(self, fields: Headers) -> None:
        """Set the headers that are added to the head of the response, also to that of our own errors."""
        self._labels = fields

    def start(self, status: int, headers: Headers) -> None:
        """Write the head, unless it has been written."""
        if not self._response.is_started:
            if allows_cross_origin(headers) and (self._policy.has_own_key or not find_credential(self._headers)):
                headers = restrict_cross_origin(self._headers, headers)
            self._response.start(status, (*headers, *self._labels))

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Write body bytes. Return False if the caller should wait for `drain` before it writes more."""
        if self.is_finished or (not content and not is_last):
            return True
        self.is_finished = is_last
        return self._response.write(content, is_last=is_last)

    async def drain(self) -> None:
        """Wait until the client can take more."""
        if self._response.connection.is_writing_paused:
            await self._response.connection.drain()

    def fail(self, error: ProxyError) -> None:
        """Respond with our own error, or break off a response that has begun."""
        if self._response.is_started or self.is_finished:
            self.abort()
            return
        status, headers, body = render_error(error)
        self.start(status, headers)
        self.write(body, is_last=True)
        if not self._is_body_ended:
            self._response.connection.closer.close_unless_read(self._response)

    def dismiss(self) -> None:
        """Respond that the server is shutting down, or break off a response that has begun."""
        self.fail(Refused(503, "shutting_down", "the server is shutting down; try again"))

    def abort(self) -> None:
        """Break off the response, unless it is complete."""
        if not self.is_finished:
            self.is_finished = True
            self._response.break_off()

    def _check_size(self, budget: BodyBudget, share: Share, size: int) -> None:
        if size > self._policy.max_body_bytes:
            raise _too_large(self._policy.max_body_bytes)
        self._check_room(budget, share, size)

    def _check_room(self, budget: BodyBudget, share: Share, size: int) -> None:
        # A partly read body cannot wait: all such bodies could wait for one another.
        if size > share.size and not budget.resize(share, size):
            raise _no_room(self._policy)

    async def _wait_for_room(self, granted: "asyncio.Future[bool]") -> None:
        def give_up() -> None:
            if not granted.done():
                granted.set_result(False)

        self._response.connection.pause_reading()
        self._response.watch(give_up)
        try:
            async with asyncio.timeout(self._policy.body_timeout):
                has_room = await granted
        except TimeoutError:
            raise _no_room(self._policy) from None
        finally:
            give_up()
            self._response.on_disconnect = None
        if not has_room:
            self.abort()
            raise _client_left()

    async def _read_piece(self) -> bytes:
        """Return the next bytes of the body; at its end perhaps none. Raises Refused on a timeout or a disconnect."""
        policy, loop = self._policy, asyncio.get_running_loop()
        asked_at, seconds = loop.time(), compute_patience(policy, self._received, self._waited)
        try:
            async with asyncio.timeout(seconds):
                is_there = await self._response.wait_for_body()
        except TimeoutError:
            raise _too_slow(policy, is_silent=seconds == policy.body_timeout) from None
        if not is_there:
            self.abort()
            raise _client_left()
        piece = self._response.take_body()
        self._waited += loop.time() - asked_at
        self._received += len(piece)
        return piece


def _take(pieces: Iterator[bytes], most: int) -> bytearray:
    """Return the next pieces, joined, until they have `most` bytes; fewer at the end."""
    taken = bytearray()
    for piece in pieces:
        taken += piece
        if len(taken) >= most:
            break
    return taken


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
    return Refused(503, "no_room", text, ((b"retry-after", b"%d" % _RETRY_SECONDS),))


def _client_left() -> Refused:
    return Refused(400, "client_left", "the client disconnected before its request was complete")
