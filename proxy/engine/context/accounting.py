"""Accounting for sent requests: what each costs and saves, and what its response tells about the provider's cache."""

import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from proxy.context.epoch_decision import CacheCostAccount, Decision, SentTokens, record_request, record_use
from proxy.context.pricing import RequestSizes, estimate_client_read, estimate_saving
from proxy.engine.context.history_cache import count_shared
from proxy.engine.context.request_state import OutgoingRequest, RequestState, find_key
from proxy.engine.context.session_caches import SentBodies
from proxy.engine.models import CacheCalibrator, ExpectedUsage
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Plan
from proxy.model.exchange import Headers
from proxy.model.manifest import Manifest

_log = logging.getLogger("palimpsest.context")

# No provider evicts a prompt that was read so recently: if it is read no more, that tells how the cache works.
_SURELY_KEPT_SECONDS = 240.0
# No server has a smaller window than this has tokens; shorter requests are not compared with what was read of them.
_WATCHED_BYTES = 8192
_NOTHING_OPENED = "an epoch was to open, and another request's or none bore"


def list_labels(plan: Plan, epoch: Epoch | None, *, is_opened: bool) -> Headers:
    """Return response headers: the epoch that was applied, tokens where they were counted, and what was compacted."""
    labels: list[tuple[bytes, bytes]] = []
    if epoch is not None:
        labels.append((b"x-palimpsest-epoch", epoch.id.encode()))
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        value = f"client={plan.tokens_client}, upstream={plan.tokens_upstream}"
        labels.append((b"x-palimpsest-tokens", value.encode()))
    if epoch is not None and is_opened:
        value = f"compacted {epoch.tokens_before}->{epoch.tokens_after}"
        labels.append((b"x-palimpsest-notice", value.encode()))
    return tuple(labels)


