"""Managing put together: whoever decides what is sent shares one memory, and knows the upstreams."""

from proxy.engine.policy import Provider
from tests.support.managed import ManagedEngine
from tests.support.managing import make_history


async def test_all_parts_share_one_memory_and_know_the_upstreams() -> None:
    engine = ManagedEngine(provider=Provider(summary_role="assistant"))
    opened, kept = await engine.send(make_history(22, 1600)), await engine.send(make_history(23, 1600))
    assert (opened.plan.rung, kept.plan.rung, kept.plan.epoch) == ("plan", "epoch", opened.exchange)
    for turn in (opened, kept):
        assert [each["role"] for each in turn.messages if "palimpsest ledger" in str(each)] == ["assistant"]


async def test_wired_over_fakes_a_long_history_is_sent_as_an_epoch() -> None:
    turn = await ManagedEngine().send(make_history(22, 1600))
    assert (turn.plan.rung, len(turn.sent) < len(turn.body) / 2) == ("plan", True)
