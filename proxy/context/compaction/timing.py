"""When a report is begun of a conversation above its soft mark (BEHAVIOUR B27).

Rule: while the cache is warm, for then it is read at a small price; else no earlier than need be, which is when the
high mark is nearer than twice the time that a report takes. Before the second call nobody knows how near that is.
"""

from math import inf

import msgspec

_TIMES = 2


class Pace(msgspec.Struct, frozen=True, gc=False):
    """How a conversation grows: the tokens that a call adds to it, and the seconds between two, None where unknown."""

    tokens: float
    seconds: float | None

    def find_time(self, left: int) -> float:
        """The seconds until so many tokens more are there, if it goes on so."""
        if self.seconds is None or left <= 0:
            return 0.0
        return left / self.tokens * self.seconds if self.tokens else inf


def is_due(left: int, pace: Pace, takes: float, *, is_warm: bool) -> bool:
    """Whether it is time for a report that `takes` so many seconds, `left` tokens before the high mark."""
    return is_warm or pace.find_time(left) < _TIMES * takes
