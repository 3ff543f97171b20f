"""The defaults of every exchange are those that the documents promise."""

import dataclasses

import pytest

from proxy.engine.policy import EnginePolicy


def test_defaults_hold_the_promises_of_the_documents() -> None:
    policy = EnginePolicy()
    assert (policy.mode, policy.commit_wait_ms, policy.on_failure) == ("manage", 250, "forward")


def test_a_policy_cannot_be_changed_while_calls_run() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EnginePolicy().mode = "bypass"  # type: ignore[misc]
