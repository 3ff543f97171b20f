"""Errors: each says which HTTP answer it is and carries a stable name."""

import pytest

from proxy.model.errors import (
    BadRequest,
    Conflict,
    NotFound,
    ProxyError,
    StoreUnavailable,
    TooLarge,
    UpstreamUnreachable,
)

ANSWERS = [
    (ProxyError("x"), 500, "proxy_error"),
    (BadRequest("x"), 400, "bad_request"),
    (NotFound("x"), 404, "not_found"),
    (Conflict("x"), 409, "conflict"),
    (TooLarge("x"), 413, "too_large"),
    (UpstreamUnreachable("x"), 502, "upstream_unreachable"),
    (UpstreamUnreachable("x", was_silent=True), 504, "upstream_silent"),
    (StoreUnavailable("x"), 503, "store_unavailable"),
]


@pytest.mark.parametrize(("error", "status", "code"), ANSWERS)
def test_every_error_names_its_answer_and_keeps_its_text(error: ProxyError, status: int, code: str) -> None:
    assert isinstance(error, ProxyError)
    assert (error.status, error.code, str(error)) == (status, code, "x")


def test_a_silent_upstream_does_not_change_what_a_broken_one_is() -> None:
    UpstreamUnreachable("silent", was_silent=True)
    assert UpstreamUnreachable("broken").status == 502
