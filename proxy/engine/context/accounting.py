"""Accounting for sent requests: what each costs and saves, and what its response tells about the provider's cache."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from proxy.context.budget import TokenRatio
from proxy.context.cache_misses import Precedent, PromptTrail, SentPrompt, can_have_missed, explain_use, name_rewriting
from proxy.context.epoch_decision import CacheCostAccount, Decision, SentTokens, record_request, record_use
from proxy.context.pricing import (
    RequestSizes,
    estimate_client_read,
    estimate_saving,
    estimate_size,
    price_missed,
    price_saved,
)
from proxy.context.provider_cache import HARDLY_ANY
from proxy.engine.context.epoch_scope import CountedRequest, EpochAccount, format_removed
from proxy.engine.context.request_state import OutgoingRequest, RequestState, find_key
from proxy.engine.context.session_caches import SentBodies
from proxy.engine.context.session_context import SessionContext
from proxy.engine.models import CacheCalibrator, ExpectedUsage, PriceList, PromptSizes
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Epoch, Plan, Rung
from proxy.model.events import (
    AnswerRead,
    CeilingUnreachable,
    EpochOpened,
    PromptSent,
    ReasoningRemoved,
    RequestRecorded,
    ResponseRead,
    RungFailedEvent,
)
from proxy.model.exchange import Headers, Usage
from proxy.model.lineage import count_shared_nodes
from proxy.model.lru import LruCache
from proxy.model.manifest import Manifest
from proxy.model.messages import Medium
from proxy.wire import FORMATS

_log = logging.getLogger("palimpsest.context")

# No provider evicts a prompt that was read so recently: if it is read no more, that tells how the cache works.
_SURELY_KEPT_SECONDS = 240.0
# A text of fewer bytes has about 2,000 tokens at most, and hardly any server's window is smaller.
_WATCHED_BYTES = 8192
_NOTHING_OPENED = "an epoch was due: another request's with the same history is used, or none could be made"


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


def label_note(note: str) -> Headers:
    """Return a response header that tells something, or none if there is nothing to tell."""
    return ((b"x-palimpsest-notice", note.encode("ascii", "replace")),) if note else ()


def tell_removed(
    bus: EngineBus, request: ManagedRequest, context: SessionContext, outgoing: OutgoingRequest
) -> OutgoingRequest:
    """Tell of reasoning that is not sent: once of each message, and always where management was not asked for."""
    if not outgoing.removed:
        return outgoing
    epoch = outgoing.epoch.id if outgoing.epoch is not None else ""
    if fresh := context.reasoning.note_removed(request.nodes[place] for place in outgoing.removed):
        bus.publish(ReasoningRemoved(request.exchange, request.session.id, request.view, epoch, fresh))
    if not fresh and request.mode == "manage":
        return outgoing
    return replace(outgoing, note=format_removed(len(outgoing.removed)))


def tell_recorded(bus: EngineBus, request: ManagedRequest) -> None:
    """Tell of a request whose opening is handed to the log, if anybody listens."""
    if RequestRecorded not in bus.subscribers:
        return
    lineage, decode = request.lineage, FORMATS[request.wire].decode_message
    place = min(lineage.base, len(request.nodes)) if lineage is not None else 0

    def list_roles(most: int) -> list[str]:
        return [decode(raw).structure.role for raw in request.list_raws(max(place, len(request.nodes) - most))]

    told = (request.upstream.name, request.model, request.wire, request.nodes[place:], place, list_roles)
    is_read = (request.is_side, lineage is not None)
    bus.publish(RequestRecorded(request.exchange, request.session, *told, *is_read, request.load_message))


def tell_opened(bus: EngineBus, request: ManagedRequest, epoch: Epoch) -> None:
    """Tell of an epoch that was opened for a request, and of what it has in short."""
    bus.publish(EpochOpened(epoch, request.wire, request.load_message))


def tell_unreachable(bus: EngineBus, state: RequestState, protected: int) -> bool:
    """Report that there is no room for all that should stay, once until an epoch has room again.

    Return whether it is reported now.
    """
    if not protected:
        state.context.reported.discard(state.view)
    if not protected or state.view in state.context.reported:
        return False
    state.context.reported.add(state.view)
    shown, named = state.to_model_tokens(protected), (state.request.exchange, state.request.session.id)
    _log.warning(
        "%d of %d usable tokens should stay as they are; some of it is shortened to keep the ceiling. Raise"
        " budget.ceiling_tokens, unpin messages, or offer fewer tools",
        shown,
        state.to_model_tokens(state.budget.usable),
        extra={"session": state.request.session.id},
    )
    bus.publish(CeilingUnreachable(*named, state.view, shown, state.to_model_tokens(state.budget.usable)))
    return True


def tell_preamble(bus: EngineBus, state: RequestState) -> str:
    """Report a preamble that leaves messages too little room below the ceiling. Return what is told of it, once."""
    preamble = state.history.head.tokens
    if not state.budget.lifted or not tell_unreachable(bus, state, preamble):
        return ""
    shown, usable, left = map(state.to_model_tokens, (preamble, state.budget.usable, state.budget.high - preamble))
    return (
        f"the system prompt and the tools alone have {shown} tokens of {usable} below the ceiling: the messages keep"
        f" {left} beside them; raise the ceiling or offer fewer tools"
    )


def tell_failure(bus: EngineBus, state: RequestState, rung: Rung, error: Exception) -> None:
    """Tell of a fallback level that failed. What was only late is told in its own words."""
    is_late = isinstance(error, TimeoutError) and str(error)
    problem = str(error) if is_late else f"{type(error).__name__}: {error}"
    _log.warning(
        "fallback level %r failed: %s; trying the next one",
        rung,
        problem,
        extra={"exchange": state.request.exchange, "session": state.request.session.id},
    )
    bus.publish(
        RungFailedEvent(session=state.request.session.id, exchange=state.request.exchange, rung=rung, error=problem)
    )


def add_note(request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
    """Return an uncounted request with its note in its labels and in its plan."""
    if not outgoing.note:
        return outgoing
    plan = outgoing.plan or Plan(request.exchange, 0, request.view, "original")
    plan = replace(plan, reason="; ".join(filter(None, (plan.reason, outgoing.note))))
    return replace(outgoing, plan=plan).add(label_note(outgoing.note))


class UsageAccounting:
    """Charges requests to the account of their epoch, and registers what their responses should show of the cache.

    Nothing here changes what is sent, so it may run while the upstream works on the request.
    """

    def __init__(self, sent: SentBodies, calibrator: CacheCalibrator) -> None:
        self._sent = sent
        self._calibrator = calibrator

    def build_manifest(self, request: ResolvedRequest, outgoing: OutgoingRequest) -> Manifest:
        """Build the manifest of a rewritten body. If that fails, the body is kept whole."""
        if not isinstance(request, ManagedRequest):
            return self._sent.keep_apart(outgoing.body)
        depth = outgoing.epoch.depth if outgoing.epoch is not None else 0
        depth = max([depth, *(place + 1 for place in outgoing.removed)])
        try:
            return self._sent.keep(request, outgoing.body, depth)
        except Exception:  # noqa: BLE001 - a boundary: the body is on its way
            _log.exception(
                "a body that was sent could not be related to earlier ones; it is kept whole, which takes more space",
                extra={"exchange": request.exchange, "session": request.session.id},
            )
            return self._sent.keep_apart(outgoing.body)

    def watch(self, request: ManagedRequest, body: bytes) -> None:
        """Watch the response to a request that is not counted: it may show that the request was too long."""
        if (request.chain.is_plain and len(body) < _WATCHED_BYTES) or request.kind == "recorded":
            return
        key = find_key(request)
        size = len(body) if request.chain.is_plain else 0
        expected = ExpectedUsage(key.upstream, key.model, 0, session=request.session.id, key=key, size=size)
        self._calibrator.wait_for(request.exchange, 0, expected)

    def account(self, state: RequestState, outgoing: OutgoingRequest, decision: Decision) -> OutgoingRequest:
        """Charge a request. Return it with its plan and labels."""
        request, epoch = state.request, outgoing.epoch
        matching, ends = find_matching(state, outgoing), list_ends(state, outgoing)
        client_matching = _find_client_matching(state)
        own, sent = _list_expectations(state, outgoing)
        saving = _estimate_saving(state, outgoing, client_matching, ends)
        client_read = _find_read(state, client_matching, own)
        sent_read = None if client_matching is None else _find_read(state, matching, sent, ends)
        if request.kind == "recorded":  # whoever made the call has saved it, or not
            saving = client_read = sent_read = None
        idle = state.account.compute_idle(state.now)
        is_recent = idle is not None and idle <= _SURELY_KEPT_SECONDS
        expected = ExpectedUsage(
            request.session.upstream,
            request.model,
            outgoing.tokens,
            state.tariff.cache.find_read(matching, ends) if is_recent else 0,
            matching if outgoing.is_opened else None,
            session=request.session.id,
            key=find_key(request),
            size=len(outgoing.body) if request.chain.is_plain else 0,
            guessed=_list_guessed(state, outgoing),
        )
        plan = Plan(
            request.exchange,
            0,
            state.view,
            outgoing.rung,
            epoch.id if epoch is not None else "",
            decision.pressure,
            _explain(outgoing, decision),
            state.to_model_tokens(state.client_tokens),
            state.to_model_tokens(outgoing.tokens),
            state.to_model_tokens(state.budget.high),
            _charge(state, outgoing).owed,
            saving,
            client_read,
            sent_read,
            own.apply(state.client_tokens) if own.known else None,
            sent.apply(outgoing.tokens) if sent.known else None,
            state.to_model_tokens(state.budget.window or 0),
            state.to_model_tokens(state.budget.soft),
        )
        if request.kind != "recorded":  # its usage may be of another prompt, or our own estimate
            account = state.find_account(epoch)
            note_usage = partial(_note_usage, account, plan, state.client_tokens, outgoing.tokens)
            self._calibrator.wait_for(request.exchange, 0, replace(expected, note_usage=note_usage))
        return replace(
            outgoing,
            matching=matching,
            idle=idle,
            plan=plan,
            labels=(*list_labels(plan, epoch, is_opened=outgoing.is_opened), *label_note(outgoing.note)),
            is_managed=True,
            is_guarded=state.budget.is_near_window(outgoing.tokens),
        )


def _list_guessed(state: RequestState, outgoing: OutgoingRequest) -> tuple[Medium, ...]:
    """Return the media that are sent and whose sizes are not known."""
    depth, rendered = (outgoing.epoch.depth, outgoing.epoch.rendered) if outgoing.epoch is not None else (0, ())
    return tuple(
        [
            medium
            for place, medium in state.history.guessed
            if place >= depth or any(medium.reference.encode() in raw for raw in rendered)
        ]
    )


def _explain(outgoing: OutgoingRequest, decision: Decision) -> str:
    """Say why this is sent: why the levels before it failed, else why no epoch opened."""
    why = outgoing.failed or ("" if outgoing.is_opened else decision.reason or _NOTHING_OPENED)
    return "; ".join(filter(None, (why, outgoing.note)))


def _charge(state: RequestState, outgoing: OutgoingRequest) -> CacheCostAccount:
    """Charge a request to the account of the epoch that it is sent under. Return the account."""
    epoch_account = state.find_account(outgoing.epoch)
    if state.request.is_side:
        epoch_account.account = record_use(epoch_account.account, state.now)
        return epoch_account.account
    low = state.budget.compute_low_mark(state.context.protected.get(state.view, 0))
    kept = find_matching(state, outgoing) if outgoing.is_opened else state.kept
    sent = SentTokens(outgoing.tokens, kept=kept, at=state.now)
    account = epoch_account.account = record_request(epoch_account.account, sent, state.tariff, low)
    epoch_account.before, epoch_account.head = state.request.nodes, state.history.head
    return account


def find_matching(state: RequestState, outgoing: OutgoingRequest) -> int:
    """Return how many tokens at the beginning of what is sent were sent before."""
    if outgoing.is_opened:
        return 0 if _adds_tool(state, outgoing) else state.history.head.tokens + min(0, state.tool_tokens)
    return min(outgoing.tokens, state.account.sent if state.kept is None else state.kept)


def _adds_tool(state: RequestState, outgoing: OutgoingRequest) -> bool:
    """Return whether what is sent begins anew, because the tools do: with another one, or without it."""
    tool = outgoing.epoch.tool if outgoing.epoch is not None else b""
    return tool != (state.epoch.tool if state.epoch is not None else b"")


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
    sizes, breakpoints = [history.head.tokens], [0] if cache.has_head_breakpoint else []
    if depth:
        sizes.append(sizes[0] + state.epoch_tokens)
        breakpoints.append(1)  # a marker, or a user message of ours
    for place, structure in enumerate(structures, depth):
        following = structures[place - depth + 1].role if place - depth + 1 < len(structures) else ""
        is_end = structure.role in ("user", "tool") and following != "tool"
        if structure.markers if cache.kind == "breakpoints" else is_end:
            breakpoints.append(len(sizes))
        added = state.count_recalled(depth) - state.count_recalled(place + 1) if state.has_tool else 0
        frozen = state.epoch_tokens if depth else 0
        sizes.append(history.head.tokens + frozen + history.count(depth, place + 1) + added)
    return [sizes[place] for place in cache.list_readable(breakpoints, len(sizes))]


def _find_client_matching(state: RequestState) -> int | None:
    """Return how many tokens of the client's own request its last one had, None if that is unknown."""
    before, head = state.epoch_account.before, state.epoch_account.head
    if before is None:
        return None
    if head not in (None, state.history.head):
        return 0
    return state.history.head.tokens + state.history.count_to(count_shared_nodes(before, state.history.nodes))


