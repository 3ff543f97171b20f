"""From what a request should be sent as down to what it can be sent as (BEHAVIOUR B8).

Rule: each rung bears or leads to the next: an epoch that opens now, the epoch that stands, a minimal one, the client's
own bytes. An epoch is in the log before anything is sent under it, and one that is refused changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from proxy.context.budget import Budget
from proxy.context.epoch_decision import record_epoch
from proxy.engine.boundary import attempt, attempt_now
from proxy.engine.context.epoch_planner import EpochPlanner, PlanInputs, RenderedPlan, read_plan
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.rewriter import Rewriter
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.ports import Clock
from proxy.engine.runtime import EventBus
from proxy.model.epoch import Epoch, EpochReason, Rung, Written
from proxy.model.errors import Conflict, StoreUnavailable
from proxy.model.events import CeilingUnreachable, EpochOpened, RungFailed

Commit = Callable[[Epoch], Awaitable[bool]]
"""Has the log keep an epoch, and with it what it refers to; whether that is done."""

_OF_OUR_OWN_ACCORD: tuple[EpochReason, ...] = ("soft", "hard", "cold", "client")
# By how much a request must have grown before what was in vain is tried again.
_GROWN = 1.05
_NEEDED: tuple[EpochReason, ...] = ("hard", "overflow")
_PLANNERS = 2

_log = logging.getLogger("palimpsest.managing")


class Footing(msgspec.Struct, frozen=True, gc=False):
    """The rung that bears: the body, its tokens as we count them, the epoch it is sent under.

    `is_opened`: no call was sent under it before.
    """

    rung: Rung
    body: bytes
    tokens: int
    epoch: Epoch | None = None
    is_opened: bool = False


class _Wish(msgspec.Struct, frozen=True, gc=False):
    """An epoch that is to open: why, who keeps it, its id, and how many seconds its plan may take."""

    why: EpochReason
    commit: Commit
    name: str
    seconds: float


class FallbackChain:
    """Climbs down. Nothing here raises what a rung did wrong."""

    def __init__(
        self,
        memory: ContextCaches,
        opener: EpochPlanner,
        rewriter: Rewriter,
        bus: EventBus,
        clock: Clock,
        hard_wait_seconds: float,
    ) -> None:
        self._contexts = memory.contexts
        self._paths = memory.paths
        self._twins = memory.twins
        self._opener = opener
        self._rewriter = rewriter
        self._bus = bus
        self._clock = clock
        self._seconds = hard_wait_seconds
        # Apart from the loop's own threads: a plan that hangs must not keep others from counting and from cutting.
        self._planners = ThreadPoolExecutor(_PLANNERS, "planning")

    @property
    def seconds(self) -> float:
        """How long a request waits at most for its plan, and for a summary before that."""
        return self._seconds

    async def climb(
        self,
        case: RequestState,
        why: EpochReason | None,
        commit: Commit,
        name: str = "",
        *,
        seconds: float | None = None,
    ) -> Footing:
        """The first rung that bears; `why` an epoch should open, None where none should, and `name` its id.

        `seconds` is how long its plan may take, where that is less than usual.
        """
        opened = None
        if why is not None and not is_fruitless(case, why):
            wish = _Wish(why, commit, name or case.subject.exchange, self._seconds if seconds is None else seconds)
            opened = await self._open(case, wish)
        if opened is not None:
            return opened
        return self.keep(case) or Footing("original", case.subject.split.content, case.client_tokens)

    def keep(self, case: RequestState) -> Footing | None:
        """The epoch that stands; None where there is none, or where what comes of it is not valid."""
        epoch = case.epoch
        if epoch is None:
            return None
        if not epoch.depth:
            return Footing("original", case.subject.split.content, case.client_tokens, epoch)
        is_opened = epoch.id in case.context.unsent
        # A later pin is for the next epoch.
        is_unsigned = case.is_unsigned(epoch)
        rewrite = partial(self._rewriter.rewrite, case.subject, case.path, epoch, is_unsigned=is_unsigned)
        body = attempt_now(rewrite, partial(self._tell, case, "epoch"))
        return None if body is None else Footing("epoch", body, case.tokens, epoch, is_opened=is_opened)

    async def open_by_hand(self, case: RequestState, goal: Budget, commit: Commit, name: str) -> Epoch | None:
        """The epoch that a person asks for, with a ledger as befits a budget of its own, however long its plan takes.

        None where nothing gets shorter by it. Raises Conflict where another was opened meanwhile, StoreUnavailable, and
        ValueError where what comes of it is not valid.
        """
        context, ground = case.context, msgspec.structs.replace(self._find_ground(case, "manual"), goal=goal)
        draft = await asyncio.to_thread(self._opener.draft, case.subject, case.path, ground)
        async with context.opening:
            if context.find(case.view, case.subject, is_next=True) is not case.epoch:
                raise Conflict("another epoch was opened meanwhile; GET /-/api/sessions/SESSION/epochs shows it")
            wish = _Wish("manual", commit, name, self._seconds)
            footing = await self._begin(case, draft, wish, "plan") if _goes_on(case, draft) else None
            if footing is None or footing.epoch is None:
                return None
            if not context.was_sent(case.view, case.subject):  # what went out at a glance goes out so again, too (B5)
                context.choose(case.view, case.subject, case.epoch.id if case.epoch is not None else "")
            context.unsent.add(footing.epoch.id)
            return footing.epoch

    async def _open(self, case: RequestState, wish: "_Wish") -> Footing | None:
        """A new epoch, or the one that another request has opened meanwhile; None where what stands is good enough."""
        async with case.context.opening:
            found = case.context.find(case.view, case.subject)
            if found is not None and found is not case.epoch:
                frozen = await self._paths.count_messages(case.subject, found.rendered)
                case = case.stand_under(found, frozen)
                if case.tokens < case.budget.high:
                    return self.keep(case)
            if taken := await self._take_over(case, wish):
                return taken
            # What is above the ceiling, and so all that does not fit, is cut though its plan is late or faulty (B8b).
            is_needed = wish.why in _NEEDED or case.tokens >= case.budget.high
            rungs: tuple[Rung, ...] = ("plan", "minimal") if is_needed else ("plan",)
            for rung in rungs:
                problems: list[Exception] = []
                opened = await attempt(self._draft_and_begin(case, wish, rung), problems.append)
                for problem in problems:
                    self._tell(case, rung, problem)
                # A plan that makes nothing shorter leaves nothing to a minimal one, and no log takes that either.
                if not problems or isinstance(problems[0], StoreUnavailable):
                    return opened
            return None

    async def _take_over(self, case: RequestState, wish: "_Wish") -> Footing | None:
        """What stands for the same messages in a session that nobody names; None where it is not short enough."""
        twin = self._find_twin(case)
        if twin is None:
            return None
        draft = RenderedPlan(read_plan(twin), twin.rendered, twin.originals)
        frozen = await self._paths.count_messages(case.subject, draft.rendered)
        if msgspec.structs.replace(case, epoch=twin, frozen=frozen).tokens >= case.budget.high:
            return None
        begin, tell = self._begin(case, draft, wish, "plan"), partial(self._tell, case, "epoch")
        begun = await attempt(begin, tell)
        return None if begun is None else msgspec.structs.replace(begun, rung="epoch", is_opened=False)

    async def _draft_and_begin(self, case: RequestState, wish: "_Wish", rung: Rung) -> Footing | None:
        if rung == "minimal":
            draft = await asyncio.to_thread(
                self._opener.draft, case.subject, case.path, self._find_ground(case, wish.why), is_minimal=True
            )
        else:
            draft = await self._draft(case, wish)
        self._say_unreachable(case, draft.plan.beyond)
        if not draft.plan.through:
            self._note_fruitless(case)
            return None
        return await self._begin(case, draft, wish, rung)

    async def _draft(self, case: RequestState, wish: "_Wish") -> RenderedPlan:
        """A draft, in time; a plan that comes too late is there for the next request."""
        context, subject, seconds = case.context, case.subject, wish.seconds
        deadline = asyncio.get_running_loop().time() + seconds
        if context.late is not None:
            await asyncio.wait((context.late,), timeout=seconds)
        if context.is_drafting:
            raise TimeoutError(f"the plan of an earlier request takes more than {seconds:g} s")
        late = context.take_late(subject)
        if late is not None and await self._is_enough(case, late):
            return late
        draft = partial(self._opener.draft, subject, case.path, self._find_ground(case, wish.why))
        drafting = asyncio.get_running_loop().run_in_executor(self._planners, draft)
        await asyncio.wait((drafting,), timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if drafting.done():
            return drafting.result()
        context.note_late(subject, drafting)
        raise TimeoutError(f"planning took more than {seconds:g} s")

    async def _is_enough(self, case: RequestState, draft: RenderedPlan) -> bool:
        """Whether a draft that was made for an earlier request leaves this one below its ceiling, and shorter."""
        frozen = await self._paths.count_messages(case.subject, draft.rendered)
        tokens = case.path.tokens - case.path.count_to(draft.plan.through) + frozen
        return tokens < min(case.budget.high, case.tokens)

    def _note_fruitless(self, case: RequestState) -> None:
        case.context.fruitless[case.view] = case.tokens, case.subject.tip

    def _find_ground(self, case: RequestState, why: EpochReason) -> PlanInputs:
        context, nodes, frozen = case.context, case.subject.nodes, case.epoch or self._find_twin(case)
        epochs = context.epochs if frozen is None else (*context.epochs, frozen)
        known = {original.id: original for epoch in epochs for original in epoch.originals}
        pinned, reports = context.list_pinned(nodes), context.list_reports(nodes)
        return PlanInputs(
            case.budget,
            frozen,
            pinned,
            reports,
            known=known,
            depth=case.account.depth,
            must_fit=why == "overflow",
        )

    def _find_twin(self, case: RequestState) -> Epoch | None:
        return self._twins.find(case.subject) if case.epoch is None else None

    async def _begin(self, case: RequestState, draft: RenderedPlan, wish: "_Wish", rung: Rung) -> Footing | None:
        """Have a draft hold from now on."""
        plan, path = draft.plan, case.path
        frozen = await self._paths.count_messages(case.subject, draft.rendered)
        tokens = path.tokens - path.count_to(plan.through) + frozen
        protected = path.head.tokens + plan.protected
        case.context.protected[case.view] = protected
        if tokens >= case.tokens:
            self._note_fruitless(case)
            return None
        epoch = _make_epoch(case, draft, wish.why, wish.name, tokens, self._clock.now_ms())
        pinned = case.context.list_pinned(case.subject.nodes) | case.subject.list_unkept()
        is_unsigned = case.is_unsigned(epoch)
        body = self._rewriter.rewrite(case.subject, path, epoch, pinned, is_unsigned=is_unsigned)
        if not await wish.commit(epoch):
            raise StoreUnavailable("the log did not take the epoch in time")
        self._contexts.add(epoch.session, epoch, len(case.subject.nodes))
        if rung == "plan":
            self._twins.note(case.subject, epoch)
        case.context.sizes[epoch.id] = frozen
        account = record_epoch(case.account, case.tokens, tokens, protected, case.budget)
        case.find_standing(epoch).account = account
        self._bus.publish(
            EpochOpened(epoch.id, epoch.session, epoch.exchange, wish.why, epoch.tokens_before, epoch.tokens_after)
        )
        return Footing(rung, body, tokens, epoch, is_opened=True)

    def _say_unreachable(self, case: RequestState, protected: int) -> None:
        """Once, until an epoch has room for all that should stay."""
        if not protected:
            case.context.told.discard(case.view)
        if not protected or case.view in case.context.told:
            return
        case.context.told.add(case.view)
        told, named = case.tell(protected), (case.subject.exchange, case.subject.session.id)
        _log.warning(
            "session %s: %d of %d usable tokens should stay as they are; some of it is shortened to keep the ceiling",
            case.subject.session.id,
            told,
            case.tell(case.budget.usable),
        )
        self._bus.publish(CeilingUnreachable(*named, case.view, told, case.tell(case.budget.usable)))

    def _tell(self, case: RequestState, rung: Rung, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        _log.warning("exchange %s: %s does not bear: %s", case.subject.exchange, rung, problem)
        self._bus.publish(RungFailed(case.subject.exchange, case.subject.session.id, rung, problem))


def is_fruitless(case: RequestState, why: EpochReason) -> bool:
    """Whether a plan made nothing shorter of late, and the request has hardly grown since, or not at all."""
    tokens, tip = case.context.fruitless.get(case.view, (0, b""))
    if why == "hard":
        return tip == case.subject.tip and tokens == case.tokens
    return why in _OF_OUR_OWN_ACCORD and tokens <= case.tokens < tokens * _GROWN


def _goes_on(case: RequestState, draft: RenderedPlan) -> bool:
    """Whether a draft is of more than the epoch that holds, or has a summary that is not in that."""
    depth, edits = (case.epoch.depth, case.epoch.edits) if case.epoch is not None else (0, b"")
    reports = [edit.report for edit in draft.plan.edits if isinstance(edit, Written) and edit.report]
    return draft.plan.through > depth or any(report.encode() not in edits for report in reports)


def _make_epoch(
    case: RequestState, draft: RenderedPlan, why: EpochReason, name: str, tokens: int, now_ms: int
) -> Epoch:
    return Epoch(
        id=name,
        session=case.subject.session.id,
        view=case.view,
        parent=case.epoch.id if case.epoch is not None else "",
        through=case.subject.nodes[draft.plan.through - 1],
        depth=draft.plan.through,
        why=why,
        exchange=case.subject.exchange,
        opened_ms=now_ms,
        tokens_before=case.tell(case.tokens),
        tokens_after=case.tell(tokens),
        edits=msgspec.json.encode(draft.plan.edits),
        rendered=draft.rendered,
        originals=draft.originals,
    )
