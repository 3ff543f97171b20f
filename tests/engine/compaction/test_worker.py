"""What becomes of a branch above its soft mark: one at a time, under a lease, in the log before it is used."""

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.context.epoch_decision import REPORTING
from proxy.engine.compaction.job import SentRequest
from proxy.engine.policy import Provider
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Summary
from proxy.model.events import (
    CompactionCompletedEvent,
    CompactionFailedEvent,
    CompactionTriggeredEvent,
    Planned,
    SummaryAddedEvent,
    SummaryWasted,
)
from proxy.model.exchange import Opening, Usage
from proxy.model.messages import LEDGER_HEAD
from tests.support.compacting import FREE, Workshop, fail, give_report, in_time, is_own, list_reports, record_usage, say
from tests.support.managing import MODEL, Message, make_history

HISTORY = make_history(80, 1200)
FIRST, SOFT, HARD = 13, 17, 23
PAUSE = 60.0  # seconds after which a model that failed is asked again
APART = replace(FREE, condensation=False)


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def reach(shop: Workshop, steps: int, start: int = 1) -> None:
    for each in range(start, steps + 1):
        await shop.ask(until(each))


async def test_a_summary_is_in_the_log_and_told_of() -> None:
    shop = Workshop()
    await reach(shop, SOFT)
    (summary,) = shop.summaries
    assert shop.context.list_summaries((await shop.read_state(until(SOFT))).nodes, MODEL) == [summary]
    told = [event for event in shop.events if isinstance(event, SummaryAddedEvent)]
    assert told == [
        SummaryAddedEvent(
            session=shop.session,
            exchange=summary.exchange,
            summary=summary.id,
            kind="leaf",
            level=1,
            covered=summary.covered,
            tokens=summary.tokens,
        )
    ]
    assert (await shop.log.verify()).faults == ()


async def test_the_making_of_a_summary_is_told_from_its_beginning_to_its_end() -> None:
    shop = Workshop()
    await reach(shop, SOFT)
    (summary,) = shop.summaries
    began, ended = list_told(shop)
    named: dict[str, Any] = {"session": shop.session, "exchange": summary.exchange, "is_manual": False}
    named |= {"messages": summary.stop - summary.start}
    assert began == CompactionTriggeredEvent(**named, tokens=summary.covered)
    sizes = {"tokens_before": summary.covered, "tokens_after": summary.tokens, "elapsed_ms": ended.elapsed_ms}
    assert ended == CompactionCompletedEvent(**named, **sizes, summary=summary.id, level=1, reason="")


def list_told(shop: Workshop) -> list[Any]:
    """What was told of the making of summaries."""
    kinds = CompactionTriggeredEvent | CompactionCompletedEvent | CompactionFailedEvent
    return [event for event in shop.events if isinstance(event, kinds)]


async def test_the_next_epoch_shows_it_before_the_ledger_of_its_place() -> None:
    shop = Workshop()
    await reach(shop, SOFT)
    (summary,) = shop.summaries
    sent = await shop.ask(until(HARD))
    assert len(shop.epochs) == 1
    texts = [str(each["content"]) for each in sent]
    at = texts.index(summary.text)
    assert sent[at]["role"] == "user"
    assert texts[at + 1].startswith(f"[{LEDGER_HEAD}")
    assert f"ref:{summary.id}" in texts[at]


async def test_within_an_epoch_its_bytes_stay_whatever_is_made_meanwhile() -> None:
    shop = Workshop(policy=APART)
    await reach(shop, 60)
    assert len(shop.epochs) > 2
    assert len(shop.summaries) > 2
    opened = {epoch.exchange for epoch in shop.epochs}
    for number, (before, now) in enumerate(zip(shop.model.sent, shop.model.sent[1:], strict=False), 2):
        mains = [opening.exchange for opening in shop.log.of(Opening) if opening.kind == "managed"]
        if mains[number - 1] not in opened:
            assert now.startswith(before[:-2])


async def test_nothing_else_is_made_for_a_session_while_something_is() -> None:
    shop = Workshop(lambda body: None)
    await reach_without_end(shop, SOFT)
    await shop.call(until(SOFT + 1))
    assert len(shop.model.asked) == 1
    await stop(shop)


