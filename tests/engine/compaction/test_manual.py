"""A person asks for a summary of a session, and has it sent in short."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.policy import Provider
from proxy.model.card import LimitKey
from proxy.model.errors import Conflict
from proxy.model.events import EpochOpened
from proxy.model.messages import LEDGER_HEAD
from tests.support.compacting import REPORT, Workshop, fail, give_report, in_time, list_reports, say
from tests.support.engine import ScriptedResponse
from tests.support.leases import MemoryLeases
from tests.support.managing import make_history
from tests.support.manual_compaction import STEPS, carry, compact, go_on, load_newest, make_manual_compaction


@pytest.fixture
async def shop() -> Workshop:
    """A budget of which the sessions here take a twentieth: nothing is done of our own accord."""
    return Workshop(ceiling=100_000)


async def test_a_session_far_below_the_soft_mark_is_sent_in_short_from_its_next_call_on(shop: Workshop) -> None:
    history = await carry(shop)
    found = await compact(shop)
    (summary,) = found.summaries
    assert (summary.level, summary.kind, summary.start, summary.exchange) == (1, "leaf", 0, "")
    assert summary.stop == 1 + 2 * (STEPS - 3)  # the newest three groups of calls stay
    assert found.epoch is not None
    assert (found.epoch.why, found.epoch.exchange, found.epoch.parent) == ("manual", "", "")
    assert found.epoch.tokens_after < found.epoch.tokens_before == found.tokens
    assert (found.calls, found.reason) == (summary.calls, "")
    assert found.cost > 0
    sent, labels = await go_on(shop, history)
    assert len(list_reports(sent)) == 1
    assert any(LEDGER_HEAD in str(message["content"]) for message in sent)
    assert sent[-8:-2] == history[-6:]
    assert labels[b"x-palimpsest-epoch"].decode() == found.epoch.id
    compacted = f"compacted {found.epoch.tokens_before}->{found.epoch.tokens_after}"
    assert labels[b"x-palimpsest-notice"].decode() == compacted


async def test_the_client_is_told_once_and_the_prefix_stays(shop: Workshop) -> None:
    history = await carry(shop)
    await compact(shop)
    first, _ = await go_on(shop, history)
    second, labels = await go_on(shop, make_history(STEPS + 1, 1200))
    assert second[: len(first)] == first
    assert b"x-palimpsest-notice" not in labels


async def test_the_client_is_told_also_where_the_proxy_was_restarted_in_between(shop: Workshop) -> None:
    history = await carry(shop)
    found = await compact(shop)
    assert found.epoch is not None
    again = Workshop(ceiling=100_000, after=shop)
    _, labels = await go_on(again, history)
    compacted = f"compacted {found.epoch.tokens_before}->{found.epoch.tokens_after}"
    assert labels[b"x-palimpsest-notice"].decode() == compacted
    _, labels = await go_on(Workshop(ceiling=100_000, after=again), make_history(STEPS + 1, 1200))
    assert b"x-palimpsest-notice" not in labels


async def test_the_first_call_under_it_is_booked_as_one_that_broke_the_cache(shop: Workshop) -> None:
    history = await carry(shop)
    found = await compact(shop)
    assert found.epoch is not None
    await go_on(shop, history)
    account = shop.context.get_account(
        "gpt-4o", found.epoch.id, shop.controller.states.models.budget(LimitKey("main", "gpt-4o"))
    )
    assert account.account.owed == 0
    assert shop.context.unsent == set()


async def test_the_same_history_goes_out_as_it_did(shop: Workshop) -> None:
    history = await carry(shop)
    await compact(shop)
    assert await shop.ask(history) == history


async def test_models_are_asked_on_the_prefix_that_was_sent_last(shop: Workshop) -> None:
    await carry(shop)
    await compact(shop)
    sent, asked = shop.model.sent[-1], shop.model.asked[-1]
    assert asked.startswith(sent[: sent.rindex(b"]")])


async def test_it_is_told_on_the_bus(shop: Workshop) -> None:
    await carry(shop)
    found = await compact(shop)
    (opened,) = [event for event in shop.events if isinstance(event, EpochOpened)]
    assert found.epoch is not None
    assert (opened.epoch.id, opened.epoch.why, opened.epoch.exchange) == (found.epoch.id, "manual", "")


async def test_a_second_one_covers_what_came_since(shop: Workshop) -> None:
    history = await carry(shop)
    first = await compact(shop)
    for steps in range(STEPS + 1, STEPS + 4):
        history = make_history(steps, 1200)
        await shop.ask(history)
    second = await compact(shop)
    assert first.epoch is not None
    assert second.epoch is not None
    assert second.epoch.parent == first.epoch.id
    sent_last, asked = shop.model.sent[-1], shop.model.asked[-1]
    assert asked.startswith(sent_last[: sent_last.rindex(b"]")])
    assert [(each.start, each.stop) for each in second.summaries] == [(19, 25)]
    sent, _ = await go_on(shop, history)
    assert len(list_reports(sent)) == 2


async def test_a_revert_takes_it_back(shop: Workshop) -> None:
    history = await carry(shop)
    await compact(shop)
    care = EpochAdmin(shop.controller.states, shop.log, shop.gate, shop.bus, shop.ids)
    await care.revert(shop.session, 1)
    sent, labels = await go_on(shop, history)
    assert sent[: len(history)] == history
    assert b"x-palimpsest-notice" not in labels
    found = await compact(shop)
    assert found.epoch is not None
    assert (await go_on(shop, make_history(STEPS + 1, 1200)))[0] != make_history(STEPS + 2, 1200)
    assert (await shop.log.verify()).faults == ()


async def test_after_a_restart_nobody_is_asked_and_the_epoch_opens_all_the_same(shop: Workshop) -> None:
    history = await carry(shop)
    await shop.settle()
    again = Workshop(ceiling=100_000, after=shop)
    found = await compact(again)
    assert [(each.level, each.is_provisional) for each in found.summaries] == [(3, True)]
    assert found.reason.startswith("no model was asked: no call of this session was accepted")
    assert (found.calls, found.cost) == ((), 0)
    sent, labels = await go_on(again, history)
    assert found.epoch is not None
    assert labels[b"x-palimpsest-epoch"].decode() == found.epoch.id
    assert list_reports(sent) == []


async def test_after_a_restart_an_upstream_with_a_key_of_ours_is_asked() -> None:
    provider = Provider(has_own_key=True)
    shop = Workshop(ceiling=100_000, provider=provider)
    await shop.ask(make_history(STEPS, 1200), ((b"authorization", b"Bearer sk-client"),))
    again = Workshop(ceiling=100_000, after=shop, provider=provider)
    found = await compact(again)
    assert [(each.level, each.reason) for each in found.summaries] == [(1, "")]
    (call,) = again.model.calls
    assert call.headers[0] == (b"x-session-id", b"s")


async def test_a_better_one_is_made_when_a_model_can_be_asked_again(shop: Workshop) -> None:
    await carry(shop)
    lesser = await compact(shop, level=3)
    shop.context.add_summary(replace(lesser.summaries[0], is_provisional=True))
    longer = "".join(f"- Point {n} of what was done, and why it was done so.\n" for n in range(12))
    shop.model.summarise = lambda body: say(f"{REPORT}{longer}", sent=len(body) // 4)
    better = await compact(shop)
    assert [(each.level, each.supersedes) for each in better.summaries] == [(1, (lesser.summaries[0].id,))]
    assert better.epoch is None  # for it would add to what is sent
    assert lesser.epoch is not None
    assert better.tokens == lesser.epoch.tokens_after
    assert better.reason == "no epoch was opened: the request would get no shorter; the next epoch shows the summary"


async def test_what_no_model_makes_better_stays_and_the_epoch_stays_too(shop: Workshop) -> None:
    await carry(shop)
    shop.model.summarise = fail
    first = await compact(shop)
    assert [each.level for each in first.summaries] == [3]
    assert "broken" in first.reason
    with pytest.raises(Conflict, match=r"there is nothing to compact: .*failed lately"):
        await compact(shop)
    assert [each.id for each in shop.summaries] == [first.summaries[0].id]


async def test_with_what_is_new_a_lesser_one_is_made_again(shop: Workshop) -> None:
    await carry(shop)
    shop.model.summarise = fail
    lesser = await compact(shop)
    shop.model.summarise = give_report
    shop.clock.advance(3600)
    await shop.ask(history := make_history(STEPS + 3, 1200))
    found = await compact(shop)
    assert [(each.start, each.stop, each.level) for each in found.summaries] == [(19, 25, 1), (0, 19, 1)]
    assert found.summaries[1].supersedes == (lesser.summaries[0].id,)
    assert len(list_reports((await go_on(shop, history))[0])) == 2


async def test_no_model_is_asked_where_the_lowest_level_is_manual(shop: Workshop) -> None:
    await carry(shop)
    found = await compact(shop, level=3)
    assert [(each.level, each.is_provisional) for each in found.summaries] == [(3, False)]
    assert (shop.model.asked, found.reason) == ([], "")
    with pytest.raises(Conflict):
        await compact(shop, level=3)


async def test_a_level_that_is_manual_is_the_first(shop: Workshop) -> None:
    short = "GOAL: mend the tests\nCONSTRAINTS: none\nFILES: none\nNEXT: the other parts\nCONTEXT: none\n"
    shop.model.summarise = lambda body: say(short, sent=len(body) // 4)
    await carry(shop)
    found = await compact(shop, level=2)
    assert [(each.level, each.is_provisional) for each in found.summaries] == [(2, False)], found.reason
    assert len(shop.model.asked) == 1


async def test_another_model_and_another_instruction_are_for_once(shop: Workshop) -> None:
    await carry(shop)
    found = await compact(shop, model="small", prompt="Say where we stand, in German.")
    (asked,) = shop.model.asked
    assert json.loads(asked)["model"] == "small"
    assert b"in German" in asked
    assert found.summaries[0].model == "small"
    for steps in range(STEPS + 1, STEPS + 4):
        await shop.ask(make_history(steps, 1200))
    await compact(shop)
    assert json.loads(shop.model.asked[-1])["model"] == "gpt-4o"
    assert b"in German" not in shop.model.asked[-1]


async def test_a_person_may_spend_more_than_the_share_of_a_session_but_not_of_a_day() -> None:
    shop = Workshop(ceiling=100_000, policy=CompactionPolicy(spend_fraction=0.0))
    await carry(shop)
    assert [each.level for each in (await compact(shop)).summaries] == [1]
    shop = Workshop(ceiling=100_000, policy=CompactionPolicy(spend_per_day=0.01))
    await carry(shop)
    found = await compact(shop)
    assert [each.level for each in found.summaries] == [3]
    assert "spend_per_day" in found.reason
    assert found.epoch is not None


async def test_a_long_conversation_is_reported_piece_by_piece_and_merged() -> None:
    shop = Workshop(ceiling=100_000, window=12_000)
    await carry(shop, 60)
    found = await compact(shop)
    leaves = [each for each in found.summaries if each.kind == "leaf"]
    assert len(leaves) > 1
    assert [each.start for each in leaves[1:]] == [each.stop for each in leaves[:-1]]
    assert leaves[-1].stop == 1 + 2 * 57
    assert len(found.calls) == len(found.summaries)


async def test_what_is_being_made_is_waited_for() -> None:
    shop = Workshop()
    held = asyncio.Event()
    slow = ScriptedResponse(ending="open")

    def wait(body: bytes) -> ScriptedResponse:
        held.set()
        return slow

    shop.model.summarise = wait
    await shop.call(make_history(18, 1200))
    await in_time(held.wait())
    asked = asyncio.create_task(make_manual_compaction(shop).compact(shop.session, ManualOptions()))
    for _ in range(10):  # it reads the log before it waits
        await shop.log.list_sessions()
    assert not asked.done()
    shop.model.summarise = give_report
    slow.feed(b"{}", ending="last")
    found = await in_time(asked)
    assert "was being made, and was waited for" in found.reason
    await shop.settle()


async def test_one_at_a_time(shop: Workshop) -> None:
    await carry(shop)
    shop.model.summarise = lambda body: None
    first = asyncio.create_task(shop.worker.compact(await load_newest(shop), ManualOptions()))
    await in_time(shop.model.was_asked.wait())
    with pytest.raises(Conflict, match="is being made"):
        await shop.worker.compact(await load_newest(shop), ManualOptions())
    shop.tasks.cancel()
    made = await in_time(first)
    assert made.summaries == []
    await shop.settle()
    assert await shop.leases.acquire(shop.worker.schedule.name_lease(await load_newest(shop)), "another", 1.0)
    with pytest.raises(Conflict, match="is being made"):
        await compact(shop)


async def test_a_local_servers_next_call_does_not_stop_what_a_person_waits_for(shop: Workshop) -> None:
    await carry(shop)
    shop.model.summarise = lambda body: None
    asked = asyncio.create_task(shop.worker.compact(await load_newest(shop), ManualOptions()))
    await in_time(shop.model.was_asked.wait())
    shop.jobs.note_arrival("main", "y1")
    await asyncio.sleep(0)
    assert not asked.done()
    shop.tasks.cancel()
    await in_time(asked)


async def test_a_fault_of_ours_is_told_and_the_epoch_opens(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    await carry(shop)

    async def draft(*args: Any, **options: Any) -> None:
        raise RuntimeError("a bug")

    shop.summarizer.summarize = draft  # type: ignore[method-assign]
    found = await compact(shop)
    assert found.epoch is not None
    assert found.reason.startswith("RuntimeError: a bug")
    assert "a summary could not be made" in caplog.text


class LostLeases(MemoryLeases):
    """Another process takes over as soon as one is held."""

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        return False


async def test_where_another_process_has_taken_over_no_summary_is_made_and_that_is_told(shop: Workshop) -> None:
    await carry(shop)
    shop.jobs.leases = LostLeases(shop.clock)
    found = await compact(shop)
    assert (found.summaries, shop.model.asked) == ((), [])
    assert "another process has taken over" in found.reason
