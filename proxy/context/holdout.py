"""Which sessions are only observed, so that what managing saves can be told by comparing (FEATURES P19).

Rule: a keyed hash of the session's id decides, and nothing else: a session stays where it is over restarts, what is
said in it has no part in that, and no client can choose. Where the share changes, no more sessions move than must.
"""

import hmac
from dataclasses import dataclass

HELD_OUT = "holdout"
"""The reason that the log has with every call of such a session."""

_BITS = 53  # those of a float: nothing is rounded, so that all is never reached
_WHOLE = 1 << _BITS


@dataclass(frozen=True, slots=True)
class Holdout:
    """The sessions whose hash is below a threshold; `secret` is the log's own, so that they stay as long as it does."""

    fraction: float = 0.0
    secret: bytes = b""

    def has(self, session: str) -> bool:
        """Whether the session with this id is one of them."""
        return self.fraction > 0.0 and _draw(self.secret, session) < self.fraction


def _draw(secret: bytes, session: str) -> float:
    """From 0 to below 1, evenly."""
    tag = hmac.digest(secret, b"holdout\0" + session.encode("utf-8", "surrogatepass"), "sha256")
    return (int.from_bytes(tag[:8]) >> (64 - _BITS)) / _WHOLE
