"""The caps of the way in, as the documents name them."""

import dataclasses

import pytest

from proxy.server.policy import ServerPolicy


def test_the_caps_are_those_the_documents_name() -> None:
    policy = ServerPolicy()
    assert (policy.host, policy.port, policy.max_body_bytes) == ("127.0.0.1", 8484, 64 * 1024 * 1024)
    assert (policy.max_header_bytes, policy.header_timeout, policy.body_timeout) == (65_536, 30.0, 60.0)
    assert (policy.stall_timeout, policy.drain_seconds, policy.allowed_hosts) == (600.0, 30.0, ())


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerPolicy().port = 1  # type: ignore[misc]
