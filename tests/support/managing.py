"""Managing over fakes: a controller as the assembly builds it, with a tokenizer that counts characters."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.context.budget import BudgetPolicy
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy
from proxy.context.epoch_decision import Holdout
from proxy.context.model_catalog import Encoding
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_planner import EpochPlanner, PlanJob, RenderedPlan, compute_plan
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.tool_offers import NO_OFFERS, ToolOffers
from proxy.engine.lineage.chain import make_chain, read_messages
from proxy.engine.models import Models
from proxy.engine.policy import Provider
from proxy.engine.ports import Archive, Clock, Tokenizer
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import Card, LimitKey
from proxy.model.errors import WorkerLost
from proxy.model.exchange import Headers, Mode, SessionKey
from proxy.model.lineage import Lineage, Relation, compute_chain_root
from proxy.model.lru import LruCache
from proxy.wire.body import split_body
from proxy.wire.chat_completions import ChatCompletions

MODEL = "gpt-4o"
SESSION = SessionKey("s1", b"t" * 16, "main", "family")

Message = Mapping[str, Any]


class QuarterTokens:
    """A token for each four characters, as a rule of thumb has it."""

    def is_ready(self, encoding: Encoding) -> bool:
        """There is nothing to load."""
        return True

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        """At least one for any text."""
        return -(-len(text) // 4), False


class NamedUpstream:
    """A name; nothing is sent."""

    name = "main"

    async def send(self, *args: object) -> Any:
        raise NotImplementedError


UPSTREAM = NamedUpstream()


class StatedCatalog:
    """Knows one card for every model, and what it was told of limits."""

    def __init__(self, window: int | None, card: Card | None = None) -> None:
        self.card = card or Card(window=window)
        self.limits: list[tuple[LimitKey, int, int]] = []

    async def open(self) -> None:
        """Nothing to read."""

    def note_listing(self, upstream: str, content: bytes) -> None:
        """Nothing to learn."""

    def note_limit(self, key: LimitKey, window: int, sent: int, *, is_stated: bool = False) -> None:
        """From now on that is the window."""
        self.limits.append((key, window, sent))
        self.card = Card(window=window)

    def find(self, key: LimitKey) -> Card:
        """The card."""
        return self.card


class NoSummaries:
    """No summary is being made."""

    def is_busy(self, request: ManagedRequest) -> bool:
        """Return False."""
        return False

    async def wait(self, request: ManagedRequest) -> None:
        """Return at once."""


def make_controller(
    archive: Archive,
    bus: EngineBus,
    clock: Clock,
    tasks: TaskRunner,
    *,
    ceiling: int | None = None,
    window: int | None = 1_000_000,
    provider: Provider | None = None,
    card: Card | None = None,
    builder: ContextBuilder | None = None,
    held_out: float = 0.0,
    hard_wait_seconds: float = 30.0,
    tokenizer: Tokenizer | None = None,
    plans_ahead: "list[asyncio.Future[RenderedPlan]] | None" = None,
    has_ahead: bool = True,
    offers: ToolOffers = NO_OFFERS,
) -> ContextController:
    """Whoever decides what is sent, with a ceiling in tokens of four characters."""
    counter = TokenCounter(tokenizer or QuarterTokens())
    providers = {"main": provider, "scripted": provider} if provider is not None else {}
    models = Models(
        StatedCatalog(window, card), counter, BudgetPolicy(ceiling), clock, tasks.spawn, providers=providers
    )
    caches, holdout = ContextCaches(archive, models.counter, 1 << 26), Holdout(held_out, b"secret")
    states = StateReader(caches, models, bus, clock, holdout, offers=offers)
    planner = make_planner(builder, providers, plans_ahead=plans_ahead, has_ahead=has_ahead)
    chain = FallbackChain(states, planner, bus, hard_wait_seconds=hard_wait_seconds)
    return ContextController(states, chain, NoSummaries(), bus)


def make_planner(
    builder: ContextBuilder | None = None,
    providers: Mapping[str, Provider] | None = None,
    secret: bytes = b"secret",
    *,
    plans_ahead: "list[asyncio.Future[RenderedPlan]] | None" = None,
    has_ahead: bool = True,
) -> EpochPlanner:
    """Return a planner whose plans are made in a thread in place of the worker process.

    Those that are made ahead, if there are any, are added to `plans_ahead`.
    """
    made = builder or make_builder()
    return EpochPlanner(PlanThread(made, plans_ahead, has_ahead=has_ahead), made, secret, providers or {}, LruCache(1))


class PlanThread:
    """Makes plans in a thread. Those made ahead are added to `plans_ahead`; without `has_ahead` they are refused."""

    def __init__(
        self,
        builder: ContextBuilder,
        plans_ahead: "list[asyncio.Future[RenderedPlan]] | None" = None,
        *,
        has_ahead: bool = True,
    ) -> None:
        self._builder = builder
        self._plans_ahead: list[asyncio.Future[RenderedPlan]] = [] if plans_ahead is None else plans_ahead
        self._has_ahead = has_ahead

    def plan(self, job: PlanJob, is_ahead: bool = False) -> "asyncio.Future[RenderedPlan]":
        loop = asyncio.get_running_loop()
        if not is_ahead or self._has_ahead:
            plan = loop.run_in_executor(None, compute_plan, job, self._builder)
            if is_ahead:
                self._plans_ahead.append(plan)
            return plan
        refused: asyncio.Future[RenderedPlan] = loop.create_future()
        refused.set_exception(WorkerLost("there is too much to do"))
        return refused

    def prioritise(self, plan: "asyncio.Future[RenderedPlan]") -> None:
        """All plans are made at once."""


def make_builder() -> ContextBuilder:
    """The builder of the assembly, with the same tokenizer."""
    return ContextBuilder(BuilderPolicy(), lambda text: QuarterTokens().count(text, "o200k_base")[0])


def make_history(steps: int, size: int = 400) -> list[Message]:
    """A system prompt, a task, and an agent's steps: a call each, and what came of it, `size` characters long."""
    messages: list[Message] = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Mend the tests of the parser."},
    ]
    for number in range(steps):
        call = {"name": "bash", "arguments": json.dumps({"command": f"sed -n {number}p src/module_{number}.py"})}
        messages.append(
            {
                "role": "assistant",
                "content": f"Looking at part {number}.",
                "tool_calls": [{"id": f"call_{number:024x}", "type": "function", "function": call}],
            }
        )
        text = f"def function_{number}(value_{number}):\n    return other_{number}.path\n"
        output = (text * (size // len(text) + 1))[:size]
        messages.append({"role": "tool", "tool_call_id": f"call_{number:024x}", "content": output})
    return messages


def spell(messages: Sequence[Message], **members: Any) -> bytes:
    """A body with these messages, as a client spells it."""
    return json.dumps({"model": MODEL, "messages": messages, **members}).encode()


def make_subject(
    messages: Sequence[Message],
    exchange: str = "x1",
    *,
    base: int = 0,
    relation: Relation = "append",
    is_side: bool = False,
    headers: Headers = (),
    session: SessionKey = SESSION,
    mode: Mode = "manage",
    **members: Any,
) -> ManagedRequest:
    """A request as reception hands it on, in a session where it shares `base` messages with what is known."""
    form = ChatCompletions()
    split = split_body(spell(messages, **members), form.items_key)
    assert split is not None
    root = compute_chain_root(session.upstream)
    chain = make_chain(read_messages(form, split, None, 0, root), None, root)
    tip = chain.nodes[-1] if chain.nodes else root
    step = Lineage(exchange, "root" if not base else relation, is_side, tip, len(chain.nodes), base, (), ())
    limit = members.get("max_tokens", 0)
    return ManagedRequest(
        "POST",
        b"/v1/chat/completions",
        headers,
        split.content,
        exchange=exchange,
        session=session,
        upstream=UPSTREAM,
        mode=mode,
        is_pinning=(b"x-palimpsest-pin", b"true") in headers,
        kind="managed",
        wire=form.name,
        opened_ms=1,
        model=MODEL,
        lineage=step,
        items_key=form.items_key,
        split=split,
        chain=chain,
        most_output=limit,
        is_new=not base,
    )