def _estimate_saving(
    state: RequestState, outgoing: OutgoingRequest, client_matching: int | None, ends: Sequence[int] | None
) -> float | None:
    """Estimate what a request saves against the client's own, from what is known of the cache before the response."""
    if client_matching is None:
        return None
    if outgoing.rung == "original":
        return 0.0
    client_read = estimate_client_read(state.tariff, client_matching, state.account.compute_idle(state.now))
    sent_read = state.tariff.estimate_cached(find_matching(state, outgoing), ends)
    return estimate_saving(RequestSizes(state.client_tokens, outgoing.tokens, client_read, sent_read), state.tariff)


class _Expectation(NamedTuple):
    """How the provider will count a request: from its count of an earlier one on, if `known` has it and our own."""

    ratio: TokenRatio
    known: tuple[int, int] | None

    def apply(self, tokens: int) -> int:
        """Convert a number of our tokens, from the beginning of the request, to the model's."""
        theirs, ours = self.known or (0, 0)
        return theirs + self.ratio.apply(tokens - ours) if 2 * tokens > ours else self.ratio.apply(tokens)


def _list_expectations(state: RequestState, outgoing: OutgoingRequest) -> tuple[_Expectation, _Expectation]:
    """Return how the provider will count the client's own request, and what is sent if that continues a request."""
    known = state.epoch_account.counted
    if known is None:
        return _Expectation(state.ratio, None), _Expectation(state.ratio, None)
    is_continued = not outgoing.is_opened and outgoing.epoch is state.epoch
    sent = (known.paid, known.tokens) if is_continued else None
    return _Expectation(state.ratio, (known.own, known.own_tokens)), _Expectation(state.ratio, sent)


