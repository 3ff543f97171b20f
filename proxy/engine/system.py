"""The real clock and real ids. Rule: everything else takes them through the ports, so that tests can foresee them."""

import base64
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
    """Exchange ids: 48 bits of wall time in milliseconds, then 72 random bits, as 24 characters of base32hex,
    whose alphabet sorts like the bytes it stands for (RFC 4648).
    """

    def next_exchange(self) -> str:
        """A new id; ids of later milliseconds sort behind earlier ones."""
        stamp = (time.time_ns() // 1_000_000).to_bytes(6, "big")
        return base64.b32hexencode(stamp + secrets.token_bytes(9)).decode("ascii").lower()
