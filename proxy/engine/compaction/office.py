"""All that asking models for summaries takes, put together. Rule: no logic beyond wiring."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.engine.compaction.breaker import Breakers
from proxy.engine.compaction.calling import Means, ModelCaller
from proxy.engine.compaction.keys import Keys, Later
from proxy.engine.compaction.limits import RateLimits
from proxy.engine.compaction.permission import Permission
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import Purse
from proxy.engine.compaction.warmth import Warmth
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.models import Models
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import Clock, Ids
from proxy.engine.relay import Relay
from proxy.engine.runtime import EventBus, TaskRunner
from proxy.model.events import AnswerRead, ExchangeRecorded, LimitsTold
from proxy.wire.format import Format


@dataclass(frozen=True, slots=True)
class Premises:
    """What stands there already. `form` is the wire of all calls of our own; `providers` are by the upstream's name."""

    relay: Relay
    memory: ContextCaches
    models: Models
    tasks: TaskRunner
    bus: EventBus
    clock: Clock
    ids: Ids
    form: Format
    providers: Mapping[str, Provider]


@dataclass(frozen=True, slots=True)
class Office:
    """Who calls, who allows it, and what both know."""

    caller: ModelCaller
    permission: Permission
    keys: Keys
    breakers: Breakers
    purse: Purse
    warmth: Warmth


def build_office(policy: CompactionPolicy, engine: EnginePolicy, on: Premises, later: Later) -> Office:
    """`later` calls something after so many seconds, as a loop's `call_later` does."""
    owned = frozenset(name for name, provider in on.providers.items() if provider.has_own_key)
    breakers, limits, warmth = Breakers(), RateLimits(on.clock, owned), Warmth()
    purse = Purse(policy, on.models.card, on.bus, on.clock)
    on.bus.subscribe(LimitsTold, limits.note)
    on.bus.subscribe(ExchangeRecorded, purse.note_exchange)
    on.bus.subscribe(AnswerRead, purse.note_answer)
    means = Means(on.relay, on.memory, on.tasks, on.bus, on.clock, on.ids, purse, warmth)
    caller = ModelCaller(engine, means, on.form, policy.time_limit_seconds)
    permission = Permission(policy, breakers, limits, purse, on.clock, owned)
    return Office(caller, permission, Keys(on.clock, later), breakers, purse, warmth)
