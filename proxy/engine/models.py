"""The models to which calls go: their limits, prices, token ratios, and how their providers' caches behave.

Looking up never waits. Missing facts are fetched in the background. If that fails, they stay unknown, which is no
error.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import msgspec

from proxy.context.budget import Budget, BudgetPolicy, ModelPolicy, find_model_policy, make_budget
from proxy.context.pricing import Cost, Tariff, make_tariff, price_usage
from proxy.context.provider_cache import (
    CacheModel,
    Calibration,
    choose_cache_model,
    learn_read,
    learn_seconds,
    learn_survival,
)
from proxy.engine.policy import UNKNOWN_PROVIDER, Provider
from proxy.engine.ports import Catalog, Clock, Upstream
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.runtime import EngineBus
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import UNASKED, CacheTerms, Card, LimitKey, OverflowKind
from proxy.model.epoch import Epoch, Strategy
from proxy.model.errors import ProxyError
from proxy.model.events import CacheDiffers, ResponseRead, SilentOverflowSeen
from proxy.model.exchange import Headers, Usage
from proxy.model.lru import LruCache
from proxy.model.messages import Medium
from proxy.wire.body import decode_content
from proxy.wire.credentials import is_subscription
from proxy.wire.format import DEFAULT_LIFETIME
from proxy.wire.headers import find_header, select_for_model_list
from proxy.wire.overflow import find_silent_overflow

_LISTING = b"/v1/models"
_ASK_AGAIN_SECONDS = 3600.0
_PATIENCE_SECONDS = 5.0
_MOST_BYTES = 8 * 1024 * 1024
_LISTED = 200
# How long cards and budgets are cached: finding a card takes 50 µs, a budget 10. Learned facts expire so much later.
_CARD_SECONDS = 60.0
_MOST_CARDS = 1024
_UNKNOWN = Card()

_log = logging.getLogger("palimpsest.models")

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

_MOST_WAITING = 4096
_MOST_MODELS = 1024
# A lifetime of an unknown length: the cache is used, and where markers decide never known to be cold.
_ANY_MARKER = CacheTerms(messages=("?",))
_NOTHING_LEARNED = Calibration()
# The shares of the estimated tokens of a request below which a provider has not read all of it. A model's count differs
# from ours by less; text and JSON have four bytes a token on the whole, and hardly ever twelve.
_USUAL_BYTES = 4
# Further epochs for the same sign would cost a cache each, and help no more.
_MOST_IN_A_ROW = 3
# How long it is remembered that a model's template refuses two messages of a role in a row.
_LEARNED_SECONDS = 86_400.0
_NO_WINDOW = 0  # a learned window that is never believed
_LEAST_BY_COUNT, _LEAST_BY_GUESS, _LEAST_BY_SIZE = 0.6, 0.4, 0.33
# How far a count may be from that of the new tokens alone, as a share of these.
_NEAR = 0.25

_LearnedInputs = tuple[float, float | None, float]
_Basis = tuple[Card, CacheTerms, bool, _LearnedInputs | None]
"""The variable inputs of a tariff: the model's card, the request's terms of caching, whether it is rewritten, what was
learned."""


class Models:
    """Cards, budgets, counts and prices. `counter` counts the tokens of messages. `providers` are by upstream name."""

    def __init__(
        self,
        catalog: Catalog,
        counter: TokenCounter,
        policy: BudgetPolicy,
        clock: Clock,
        spawn: Spawn,
        *,
        stated: Mapping[str, ModelPolicy] = MappingProxyType({}),
        providers: Mapping[str, Provider] = MappingProxyType({}),
    ) -> None:
        self.counter = counter
        self.providers = providers
        self.prices = PriceList(self.card, providers)
        self._catalog = catalog
        self._policy = policy
        self._clock = clock
        self._spawn = spawn
        self._stated = stated
        self._asked: dict[str, float] = {}
        self._cards: dict[LimitKey, tuple[Card, float]] = {}
        self._budgets: dict[tuple[LimitKey, int | None, int | None, Strategy], tuple[Budget, float]] = {}
        self._alternating = LruCache[tuple[str, str], float](_MOST_CARDS)  # until when, by upstream and model

    async def open(self) -> None:
        """Read the catalog that comes with the installation."""
        await self._catalog.open()
        self._forget()

    def card(self, upstream: str, model: str, *, beta: str = "", tenant: bytes = b"") -> Card:
        """Return what is known of a model now. Learned limits are those for these beta headers and this tenant."""
        key, now = LimitKey(upstream, model, beta, tenant), self._clock.monotonic()
        card, until = self._cards.get(key, (_UNKNOWN, now))
        if now < until:
            return card
        card = self._catalog.find(key)
        if len(self._cards) >= _MOST_CARDS:
            self._cards.clear()
        self._cards[key] = (card, now + _CARD_SECONDS)
        return card

    def budget(
        self,
        key: LimitKey,
        asked_output: int | None = None,
        ceiling: int | None = None,
        strategy: Strategy = "epochs",
    ) -> Budget:
        """Return how much a request may send. A `ceiling` of the request replaces the configured one."""
        asked, now = (key, asked_output, ceiling, strategy), self._clock.monotonic()
        known = self._budgets.get(asked)
        if known is not None and now < known[1]:
            return known[0]
        card = self.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        policy = self._policy if ceiling is None else replace(self._policy, ceiling_tokens=ceiling)
        memory = find_model_policy(self._stated, key.model) if strategy == "snapshot" else None
        budget = make_budget(card.window, card.output, asked_output, policy, prices=card.prices, memory=memory)
        if len(self._budgets) >= _MOST_CARDS:
            self._budgets.clear()
        self._budgets[asked] = (budget, now + _CARD_SECONDS)
        return budget

    def note_limit(self, key: LimitKey, window: int, sent: int, *, is_stated: bool = False) -> None:
        """Learn a window when an upstream refused `sent` tokens: it `is_stated` in the refusal, or inferred from it."""
        self._catalog.note_limit(key, window, sent, is_stated=is_stated)
        self._forget()

    def note_alternating(self, upstream: str, model: str) -> None:
        """Learn that an upstream refuses two messages of a role in a row for a model. It holds for a day."""
        self._alternating.put((upstream, model), self._clock.monotonic() + _LEARNED_SECONDS)

    def is_alternating(self, upstream: str, model: str) -> bool:
        """Return whether that was learned within the last day."""
        until = self._alternating.peek((upstream, model))
        return until is not None and self._clock.monotonic() < until

    def ask(self, upstream: Upstream, headers: Headers) -> None:
        """Fetch an upstream's list of models with the credential of a call, in the background, at most once an hour."""
        now = self._clock.monotonic()
        if now - self._asked.get(upstream.name, -_ASK_AGAIN_SECONDS) < _ASK_AGAIN_SECONDS:
            return
        if is_subscription(headers):
            return  # this credential is used only for what its owner sends
        self._asked[upstream.name] = now
        self._spawn(self._ask(upstream, select_for_model_list(headers)))

    def ask_window(self, request: ResolvedRequest, budget: Budget) -> None:
        """Ask the upstream of a request for the window of its model if that is unknown, and if it goes there."""
        if budget.window is None and request.kind != "recorded":
            self.ask(request.upstream, request.headers)

    def _forget(self) -> None:
        """Clear cached cards and budgets, since something new is known."""
        self._cards.clear()
        self._budgets.clear()

    async def _ask(self, upstream: Upstream, headers: Headers) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                content = await _fetch(upstream, headers)
        except (ProxyError, ValueError, TimeoutError) as error:
            _log.debug("the upstream does not list its models: %s", error, extra={"upstream": upstream.name})
            return
        await asyncio.to_thread(self._catalog.note_listing, upstream.name, content)
        self._forget()


