"""The rungs that are tried in order until one yields a request to send.

The rungs are a new epoch; a minimal one, if the plan of that failed and the ceiling needs an epoch; the active epoch;
and the client's own request. An epoch is in the log before anything is sent under it. If the log does not accept it, it
changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.conversation import PlanInputs
from proxy.context.epoch_decision import AWAITED, NEEDED, PRICED, decide, forecast_calls, record_epoch
from proxy.context.verbatim import RECENT_GROUPS, find_tail
from proxy.engine.context.accounting import tell_failure, tell_opened, tell_unreachable
from proxy.engine.context.epoch_planner import (
    DraftedPlan,
    EpochPlanner,
    RenderedPlan,
    list_originals,
    reduce_epoch,
)
from proxy.engine.context.epoch_scope import make_own_body
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.context.request_state import NO_MEMORY, EpochMemory, OutgoingRequest, RequestState, StateReader
from proxy.engine.context.rewriter import Invalid, Rewriter
from proxy.engine.context.tool_offers import NO_RECALLED
from proxy.engine.runtime import EngineBus
from proxy.model import Value
from proxy.model.epoch import Epoch, EpochReason, Original, Recalled, ReducedForm, Rung
from proxy.model.errors import Conflict, StoreUnavailable
from proxy.wire import FORMATS

Commit = Callable[[Epoch], Awaitable[bool]]
"""Writes an epoch, and what it refers to, to the log. Returns whether that succeeded."""

_UNCOMPACTED = (
    "a session goes on without the provider's own compaction, which the upstream refused, or is to have no more"
)
# Seconds that a call waits for a plan that it can do without, because it is below its ceiling.
SOFT_WAIT = 0.25
# The size of what is sent in place of a request that was too long, as a share of it, if the limit is not known.
BLIND_SHARE = 0.7
# The share of the usable tokens by which a request may have grown more than a plan made ahead expects.
_MOST_EXCESS = 0.1
# A plan is made ahead if the next epoch is expected to open after at most so many further calls. A summary of what it
# takes is begun two calls before it, and depends on that plan.
_LEAD_CALLS = 3

# How rungs are named to people, and the errors whose words are shown to them.
_RUNG_NAMES: Mapping[Rung, str] = {"plan": "a plan", "epoch": "the active epoch", "minimal": "a minimal plan"}
_QUOTED = (Invalid, TimeoutError, StoreUnavailable)

_log = logging.getLogger("palimpsest.context")


class _EarlierPlan(NamedTuple):
    """A plan that was drafted for an earlier request. It leaves `excess` more tokens of this one than expected."""

    draft: RenderedPlan
    excess: int


class _EpochRequest(Value):
    """An epoch that is to open. `name` is its id; `seconds` is how long its plan may take.

    `failures` gets what went wrong at each rung, by its name. If `is_anew`, the plan carries on nothing of the active
    epoch, which may be what has failed.
    """

    why: EpochReason
    commit: Commit
    name: str
    seconds: float
    failures: dict[Rung, Exception]
    is_anew: bool = False


class FallbackChain:
    """Finds the first rung that works. `context/epoch_decision` has decided before whether an epoch should open.

    If it `is_patient`, every plan is awaited as long as that of an epoch which the ceiling needs.
    """

    def __init__(
        self,
        states: StateReader,
        planner: EpochPlanner,
        bus: EngineBus,
        *,
        hard_wait_seconds: float,
        memory: EpochMemory = NO_MEMORY,
        is_patient: bool = False,
    ) -> None:
        self._contexts = states.caches.contexts
        self._histories = states.caches.histories
        self.planner = planner
        self._offers = states.offers
        self._rewriter = Rewriter(states.models.providers, states.offers)
        self._bus = bus
        self._clock = states.clock
        self.seconds = hard_wait_seconds  # how long a request waits at most for a summary and then its plan, together
        self._is_patient = is_patient
        self.memory = memory  # what plans of the strategy `snapshot` show

    async def run(
        self,
        state: RequestState,
        why: EpochReason | None,
        commit: Commit,
        name: str = "",
        *,
        seconds: float | None = None,
    ) -> OutgoingRequest:
        """Return what is sent. `why` is the reason to open an epoch, or None to open none; `name` is its id.

        `seconds` limits the time for its plan; None means the usual limit. An error of a rung is never raised. Where
        the client's own bytes are above the ceiling, they are sent only if no epoch can open either.
        """
        opened, failures = None, dict[Rung, Exception]()
        if why is not None:
            if seconds is None:
                is_awaited = self._is_patient or why in AWAITED
                seconds = self.seconds if is_awaited else min(SOFT_WAIT, self.seconds)
            wanted = _EpochRequest(why, commit, name or state.request.exchange, seconds, failures)
            opened = await self._open(state, wanted)
        if opened is None and not self._takes(state):
            opened = await self.open_without(state, "uncompacted", commit, name or state.request.exchange)
        sent = opened or self.keep(state, failures)
        if sent is None:
            wanted = _EpochRequest("hard", commit, name or state.request.exchange, self.seconds, failures, True)
            sent = await self._open_instead(state, wanted) or _send_own(state, None)
        return replace(sent, failed=format_failures(failures)) if failures else sent

    async def _open_instead(self, state: RequestState, wanted: _EpochRequest) -> OutgoingRequest | None:
        """Open an epoch where none can be kept, and the client's own request is above the ceiling."""
        own = replace(state, epoch_tokens=state.history.count_to(state.depth))
        facts = replace(own.facts, is_repeat=False, is_retry=False, is_unshortened=False)
        if own.epoch is None or decide(own.account, facts).why != "hard":
            return None
        async with own.context.opening:
            return await self._open_rungs(own, wanted, ("plan", "minimal"))

    def _takes(self, state: RequestState) -> bool:
        """Return whether the upstream takes what is sent under the active epoch: it may have a compaction."""
        is_compacted = state.epoch is not None and state.epoch.is_compacted
        return not is_compacted or self.planner.takes_compactions(state.request)

    def keep(self, state: RequestState, failures: dict[Rung, Exception] | None = None) -> OutgoingRequest | None:
        """Return the request under its active epoch, or None if there is none or the result is invalid.

        `failures` gets the error.
        """
        epoch = state.epoch
        if epoch is None or not self._takes(state):
            return None
        if not epoch.depth:
            return _send_own(state, epoch)
        is_opened = epoch.id in state.context.unsent
        try:  # without pins: a pin takes effect in the next epoch
            recalled = _list_recalled(state, epoch)
            body = self._rewriter.rewrite(state.request, state.history, epoch, changed=state.changed, recalled=recalled)
        except Exception as error:  # noqa: BLE001 - a boundary: the next rung is tried
            tell_failure(self._bus, state, "epoch", error)
            if failures is not None:
                failures["epoch"] = error
            return None
        return OutgoingRequest("epoch", body, state.tokens, epoch, is_opened=is_opened, removed=tuple(state.changed))

    async def open_by_hand(self, state: RequestState, goal: Budget, commit: Commit, name: str) -> Epoch | None:
        """Open the epoch that a user asks for, with a ledger for the budget `goal`. Its plan has no time limit.

        Return None if nothing gets shorter. Raises Conflict if another epoch was opened meanwhile, ValueError if the
        result is invalid, and StoreUnavailable.
        """
        state = await self.memory.add(state, self.seconds)
        context, inputs = state.context, replace(state.list_inputs("manual"), goal=goal)
        draft = await self.planner.draft(state.request, state.history, inputs)
        async with context.opening:
            if context.find(state.view, state.request, is_next=True) is not state.epoch:
                raise Conflict("another epoch was opened meanwhile; GET /-/api/sessions/SESSION/epochs shows it")
            wanted = _EpochRequest("manual", commit, name, self.seconds, {})
            outgoing = await self._open_planned(state, draft, wanted, "plan") if draft.exceeds(state.epoch) else None
            if outgoing is None or outgoing.epoch is None:
                return None
            if not context.was_sent(state.view, state.request):  # the same history stays under the same epoch
                context.choose(state.view, state.request, state.epoch.id if state.epoch is not None else "")
            context.unsent.add(outgoing.epoch.id)
            return outgoing.epoch

    async def open_without(
        self, state: RequestState, form: ReducedForm, commit: Commit, name: str
    ) -> OutgoingRequest | None:
        """Open an epoch that renders what was sent in a reduced form, since the upstream refused more.

        Bound reasoning goes, too, since it was made behind other words. Return None if the form has all that was sent,
        or if the result is invalid.
        """
        draft = reduce_epoch(state.request, state.epoch, form, state.history.signed)
        if draft is None:
            return None
        wanted = _EpochRequest(form, commit, name, self.seconds, {})
        begun, _ = await self._try(state, "epoch", self._open_reduced(state, draft, wanted))
        return begun

    async def _open_reduced(
        self, state: RequestState, draft: RenderedPlan, wanted: _EpochRequest
    ) -> OutgoingRequest | None:
        """Record an epoch in a reduced form and make it active. Return None if it is the one that is active."""
        request, parent, removed = state.request, state.epoch, list[int]()
        if wanted.why == "unsigned" or state.context.reasoning.binds_in(request):
            signed = state.history.signed
            removed = [place for place in signed if place >= state.depth and place not in state.changed]
            strip = FORMATS[request.wire].strip_reasoning
            draft = RenderedPlan(draft.plan, tuple(map(strip, draft.rendered)))
        originals, tool = (parent.originals, parent.tool) if parent is not None else ((), b"")
        kept = b"" if wanted.why == "untooled" else tool
        state = replace(state, tool=kept, tool_tokens=self._offers.count(request, kept))
        is_same = parent is None or (draft.rendered == parent.rendered and state.tool == tool)
        if is_same and not removed:
            return None
        frozen, tokens = await self.measure(state, draft)
        if wanted.why == "unsigned":
            recalled = state.count_recalled(state.depth) - state.count_recalled(draft.plan.through) if tool else 0
            tokens = state.tokens - state.count_removed(removed) - recalled
        elif wanted.why == "untooled":
            tokens = state.tokens - self._offers.count(request, tool) - state.count_recalled(state.depth)
        epoch = self._make_epoch(state, draft, originals, wanted.why, wanted.name, tokens=tokens)
        if wanted.why == "uncompacted":
            _log.warning("%s", _UNCOMPACTED, extra={"session": epoch.session})
        body = self._rewrite(state, epoch)
        await self._record(state, epoch, wanted.commit, frozen)
        state.find_account(epoch).account = state.account
        return OutgoingRequest("epoch", body, tokens, epoch, is_opened=True, removed=tuple(removed))

    async def _record(self, state: RequestState, epoch: Epoch, commit: Commit, frozen: int) -> None:
        """Make an epoch active, for which `frozen` tokens are sent, once it is in the log. Raises StoreUnavailable."""
        if not await commit(epoch):
            raise StoreUnavailable("the log did not take the epoch in time")
        self._contexts.add(epoch.session, epoch, len(state.request.nodes))
        state.context.sizes[epoch.id] = frozen
        tell_opened(self._bus, state.request, epoch)

    async def _open(self, state: RequestState, wanted: _EpochRequest) -> OutgoingRequest | None:
        """Open an epoch, or use one that another request opened meanwhile. Return None to use the next rung."""
        async with state.context.opening:
            found = state.context.find(state.view, state.request)
            if found is not None and found is not state.epoch:
                frozen = await self._histories.count_messages(state.request, found.rendered)
                tool_tokens = self._offers.count(state.request, found.tool)
                state = state.with_epoch(found, frozen + tool_tokens, tool_tokens)
                if state.tokens < state.budget.high:
                    return self.keep(state, wanted.failures)
            # A request above the ceiling is cut even if its plan is late or fails.
            is_needed = wanted.why in NEEDED or state.tokens >= state.budget.high
            return await self._open_rungs(state, wanted, ("plan", "minimal") if is_needed else ("plan",))

    async def _open_rungs(
        self, state: RequestState, wanted: _EpochRequest, rungs: Sequence[Rung]
    ) -> OutgoingRequest | None:
        """Open an epoch at the first of these rungs that works, of those that have not failed yet."""
        for rung in rungs:
            if rung in wanted.failures:
                continue
            opened, error = await self._try(state, rung, self._plan_and_open(state, wanted, rung))
            if error is not None:
                wanted.failures[rung] = error
            # If a plan makes nothing shorter, or the log is unavailable, a minimal plan cannot help either.
            if error is None or isinstance(error, StoreUnavailable):
                return opened
        return None

    async def _try(
        self, state: RequestState, rung: Rung, work: Awaitable[OutgoingRequest | None]
    ) -> tuple[OutgoingRequest | None, Exception | None]:
        """Return the result of a rung, and its error."""
        try:
            return await work, None
        except Exception as error:  # noqa: BLE001 - a boundary: the next rung is tried
            tell_failure(self._bus, state, rung, error)
            return None, error

    async def _plan_and_open(self, state: RequestState, wanted: _EpochRequest, rung: Rung) -> OutgoingRequest | None:
        if rung == "minimal":
            inputs = state.list_inputs(wanted.why, is_anew=wanted.is_anew)
            draft = await self.planner.draft_minimal(state.request, state.history, inputs)
        else:
            began = self._clock.monotonic()
            state = await self.memory.add(state, wanted.seconds)
            left = max(0.0, wanted.seconds - (self._clock.monotonic() - began))
            draft = await self._plan(state, wanted, left)
            if wanted.why in PRICED and decide(state.account, state.planned_facts).why is None:
                return None  # the plan itself does not pay; it is kept
            state.context.forget_drafted()
        tell_unreachable(self._bus, state, draft.plan.beyond and draft.plan.beyond + state.budget.lifted)
        if not draft.plan.through:
            _note_unshortened(state)
            return None
        return await self._open_planned(state, draft, wanted, rung)

    async def _plan(self, state: RequestState, wanted: _EpochRequest, left: float) -> RenderedPlan:
        """Return the plan that was drafted ahead if it holds for this request, else its own. Raises TimeoutError.

        A plan that is late, after what is `left` of its seconds, is kept for the next request. Errors name the limit
        and not what was left of it, so that the log counts them as one line.
        """
        clock, context = asyncio.get_running_loop().time, state.context
        deadline = clock() + left
        if context.drafting is not None:
            await self.planner.wait(context.drafting, left)
        if context.drafting is not None:
            raise TimeoutError(f"the plan of an earlier request takes more than {wanted.seconds:g} s")
        inputs = state.list_inputs(wanted.why, is_anew=wanted.is_anew)
        if wanted.why in PRICED and (unpaid := _find_unpaid(state, inputs)):
            return unpaid
        earlier = await _find_drafted(self._histories, state, inputs)
        if earlier is not None and earlier.excess <= _MOST_EXCESS * state.budget.usable:
            return earlier.draft
        drafting = self._draft(state, inputs)
        await self.planner.wait(drafting, deadline - clock())
        if earlier is not None and not (drafting.done() and drafting.exception() is None):
            return earlier.draft
        if not drafting.done():
            raise TimeoutError(f"planning took more than {wanted.seconds:g} s")
        return drafting.result()

    async def foresee(self, state: RequestState, why: EpochReason) -> RenderedPlan:
        """Return the plan with which an epoch would open for a request now. Nothing is kept of it."""
        if state.context.drafting is not None:
            await self.planner.wait(state.context.drafting, self.seconds)
        inputs = state.list_inputs(why)
        earlier = await _find_drafted(self._histories, state, inputs)
        if earlier is not None and earlier.excess <= _MOST_EXCESS * state.budget.usable:
            return earlier.draft
        return await self.planner.draft(state.request, state.history, inputs)

    def draft_ahead(self, state: RequestState) -> None:
        """Plan the next epoch behind a request if one of the next calls probably opens it.

        What opens it then only renders and checks that plan.
        """
        if state.request.strategy != "epochs" or state.request.is_side:
            return
        if forecast_calls(state.account, state.facts, state.growth, _LEAD_CALLS) > _LEAD_CALLS:
            return
        inputs = state.list_inputs("soft")
        is_unpaid = _find_unpaid(state, inputs) is not None
        if state.context.is_draft_due(state.request, state.epoch, inputs, is_unpaid=is_unpaid):
            self._draft(state, replace(inputs, growth=max(1, int(state.growth))))

    def _draft(self, state: RequestState, inputs: PlanInputs) -> "asyncio.Future[RenderedPlan]":
        """Start to draft a plan, for this request or ahead, and keep it for later requests."""
        request, structures = state.request, state.history.structures
        is_ahead = inputs.growth > 0
        drafting = self.planner.draft(request, state.history, inputs, is_ahead=is_ahead)
        tail = find_tail(structures, len(structures), RECENT_GROUPS - 1) if is_ahead else find_tail(structures)
        state.context.note_drafted(DraftedPlan(request.view, request.nodes, state.epoch, inputs, drafting, tail))
        # there may be no later call that weighs it
        drafting.add_done_callback(lambda _: self._contexts.weigh(request.session.id))
        return drafting

    async def measure(self, state: RequestState, draft: RenderedPlan) -> tuple[int, int]:
        """Count the tokens of what is sent for a plan, and of all that is sent of a request under it."""
        frozen = await self._histories.count_messages(state.request, draft.rendered) + state.tool_tokens
        return frozen, _count_under(state, draft, frozen)

    def render(
        self, state: RequestState, draft: RenderedPlan, why: EpochReason, name: str, tokens: int
    ) -> tuple[Epoch, bytes]:
        """Return the epoch of a plan, with this id, and what is sent of a request under it. Raises Invalid."""
        known = {original.id: original for epoch in state.context.epochs for original in epoch.originals}
        originals = list_originals(draft.plan, state.request, known)
        epoch = self._make_epoch(state, draft, originals, why, name, tokens=tokens)
        pinned = state.context.list_pinned(state.request.nodes) | state.request.list_unkept()
        return epoch, self._rewrite(state, epoch, pinned)

    def _rewrite(self, state: RequestState, epoch: Epoch, pinned: Collection[int] = ()) -> bytes:
        """Return what is sent under a new epoch. Raises Invalid."""
        request, changed = state.request, state.context.reasoning.find_changed(state.request, epoch)
        recalled = _list_recalled(state, epoch)
        return self._rewriter.rewrite(request, state.history, epoch, pinned, changed=changed, recalled=recalled)

    async def _open_planned(
        self, state: RequestState, draft: RenderedPlan, wanted: _EpochRequest, rung: Rung
    ) -> OutgoingRequest | None:
        """Record an epoch and make it active. Return None if it makes nothing shorter."""
        frozen, tokens = await self.measure(state, draft)
        protected = state.history.head.tokens + draft.plan.protected
        state.context.protected[state.view] = protected
        if tokens >= state.tokens:
            _note_unshortened(state)
            return None
        epoch, body = self.render(state, draft, wanted.why, wanted.name, tokens)
        await self._record(state, epoch, wanted.commit, frozen)
        account = record_epoch(state.account, state.tokens, tokens, protected, state.budget)
        state.find_account(epoch).account = account
        return OutgoingRequest(rung, body, tokens, epoch, is_opened=True, removed=(*state.list_bound(), *state.changed))

    def _make_epoch(
        self,
        state: RequestState,
        draft: RenderedPlan,
        originals: tuple[Original, ...],
        why: EpochReason,
        name: str,
        *,
        tokens: int,
    ) -> Epoch:
        return Epoch(
            id=name,
            session=state.request.session.id,
            view=state.view,
            parent=state.epoch.id if state.epoch is not None else "",
            through=state.request.nodes[draft.plan.through - 1],
            depth=draft.plan.through,
            why=why,
            exchange=state.request.exchange,
            opened_ms=self._clock.now_ms(),
            tokens_before=state.to_model_tokens(state.tokens),
            tokens_after=state.to_model_tokens(tokens),
            edits=msgspec.json.encode(draft.plan.edits),
            rendered=draft.rendered,
            originals=originals,
            tool=state.tool,
        )


