"""What is written within one turn of the event loop.

Rule: with many calls under way the first write leaves at once and what follows it leaves together, in order, when the
turn is over or has taken a millisecond; whoever does anything else to a transport of which something may be held has it
flushed before.

To send wakes whoever reads there. On another processor that costs 30 µs while the reader sleeps and 5 µs while it is
awake: 64 calls under way, each sending as soon as it can, woke their peers twice a call, for an eighth of its time. But
a peer that is kept waiting for a whole turn has the proxy wait for it afterwards: 16 calls of 100 KB took longer.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

# Below, there is nothing to gather, and to be told of the turn's end costs the loop another round.
_MANY_CALLS = 8
_LONGEST_SECONDS = 0.001


class Writes:
    """Gathers the writes to many transports; of those that are closing nothing more is written.

    `count_calls` tells how many calls are under way, about; `now` is in seconds and never goes back.
    """

    def __init__(self, count_calls: Callable[[], int], now: Callable[[], float] = monotonic) -> None:
        self._count_calls = count_calls
        self._now = now
        self._held: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._is_under_way = False
        self._until = 0.0
        self.turn = 0

    def put(self, transport: asyncio.WriteTransport, content: bytes) -> int:
        """Write, now or when the turn is over; it has been done once `turn` is greater than what this returns."""
        turn = self.turn
        if self._is_under_way:
            self._held.append((transport, content))
            if self._now() >= self._until:
                self.flush()
            return turn
        if self._count_calls() >= _MANY_CALLS:
            self._is_under_way = True
            self._until = self._now() + _LONGEST_SECONDS
            asyncio.get_running_loop().call_soon(self._end_turn)
        transport.write(content)
        return turn - 1

    def flush(self) -> None:
        """Write what is held. The turn goes on."""
        if self._held:
            held, self._held = self._held, []
            self.turn += 1
            self._until = self._now() + _LONGEST_SECONDS
            for transport, content in held:
                if not transport.is_closing():
                    transport.write(content)

    def _end_turn(self) -> None:
        self._is_under_way = False
        self.flush()