def _note_usage(account: EpochAccount, plan: Plan, own_tokens: int, tokens: int, usage: Usage) -> None:
    """Note what the provider counted of a request."""
    size = estimate_size(plan, usage.input or 0)
    if usage.input and size is not None:
        account.counted = CountedRequest(size, own_tokens, usage.input, tokens)


def _find_read(
    state: RequestState, matching: int | None, count: _Expectation, ends: Sequence[int] | None = None
) -> int | None:
    """Return how many of the tokens that were sent before should be read, as the model counts them."""
    if matching is None:
        return None
    cache = state.tariff.cache
    if state.tariff.read_share < HARDLY_ANY or cache.is_cold(state.account.compute_idle(state.now)):
        return 0
    if cache.has_breakpoints:
        return count.apply(cache.find_read(matching, ends))
    return cache.find_read(count.apply(matching))


MOST_PROMPTS = 1024
# About 70 bytes each, of which the caches of histories hold most, too.
MOST_NODES = 200_000


class AnswerAccounting:
    """The one consumer of responses that were read: learns from each, prices it, and says what it tells of the cache.

    What it finds is published with the response (`AnswerRead`), from which everybody else has it. Of caches the log
    says the same later (`read/cache`). Here it is said from memory: of a session that memory does not have,
    the first call counts as its first.
    """

    def __init__(self, bus: EngineBus, prices: PriceList, calibrator: CacheCalibrator, sizes: PromptSizes) -> None:
        self._bus = bus
        self._prices = prices
        self._calibrator = calibrator
        self._sizes = sizes
        self._waiting: OrderedDict[str, PromptSent] = OrderedDict()
        self._opened = LruCache[str, str](MOST_PROMPTS)  # why, by the exchange that an epoch was opened for
        self._trails: OrderedDict[str, PromptTrail] = OrderedDict()
        self._nodes = 0  # of all trails together
        bus.subscribe(PromptSent, self.note_prompt)
        bus.subscribe(EpochOpened, self.note_epoch)
        bus.subscribe(ResponseRead, self.note_response)

    def note_prompt(self, event: PromptSent) -> None:
        """Remember a prompt until its response was read."""
        self._waiting[event.exchange] = event
        if len(self._waiting) > MOST_PROMPTS:
            self._waiting.popitem(last=False)

    def note_epoch(self, event: EpochOpened) -> None:
        """Remember why an epoch was opened."""
        if not event.epoch.is_reversion:
            self._opened.put(event.epoch.exchange, event.epoch.why)

    def note_response(self, read: ResponseRead) -> None:
        """Account for a response, and tell all of it, also where a fault of ours stops the accounting."""
        found: dict[str, Any] = {}
        try:
            if read.is_informative:
                self._calibrator.note_answer(read)
                self._sizes.note_answer(read)
                found = self._explain(read)
        finally:
            self._bus.publish(AnswerRead(**asdict(read), **found, price=partial(self._price, read)))

    def _price(self, read: ResponseRead) -> float | None:
        """Return what a response cost, as far as that is known. It is looked up for those who ask only."""
        ended, usage = read.round, read.usage
        if ended is None or ended.kind == "recorded" or (usage.input, usage.output) == (None, None):
            return None
        return self._prices.price(ended.upstream, ended.model, usage).money

    def _explain(self, read: ResponseRead) -> dict[str, Any]:
        """Return what a response tells of the cache and of what managing saved, as `AnswerRead` has it."""
        sent = self._waiting.pop(read.exchange, None)
        if sent is None:
            return {}
        plan, usage = read.round.plan if read.round is not None else None, read.usage
        prompt = SentPrompt(
            *(sent.exchange, sent.upstream, sent.model, sent.nodes, sent.layers),
            rewriting=name_rewriting(plan),
            why=self._opened.pop(read.exchange) or "" if plan is not None else "",
            sent_ms=sent.sent_ms,
            ready_ms=sent.sent_ms + 1000 * read.first_byte_s,
            usage=usage,
        )
        precedent = self._follow(sent.session, prompt)
        if plan is None and not can_have_missed(prompt, precedent):
            return {}  # nothing that would have to be looked up: true of most calls
        card, is_rewritten = self._prices.find_card(sent.upstream, sent.model), bool(plan is not None and plan.epoch)
        cache = self._prices.find_cache(sent.upstream, card, sent.terms, is_rewritten=is_rewritten)
        use = explain_use(prompt, precedent, cache, read.told)
        cost, saved = price_missed(use, usage, card, cache), price_saved([(plan, usage)], card, cache)
        found = {"cause": use.cause, "missed": use.missed, "missed_cost": cost.tokens, "missed_money": cost.money}
        return found if saved is None else {**found, "saved": saved.tokens, "saved_money": saved.money}

    def _follow(self, session: str, prompt: SentPrompt) -> Precedent | None:
        """Add a prompt to the trail of its session. Return the one that it continues."""
        trail = self._trails.pop(session, None) or PromptTrail()
        precedent, before = trail.find(prompt), trail.weight
        trail.add(prompt)
        self._trails[session] = trail
        self._nodes += trail.weight - before
        while self._nodes > MOST_NODES and len(self._trails) > 1:
            self._nodes -= self._trails.popitem(last=False)[1].weight
        return precedent
