"""Decides what is sent for a request: its own bytes, or an epoch in place of the beginning of its history.

Below the soft mark nothing is rewritten, nor counted while the size in bytes proves that a request is below that mark.
No error here fails a call: the request is then sent as the client sent it.
"""

import logging
from typing import Protocol

from msgspec.structs import replace

from proxy.context.budget import Budget, is_below_soft_mark
from proxy.context.epoch_decision import (
    HOLDOUT,
    LATE,
    MUST_STAY,
    NO_ROOM,
    PRICED,
    REFUSED,
    REPORTING,
    SIDE,
    UNREAD,
    Decision,
    decide,
    record_use,
)
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.context.accounting import (
    AnswerAccounting,
    UsageAccounting,
    add_note,
    label_note,
    tell_preamble,
    tell_removed,
)
from proxy.engine.context.client_orders import refuse_pin, take_pin
from proxy.engine.context.epoch_scope import count_shortened, make_own_body
from proxy.engine.context.fallback import BLIND_SHARE, Commit, FallbackChain
from proxy.engine.context.request_state import OutgoingRequest, RequestState, StateReader
from proxy.engine.context.session_context import SessionContext
from proxy.engine.request import Counted, ManagedRequest, ResolvedRequest
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Epoch, EpochUse, Pin, Plan, name_view
from proxy.model.events import CeilingExceededEvent, Planned, RungFailedEvent
from proxy.model.exchange import Headers
from proxy.wire import FORMATS

# No model has a window of fewer tokens, and a request has fewer tokens than bytes: below this size it always fits.
_SAFE_BYTES = 4096

# Reasons why a request is sent as the client sent it.
NOT_CUT = "it could not be cut; the server's log says why"
_UNPROVEN = "the upstream has not accepted this credential yet"
# Reasons for an epoch that waits for a running summary.
_REPORTED = frozenset({"hard", "memory"})
_STOOD_DOWN = frozenset({NO_ROOM, REFUSED, SIDE, UNREAD, LATE})

_log = logging.getLogger("palimpsest.context")


class RunningSummaries(Protocol):
    """What is known of the summaries that are being made."""

    def is_busy(self, request: ManagedRequest) -> bool:
        """Return whether a model is working on the branch of a call, so that an epoch had better wait for it."""
        ...

    async def wait(self, request: ManagedRequest) -> None:
        """Wait for the running work on the branch of a call, for a bounded time."""
        ...