async def reach_without_end(shop: Workshop, steps: int) -> None:
    """Up to where a summary is asked for that never comes."""
    for each in (*range(1, 4), steps):
        await shop.call(until(each))
    await in_time(shop.model.was_asked.wait())


async def stop(shop: Workshop) -> None:
    shop.jobs.note_arrival("main", "y1")
    await shop.settle()


async def test_what_is_stopped_leaves_its_lease_and_its_place() -> None:
    shop = Workshop(lambda body: None)
    await reach_without_end(shop, SOFT)
    shop.jobs.note_arrival("other", "y1")
    assert len(shop.jobs) == 1
    await stop(shop)
    assert (len(shop.jobs), shop.leases.held) == (0, {})
    assert shop.summaries == []
    began, ended = list_told(shop)
    assert (type(began), ended.error[:14]) == (CompactionTriggeredEvent, "it was stopped")
    shop.model.summarise = give_report
    await shop.ask(until(SOFT + 1))
    assert len(shop.summaries) == 1


async def test_a_call_on_a_local_server_has_the_way() -> None:
    shop = Workshop(lambda body: None, replace(FREE, model="small"), provider=Provider(cache="local"))
    for each in (*range(1, 4), SOFT):
        await shop.call(until(each))
    record_usage(shop.summarizer.health.budget, shop.session, Usage(10_000, 0))  # time for what was not read before
    for later in tuple(shop.later):
        later()
    await in_time(shop.model.was_asked.wait())
    await shop.ask([{"role": "user", "content": "Hi."}], ((b"x-palimpsest-mode", b"observe"),))
    assert len(shop.jobs) == 0


async def test_who_else_has_the_lease_does_it() -> None:
    shop = Workshop()
    await reach(shop, 3)
    lease = f"summaries/{shop.session}/{(await shop.read_state(until(3))).nodes[0].hex()}"
    assert await shop.leases.acquire(lease, "another", 60.0)
    await shop.ask(until(SOFT))
    assert shop.model.asked == []
    await shop.leases.release(lease, "another")
    await shop.ask(until(SOFT + 1))
    assert len(shop.summaries) == 1
    assert shop.leases.held == {}


async def test_a_call_above_the_high_mark_waits_for_what_is_being_made_and_uses_it() -> None:
    shop = Workshop()
    written = asyncio.Event()
    send = shop.model.send

    async def think(*args: Any) -> Any:
        if is_own(args[3]):
            shop.model.was_asked.set()
            await written.wait()
        return await send(*args)

    shop.model.send = think  # type: ignore[assignment, method-assign]
    await reach_without_end(shop, SOFT)
    waiting, wait = asyncio.Event(), shop.worker.wait

    async def note_and_wait(request: ManagedRequest) -> None:
        waiting.set()
        await wait(request)

    shop.worker.wait = note_and_wait  # type: ignore[method-assign]
    call = asyncio.create_task(shop.call(until(HARD)))
    await in_time(waiting.wait())
    assert len(shop.model.sent) == 4
    written.set()
    await in_time(call)
    assert list_reports(json.loads(shop.model.sent[-1])["messages"])
    await shop.settle()