def _find_unpaid(state: RequestState, inputs: PlanInputs) -> RenderedPlan | None:
    """Return the plan that is kept if it shows that an epoch does not pay, and the request has grown little since."""
    drafted, history = state.find_drafted(), state.history
    if drafted is None or not drafted.is_like(inputs):
        return None
    fresh = history.tokens - history.head.tokens - history.count_to(min(len(drafted.nodes), len(history.nodes)))
    if fresh - drafted.inputs.growth > _MOST_EXCESS * state.budget.usable:
        return None
    return drafted.drafting.result() if decide(state.account, state.planned_facts).why is None else None


async def _find_drafted(histories: HistoryCounter, state: RequestState, inputs: PlanInputs) -> "_EarlierPlan | None":
    """Return the plan that is kept if it holds for a request, makes it shorter, and leaves it below its ceiling."""
    drafted = state.find_drafted()
    if drafted is None or not drafted.applies(inputs, state.history.structures):
        return None
    draft = drafted.drafting.result()
    frozen = await histories.count_messages(state.request, draft.rendered)
    tokens = state.history.tokens - state.history.count_to(draft.plan.through) + frozen
    tokens += state.count_recalled(draft.plan.through) if state.tool else 0
    excess = tokens - state.history.head.tokens - drafted.tokens
    tokens += state.tool_tokens
    return _EarlierPlan(draft, excess) if tokens < min(state.budget.high, state.tokens) else None


