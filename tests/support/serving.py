"""The real server in this process: routes, engine, forwarder and protocol on a loopback port, with a fake archive.

Rule: what a test leaves running is a leak of the server's, and fails the test.
"""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from proxy.context.budget import BudgetPolicy
from proxy.context.conversation import SnapshotPolicy
from proxy.engine.call.calls import Calls
from proxy.engine.call.relay import Relay
from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.events.publisher import EventPublisher
from proxy.engine.events.stream import EventStream
from proxy.engine.exchange import ExchangeService
from proxy.engine.mapping.running import OperatorEngine
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.models import PriceList
from proxy.engine.policy import DoomLoopSettings, EnginePolicy, OperatorPolicy
from proxy.engine.recall.rounds import build_offers
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import Descriptors, EngineBus, SystemClock, SystemIds, TaskRunner
from proxy.engine.stages.loops import LoopWatch
from proxy.engine.stages.order import order_stages
from proxy.model.exchange import Opening, Outcome
from proxy.read.findings import Diagnosis, conclude
from proxy.read.savings import SavingsInputs
from proxy.server.access import FindTenant
from proxy.server.api.context import ContextApi
from proxy.server.api.doctor import DoctorApi
from proxy.server.api.erase import EraseApi
from proxy.server.api.events import EventsApi
from proxy.server.api.maps import MapsApi
from proxy.server.api.memory import MemoryApi
from proxy.server.api.messages import MessagesApi
from proxy.server.api.search import SearchApi
from proxy.server.api.sessions import SessionsApi
from proxy.server.api.turns import TurnsApi
from proxy.server.health import Health
from proxy.server.http11 import Http11Protocol, close_idle
from proxy.server.policy import ServerPolicy
from proxy.server.routes import build_routes
from proxy.telemetry.metrics import Metrics
from proxy.upstream.client import DirectClient
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.responses import Responses
from tests.support.engine import FakeArchive, make_lineage
from tests.support.managing import make_controller
from tests.support.rescuing import RescuedRelay, ScriptedRescuer
from tests.support.scripted import LIMIT, Message, Wire, dial
from tests.support.searching import FakeIndex

TOKEN = "test-admin-token"
_POLICY = ServerPolicy(port=0, admin_token=TOKEN)


@dataclass
class Served:
    """A running server and what a test looks at."""

    port: int
    archive: FakeArchive
    health: Health
    tasks: TaskRunner
    state: ServerState
    forwarder: DirectClient
    bus: EngineBus
    readings: ResponseReader
    events: EventStream

    async def connect(self) -> Wire:
        """A client's connection."""
        return await dial(self.port)

    async def ask(self, content: bytes) -> Message:
        """The answer to one request, on a connection of its own."""
        async with await self.connect() as client:
            client.send(content)
            return await client.read_answer(method=content.split(b" ", 1)[0].decode())

    async def outcome(self) -> Outcome:
        """The only outcome, once it is recorded."""
        await self.archive.wait_for(Outcome)
        return self.archive.outcome

    async def read_answer(self, number: int) -> None:
        """Have the answer to the call of this number, counted from 1, read now and not when a pause has passed."""
        await self.archive.wait_for(Outcome, number)
        await self.readings.read_now(self.archive.of(Opening)[number - 1].exchange)

    async def drained(self) -> None:
        """Return when no request is being served any more; fails if one goes on."""
        async with asyncio.timeout(LIMIT):
            while left := set(self.state.tasks):
                await asyncio.wait(left)

    async def paused(self) -> None:
        """Return when nothing more is read from the only client."""
        (protocol,) = self.state.connections
        connection = cast(Http11Protocol, protocol).connection
        async with asyncio.timeout(LIMIT):
            while not connection.is_reading_paused:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)

    async def opening(self) -> Opening:
        """The only opening, once it is recorded."""
        await self.archive.wait_for(Opening)
        return self.archive.opening


async def find_nothing() -> Diagnosis:
    """A diagnosis without findings."""
    return conclude("1", ())


@dataclass(frozen=True)
class Plan:
    """How to serve."""

    base_url: str
    server: ServerPolicy = _POLICY
    engine: EnginePolicy = field(default_factory=EnginePolicy)
    loops: DoomLoopSettings = field(default_factory=DoomLoopSettings)
    api_key: str = ""
    idle_timeout: float = 60.0
    connect_timeout: float = LIMIT
    rescuer: ScriptedRescuer | None = None
    ceiling: int | None = None
    has_recall: bool = False  # whether epochs offer the tool to recall; its calls reach the client
    compacting: Any = None
    index: FakeIndex = field(default_factory=FakeIndex)
    find_tenant: FindTenant = lambda headers: None
    diagnose: Callable[[], Awaitable[Diagnosis]] = find_nothing
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(1_000_000))


