"""Whether warm calls are warm, and how long summarisers take (BEHAVIOUR B27, B28).

Rule: what the upstream did not report teaches nothing. Memory only: after a start each model is taken to be warm again.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from proxy.engine.compaction.bounded import keep_newest
from proxy.model.exchange import Usage

_LEAST_SHARE = 0.8
_MOST_MISSES = 2
_MOST_SAMPLES = 64
_MOST_MODELS = 1024
_PERCENTILE = 0.95


@dataclass(slots=True)
class _Record:
    """Of one model: warm calls in a row that were not read from the cache, and the seconds of the newest calls."""

    misses: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))


class Warmth:
    """What answers to calls of our own tell of each model of each upstream."""

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, str], _Record] = OrderedDict()

    def note(self, upstream: str, model: str, seconds: float, warm_usage: Usage | None = None) -> None:
        """A call was answered after so many seconds; `warm_usage` is what a warm one was counted as.

        Twice in a row less than 80 % of it read from the cache, and the model is cold from then on.
        """
        record = self._records.get((upstream, model)) or _Record()
        keep_newest(self._records, (upstream, model), record, _MOST_MODELS)
        record.seconds.append(seconds)
        if warm_usage is None or warm_usage.cached is None or not warm_usage.input or self.is_cold(upstream, model):
            return
        is_miss = warm_usage.cached < _LEAST_SHARE * warm_usage.input
        record.misses = record.misses + 1 if is_miss else 0

    def is_cold(self, upstream: str, model: str) -> bool:
        """Whether a warm call would be read at the full price, so that a compact transcript is the cheaper one."""
        record = self._records.get((upstream, model))
        return record is not None and record.misses >= _MOST_MISSES

    def find_p95(self, upstream: str, model: str) -> float | None:
        """The seconds within which 95 % of the newest calls were answered; None before the first."""
        record = self._records.get((upstream, model))
        if record is None:
            return None
        ordered = sorted(record.seconds)
        return ordered[math.ceil(_PERCENTILE * len(ordered)) - 1]
