"""What is saved, and how sure that is: worked out by hand, and tried on sessions made by chance."""

import random
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.comparison import LEAST_SESSIONS, compare

costs = st.lists(st.floats(0.01, 100), min_size=LEAST_SESSIONS, max_size=60)


def spread(mean: float, count: int = LEAST_SESSIONS, by: float = 0.5) -> list[float]:
    """As many below the mean as above it."""
    return [mean * (1 + by * (-1) ** number) for number in range(count)]


def test_a_saving_has_its_interval() -> None:
    found = compare(spread(0.6), spread(1.0))
    assert found is not None
    assert found.saving == pytest.approx(0.4)
    # each arm: s² = 0.25·m²·20/19, so s²/(n·m²) = 0.25/19; both together 0.5/19, with 38 degrees of freedom
    half = 2.0244 * (0.5 / 19) ** 0.5
    assert found.low == pytest.approx(1 - 0.6 * exp(half), abs=1e-4)
    assert found.high == pytest.approx(1 - 0.6 * exp(-half), abs=1e-4)


def test_what_costs_more_is_told_as_such() -> None:
    found = compare(spread(1.5), spread(1.0))
    assert found is not None
    assert found.saving == pytest.approx(-0.5)


def test_sessions_that_are_all_alike_leave_no_doubt() -> None:
    found = compare([0.5] * 30, [1.0] * 20)
    assert found is not None
    assert (found.saving, found.low, found.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("treated", "untreated"), [(19, 500), (500, 19), (0, 0)])
def test_of_too_few_nothing_is_told(treated: int, untreated: int) -> None:
    assert compare(spread(0.6, treated), spread(1.0, untreated)) is None


@pytest.mark.parametrize(("treated", "untreated"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_what_costs_nothing_has_no_ratio(treated: float, untreated: float) -> None:
    assert compare([treated] * 30, [untreated] * 30) is None


def test_the_smaller_arm_says_how_sure_it_is() -> None:
    widths = []
    for treated, untreated in ((2000, 20), (20, 20), (2000, 2000)):
        found = compare(spread(0.6, treated), spread(1.0, untreated))
        assert found is not None
        widths.append(log((1 - found.low) / (1 - found.high)))
    assert widths[1] > widths[0] > widths[2]
    # one arm of 19 degrees alone: Student's quantile is 2.093
    assert widths[0] == pytest.approx(2 * 2.093 * (0.25 / 19 + 0.25 / 1999) ** 0.5, rel=0.003)


@given(costs, costs)
def test_the_saving_is_within_its_interval_and_never_all(treated: list[float], untreated: list[float]) -> None:
    found = compare(treated, untreated)
    assert found is not None
    assert found.low <= found.saving <= found.high < 1


def test_about_as_many_intervals_hold_as_are_said_to() -> None:
    chance = random.Random(5)
    held = 0
    for _ in range(600):
        treated, untreated = ([chance.lognormvariate(0, 0.6) for _ in range(count)] for count in (100, 20))
        found = compare([0.7 * cost for cost in treated], untreated)
        assert found is not None
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 600 <= 0.97
