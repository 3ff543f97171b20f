"""Managing put together. Rule: no logic beyond wiring; the assembly gives it what the world is."""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.context.builder import ContextBuilder
from proxy.context.epoch_decision import Holdout
from proxy.engine.context.accounting import SentObserver, UsageAccounting
from proxy.engine.context.controller import ContextController
from proxy.engine.context.epoch_planner import EpochPlanner
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.refusal_retry import RefusalRetries
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.rewriter import Rewriter
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.models import CacheCalibrator, Models
from proxy.engine.policy import Provider
from proxy.engine.ports import Archive, Clock
from proxy.engine.runtime import EventBus
from proxy.model.events import AnswerRead


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What managing stands among; `providers` are by the upstream's name, `holdout` the sessions only observed.

    No call waits longer for its plan, and for a summary that is being made, than `hard_wait_seconds` together.
    """

    archive: Archive
    models: Models
    builder: ContextBuilder
    bus: EventBus
    clock: Clock
    providers: Mapping[str, Provider]
    memory: ContextCaches
    watcher: SentObserver
    holdout: Holdout
    hard_wait_seconds: float


def build_steward(around: Surroundings, secret: bytes) -> ContextController:
    """Whoever decides what is sent; `secret` makes references unguessable."""
    counting, memory = around.models.count, around.memory
    lessons = CacheCalibrator(counting, around.providers)
    around.bus.subscribe(AnswerRead, lessons.note_answer)
    lookout = StateReader(memory, around.models, lessons, around.clock, around.holdout)
    opener = EpochPlanner(around.builder, secret, around.providers)
    ladder = FallbackChain(
        memory, opener, Rewriter(around.providers), around.bus, around.clock, around.hard_wait_seconds
    )
    books = UsageAccounting(memory.sent, lessons, around.watcher)
    return ContextController(
        lookout, ladder, RefusalRetries(lookout, ladder, around.bus), books, around.bus, around.watcher
    )
