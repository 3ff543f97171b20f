"""Builds what manages the context of sessions: decisions, plans, and the summaries and memory made behind calls."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proxy.config import Settings
from proxy.config.functions import find_prompt_hook
from proxy.context.builder import ContextBuilder
from proxy.context.epoch_decision import Holdout
from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.call.relay import Relay
from proxy.engine.compaction.credentials import CredentialCache
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.compaction.model_call import ModelCaller
from proxy.engine.compaction.summarizer import Summarizer
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.context.epoch_planner import EpochPlanner
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.memory.compaction import MemoryCompaction, MemoryRequests
from proxy.engine.memory.files import mirror_memory
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.snapshots import SnapshotMemory
from proxy.engine.models import Models
from proxy.engine.ports import Clock
from proxy.engine.recall.rounds import build_offers
from proxy.engine.request_resolver import Route
from proxy.engine.runtime import EngineBus, SystemIds
from proxy.engine.stages.shadow import ShadowCheck
from proxy.engine.stages.summaries import SummaryWatch
from proxy.engine.stages.tool_diet import ToolDiet
from proxy.engine.text_jobs import TextJobs
from proxy.store.memory_files import write_memory
from proxy.store.sqlite.archive import SqliteArchive
from proxy.upstream.tokenizer import CountingTokenizer
from proxy.worker.process import WorkerProcess
from proxy.worker.program import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedContext:
    """What decides what is sent of long sessions, and what is made behind their calls: summaries and memory."""

    controller: ContextController
    admin: EpochAdmin
    worker: SummaryWorker
    watch: SummaryWatch
    memory: MemoryCompaction


def build_context(
    settings: Settings,
    archive: SqliteArchive,
    relay: Relay,
    models: Models,
    routes: Sequence[Route],
    *,
    tokenizer: CountingTokenizer,
    worker: WorkerProcess,
    is_patient: bool,
) -> ManagedContext:
    """Build it from the inside out: what makes summaries and memory comes before what decides by them.

    If it `is_patient`, for a replay, calls wait for their plans, and no file of memory is written.
    """
    policy, clock, bus, own = settings.engine_policy(), relay.clock, relay.bus, settings.compaction
    caches = ContextCaches(archive, models.counter, policy.cache_bytes // 4, policy.record_cap_bytes)
    count = partial(count_text, tokenizer)
    texts = TextJobs({"count": count, "extract": caches.features.find}, worker)
    builder = ContextBuilder(settings.builder_policy(), count, caches.features.find)
    planner = EpochPlanner(worker, builder, archive.salt, models.providers, caches.sentences)
    memory = SessionMemory(archive=archive, gate=relay.durability, clock=clock, texts=texts)
    caller = ModelCaller(own, policy, relay, caches, models, SystemIds())
    jobs = _build_jobs(archive, bus, models, clock, 2 * own.time_limit_seconds)
    summaries = SummaryWorker(
        summarizer=Summarizer(caller, find_prompt_hook(settings), routes, archive.salt, texts),
        planner=planner,
        builder_policy=settings.builder_policy(),
        credentials=CredentialCache(clock, jobs.call_later),
        jobs=jobs,
        remember=memory.remember,
    )
    snapshots = SnapshotMemory(memory=memory, worker=summaries, policy=settings.snapshot)
    watch = SummaryWatch(worker=summaries, start_memory=snapshots.start)
    if settings.shadow.fraction and not is_patient:
        ShadowCheck(settings.shadow, caller, jobs, summaries.credentials)  # the bus has it from here on
    diet = partial(ToolDiet, after=settings.recall.shorten_tools_after, count=models.counter.count_now)
    states = StateReader(
        *(caches, models, bus, clock, Holdout(own.holdout_fraction, archive.salt)),
        offers=build_offers(is_on=settings.recall.inject, make=diet),
        scan_messages=settings.turns.scan_messages,
        is_asked=memory.is_due,
    )
    wait = policy.hard_wait_seconds
    chain = FallbackChain(states, planner, bus, hard_wait_seconds=wait, memory=snapshots, is_patient=is_patient)
    controller = ContextController(states, chain, summaries, bus)
    manual = ManualCompaction(
        archive=archive,
        gate=relay.durability,
        worker=summaries,
        controller=controller,
        find_strategy=policy.find_strategy,
    )
    making = MemoryCompaction(memory=memory, manual=manual)
    MemoryRequests(making, bus)  # the bus has it from here on
    if settings.memory.mirror and not is_patient:
        mirror_memory(memory, partial(write_memory, Path(settings.memory.mirror)), jobs)
    admin = EpochAdmin(states, archive, relay.durability, bus, SystemIds())
    return ManagedContext(controller=controller, admin=admin, worker=summaries, watch=watch, memory=making)


def _build_jobs(
    archive: SqliteArchive, bus: EngineBus, models: Models, clock: Clock, lease_seconds: float
) -> BackgroundJobs:
    """Build the jobs of this engine. A lease is renewed before each call: after a kill it expires within two."""
    owner, call_later = SystemIds().next_exchange(), asyncio.get_running_loop().call_later
    return BackgroundJobs(bus, models, call_later, archive.make_leases(clock), owner, lease_seconds)
