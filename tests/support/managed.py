"""Managed calls over fakes, all the way: histories are sent as an agent sends them, and what went upstream is read.

Rule: the log is the fake one, and knows of epochs and plans what was appended and is durable.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import PlanRequest
from proxy.engine.call.calls import Calls
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_planner import RenderedPlan
from proxy.engine.context.request_state import OutgoingRequest, RequestState
from proxy.engine.exchange import ExchangeService
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import Tokenizer
from proxy.engine.recall.rounds import LookAhead, RecallRounds, Run, build_offers
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.stages.order import order_stages
from proxy.engine.stages.tool_diet import ToolDiet
from proxy.engine.token_counter import Count, Piece
from proxy.model.card import Card
from proxy.model.epoch import ContextPlan, Epoch, EpochUse, Pin, Plan, Recalled, StoredContext
from proxy.model.errors import StoreUnavailable
from proxy.model.events import Event, ResponseRead, RungFailedEvent
from proxy.model.exchange import ClientRequest, Headers, Mode, Opening, SessionKey
from proxy.model.lineage import Lineage, StoredSession
from proxy.model.log import BranchRow, Call, Record
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.responses import Responses
from tests.support.engine import (
    JSON,
    LIMIT,
    Commit,
    Engine,
    FakeArchive,
    FixedClock,
    RecordingClient,
    ScriptedResponse,
    wait_out,
)
from tests.support.events import hear_all
from tests.support.loops import MovableLoop, put_forward
from tests.support.managing import MODEL, Message, make_builder, make_controller, make_subject
from tests.support.rescuing import UpstreamInTurn

NAMED: Headers = ((b"x-session-id", b"s"), (b"authorization", b"Bearer k"))
ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
CEILING = 8_000

_T = TypeVar("_T")


class ContextLog(FakeArchive):
    """Tells of sessions what was appended. `is_lazy`: what is not urgent is durable when it is flushed, not before."""

    def __init__(self, *, is_lazy: bool = False) -> None:
        super().__init__(is_instant=not is_lazy)
        self.is_lazy = is_lazy
        self.loses_epochs = self.is_unreadable = self.forgets_uses = False
        self.asked, self.is_free = asyncio.Event(), asyncio.Event()  # while it is not free, nobody is answered
        self.is_free.set()
        self.pins: list[Pin] = []

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        commit = super().append(*records, is_urgent=is_urgent)
        if self.loses_epochs and any(isinstance(record, Epoch) for record in records):
            lost = Commit()
            lost.set_result(False)
            return lost
        if is_urgent:
            self.flush()
        return commit

    def flush(self) -> None:
        super().flush()
        for each in self.appended if self.is_lazy else ():
            if not each.commit.done():
                each.commit.set_result(True)

    async def recall(
        self, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        await self._wait()
        return await super().recall(nodes, fingerprints, session)

    async def _wait(self) -> None:
        self.asked.set()
        await self.is_free.wait()

    async def load_context(self, session: str) -> StoredContext:
        await self._wait()
        if self.is_unreadable:
            raise StoreUnavailable("the log cannot be read")
        sessions = {opening.exchange: opening.session.id for opening in self.of(Opening)}
        owed = {plan.view: plan.owed for plan in self.of(Plan) if sessions[plan.exchange] == session}
        epochs = tuple(epoch for epoch in self.of(Epoch) if epoch.session == session)
        recalled = tuple(each for each in self.of(Recalled) if each.session == session)
        return StoredContext(epochs, tuple(self.pins), tuple(owed.items()), recalled=recalled)

    async def list_uses(self, session: str) -> Sequence[EpochUse]:
        await self._wait()
        if self.forgets_uses:
            raise StoreUnavailable("the log cannot be read")
        sessions = {opening.exchange: opening.session.id for opening in self.of(Opening)}
        tips = {step.exchange: step.tip for step in self.of(Lineage) if sessions[step.exchange] == session}
        last = {plan.exchange: plan for plan in self.of(Plan)}
        depths = {epoch.id: epoch.depth for epoch in self.of(Epoch)}
        used = [plan for exchange, plan in last.items() if exchange in tips and depths.get(plan.epoch)]
        return [EpochUse(plan.view, tips[plan.exchange], plan.epoch) for plan in used]

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """All calls as one branch, whatever their histories."""
        own = {opening.exchange for opening in self.of(Opening) if opening.session.id == session}
        steps = [step for step in self.of(Lineage) if step.exchange in own]
        calls = [Call(n, step.exchange, step.depth) for n, step in enumerate(steps, 1)]
        return [BranchRow(b"", 0, tuple(calls), "root", b"", is_side=False)]


class ManagedEngine(Engine):
    """The engine's parts with a controller as the test wants it, and an upstream that answers in turn."""

    def __init__(
        self,
        *answers: ScriptedResponse | Exception | None,
        archive: ContextLog | None = None,
        ceiling: int | None = CEILING,
        window: int | None = 1_000_000,
        provider: Provider | None = None,
        card: Card | None = None,
        builder: ContextBuilder | None = None,
        held_out: float = 0.0,
        policy: EnginePolicy | None = None,
        after: "ManagedEngine | None" = None,
        hard_wait_seconds: float = 30.0,
        tokenizer: Tokenizer | None = None,
        plans_ahead: bool = True,
        run: Run | None = None,
        max_hops: int = 4,
        prepare: LookAhead = lambda _: None,
        shorten_tools_after: int = 0,
    ) -> None:
        own = archive or ContextLog()
        self.log: ContextLog = after.log if after is not None else own
        self.ahead: list[asyncio.Future[RenderedPlan]] = []
        policy = policy or EnginePolicy(commit_wait_ms=60_000)
        self.upstream: UpstreamInTurn
        super().__init__(UpstreamInTurn(*answers), policy, archive=self.log, after=after, is_fresh=after is None)
        self.bus.subscribers[ResponseRead] = (self.events.append,)  # the other controller accounts for nothing
        self.controller = make_controller(
            *(self.log, self.bus, self.clock, self.tasks),
            ceiling=ceiling,
            window=window,
            card=card,
            provider=provider,
            builder=builder,
            held_out=held_out,
            hard_wait_seconds=hard_wait_seconds,
            tokenizer=tokenizer,
            plans_ahead=self.ahead,
            has_ahead=plans_ahead,
            offers=build_offers(
                is_on=run is not None,
                make=partial(ToolDiet, after=shorten_tools_after, count=lambda *each: self.count_tools(*each)),
            ),
        )
        parts = self.controller.states, self.lineage
        limits: Any = {"bus": self.bus, "max_hops": max_hops, "record_cap": 1 << 26}
        recall = RecallRounds(run, *parts, **limits, look_ahead=prepare) if run is not None else None
        formats = {form.name: form for form in (ChatCompletions(), Responses(), AnthropicMessages())}
        calls = Calls(policy, self.relay, self.tasks)
        stages = order_stages(self.controller, calls, recall=recall)
        self.exchanges = ExchangeService(calls, formats, self.reception, self.controller, stages)

    def start(
        self, messages: Sequence[Message], headers: Headers = (), *, base: Headers = NAMED, **members: Any
    ) -> "Turn":
        """Send a history, in a task of its own."""
        return Turn(self, spell_as_client({"model": MODEL, "messages": messages, **members}), (*base, *headers))

    async def send(self, messages: Sequence[Message], headers: Headers = (), **members: Any) -> "Turn":
        """Send a history and wait for the end of its call; where no answer is left, a short one is given."""
        if not self.upstream.is_ready:
            self.upstream.prepare(answer())
        turn = self.start(messages, headers, **members)
        await turn.finish()
        return turn

    def count_tools(self, model: str, pieces: Sequence[Piece]) -> Count:
        return self.controller.states.models.counter.count_now(model, pieces)

    async def wait_for_ahead(self) -> None:
        """Wait until the plans that are made ahead are there, or have failed."""
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*self.ahead, return_exceptions=True), LIMIT)

    async def wait_for_late(self, turn: "Turn") -> None:
        """Wait until the plan that came too late for a call is there."""
        context = self.controller.states.caches.contexts.get(turn.labels["x-palimpsest-session"])
        assert context is not None
        async with asyncio.timeout(LIMIT):
            if context.drafting is not None:
                await asyncio.wait((context.drafting,))

    @property
    def epochs(self) -> list[Epoch]:
        """Those in the log."""
        return self.log.of(Epoch)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The rungs that did not bear, and why."""
        return [(event.rung, event.error) for event in self.events if isinstance(event, RungFailedEvent)]


class Turn:
    """A call, and what came of it."""

    def __init__(self, engine: ManagedEngine, body: bytes, headers: Headers) -> None:
        self.engine, self.body, self.client = engine, body, RecordingClient()
        self._exchange = ""
        self._before, self._after = len(engine.upstream.calls), 0
        request = ClientRequest("POST", b"/v1/chat/completions", headers, body)
        self.task = engine.begin(request, "chat_completions", self.client)

    async def finish(self) -> None:
        await wait_out(self.task)
        assert await self.engine.tasks.finish(LIMIT)
        self._after = len(self.engine.upstream.calls)
        newest = [opening.exchange for opening in self.engine.log.of(Opening)[-1:]]
        self._exchange = self.labels.get("x-palimpsest-exchange", *newest)

    @property
    def all_sent(self) -> list[bytes]:
        """The bodies that went upstream between its beginning and its end."""
        return [bytes(call.body) for call in self.engine.upstream.calls[self._before : self._after]]  # type: ignore[arg-type]

    @property
    def sent(self) -> bytes:
        """The body that went upstream; there was one."""
        (only,) = self.all_sent
        return only

    @property
    def exchange(self) -> str:
        return self._exchange

    @property
    def plans(self) -> list[Plan]:
        """What was decided for it, round by round."""
        return [plan for plan in self.engine.log.of(Plan) if plan.exchange == self.exchange]

    @property
    def plan(self) -> Plan:
        (only,) = self.plans
        return only

    @property
    def labels(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.client.labels}

    @property
    def messages(self) -> list[Message]:
        """Those that went upstream."""
        messages: list[Message] = json.loads(self.sent)["messages"]
        return messages


class OwnBuilder(ContextBuilder):
    """Does as it is told with the first plans, then as the real one; `minimal` likewise."""

    def __init__(self, *acts: Any) -> None:
        self._real = make_builder()
        self.acts = list(acts)
        self.asked: list[str] = []

    def build(self, view: PlanRequest) -> ContextPlan:
        return self._act("plan", view)

    def minimal(self, view: PlanRequest) -> ContextPlan:
        return self._act("minimal", view)

    def _act(self, rung: str, view: PlanRequest) -> ContextPlan:
        self.asked.append(rung)
        real = self._real.build if rung == "plan" else self._real.minimal
        act = self.acts.pop(0) if self.acts else None
        if act is None:
            return real(view)
        plan: ContextPlan = act(view, real)
        return plan


PLANNING_SECONDS = 10.0


class Hanging:
    """An act of a builder that takes longer than a call waits, and ends when it is released; no time passes meanwhile.

    It is made on a `MovableLoop`, whose time it puts forward as soon as it is asked.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovableLoop)
        self._loop = loop
        self.released = threading.Event()

    def __call__(self, view: PlanRequest, build: Callable[[PlanRequest], ContextPlan]) -> ContextPlan:
        self._loop.call_soon_threadsafe(self._loop.advance, PLANNING_SECONDS)
        assert self.released.wait(LIMIT)
        return build(view)


