"""The background worker: what becomes of a branch that stands above its soft mark (BEHAVIOUR B27, B30, B32a).

Rule: one at a time for each branch, under a lease; beside the calls, which never wait for it but above the high mark.
A summary is in the log before anybody uses it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from proxy.context.builder import find_reports_room
from proxy.context.compaction.spans import MessageRange, choose_run, choose_span, is_progress, list_nodes, says_more
from proxy.context.conversation import Survey
from proxy.engine.boundary import attempt
from proxy.engine.compaction.branches import Branches, Making
from proxy.engine.compaction.drafting import Drafter
from proxy.engine.compaction.keys import Keys
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import Purse
from proxy.engine.compaction.urgency import Urgency
from proxy.engine.compaction.work import Latest, Made, Wish, Work, find_foreign, find_references
from proxy.engine.context.epoch_planner import PlanInputs
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.ports import Archive, Leases
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EventBus, TaskRunner
from proxy.model.errors import Conflict
from proxy.model.events import SummaryAdded
from proxy.model.summary import Summary

# The part of what is usable that a span must have to be worth a call.
WORTH = 0.5
# The same where ledgers tell of it already.
_WORTH_IN_LEDGERS = 1.0
# What a span must have that a person wants a report of: of less, it would be no shorter.
LEAST = 600
# In so many spans a conversation is reported at a time, where all of it does not go in one.
_MOST_BY_HAND = 8
# By how much of what is usable a conversation must grow before what was in vain is tried again.
# The part of the time that a request waits at most which it may wait for a summary.
_SUMMARY_SHARE = 0.75
_GROWN = 0.15
# A lease is renewed for each question, and so outlasts it: whoever was killed holds it no longer than two would take.
_TIMES = 2
_DETERMINISTIC = 3
_ASSUMED_WINDOW = 128_000

_BUSY = "a summary of this conversation is being made; ask again when it is there"
_LOST = "another process has taken over this conversation's summaries, or another branch is at the same"
_NOT_KEPT = "the log did not take a summary in time"

_log = logging.getLogger("palimpsest.compaction")

LookAt = Callable[[Latest, PlanInputs], Survey]
"""The survey of a conversation. Blocks."""


@dataclass(frozen=True, slots=True)
class Shop:
    """What the worker works with. `owner` names this process among those that share a log."""

    archive: Archive
    gate: DurabilityWaiter
    leases: Leases
    memory: ContextCaches
    tasks: TaskRunner
    bus: EventBus
    keys: Keys
    purse: Purse
    urgency: Urgency
    look_at: LookAt
    owner: str


class Worker:
    """Makes summaries of what was sent."""

    def __init__(self, policy: CompactionPolicy, shop: Shop, drafter: Drafter) -> None:
        self._policy = policy
        self._shop = shop
        self._drafter = drafter
        self._branches = Branches()
        self._lease_seconds = _TIMES * policy.time_limit_seconds

    def start(self, latest: Latest) -> None:
        """Have a branch seen to, unless it is."""
        if self._branches.find(latest.session, latest.nodes) is None and self._is_worth(latest):
            lease = self._branches.name(latest)
            self._enter(latest, lease, latest.case.subject.session.upstream, self._see_to(latest, lease))

    def _enter(self, latest: Latest, lease: str, upstream: str, work: Coroutine[Any, Any, None]) -> Making:
        making = Making(latest.nodes, lease, upstream, self._shop.tasks.spawn(work))
        self._branches.enter(latest, making)
        return making

    def _is_worth(self, latest: Latest) -> bool:
        """Whether there may be something to do by now, as far as that is told without looking at the messages.

        What was sent in a ledger counts less, as a report of it says little that the ledger does not. It counts
        because all of a conversation is in ledgers by now where each epoch opens as soon as the soft mark is passed.
        """
        case, count = latest.case, len(latest.nodes)
        if self._branches.is_in_vain(latest):
            return False
        live = case.context.list_summaries(latest.nodes)
        depth = latest.epoch.depth if latest.epoch is not None else 0
        begin = live[-1].stop if live else 0
        untold, unreported = case.path.count(max(depth, begin), count), case.path.count(begin, count)
        is_enough = untold >= WORTH * case.budget.usable or unreported >= _WORTH_IN_LEDGERS * case.budget.usable
        return (is_enough or any(map(_is_unfinished, live))) and self._shop.urgency.is_due(latest)

    def _pause(self, latest: Latest) -> None:
        """Nothing came of it: look again when the conversation has grown."""
        self._branches.note_vain(latest, latest.case.path.tokens + int(_GROWN * latest.case.budget.usable))

    def stop_at(self, upstream: str) -> None:
        """Make way: a client's call has come to a server that does one thing at a time."""
        for making in self._branches.list_at(upstream):
            making.task.cancel()

    async def wait(self, subject: ManagedRequest) -> None:
        """Return when nothing is being made for a request's branch, or it has waited for long enough.

        The request's plan, which is made afterwards, has the rest of the time (BEHAVIOUR B8b).
        """
        if self._policy.hard_wait_seconds:
            await self.wait_out(subject, _SUMMARY_SHARE * self._policy.hard_wait_seconds)

    async def wait_out(self, subject: ManagedRequest, seconds: float) -> bool:
        """Wait for what is being made for a request's branch, so long at most; whether there was anything."""
        making = self._branches.find(subject.session.id, subject.nodes)
        if making is None:
            return False
        await asyncio.wait((making.task,), timeout=seconds)
        return True

    async def compact(self, latest: Latest, wish: Wish) -> Made:
        """Reports of all that may go, because a person wishes so; made to the end though nobody should wait for them.

        Raises Conflict where others are being made for the branch.
        """
        made, session = Made(), latest.session
        if self._branches.find(session, latest.nodes) is not None:
            raise Conflict(_BUSY)
        before, lease = self._shop.purse.find_extra(session), self._branches.name(latest)
        making = self._enter(latest, lease, "", self._fulfil_safely(latest, lease, wish, made))
        await asyncio.wait((making.task,))
        if made.is_refused:
            raise Conflict(_BUSY)
        made.cost = self._shop.purse.find_extra(session) - before
        return made

    async def _hold(self, lease: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Work while a branch is ours; False where it is not."""
        shop = self._shop
        if not await shop.leases.acquire(lease, shop.owner, self._lease_seconds):
            return False
        try:
            await work()
        finally:
            await shop.leases.release(lease, shop.owner)
        return True

    async def _fulfil_safely(self, latest: Latest, lease: str, wish: Wish, made: Made) -> None:
        problems: list[Exception] = []
        is_ours = await attempt(self._hold(lease, partial(self._fulfil, latest, wish, made)), problems.append)
        made.is_refused = is_ours is False
        for problem in problems:
            _log.error("session %s: a summary could not be made", latest.session, exc_info=problem)
            made.say(f"{type(problem).__name__}: {problem}")

    async def _fulfil(self, latest: Latest, wish: Wish, made: Made) -> None:
        """Report what no report is of yet; where models can be asked, make one again that is not as it should be."""
        context, nodes, survey = latest.case.context, latest.nodes, await self._survey(latest)
        for _ in range(_MOST_BY_HAND):
            work = self._choose(latest, survey, context.list_summaries(nodes), is_needed=True)
            if work is None or not await self._fulfil_one(replace(work, wish=wish), made):
                break
        if all(each.level < _DETERMINISTIC for each in made.summaries):
            again = await self._choose_again(latest, survey, context.list_summaries(nodes))
            if again is not None:
                await self._fulfil_one(replace(again, wish=wish), made)
        if self._policy.condensation:
            for merged in await self.condense(latest, survey, wish):
                made.note(merged, is_kept=True)

    async def _fulfil_one(self, work: Work, made: Made) -> bool:
        """One report of several; whether it is there, so that there may be a next one."""
        drafted = await self._draft(work, is_needed=True)
        if drafted is None:
            made.say(_LOST)
            return False
        if _is_in_vain(work, drafted):
            made.note(drafted, is_kept=False)
            return False
        is_kept = await self._keep(work, drafted)
        made.note(drafted, is_kept=is_kept)
        made.say("" if is_kept else _NOT_KEPT)
        return is_kept

    async def _see_to(self, latest: Latest, lease: str) -> None:
        problems: list[Exception] = []
        await attempt(self._hold(lease, partial(self._work, latest)), problems.append)
        for problem in problems:
            _log.error("session %s: a summary could not be made", latest.session, exc_info=problem)
            self._pause(latest)

    async def _work(self, latest: Latest) -> None:
        survey = await self._survey(latest)
        made = await self._report(latest, survey)
        if made is None:
            self._pause(latest)
        elif self._policy.condensation:
            await self.condense(latest, survey)

    async def _survey(self, latest: Latest) -> Survey:
        case = latest.case
        ground = PlanInputs(case.budget, None, case.context.list_pinned(latest.nodes))
        return await asyncio.to_thread(self._shop.look_at, latest, ground)

    async def _report(self, latest: Latest, survey: Survey, *, is_needed: bool = False) -> Summary | None:
        """The next report of a branch; where there is nothing new, one that is better made again."""
        live = latest.case.context.list_summaries(latest.nodes)
        work = self._choose(latest, survey, live, is_needed=is_needed)
        work = work or await self._choose_again(latest, survey, live)
        return None if work is None else await self._make(work, is_needed=is_needed)

    def _choose(self, latest: Latest, survey: Survey, live: Sequence[Summary], *, is_needed: bool) -> Work | None:
        """What no report is of yet, where it is worth one."""
        budget = latest.case.budget
        begin = live[-1].stop if live else 0
        span = choose_span(survey, begin, int(self._policy.input_fraction * (budget.window or _ASSUMED_WINDOW)))
        if span is None or span.tokens < (LEAST if is_needed else WORTH * budget.usable):
            return None
        return _plan(latest, survey, span)

    async def _choose_again(self, latest: Latest, survey: Survey, live: Sequence[Summary]) -> Work | None:
        """The oldest that was made in a lesser way."""
        again = next(filter(_is_unfinished, live), None)
        if again is None:
            return None
        if again.parents:
            known = await self._list_known(live)
            if not all(id in known for id in again.parents):
                return None
            return _merge(latest, survey, [known[id] for id in again.parents], (again.id,))
        return _plan(latest, survey, MessageRange(again.start, again.stop, again.covered), (again.id,))

    async def _make(self, work: Work, *, is_needed: bool = False) -> Summary | None:
        made = await self._draft(work, is_needed=is_needed)
        if made is None or _is_in_vain(work, made):
            return None
        return made if await self._keep(work, made) else None

    async def _draft(self, work: Work, *, is_needed: bool) -> Summary | None:
        """One report, made while the branch is ours; None also where that is lost, or another branch is at the same."""
        latest, shop = work.latest, self._shop
        making = self._branches.find(latest.session, latest.nodes)
        piece = work.span.start, latest.nodes[work.span.stop - 1]
        if making is None or not self._branches.claim(latest.session, making, piece):
            return None
        renew = partial(shop.leases.renew, making.lease, shop.owner, self._lease_seconds)
        key = shop.keys.find(latest.session, latest.case.subject.tip)
        return await self._drafter.draft(work, key, renew, is_needed=is_needed)

    async def _keep(self, work: Work, made: Summary) -> bool:
        """Have the log take a summary, and use it from then on."""
        shop, context = self._shop, work.latest.case.context
        if not await shop.gate.confirm(shop.archive.append(made)):
            _log.warning("session %s: %s", made.session, _NOT_KEPT)
            return False
        for replaced in (*made.supersedes, *made.parents):
            if not any(replaced.encode() in epoch.edits for epoch in context.epochs):
                self._book_loss(context.get_summary(replaced))
        context.add_summary(made)
        shop.memory.contexts.add_summary(made)  # which may have another one by now
        shop.bus.publish(
            SummaryAdded(made.id, made.session, made.exchange, made.kind, made.level, made.covered, made.tokens)
        )
        return True

    def _book_loss(self, summary: Summary | None) -> None:
        """One that was paid for has gone before anything was sent under it."""
        if summary is not None and summary.calls:
            self._shop.purse.book_loss(summary.session, summary.calls)

    async def condense(self, latest: Latest, survey: Survey, wish: Wish | None = None) -> list[Summary]:
        """Merge what has become too much, round by round, as long as that gets smaller; what came of each round.

        What nobody is shown takes no room, and stays as it is until a model has made it again.
        """
        merged: list[Summary] = []
        room = find_reports_room(latest.case.budget.usable)
        for _ in range(self._policy.max_rounds):
            live = list(filter(says_more, latest.case.context.list_summaries(latest.nodes)))
            if sum(each.tokens for each in live) <= room:
                break
            known = await self._list_known(live)
            run = choose_run(list_nodes(live, known), room)
            if not run:
                break
            work = replace(_merge(latest, survey, [known[node.id] for node in run]), wish=wish)
            made = await self._draft(work, is_needed=True)
            if made is None or not is_progress(run, made.tokens) or not await self._keep(work, made):
                break
            merged.append(made)
        return merged

    async def _list_known(self, live: Sequence[Summary]) -> dict[str, Summary]:
        """These and all that they were made of, those first; some may be of sessions that this one goes on from."""
        sessions = dict.fromkeys(each.session for each in live)
        stored = [each for session in sessions for each in await self._shop.archive.list_summaries(session)]
        return {each.id: each for each in sorted((*stored, *live), key=lambda each: each.made_ms)}


def _is_in_vain(work: Work, made: Summary) -> bool:
    """Whether what was to be better than another is not."""
    return bool(work.supersedes) and made.level == _DETERMINISTIC


def _is_unfinished(summary: Summary) -> bool:
    """Whether it is to be made again: until a model has written it, and once more where that was no good."""
    return summary.is_provisional and (summary.level == _DETERMINISTIC or not summary.supersedes)


def _plan(latest: Latest, survey: Survey, span: MessageRange, supersedes: tuple[str, ...] = ()) -> Work:
    return Work(
        latest, survey, span, find_references(latest, span), find_foreign(latest, survey), supersedes=supersedes
    )


def _merge(latest: Latest, survey: Survey, parents: Sequence[Summary], supersedes: tuple[str, ...] = ()) -> Work:
    span = MessageRange(parents[0].start, parents[-1].stop, sum(parent.covered for parent in parents))
    files = tuple(dict.fromkeys(id for parent in parents for id in parent.files))
    return Work(latest, survey, span, files, find_foreign(latest, survey), tuple(parents), supersedes)
