"""The only place that builds the engine, its store and its upstreams. It contains wiring only."""

import asyncio
import contextlib
import logging
import math
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from proxy.config import ConfigError, Settings
from proxy.config.errors import Problem
from proxy.config.functions import find_prompt_hook
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import SnapshotPolicy
from proxy.context.epoch_decision import Holdout
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.compaction.summarizer import build_summarizer
from proxy.engine.compaction.trigger import CompactionTrigger, build_trigger
from proxy.engine.context.accounting import AnswerAccounting, SentObserver, UsageAccounting
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.context.epoch_planner import EpochPlanner, FeatureCache
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.loop_watch import LoopWatch
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.rewriter import Rewriter
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.tool_offers import NO_OFFERS, ToolOffers
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
from proxy.engine.memory.compaction import MemoryCompaction, build_memory_compaction
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.requests import follow_requests
from proxy.engine.memory.snapshots import SnapshotMemory
from proxy.engine.models import CacheCalibrator, Models, OverflowWatch, PriceList
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import Archive, Clock, Upstream
from proxy.engine.recall.embeddings import build_embedding
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.rounds import build_offers, build_rounds
from proxy.engine.relay import Relay
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.response_reader import ResponseReader, UnreadResponses
from proxy.engine.runtime import (
    Descriptors,
    EngineBus,
    SystemClock,
    SystemIds,
    TaskRunner,
    read_descriptor_limit,
)
from proxy.engine.text_jobs import TextJobs
from proxy.engine.token_counter import TokenCounter
from proxy.engine.turns.conversation import Conversations, build_conversations
from proxy.engine.turns.files import FileKeeper, build_files
from proxy.engine.turns.recording import TurnRecorder
from proxy.indexing import open_index as open_index
from proxy.indexing import update_index as update_index
from proxy.model.errors import WorkerLost, tell_install
from proxy.model.events import CallUnreadableEvent, ExchangeRecorded
from proxy.reading import build_tokenizer
from proxy.reading import measure as measure
from proxy.reading import open_log as open_log
from proxy.store.erasing.building import build_erasing
from proxy.store.search.reader import SearchIndex
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.upstream.client import DirectClient, WebhookClient
from proxy.upstream.litellm_library import is_installed, load_litellm
from proxy.upstream.model_catalog import ModelCatalog
from proxy.upstream.policy import UpstreamPolicy
from proxy.upstream.tokenizer import CountingTokenizer
from proxy.wire import FORMATS
from proxy.worker.process import WorkerProcess
from proxy.worker.program import COUNTED_IN, WorkerSettings, count_text
from proxy.worker.sandbox import SandboxProcesses


class ClosableUpstream(Upstream, Protocol):
    """An upstream with connections to close."""

    async def aclose(self) -> None:
        """Close them."""
        ...


Connect = Callable[[UpstreamPolicy, TaskRunner, Descriptors, str], ClosableUpstream]
"""Returns the client of an upstream, as `build_upstream` does."""

# One token count is kept per this many bytes of the cache's size, in addition to it: by default 65,536 counts, 11 MB.
_CACHE_FOR_A_WEIGHT = 1024
_FINISH_SECONDS = 2.0