async def test_it_waits_no_longer_than_it_is_to(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    shop = Workshop(lambda body: None, replace(FREE, hard_wait_seconds=1.5))
    await reach_without_end(shop, SOFT)
    wait = asyncio.wait

    async def give_up(tasks: Any, **options: Any) -> Any:
        if options.get("timeout") == 0.75 * 1.5:  # the plan has the rest
            waited.append(options["timeout"])
            return set(), set(tasks)
        return await wait(tasks, **options)

    monkeypatch.setattr("proxy.engine.compaction.worker.asyncio.wait", give_up)
    await shop.call(until(SOFT + 1))
    assert waited == []
    await in_time(shop.call(until(HARD)))
    assert waited == [0.75 * 1.5]
    assert len(shop.epochs) == 1
    await stop(shop)


async def test_it_can_be_had_without_waiting() -> None:
    shop = Workshop(lambda body: None, replace(FREE, hard_wait_seconds=0.0))
    await reach_without_end(shop, SOFT)
    await in_time(shop.call(until(HARD)))
    assert len(shop.epochs) == 1
    await stop(shop)


async def test_where_no_epoch_would_open_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop()
    await reach(shop, 3)
    waited: list[str] = []

    async def wait(request: ManagedRequest) -> None:
        waited.append(request.session.id)

    monkeypatch.setattr(shop.worker, "wait", wait)
    case = (await shop.read_state(until(HARD))).state
    shop.context.unshortened["gpt-4o"] = case.tokens, case.request.chain.tip
    await shop.ask(until(HARD))
    assert waited == []
    shop.context.unshortened.clear()
    await shop.ask(until(HARD + 1))
    assert waited == [shop.session]


async def test_what_was_in_vain_is_tried_again_when_the_conversation_has_grown() -> None:
    shop = Workshop(fail, replace(FREE, time_limit_seconds=3600.0))
    await reach(shop, FIRST)
    asked = len(shop.model.asked)
    (poor,) = shop.summaries
    assert (poor.level, poor.is_provisional, asked) == (3, True, 2)
    shop.clock.advance(PAUSE)
    await shop.ask(until(FIRST + 1))
    assert len(shop.model.asked) > asked
    asked = len(shop.model.asked)
    shop.clock.advance(PAUSE)
    await shop.ask(until(FIRST + 2))
    assert len(shop.model.asked) == asked
    assert shop.summaries == [poor]
    first, second = list_told(shop)[1::2]
    assert (type(first), second.error[:15]) == (CompactionCompletedEvent, "it is no better")


async def test_what_was_put_together_without_a_model_is_made_again_and_not_shown_before() -> None:
    shop = Workshop(fail)
    await reach(shop, SOFT)
    sent = await shop.ask(until(HARD))
    assert len(shop.epochs) == 1
    assert list_reports(sent) == []
    shop.model.summarise = give_report
    shop.clock.advance(3600)
    await reach(shop, 45, HARD + 1)
    live = shop.context.list_summaries((await shop.read_state(until(45))).nodes, MODEL)
    assert {each.level for each in live} == {1}
    (poor,) = (each for each in shop.summaries if each.level == 3)
    (better,) = (each for each in shop.summaries if each.supersedes == (poor.id,))
    assert (better.level, better.start, better.stop, better.is_provisional) == (1, poor.start, poor.stop, False)
    assert (await shop.log.verify()).faults == ()


async def test_what_was_paid_for_and_never_shown_is_a_loss() -> None:
    shop = Workshop(lambda body: say("## Completed\n- All.\n## Remaining\n- None.\n## Discoveries\n- None.\n"))
    await reach(shop, FIRST)
    assert [(each.level, each.is_provisional) for each in shop.summaries] == [(1, True)]
    shop.model.summarise = give_report
    shop.clock.advance(1)
    await reach(shop, SOFT, FIRST + 1)
    poor, better = shop.summaries
    assert better.supersedes == (poor.id,)
    assert [event.exchange for event in shop.events if isinstance(event, SummaryWasted)] == [poor.calls[-1]]


async def test_a_log_that_does_not_take_it_leaves_it_unused() -> None:
    shop = Workshop()
    await reach(shop, 3)
    append = shop.archive.append

    def lose(*records: Any, is_urgent: bool = True) -> Any:
        if not any(isinstance(record, Summary) for record in records):
            return append(*records, is_urgent=is_urgent)
        lost = asyncio.get_running_loop().create_future()
        lost.set_result(False)
        return lost

    shop.archive.append = lose  # type: ignore[method-assign]
    await shop.ask(until(SOFT))
    assert (shop.summaries, len(shop.model.asked)) == ([], 1)
    assert shop.context.list_summaries((await shop.read_state(until(SOFT))).nodes, MODEL) == []
    assert not any(isinstance(event, SummaryAddedEvent) for event in shop.events)
    assert [event.error for event in list_told(shop)[1::2]] == ["the log did not take a summary in time"]


async def test_a_fault_of_ours_is_told_and_not_repeated_at_once(caplog: pytest.LogCaptureFixture) -> None:
    shop = Workshop()
    await reach(shop, 3)

    async def fault(*args: Any) -> Any:
        raise RuntimeError("not now")

    shop.worker.index_conversation = fault  # type: ignore[assignment, method-assign]
    await shop.ask(until(SOFT))
    await shop.ask(until(SOFT + 1))
    assert caplog.text.count("a summary could not be made") == 1
    assert shop.leases.held == {}


async def test_it_reaches_whoever_remembers_the_session_by_then() -> None:
    shop = Workshop(lambda body: None)
    await reach_without_end(shop, SOFT)
    request = await shop.read_state(until(SOFT))
    shop.memory.contexts.clear()
    made = msgspec.structs.replace(await _draft(shop, request), session=shop.session)
    work = await _plan(shop, request)
    assert await shop.worker.keep(work, made)
    assert shop.context.get_summary(made.id) is made
    assert len(shop.jobs) == 1
    await stop(shop)


async def _plan(shop: Workshop, request: Any) -> Any:
    index = await shop.worker.index_conversation(request)
    work = shop.worker.choose_job(request, index, (), is_needed=True)
    assert work is not None
    return work


async def _draft(shop: Workshop, request: Any) -> Summary:
    return await shop.summarizer.write_without_model(await _plan(shop, request))


async def test_an_epoch_that_could_open_later_waits_for_the_summary_of_what_it_takes() -> None:
    shop = Workshop(lambda body: None)
    await reach_without_end(shop, SOFT)
    state = (await shop.read_state(until(SOFT))).state
    account = shop.context.get_account(state.view, "", state.budget)
    account.account = msgspec.structs.replace(account.account, owed=1e6)
    await shop.call(until(SOFT + 1))
    assert shop.epochs == []
    (plan,) = [event.plan for event in shop.events if isinstance(event, Planned) and event.plan.reason == REPORTING]
    assert plan.pressure == "soft"
    await stop(shop)
    await shop.call(until(SOFT + 2))
    assert [epoch.why for epoch in shop.epochs] == ["soft"]


async def test_every_summary_is_made_of_what_the_request_shows_and_they_follow_each_other() -> None:
    shop = Workshop(policy=APART)
    await reach(shop, 60)
    leaves = shop.summaries
    assert len(leaves) > 2
    assert all(one.stop == other.start for one, other in itertools.pairwise(leaves))
    nodes = (await shop.read_state(until(60))).nodes
    texts = [str(message["content"]) for message in until(60)[1:]]
    for summary, body in zip(leaves, shop.model.asked, strict=True):
        assert summary.last == nodes[summary.stop - 1]
        said = "\n".join(str(each["content"]) for each in json.loads(body)["messages"])
        assert all(text in said for text in texts[summary.start : summary.stop])


async def test_what_was_removed_unreported_is_reported_from_the_log_behind_what_is_shown() -> None:
    shop = Workshop(fail, replace(APART, auto=True))
    shop.watch.policy = replace(APART, auto=False)
    await reach(shop, 40)
    depth = shop.epochs[-1].depth
    assert (shop.summaries, depth > 40) == ([], True)
    shop.model.summarise = give_report
    shop.watch.policy = APART
    shop.worker.summarizer.health.breakers.record_success("main", "gpt-4o")
    steps = 40
    while not shop.summaries:
        steps += 1
        await shop.ask(until(steps))
    shown, removed = shop.summaries
    assert removed.stop <= shown.start and removed.start == 0
    warm, compact = map(json.loads, shop.model.asked)
    assert len(warm["messages"]) > 2 and len(compact["messages"]) == 2
    assert str(HISTORY[removed.stop]["content"]) in compact["messages"][1]["content"]


async def test_what_no_share_of_the_session_pays_for_is_not_looked_at() -> None:
    shop = Workshop(policy=replace(FREE, spend_fraction=1e-9))
    indexed: list[SentRequest] = []
    index = shop.worker.index_conversation

    async def note(request: SentRequest) -> Any:
        indexed.append(request)
        return await index(request)

    shop.worker.index_conversation = note  # type: ignore[method-assign]
    await reach(shop, 30)
    assert (indexed, shop.model.asked, shop.summaries) == ([], [], [])
