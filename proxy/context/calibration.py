"""What an upstream's cache really does, learned from the tokens it reported (BEHAVIOUR B11).

Rule: a report that was not made teaches nothing: unknown is not 0. Whatever is learned stays a share of 0 to 1. One
value per upstream and model.
"""

import msgspec
from msgspec.structs import replace

_WEIGHT = 0.2
# Below it the time to the first byte tells of the way there, not of the tokens.
_LEAST_TIMED = 4096
_HARDLY, _MOSTLY = 0.1, 0.9


class Calibration(msgspec.Struct, frozen=True, gc=False):
    """`read`: the share that was read of what should have been. `survival`: that of what stood before an epoch's first
    edit, when the epoch opened; None while nobody reported it. Seconds per token: of uncached input, and of cached.
    """

    read: float = 1.0
    survival: float | None = None
    fresh_seconds: float | None = None
    cached_seconds: float | None = None

    @property
    def cached_ratio(self) -> float:
        """The time that a cached token takes as a share of an uncached one's; nothing while it was not measured."""
        if not self.fresh_seconds or self.cached_seconds is None:
            return 0.0
        return min(1.0, self.cached_seconds / self.fresh_seconds)


def learn_read(calibration: Calibration, expected: int, cached: int | None) -> Calibration:
    """With one more report of a request of which `expected` tokens should have been read (0: it tells nothing)."""
    if cached is None or expected <= 0:
        return calibration
    return replace(calibration, read=_move(calibration.read, _share(cached, expected)))


def learn_survival(calibration: Calibration, stable: int, cached: int | None) -> Calibration:
    """With the report of the first request of an epoch, the first `stable` tokens of which were as before."""
    if cached is None or stable <= 0:
        return calibration
    return replace(calibration, survival=_learn(calibration.survival, _share(cached, stable)))


def learn_seconds(calibration: Calibration, tokens: int, cached: int | None, seconds: float) -> Calibration:
    """With the time to the first byte of a request, where it was nearly all cached or hardly at all."""
    if cached is None or tokens < _LEAST_TIMED or seconds < 0:
        return calibration
    share = _share(cached, tokens)
    if share <= _HARDLY:
        return replace(calibration, fresh_seconds=_learn(calibration.fresh_seconds, seconds / ((1 - share) * tokens)))
    fresh = calibration.fresh_seconds
    if share < _MOSTLY or fresh is None:
        return calibration
    left = max(0.0, seconds - (1 - share) * tokens * fresh)
    return replace(calibration, cached_seconds=_learn(calibration.cached_seconds, left / (share * tokens)))


def _share(part: int, whole: int) -> float:
    return min(1.0, max(0, part) / whole)


def _learn(known: float | None, seen: float) -> float:
    return seen if known is None else _move(known, seen)


def _move(known: float, seen: float) -> float:
    return known + _WEIGHT * (seen - known)
