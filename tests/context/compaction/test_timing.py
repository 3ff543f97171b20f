"""When a report is begun."""

import pytest

from proxy.context.compaction.timing import Pace, is_due

# a thousand tokens every ten seconds
STEADY = Pace(1000.0, 10.0)


@pytest.mark.parametrize(
    ("pace", "left", "seconds"),
    [
        (STEADY, 5000, 50.0),
        (STEADY, 500, 5.0),
        (STEADY, 0, 0.0),
        (STEADY, -5000, 0.0),
        (Pace(0.0, 10.0), 1, float("inf")),
        (Pace(1000.0, None), 5000, 0.0),
    ],
)
def test_the_high_mark_is_as_near_as_the_conversation_grows(pace: Pace, left: int, seconds: float) -> None:
    assert pace.find_time(left) == seconds


@pytest.mark.parametrize(("takes", "expected"), [(25.0, False), (25.1, True)])
def test_where_the_cache_is_cold_it_is_begun_when_twice_its_time_is_left(takes: float, expected: bool) -> None:
    assert is_due(5000, STEADY, takes, is_warm=False) is expected


def test_while_the_cache_is_warm_there_is_no_better_time() -> None:
    assert is_due(1_000_000, STEADY, 0.1, is_warm=True)


def test_before_anybody_knows_how_near_it_is_it_counts_as_near() -> None:
    assert is_due(1_000_000, Pace(1.0, None), 0.1, is_warm=False)