async def _fetch(upstream: Upstream, headers: Headers) -> bytes:
    """Fetch the upstream's list of models. Raises ValueError if it gives none."""
    answer = await upstream.send("GET", _LISTING, headers, b"")
    try:
        content = bytearray()
        while piece := await answer.read():
            content += piece
            if len(content) > _MOST_BYTES:
                raise ValueError("its list is too long")
        if answer.status != _LISTED:
            raise ValueError(f"status {answer.status}")
        encoding = find_header(answer.headers, b"content-encoding").decode("latin-1")
        return decode_content(bytes(content), encoding, _MOST_BYTES)
    finally:
        answer.close()


def ignore_usage(usage: Usage) -> None:
    """Do nothing."""


class ExpectedUsage(msgspec.Struct, frozen=True, gc=False):
    """The expected usage of a request, to compare with what its response reports. Tokens are in the proxy's own count.

    `tokens` are 0 if they were not counted. `expected` tokens should be read from the cache. `stable` is set for the
    first request of an epoch: the tokens before its first edit. `size` are the bytes of a request that has no media,
    else 0. `session` is empty if nothing follows from an overflow. The sizes of `guessed` media are not known.
    `note_usage` is called with the usage.
    """

    upstream: str
    model: str
    tokens: int
    expected: int = 0
    stable: int | None = None
    session: str = ""
    key: LimitKey | None = None
    size: int = 0
    guessed: tuple[Medium, ...] = ()
    note_usage: Callable[[Usage], None] = ignore_usage


