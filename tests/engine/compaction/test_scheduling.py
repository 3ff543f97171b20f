"""Which branches are summarised, when, and which models are asked in which order."""

import asyncio
import dataclasses
from dataclasses import replace as change
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from proxy.context.compaction.spans import MessageRange
from proxy.context.pricing import Cost, make_tariff
from proxy.context.provider_cache import CacheModel
from proxy.engine.background.jobs import Job
from proxy.engine.compaction.job import ManualOptions, SentRequest
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.scheduling import (
    JobSchedule,
    is_one_branch,
    is_summary_due,
    list_summary_models,
)
from proxy.engine.policy import Provider
from proxy.engine.request_resolver import Route
from proxy.model.card import UNPRICED
from proxy.model.exchange import Usage
from tests.support.coding_clients import write_aider
from tests.support.compacting import FREE, Workshop, give_report, in_time
from tests.support.engine import ScriptedUpstream
from tests.support.managing import MODEL, Message, make_history
from tests.support.manual_compaction import make_manual_compaction

HISTORY = make_history(30, 1200)
SOFT, HARD = 17, 23


def leave(at: int, steps: int) -> list[Message]:
    """A branch that leaves the history behind so many steps."""
    return [*HISTORY[: 2 + 2 * at], {"role": "user", "content": "Not so."}, *HISTORY[2 + 2 * at : 2 + 2 * steps]]


async def make(shop: Workshop, messages: list[Message]) -> SentRequest:
    return await shop.read_state(messages)


def begin(schedule: JobSchedule, request: SentRequest, upstream: str = "main", end: asyncio.Event | None = None) -> Job:
    """Something that is being made, until its end."""

    async def work() -> None:
        if end is not None:
            await end.wait()

    running = schedule.start(request, work, lambda error: pytest.fail(str(error)), upstream)
    assert running is not None
    return running


def test_a_branch_is_what_goes_on() -> None:
    a, b, c = b"a", b"b", b"c"
    assert is_one_branch([a], [a, b]) and is_one_branch([a, b], [a]) and is_one_branch([a], [a])
    assert not is_one_branch([a, b], [a, c])
    assert not is_one_branch([b], [a])


async def test_what_is_made_is_found_by_whatever_goes_on_and_forgotten_at_its_end() -> None:
    shop = Workshop()
    schedule = shop.worker.schedule
    main, fork = await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    running = begin(schedule, main)
    later, earlier = await make(shop, HISTORY[:24]), await make(shop, HISTORY[:10])
    assert [schedule.find("s1", each.nodes) for each in (main, later, earlier)] == [running] * 3
    assert schedule.find("s1", fork.nodes) is schedule.find("other", main.nodes) is None
    other = begin(schedule, fork, "local")
    jobs = shop.jobs
    assert (len(jobs), jobs.list_at("local"), jobs.list_at("main")) == (2, [other], [running])
    await asyncio.wait((running.task, other.task))
    assert (len(jobs), jobs.list_jobs("s1")) == (0, [])


async def test_a_lease_is_named_by_what_no_report_is_of_and_nobody_else_here_shares() -> None:
    shop = Workshop()
    schedule = shop.worker.schedule
    main, fork = await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    assert schedule.name_lease(main) == schedule.name_lease(fork) == f"summaries/s1/{main.nodes[0].hex()}"
    begin(schedule, main)
    apart = 1 + 2 * 5  # the places count behind the system message
    assert schedule.name_lease(fork) == f"summaries/s1/{fork.nodes[apart].hex()}"
    summary = await shop.summarizer.write_without_model(await _plan(shop, main, 0, 5))
    fork.state.context.add_summary(summary)
    assert JobSchedule(Workshop().jobs).name_lease(fork) == f"summaries/s1/{fork.nodes[5].hex()}"
    short = await make(shop, HISTORY[: 1 + summary.stop])
    assert JobSchedule(Workshop().jobs).name_lease(short) == f"summaries/s1/{short.nodes[-1].hex()}"


