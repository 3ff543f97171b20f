"""Errors: each says which HTTP answer it is and carries a stable name."""

from proxy.model.errors import (
    UpstreamUnreachable,
)


def test_a_silent_upstream_does_not_change_what_a_broken_one_is() -> None:
    UpstreamUnreachable("silent", was_silent=True)
    assert UpstreamUnreachable("broken").status == 502