class OverflowWatch:
    """Notices upstreams that accept too long a request without an error, and remembers the views that this befell.

    Their next request opens an epoch, unless several in a row did not help. A window that it shows is learned like one
    that a refusal names.
    """

    def __init__(self, models: Models, bus: EngineBus) -> None:
        self._models = models
        self._bus = bus
        self._due: LruCache[tuple[str, str], bool] = LruCache(_MOST_MODELS)
        self._signs: LruCache[tuple[str, str], int] = LruCache(_MOST_MODELS)  # in a row

    def note_answer(self, event: ResponseRead, sent: ExpectedUsage, known: Calibration) -> OverflowKind | None:
        """Return how a response shows that its request was too long, and act on it; None if it does not."""
        if not sent.session or sent.key is None:
            return None
        models, key = self._models, sent.key
        card = models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        tokens, share = self._estimate_sent(sent, known)
        is_stated = card.window_source != "learned"
        window = card.window if is_stated else None
        found = find_silent_overflow(event.finish, event.usage, window=window, sent=tokens, share=share)
        view = sent.session, sent.model
        if found is None:
            self._signs.pop(view)
            if card.window is not None and not is_stated and (event.usage.input or 0) > card.window:
                models.note_limit(key, _NO_WINDOW, 0)  # what was learned is disproved
            return None
        if found.kind == "truncated" and _counts_new_alone(event.usage, sent, tokens):
            return found.kind  # its count says nothing
        most = max(tokens, event.usage.input or 0) + 1  # one token more than there was room for
        if found.window is not None and found.kind != "beyond":
            models.note_limit(key, found.window, max(most, found.window + 1))
        signs = (self._signs.peek(view) or 0) + 1
        self._signs.put(view, signs)
        if signs <= _MOST_IN_A_ROW:
            self._due.put(view, True)
        _log.warning(
            "%s accepted a request to %s that is too long for it (%s); set upstreams.window to its real window",
            *(sent.upstream, sent.model, found.kind),
            extra={"exchange": event.exchange, "session": sent.session, "upstream": sent.upstream, "model": sent.model},
        )
        named = event.exchange, sent.session, sent.upstream, sent.model
        self._bus.publish(SilentOverflowSeen(*named, found.kind, found.window, most - 1))
        return found.kind

    def is_due(self, session: str, view: str) -> bool:
        """Return whether the last response of a view shows that its request was too long."""
        return self._due.peek((session, view)) is not None

    def settle(self, session: str, view: str) -> None:
        """Forget it, since an epoch was tried for it."""
        self._due.pop((session, view))

    def _estimate_sent(self, sent: ExpectedUsage, known: Calibration) -> tuple[int, float]:
        """Return the tokens of a request in the model's count, and the share of them that it reads at the very least.

        The count is compared with that of the last response, or else with a guess. What has media is not compared,
        because the tokens of those may be far off.
        """
        if not sent.size:
            return sent.tokens, 0.0
        if not sent.tokens:
            return sent.size // _USUAL_BYTES, _LEAST_BY_SIZE
        if known.counted is not None:
            return int(sent.tokens * known.counted), _LEAST_BY_COUNT
        return self._models.counter.find_ratio(sent.upstream, sent.model).apply(sent.tokens), _LEAST_BY_GUESS