async def _plan(shop: Workshop, request: SentRequest, start: int, stop: int) -> Any:
    from_start = shop.worker.choose_job(request, await shop.worker.index_conversation(request), (), is_needed=True)
    assert from_start is not None
    return replace(from_start, span=MessageRange(start, stop, 1000))


async def test_an_epoch_waits_for_a_summary_and_not_for_vectors_that_are_paid_for_meanwhile() -> None:
    shop, end = Workshop(), asyncio.Event()
    main = await make(shop, HISTORY[:20])
    begin(shop.worker.schedule, main, end=end)
    shop.summarizer.health.budget.reserve("s1", Cost(10.0))
    assert not shop.worker.is_busy(main.state.request)
    assert await shop.worker.summarize(await _plan(shop, main, 0, 5), is_needed=True) is not None
    assert shop.worker.is_busy(main.state.request)
    end.set()
    await shop.settle()
    assert not shop.worker.is_busy(main.state.request)


async def test_a_span_that_two_branches_share_is_reported_by_one() -> None:
    shop = Workshop()
    schedule = shop.worker.schedule
    one = begin(schedule, await make(shop, HISTORY[:20]))
    end = asyncio.Event()
    other = begin(schedule, await make(shop, leave(5, 9)), end=end)
    assert schedule.claim(one, (0, b"last"))
    assert schedule.claim(one, (0, b"last"))
    assert not schedule.claim(other, (0, b"last"))
    assert schedule.claim(other, (0, b"another"))
    await asyncio.wait((one.task,))
    assert schedule.claim(other, (0, b"last"))
    end.set()
    await asyncio.wait((other.task,))


async def test_no_model_is_asked_for_what_another_branch_has_asked_one_for() -> None:
    shop, end = Workshop(), asyncio.Event()
    schedule, main, fork = shop.worker.schedule, await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    one, other = begin(schedule, main, end=end), begin(schedule, fork, end=end)
    await asyncio.sleep(0)
    assert sorted(shop.leases.held) == sorted((one.lease, other.lease))
    work = await _plan(shop, fork, 0, 5)
    other_work = replace(work, request=main)
    assert await shop.worker.summarize(work, is_needed=True) is not None
    assert await shop.worker.summarize(other_work, is_needed=True) is None
    end.set()
    await asyncio.wait((one.task, other.task))
    assert await shop.worker.summarize(work, is_needed=True) is None  # nobody is at it any more


async def test_what_was_in_vain_is_so_for_its_branch_alone_until_that_has_grown() -> None:
    shop = Workshop()
    schedule = shop.worker.schedule
    main, later = await make(shop, HISTORY[:20]), await make(shop, HISTORY[:24])
    fork = await make(shop, leave(5, 9))
    schedule.postpone(main, later.state.history.tokens)
    assert schedule.is_postponed(main)
    assert not schedule.is_postponed(later)
    assert not schedule.is_postponed(fork)
    schedule.postpone(fork, 1_000_000)
    schedule.postpone(later, 1_000_000)
    assert schedule.is_postponed(later) and schedule.is_postponed(fork)
    assert not schedule.is_postponed(main)  # its note was the later one's, who has another
    for step in range(6, 14):
        schedule.postpone(await make(shop, leave(step, 15)), 1_000_000)
    assert not schedule.is_postponed(later) and not schedule.is_postponed(fork)


async def hang(shop: Workshop) -> None:
    """Up to where a summary of the main branch is asked for that never comes."""
    for steps in (*range(1, 4), SOFT):
        await shop.call(HISTORY[: 2 + 2 * steps])
    await in_time(shop.model.was_asked.wait())


