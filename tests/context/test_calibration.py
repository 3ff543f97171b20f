"""What is learned of a cache from reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.calibration import Calibration, learn_read, learn_seconds, learn_survival

NEW = Calibration()
reports = st.lists(st.tuples(st.integers(-5, 10**6), st.none() | st.integers(-5, 10**6)), max_size=50)


def test_what_was_not_reported_teaches_nothing() -> None:
    assert learn_read(NEW, 1000, None) is NEW
    assert learn_survival(NEW, 1000, None) is NEW
    assert learn_seconds(NEW, 10_000, None, 1.0) is NEW


def test_where_nothing_should_have_been_read_nothing_is_learned() -> None:
    assert learn_read(NEW, 0, 500) is NEW
    assert learn_survival(NEW, 0, 500) is NEW


def test_a_report_of_nothing_read_is_a_report() -> None:
    assert learn_read(NEW, 1000, 0).read == pytest.approx(0.8)
    assert learn_survival(NEW, 1000, 0).survival == 0.0


def test_a_share_follows_the_reports_by_a_fifth_each() -> None:
    once = learn_read(NEW, 1000, 500)
    assert once.read == pytest.approx(0.9)
    assert learn_read(once, 1000, 500).read == pytest.approx(0.82)


def test_the_first_report_of_what_survives_an_epoch_counts_whole() -> None:
    once = learn_survival(NEW, 1000, 500)
    assert once.survival == 0.5
    assert learn_survival(once, 1000, 1000).survival == pytest.approx(0.6)


def test_more_than_all_is_all() -> None:
    assert learn_read(NEW, 1000, 5000).read == 1.0
    assert learn_survival(NEW, 1000, 5000).survival == 1.0


def test_seconds_are_learned_of_requests_that_were_cached_hardly_or_nearly_whole() -> None:
    fresh = learn_seconds(NEW, 10_000, 1000, 9.0)
    assert (fresh.fresh_seconds, fresh.cached_seconds) == (0.001, None)
    assert learn_seconds(fresh, 10_000, 5000, 10.0) is fresh
    both = learn_seconds(fresh, 10_000, 9000, 1.9)  # 1000 uncached ones took one second
    assert both.cached_seconds == pytest.approx(0.0001)
    assert both.cached_ratio == pytest.approx(0.1)
    assert learn_seconds(both, 10_000, 0, 20.0).fresh_seconds == pytest.approx(0.0012)
    assert learn_seconds(fresh, 10_000, 9000, 0.5).cached_seconds == 0.0  # less than the rest alone should take


def test_short_requests_and_clocks_that_went_back_tell_no_seconds() -> None:
    assert learn_seconds(NEW, 4095, 0, 1.0) is NEW
    assert learn_seconds(NEW, 10_000, 0, -1.0) is NEW
    assert learn_seconds(NEW, 4096, 0, 4.096).fresh_seconds == pytest.approx(0.001)


def test_what_cached_tokens_take_is_nothing_until_measured_and_no_more_than_uncached_ones() -> None:
    assert learn_seconds(NEW, 10_000, 9500, 1.0) is NEW
    ratios = [
        Calibration(fresh_seconds=fresh, cached_seconds=cached).cached_ratio
        for fresh, cached in ((None, None), (1.0, None), (0.0, 1.0), (1.0, 0.25), (1.0, 3.0))
    ]
    assert ratios == [0.0, 0.0, 0.0, 0.25, 1.0]


@given(reports)
def test_shares_stay_shares(seen: list[tuple[int, int | None]]) -> None:
    learned = NEW
    for expected, cached in seen:
        learned = learn_survival(learn_read(learned, expected, cached), expected, cached)
    assert 0.0 <= learned.read <= 1.0
    assert learned.survival is None or 0.0 <= learned.survival <= 1.0