def _counts_new_alone(usage: Usage, sent: ExpectedUsage, tokens: int) -> bool:
    """Return whether a provider seems to count only what it did not read from a cache, and not to say so.

    `tokens` are those of the request in the model's count.
    """
    fresh = tokens * (1 - sent.expected / sent.tokens) if sent.tokens else 0.0
    return usage.cached is None and sent.expected > 0 and abs((usage.input or 0) - fresh) <= _NEAR * fresh


class _CountedPrompt(msgspec.Struct, frozen=True, gc=False):
    """The newest prompt of a view: its last node, the number of its nodes, and the epoch that it was sent under."""

    view: tuple[str, str]
    tip: bytes
    depth: int
    epoch: str
    tokens: int = 0  # as its upstream counted them


class PromptSizes:
    """What upstreams counted for the newest prompts of views that the strategy `snapshot` manages."""

    def __init__(self) -> None:
        self._open: LruCache[str, _CountedPrompt] = LruCache(_MOST_WAITING)
        self._counted: LruCache[tuple[str, str], _CountedPrompt] = LruCache(_MOST_MODELS)

    def note_sent(self, request: ResolvedRequest, epoch: Epoch | None) -> None:
        """Note a request that is sent under an epoch, or under none. Side requests say nothing of their view."""
        if isinstance(request, ManagedRequest) and request.strategy == "snapshot" and not request.is_side:
            view, id = (request.session.id, request.view), epoch.id if epoch is not None else ""
            self._open.put(request.exchange, _CountedPrompt(view, request.chain.tip, len(request.nodes), id))

    def note_answer(self, event: ResponseRead) -> None:
        """Note what a response says of its prompt."""
        sent = self._open.peek(event.exchange)
        if sent is not None and event.usage.input:
            self._counted.put(sent.view, msgspec.structs.replace(sent, tokens=event.usage.input))

    def find(self, request: ManagedRequest, epoch: str) -> int | None:
        """Return the tokens of the prompt that a request continues under the same epoch, None if they are unknown."""
        known = self._counted.peek((request.session.id, request.view))
        if known is None or known.epoch != epoch or not 0 < known.depth < len(request.nodes):
            return None
        return known.tokens if request.nodes[known.depth - 1] == known.tip else None


