"""Calls that were sent near the soft mark or above it: behind them the worker makes summaries, or memory."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.job import SentRequest
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.context.request_state import OutgoingRequest, RequestState
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import attempt
from proxy.engine.stages.stage import Call, Stage
from proxy.model.events import AnswerRead, ExchangeRecorded
from proxy.model.exchange import SUCCESS, SessionKey, Usage
from proxy.model.lru import LruCache
from proxy.wire import FORMATS
from proxy.wire.headers import drop_beta

_MOST_CALLS, _MOST_UNREAD = 1024, 64
_IDLE_SECONDS = 5.0
# The share of the soft mark from which on the next call may be the one that opens an epoch, so that a summary of what
# that takes has to be asked for now.
_NEAR_SHARE = 0.85

_log = logging.getLogger("palimpsest.compaction")


StartMemory = Callable[[SentRequest, bool], None]
"""Starts to make memory of turns, given whether a model may be asked."""


class _OpenCall(msgspec.Struct, gc=False):
    """A managed call whose response has not ended. `sent` is set if it may be summarised afterwards."""

    tip: bytes
    credential: CallCredential
    session: SessionKey
    sent: SentRequest | None = None


@dataclass(kw_only=True, eq=False)
class SummaryWatch(Stage):
    """Follows the clients' calls, and starts the worker after those that need a summary. Nothing here waits."""

    worker: SummaryWorker
    start_memory: StartMemory  # of the strategy `snapshot`

    def __post_init__(self) -> None:
        summarizer, self.policy, self.credentials = self.worker.summarizer, self.worker.policy, self.worker.credentials
        self.budget, self.jobs = summarizer.health.budget, self.worker.jobs
        self.open_calls = LruCache[str, _OpenCall](_MOST_CALLS)
        self._unread = LruCache[str, SentRequest](_MOST_UNREAD)  # its answered calls, until their responses were read
        bus = summarizer.caller.bus
        bus.subscribe(ExchangeRecorded, self.note_exchange)
        bus.subscribe(AnswerRead, self.note_answer)
        if self.policy.spend_per_day:
            loading = self.budget.load_today(self.worker.archive.sum_auxiliary)
            summarizer.caller.tasks.spawn(attempt(loading, _log_unknown_spending))

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Record that a call has arrived, managed or not. On a local server it has precedence over summaries."""
        upstream = request.upstream.name
        if self.jobs.is_local(upstream, request.model):
            self.jobs.note_arrival(upstream, request.exchange)
        return exchange.client

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        """Record the credential of a managed call, and what is sent for it."""
        if outgoing.is_managed:
            self.note_managed(request)
            if outgoing.state is not None:
                self.note_sent(outgoing.state, outgoing)

    def note_managed(self, request: ManagedRequest) -> None:
        """Record the credential of a managed call."""
        headers = request.headers
        if request.clearing is not None:  # what goes upstream lacks the member, and so this beta
            headers = drop_beta(headers, FORMATS[request.wire].clearing_beta)
        credential = CallCredential(request.upstream, request.target, headers)
        if request.kind == "recorded" and (newest := self.credentials.find_newest(request.session.id)) is not None:
            credential = newest[1]  # it brings none of its own
        self.open_calls.put(request.exchange, _OpenCall(request.chain.tip, credential, request.session))

    def note_sent(self, state: RequestState, outgoing: OutgoingRequest) -> None:
        """Record what is sent for a call, and the state from which that was decided."""
        read = state.tariff.estimate_cached(outgoing.matching)
        expected = Usage(state.to_model_tokens(outgoing.tokens), 0, state.to_model_tokens(read))
        self.budget.record_estimate(state.request.exchange, expected)
        may_open = state.epoch is None or state.epoch.why != "refused"
        is_pressed = outgoing.plan is not None and outgoing.plan.pressure != "none"
        is_near = is_pressed or outgoing.tokens >= _NEAR_SHARE * state.budget.soft > 0
        is_summarised = {"epochs": self.policy.auto, "turns": False, "snapshot": True}[state.request.strategy]
        if is_summarised and is_near and not state.request.is_side and may_open:
            opened = outgoing.epoch if outgoing.epoch is not state.epoch else None
            interval = None if state.kept is not None else outgoing.idle
            call = self.open_calls.peek(state.request.exchange)
            if call is not None:
                call.sent = SentRequest(state, outgoing.body, opened, interval)

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Record that a call has ended, or a round that is followed by another. Subscribed to the bus."""
        call = self.open_calls.pop(event.exchange) if event.is_final else self.open_calls.peek(event.exchange)
        if call is None:
            return
        if not event.is_final:
            call.sent = None
            return
        if event.status not in SUCCESS:
            return
        self.credentials.store(event.session, call.tip, call.credential, call.session)
        request = call.sent
        if request is None or event.completeness != "complete":
            return
        if request.state.request.strategy == "snapshot":
            self._unread.put(event.exchange, request)
        elif not self.jobs.is_local(event.upstream, request.state.request.model):
            self.worker.start(request)
            for follow in self.worker.followers:
                follow(request)
        elif self.policy.model:  # a server with one request at a time summarises only if a model is set
            self.jobs.later(_IDLE_SECONDS, lambda: self._start_if_idle(event, request))

    def note_answer(self, event: AnswerRead) -> None:
        """Start to make memory behind a response whose prompt has filled its budget. Subscribed to the bus."""
        request = self._unread.pop(event.exchange) if event.is_informative else None
        if request is None:
            return
        state = request.state
        if (event.usage.input or state.to_model_tokens(request.tokens)) > state.to_model_tokens(state.budget.soft):
            managed = state.request
            is_local = self.jobs.is_local(managed.session.upstream, managed.model)
            self.start_memory(request, self.policy.auto and not is_local)

    def _start_if_idle(self, event: ExchangeRecorded, request: SentRequest) -> None:
        if self.jobs.is_newest(event.upstream, event.exchange):
            self.worker.start(request)


def _log_unknown_spending(error: Exception) -> None:
    _log.error("the log did not say what was spent today; no summary is paid for until a restart", exc_info=error)
