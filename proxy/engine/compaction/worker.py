"""The background worker, which summarises branches above their soft mark.

It makes one summary at a time for each branch, under a lease. Clients' calls wait for it only above the high mark. A
summary is in the log before it is used.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from proxy.context.compaction.spans import (
    WITHOUT_MODEL,
    MessageRange,
    choose_merge,
    choose_span,
    compute_least_span,
    is_merge_smaller,
    is_worth_sending,
    list_merge_candidates,
)
from proxy.context.conversation import BuilderPolicy, ConversationIndex, PlanInputs
from proxy.context.plan_draft import compute_summaries_budget
from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.compaction.credentials import CredentialCache
from proxy.engine.compaction.job import (
    JobResult,
    ManualOptions,
    SentRequest,
    SummaryJob,
    make_leaf_job,
    make_merge_job,
    make_turns_job,
)
from proxy.engine.compaction.progress import CompactionProgress
from proxy.engine.compaction.provider_compaction import has_unused_compaction
from proxy.engine.compaction.scheduling import JobSchedule, is_summary_due
from proxy.engine.compaction.summarizer import Summarizer
from proxy.engine.context.epoch_planner import EpochPlanner
from proxy.engine.context.session_context import SessionContext
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import attempt
from proxy.engine.text_jobs import index_plan
from proxy.model.epoch import Summary
from proxy.model.errors import Conflict

# The tokens that a span must have for a manual summary: the summary of a shorter span would be no shorter.
LEAST = 600
# The most spans into which a manual compaction divides a conversation that does not fit into one.
_MOST_MANUAL_SPANS = 8
# The share of the usable budget by which a conversation must grow before a failed attempt is repeated, and before it is
# looked at again where there was nothing to ask for, or no permission to ask.
_GROWTH, _GROWTH_UNASKED = 0.15, 0.05
# The share of its waiting time that a request above the high mark waits for a summary; its plan has the rest.
_WAIT_SHARE = 0.75
_ASSUMED_WINDOW = 128_000

_BUSY = "a summary of this conversation is being made; ask again when it is there"
_LOST = "another process has taken over this conversation's summaries, or another branch is at the same"
_NOT_KEPT = "the log did not take a summary in time"
_FAILED = "a summary could not be made; calls go on without it"

Remember = Callable[[SummaryJob, Summary], Awaitable[object]]
"""Adds a summary that is in the log to the memory of its session, given the job that it was made for."""

_log = logging.getLogger("palimpsest.compaction")


@dataclass(kw_only=True, eq=False)
class SummaryWorker:
    """Makes summaries of requests that were sent.

    `builder_policy` is that of epochs. `remember` is told of each summary of messages.
    """

    summarizer: Summarizer
    planner: EpochPlanner
    builder_policy: BuilderPolicy
    credentials: CredentialCache
    jobs: BackgroundJobs
    remember: Remember

    def __post_init__(self) -> None:
        self.followers: list[Callable[[SentRequest], object]] = []  # told of the calls whose branch it may take
        caller = self.summarizer.caller
        self.policy, self.caches, self.schedule = self.summarizer.policy, caller.caches, JobSchedule(self.jobs)
        self.archive, self.gate = caller.relay.archive, caller.relay.durability
        self.progress = CompactionProgress(caller.bus, caller.clock.monotonic)
        self._span_policy = dataclasses.replace(self.builder_policy, protect_turns=self.policy.protect_turns)

    def start(self, request: SentRequest) -> None:
        """Start work on the branch of a request, unless it is running or there is nothing to do."""
        if self.schedule.find(request.session, request.kept_nodes) is None and self._is_worth_it(request):
            self.start_work(request, partial(self._work, request), request.state.request.session.upstream)

    def start_work(self, request: SentRequest, work: Callable[[], Awaitable[None]], upstream: str = "") -> None:
        """Start other work on the branch of a request, unless some is running. Calls to `upstream` cancel it."""
        self.schedule.start(request, work, partial(self._note_fault, request), upstream)

    async def wait(self, request: ManagedRequest) -> None:
        """Wait for the running job on a request's branch, for a bounded time."""
        if self.policy.hard_wait_seconds:
            await self.wait_out(request, _WAIT_SHARE * self.policy.hard_wait_seconds)

    async def wait_out(self, request: ManagedRequest, seconds: float) -> bool:
        """Wait at most `seconds` for the job on a request's branch. Return whether there was one."""
        job = self.schedule.find(request.session.id, request.kept_nodes)
        if job is None:
            return False
        await asyncio.wait((job.task,), timeout=seconds)
        return True

    def is_busy(self, request: ManagedRequest) -> bool:
        """Return whether a model is being asked for a summary of a request's branch."""
        job = self.schedule.find(request.session.id, request.kept_nodes)
        return job is not None and bool(job.claims)

    async def compact(self, request: SentRequest, options: ManualOptions) -> JobResult:
        """Summarise all that may be replaced, for a manual compaction. It continues even if the caller is cancelled.

        Raises Conflict if there is a running job on the branch.
        """
        return await self._run_by_hand(request, partial(self._work_manually, request, options))

    async def summarize_turns(
        self, request: SentRequest, spans: Sequence[tuple[int, int]], options: ManualOptions | None
    ) -> JobResult:
        """Summarise the messages of whole turns, from one place up to another, for the memory of their session.

        Without options it keeps to the limits of what is spent on a session. It goes on as a manual compaction does.
        Raises Conflict if there is a running job on the branch.
        """
        return await self._run_by_hand(request, partial(self.work_on_turns, request, spans, options))

    def count_most(self, request: SentRequest) -> int:
        """Return the tokens of messages that one summary of a request may cover."""
        return int(self.policy.input_fraction * (request.state.budget.window or _ASSUMED_WINDOW))

    async def _run_by_hand(self, request: SentRequest, work: Callable[[JobResult], Awaitable[None]]) -> JobResult:
        result, session, budget = JobResult(), request.session, self.summarizer.health.budget
        before = budget.get_balance(session).summaries
        job = self.schedule.start(request, partial(work, result), partial(self._note_fault, request, result=result))
        if job is not None:
            await asyncio.wait((job.task,))
        if job is None or job.is_refused:
            raise Conflict(_BUSY)
        result.cost = budget.get_balance(session).summaries - before
        return result

    async def index_conversation(self, request: SentRequest) -> ConversationIndex:
        """Return the index of a conversation."""
        state = request.state
        inputs = PlanInputs(state.budget, None, state.context.list_pinned(request.nodes))
        job = await asyncio.to_thread(self.planner.make_job, state.request, state.history, inputs)
        return await self.summarizer.texts.run(index_plan, job, self._span_policy)

    def choose_job(
        self, request: SentRequest, index: ConversationIndex, live: Sequence[Summary], *, is_needed: bool = False
    ) -> SummaryJob | None:
        """Return the job for the messages without a summary, or None if these are not worth one.

        It covers messages that the request shows as the client sent them, up to where the next epoch's tail will begin.
        A few before them that an epoch has removed go with them. If `is_needed`, all that were removed come first.
        """
        begin, shown = live[-1].stop if live else 0, request.verbatim_from
        if is_needed:
            removed = self._choose_span_job(request, index, begin, shown, LEAST) if begin < shown else None
            return removed or self._choose_span_job(request, index, begin, None, LEAST)
        least, end = compute_least_span(request.state.budget.usable), request.find_end()
        job = self._choose_span_job(request, index, begin, end, least)
        if job is None or job.is_visible:
            return job
        return self._choose_span_job(request, index, shown, end, least)

    def choose_removed(
        self, request: SentRequest, index: ConversationIndex, live: Sequence[Summary]
    ) -> SummaryJob | None:
        """Return the job for the newest messages that an epoch removed without a summary, or None."""
        least, stops = compute_least_span(request.state.budget.usable), [0, *(each.stop for each in live)]
        starts = [*(each.start for each in live), request.verbatim_from]
        for stop, start in reversed(list(zip(stops, starts, strict=True))):
            job = self._choose_span_job(request, index, stop, start, least) if stop < start else None
            if job is not None:
                return job
        return None

    def _choose_span_job(
        self, request: SentRequest, index: ConversationIndex, begin: int, end: int | None, least: int
    ) -> SummaryJob | None:
        span = choose_span(index, begin, self.count_most(request), end)
        return None if span is None or span.tokens < least else make_leaf_job(request, index, span)

    async def choose_repeat(
        self, request: SentRequest, index: ConversationIndex, live: Sequence[Summary]
    ) -> SummaryJob | None:
        """Return the job for the oldest summary that is to be made again, or None."""
        again = next(filter(_is_unfinished, live), None)
        if again is None:
            return None
        if not again.parents:
            return make_leaf_job(request, index, MessageRange(again.start, again.stop, again.covered), (again.id,))
        known = await self._load_summaries(live)
        if not all(id in known for id in again.parents):
            return None
        return make_merge_job(request, index, [known[id] for id in again.parents], (again.id,))

    async def summarize(self, job: SummaryJob, *, is_needed: bool = False) -> Summary | None:
        """Return a summary that was made under the branch's lease, or None.

        Return None also if the lease was lost, or if another branch is working on the same span.
        """
        request = job.request
        running = self.schedule.find(request.session, request.kept_nodes)
        span = job.span.start, request.nodes[job.span.stop - 1]
        if running is None or not self.schedule.claim(running, span):
            return None
        keeps_lease = partial(self.jobs.keeps_lease, running)
        credential = self.credentials.find(request.session, request.state.request.chain.tip)
        making = self.summarizer.summarize(job, credential, keeps_lease, is_needed=is_needed)
        return await self.progress.watch(job, making)

    async def keep(self, job: SummaryJob, summary: Summary) -> bool:
        """Write a summary to the log, and use it from then on. Return False if the log did not accept it."""
        context = job.request.state.context
        if not await self.gate.confirm(self.archive.append(summary)):
            _log.warning("%s; it is made again later. See /-/ready", _NOT_KEPT, extra={"session": summary.session})
            return self.progress.check(job, is_good=False, problem=_NOT_KEPT)
        for replaced in _list_unused(context, (*summary.supersedes, *summary.parents)):
            self.summarizer.health.budget.record_waste(replaced.session, replaced.calls)
        context.add_summary(summary)
        self.caches.contexts.add_summary(summary)  # the cache may have a new context of the session by now
        self.progress.add(job, summary)
        if not (summary.parents or summary.block):
            await attempt(self.remember(job, summary), partial(_log_forgotten, summary))
        return True

    def _is_worth_it(self, request: SentRequest) -> bool:
        """Return whether there may be something to do, without reading the messages.

        Only messages that the request shows count: an epoch has removed the others, and reading them costs their price.
        """
        state, count = request.state, len(request.nodes)
        if request.opened is not None or self.schedule.is_postponed(request):
            return False
        live = state.context.list_summaries(request.nodes, request.state.view)
        if has_unused_compaction(request, live):
            return False
        begin = min(count, max(request.verbatim_from, live[-1].stop if live else 0))
        is_enough = state.history.count(begin, count) >= compute_least_span(state.budget.usable)
        if not (is_enough or any(map(_is_unfinished, live))):
            return False
        is_due = is_summary_due(request, self.policy, self.summarizer.health.cache_hits, self.summarizer.routes)
        return is_due and self.summarizer.may_ask(request)

    def _postpone(self, request: SentRequest, growth: float = _GROWTH) -> None:
        """Postpone a branch without a result until its conversation has grown."""
        state = request.state
        self.schedule.postpone(request, state.history.tokens + int(growth * state.budget.usable))

    def _note_fault(self, request: SentRequest, problem: Exception, *, result: JobResult | None = None) -> None:
        """Log why work on a branch has failed, and say so in the result of a manual compaction."""
        _log.error(_FAILED, exc_info=problem, extra={"session": request.session})
        if result is None:
            self._postpone(request)
        else:
            result.add_problem(f"{type(problem).__name__}: {problem}")

    async def _work(self, request: SentRequest) -> None:
        """Make the next summary of a branch. If there is nothing new, improve an earlier one.

        What an epoch removed without a summary comes last: it is read at full price, and gets what the others leave of
        the permitted spending.
        """
        index, context = await self.index_conversation(request), request.state.context
        live = context.list_summaries(request.nodes, request.state.view)
        job = self.choose_job(request, index, live) or await self.choose_repeat(request, index, live)
        summary = await self.summarize(job) if job is not None else None
        if job is None or summary is None:
            self._postpone(request, _GROWTH_UNASKED)
            return
        if self.progress.is_in_vain(job, summary) or not await self.keep(job, summary):
            self._postpone(request)
            return
        removed = self.choose_removed(request, index, context.list_summaries(request.nodes, request.state.view))
        if removed is not None and (summary := await self.summarize(removed)) is not None:
            await self.keep(removed, summary)
        if self.policy.condensation:
            await self.condense(request, index)

    async def _work_manually(self, request: SentRequest, options: ManualOptions, result: JobResult) -> None:
        """Summarise all messages without a summary. If models can be asked, improve an unfinished summary."""
        context, index = request.state.context, await self.index_conversation(request)
        for _ in range(_MOST_MANUAL_SPANS):
            job = self.choose_job(
                request, index, context.list_summaries(request.nodes, request.state.view), is_needed=True
            )
            if job is None or not await self._summarize_manually(replace(job, options=options), result):
                break
        if all(each.level < WITHOUT_MODEL for each in result.summaries):
            job = await self.choose_repeat(request, index, context.list_summaries(request.nodes, request.state.view))
            if job is not None:
                await self._summarize_manually(replace(job, options=options), result)
        if self.policy.condensation:
            for merged in await self.condense(request, index, options):
                result.add(merged, is_kept=True)

    async def work_on_turns(
        self,
        request: SentRequest,
        spans: Sequence[tuple[int, int]],
        options: ManualOptions | None,
        result: JobResult,
    ) -> None:
        """Summarise each span under a lease. Short ones are put together without a model."""
        index = await self.index_conversation(request)
        for start, stop in spans:
            job = replace(make_turns_job(request, index, start, stop), options=options)
            if job.span.tokens >= LEAST:
                made = await self.summarize(job, is_needed=True)
            else:
                made = await self.summarizer.write_without_model(job)
            if made is None:
                result.add_problem(_LOST)
                return
            result.add(made, is_kept=await self.keep_for_memory(job, made))

    async def keep_for_memory(self, job: SummaryJob, made: Summary) -> bool:
        """Keep a summary of turns; one of few messages, or with one that the log has in part, is only remembered."""
        is_kept = job.span.tokens >= LEAST and await self.keep(job, made)
        if not is_kept:  # without the log's copy there is no reference to name
            await self.remember(job, replace(made, id=""))
        return is_kept

    async def _summarize_manually(self, job: SummaryJob, result: JobResult) -> bool:
        """Make one of several summaries. Return whether it was made, so that the next one may follow."""
        summary = await self.summarize(job, is_needed=True)
        if summary is None:
            result.add_problem(_LOST)
            return False
        if self.progress.is_in_vain(job, summary):
            result.add(summary, is_kept=False)
            return False
        is_kept = await self.keep(job, summary)
        result.add(summary, is_kept=is_kept)
        result.add_problem("" if is_kept else _NOT_KEPT)
        return is_kept

    async def condense(
        self, request: SentRequest, index: ConversationIndex, options: ManualOptions | None = None
    ) -> list[Summary]:
        """Merge summaries that take too much room, in rounds while they get smaller. Return the new ones.

        A summary that is not shown takes no room, and stays as it is until a model has made it again. A provider's own
        compaction stays, too.
        """
        merged: list[Summary] = []
        room = compute_summaries_budget(request.state.budget.usable)
        for _ in range(self.policy.max_rounds):
            every = request.state.context.list_summaries(request.nodes, request.state.view)
            live = [each for each in every if is_worth_sending(each) and not each.block]
            if sum(each.tokens for each in live) <= room:
                break
            known = await self._load_summaries(live)
            run = choose_merge(list_merge_candidates(live, known), room)
            if not run:
                break
            job = replace(make_merge_job(request, index, [known[node.id] for node in run]), options=options)
            summary = await self.summarize(job, is_needed=True)
            if summary is None or not self.progress.check(job, is_good=is_merge_smaller(run, summary.tokens)):
                break
            if not await self.keep(job, summary):
                break
            merged.append(summary)
        return merged

    async def _load_summaries(self, live: Sequence[Summary]) -> dict[str, Summary]:
        """Return these and all they were made from, which come first. Some may be of sessions that this one extends."""
        sessions = dict.fromkeys(each.session for each in live)
        stored = [each for session in sessions for each in await self.archive.list_summaries(session)]
        return {each.id: each for each in sorted((*stored, *live), key=lambda each: each.made_ms)}


def _list_unused(context: SessionContext, ids: Iterable[str]) -> list[Summary]:
    """Return those of the summaries that were paid for, and that no epoch has ever shown."""
    unseen = [id for id in ids if not any(id.encode() in epoch.edits for epoch in context.epochs)]
    return [found for id in unseen if (found := context.get_summary(id)) is not None and found.calls]


def _log_forgotten(summary: Summary, error: Exception) -> None:
    _log.error(
        "a summary could not be added to the memory of its session; the log has it",
        exc_info=error,
        extra={"session": summary.session},
    )


def _is_unfinished(summary: Summary) -> bool:
    """Return whether a summary is to be made again: until a model has written it, and once more if it was poor."""
    return summary.is_provisional and (summary.level == WITHOUT_MODEL or not summary.supersedes)
