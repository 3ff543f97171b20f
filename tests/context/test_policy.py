"""What may be taken out of a context."""

import dataclasses

import pytest

from proxy.context.policy import BuilderPolicy


def test_the_defaults_are_those_the_documents_name() -> None:
    policy = BuilderPolicy()
    assert (policy.is_pruning, policy.protect_tokens, policy.minimum_tokens) == (True, 40_000, 20_000)
    assert (policy.protected_tools, policy.inline_tokens, policy.has_outlines) == (("skill",), 10_000, True)
    assert policy.protect_turns == 2


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BuilderPolicy().inline_tokens = 1  # type: ignore[misc]
