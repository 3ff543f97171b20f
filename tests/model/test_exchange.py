"""Records are immutable."""

import pytest

from proxy.model.exchange import ClientRequest, Outcome, Round, Timings
from proxy.model.log import Record
from tests.support.engine import make_opening, make_reading


def make_outcome() -> Outcome:
    return Outcome("x1", 0, 200, (), "complete", b"", 0, b"", Timings(1.0, 2.0, 3.0))


@pytest.mark.parametrize("record", [make_opening(), make_outcome(), Round("x1", 0, "main", None), make_reading()])
def test_a_record_cannot_be_changed(record: Record) -> None:
    with pytest.raises(AttributeError):
        record.exchange = "x9"  # type: ignore[misc,union-attr]


def test_a_request_without_a_body_has_an_empty_one() -> None:
    assert ClientRequest("GET", b"/v1/models", ()).body == b""
