"""The decision what is sent for a request: its own bytes, or an epoch in place of the beginning of its history.

Below the soft mark nothing is rewritten on the proxy's own initiative, and while a request's size in bytes proves that
it is below, nothing is counted. No error here fails a call: the request is then sent as the client sent it.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from proxy.context.budget import Budget, is_below_soft_mark
from proxy.context.epoch_decision import (
    BOUND,
    HELD_OUT,
    LATE,
    MUST_STAY,
    NO_ROOM,
    OBSTACLES,
    REFUSED,
    SIDE,
    UNREAD,
    Decision,
    decide,
    record_use,
)
from proxy.engine.context.accounting import SentObserver, UsageAccounting, list_labels
from proxy.engine.context.fallback import Commit, FallbackChain
from proxy.engine.context.refusal_retry import RefusalRetry
from proxy.engine.context.request_state import OutgoingRequest, RequestState, StateReader
from proxy.engine.context.session_context import SessionContext
from proxy.engine.open_exchange import RetrySource
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.runtime import EventBus
from proxy.model.epoch import Epoch, Pin, Plan
from proxy.model.events import CeilingExceeded, Planned, RungFailed
from proxy.model.exchange import Headers
from proxy.model.manifest import Manifest
from proxy.wire import FORMATS, MANAGED_WIRES
from proxy.wire.headers import find_header

# The part of a budget that pins may take together (BEHAVIOUR B13).
_PINNED_SHARE = 0.1
_PIN_HEADER = b"x-palimpsest-pin"
# A body of fewer bytes is below any soft mark that is worth managing.
_LARGE_BYTES = 64 * 1024
# Text and JSON have about as many in every language that uses Latin letters; a header needs no better estimate.
_BYTES_OF_A_TOKEN = 4
# No model has a window of fewer tokens; a request of so many bytes has fewer tokens than bytes.
_SAFE_BYTES = 4096

# Reasons why a request is sent as the client sent it.
NOT_CUT = "it could not be cut; the server's log says why"
_UNPROVEN = "the upstream has not accepted this credential yet"
_RECORDED_ONLY = "calls of this wire are recorded, not managed"
_STOOD_DOWN = frozenset({BOUND, NO_ROOM, REFUSED, SIDE, UNREAD, LATE})
_UNREADABLE = ((b"x-palimpsest-mode", b"observe; stood-down:its body could not be read message by message"),)

_log = logging.getLogger("palimpsest.context")


class ContextController:
    """Decides for each request what is sent. Compaction, which opens epochs too, shares `states` and `chain`."""

    def __init__(
        self,
        states: StateReader,
        chain: FallbackChain,
        accounting: UsageAccounting,
        bus: EventBus,
        observer: SentObserver,
    ) -> None:
        self.states = states
        self.chain = chain
        self._caches = states.caches
        self._accounting = accounting
        self._bus = bus
        self._observer = observer
        self._clock = states.clock

    def decide_at_once(self, request: ResolvedRequest) -> OutgoingRequest | None:
        """Return what is sent where that is known without waiting; None where `decide` has to find out.

        So it is for most calls: short ones of sessions in which nothing was ever managed, and those that keep their
        epoch whatever their new messages count.
        """
        if not isinstance(request, ManagedRequest):
            is_labelled = request.mode == "manage" and len(request.body) >= _LARGE_BYTES
            return OutgoingRequest("original", request.body, labels=_UNREADABLE if is_labelled else ())
        try:
            return self._decide_at_once(request)
        except Exception:  # noqa: BLE001 - a boundary: a call goes on without what is done beside it
            _log.exception("exchange %s: the request could not be decided at once", request.exchange)
            return None

    async def decide(self, request: ManagedRequest, commit: Commit) -> OutgoingRequest:
        """Return what is sent; waits for the log, for counts and for a plan, each for a bounded time.

        `commit` has the log keep an epoch. Never fails: what cannot be managed goes as the client sent it.
        """
        pin: Pin | None = None
        labels: Headers = ()
        try:
            if reason := await self._find_exemption(request):
                labels = _refuse_pin(request, reason)
                outgoing = self._exempt(request, reason)
            else:
                pin, labels = await self._take_pin(request)
                self._observer.note_managed(request)
                outgoing = await self._manage(request, commit)
        except Exception as error:  # noqa: BLE001 - a boundary: the call goes on as the client sent it
            outgoing = self._give_up(request, error)
        if outgoing.plan is not None and outgoing.uncounted is None:
            self._bus.publish(Planned(request.session.id, outgoing.plan))
        return outgoing.add(labels, pin)

    def account(self, outgoing: OutgoingRequest) -> OutgoingRequest:
        """Count and charge a request that was sent before it was counted; return it with its plan and labels."""
        assert outgoing.uncounted is not None, "it was counted before"
        request = outgoing.uncounted.state.request
        try:
            state = self.states.count(outgoing.uncounted)
            sent = replace(outgoing, tokens=state.tokens, uncounted=None, state=state)
            decision = decide(state.account, state.facts)
            counted = self._accounting.account(state, sent, decision)
        except Exception:  # noqa: BLE001 - a boundary: the request is on its way
            _log.exception("exchange %s: the request could not be accounted for", request.exchange)
            counted = replace(outgoing, labels=(), uncounted=None)
        assert counted.plan is not None, "what keeps an epoch has a plan"
        self._bus.publish(Planned(request.session.id, counted.plan))
        return counted

    def draft_ahead(self, outgoing: OutgoingRequest) -> None:
        """Have the next epoch planned behind a request that was sent above its soft mark."""
        if outgoing.state is not None and not outgoing.is_opened:  # by the loop: an error is no matter of this call
            asyncio.get_running_loop().call_soon(self.chain.draft_ahead, outgoing.state, outgoing.tokens)

    def build_manifest(self, request: ManagedRequest, outgoing: OutgoingRequest) -> Manifest:
        """Build the manifest of a rewritten body."""
        return self._accounting.build_manifest(request, outgoing)

    def make_retries(
        self,
        request: ManagedRequest,
        outgoing: OutgoingRequest,
        *,
        commit: Commit,
        add_labels: Callable[[Headers], None],
        run_after_send: Callable[[], None],
    ) -> RetrySource:
        """Return what decides how a request is sent again, should the upstream refuse it.

        `add_labels` adds headers to the response; `run_after_send` does what was put off until the request was sent.
        """
        return RefusalRetry(
            self.states,
            self.chain,
            self._bus,
            request,
            outgoing,
            commit=commit,
            add_labels=add_labels,
            run_after_send=run_after_send,
        )

    def _decide_at_once(self, request: ManagedRequest) -> OutgoingRequest | None:
        self._observer.note_arrival(request)
        if is_pinning(request):
            return None
        if request.wire not in MANAGED_WIRES:
            return OutgoingRequest("original", request.split.content, labels=self._label_unmanaged(request))
        if request.mode != "manage" or request.step is None:
            return None
        if self.states.holdout.fraction and self.states.holdout.has(request.session.id):
            return None
        if request.ceiling is None and self._caches.contexts.is_blank(request):
            outgoing = self._pass_blank(request)
        else:
            outgoing = self._pass_known(request)
        if outgoing is not None:
            self._observer.note_managed(request)
        return outgoing

    def _pass_blank(self, request: ManagedRequest) -> OutgoingRequest | None:
        """Return the request itself where its bytes prove that it is short; nothing is looked up for it."""
        content, budget = request.split.content, self.states.find_budget(request)
        if not (request.chain.is_plain and is_below_soft_mark(budget, len(content))) or _find_mark(request):
            return None
        return OutgoingRequest("original", content, is_managed=True, is_guarded=_is_risky(budget, request))

    def _pass_known(self, request: ManagedRequest) -> OutgoingRequest | None:
        """Return what is sent of a session in memory, where it does not depend on what the new messages count."""
        self._caches.forget_lost()
        context = self._caches.contexts.find_known(request)
        if context is None or _find_mark(request):
            return None
        return self._pass_uncounted(request, context, self.states.find_budget(request))

    def _pass_uncounted(
        self, request: ManagedRequest, context: SessionContext, budget: Budget
    ) -> OutgoingRequest | None:
        epoch = context.find(request.model, request)
        if epoch is not None:
            return self._keep_epoch(request, context, epoch, budget)
        if not self.states.is_below(request, budget):
            return None
        if budget.window is None:
            self.states.models.ask(request.upstream, request.headers)
        epoch_account = context.get_account(request.model, "", budget)
        epoch_account.account = record_use(epoch_account.account, self._clock.monotonic())
        is_guarded = _is_risky(budget, request)
        return OutgoingRequest("original", request.split.content, is_managed=True, is_guarded=is_guarded)

    def _keep_epoch(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch, budget: Budget
    ) -> OutgoingRequest | None:
        """Return what goes on under its epoch whatever its new messages count; they are counted once it is on its way.

        None where it depends on their count, or where they are so much that they are counted in a thread.
        """
        uncounted = self.states.read_uncounted(request, context, epoch, budget)
        if uncounted is None or not _is_kept(uncounted.state):
            return None
        outgoing = self.chain.keep(uncounted.state)
        if outgoing is None:
            return None
        if budget.window is None:
            self.states.models.ask(request.upstream, request.headers)
        _choose(uncounted.state, outgoing)
        plan = Plan(request.exchange, 0, request.model, outgoing.rung, epoch.id)
        return replace(
            outgoing,
            plan=plan,
            labels=list_labels(plan, epoch, is_opened=outgoing.is_opened),
            is_managed=True,
            is_guarded=budget.is_near_window(outgoing.tokens),
            uncounted=uncounted,
        )

    async def _find_exemption(self, request: ManagedRequest) -> str:
        """Return why a request is not managed; empty where it is."""
        if request.wire not in MANAGED_WIRES:
            return _RECORDED_ONLY
        if request.mode != "manage":
            return f"{request.mode} was asked for"
        if request.step is None:
            return _UNPROVEN
        return _find_mark(request) or (HELD_OUT if await self._is_held_out(request) else "")

    def _exempt(self, request: ManagedRequest, reason: str) -> OutgoingRequest:
        if reason == _RECORDED_ONLY:
            return OutgoingRequest("original", request.split.content, labels=self._label_unmanaged(request))
        return self._hold_out(request) if reason == HELD_OUT else self._stand_aside(request, reason)

    def _give_up(self, request: ManagedRequest, error: Exception) -> OutgoingRequest:
        """Return the client's own request after a fault of ours."""
        _log.error(
            "exchange %s: the request could not be managed and is sent as it came", request.exchange, exc_info=error
        )
        problem = f"{type(error).__name__}: {error}"
        self._bus.publish(RungFailed(request.exchange, request.session.id, "plan", problem))
        plan = Plan(request.exchange, 0, request.model, "original", reason=problem)
        return OutgoingRequest("original", request.split.content, plan=plan, labels=_label_observed(NOT_CUT))

    async def _take_pin(self, request: ManagedRequest) -> tuple[Pin | None, Headers]:
        """Pin a request's newest message if it asks for that; return the pin, or the labels that say why not."""
        if not is_pinning(request):
            return None, ()
        if not request.nodes:
            return None, _refuse_pin(request, "there is no message")
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        newest, places = len(request.nodes) - 1, context.list_pinned(request.nodes)
        if newest in places:
            return None, ()
        history = await self._caches.histories.follow(request)
        tokens = sum(history.count(place, place + 1) for place in (*places, newest))
        usable, ratio = self.states.find_budget(request).usable, self.states.find_ratio(request)
        if problem := find_objection(ratio.apply(tokens), ratio.apply(usable)):
            return None, _refuse_pin(request, problem)
        pin = Pin(request.session.id, request.nodes[newest], is_on=True, at_ms=self._clock.now_ms())
        context.pin(pin)
        return pin, ()

    async def _is_held_out(self, request: ManagedRequest) -> bool:
        """Return whether the session is only observed: no epoch was opened in it before, as far as that is known."""
        if not self.states.holdout.has(request.session.id):
            return False
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        return context.is_known and not context.epochs

    def _hold_out(self, request: ManagedRequest) -> OutgoingRequest:
        """Return the request itself, which would be managed in another session.

        Its tokens are in the provider's usage; what they are to be compared with is known here.
        """
        budget = self.states.find_budget(request)
        if not self.states.is_below(request, budget) and (exemption := self._find_sign(request)):
            return self._stand_aside(request, exemption)
        usable = self.states.find_ratio(request).apply(budget.usable)
        plan = Plan(request.exchange, 0, request.model, "original", reason=HELD_OUT, usable=usable)
        labels = () if self.states.is_below(request, budget) else _label_observed(HELD_OUT)
        return OutgoingRequest("original", request.split.content, plan=plan, labels=labels)

    async def _manage(self, request: ManagedRequest, commit: Commit) -> OutgoingRequest:
        self._caches.forget_lost()
        context = await self._caches.contexts.open(request, request.until - self._clock.monotonic())
        budget = self.states.find_budget(request)
        if (outgoing := self._pass_uncounted(request, context, budget)) is not None:
            return outgoing
        epoch = context.find(request.model, request)
        if epoch is None and (reason := self._find_sign(request)):
            return self._stand_aside(request, reason)
        if budget.window is None:
            self.states.models.ask(request.upstream, request.headers)
        state = await self.states.read(request, context, epoch, budget)
        decision = decide(state.account, state.facts)
        chosen = await self._run_chain(state, decision, commit)
        _choose(state, chosen)
        outgoing = replace(self._accounting.account(state, chosen, decision), state=state)
        return self._label_excess(state, outgoing.add(_label_own(state, outgoing, decision)), decision)

    async def _run_chain(self, state: RequestState, decision: Decision, commit: Commit) -> OutgoingRequest:
        """Return what the request is sent as; above the ceiling it waits for a running summary and its plan (B8b)."""
        if decision.why != "hard":
            return await self.chain.run(state, decision.why, commit)
        began = self._clock.monotonic()
        await self._observer.wait(state.request)
        left = self.chain.seconds - (self._clock.monotonic() - began)
        return await self.chain.run(state, decision.why, commit, seconds=max(0.0, left))

    def _label_excess(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> OutgoingRequest:
        """Say by header, event and plan that a request is sent above its ceiling, if so."""
        if not state.budget.usable or outgoing.tokens <= state.budget.usable or outgoing.plan is None:
            return outgoing
        reason = decision.reason or (MUST_STAY if outgoing.is_opened or _is_tried(state) else NOT_CUT)
        tokens, usable = state.to_model_tokens(outgoing.tokens), state.to_model_tokens(state.budget.usable)
        request = state.request
        self._bus.publish(CeilingExceeded(request.exchange, request.session.id, state.view, tokens, usable, reason))
        notice = f"above the ceiling: {tokens} tokens of {usable}; {reason}"
        labels = ((b"x-palimpsest-notice", notice.encode("ascii", "replace")),)
        return replace(outgoing, plan=replace(outgoing.plan, reason=notice)).add(labels)

    def _label_unmanaged(self, request: ManagedRequest) -> Headers:
        """Label a large request on a wire that is not managed; its bytes tell its size."""
        if request.mode != "manage":
            return ()
        budget = self.states.find_budget(request)
        is_large = len(request.split.content) >= _BYTES_OF_A_TOKEN * budget.soft
        return ((b"x-palimpsest-mode", b"observe; recorded-only"),) if is_large else ()

    def _find_sign(self, request: ManagedRequest) -> str:
        """Find what in the messages says that they are managed already; messages managed before are not searched.

        Not asked under an epoch of ours: what looks like one there is an echo, and as it came it would be too long.
        """
        known, shared = self._caches.histories.find(request)
        seen = request.chain.preamble.count + shared if known is not None else 0
        return FORMATS[request.wire].find_management(request.split, seen)

    def _stand_aside(self, request: ManagedRequest, reason: str) -> OutgoingRequest:
        """Return the request as it is though its session may be managed; its plan tells what that costs."""
        content = request.split.content
        is_labelled = request.mode == "manage" and not self.states.is_below(request, self.states.find_budget(request))
        labels = _label_observed(reason) if is_labelled else ()
        context = self._caches.contexts.get(request.session.id)
        epoch = context.find(request.model, request) if context is not None else None
        known, _ = self._caches.histories.find(request)
        if context is None or epoch is None or known is None:
            plan = Plan(request.exchange, 0, request.model, "original", reason=reason)
            return OutgoingRequest("original", content, plan=plan if request.mode == "manage" else None, labels=labels)
        budget = self.states.find_budget(request)
        account = context.get_account(request.model, epoch.id, budget).account
        tariff = self.states.find_tariff(request, known)
        saving = tariff.price_repeated(account.sent) - tariff.price_rewritten(known.tokens, known.head.tokens)
        tokens = self.states.find_ratio(request).apply(known.tokens)
        plan = Plan(
            request.exchange, 0, request.model, "original", "", "none", reason, tokens, tokens, 0, account.owed, saving
        )
        return OutgoingRequest("original", content, plan=plan, labels=labels)


def is_pinning(request: ManagedRequest) -> bool:
    """Return whether a request asks that its newest message stay."""
    return find_header(request.headers, _PIN_HEADER).strip().lower() == b"true"


def find_objection(tokens: int, usable: int) -> str:
    """Return why pins of so many tokens together are refused (BEHAVIOUR B13); empty where they are not."""
    most = int(_PINNED_SHARE * usable)
    if tokens <= most:
        return ""
    return (
        f"pins may have {most} tokens together in a conversation, {_PINNED_SHARE:g} of its budget; "
        f"these would have {tokens}"
    )


def _refuse_pin(request: ManagedRequest, reason: str) -> Headers:
    """Label a pin that is not taken; nothing where the request asks for none."""
    if not is_pinning(request):
        return ()
    return ((b"x-palimpsest-notice", f"not pinned: {reason}".encode("ascii", "replace")),)


def _is_kept(state: RequestState) -> bool:
    """Return whether no epoch opens, however little the new messages count.

    Where none opens at the most that they may count, none opens at less.

    Not told where an epoch was in vain: what must stay is then estimated by what is counted. Nor where size or price
    ask for one that does not open: response headers say so, with the tokens.
    """
    if state.account.ineffective or state.budget.is_ceiling_unreachable(state.protected):
        return False
    decision = decide(state.account, state.facts)
    return decision.why is None and decision.reason not in OBSTACLES


def _is_tried(state: RequestState) -> bool:
    """Return whether a plan was made for this very request that makes it no shorter."""
    return state.facts.is_tried


def _choose(state: RequestState, outgoing: OutgoingRequest) -> None:
    """Send this history, and what goes on from it, so from now on."""
    state.context.choose(state.view, state.request, outgoing.epoch.id if outgoing.epoch is not None else "")
    if outgoing.epoch is not None:
        state.context.cover(outgoing.epoch, state.request.chain.items)


def _label_observed(reason: str) -> Headers:
    """Label a request that is not managed though it otherwise could be."""
    shown = reason if reason == HELD_OUT else f"stood-down:{reason}"
    return ((b"x-palimpsest-mode", f"observe; {shown}".encode("ascii", "replace")),)


def _label_own(state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> Headers:
    """Label a request that is sent as it came though it is above the soft mark, and not for its price."""
    if outgoing.rung != "original" or decision.pressure == "none":
        return ()
    if decision.why is None:
        return _label_observed(decision.reason) if decision.reason in _STOOD_DOWN else ()
    return () if _is_tried(state) else _label_observed(NOT_CUT)


def _find_mark(request: ManagedRequest) -> str:
    """Find what in the members beside the messages says that the request is managed already; empty for nothing."""
    return FORMATS[request.wire].find_management(request.split, len(request.split.items))


def _is_risky(budget: Budget, request: ManagedRequest) -> bool:
    """Return whether the upstream may refuse a request as too long that is below the soft mark of its budget."""
    return budget.window is None and len(request.split.content) >= _SAFE_BYTES
