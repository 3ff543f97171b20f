"""What one way of doing things costs less than another, with an interval, where chance gave each session one of them.

Rule: no figure without its interval, and none at all of so few sessions that an interval of them means little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

LEAST_SESSIONS = 20
"""Of each arm. With costs that differ between sessions by a factor of three, 95 in 100 intervals hold then 93 times."""

_Z = 1.959964  # the normal distribution's quantile of 97.5 %


@dataclass(frozen=True, slots=True)
class Comparison:
    """The share that is saved, negative where the one costs more; with a chance of 95 % between `low` and `high`."""

    saving: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Arm:
    """`mean` is what a session costs, `spread` the variance of the mean's logarithm, with its degrees of freedom."""

    mean: float
    spread: float
    degrees: int


def compare(treated: Sequence[float], untreated: Sequence[float]) -> Comparison | None:
    """What the treated cost less than the untreated, each given by sessions; None where there are too few to tell.

    The logarithm of a ratio of means has about the variance s1²/(n1·m1²) + s2²/(n2·m2²): the log response ratio of
    Hedges, Gurevitch and Curtis, "The meta-analysis of response ratios in experimental ecology", Ecology 80 (1999). The
    degrees of freedom are Welch's. Sessions of which nothing costs anything have no ratio.
    """
    if min(len(treated), len(untreated)) < LEAST_SESSIONS:
        return None
    one, other = _weigh(treated), _weigh(untreated)
    if one.mean <= 0 or other.mean <= 0:
        return None
    half = _find_quantile(one, other) * sqrt(one.spread + other.spread)
    ratio = one.mean / other.mean
    return Comparison(1 - ratio, 1 - ratio * exp(half), 1 - ratio * exp(-half))


def _weigh(costs: Sequence[float]) -> _Arm:
    count = len(costs)
    mean = sum(costs) / count
    variance = sum((cost - mean) ** 2 for cost in costs) / (count - 1)
    return _Arm(mean, variance / (count * mean**2) if mean > 0 else 0.0, count - 1)


def _find_quantile(one: _Arm, other: _Arm) -> float:
    """Student's quantile of 97.5 %, by Abramowitz and Stegun 26.7.5."""
    spread = one.spread + other.spread
    inverse = sum((arm.spread / spread) ** 2 / arm.degrees for arm in (one, other)) if spread else 0.0
    return _Z + (_Z**3 + _Z) / 4 * inverse + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96 * inverse**2