class ContextController:
    """Decides what is sent for each request. Compaction also opens epochs, so it shares `states` and `chain`."""

    def __init__(
        self,
        states: StateReader,
        chain: FallbackChain,
        summaries: RunningSummaries,
        bus: EngineBus,
    ) -> None:
        self.states = states
        self.chain = chain
        self._caches = states.caches
        self.accounting = UsageAccounting(states.caches.sent, states.calibrator)
        self.bus = bus
        self._summaries = summaries
        self._clock = states.clock
        AnswerAccounting(bus, states.models.prices, states.calibrator, states.caches.prompts)

    def decide_at_once(self, request: ResolvedRequest) -> OutgoingRequest | None:
        """Return what is sent if that is known without waiting. Return None if `decide` is needed.

        Most calls are decided here: short requests, and requests that keep their epoch and have few new messages.
        """
        if not isinstance(request, ManagedRequest):
            return self._pass_unread(request)
        try:
            return self._decide_at_once(request)
        except Exception:  # noqa: BLE001 - a boundary: `decide` tries again
            _log.exception(
                "the first decision about a request failed; a second one follows. Please report this line",
                extra={"exchange": request.exchange, "session": request.session.id},
            )
            return None

    async def decide(self, request: ManagedRequest, commit: Commit) -> OutgoingRequest:
        """Return what is sent. Wait for the log, for token counts and for a plan, each for a bounded time.

        `commit` writes an epoch to the log. Never raises: a request that cannot be managed is sent as it came.
        """
        pins: tuple[Pin, ...] = ()
        labels: Headers = ()
        try:
            if reason := await self._find_exemption(request):
                labels = refuse_pin(request, reason)
                outgoing = await self._remove_foreign(request, self._exempt(request, reason))
            else:
                pins, labels = await take_pin(request, self.states)
                outgoing = await self._manage(request, commit)
        except Exception as error:  # noqa: BLE001 - a boundary: the call goes on as the client sent it
            outgoing = self._give_up(request, error)
        return outgoing.add(labels, *pins)

    def _decide_at_once(self, request: ManagedRequest) -> OutgoingRequest | None:
        if request.is_pinning:
            return None
        if request.mode != "manage" or request.lineage is None:
            return None
        if self.states.holdout.fraction and self.states.holdout.has(request.session.id):
            return None
        if request.ceiling is None and request.strategy == "epochs" and self._caches.contexts.is_blank(request):
            outgoing = self._pass_blank(request)
        else:
            outgoing = self._pass_known(request)
        return outgoing

    def _pass_unread(self, request: ResolvedRequest) -> OutgoingRequest:
        """Return a request that cannot be managed, with a plan that says why."""
        body = request.redirected or request.body
        if request.mode != "manage" or not request.unread:
            return OutgoingRequest("original", body)
        view = name_view(request.model, request.strategy)
        plan = Plan(request.exchange, 0, view, "original", reason=request.unread)
        self.bus.publish(Planned(request.session.id, plan))
        return OutgoingRequest("original", body, plan=plan, labels=_label_observed(request.unread))

    def _pass_blank(self, request: ManagedRequest) -> OutgoingRequest | None:
        """Return the unchanged request if its size in bytes proves that it is short. Nothing is looked up."""
        content, budget = request.split.content, self.states.find_budget(request)
        is_short = request.chain.is_plain and is_below_soft_mark(budget, len(content))
        if not is_short or self.states.is_overflowed(request) or _find_management(request):
            return None
        own = make_own_body(request)
        return OutgoingRequest("original", own, is_managed=True, is_guarded=_is_risky(budget, request))

    def _pass_known(self, request: ManagedRequest) -> OutgoingRequest | None:
        """Return what is sent if memory has the session, and nothing has to be waited for."""
        self._caches.forget_lost()
        context = self._caches.contexts.find_known(request)
        if context is None or _find_management(request):
            return None
        epoch, budget = context.find(request.view, request), self.states.find_budget(request)
        if epoch is None:
            return self._pass_short(request, context, budget)
        return self._keep_epoch(request, context, epoch, budget)

    def _pass_short(self, request: ManagedRequest, context: SessionContext, budget: Budget) -> OutgoingRequest | None:
        """Return a request without an epoch as it is if its bytes prove that it is short, else None."""
        if not self.states.is_below(request, budget) or self.states.is_overflowed(request):
            return None
        if self.states.is_due(request, None, budget):
            return None
        self.states.models.ask_window(request, budget)
        epoch_account = context.get_account(request.view, "", budget)
        epoch_account.account = record_use(epoch_account.account, self._clock.monotonic())
        changed, is_guarded = context.reasoning.find_changed(request, None), _is_risky(budget, request)
        context.reasoning.note(EpochUse(request.view, request.chain.tip, ""))
        own = make_own_body(request, changed)
        outgoing = OutgoingRequest("original", own, is_managed=True, is_guarded=is_guarded, removed=tuple(changed))
        return add_note(request, tell_removed(self.bus, request, context, outgoing))

    def _keep_epoch(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch, budget: Budget
    ) -> OutgoingRequest | None:
        """Return a request under its active epoch if that is quickly decided, and no other epoch opens."""
        state = self.states.read_now(request, context, epoch, budget)
        if state is None:
            return None
        decision = decide(state.account, state.facts)
        kept = self.chain.keep(state) if decision.why is None else None
        if kept is None:
            return None
        self.states.models.ask_window(request, budget)
        return self._charge(state, kept, decision)

    async def _find_exemption(self, request: ManagedRequest) -> str:
        """Return why a request is not managed, or an empty string if it is."""
        if request.mode != "manage":
            return f"{request.mode} was asked for"
        if request.lineage is None:
            return _UNPROVEN
        return _find_management(request) or (HOLDOUT if await self._is_holdout(request) else "")

    def _exempt(self, request: ManagedRequest, reason: str) -> OutgoingRequest:
        return self._observe_holdout(request) if reason == HOLDOUT else self._stand_aside(request, reason)

    def _give_up(self, request: ManagedRequest, error: Exception) -> OutgoingRequest:
        """Return the client's own request after an error of the proxy."""
        _log.error(
            "a request could not be managed and is sent as it came. Please report this line",
            exc_info=error,
            extra={"exchange": request.exchange, "session": request.session.id},
        )
        problem = f"{type(error).__name__}: {error}"
        self.bus.publish(
            RungFailedEvent(session=request.session.id, exchange=request.exchange, rung="plan", error=problem)
        )
        plan = Plan(request.exchange, 0, request.view, "original", reason=problem)
        return OutgoingRequest("original", request.split.content, plan=plan, labels=_label_observed(NOT_CUT))

    async def _is_holdout(self, request: ManagedRequest) -> bool:
        """Return whether the session is held out. One that is known to have an epoch stays managed."""
        if not self.states.holdout.has(request.session.id):
            return False
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        return context.is_known and not context.epochs

    def _observe_holdout(self, request: ManagedRequest) -> OutgoingRequest:
        """Return the unchanged request of a held-out session, with a plan.

        The provider's usage reports its tokens; the plan records the budget to compare them with.
        """
        budget = self.states.find_budget(request)
        if not self.states.is_below(request, budget) and (exemption := self._find_sign(request)):
            return self._stand_aside(request, exemption)
        usable = self.states.find_ratio(request).apply(budget.usable)
        plan = Plan(request.exchange, 0, request.view, "original", reason=HOLDOUT, usable=usable)
        labels = () if self.states.is_below(request, budget) else _label_observed(HOLDOUT)
        return OutgoingRequest("original", request.split.content, plan=plan, labels=labels)

    async def _manage(self, request: ManagedRequest, commit: Commit) -> OutgoingRequest:
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        budget = self.states.find_budget(request)
        epoch = context.find(request.view, request)
        if epoch is None and (outgoing := self._pass_short(request, context, budget)) is not None:
            return outgoing
        if epoch is None and (reason := self._find_sign(request)):
            return await self._remove_foreign(request, self._stand_aside(request, reason))
        self.states.models.ask_window(request, budget)
        state = await self.states.read(request, context, epoch, budget)
        decision = _defer(self._summaries, request, decide(state.account, state.facts))
        chosen = await self._run_chain(state, decision, commit)
        if decision.why == "overflow":
            self.states.overflows.settle(request.session.id, request.model)
        elif decision.why in PRICED and not chosen.is_opened:
            decision = decide(state.account, state.planned_facts)  # its plan may not pay
        return self._charge(state, chosen, decision)

    def _charge(self, state: RequestState, chosen: OutgoingRequest, decision: Decision) -> OutgoingRequest:
        """Charge a request to the account of its epoch. Return it with its plan and labels."""
        request = state.request
        _choose(state, chosen)
        chosen = tell_removed(self.bus, request, state.context, chosen)
        outgoing = replace(self.accounting.account(state, chosen, decision), state=state)
        outgoing = outgoing.add(_label_own(state, outgoing, decision)).add(_label_shortened(state, outgoing))
        return self._label_excess(state, outgoing, decision)

    async def _run_chain(self, state: RequestState, decision: Decision, commit: Commit) -> OutgoingRequest:
        """Run the fallback levels. A request above the ceiling first waits for a running summary, as memory does."""
        if decision.why == "overflow":
            state = replace(state, budget=state.budget.limit(int(state.tokens * BLIND_SHARE)))
        if decision.why not in _REPORTED:
            return await self.chain.run(state, decision.why, commit)
        began = self._clock.monotonic()
        await self._summaries.wait(state.request)
        left = self.chain.seconds - (self._clock.monotonic() - began)
        return await self.chain.run(state, decision.why, commit, seconds=max(0.0, left))

    async def _remove_foreign(self, request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Return a request that is not managed without the reasoning that was made under an epoch."""
        if not any(name in request.split.content for name in FORMATS[request.wire].signed_names):
            return outgoing
        if request.lineage is None:  # nothing of its session may be used yet
            return replace(outgoing, is_mendable=may_bind_reasoning(request.model))
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        outgoing = replace(outgoing, is_mendable=context.reasoning.binds(request.view))
        context.reasoning.note(EpochUse(request.view, request.chain.tip, ""))
        changed = context.reasoning.find_changed(request, None)
        outgoing = replace(outgoing, body=make_own_body(request, changed), removed=tuple(changed))
        return add_note(request, tell_removed(self.bus, request, context, outgoing))

    def _label_excess(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> OutgoingRequest:
        """If a request is sent above its ceiling, say so in a header, an event and the plan; of a preamble once."""
        budget, request, notice = state.budget, state.request, tell_preamble(self.bus, state)
        is_above = outgoing.tokens > (budget.usable if notice else budget.high)
        if not budget.usable or not (is_above or notice) or outgoing.plan is None:
            return outgoing
        if is_above:
            stays = MUST_STAY if outgoing.is_opened or _is_unshortened(state) else NOT_CUT
            reason = notice or _explain_uncut(outgoing) or decision.reason or stays
            tokens, usable = state.to_model_tokens(outgoing.tokens), state.to_model_tokens(budget.usable)
            self.bus.publish(
                CeilingExceededEvent(
                    session=request.session.id, exchange=request.exchange, tokens=tokens, usable=usable, error=reason
                )
            )
            notice = f"above the ceiling: {tokens} tokens of {usable}; {reason}"
        told = "; ".join(filter(None, (notice, outgoing.note)))
        return replace(outgoing, plan=replace(outgoing.plan, reason=told)).add(label_note(notice))

    def _find_sign(self, request: ManagedRequest) -> str:
        """Find a sign in the new messages that the client or provider manages the context already.

        Not used while an epoch of ours applies: a sign is then an echo of our own text, and the unchanged request would
        be too long.
        """
        known, shared = self._caches.histories.find(request)
        seen = request.chain.preamble.count + shared if known is not None else 0
        return _explain(request, FORMATS[request.wire].find_management(request.split, seen))

    def _stand_aside(self, request: ManagedRequest, reason: str) -> OutgoingRequest:
        """Return the unchanged request of a session that may be managed. Its plan records what that costs."""
        content = request.split.content
        is_labelled = request.mode == "manage" and not self.states.is_below(request, self.states.find_budget(request))
        labels = _label_observed(reason) if is_labelled else ()
        context = self._caches.contexts.get(request.session.id)
        epoch = context.find(request.view, request) if context is not None else None
        known, _ = self._caches.histories.find(request)
        if context is None or epoch is None or known is None:
            plan = Plan(request.exchange, 0, request.view, "original", reason=reason)
            return OutgoingRequest("original", content, plan=plan if request.mode == "manage" else None, labels=labels)
        budget = self.states.find_budget(request)
        account = context.get_account(request.view, epoch.id, budget).account
        tariff = self.states.find_tariff(request, known, is_rewritten=epoch.depth > 0)
        saving = tariff.price_repeated(account.sent) - tariff.price_rewritten(known.tokens, known.head.tokens)
        tokens = self.states.find_ratio(request).apply(known.tokens)
        counted = (tokens, tokens, 0, account.owed, saving)
        plan = Plan(request.exchange, 0, request.view, "original", "", "none", reason, *counted)
        return OutgoingRequest("original", content, plan=plan, labels=labels)


def _is_unshortened(state: RequestState) -> bool:
    """Return whether a plan for this very request was made before and did not shorten it."""
    return state.facts.is_unshortened


def _choose(state: RequestState, outgoing: OutgoingRequest) -> None:
    """Remember the epoch that this history was sent under, so that it is sent under the same one again."""
    state.context.choose(state.view, state.request, outgoing.epoch.id if outgoing.epoch is not None else "")
    if outgoing.epoch is not None:
        state.context.cover(outgoing.epoch, state.request.chain.items)


def _label_observed(reason: str) -> Headers:
    """Label a request that could be managed but is not."""
    shown = reason if reason == HOLDOUT else f"stood-down:{reason}"
    return ((b"x-palimpsest-mode", f"observe; {shown}".encode("ascii", "replace")),)


def _explain_uncut(outgoing: OutgoingRequest) -> str:
    """Return why a request could not be cut where that was tried, else nothing."""
    return f"it could not be cut: {outgoing.failed}" if outgoing.failed and outgoing.rung == "original" else ""


def _label_own(state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> Headers:
    """Label a request above the soft mark that is sent unchanged for a reason other than its price."""
    if uncut := _explain_uncut(outgoing):
        return _label_observed(uncut)
    if outgoing.rung != "original" or decision.pressure == "none":
        return ()
    if decision.why is None:
        return _label_observed(decision.reason) if decision.reason in _STOOD_DOWN else ()
    return () if _is_unshortened(state) else _label_observed(NOT_CUT)


def _label_shortened(state: RequestState, outgoing: OutgoingRequest) -> Headers:
    """Label a request of which new messages are sent in part because they do not fit below the ceiling."""
    if outgoing.epoch is None or not outgoing.is_opened:
        return ()
    shortened = count_shortened(outgoing.epoch, state.request.chain.items)
    notice = f"shortened on arrival: {shortened} of the newest messages, too large for the ceiling"
    return ((b"x-palimpsest-notice", notice.encode()),) if shortened else ()


async def write_counted(controller: ContextController, request: ManagedRequest) -> Counted:
    """Return what would be sent for a request now. Opens no epoch."""
    states = controller.states
    context = await states.caches.contexts.open(request, request.until - states.clock.monotonic())
    own = make_own_body(request, context.reasoning.find_changed(request, None))
    if request.mode != "manage" or _find_management(request):
        return Counted(own, own)
    epoch = context.find(request.view, request)
    state = await states.read(request, context, epoch, states.find_budget(request))
    outgoing = controller.chain.keep(state)
    if outgoing is None:
        return Counted(own, own)
    return Counted(outgoing.body, own, max(0, state.to_model_tokens(state.client_tokens - outgoing.tokens)))


def _find_management(request: ManagedRequest) -> str:
    """Find a sign outside the messages that the context is managed already. Return an empty string if there is none."""
    return _explain(request, FORMATS[request.wire].find_management(request.split, len(request.split.items)))


def _explain(request: ManagedRequest, reason: str) -> str:
    """Return why a request is managed already, and why what it refers to is not written out."""
    return f"{reason}: {request.unresolved}" if reason and request.unresolved else reason


def _is_risky(budget: Budget, request: ManagedRequest) -> bool:
    """Return whether the upstream may refuse a request below the soft mark as too long: its window is unknown."""
    return budget.window is None and len(request.split.content) >= _SAFE_BYTES


def _defer(summaries: RunningSummaries, request: ManagedRequest, decision: Decision) -> Decision:
    """Let an epoch that could open later wait for the summary of what it takes: that costs less than a few reads."""
    if decision.why != "soft" or not summaries.is_busy(request):
        return decision
    return Decision(None, decision.pressure, REPORTING)
