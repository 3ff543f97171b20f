"""Records are immutable."""

import pytest
from msgspec.structs import replace

from proxy.model.exchange import ClientRequest, Outcome, Round, Timings
from proxy.model.log import Record
from proxy.model.manifest import Manifest, make_manifest
from tests.support.engine import make_opening, make_reading


def make_outcome() -> Outcome:
    return Outcome("x1", 0, 200, (), "complete", b"", 0, b"", Timings(1.0, 2.0, 3.0))


@pytest.mark.parametrize("record", [make_opening(), make_outcome(), Round("x1", 0, "main", None), make_reading()])
def test_a_record_cannot_be_changed(record: Record) -> None:
    with pytest.raises(AttributeError):
        record.exchange = "x9"  # type: ignore[misc,union-attr]


def test_a_request_without_a_body_has_an_empty_one() -> None:
    assert ClientRequest("GET", b"/v1/models", ()).body == b""


def test_a_record_without_its_content_has_the_size_of_a_long_body_and_all_of_a_short_one() -> None:
    short = make_opening()
    assert short.leave_content() is short
    body = make_manifest(b"x" * 20_000)
    assert replace(short, body=body).leave_content().body == Manifest(b"", (), (), 20_000)
