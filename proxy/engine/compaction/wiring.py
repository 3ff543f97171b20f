"""Compaction put together. Rule: no logic beyond wiring; the assembly gives it what the world is."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, Survey, survey
from proxy.context.message_features import Study
from proxy.engine.boundary import attempt
from proxy.engine.compaction.drafting import Desk, Drafter
from proxy.engine.compaction.keys import Later
from proxy.engine.compaction.office import Premises, build_office
from proxy.engine.compaction.policy import CompactionPolicy, PromptHook
from proxy.engine.compaction.questions import Questions
from proxy.engine.compaction.spending import Purse
from proxy.engine.compaction.urgency import Urgency
from proxy.engine.compaction.watching import Watch
from proxy.engine.compaction.work import Latest
from proxy.engine.compaction.worker import Shop, Worker
from proxy.engine.context.epoch_planner import EpochPlanner, PlanInputs
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Archive, Leases
from proxy.engine.request_resolver import Route
from proxy.model.events import ExchangeRecorded

_log = logging.getLogger("palimpsest.compaction")


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What summaries are made of and with. `count` gives the tokens of a text, `find` what there is to know of a
    message, `secret` makes references unguessable, `owner` names this process, `later` is a loop's `call_later`.
    """

    archive: Archive
    gate: DurabilityWaiter
    leases: Leases
    routes: Sequence[Route]
    builder: ContextBuilder
    build: BuilderPolicy
    find: Study
    count: Callable[[str], int]
    hook: PromptHook | None
    secret: bytes
    owner: str
    later: Later


def build_watch(policy: CompactionPolicy, engine: EnginePolicy, on: Premises, made: Ingredients) -> Watch:
    """Whoever calls the worker."""
    office = build_office(policy, engine, on, made.later)
    questions = Questions(policy, made.count, made.hook)
    desk = Desk(policy, office, questions, on.models, made.routes, on.providers, on.clock, made.secret, made.count)
    opener = EpochPlanner(made.builder, made.secret, on.providers)
    spans = replace(made.build, protect_turns=policy.protect_turns)

    def look_at(latest: Latest, ground: PlanInputs) -> Survey:
        return survey(opener.see(latest.case.subject, latest.case.path, ground), spans, made.find)

    shop = Shop(
        archive=made.archive,
        gate=made.gate,
        leases=made.leases,
        memory=on.memory,
        tasks=on.tasks,
        bus=on.bus,
        keys=office.keys,
        purse=office.purse,
        urgency=Urgency(policy, office.warmth, made.routes),
        look_at=look_at,
        owner=made.owner,
    )
    if policy.spend_per_day:
        on.tasks.spawn(_open(office.purse, made.archive))
    worker = Worker(policy, shop, Drafter(desk))
    watch = Watch(policy, worker, office.keys, office.purse, on.providers, later=made.later, models=on.models)
    on.bus.subscribe(ExchangeRecorded, watch.note_exchange)
    return watch


async def _open(purse: Purse, archive: Archive) -> None:
    await attempt(purse.open(archive), _note)


def _note(error: Exception) -> None:
    _log.error("what was spent today could not be read; no summary is paid for until a restart", exc_info=error)