async def test_a_branch_is_reported_while_another_one_is() -> None:
    shop = Workshop(lambda body: None)
    await hang(shop)
    shop.model.summarise = give_report
    shop.model.was_asked.clear()
    await shop.call(leave(3, 11))
    await shop.call(leave(3, SOFT))
    await in_time(shop.model.was_asked.wait())
    (other,) = [each for each in shop.jobs.list_at("main") if len(each.nodes) > 2 * SOFT + 1]
    assert len(shop.leases.held) == 2
    await in_time(asyncio.wait((other.task,)))
    (summary,) = shop.summaries
    assert summary.last in set((await shop.read_state(leave(3, SOFT))).nodes)
    assert len(shop.leases.held) == len(shop.jobs) == 1
    shop.jobs.note_arrival("main", "y1")
    await shop.settle()


async def test_a_call_above_the_high_mark_waits_for_its_own_branch_only() -> None:
    shop = Workshop(lambda body: None, change(FREE, hard_wait_seconds=3600.0))
    await hang(shop)
    await in_time(shop.call(leave(3, HARD)))
    waiting = asyncio.create_task(shop.call(HISTORY[: 2 + 2 * HARD]))
    done, _ = await asyncio.wait((waiting,), timeout=0)
    assert not done
    shop.jobs.note_arrival("main", "y1")
    await in_time(waiting)
    shop.jobs.note_arrival("main", "y1")
    await shop.settle()


async def test_a_person_has_a_branch_compacted_while_another_one_is_reported() -> None:
    shop = Workshop(lambda body: None)
    await hang(shop)
    shop.model.summarise = give_report
    await shop.call(leave(3, 12))
    found = await in_time(make_manual_compaction(shop).compact(shop.session, ManualOptions()))
    assert found.epoch is not None
    assert found.reason == ""
    assert len(shop.jobs) == 1
    shop.jobs.note_arrival("main", "y1")
    await shop.settle()


async def test_calls_with_an_end_that_the_client_rewrites_are_of_one_branch() -> None:
    """Aider's files are at the end of each of its requests, and no later one extends any of them (B6)."""
    shop = Workshop(lambda body: None, ceiling=4_500)
    tasks = [f"{i}: Change the parser so that it reads the shape number {i}." for i in range(30)]
    asked, turn = asyncio.create_task(shop.model.was_asked.wait()), 0
    while not asked.done():
        turn += 1
        await shop.call(write_aider(turn, tasks))
        if running := shop.jobs.list_at("main"):
            work = [asked, *(job.task for job in running)]
            await in_time(asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED))
    for later in range(turn + 1, turn + 4):
        await shop.call(write_aider(later, tasks))
    assert (len(shop.model.asked), len(shop.jobs), len(shop.leases.held)) == (1, 1, 1)
    shop.jobs.note_arrival("main", "y1")
    await shop.settle()


INTERVAL = 100.0
BEGIN, END = 14, 20


def is_due(shop: Workshop, request: SentRequest) -> bool:
    return is_summary_due(request, FREE, shop.summarizer.health.cache_hits, shop.summarizer.routes)


def cool(shop: Workshop, seconds: float, model: str = MODEL) -> None:
    """Calls of our own took so long, and were not read from the cache."""
    for _ in range(2):
        shop.summarizer.health.cache_hits.record_call("main", model, seconds, Usage(1000, 10, cached=0))


async def find_first(shop: Workshop, stop: int = END) -> int | None:
    """The step behind which a report was begun, a call every hundred seconds."""
    for steps in range(BEGIN - 2, stop):
        shop.clock.advance(INTERVAL)
        await shop.ask(HISTORY[: 2 + 2 * steps])
        if shop.model.asked:
            return steps
    return None


async def test_it_is_begun_two_calls_before_the_epoch_that_takes_what_it_is_of() -> None:
    shop = Workshop()
    shop.summarizer.health.cache_hits.record_call("main", MODEL, 1.0)
    begun = await find_first(shop)
    assert begun is not None
    (summary,) = shop.summaries
    assert shop.epochs == []
    for steps in range(begun + 1, begun + 5):
        await shop.ask(HISTORY[: 2 + 2 * steps])
    (epoch,) = shop.epochs  # a call later than by the estimate: its plan leaves more, so it pays later
    assert summary.id in epoch.edits.decode()
    assert epoch.depth <= summary.stop + 8  # the messages of four calls