async def let_wait(work: Coroutine[Any, Any, _T]) -> _T:
    """Do what waits for a plan, whose time is up as soon as it waits; on a busy machine it may be up before that."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=0.05)
    await put_forward(PLANNING_SECONDS)
    return await task


class Setup:
    """A controller over fakes; the log has what was committed, unless it is told to lose that."""

    def __init__(
        self,
        *acts: Any,
        window: int | None = 1_000_000,
        ceiling: int = 8_000,
        held_out: float = 0.0,
        hard_wait_seconds: float = 30.0,
    ) -> None:
        tasks = TaskRunner()
        self.bus = EngineBus(tasks)
        self.events: list[Event] = []
        hear_all(self.bus, self.events.append)
        self.builder, self.clock, self.log = OwnBuilder(*acts), FixedClock(), ContextLog()
        self.controller: ContextController = make_controller(
            *(self.log, self.bus, self.clock, tasks),
            ceiling=ceiling,
            window=window,
            builder=self.builder,
            held_out=held_out,
            hard_wait_seconds=hard_wait_seconds,
        )
        self.chain = self.controller.chain
        self.committed: list[Epoch] = []
        self.is_lost = False

    async def commit(self, epoch: Epoch) -> bool:
        self.committed.append(epoch)
        await asyncio.sleep(0)
        return not self.is_lost

    async def read_state(self, messages: Sequence[Message], exchange: str = "x1", **options: Any) -> RequestState:
        subject = make_subject(messages, exchange, **options)
        context = await self.controller.states.caches.contexts.open(subject)
        epoch, budget = context.find(subject.model, subject), self.controller.states.find_budget(subject)
        return await self.controller.states.read(subject, context, epoch, budget)

    async def run_chain(self, case: RequestState, why: Any = "hard") -> OutgoingRequest:
        return await self.chain.run(case, why, self.commit)

    async def decide(self, request: ManagedRequest, mode: Mode = "manage") -> OutgoingRequest:
        """What is sent for a request, at once or after a while."""
        request = replace(request, mode=mode)
        outgoing = self.controller.decide_at_once(request)
        return outgoing if outgoing is not None else await self.controller.decide(request, self.commit)

    def list_events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def spell_as_client(value: Any) -> bytes:
    """A body whose messages come last: what is behind them would hide how far a prefix goes."""
    messages = value.pop("messages")
    return json.dumps({**value, "messages": messages}, ensure_ascii=False).encode()


def answer(content: bytes = ANSWER, status: int = 200) -> ScriptedResponse:
    return ScriptedResponse(content, status=status, headers=JSON, ending="whole")


def refuse(message: str) -> ScriptedResponse:
    """An upstream that finds a request too long."""
    error = {"message": message, "code": "context_length_exceeded"}
    return answer(json.dumps({"error": error}).encode(), 400)


def cut_end(body: bytes) -> bytes:
    """A body up to the end of its last message."""
    assert body.endswith(b"]}")
    return body[:-2]
