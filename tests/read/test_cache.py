"""Why the cache missed, by a log of made-up records: markers, diagnoses, and what was erased or never recorded."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.engine.policy import Provider
from proxy.model.card import CacheFacts, Card
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.lineage import NodeRow
from proxy.model.manifest import make_manifest
from proxy.read.cache import CacheReport, load_cache
from proxy.read.savings import SavingsInputs
from tests.store.samples import (
    OPENED_MS,
    make_chain,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_step,
)
from tests.support.kept_log import KeptLog

UNKNOWN_CARD = Card()
LAYERS = b"tools---system--settings"
MARKED = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"cache_control": {"type": "ephemeral"}}]}
CHAIN = make_chain("a", "!b", "c", "!d", "e", "!f", "g")


class PartlyErased(KeptLog):
    """The bodies of these exchanges were erased."""

    def __init__(self) -> None:
        super().__init__()
        self.erased: set[str] = set()

    async def load_request(self, exchange: str) -> bytes:
        self._refuse(exchange)
        return await self.stored.load_request(exchange)

    async def load_sent(self, exchange: str, k: int) -> bytes:
        self._refuse(exchange)
        return await self.stored.load_sent(exchange, k)

    def _refuse(self, exchange: str) -> None:
        if exchange in self.erased:
            raise NotFound("this content was erased")


class Session:
    """A session of calls at times in seconds, each with all messages of the one before it."""

    def __init__(self, cache: Any = None, card: Card = UNKNOWN_CARD) -> None:
        self.archive = PartlyErased()
        self._cache = cache
        self._card = card
        self._nodes: Sequence[NodeRow] = ()

    async def add(
        self, exchange: str, at: float, depth: int, usage: Usage | None, layers: bytes = LAYERS, **changes: Any
    ) -> None:
        """A call with the first `depth` messages."""
        fresh = CHAIN[len(self._nodes) : depth]
        self._nodes = CHAIN[:depth]
        body = changes.get("body", MARKED)
        step = make_step(exchange, fresh, base=depth - len(fresh), tip=CHAIN[depth - 1].node, depth=depth)
        opening = make_opening(exchange, make_manifest(json.dumps(body).encode()), opened_ms=OPENED_MS + int(at * 1000))
        records = (opening, replace(step, layers=layers), make_round(exchange), make_outcome(exchange))
        answer = json.dumps(changes.get("answer", {})).encode()
        assert await self.archive.append(*records, make_reading(exchange, usage=usage, answer=answer))

    async def load(self, n: int | None = None) -> CacheReport:
        providers = {"openai": Provider(cache=self._cache)}
        inputs = SavingsInputs(PriceList(lambda upstream, model: self._card, providers), BudgetPolicy())
        log: Any = self.archive
        return await load_cache(log, make_key().id, inputs, n)


def list_causes(report: CacheReport) -> list[str]:
    return [call.cause for call in report.calls]


async def test_markers_say_how_long_a_cache_is_kept() -> None:
    for erased, causes in ((set(), ["", "", "idle"]), ({"e2"}, ["", "", "provider"])):
        session = Session("breakpoints")
        session.archive.erased = erased
        await session.add("e1", 0, 1, Usage(4000, 5, 0, 4000))
        await session.add("e2", 100, 3, Usage(5000, 5, 4000, 1000))
        await session.add("e3", 700, 5, Usage(6000, 5, 0, 6000))
        report = await session.load()
        assert list_causes(report) == causes
        assert report.calls[2].expected == 5000
    assert report.calls[2].explanation == "the provider: nothing that was sent explains it"


async def test_the_lifetime_that_a_request_asks_for_counts() -> None:
    caches = (CacheFacts("openai-breakpoints", "a page", lifetime=1800.0),)
    for ttl, causes in (("30m", ["", "idle"]), ("1h", ["", "provider"])):
        session = Session(card=Card(caches=caches))
        body = {"messages": MARKED["messages"], "prompt_cache_options": {"ttl": ttl}}
        await session.add("e1", 0, 1, Usage(4000, 5, 0, 3000), body=body)
        await session.add("e2", 2400, 3, Usage(5000, 5, 0, 5000), body=body)
        report = await session.load()
        assert (list_causes(report), report.calls[1].expected) == (causes, 3000)


async def test_a_diagnosis_in_the_response_is_believed_and_said() -> None:
    session = Session()
    await session.add("e1", 0, 1, Usage(4000, 5, 0))
    told = {"prompt_cache_diagnostics": {"type": "cache_miss", "reason": "tools_changed"}}
    await session.add("e2", 100, 3, Usage(5000, 5, 0), answer=told)
    await session.add("e3", 200, 5, Usage(6000, 5, 0), answer=[])
    report = await session.load()
    assert list_causes(report) == ["", "tools", "provider"]
    assert report.calls[1].explanation == "the client changed its tools (as the provider says)"
    named = {"diagnostics": {"cache_miss_reason": {"type": "messages_changed"}}}
    await session.add("e4", 300, 7, Usage(7000, 5, 0), answer=named)
    (call,) = (await session.load(4)).calls
    assert call.explanation == "the client changed a message (as the provider says)"


async def test_parameters_are_named_while_both_requests_are_there() -> None:
    session = Session()
    await session.add("e1", 0, 1, Usage(4000, 5, 0))
    await session.add("e2", 9, 3, Usage(5000, 5, 0), LAYERS[:16] + b"CHANGED!", body=MARKED | {"tool_choice": "none"})
    (call,) = (await session.load(2)).calls
    assert (call.parameters, call.explanation) == (["tool_choice"], "the client changed tool_choice")
    session.archive.erased.add("e1")
    (call,) = (await session.load(2)).calls
    assert call.explanation == "the client changed parameters"


async def test_calls_of_an_earlier_version_are_not_blamed_on_the_provider() -> None:
    session = Session()
    await session.add("e1", 0, 1, Usage(4000, 5, 0), b"")
    await session.add("e2", 9, 3, Usage(5000, 5, 0), b"")
    report = await session.load()
    assert list_causes(report) == ["", "unrecorded"]
    assert report.calls[1].explanation == "unknown: an earlier version recorded too little"


async def test_what_has_no_usage_or_is_our_own_is_left_out() -> None:
    session = Session()
    await session.add("e1", 0, 1, None)
    await session.add("e2", 9, 3, Usage(5000, 5))
    auxiliary = make_opening("a1", kind="auxiliary")
    await session.archive.append(auxiliary, make_round("a1"), make_outcome("a1"))
    await session.archive.append(make_reading("a1", usage=Usage(9, 9, 0)))
    report = await session.load()
    assert [(call.n, call.use) for call in report.calls] == [(2, "unreported")]
    assert report.calls[0].explanation == "the provider does not say what it read"
    (call,) = report.calls
    assert (call.read, call.cause, call.saved) == (None, "", None)


async def test_many_branches_are_followed() -> None:
    session = Session()
    archive = session.archive
    for number in range(80):
        name, chain = f"e{number}", make_chain(f"root {number}", "!b", "c")
        step = replace(make_step(name, chain), layers=LAYERS)
        await archive.append(make_opening(name), step, make_round(name), make_outcome(name))
        await archive.append(make_reading(name, usage=Usage(4000, 5, 0)))
    report = await session.load()
    assert len(report.calls) == 80
