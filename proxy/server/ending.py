"""How a client's connection comes to its end. Rule: no connection is held by a client that is not there any more."""

import asyncio
import select

from uvicorn.protocols.http.flow_control import FlowControl

from proxy.server.cycle import Cycle

_LINGER_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_SENDS_NO_MORE: int = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a reset is seen


class Look:
    """While reading is paused asyncio does not notice that a client leaves; the kernel is asked now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._loop = loop
        self._transport = transport
        self._flow = flow
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look as long as reading is paused."""
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._ask)

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._timer = None
        if not self._flow.read_paused or self._transport.is_closing():
            return
        if _has_left(self._transport):
            self._transport.abort()
        else:
            self.start()


class Ending:
    """Closes a connection once what was written has left, for which the client has as long as for any other byte.

    It is not the protocol's own method: a cycle that held its protocol would wait for the garbage collector with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close; may be called again."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.hurry()

    def linger(self, cycle: Cycle) -> None:
        """Close soon if the rest of a refused body keeps coming: closing at once would reset the answer away."""
        self._loop.call_later(_LINGER_SECONDS, self._close_unless_read, cycle)

    def hurry(self) -> None:
        """The client takes nothing, or hardly anything: it has the time it has from now on."""
        if self._timer is None:
            self._left = self._transport.get_write_buffer_size()
            self._timer = self._loop.call_later(self._seconds, self._give_up)

    def relax(self) -> None:
        """The client takes something."""
        self.cancel()
        if self._transport.is_closing():
            self.hurry()

    def cancel(self) -> None:
        """It is closed, or need not be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._left:
            self.hurry()  # slowly, but steadily
        else:
            self._transport.abort()

    def _close_unless_read(self, cycle: Cycle) -> None:
        if cycle.more_body:
            self.close()


def _has_left(transport: asyncio.Transport) -> bool:
    """Whether the kernel knows that nobody is there any more, or sends any more: read, that would be the end, too."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _SENDS_NO_MORE)
    return bool(poll.poll(0))
