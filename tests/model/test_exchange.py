"""Records: immutable, and their weight follows the bytes they hold."""

import pytest

from proxy.model.exchange import ClientRequest, Outcome, Record, Round, Timings, Trailer, weigh
from proxy.model.manifest import keep_whole
from tests.support.engine import make_opening, make_reading

KILOBYTE = b"k" * 1024


def make_outcome(received: bytes) -> Outcome:
    return Outcome("x1", 0, 200, (), "complete", received, len(received), b"", Timings(1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (make_opening(body=keep_whole(b"")), make_opening(body=keep_whole(KILOBYTE))),
        (Round("x1", 0, "main", None), Round("x1", 0, "main", keep_whole(KILOBYTE))),
        (make_outcome(b""), make_outcome(KILOBYTE)),
        (Trailer("x1", 0, 0, b""), Trailer("x1", 0, 0, KILOBYTE)),
    ],
)
def test_a_record_weighs_at_least_what_it_holds_on_top_of_itself(small: Record, large: Record) -> None:
    assert weigh(small) > 0
    assert len(KILOBYTE) <= weigh(large) - weigh(small) <= len(KILOBYTE) + 128


def test_a_reading_has_a_weight_of_its_own() -> None:
    assert 0 < weigh(make_reading()) < 1024


@pytest.mark.parametrize("record", [make_opening(), make_outcome(b""), Round("x1", 0, "main", None), make_reading()])
def test_a_record_cannot_be_changed(record: Record) -> None:
    with pytest.raises(AttributeError):
        record.exchange = "x9"  # type: ignore[misc]


def test_a_request_without_a_body_has_an_empty_one() -> None:
    assert ClientRequest("GET", b"/v1/models", ()).body == b""
