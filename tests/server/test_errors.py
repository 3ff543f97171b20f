"""Our own errors: one JSON shape, recognisable as ours."""

import json

import pytest

from proxy.model.errors import BadRequest, ProxyError, StoreUnavailable, TooLarge, UpstreamUnreachable
from proxy.server.errors import Refused, render_body, render_error, render_plain


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequest("why"), 400, "bad_request"),
        (TooLarge("why"), 413, "too_large"),
        (UpstreamUnreachable("why"), 502, "upstream_unreachable"),
        (UpstreamUnreachable("why", was_silent=True), 504, "upstream_silent"),
        (StoreUnavailable("why"), 503, "store_unavailable"),
        (Refused(426, "upgrade_required", "why"), 426, "upgrade_required"),
    ],
)
def test_an_error_is_json_that_both_kinds_of_sdk_read(error: ProxyError, status: int, code: str) -> None:
    got, headers, body = render_error(error)
    fields = dict(headers)
    assert got == status
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"content-length"] == b"%d" % len(body)
    assert fields[b"x-palimpsest-error"] == b"true"
    assert json.loads(body) == {
        "type": "error",
        "error": {"message": "palimpsest: why", "type": "palimpsest_error", "param": None, "code": code},
    }


def test_text_from_outside_stays_text() -> None:
    message = 'a "quoted" \u2028 line\r\nx: 1'
    assert json.loads(render_body("c", message))["error"]["message"] == f"palimpsest: {message}"


def test_a_whole_answer_closes_the_connection() -> None:
    head, _, body = render_plain(431, "headers_too_large", "why").partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    assert line == b"HTTP/1.1 431 Request Header Fields Too Large"
    assert b"content-length: %d" % len(body) in fields
    assert b"connection: close" in fields
    assert json.loads(body)["error"]["code"] == "headers_too_large"