def _count_under(state: RequestState, draft: RenderedPlan, frozen: int) -> int:
    """Count the tokens of a request under a plan, for which `frozen` tokens are sent."""
    plan, history = draft.plan, state.history
    is_bound = state.context.reasoning.binds_in(state.request)
    later = [place for place in history.signed if place >= plan.through] if is_bound else []
    tokens = history.tokens - history.count_to(plan.through) + frozen - state.count_removed(later)
    return tokens + (state.count_recalled(plan.through) if state.tool else 0)


def format_failures(failures: Mapping[Rung, Exception]) -> str:
    """Say why rungs failed, in the order in which they were tried.

    Only errors with words of ours are quoted: others may quote the conversation.
    """
    told = {rung: str(each) if isinstance(each, _QUOTED) else type(each).__name__ for rung, each in failures.items()}
    return "; ".join(f"{_RUNG_NAMES.get(rung, rung)}: {problem}" for rung, problem in told.items())


def _note_unshortened(state: RequestState) -> None:
    state.context.unshortened[state.view] = state.tokens, state.request.chain.tip


def _send_own(state: RequestState, epoch: Epoch | None) -> OutgoingRequest:
    """Return the client's own messages, without reasoning that was made under an epoch. `epoch` replaces none."""
    changed = state.changed if epoch is state.epoch else state.context.reasoning.find_changed(state.request, epoch)
    tokens = state.client_tokens - state.count_removed(changed)
    return OutgoingRequest("original", make_own_body(state.request, changed), tokens, epoch, removed=tuple(changed))


def _list_recalled(state: RequestState, epoch: Epoch) -> Mapping[int, Recalled]:
    """Return what a model recalled that is sent under an epoch, by the last message of its answer."""
    if not (state.recalled and epoch.tool):
        return NO_RECALLED
    behind = {place: each for place, each in state.recalled.items() if place >= epoch.depth}
    return state.context.reasoning.strip_recalled(state.request, epoch, behind)