class CacheCalibrator:
    """Calibrations of each model of each upstream. Above the limit, those updated least recently are dropped."""

    def __init__(
        self, counter: TokenCounter, providers: Mapping[str, Provider], overflows: OverflowWatch, bus: EngineBus
    ) -> None:
        self._counter = counter
        self._providers = providers
        self._overflows = overflows
        self._bus = bus
        self._waiting: OrderedDict[tuple[str, int], ExpectedUsage] = OrderedDict()
        self._learned: OrderedDict[tuple[str, str], Calibration] = OrderedDict()
        self._tariffs: OrderedDict[tuple[str, str], tuple[_Basis, Tariff]] = OrderedDict()

    def find_tariff(
        self, upstream: str, model: str, card: Card, terms: CacheTerms = UNASKED, *, is_rewritten: bool = False
    ) -> Tariff:
        """Return the prices of a model's input, for requests with these terms of caching.

        If it `is_rewritten`, a request has markers of ours, where the upstream takes them.
        """
        key, provider = (upstream, model), self._providers.get(upstream, UNKNOWN_PROVIDER)
        learned, known = self._learned.get(key), self._tariffs.get(key)
        basis = card, terms, is_rewritten, _list_tariff_inputs(learned, provider)
        if known is not None and known[0] == basis:
            return known[1]
        cache = find_cache(provider, card, terms, is_rewritten=is_rewritten)
        tariff = make_tariff(card.prices, cache, learned)
        self._tariffs[key] = basis, tariff
        if len(self._tariffs) > _MOST_MODELS:
            self._tariffs.popitem(last=False)
        return tariff

    def wait_for(self, exchange: str, k: int, prediction: ExpectedUsage) -> None:
        """Keep the expected usage of a request that was sent."""
        self._waiting[exchange, k] = prediction
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def note_answer(self, event: ResponseRead) -> None:
        """Learn from the usage of a response that was read."""
        prediction = self._waiting.pop((event.exchange, event.k), None)
        usage = event.usage
        if prediction is None:
            return
        before = self._learned.get((prediction.upstream, prediction.model), _NOTHING_LEARNED)
        is_partial = self._overflows.note_answer(event, prediction, before) == "truncated"
        if is_partial or not usage.input or (prediction.size and not prediction.tokens):
            return
        prediction.note_usage(usage)
        prediction = self._learn_sizes(prediction, usage.input)
        self._counter.learn(prediction.upstream, prediction.model, prediction.tokens, usage.input)
        key = (prediction.upstream, prediction.model)
        known = self._learned.pop(key, _NOTHING_LEARNED)
        scale = usage.input / prediction.tokens if prediction.tokens else 1.0
        if prediction.stable is not None:
            known = learn_survival(known, round(prediction.stable * scale), usage.cached)
        else:
            known = learn_read(known, round(prediction.expected * scale), usage.cached)
        if event.first_byte_s:
            known = learn_seconds(known, usage.input, usage.cached, event.first_byte_s)
        if prediction.size and prediction.tokens:
            known = msgspec.structs.replace(known, counted=scale)
        self._learned[key] = known
        self._report_difference(event.exchange, key, before, known)
        if len(self._learned) > _MOST_MODELS:
            self._learned.popitem(last=False)

    def _learn_sizes(self, sent: ExpectedUsage, theirs: int) -> ExpectedUsage:
        """Learn the sizes of media from the first usage with them. Return what was expected with these sizes."""
        upstream, model = sent.upstream, sent.model
        fresh = [each for each in sent.guessed if self._counter.find_size(upstream, model, each.reference) is None]
        if not fresh:
            return sent
        ours = int(theirs / self._counter.find_ratio(upstream, model).value)
        return msgspec.structs.replace(
            sent, tokens=self._counter.learn_sizes(upstream, model, fresh, sent.tokens, ours)
        )

    def _report_difference(self, exchange: str, key: tuple[str, str], before: Calibration, known: Calibration) -> None:
        """Report a cache that is not what the map says, when that is first certain."""
        if known.is_missing and not before.is_missing:
            upstream, model = key
            _log.warning(
                "the cache of %s reads hardly anything for %s; epochs are priced by that (upstreams.cache)",
                *key,
                extra={"upstream": upstream, "model": model},
            )
            self._bus.publish(CacheDiffers(exchange, upstream, model, known.read))


def find_cache(
    provider: Provider, card: Card, terms: CacheTerms = UNASKED, *, is_rewritten: bool = False
) -> CacheModel:
    """Return how the cache of a provider's model works for a request with these terms.

    If it `is_rewritten`, the request has markers of ours, where the upstream takes them.
    """
    if is_rewritten and provider.takes_markers:
        head = terms.head or ((DEFAULT_LIFETIME,) if terms.has_leading else ())
        terms = msgspec.structs.replace(terms, head=head, messages=terms.messages or (DEFAULT_LIFETIME,))
    return choose_cache_model(card.caches, provider.cache, provider.host, terms, card.retention)


@dataclass(frozen=True, slots=True)
class PriceList:
    """What is needed to price a call by its usage: the cards of upstreams' models, and the upstreams' providers."""

    find_card: Callable[[str, str], Card]
    providers: Mapping[str, Provider] = field(default_factory=dict)

    def find_cache(
        self, upstream: str, card: Card, terms: CacheTerms = _ANY_MARKER, *, is_rewritten: bool = False
    ) -> CacheModel:
        """Return how the cache of an upstream's model works for requests with these terms, or that use it somehow."""
        return find_cache(self.providers.get(upstream, UNKNOWN_PROVIDER), card, terms, is_rewritten=is_rewritten)

    def price(self, upstream: str, model: str, usage: Usage) -> Cost:
        """Return the cost of a call with this usage."""
        card = self.find_card(upstream, model)
        return price_usage(usage, card, self.find_cache(upstream, card))


def _list_tariff_inputs(learned: Calibration | None, provider: Provider) -> _LearnedInputs | None:
    """Return the inputs of a tariff from a calibration: seconds, which always differ, only if time is the price."""
    if learned is None:
        return None
    return learned.read, learned.survival, learned.cached_ratio if provider.cache == "local" else 0.0