async def test_before_the_high_mark_it_is_begun_the_earlier_the_slower_models_are() -> None:
    begun = []
    for seconds in (1.0, 100.0, 300.0, 2000.0):
        shop = Workshop()
        cool(shop, seconds)
        begun.append(await find_first(shop))
    assert begun == [17, 17, 16, BEGIN]


async def test_before_the_first_report_it_may_take_as_long_as_it_is_allowed_to() -> None:
    begun = []
    for seconds in (1.0, 2000.0):
        shop = Workshop(policy=dataclasses.replace(FREE, model="small", time_limit_seconds=seconds))
        cool(shop, 5000.0)
        begun.append(await find_first(shop))
    assert begun == [17, BEGIN]


async def test_how_fast_it_grows_is_not_known_before_the_second_call() -> None:
    shop = Workshop()
    cool(shop, 1.0)
    request = await shop.read_state(HISTORY[: 2 + 2 * BEGIN])
    assert is_due(shop, request)
    assert not is_due(shop, replace(request, interval=INTERVAL))


@pytest.mark.parametrize("kind", ["prefix", "local"])
async def test_a_local_server_is_asked_whenever_it_is_idle(kind: Literal["prefix", "local"]) -> None:
    shop = Workshop(provider=Provider(cache="local") if kind == "local" else None)
    request = replace(await shop.read_state(HISTORY[: 2 + 2 * BEGIN]), interval=INTERVAL)
    shop.summarizer.health.cache_hits.record_call("main", MODEL, 1.0)
    tariff = make_tariff(UNPRICED, CacheModel(kind))
    request = replace(request, state=replace(request.state, tariff=tariff))
    assert is_due(shop, request) == (kind == "local")


async def test_near_the_soft_mark_only_the_price_makes_an_epoch_near() -> None:
    shop = Workshop()
    cool(shop, 2000.0)
    below = replace(await shop.read_state(HISTORY[: 2 + 2 * (BEGIN - 1)]), interval=INTERVAL)
    assert below.tokens < below.state.budget.soft
    assert not is_due(shop, below)
    account = below.state.epoch_account
    account.account = replace(account.account, owed=1e6)
    assert is_due(shop, below)


HOME, OTHER = ScriptedUpstream("home"), ScriptedUpstream("other")
ROUTES = (Route(HOME), Route(OTHER, ("small-*",)))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CompactionPolicy(), [("home", "m")]),
        (CompactionPolicy(model="n"), [("home", "n")]),
        (CompactionPolicy(fallback_models=("n", "m", "o")), [("home", "m"), ("home", "n"), ("home", "o")]),
        (CompactionPolicy(model="small-1"), [("home", "small-1")]),
        (CompactionPolicy(model="small-1", may_receive=("other",)), [("other", "small-1")]),
        (
            CompactionPolicy(fallback_models=("small-1", "n"), may_receive=("other",)),
            [
                ("home", "m"),
                ("other", "small-1"),
                ("home", "n"),
            ],
        ),
    ],
)
def test_conversations_stay_at_home_unless_a_person_said_so(
    policy: CompactionPolicy, expected: list[tuple[str, str]]
) -> None:
    found = list_summary_models(policy, HOME, "m", ROUTES)
    assert [(candidate.upstream.name, candidate.model) for candidate in found] == expected


def test_the_model_of_the_conversation_is_where_the_conversation_is() -> None:
    policy = CompactionPolicy(may_receive=("other",))
    [candidate] = list_summary_models(policy, HOME, "small-1", ROUTES)
    assert candidate.upstream is HOME
