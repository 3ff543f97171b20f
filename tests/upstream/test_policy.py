"""How an upstream is reached."""

import dataclasses

import pytest

from proxy.upstream.policy import UpstreamPolicy


def test_the_limits_are_those_the_documents_name() -> None:
    policy = UpstreamPolicy("u", base_url="https://example.com/v1")
    assert (policy.connect_timeout, policy.idle_timeout) == (10.0, 600.0)
    assert (policy.api_key, policy.auth, policy.models) == ("", "bearer", ())


def test_a_policy_cannot_be_changed() -> None:
    policy = UpstreamPolicy("u", base_url="https://example.com/v1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.api_key = "other"  # type: ignore[misc]
