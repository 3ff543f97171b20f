"""Managing put together: whoever decides what is sent shares one memory, and learns from answers."""

from proxy.engine.policy import Provider
from proxy.engine.runtime import EventBus, TaskRunner
from proxy.model.events import AnswerRead
from tests.support.engine import FakeArchive, FixedClock
from tests.support.managed import ManagedEngine
from tests.support.managing import make_history, make_steward


async def test_all_parts_share_one_memory_and_know_the_upstreams() -> None:
    tasks = TaskRunner()
    bus, provider = EventBus(tasks), Provider(summary_role="assistant")
    steward = make_steward(FakeArchive(), bus, FixedClock(), tasks, provider=provider)
    memory = steward.states.caches
    assert (steward.chain._contexts, steward.chain._histories) == (memory.contexts, memory.histories)
    assert steward.chain._planner._providers["main"] is steward.chain._rewriter._providers["main"] is provider
    assert bus._by_type[AnswerRead] == [steward._accounting._calibrator.note_answer]


async def test_wired_over_fakes_a_long_history_is_sent_as_an_epoch() -> None:
    turn = await ManagedEngine().send(make_history(22, 1600))
    assert (turn.plan.rung, len(turn.sent) < len(turn.body) / 2) == ("plan", True)
