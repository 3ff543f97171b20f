"""Retrying a refused request in another form.

A request that was too long is cut, and the limit is learned from the upstream's error. If asking for fewer output
tokens is enough, only that is changed. A rewritten request that was refused for another reason is sent with roles that
alternate, or without signed reasoning, if that may be the reason, then as the client sent it. If that is accepted, its
view is not rewritten for a day. If nothing else is left to send, the upstream's own response is relayed.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from msgspec.structs import replace

from proxy.context.budget import Budget, lower_output
from proxy.engine.call.open_exchange import Refusal, Retry, Start
from proxy.engine.context.accounting import label_note, list_labels
from proxy.engine.context.epoch_scope import format_removed, make_own_body
from proxy.engine.context.fallback import BLIND_SHARE, Commit, FallbackChain
from proxy.engine.context.request_state import OutgoingRequest, RequestState, StateReader, find_key
from proxy.engine.context.session_context import SessionContext
from proxy.engine.request import NO_NOTES, ManagedRequest
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Epoch, Plan, ReducedForm
from proxy.model.errors import StoreUnavailable
from proxy.model.events import CeilingExceededEvent, EpochOpened, ReasoningRemoved
from proxy.model.exchange import Headers, Round
from proxy.wire import FORMATS, rendering
from proxy.wire.body import split_body
from proxy.wire.overflow import (
    Overflow,
    Subject,
    mentions,
    read_refusal,
    read_stream_start,
)

# The share of the room that is used, since our count may be lower than the upstream's.
_CAUTION = 0.9
# The largest share of the window that is reserved for output: more would leave too little for the context.
_MOST_RESERVED = 0.75

_Rung = ReducedForm | Literal["original", "minimal"]
"""The form in which a refused rewritten request is sent next."""

_RUNGS: tuple[_Rung | None, ...] = (
    None,
    "alternating",
    "uncompacted",
    "untooled",
    "unsigned",
    "original",
    "minimal",
)  # in the order in which they are tried; None: what was sent first
_SUBJECTS: Mapping[ReducedForm, Subject] = {
    "alternating": "roles",
    "uncompacted": "compaction",
    "untooled": "tools",
    "unsigned": "reasoning",
}  # what an error may be about if a form helps
_WITHOUT = {
    "alternating": "with messages joined, so that roles alternate",
    "uncompacted": "without the provider's own compaction",
    "untooled": "without the tool to recall with",
    "unsigned": "without signed reasoning",
    "minimal": "under a minimal plan",
}

_log = logging.getLogger("palimpsest.context")


class RefusalRetry:
    """Decides what is sent after the upstream refused one call (`open_exchange.Retries`)."""

    def __init__(
        self,
        states: StateReader,
        chain: FallbackChain,
        bus: EngineBus,
        request: ManagedRequest,
        outgoing: OutgoingRequest,
        *,
        commit: Commit,
        add_labels: Callable[[Headers], None],
    ) -> None:
        self._states = states
        self._chain = chain
        self._bus = bus
        self._request = request
        self._outgoing = outgoing
        self._commit = commit
        self._add_labels = add_labels
        self._body = outgoing.body
        self._plan = outgoing.plan
        self._k = 0
        self._is_hop = False  # what was refused is a round in which the model had recalled
        self._learned: _Rung | None = None
        self._labels: Headers = ()
        self._is_cut = False
        self._rung: _Rung | None = None
        self._refused = ""
        self._sent = [outgoing.body]

    def read_start(self, content: bytes) -> Start:
        """Classify the events at the beginning of a stream."""
        return read_stream_start(content)

    async def find_retry(self, refusal: Refusal, hop: int = 0) -> Retry | None:
        """Return what to send next, or None if this is no refusal or nothing else is left to send."""
        self._k, self._is_hop = max(self._k, hop), hop > 0
        refused = read_refusal(refusal.status, refusal.headers, refusal.content)
        is_about_form = refused is not None
        work: Awaitable[Retry | None] | None = None
        if not self._outgoing.is_managed:
            work = self._send_stripped() if is_about_form and self._is_about_our_reasoning(refusal) else None
        elif isinstance(refused, Overflow) and not (refused.is_guess and self._is_small):
            work = None if self._is_cut else self._cut(refused)
        elif is_about_form and (self._is_rewritten or self._is_about_our_reasoning(refusal)):
            work = self._retry_rewritten(refusal)
        if work is None:
            return None
        try:
            retry = await work
        except Exception:  # noqa: BLE001 - a boundary: the refusal goes to the client as it came
            _log.exception(
                "a refused request could not be sent in another form; the refusal goes on. Please report this line",
                extra={"exchange": self._request.exchange, "session": self._request.session.id},
            )
            return None
        if retry is None or retry.body in self._sent:
            return None
        self._sent.append(retry.body)
        self._body, self._plan = retry.body, retry.plan
        return retry

    async def accept(self) -> None:
        """Remember the form that was accepted in place of a refused one, for later requests of the view."""
        if self._rung in (None, self._learned):
            return
        self._learned = self._rung
        try:
            await self._learn_form(self._rung)
        except Exception:  # noqa: BLE001 - a boundary: the response is on its way to the client
            _log.exception(
                "that an upstream refused an epoch was not recorded; it may be refused again. Please report this line",
                extra={"exchange": self._request.exchange, "session": self._request.session.id},
            )

    @property
    def _next_name(self) -> str:
        """The id of an epoch that opens for the next form."""
        return f"{self._request.exchange}-{self._k + 1}"

    @property
    def _is_small(self) -> bool:
        """True if the request is surely far below the known window, so that a refusal without a word has other causes.

        A token has a byte or more, mostly four.
        """
        key = find_key(self._request)
        window = self._states.models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant).window
        return window is not None and len(self._body) < window

    @property
    def _is_rewritten(self) -> bool:
        return self._body != self._request.split.content

    def _is_about_our_reasoning(self, refusal: Refusal) -> bool:
        """Return whether reasoning was refused that may have been made under an epoch.

        That may be in another session, too, where this one has just begun or nothing of it may be used yet: clients
        change their credentials.
        """
        if not mentions("bound", refusal.headers, refusal.content):
            return False
        request, context = self._request, self._states.caches.contexts.get(self._request.session.id)
        return request.lineage is None or request.is_new or (context is not None and bool(context.epochs))

    async def _send_stripped(self) -> Retry | None:
        """Retry a request that is not managed, without any signed reasoning."""
        request = self._request
        strip = FORMATS[request.wire].strip_reasoning
        changed = {place: strip(raw) for place, raw in enumerate(request.list_raws())}
        told = "the upstream refused its signed reasoning, which may have been made under an epoch"
        plan = Plan(request.exchange, self._k + 1, request.view, "original", reason=told)
        self._rung = "unsigned"
        return self._keep(make_own_body(request, changed), plan)

    async def _retry_rewritten(self, refusal: Refusal) -> Retry | None:
        """Retry without signed reasoning, then with the client's bytes, or with a minimal plan if those do not fit."""
        state = await self._read_sent_state()
        self._refused = state.epoch.id if state.epoch is not None else ""
        said = f"the upstream refused the rewritten request with {refusal.status}"
        # The upstream's message is not logged: it may quote a credential or the conversation. The record has it.
        _log.warning(
            "%s; sending it in another form",
            said,
            extra={"exchange": self._request.exchange, "session": self._request.session.id},
        )
        rung = _RUNGS.index(self._rung)
        for form in _SUBJECTS:
            if _RUNGS.index(form) > rung and self._may_help(form, state, refusal):
                outgoing = await self._chain.open_without(state, form, self._commit, self._next_name)
                if outgoing is not None:
                    return self._send(form, state, outgoing, said)
        room = state.budget.find_room()
        if rung < _RUNGS.index("original") and (room is None or state.client_tokens <= room):
            plain = replace(self._request, notes=NO_NOTES)
            own = make_own_body(plain, state.context.reasoning.find_changed(plain, None))
            return self._send("original", state, OutgoingRequest("original", own, state.client_tokens), said)
        if self._rung == "minimal":
            return None
        state.context.reasoning.bind(state.view)
        budget = state.budget.limit(int(state.tokens * _CAUTION))
        outgoing = await self._shorten(replace(state, budget=budget, tool=b""), seconds=0.0)
        return None if outgoing is None else self._send("minimal", state, outgoing, said)

    def _may_help(self, form: ReducedForm, state: RequestState, refusal: Refusal) -> bool:
        """Return whether a refusal may be about what a form lacks. Not all say so of a tool that is new to them."""
        is_about = mentions(_SUBJECTS[form], refusal.headers, refusal.content)
        if form != "untooled":
            return is_about
        has_tool = state.epoch is not None and bool(self._states.offers.find(self._request, state.epoch))
        return has_tool and (is_about or self._outgoing.is_opened or self._is_hop)

    async def _shorten(self, state: RequestState, seconds: float | None = None) -> OutgoingRequest | None:
        """Return the request under an epoch that opens now, None if nothing shorter can be sent."""
        outgoing = await self._chain.run(state, "overflow", self._commit, self._next_name, seconds=seconds)
        return outgoing if outgoing.epoch is not None and outgoing.tokens < state.tokens else None

    def _send(self, rung: _Rung, state: RequestState, outgoing: OutgoingRequest, said: str) -> Retry:
        """Retry in another form, which is learned once it is accepted."""
        request = self._request
        if rung == "unsigned" or (outgoing.removed and rung != "minimal"):
            name = outgoing.epoch.id if outgoing.epoch is not None else ""
            fresh = state.context.reasoning.note_removed(request.nodes[place] for place in outgoing.removed)
            self._bus.publish(ReasoningRemoved(request.exchange, request.session.id, state.view, name, fresh))
            said = f"{said}; {format_removed(len(outgoing.removed))}"
        self._rung, plan = rung, self._make_plan(state, outgoing, said)
        self._labels = list_labels(plan, outgoing.epoch, is_opened=rung == "minimal")
        return self._keep(outgoing.body, plan)

    def _make_plan(self, state: RequestState, outgoing: OutgoingRequest, reason: str) -> Plan:
        """Return the plan of the next form, whose history is sent under its epoch from now on."""
        epoch = outgoing.epoch.id if outgoing.epoch is not None else ""
        if epoch:
            state.context.choose(state.view, self._request, epoch)
        return Plan(
            self._request.exchange,
            self._k + 1,
            state.view,
            outgoing.rung,
            epoch,
            "hard",
            reason,
            state.to_model_tokens(state.client_tokens),
            state.to_model_tokens(outgoing.tokens),
            state.to_model_tokens(state.budget.high),
        )

    async def _learn_form(self, rung: _Rung) -> None:
        request = self._request
        context = await self._states.caches.contexts.open(request)
        if rung == "original":
            self._publish_excess()
            await self._record_refusal(context)
            self._add_labels(label_note("the upstream refused the shortened request; it went as the client sent it"))
            return
        if rung == "alternating":
            self._states.models.note_alternating(request.session.upstream, request.model)
            context.forget_drafted()
        self._add_labels((*self._labels, *label_note(f"the upstream refused the request; it went {_WITHOUT[rung]}")))

    def _publish_excess(self) -> None:
        """Publish an event if the client's own request is above the ceiling."""
        request, plan = self._request, self._plan
        if plan is not None and plan.tokens_upstream is not None and plan.tokens_upstream > plan.usable:
            self._bus.publish(
                CeilingExceededEvent(
                    session=request.session.id,
                    exchange=request.exchange,
                    tokens=plan.tokens_upstream,
                    usable=plan.usable,
                    error=plan.reason,
                )
            )

    async def _record_refusal(self, context: SessionContext) -> None:
        """Record an epoch that takes back the refused one: the view is then sent as its client sends it."""
        request, refused = self._request, context.get_epoch(self._refused)
        if refused is None or self._plan is None:
            return
        epoch = Epoch(
            id=self._next_name,
            session=request.session.id,
            view=request.view,
            parent=refused.id,
            through=request.chain.root,
            depth=0,
            why="refused",
            exchange=request.exchange,
            opened_ms=self._states.clock.now_ms(),
            tokens_before=refused.tokens_after,
            tokens_after=self._plan.tokens_upstream or 0,
            edits=b"[]",
            rendered=(),
        )
        self._states.caches.contexts.add(epoch.session, epoch)
        context.choose(request.view, request, epoch.id)
        self._bus.publish(EpochOpened(epoch))
        if not await self._commit(epoch):
            raise StoreUnavailable("the log did not take it in time; it holds until the next start")

    async def _cut(self, overflow: Overflow) -> Retry | None:
        self._is_cut = True
        state = await self._read_sent_state()
        sent = overflow.sent or state.to_model_tokens(state.tokens)
        window = self._learn_window(overflow, sent, state)
        if overflow.window is not None and overflow.fits_with_less_output and not self._is_hop:
            window = overflow.window
            if retry := self._lower_output(window, sent):
                return retry
        state = replace(state, budget=self._limit_budget(state, window, sent))
        outgoing = await self._shorten(state)
        if outgoing is None:
            return None
        plan = self._make_plan(state, outgoing, "refused as too long")
        self._add_labels(list_labels(plan, outgoing.epoch, is_opened=True))
        return self._keep(outgoing.body, plan)

    async def _read_sent_state(self) -> RequestState:
        """Read the state of the refused request, under the epoch with which it was sent."""
        request, states, plan = self._request, self._states, self._plan
        context = await states.caches.contexts.open(request)
        epoch = context.get_epoch(plan.epoch) if plan is not None else None
        return await states.read(request, context, epoch, states.find_budget(request))

    def _learn_window(self, overflow: Overflow, sent: int, state: RequestState) -> int | None:
        """Learn the window of a refusal. Return the one that the upstream names, if it is less than was sent.

        Where it names none, it has less than was sent, if all of that could be counted.
        """
        models, key, window = self._states.models, find_key(self._request), overflow.window
        if window is not None:
            models.note_limit(key, window, sent, is_stated=True)
            known = models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant).window
            return window if window == known and window < sent else None
        if not (overflow.is_guess or overflow.is_status or state.history.guessed):
            models.note_limit(key, sent - 1, sent)
        return None

    def _limit_budget(self, state: RequestState, window: int | None, sent: int) -> Budget:
        """Compute the budget of the retry in our tokens. The upstream counted the refused request as `sent` tokens."""
        budget = self._states.find_budget(self._request)
        room = int(state.tokens * BLIND_SHARE)
        if window is not None:
            scale = state.tokens / sent if sent else 1.0
            reserve = min(state.to_model_tokens(budget.output), int(window * _MOST_RESERVED))
            room = int((window - reserve) * min(1.0, scale) * _CAUTION)
        return budget.limit(min(room, int(state.tokens * _CAUTION)))

    def _lower_output(self, window: int, sent: int) -> Retry | None:
        """Return the same body asking for fewer output tokens, or None if that is not enough."""
        limit = self._request.most_output
        fitting = lower_output(limit, window, sent) if limit else None
        body = split_body(self._body, self._request.items_key)
        if fitting is None or body is None:
            return None
        content = rendering.lower_output(body, fitting)
        if content == self._body:
            return None
        known = self._plan
        reason = f"max_tokens lowered from {limit} to {fitting}, which is what the window leaves"
        plan = Plan(
            self._request.exchange,
            self._k + 1,
            self._request.view,
            known.rung if known is not None else "original",
            known.epoch if known is not None else "",
            reason=reason,
        )
        return self._keep(content, plan)

    def _keep(self, content: bytes, plan: Plan) -> Retry:
        self._k = plan.k
        sent = self._request.find_sent(content)
        is_own = self._request.is_as_it_came(content)
        manifest = None if is_own else self._states.caches.sent.keep(self._request, sent)
        first = Round(self._request.exchange, plan.k, self._request.session.upstream, manifest)
        context = self._states.caches.contexts.get(self._request.session.id)
        epoch = context.get_epoch(plan.epoch) if context is not None and plan.epoch else None
        return Retry(content, first, plan, epoch)
