"""The real clock and real ids. Rule: everything else takes them through the ports, so that tests can foresee them."""

import secrets
import time


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds, never backwards."""
        return time.monotonic()


class SystemIds:
    """Exchange ids: 48 bits of wall time in milliseconds, then 48 random bits, in hexadecimal."""

    def next_exchange(self) -> str:
        """A new id; ids of later milliseconds sort behind earlier ones."""
        stamp = (time.time_ns() // 1_000_000).to_bytes(6, "big")
        return (stamp + secrets.token_bytes(6)).hex()
