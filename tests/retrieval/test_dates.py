"""Dates: written out, stated by a text for itself, and relative to the time of the question."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.dates import convert_to_day, find_stated_time, list_date_terms, list_span_terms, list_spans

NOW = date(2023, 6, 9)  # a Friday


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("what did we do last week?", "2023-05-29", "2023-06-04"),
        ("this week", "2023-06-05", "2023-06-11"),
        ("what happened yesterday", "2023-06-08", "2023-06-08"),
        ("gestern abend", "2023-06-08", "2023-06-08"),
        ("vorgestern", "2023-06-07", "2023-06-07"),
        ("today", "2023-06-09", "2023-06-09"),
        ("three days ago", "2023-06-06", "2023-06-06"),
        ("vor drei Tagen", "2023-06-06", "2023-06-06"),
        ("il y a trois jours", "2023-06-06", "2023-06-06"),
        ("a couple of weeks ago", "2023-05-23", "2023-05-29"),
        ("2 years ago", "2020-12-09", "2021-12-08"),
        ("last month", "2023-05-01", "2023-05-31"),
        ("this month", "2023-06-01", "2023-06-30"),
        ("letztes Jahr", "2022-01-01", "2022-12-31"),
        ("this year", "2023-01-01", "2023-12-31"),
        ("last day", "2023-06-08", "2023-06-09"),
        ("la semana pasada", "2023-05-29", "2023-06-04"),
        ("last weekend", "2023-06-03", "2023-06-04"),
        ("on Monday", "2023-06-05", "2023-06-05"),
        ("last Friday", "2023-06-02", "2023-06-02"),
        ("in March", "2023-03-01", "2023-03-31"),
        ("in October", "2022-10-01", "2022-10-31"),
        ("in October", "2020-10-01", "2020-10-31"),
        ("on 7 May 2023", "2023-05-07", "2023-05-07"),
        ("May 7th, 2023", "2023-05-07", "2023-05-07"),
        ("2023/05/07", "2023-05-07", "2023-05-07"),
        ("December 2022", "2022-12-01", "2022-12-31"),
        ("am 3. Mai 2023", "2023-05-03", "2023-05-03"),
    ],
)
def test_a_time_is_resolved(text: str, first: str, last: str) -> None:
    assert (date.fromisoformat(first), date.fromisoformat(last)) in list(list_spans(text, NOW))


@pytest.mark.parametrize(
    "text", ["", "nothing may be here", "2023-13-45", "May 0000", "4000000 years", "999 years ago"]
)
def test_other_texts_name_no_time(text: str) -> None:
    spans = list(list_spans(text, date(1005, 1, 1)))
    assert spans == []


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("[1:56 pm on 8 May, 2023] Caroline: hi", "2023-05-08 13:56"),
        ("12:05 am on 8 May, 2023\nCaroline: hi", "2023-05-08 00:05"),
        ("[2023-05-08 13:56] x", "2023-05-08 13:56"),
        ("[Session date: 2023/05/20 (Sat) 02:21]", "2023-05-20 02:21"),
        ("Session 3 (8 May 2023): hello", "2023-05-08 00:00"),
        ("Date: May 8, 2023", "2023-05-08 00:00"),
        ("2023-05-08T13:56:00Z hello", "2023-05-08 13:56"),
        ("I went there on 2023-05-08", None),
        ("2023-99-99 x", None),
        ("", None),
    ],
)
def test_a_text_may_state_its_time(text: str, stated: str | None) -> None:
    found = find_stated_time(text)
    assert stated == (None if found is None else f"{datetime.fromtimestamp(found / 1000, UTC):%Y-%m-%d %H:%M}")


def test_a_span_is_days_or_months() -> None:
    assert list_span_terms((date(2023, 5, 30), date(2023, 6, 1))) == ("@2023-05-30", "@2023-05-31", "@2023-06-01")
    assert list_span_terms((date(2023, 2, 1), date(2023, 2, 28))) == ("@2023-02",)
    year = list_span_terms((date(2022, 1, 1), date(2022, 12, 31)))
    assert sorted(year) == [f"@2022-{month:02}" for month in range(1, 13)]


def test_a_passage_has_day_and_month() -> None:
    assert list_date_terms(1_683_550_560_000) == ("@2023-05-08", "@2023-05")
    assert convert_to_day(10**30) == date(1970, 1, 1)


_WORDS = st.sampled_from(["last", "week", "May", "0001", "9999", "3", "days", "ago", "on", "Monday", "yesterday", "31"])


@given(st.text(max_size=100) | st.lists(_WORDS | st.text(max_size=3), max_size=9).map(" ".join), st.dates())
def test_no_text_raises(text: str, now: date) -> None:
    for span in list_spans(text, now):
        assert list_span_terms(span)
    find_stated_time(text)


@pytest.mark.parametrize("now", [date.min, date.max, date(1, 1, 5), date(9999, 12, 30)])
@pytest.mark.parametrize(
    "text",
    [
        "last week",
        "last month",
        "last year",
        "last weekend",
        "yesterday",
        "vorgestern",
        "on Monday",
        "in March",
        "in May",
        "this week",
        "3 days ago",
        "December 9999",
        "May 0001",
    ],
)
def test_at_the_ends_of_the_calendar_no_time_is_named(text: str, now: date) -> None:
    assert list(list_spans(text, now)) == []