@contextlib.asynccontextmanager
async def serving(plan: Plan, archive: FakeArchive | None = None) -> AsyncIterator[Served]:
    """Serve until the block ends; then nothing may be left that had to be cancelled."""
    loop = asyncio.get_running_loop()
    archive, tasks = archive or FakeArchive(is_instant=True), TaskRunner()
    bus = EngineBus(tasks)
    upstream = UpstreamPolicy(
        "scripted",
        base_url=plan.base_url,
        api_key=plan.api_key,
        idle_timeout=plan.idle_timeout,
        connect_timeout=plan.connect_timeout,
    )
    descriptors = plan.descriptors
    forwarder = DirectClient(upstream, tasks.spawn, descriptors=descriptors, hop_id=plan.server.hop_id)
    controller = make_controller(
        archive, bus, SystemClock(), tasks, ceiling=plan.ceiling, offers=build_offers(is_on=plan.has_recall)
    )
    exchanges, readings = _build_exchanges(plan, archive, forwarder, bus, tasks, controller)
    metrics = Metrics(lambda: archive.health, lambda: len(tasks), lambda: descriptors.shortages)
    metrics.subscribe(bus)
    health = Health(lambda: archive.health.problem, metrics.render, refuses=plan.engine.on_failure == "refuse")
    gate = DurabilityWaiter(archive, plan.engine.commit_wait_ms)
    care = EpochAdmin(controller.states, archive, gate, bus, SystemIds())
    prices = PriceList(controller.states.models.card)
    contexts = ContextApi(archive, care, plan.compacting, controller.states.models.counter.count_messages, prices)
    sessions = SessionsApi(
        archive,
        SavingsInputs(PriceList(controller.states.models.card), BudgetPolicy(plan.ceiling)),
        EraseApi(cast(Any, None)),
        TurnsApi(cast(Any, None)),
    )
    memory: Any = SessionMemory(archive=cast(Any, archive), gate=gate, clock=SystemClock())
    call_later, now_ms = loop.call_later, SystemClock().now_ms
    publisher = EventPublisher("run", bus, prices, number=archive.number_calls, call_later=call_later, now_ms=now_ms)
    events = publisher.stream
    policy = replace(plan.server, has_own_key=bool(plan.api_key))
    app = build_routes(
        policy,
        exchanges,
        health=health,
        facts=(("mode", plan.engine.mode),),
        find_log_health=lambda: archive.health,
        sessions=sessions,
        contexts=contexts,
        messages=MessagesApi(cast(Any, archive)),
        doctor=DoctorApi(plan.diagnose),
        memory=MemoryApi(memory, cast(Any, None), SnapshotPolicy(), cast(Any, None)),
        events=EventsApi(archive, events),
        maps=MapsApi(OperatorEngine(cast(Any, None), OperatorPolicy(), cast(Any, None))),
        mcp=Response(status_code=404),
        searches=SearchApi(archive, plan.index, SystemClock().now_ms, plan.index.look),
        find_tenant=plan.find_tenant,
    )
    config = uvicorn.Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    state = ServerState()
    descriptors.add_releaser(lambda: close_idle(state.connections))
    make = functools.partial(Http11Protocol, plan.server, descriptors, config=config, server_state=state, _loop=loop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = await loop.create_server(make, sock=listener)
        served = Served(listener.getsockname()[1], archive, health, tasks, state, forwarder, bus, readings, events)
        try:
            yield served
        finally:
            server.close()
            events.close()
            await _stop(served)


def _build_exchanges(
    plan: Plan,
    archive: FakeArchive,
    forwarder: DirectClient,
    bus: EngineBus,
    tasks: TaskRunner,
    controller: ContextController,
) -> tuple[ExchangeService, ResponseReader]:
    lineage = make_lineage(archive, SystemClock(), plan.engine)
    readings = ResponseReader(archive, bus, tasks, lineage, plan.engine.record_cap_bytes)
    parts = (archive, DurabilityWaiter(archive, plan.engine.commit_wait_ms), readings, bus, SystemClock())
    relay = RescuedRelay(plan.rescuer, *parts) if plan.rescuer is not None else Relay(*parts)
    reception = RequestResolver(plan.engine, [Route(forwarder)], reader=readings, clock=SystemClock(), ids=SystemIds())
    formats = {form.name: form for form in (ChatCompletions(), Responses(), AnthropicMessages())}
    policy = replace(plan.engine, own_keys=(plan.api_key.encode(),) if plan.api_key else ())
    least = plan.loops.threshold
    loops = LoopWatch(bus, least, plan.loops.action) if least else None
    calls = Calls(policy, relay, tasks)
    stages = order_stages(controller, calls, loops=loops)
    return ExchangeService(calls, formats, reception, controller, stages), readings


async def _stop(served: Served) -> None:
    for protocol in list(served.state.connections):
        protocol.transport.abort()
    left = set(served.state.tasks)
    if left:
        _, left = await asyncio.wait(left, timeout=LIMIT)
    for task in left:
        task.cancel()
    is_finished = await served.tasks.finish(LIMIT)
    served.forwarder.close()
    assert not left, f"{len(left)} requests were still served after their clients had gone"
    assert is_finished, "calls were still under way after their clients had gone"


def with_server(plan: Plan, **changes: object) -> Plan:
    """The plan with other limits of the way in."""
    return replace(plan, server=replace(plan.server, **changes))  # type: ignore[arg-type]
