"""The real clock and real ids. Rule: everything else takes them through the ports, so that tests can foresee them."""

import os
import random
import time


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""
        return time.time_ns() // 1_000_000

    # Seconds, never backwards. The function itself: it is asked seven times a call.
    monotonic = staticmethod(time.monotonic)


class SystemIds:
    """Exchange ids: 48 bits of wall time in milliseconds, then 48 random bits, in hexadecimal.

    They name, they do not protect: the random bits come from a generator that the system seeds once.
    """

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(32))

    def next_exchange(self) -> str:
        """A new id; ids of later milliseconds sort behind earlier ones."""
        return f"{time.time_ns() // 1_000_000:012x}{self._random.getrandbits(48):012x}"
