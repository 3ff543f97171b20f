"""What a report is wanted of, and what follows from that."""

import asyncio
from math import inf

import msgspec
import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.context.conversation import PlanInputs
from proxy.context.epoch_decision import forecast_calls
from proxy.engine.compaction.job import SentRequest, SummaryJob, find_foreign_messages, format_date, list_references
from proxy.engine.context.epoch_planner import DraftedPlan, RenderedPlan
from proxy.model.epoch import ContextPlan, Edit, Kept, Replaced, Written
from proxy.model.exchange import SessionKey
from proxy.model.manifest import compute_digest
from tests.support.compacting import Workshop
from tests.support.managing import Message, make_history
from tests.support.summaries import make_summary

HISTORY = make_history(22, 1600)
WORDS: list[Message] = [
    {"role": "user", "content": "<system-reminder>Be quick.</system-reminder>"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Be slow."},
]


async def plan(messages: list[Message] = HISTORY, start: int = 0, stop: int = 20, **changes: object) -> SummaryJob:
    workshop = Workshop()
    request = await workshop.read_state(messages)
    index = await workshop.worker.index_conversation(request)
    span = MessageRange(start, stop, request.state.history.count(start, stop))
    return msgspec.structs.replace(SummaryJob(request, index, span), **changes)


async def open_epoch(workshop: Workshop, steps: int = 22) -> SentRequest:
    """A request for which an epoch opens."""
    case = (await workshop.read_state(make_history(steps, 1600))).state

    async def commit(epoch: object) -> bool:
        return True

    outgoing = await workshop.controller.chain.run(case, "hard", commit)
    assert outgoing.epoch is not None
    assert outgoing.is_opened
    return SentRequest(case, outgoing.body, outgoing.epoch)


async def test_a_leaf_is_of_messages_and_what_is_merged_of_reports() -> None:
    work = await plan()
    assert (work.kind, work.covered) == ("leaf", work.span.tokens)
    raws = work.request.state.request.list_raws()
    assert work.list_digests() == tuple(compute_digest(raw) for raw in raws[:20])
    parents = (make_summary("a", 0, 10, tokens=70), make_summary("b", 10, 20, tokens=80))
    merged = msgspec.structs.replace(work, parents=parents)
    assert (merged.kind, merged.covered, merged.list_digests()) == ("condensed", 150, ())


async def test_how_long_a_report_may_be_goes_by_the_budget_and_by_what_it_is_of() -> None:
    work = await plan()
    assert work.compute_target(1, 8192) == 543 < work.covered // 7  # what all reports may have
    assert (await plan(stop=15)).compute_target(1, 8192) == (await plan(stop=15)).covered // 7
    assert work.compute_target(1, 100) == 100
    tiny = await plan(stop=1)
    assert tiny.compute_target(1, 8192) == tiny.covered - 1


@pytest.mark.parametrize(("level", "most"), [(1, 543), (2, 300)])
async def test_it_has_the_room_that_other_reports_leave(level: int, most: int) -> None:
    work = msgspec.structs.replace(await plan(), span=MessageRange(0, 20, 100_000))
    assert work.compute_target(level, 8192) == most  # type: ignore[arg-type]
    context, nodes = work.request.state.context, work.request.nodes
    other = msgspec.structs.replace(make_summary("a", 20, 30, tokens=100), last=nodes[29])
    context.add_summary(other)
    assert work.compute_target(level, 8192) == max(300, (543 - 100) // level)  # type: ignore[arg-type]
    again = msgspec.structs.replace(work, supersedes=("a",))
    assert again.compute_target(level, 8192) == most  # type: ignore[arg-type]


async def test_its_name_tells_the_span_the_level_and_when_and_cannot_be_guessed() -> None:
    work = await plan()
    names = {
        work.make_id(b"secret", 1, 5),
        work.make_id(b"secret", 2, 5),
        work.make_id(b"secret", 1, 6),
        work.make_id(b"other", 1, 5),
        (await plan(start=2)).make_id(b"secret", 1, 5),
    }
    assert len(names) == 5
    assert work.make_id(b"secret", 1, 5) in names


async def test_what_was_elided_has_references_and_stands_in_a_ledger_only() -> None:
    workshop = Workshop()
    before = await workshop.read_state(HISTORY)
    assert list_references(before, MessageRange(0, 20, 0)) == ()
    request = await open_epoch(workshop)
    index = await workshop.worker.index_conversation(request)
    epoch = request.epoch
    assert epoch is request.opened
    assert epoch is not None
    assert request.tokens < request.state.tokens
    inside = [each.id for each in epoch.originals if each.place < epoch.depth]
    assert inside
    assert sorted(list_references(request, MessageRange(0, epoch.depth, 0))) == sorted(set(inside))
    # what only a ledger tells has none in a request that has no tool to read them
    assert list_references(request, MessageRange(0, 20, 0)) == ()
    assert list_references(request, MessageRange(epoch.depth, epoch.depth + 5, 0)) == ()
    assert epoch.depth - 5 <= request.verbatim_from <= epoch.depth
    shown, history = request.verbatim_from, request.state.history
    hidden = SummaryJob(request, index, MessageRange(3, shown + 4, 0)).hidden
    assert hidden == MessageRange(3, shown, history.count(3, shown))
    assert SummaryJob(before, index, MessageRange(0, 20, 0)).hidden == MessageRange(0, 0, 0)


async def test_without_an_epoch_of_its_own_it_was_sent_under_the_one_that_held() -> None:
    workshop = Workshop()
    opened = await open_epoch(workshop)
    request = await workshop.read_state(make_history(23, 1600), base=47)
    assert request.epoch is opened.epoch
    assert request.tokens == request.state.tokens
    assert request.session == "s1"


async def test_reminders_of_clients_and_prompts_of_subagents_are_nobodys_words() -> None:
    work = await plan([*HISTORY, *WORDS])
    place = len(HISTORY) - 1
    assert find_foreign_messages(work.request, work.index) == {place}
    child = SessionKey("s1", b"t" * 16, "main", "family", parent="s0")
    request = await Workshop().read_state([*HISTORY, *WORDS], session=child)
    assert find_foreign_messages(request, work.index) == {0, place, place + 2}


def test_a_time_is_told_in_words() -> None:
    assert format_date(1_700_000_000_000) == "2023-11-14 22:13 UTC"


async def test_what_an_epoch_keeps_at_its_end_was_sent_as_the_client_sent_it() -> None:
    request = await open_epoch(Workshop())
    (epoch,) = filter(None, [request.opened])
    edits: tuple[Edit, ...] = (Written("ledger", 0, 5), Kept(5), Replaced(6, "x", "tombstone"), Kept(7), Kept(8))
    for kept, place in ((edits, 7), (edits[:3], 7), ((*edits[:2], Kept(6)), 5), ((), 7)):
        depth = 9 if kept is edits else 7
        opened = msgspec.structs.replace(epoch, depth=depth, edits=msgspec.json.encode(kept))
        assert msgspec.structs.replace(request, opened=opened).verbatim_from == place


async def plan_ahead(messages: list[Message], through: int) -> SentRequest:
    """A request whose next epoch was planned ahead, and replaces so many messages."""
    request = await Workshop().read_state(messages)
    drafting = asyncio.get_running_loop().create_future()
    drafting.set_result(RenderedPlan(ContextPlan(through, (), (), 0), ()))
    keep_draft(request, drafting)
    return request


def keep_draft(request: SentRequest, drafting: "asyncio.Future[RenderedPlan]") -> None:
    state, inputs = request.state, PlanInputs(request.state.budget)
    own = state.request
    state.context.note_drafted(DraftedPlan(own.model, own.nodes, state.epoch, inputs, drafting, 0))


async def test_a_span_ends_where_the_tail_is_planned_to_begin_and_twice_what_is_to_come_behind_it() -> None:
    request = await plan_ahead(make_history(15, 1600), 12)
    state, growth = request.state, request.state.growth
    calls = forecast_calls(state.account, state.facts, growth)
    assert 0 < calls == request.calls_left < 10
    end, history = request.find_end(), state.history
    assert end is not None
    assert history.count(12, end - 1) < 2 * growth * (1 + calls) <= history.count(12, end)


async def test_no_end_is_known_without_a_plan_or_where_the_epoch_is_far() -> None:
    near = make_history(15, 1600)
    assert (await Workshop().read_state(near)).find_end() is None
    assert (await plan_ahead(near, 0)).find_end() is None
    assert (await plan_ahead(near, 30)).find_end() is None  # it would lie beyond what there is
    assert (await plan_ahead(make_history(1, 4), 1)).find_end() is None
    failed = await plan_ahead(near, 12)
    drafting = asyncio.get_running_loop().create_future()
    drafting.set_exception(RuntimeError("no plan"))
    keep_draft(failed, drafting)
    assert failed.find_end() is None
    assert failed.state.find_drafted() is None


async def test_the_high_mark_is_as_near_as_the_conversation_grows() -> None:
    request = msgspec.structs.replace(await Workshop().read_state(make_history(15, 1600)), interval=10.0)
    calls = (request.state.budget.high - request.tokens) / request.state.growth
    assert request.seconds_left == calls * 10
    assert msgspec.structs.replace(request, interval=None).seconds_left == 0
    below = await Workshop().read_state(make_history(5, 1600))
    assert below.seconds_left == inf