class SentObserver(Protocol):
    """An observer of calls that may start background work, as compaction does."""

    def note_arrival(self, request: ManagedRequest) -> None:
        """Note that a call has arrived, managed or not."""
        ...

    def note_managed(self, request: ManagedRequest) -> None:
        """Note that a call is managed."""
        ...

    def note_sent(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> None:
        """Note the state of a request, and what was sent for it."""
        ...

    async def wait(self, request: ManagedRequest) -> None:
        """Wait for the running work on the branch of a call, for a bounded time."""
        ...


class NoObserver:
    """An observer that does nothing."""

    def note_arrival(self, request: ManagedRequest) -> None:
        """Do nothing."""

    def note_managed(self, request: ManagedRequest) -> None:
        """Do nothing."""

    def note_sent(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> None:
        """Do nothing."""

    async def wait(self, request: ManagedRequest) -> None:
        """Return at once."""


class UsageAccounting:
    """Charges requests to the account of their epoch, and registers what their responses should show of the cache.

    Nothing here changes what is sent, so it may run while the upstream works on the request.
    """

    def __init__(self, sent: SentBodies, calibrator: CacheCalibrator, observer: SentObserver) -> None:
        self._sent = sent
        self._calibrator = calibrator
        self._observer = observer

    def build_manifest(self, request: ManagedRequest, outgoing: OutgoingRequest) -> Manifest:
        """Build the manifest of a rewritten body. If that fails, the body is kept whole."""
        depth = outgoing.epoch.depth if outgoing.epoch is not None else 0
        try:
            return self._sent.keep(request, outgoing.body, depth)
        except Exception:  # noqa: BLE001 - a boundary: the body is on its way
            _log.exception(
                "exchange %s: the body sent could not be related to earlier ones; it is kept whole", request.exchange
            )
            return self._sent.keep_apart(outgoing.body)

    def watch(self, request: ManagedRequest, body: bytes) -> None:
        """Watch the response to a request that is not counted: it may show that the request was too long."""
        key = find_key(request)
        size = len(body) if len(body) >= _WATCHED_BYTES and request.chain.is_plain else 0
        expected = ExpectedUsage(key.upstream, key.model, 0, session=request.session.id, key=key, size=size)
        self._calibrator.wait_for(request.exchange, 0, expected)

    def account(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> OutgoingRequest:
        """Charge a request. Return it with its plan and labels."""
        request, epoch = state.request, outgoing.epoch
        matching, ends = find_matching(state, outgoing), list_ends(state, outgoing)
        saving = _estimate_saving(state, outgoing, ends)
        idle = state.account.compute_idle(state.now)
        is_recent = idle is not None and idle <= _SURELY_KEPT_SECONDS
        expected = ExpectedUsage(
            request.session.upstream,
            state.view,
            outgoing.tokens,
            state.tariff.cache.find_read(matching, ends) if is_recent else 0,
            matching if outgoing.is_opened else None,
            session=request.session.id,
            key=find_key(request),
            size=len(outgoing.body) if request.chain.is_plain else 0,
        )
        self._calibrator.wait_for(request.exchange, 0, expected)
        self._observer.note_sent(state, outgoing, decision)
        plan = Plan(
            request.exchange,
            0,
            state.view,
            outgoing.rung,
            epoch.id if epoch is not None else "",
            decision.pressure,
            "" if outgoing.is_opened else decision.reason or _NOTHING_OPENED,
            state.to_model_tokens(state.client_tokens),
            state.to_model_tokens(outgoing.tokens),
            state.to_model_tokens(state.budget.usable),
            _charge(state, outgoing).owed,
            saving,
        )
        return replace(
            outgoing,
            plan=plan,
            labels=list_labels(plan, epoch, is_opened=outgoing.is_opened),
            is_managed=True,
            is_guarded=state.budget.is_near_window(outgoing.tokens),
        )


def _charge(state: RequestState, outgoing: OutgoingRequest) -> CacheCostAccount:
    """Charge a request to the account of the epoch that it is sent under. Return the account."""
    epoch_account = state.find_account(outgoing.epoch)
    if state.request.is_side:
        epoch_account.account = record_use(epoch_account.account, state.now)
        return epoch_account.account
    low = state.budget.compute_low_mark(state.context.protected.get(state.view, 0))
    kept = state.history.head.tokens if outgoing.is_opened else state.kept
    sent = SentTokens(outgoing.tokens, kept=kept, at=state.now)
    account = epoch_account.account = record_request(epoch_account.account, sent, state.tariff, low)
    epoch_account.before, epoch_account.head = state.request.nodes, state.history.head
    return account


def find_matching(state: RequestState, outgoing: OutgoingRequest) -> int:
    """Return how many tokens at the beginning of what is sent were sent before."""
    if outgoing.is_opened:
        return state.history.head.tokens
    return min(outgoing.tokens, state.account.sent if state.kept is None else state.kept)


def list_ends(state: RequestState, outgoing: OutgoingRequest) -> list[int] | None:
    """Return the tokens up to each block at which a cache with breakpoints may be read, or None.

    None: what was sent before ends at one, because it is all of the last request, or because an epoch opens; or the
    cache has none.
    """
    cache, history = state.tariff.cache, state.history
    if state.kept is None or outgoing.is_opened or not cache.has_breakpoints:
        return None
    depth = state.epoch.depth if state.epoch is not None else 0
    structures = history.structures[depth:]
    sizes, marks = [history.head.tokens], [0] if cache.is_head_marked else []
    if depth:
        sizes.append(sizes[0] + state.frozen)
        marks.append(1)  # a marker, or a user message of ours
    for place, structure in enumerate(structures, depth):
        following = structures[place - depth + 1].role if place - depth + 1 < len(structures) else ""
        is_end = structure.role in ("user", "tool") and following != "tool"
        if structure.markers if cache.kind == "breakpoints" else is_end:
            marks.append(len(sizes))
        sizes.append(history.head.tokens + (state.frozen if depth else 0) + history.count(depth, place + 1))
    return [sizes[place] for place in cache.list_readable(marks, len(sizes))]


def _estimate_saving(state: RequestState, outgoing: OutgoingRequest, ends: Sequence[int] | None) -> float | None:
    """Estimate what a request saves against the client's own, from what is known of the cache before the response."""
    before = state.epoch_account.before
    if before is None:
        return None
    shared = count_shared(before, state.history.nodes)
    client_read = estimate_client_read(
        state.tariff, state.history.head.tokens + state.history.count_to(shared), state.account.compute_idle(state.now)
    )
    sent_read = state.tariff.estimate_cached(find_matching(state, outgoing), ends)
    return estimate_saving(RequestSizes(state.client_tokens, outgoing.tokens, client_read, sent_read), state.tariff)
