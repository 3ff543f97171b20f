"""The only place that builds the engine, its store and its upstreams. It contains wiring only."""

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.config import Settings
from proxy.engine.call.calls import Calls, TraceHeaders
from proxy.engine.call.relay import Relay
from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.erasing.live import LiveSessions
from proxy.engine.erasing.retention import Retention
from proxy.engine.erasing.service import SessionErasing
from proxy.engine.events.publisher import EventPublisher
from proxy.engine.events.stream import EventStream
from proxy.engine.events.webhooks import Webhook, WebhookPolicy, Webhooks
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import build_histories
from proxy.engine.lineage.identity import Tenants
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.models import Models
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock
from proxy.engine.recall.embeddings import build_embedding
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.rounds import build_rounds
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import (
    EngineBus,
    SystemClock,
    SystemIds,
    TaskRunner,
)
from proxy.engine.stages.loops import LoopWatch
from proxy.engine.stages.order import order_stages
from proxy.engine.token_counter import TokenCounter
from proxy.engine.turns.conversation import Conversations
from proxy.engine.turns.files import FileKeeper, build_files
from proxy.indexing import open_index as open_index
from proxy.indexing import update_index as update_index
from proxy.managing import ManagedContext, build_context
from proxy.model.errors import WorkerLost
from proxy.network import Connect, Network, build_upstream, open_network
from proxy.reading import build_tokenizer
from proxy.reading import measure as measure
from proxy.reading import open_log as open_log
from proxy.store.erasing.building import build_erasing
from proxy.store.search.reader import SearchIndex
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.upstream.client import WebhookClient
from proxy.upstream.model_catalog import ModelCatalog
from proxy.upstream.tokenizer import CountingTokenizer
from proxy.wire import FORMATS
from proxy.worker.process import WorkerProcess
from proxy.worker.program import COUNTED_IN, WorkerSettings
from proxy.worker.sandbox import SandboxProcesses

# One token count is kept per this many bytes of the cache's size, in addition to it: by default 65,536 counts, 11 MB.
_CACHE_FOR_A_WEIGHT = 1024
_FINISH_SECONDS = 2.0

