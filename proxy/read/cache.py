"""Why did the provider's cache miss: each call of a session, by what the log has of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

import msgspec

from proxy.context.cache_misses import (
    CacheUse,
    Precedent,
    PromptTrail,
    SentPrompt,
    Use,
    explain_use,
    name_rewriting,
)
from proxy.context.pricing import Cost, price_missed
from proxy.context.provider_cache import CacheModel
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import load_body, read_body
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import read_pages
from proxy.model.errors import NotFound
from proxy.model.exchange import MissCause, Usage
from proxy.model.figures import RoundFigures
from proxy.model.log import ExchangeRow, RoundRow
from proxy.read.savings import Saving, SavingsInputs, group_calls, load_saving, price_call, remember_cards
from proxy.wire import FORMATS
from proxy.wire.format import CACHED_PARAMETERS, read_diagnosis
from proxy.wire.json_values import load_lenient

_SHORTEST_MS = 300_000
_MOST_PATHS = 64


class CacheCost(msgspec.Struct, frozen=True):
    """A cost in tokens of uncached input, and in money; null without a price."""

    cost: float
    money: float | None


class MissTotal(msgspec.Struct, frozen=True):
    """The calls of one cause, the tokens that they missed, and what that cost."""

    calls: int
    missed: int
    cost: float
    money: float | None


class CacheCall(msgspec.Struct, frozen=True):
    """A call and what it read of the cache, in words as well. `cost` is what it missed; `saved` what managing it saved.

    The counts are as in `CacheUse`. `message` is the number of the one that the client changed, `parameters` are those
    that it changed, where that is the cause. `saved` is null where it is unknown.
    """

    n: int
    exchange: str
    opened_ms: int
    upstream: str
    model: str
    input: int | None
    read: int | None
    written: int | None
    expected: int
    missed: int
    use: Use
    cause: MissCause | Literal[""]
    explanation: str
    message: int | None
    parameters: list[str]
    epoch_why: str
    is_told: bool
    idle_seconds: float | None
    cost: float
    money: float | None
    saved: CacheCost | None


class CacheReport(msgspec.Struct, frozen=True):
    """The calls of a session whose usage is known, oldest first, and totals by cause, the dearest first.

    `saved` is what managing the session saved.
    """

    session: str
    calls: list[CacheCall]
    totals: dict[MissCause, MissTotal]
    saved: Saving | None


class CacheReader:
    """Reads the calls of one session, each compared with those before it."""

    def __init__(self, log: LogReader, session: str, inputs: SavingsInputs) -> None:
        self._log = log
        self._session = session
        self._prices = inputs.prices
        self._trail = PromptTrail()
        self.parents: dict[bytes, bytes] = {}  # the nodes of the session, as far as it was read
        self._reasons: dict[str, str] = {}
        self._sent: dict[str, tuple[ExchangeRow, int]] = {}
        self._paths: dict[bytes, list[bytes]] = {b"": []}

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncIterator[CacheCall]:
        """Yield the calls after number `after`, oldest first. Those before were read before."""
        for node in await self._log.list_nodes(self._session):
            self.parents.setdefault(node.node, node.parent)
        self._reasons = {epoch.id: epoch.why for epoch in await self._log.list_epochs(self._session)}
        async for page in read_pages(self._log, self._session, after, limit):
            known = await self._log.load_rounds(self._session, page[0].n - 1, len(page)) if page else ()
            rounds = {call[0].n: call for call in group_calls(known)}
            for row in page:
                answered = [each for each in row.rounds if each.usage is not None and each.usage.input is not None]
                if row.kind == "managed" and answered:
                    yield await self._judge(row, answered[0], rounds.get(row.n, ()))

    async def _judge(self, row: ExchangeRow, answered: RoundRow, rounds: Sequence[RoundFigures]) -> CacheCall:
        """Return what the first of a call's answered rounds read; in others a model recalled."""
        usage, plan = answered.usage or Usage(), answered.plan
        rewriting = name_rewriting(plan)
        prompt = SentPrompt(
            row.id,
            answered.upstream,
            row.model,
            self._list_nodes(row.tip),
            row.layers,
            rewriting,
            self._reasons.get(rewriting, ""),
            row.opened_ms,
            row.opened_ms + (answered.timings.first_byte_ms if answered.timings else 0.0),
            usage,
        )
        precedent, card = self._trail.find(prompt), self._prices.find_card(answered.upstream, row.model)
        cache = await self._find_cache(prompt, precedent)
        use = explain_use(prompt, precedent, cache)
        parameters: list[str] = []
        if use.cause in ("provider", "unrecorded"):
            told = await self._read_told(row, answered.k)
            use = explain_use(prompt, precedent, cache, told)
        elif use.cause == "parameters" and precedent is not None:
            parameters = await self._name_parameters(row, self._sent[precedent.prompt.exchange][0])
        self._trail.add(prompt)
        self._sent[row.id] = row, answered.k
        cost, (_, saved) = price_missed(use, usage, card, cache), price_call(rounds, self._prices)
        return describe(
            CacheCall,
            use,
            n=row.n,
            exchange=row.id,
            opened_ms=row.opened_ms,
            upstream=answered.upstream,
            model=row.model,
            input=usage.input,
            explanation=tell_miss(use, parameters),
            message=use.place or None,
            parameters=parameters,
            epoch_why=use.why,
            idle_seconds=use.idle,
            cost=cost.tokens,
            money=cost.money,
            saved=None if saved is None else CacheCost(saved.tokens, saved.money),
        )

    def _list_nodes(self, tip: bytes) -> list[bytes]:
        """Return the nodes from the start of a chain to its tip."""
        fresh: list[bytes] = []
        node = tip
        while node in self.parents and node not in self._paths:
            fresh.append(node)
            node = self.parents[node]
        path = [*self._paths.get(node, ()), *reversed(fresh)]
        if len(self._paths) > _MOST_PATHS:
            self._paths = {b"": []}
        self._paths[tip] = path
        return path

    async def _find_cache(self, prompt: SentPrompt, precedent: Precedent | None) -> CacheModel:
        """Return how the cache works for a prompt, and for how long the terms of its precedent keep it.

        They are looked at only after a time for which no terms might keep it. That it was used is seen in the usage.
        """
        card = self._prices.find_card(prompt.upstream, prompt.model)
        cache = self._prices.find_cache(prompt.upstream, card)
        if cache.kind != "breakpoints" and cache.retention is None:
            return cache
        if precedent is None or prompt.sent_ms - precedent.prompt.sent_ms <= _SHORTEST_MS:
            return cache
        before, k = self._sent[precedent.prompt.exchange]
        try:
            sent = read_body(before, await self._log.load_sent(before.id, k))
        except NotFound:
            return cache
        return self._prices.find_cache(prompt.upstream, card, FORMATS[before.wire].read_terms(sent))

    async def _read_told(self, row: ExchangeRow, k: int) -> MissCause | Literal[""]:
        """Return the provider's own diagnosis, which is in its response."""
        (whole,) = await self._log.list_exchanges(self._session, row.n - 1, 1)
        answers = [load_lenient(each.answer) for each in whole.rounds if each.k == k]
        return read_diagnosis(answers[0]) if isinstance(answers[0], dict) else ""

    async def _name_parameters(self, row: ExchangeRow, before: ExchangeRow) -> list[str]:
        """Return the members that differ between two requests."""
        try:
            one, other = await load_body(self._log, before), await load_body(self._log, row)
        except NotFound:
            return []
        return [name for name in CACHED_PARAMETERS if one.member(name) != other.member(name)]


