"""Calls that this process makes itself. They take the way of any other call, and their answer stays in memory."""

import asyncio
from collections.abc import Awaitable, Callable

from proxy.engine.call.response_reader import is_event_stream
from proxy.engine.call.response_stream import LocalClient
from proxy.engine.exchange import ExchangeService
from proxy.engine.runtime import TaskRunner, attempt
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import SUCCESS, ClientRequest, Headers, LocalCall
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.streams import MARKER_REACH
from proxy.wire.summary_request import make_target

Take = Callable[[bytes, Headers], Awaitable[None]]
"""Is given each piece of a successful response as it comes, with the head's fields. The next piece waits for it."""

_JSON = (b"content-type", b"application/json")


class TakingClient(LocalClient):
    """Passes what comes to `take`.

    `ended` is called once it has the end of the answer, by the end marker of the format `wire` if not by the body's.
    """

    def __init__(self, wire: str, take: Take | None, ended: Callable[[], object]) -> None:
        super().__init__()
        self.fault: Exception | None = None  # what `take` has raised; the call goes on without it
        self._take = take
        self._ended = ended
        self._marker = FORMATS[wire].end_marker
        self._is_stream = False
        self._waiting: list[bytes] = []
        self._window = b"\n"  # a stream begins at the start of a line

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Take a piece of the body. Return False if `take` is still to be given it."""
        self._is_stream = self._is_stream if self._pieces else is_event_stream(self.headers, content)
        super().write(content, is_last=is_last or self._ends_stream(content))
        if self.is_whole and not is_last:
            self._ended()  # the body may stay open for as long as its upstream likes
        if self._take is None or self.fault is not None or self.status not in SUCCESS:
            return True
        self._waiting.append(content)
        return False

    def _ends_stream(self, content: bytes) -> bool:
        if not self._is_stream or self._marker is None:
            return False
        window = self._window + content
        self._window = window[-MARKER_REACH:]
        return self._marker.search(window) is not None

    async def drain(self) -> None:
        """Give `take` what has come."""
        if self._waiting:
            await attempt(self._pass_on(), self._note_fault)

    async def _pass_on(self) -> None:
        while self._waiting and self._take is not None:
            await self._take(self._waiting.pop(0), self.headers)

    def _note_fault(self, error: Exception) -> None:
        self.fault = error
        self._waiting.clear()


def make_request(form: Format, body: bytes, *more: tuple[bytes, bytes]) -> ClientRequest:
    """Return a request of ours in a format, as a client of it would send it, with `more` headers."""
    return ClientRequest("POST", make_target(form), (_JSON, *form.own_headers, *more), body)


async def make_call(
    exchanges: ExchangeService,
    tasks: TaskRunner,
    request: ClientRequest,
    wire: str,
    take: Take | None = None,
    *,
    local: LocalCall | None = None,
) -> LocalClient:
    """Make a call, and return its client, with a complete response of any status, once the log has it.

    If it is cancelled, so is the call.

    `local` names its session, where we hold the history of that.
    Raises ProxyError if no complete response came, and what `take` has raised once the call has ended.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object = None) -> None:
        if not ended.done():
            ended.set_result(None)

    client = TakingClient(wire, take, end)
    # A task of its own: the caller's may go on for long, or be ended by others, and each call has an end in the log.
    task = tasks.spawn(exchanges.carry(request, wire, client, local))
    task.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
    if task.done() and not task.cancelled():
        task.result()
    await client.drain()
    if client.fault is not None:
        raise client.fault
    if client.error is not None:
        raise client.error
    if not client.is_whole:
        raise UpstreamUnreachable(f"the response broke off after {len(client.content)} bytes")
    return client
