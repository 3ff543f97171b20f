"""Leaving a model alone that fails (BEHAVIOUR B29).

Rule: two failures in a row trip the breaker; behind each pause one call may probe, and every failure of that makes the
next pause longer. A probe that nobody tells of again counts as under way for one more pause, then another may.
"""

from collections import OrderedDict

import msgspec

from proxy.engine.compaction.bounded import keep_newest

_MOST_FAILURES = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 900.0
_MOST_MODELS = 1024


class Breaker(msgspec.Struct, frozen=True, gc=False):
    """The failures in a row so far, and when the next call may be tried, in monotonic seconds."""

    failures: int = 0
    until: float = 0.0

    @property
    def pause(self) -> float:
        """Seconds for which nothing is asked; none before it trips."""
        if self.failures < _MOST_FAILURES:
            return 0.0
        return min(_FIRST_PAUSE * 2.0 ** min(self.failures - _MOST_FAILURES, 10), _LONGEST_PAUSE)

    def allows(self, now: float) -> bool:
        """Whether a call may be tried."""
        return now >= self.until

    def begin(self, now: float) -> "Breaker":
        """A call is tried: the only one for a pause, where it is a probe."""
        return Breaker(self.failures, now + self.pause)

    def fail(self, now: float) -> "Breaker":
        """It failed."""
        return Breaker(self.failures + 1).begin(now)


class Breakers:
    """A breaker for each model of each upstream."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Breaker] = OrderedDict()

    def allows(self, upstream: str, model: str, now: float) -> bool:
        """Whether a call may be tried."""
        return self._find(upstream, model).allows(now)

    def begin(self, upstream: str, model: str, now: float) -> None:
        """A call is tried."""
        self._keep(upstream, model, self._find(upstream, model).begin(now))

    def note_success(self, upstream: str, model: str) -> None:
        """What came of it was good."""
        self._known.pop((upstream, model), None)

    def note_failure(self, upstream: str, model: str, now: float) -> None:
        """Nothing came of it, or nothing good."""
        self._keep(upstream, model, self._find(upstream, model).fail(now))

    def _find(self, upstream: str, model: str) -> Breaker:
        return self._known.get((upstream, model), _CLOSED)

    def _keep(self, upstream: str, model: str, breaker: Breaker) -> None:
        keep_newest(self._known, (upstream, model), breaker, _MOST_MODELS)


_CLOSED = Breaker()
