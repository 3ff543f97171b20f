"""The client of one request, over ASGI. Rule: never a clean end that the engine did not ask for.

Implements the engine's `Client` and `RequestBody`.
"""

import asyncio
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope, Send

from proxy.model.errors import ProxyError, TooLarge
from proxy.model.exchange import ClientRequest, Headers
from proxy.server.errors import Refused, render_error
from proxy.server.policy import ServerPolicy
from proxy.server.protocol import CONNECTION, TARGET
from proxy.wire.headers import find

_BODILESS = (204, 304)


def read_request(scope: Scope, body: bytes = b"") -> ClientRequest:
    """The request line and headers of an ASGI scope, raw, and a body that was read."""
    target: bytes = scope["extensions"][TARGET]
    if not target.startswith(b"/"):  # absolute form, as sent to a proxy: whose host it names does not matter here
        target = scope["raw_path"] + b"?" * bool(scope["query_string"]) + scope["query_string"]
    return ClientRequest(scope["method"], target, tuple(scope["headers"]), body)


class AsgiClient:
    """Reads a request's body, writes its answer, notices that the client has left."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, policy: ServerPolicy) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._policy = policy
        self._is_started = False
        self._body_ended = asyncio.Event()
        self.is_finished = False

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        headers = self._scope["headers"]
        return find(headers, b"content-length") not in (b"", b"0") or bool(find(headers, b"transfer-encoding"))

    async def read_whole(self) -> bytes:
        """The whole body. Raises TooLarge above the cap, early where the length is announced, and Refused."""
        cap = self._policy.max_body_bytes
        announced = find(self._scope["headers"], b"content-length")
        if announced.isdigit() and int(announced) > cap:
            raise _too_large(cap)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._next_message()
            piece = message["body"]
            size += len(piece)
            if size > cap:
                raise _too_large(cap)
            pieces.append(piece)
            if not message["more_body"]:
                self._body_ended.set()
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """The next bytes of the body, empty at the end. Never returns when the client leaves: the call is cancelled."""
        while not self._body_ended.is_set():
            try:
                message = await self._next_message()
            except ProxyError:
                self.abort()
                await _never()
            if not message["more_body"]:
                self._body_ended.set()
            if message["body"]:
                return bytes(message["body"])
        return b""

    def expect_nothing(self) -> None:
        """The request has no body to wait for."""
        self._body_ended.set()

    async def see_through(self, call: "asyncio.Task[None]") -> None:
        """Wait for a call's end; a client that leaves before cancels it."""
        over = asyncio.Event()
        call.add_done_callback(lambda _: over.set())
        self._connection.watch(over.set)
        try:
            if over.is_set():
                await asyncio.sleep(0)  # a task that never took a step leaves no record
            await over.wait()
        finally:
            self._connection.unwatch(over.set)
            call.cancel()
        if not call.done():
            await asyncio.wait((call,))

    async def start(self, status: int, headers: Headers) -> None:
        """The answer's head; nothing if it has been sent."""
        if self._is_started:
            return
        self._is_started = True
        if status in _BODILESS:
            # uvicorn would wait for the body that this length only describes (RFC 9110, 15.4.5)
            headers = tuple(field for field in headers if field[0] != b"content-length")
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, content: bytes, *, is_last: bool = False) -> None:
        """Body bytes."""
        if self.is_finished or (not content and not is_last):
            return
        await self._send({"type": "http.response.body", "body": content, "more_body": not is_last})
        self.is_finished = is_last

    async def fail(self, error: ProxyError) -> None:
        """Answer with our own error, or break off."""
        if self._is_started or self.is_finished:
            self.abort()
            return
        status, headers, body = render_error(error)
        await self.start(status, headers)
        await self.write(body, is_last=True)
        if not self._body_ended.is_set():
            self._connection.linger()

    async def dismiss(self) -> None:
        """The server must stop: say so where nothing was sent, else break off."""
        await self.fail(Refused(503, "shutting_down", "the server is shutting down; try again"))

    def abort(self) -> None:
        """Break off; nothing after a whole answer."""
        if not self.is_finished:
            self.is_finished = True
            self._connection.break_off()

    async def _next_message(self) -> Message:
        try:
            async with asyncio.timeout(self._policy.body_timeout):
                message = await self._receive()
        except TimeoutError:
            message_text = f"no byte of the request body for {self._policy.body_timeout:g} s (server.body_timeout)"
            raise Refused(408, "body_timeout", message_text) from None
        if message["type"] == "http.disconnect":
            self.abort()
            raise Refused(400, "client_left", "the client left before its request was whole")
        return message

    @property
    def _connection(self) -> Any:
        return self._scope["extensions"][CONNECTION]


def _too_large(cap: int) -> TooLarge:
    return TooLarge(f"the request body exceeds server.max_body_bytes ({cap}); raise it, or use an upload endpoint")


async def _never() -> NoReturn:
    """Wait to be cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody resolves this future")