_log = logging.getLogger("palimpsest")


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine. It marks its calls with `hop_id`, so that it detects a loop of proxies."""

    exchanges: ExchangeService
    archive: Archive
    relay: Relay
    bus: EngineBus
    tasks: TaskRunner
    descriptors: Descriptors
    upstreams: tuple[ClosableUpstream, ...]
    models: Models
    tokenizer: CountingTokenizer
    worker: WorkerProcess
    epoch_admin: EpochAdmin
    manual_compaction: ManualCompaction
    memory_compaction: MemoryCompaction
    index: SearchIndex
    recall: Recall
    tenants: Tenants
    events: EventStream
    hop_id: str
    erasing: SessionErasing
    retention: Retention
    turns: TurnRecorder
    conversations: Conversations
    webhooks: Webhooks
    files: FileKeeper
    sandbox: SandboxProcesses

    def prepare(self) -> None:
        """Load what would block calls if it were loaded later. Blocks for 50 ms."""
        self.tokenizer.prepare(COUNTED_IN)

    async def warm(self) -> None:
        """Load what calls need while the first ones are served. The engine works without what cannot be loaded."""
        warming = asyncio.to_thread(self.tokenizer.warm, COUNTED_IN)
        loading = self.models.open(), self.memory_compaction.memory.load_requests()
        await asyncio.gather(self._start_worker(), warming, *loading)

    async def _start_worker(self) -> None:
        with contextlib.suppress(WorkerLost):
            await self.worker.start()

    async def close(self, seconds: float = math.inf) -> None:
        """Wait at most `seconds` for tasks, which the next start can resume; write what is pending, close the log."""
        await self.tasks.finish(min(_FINISH_SECONDS, seconds))
        await self.webhooks.finish(min(_FINISH_SECONDS, seconds))
        await asyncio.gather(self.worker.close(), self.sandbox.close())
        await self.index.close()
        for upstream in self.upstreams:
            await upstream.aclose()
        await self.archive.close()
        self.erasing.eraser.close()


async def build_engine(settings: Settings, *, clock: Clock | None = None, connect: "Connect | None" = None) -> Engine:
    """Open the store and wire the engine to it. Raises StoreUnavailable or Conflict.

    With `connect`, which returns other upstreams, it is for a replay: its calls wait for plans, nothing is indexed, and
    `clock` is not the machine's.
    """
    archive = open_sqlite(settings.store_policy(), asyncio.get_running_loop())
    policies, clock, tasks = settings.upstream_policies(), clock or SystemClock(), TaskRunner()
    policy, providers, bus = settings.engine_policy(), settings.providers(), EngineBus(tasks)
    descriptors, hop_id = Descriptors(read_descriptor_limit()), secrets.token_hex(8)
    upstreams = tuple([(connect or build_upstream)(each, tasks, descriptors, hop_id) for each in policies])
    routes = _list_routes(settings, policies, upstreams)
    durability = DurabilityWaiter(archive, policy.commit_wait_ms, is_strict=policy.on_failure == "refuse")
    lineage = _build_lineage(policy, archive, bus, clock, is_fresh=not await archive.has_sessions())
    reader = ResponseReader(archive, bus, tasks, lineage, policy.record_cap_bytes, own_keys=policy.own_keys)
    relay = Relay(archive, durability, reader, bus, clock)
    resolver = RequestResolver(policy, routes, lineage=lineage, reader=reader, clock=clock, ids=SystemIds())
    if not lineage.index.is_complete:
        await UnreadResponses(archive, bus, tasks, lineage, reader, formats=FORMATS).read()
    tokenizer, features = build_tokenizer(settings), FeatureCache(policy.cache_bytes // 8)
    worker, count = _build_worker(settings, policy, is_indexed=connect is None), partial(count_text, tokenizer)
    models = build_models(settings, tokenizer, tasks, worker, clock)
    builder = ContextBuilder(settings.builder_policy(), count, features.find)
    planner = EpochPlanner(worker, builder, archive.salt, providers)
    caches = ContextCaches(archive, models.counter, policy.cache_bytes // 4, policy.record_cap_bytes)
    trigger = _build_compaction(
        *(settings, policy),
        archive=archive,
        durability=durability,
        relay=relay,
        caches=caches,
        models=models,
        tasks=tasks,
        bus=bus,
        routes=routes,
        planner=planner,
        texts=TextJobs({"count": count, "extract": features.find}, worker),
        count=count,
        clock=clock,
    )
    controller = build_controller(
        models=models,
        planner=planner,
        bus=bus,
        clock=clock,
        providers=providers,
        caches=caches,
        observer=trigger,
        holdout=Holdout(settings.compaction.holdout_fraction, archive.salt),
        hard_wait_seconds=policy.hard_wait_seconds,
        is_patient=connect is not None,
        offers=build_offers(is_on=settings.recall.inject),
        scan_messages=settings.turns.scan_messages,
    )
    index = _build_index(settings, worker, trigger)
    recall, cap = Recall(archive, index, clock, settings.recall), policy.record_cap_bytes
    rounds = build_rounds(recall, settings.recall, controller.states, lineage, bus=bus, record_cap=cap)
    held = build_histories(
        settings.nudge, policy, archive, resolver, bus=bus, clock=clock, turns=settings.turns, providers=providers
    )
    exchanges = ExchangeService(
        policy,
        FORMATS,
        resolver=resolver,
        relay=relay,
        tasks=tasks,
        controller=controller,
        recall=rounds,
        histories=held,
        loops=LoopWatch(bus, loops.threshold, loops.action) if (loops := settings.doom_loop).threshold else None,
    )
    memory_compaction = _build_memory(settings, archive, durability, trigger, controller, routes=routes, clock=clock)
    epoch_admin, sandbox = EpochAdmin(controller.states, archive, durability, bus, SystemIds()), SandboxProcesses()
    parts = (exchanges, archive, relay, bus, tasks, descriptors, upstreams, models, tokenizer, worker, epoch_admin)
    events, webhooks = _build_events(settings, archive, bus, tasks, models, is_told=connect is None)
    known = (exchanges, lineage, reader, resolver, trigger.worker.schedule, caches, held, memory_compaction.memory)
    live = LiveSessions(*known, features, (worker.restart, sandbox.restart))
    erasing = build_erasing(settings.store_policy().path, archive, settings.memory.mirror, bus, live)
    retention = Retention(policy=settings.store, erasing=erasing, clock=clock, sleep=asyncio.sleep)
    found = (memory_compaction.manual, memory_compaction, index, recall, lineage.tenants, events, hop_id)
    wired: dict[str, Any] = {"archive": archive, "tasks": tasks, "bus": bus, "models": models, "clock": clock}
    turns = build_conversations(exchanges, resolver, reader, durability, trigger, cap=cap, **wired)
    files = build_files(settings.files, turns.recorder, trigger, planner, cap=cap, worker=worker, secret=archive.salt)
    return Engine(*parts, *found, erasing, retention, turns.recorder, turns, webhooks, files, sandbox)


def _build_events(
    settings: Settings, archive: SqliteArchive, bus: EngineBus, tasks: TaskRunner, models: Models, *, is_told: bool
) -> tuple[EventStream, Webhooks]:
    """Build the stream of events, and the webhooks that are told of them.

    The ids of events begin with the time of the start: they differ from those of earlier runs.
    """
    clock, call_later = SystemClock(), asyncio.get_running_loop().call_later
    stream = EventStream(f"{clock.now_ms():x}", call_later, clock.now_ms)
    prices = PriceList(models.card, settings.providers())
    EventPublisher(
        bus, stream, prices, number=archive.number_calls, tasks=tasks, call_later=call_later, now_ms=clock.now_ms
    )
    policies, ids = settings.events.webhooks if is_told else (), SystemIds()
    return stream, Webhooks(stream, [_build_webhook(policy, bus, tasks, ids) for policy in policies])


def _build_webhook(policy: WebhookPolicy, bus: EngineBus, tasks: TaskRunner, ids: SystemIds) -> Webhook:
    client = WebhookClient(policy.url, policy.timeout, tasks.spawn)
    return Webhook(policy, client, bus, clock=SystemClock(), next_id=ids.next_exchange)


def _list_routes(
    settings: Settings, policies: Sequence[UpstreamPolicy], upstreams: Sequence[ClosableUpstream]
) -> tuple[Route, ...]:
    editing = {name: provider.edits_context for name, provider in settings.providers().items()}
    return tuple([Route(each, p.models, editing[p.name]) for each, p in zip(upstreams, policies, strict=True)])


def _build_worker(settings: Settings, policy: EnginePolicy, *, is_indexed: bool) -> WorkerProcess:
    log = str(settings.store_policy().path.absolute()) if is_indexed else ""
    estimator = settings.budget.estimator
    search_path = tuple(filter(None, sys.path)) if estimator else ()
    worker_settings = WorkerSettings(
        settings.builder_policy(), policy.cache_bytes // 8, log, estimator=estimator, search_path=search_path
    )
    return WorkerProcess(worker_settings, most_bytes=policy.cache_bytes // 2)


def _build_index(settings: Settings, worker: WorkerProcess, trigger: CompactionTrigger) -> SearchIndex:
    embed = build_embedding(settings.recall.embedding_model, trigger, worker)
    return SearchIndex(settings.store_policy().path, lambda: worker.index_health, embed=embed)


def _build_lineage(
    policy: EnginePolicy, archive: SqliteArchive, bus: EngineBus, clock: Clock, *, is_fresh: bool
) -> LineageTracker:
    tenants = Tenants(archive.salt, clock, policy.principals)
    lineage = LineageTracker(archive, tenants, clock, policy.cache_bytes // 8, is_fresh=is_fresh)
    bus.subscribe(ExchangeRecorded, lineage.note_outcome)
    bus.subscribe(CallUnreadableEvent, lineage.note_unread)
    return lineage


def build_controller(
    *,
    models: Models,
    planner: EpochPlanner,
    bus: EngineBus,
    clock: Clock,
    providers: Mapping[str, Provider],
    caches: ContextCaches,
    observer: SentObserver,
    holdout: Holdout,
    hard_wait_seconds: float,
    is_patient: bool = False,
    offers: ToolOffers = NO_OFFERS,
    scan_messages: int = 20,
) -> ContextController:
    """Build the controller that decides what is sent. The keys of `providers` are names of upstreams.

    A call waits at most `hard_wait_seconds` for its plan and for a summary under way together.
    """
    overflows = OverflowWatch(models, bus)
    calibrator = CacheCalibrator(models.counter, providers, overflows, bus)
    AnswerAccounting(bus, PriceList(models.card, providers), calibrator, caches.prompts)
    states = StateReader(
        caches,
        models,
        calibrator,
        clock,
        holdout,
        overflows=overflows,
        offers=offers,
        scan_messages=scan_messages,
    )
    chain = FallbackChain(
        caches=caches,
        planner=planner,
        rewriter=Rewriter(providers, offers),
        bus=bus,
        clock=clock,
        hard_wait_seconds=hard_wait_seconds,
        is_patient=is_patient,
    )
    return ContextController(states, chain, UsageAccounting(caches.sent, calibrator, observer), bus, observer)


def _build_memory(
    settings: Settings,
    archive: SqliteArchive,
    durability: DurabilityWaiter,
    trigger: CompactionTrigger,
    controller: ContextController,
    *,
    routes: Sequence[Route],
    clock: Clock,
) -> MemoryCompaction:
    """Build manual compaction, and memory, which is made by it and by the strategy `snapshot`."""
    manual = ManualCompaction(
        archive=archive,
        gate=durability,
        worker=trigger.worker,
        states=controller.states,
        chain=controller.chain,
        routes=routes,
        find_strategy=settings.engine_policy().find_strategy,
        clock=clock,
        ids=SystemIds(),
    )
    compaction = build_memory_compaction(archive, durability, clock, manual)
    attach_snapshots(trigger, controller, compaction.memory, settings.snapshot)
    controller.states.is_asked = follow_requests(compaction, trigger.worker.tasks, trigger.worker.progress.bus).is_due
    return compaction


def attach_snapshots(
    trigger: CompactionTrigger, controller: ContextController, memory: SessionMemory, policy: SnapshotPolicy
) -> None:
    """Have memory made behind answers, and shown in epochs, where the strategy `snapshot` asks for it."""
    snapshots = SnapshotMemory(memory=memory, worker=trigger.worker, policy=policy)
    controller.chain.memory, trigger.start_memory = snapshots, snapshots.start


def _build_compaction(
    settings: Settings,
    policy: EnginePolicy,
    *,
    archive: SqliteArchive,
    durability: DurabilityWaiter,
    relay: Relay,
    caches: ContextCaches,
    models: Models,
    tasks: TaskRunner,
    bus: EngineBus,
    routes: Sequence[Route],
    planner: EpochPlanner,
    texts: TextJobs,
    count: Callable[[str], int],
    clock: Clock,
) -> CompactionTrigger:
    summarizer = build_summarizer(
        settings.compaction,
        policy,
        relay=relay,
        memory=caches,
        models=models,
        tasks=tasks,
        bus=bus,
        clock=clock,
        ids=SystemIds(),
        providers=settings.providers(),
        routes=routes,
        count=count,
        hook=find_prompt_hook(settings),
        secret=archive.salt,
        texts=texts,
    )
    return build_trigger(
        settings.compaction,
        summarizer,
        archive=archive,
        gate=durability,
        leases=archive.make_leases(clock),
        memory=caches,
        tasks=tasks,
        bus=bus,
        planner=planner,
        builder_policy=settings.builder_policy(),
        owner=SystemIds().next_exchange(),
        call_later=asyncio.get_running_loop().call_later,
    )


def build_upstream(
    policy: UpstreamPolicy, tasks: TaskRunner, descriptors: Descriptors, hop_id: str
) -> ClosableUpstream:
    """Return the client of an upstream. Raises ConfigError if litellm is needed and not installed.

    Only one of kind litellm needs that, whose import costs 4 s and 150 MB.
    """
    if policy.kind == "litellm":
        if not is_installed():
            what = f"{policy.name!r} is of kind litellm, which needs the extra providers: {tell_install('providers')}"
            raise ConfigError([Problem("upstreams", what)])
        from proxy.upstream.litellm_client import LitellmClient  # noqa: PLC0415 - as said above

        library = None if policy.is_deferred else load_litellm()
        return LitellmClient(policy, library, tasks.spawn, hop_id=hop_id, load=load_litellm)
    return DirectClient(policy, tasks.spawn, descriptors, hop_id=hop_id)


def build_models(
    settings: Settings,
    tokenizer: CountingTokenizer,
    tasks: TaskRunner,
    worker: WorkerProcess | None = None,
    clock: Clock | None = None,
) -> Models:
    """Build the catalog of models and the token counter. Their files are read when they are first needed."""
    clock = clock or SystemClock()
    catalog = ModelCatalog(settings.stated_windows(), settings.stated_prices(), clock, sized=settings.stated_sizes())
    most = settings.engine_policy().cache_bytes // _CACHE_FOR_A_WEIGHT
    counting = TokenCounter(tokenizer, most, worker, is_by_model=tokenizer.is_by_model)
    return Models(catalog, counting, settings.budget, clock, tasks.spawn, stated=settings.models)