async def load_cache(log: LogReader, session: str, inputs: SavingsInputs, n: int | None = None) -> CacheReport:
    """Load how the calls of a session, given by its id, used the cache, or call `n` alone. Raises NotFound."""
    calls: list[CacheCall] = []
    async for call in CacheReader(log, session, remember_cards(inputs)).read():
        if n in (None, call.n):
            calls.append(call)
        if call.n == n:
            break
    return CacheReport(session, calls, sum_causes(calls), await load_saving(log, session, inputs))


def sum_causes(calls: Sequence[CacheCall]) -> dict[MissCause, MissTotal]:
    """Return what was missed for each cause."""
    by_cause: dict[MissCause, list[CacheCall]] = {}
    for call in calls:
        if call.cause:
            by_cause.setdefault(call.cause, []).append(call)
    costs = {
        cause: sum((Cost(each.cost, each.money) for each in found), start=Cost()) for cause, found in by_cause.items()
    }
    return {
        cause: MissTotal(len(by_cause[cause]), sum(each.missed for each in by_cause[cause]), cost.tokens, cost.money)
        for cause, cost in sorted(costs.items(), key=lambda item: -item[1].tokens)
    }


_EXPLANATIONS: Mapping[MissCause, str] = {
    "tools": "the client changed its tools",
    "system": "the client changed its system prompt",
    "model": "another model, or upstream, had this prompt",
    "provider": "the provider: nothing that was sent explains it",
    "unrecorded": "unknown: an earlier version recorded too little",
}


def tell_miss(use: CacheUse, parameters: Sequence[str]) -> str:
    """Return in words why a call missed the cache, and empty if it did not."""
    if use.use == "first":
        return "nothing to be read"
    if use.use == "unreported":
        return "the provider does not say what it read"
    if not use.cause:
        return ""
    if use.cause == "epoch":
        text = f"our epoch ({use.why})" if use.why else "we sent the history in another form"
    elif use.cause == "message":
        text = f"the client changed message {use.place}" if use.place else "the client changed a message"
    elif use.cause == "parameters":
        text = f"the client changed {', '.join(parameters) or 'parameters'}"
    elif use.cause == "idle":
        text = f"idle for {use.idle or 0.0:.0f} s, longer than the cache is kept"
    else:
        text = _EXPLANATIONS[use.cause]
    return text + (" (as the provider says)" if use.is_told else "")