_log = logging.getLogger("palimpsest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine."""

    archive: SqliteArchive
    bus: EngineBus
    tasks: TaskRunner
    network: Network
    relay: Relay
    tenants: Tenants
    tokenizer: CountingTokenizer
    worker: WorkerProcess
    models: Models
    context: ManagedContext
    index: SearchIndex
    recall: Recall
    exchanges: ExchangeService
    conversations: Conversations
    files: FileKeeper
    sandbox: SandboxProcesses
    erasing: SessionErasing
    retention: Retention
    events: EventStream
    webhooks: Webhooks

    def prepare(self) -> None:
        """Load what would block calls if it were loaded later. Blocks for 50 ms."""
        self.tokenizer.prepare(COUNTED_IN)

    async def warm(self) -> None:
        """Load what calls need while the first ones are served. The engine works without what cannot be loaded."""
        warming = asyncio.to_thread(self.tokenizer.warm, COUNTED_IN)
        loading = self.models.open(), self.context.memory.memory.load_requests()
        await asyncio.gather(self._start_worker(), warming, *loading)

    async def _start_worker(self) -> None:
        with contextlib.suppress(WorkerLost):
            await self.worker.start()

    async def close(self, seconds: float = math.inf) -> None:
        """Wait at most `seconds` for tasks, which the next start can resume; write what is pending, close the log."""
        self.context.worker.jobs.close()
        await self.tasks.finish(min(_FINISH_SECONDS, seconds))
        self.context.worker.credentials.clear()
        await self.webhooks.finish(min(_FINISH_SECONDS, seconds))
        await asyncio.gather(self.worker.close(), self.sandbox.close())
        await self.index.close()
        for upstream in self.network.upstreams:
            await upstream.aclose()
        await self.archive.close()
        self.erasing.eraser.close()


async def build_engine(
    settings: Settings,
    *,
    clock: Clock | None = None,
    connect: Connect = build_upstream,
    trace: TraceHeaders | None = None,
) -> Engine:
    """Open the store and wire the engine to it. Raises StoreUnavailable or Conflict.

    With `connect`, which returns other upstreams, it is for a replay: its calls wait for plans, nothing is indexed, and
    `clock` is not the machine's. `trace` returns the headers of what is sent upstream.
    """
    policy, clock, is_replay = settings.engine_policy(), clock or SystemClock(), connect is not build_upstream
    archive, tasks = open_sqlite(settings.store_policy(), asyncio.get_running_loop()), TaskRunner()
    bus = EngineBus(tasks)
    network = open_network(settings, tasks, connect)
    relay = await _open_relay(policy, archive, bus, tasks, clock)
    tokenizer, worker = build_tokenizer(settings), _build_worker(settings, is_indexed=not is_replay)
    models = build_models(settings, tokenizer, tasks, worker, clock)
    context = build_context(
        settings, archive, relay, models, network.routes, tokenizer=tokenizer, worker=worker, is_patient=is_replay
    )
    embed = build_embedding(settings.recall.embedding_model, context.worker, worker)
    index = SearchIndex(settings.store_policy().path, lambda: worker.index_health, embed=embed)
    recall = Recall(archive, index, clock, settings.recall)
    found = settings.doom_loop
    loops = LoopWatch(bus, found.threshold, found.action) if found.threshold else None
    exchanges = _build_exchanges(
        settings, archive, relay, network.routes, context, recall=recall, loops=loops, trace=trace
    )
    sandbox, summaries = SandboxProcesses(), context.worker
    conversations = Conversations(exchanges, archive, models, summaries.jobs, loops, policy.record_cap_bytes)
    live = LiveSessions(exchanges, summaries, context.memory.memory, worker, sandbox)
    erasing = build_erasing(settings.store_policy().path, archive, settings.memory.mirror, bus, live)
    events = _build_events(archive, bus, models)
    return Engine(
        archive=archive,
        bus=bus,
        tasks=tasks,
        network=network,
        relay=relay,
        tenants=relay.reader.lineage.tenants,
        tokenizer=tokenizer,
        worker=worker,
        models=models,
        context=context,
        index=index,
        recall=recall,
        exchanges=exchanges,
        conversations=conversations,
        files=build_files(settings.files, conversations, summaries, worker=worker, secret=archive.salt),
        sandbox=sandbox,
        erasing=erasing,
        retention=Retention(policy=settings.store, erasing=erasing, clock=clock),
        events=events,
        webhooks=_build_webhooks(() if is_replay else settings.events.webhooks, events, bus),
    )


async def _open_relay(
    policy: EnginePolicy, archive: SqliteArchive, bus: EngineBus, tasks: TaskRunner, clock: Clock
) -> Relay:
    """Build what records calls, and finds the session of each. Responses that the last run has not read are read."""
    tenants, is_fresh = Tenants(archive.salt, clock, policy.principals), not await archive.has_sessions()
    lineage = LineageTracker(archive, tenants, clock, policy.cache_bytes // 8, is_fresh=is_fresh)
    reader = ResponseReader(archive, bus, tasks, lineage, policy.record_cap_bytes, own_keys=policy.own_keys)
    if not lineage.index.is_complete:
        await reader.read_left()
    durability = DurabilityWaiter(archive, policy.commit_wait_ms, is_strict=policy.on_failure == "refuse")
    return Relay(archive, durability, reader, bus, clock)


def _build_worker(settings: Settings, *, is_indexed: bool) -> WorkerProcess:
    log = str(settings.store_policy().path.absolute()) if is_indexed else ""
    estimator = settings.budget.estimator
    search_path, cache = tuple(filter(None, sys.path)) if estimator else (), settings.engine_policy().cache_bytes
    worker_settings = WorkerSettings(
        settings.builder_policy(), cache // 8, log, estimator=estimator, search_path=search_path
    )
    return WorkerProcess(worker_settings, most_bytes=cache // 2)


def _build_exchanges(
    settings: Settings,
    archive: SqliteArchive,
    relay: Relay,
    routes: Sequence[Route],
    context: ManagedContext,
    *,
    recall: Recall,
    loops: LoopWatch | None,
    trace: TraceHeaders | None,
) -> ExchangeService:
    policy, bus, clock, reader = settings.engine_policy(), relay.bus, relay.clock, relay.reader
    resolver = RequestResolver(policy, routes, reader=reader, clock=clock, ids=SystemIds())
    controller, cap = context.controller, policy.record_cap_bytes
    calls = Calls(policy, relay, bus.tasks, trace=trace)
    stages = order_stages(
        controller,
        calls,
        histories=build_histories(
            settings.nudge,
            policy,
            archive,
            resolver,
            bus=bus,
            clock=clock,
            turns=settings.turns,
            providers=settings.providers(),
        ),
        loops=loops,
        summaries=context.watch,
        recall=build_rounds(recall, settings.recall, controller.states, reader.lineage, bus=bus, record_cap=cap),
    )
    return ExchangeService(calls, FORMATS, resolver, controller, stages)


def _build_events(archive: SqliteArchive, bus: EngineBus, models: Models) -> EventStream:
    """Build the stream of events, whose ids begin with the time of the start: those of other runs differ."""
    call_later, now_ms = asyncio.get_running_loop().call_later, SystemClock().now_ms
    number, run = archive.number_calls, f"{now_ms():x}"
    return EventPublisher(run, bus, models.prices, number=number, call_later=call_later, now_ms=now_ms).stream


def _build_webhooks(policies: Sequence[WebhookPolicy], events: EventStream, bus: EngineBus) -> Webhooks:
    clock, next_id = SystemClock(), SystemIds().next_exchange
    clients = [WebhookClient(each.url, each.timeout, bus.tasks.spawn) for each in policies]
    hooks = [
        Webhook(policy, client, bus, clock=clock, next_id=next_id)
        for policy, client in zip(policies, clients, strict=True)
    ]
    return Webhooks(events, hooks)


def build_models(
    settings: Settings,
    tokenizer: CountingTokenizer,
    tasks: TaskRunner,
    worker: WorkerProcess | None,
    clock: Clock,
) -> Models:
    """Build the catalog of models and the token counter. Their files are read when they are first needed."""
    catalog = ModelCatalog(settings.stated_windows(), settings.stated_prices(), clock, sized=settings.stated_sizes())
    most = settings.engine_policy().cache_bytes // _CACHE_FOR_A_WEIGHT
    counting = TokenCounter(tokenizer, most, worker, is_by_model=tokenizer.is_by_model)
    return Models(
        *(catalog, counting, settings.budget, clock, tasks.spawn),
        stated=settings.models,
        providers=settings.providers(),
    )
