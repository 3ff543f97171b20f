"""Rate limits as providers put them into their headers."""

import pytest

from proxy.wire.headers import Allowance, read_allowance, tells_limits

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def read(**fields: str) -> Allowance:
    return read_allowance(tuple((k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()), NOW_MS)


def test_as_openai_says_it() -> None:
    told = read(
        x_ratelimit_remaining_requests="59",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_reset_tokens="6m0.5s",
    )
    assert told == Allowance(149984, 59, 360.5, 1.0)


def test_as_anthropic_says_it() -> None:
    told = read(
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2023-11-14T22:13:30Z",
        anthropic_ratelimit_tokens_remaining="90000",
        anthropic_ratelimit_input_tokens_remaining="40000",
        anthropic_ratelimit_tokens_reset="2023-11-14T22:14:20Z",
    )
    assert told == Allowance(40000, 49, 60.0, 10.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20.0),
        ("0.5", 0.5),
        ("20ms", 0.02),
        ("1h2m3s", 3723.0),
        ("Tue, 14 Nov 2023 22:13:25 GMT", 5.0),
        ("2023-11-14T22:13:21", 1.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("1_0", None),
    ],
)
def test_when_to_ask_again(text: str, seconds: float | None) -> None:
    assert read(retry_after=text).retry_after == seconds


def test_milliseconds_are_more_exact() -> None:
    assert read(retry_after="2", retry_after_ms="1500").retry_after == 1.5


@pytest.mark.parametrize("text", ["1700000030", "1700000030000"])
def test_a_time_may_be_given_in_seconds_or_milliseconds_since_1970(text: str) -> None:
    assert read(x_ratelimit_remaining="0", x_ratelimit_reset=text) == Allowance(requests=0, requests_reset=30.0)


def test_what_is_no_number_says_nothing() -> None:
    assert read(x_ratelimit_remaining_tokens="lots", x_ratelimit_remaining_requests="1e9") == Allowance()


def test_only_what_tells_of_limits_is_to_be_read() -> None:
    assert tells_limits(((b"date", b"x"), (b"x-ratelimit-remaining-tokens", b"1")))
    assert tells_limits(((b"retry-after-ms", b"1"),))
    assert not tells_limits(((b"x-request-id", b"1"), (b"x-ratelimit-limit-tokens", b"1")))
