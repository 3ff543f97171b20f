"""What a person may decide of summaries."""

from proxy.engine.compaction.policy import CompactionPolicy


def test_nothing_costs_money_that_nobody_allowed() -> None:
    policy = CompactionPolicy()
    assert (policy.spend_fraction, policy.subscription_calls, policy.may_receive) == (0.05, False, ())
