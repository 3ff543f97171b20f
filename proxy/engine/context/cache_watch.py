"""Says of each response why the provider's cache was not read, and what managing saved, while calls are served.

The log says the same later (`engine/reports/cache`). Here it is said from memory, for the metrics: of a session that
memory does not have, the first call counts as its first.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from proxy.context.cache_usage import PromptTrail, SentPrompt, explain_use, name_rewriting, price_missed, price_saved
from proxy.context.provider_cache import CacheModel
from proxy.engine.models import find_cache
from proxy.engine.policy import Provider
from proxy.engine.runtime import EventBus
from proxy.model.card import Card
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead, CacheUsed, EpochOpened, Planned, PromptSent
from proxy.wire.messages import list_markers

_MOST_WAITING = 4096
_MOST_SESSIONS = 1024
_UNKNOWN_PROVIDER = Provider()

_T = TypeVar("_T")


class _Waiting(msgspec.Struct, gc=False):
    """A prompt whose response was not read yet."""

    session: str
    prompt: SentPrompt
    cache: CacheModel
    plan: Plan | None = None


class CacheWatch:
    """Follows the prompts of each session, and publishes what each response says of the cache (`CacheUsed`)."""

    def __init__(self, bus: EventBus, find_card: Callable[[str, str], Card], providers: Mapping[str, Provider]) -> None:
        self._bus = bus
        self._find_card = find_card
        self._providers = providers
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._trails: OrderedDict[str, PromptTrail] = OrderedDict()
        self._opened: OrderedDict[str, str] = OrderedDict()  # why, by the exchange that an epoch was opened for
        bus.subscribe(PromptSent, self.note_prompt)
        bus.subscribe(EpochOpened, self.note_epoch)
        bus.subscribe(Planned, self.note_plan)
        bus.subscribe(AnswerRead, self.note_answer)

    def note_prompt(self, event: PromptSent) -> None:
        """Remember a prompt until its response was read."""
        prompt = SentPrompt(
            event.exchange, event.upstream, event.model, event.nodes, event.layers, sent_ms=event.sent_ms
        )
        card, provider = self._find_model(prompt)
        is_marked = find_cache(provider, prompt.model, card, ("5m",)).kind == "breakpoints"
        markers = list_markers(event.body) if is_marked else ()
        self._waiting[event.exchange] = _Waiting(
            event.session, prompt, find_cache(provider, prompt.model, card, markers)
        )
        _trim(self._waiting, _MOST_WAITING)

    def note_epoch(self, event: EpochOpened) -> None:
        """Remember why an epoch was opened."""
        if event.exchange:
            self._opened[event.exchange] = event.why
            _trim(self._opened, _MOST_WAITING)

    def note_plan(self, event: Planned) -> None:
        """Remember what was sent for a prompt."""
        waiting = self._waiting.get(event.exchange)
        if waiting is not None:
            waiting.plan = event.plan

    def note_answer(self, event: AnswerRead) -> None:
        """Say what the response to a prompt tells of the cache."""
        waiting = self._waiting.pop(event.exchange, None)
        why = self._opened.pop(event.exchange, "")
        if waiting is None:
            return
        plan, usage = waiting.plan, event.usage
        prompt = replace(
            waiting.prompt,
            rewriting=name_rewriting(plan),
            why=why,
            ready_ms=waiting.prompt.sent_ms + 1000 * event.first_byte_s,
            usage=usage,
        )
        card, _ = self._find_model(prompt)
        trail = self._trails.setdefault(waiting.session, PromptTrail())
        self._trails.move_to_end(waiting.session)
        _trim(self._trails, _MOST_SESSIONS)
        use = explain_use(prompt, trail.find(prompt), waiting.cache, event.told)
        trail.add(prompt)
        cost = price_missed(use, usage, card)
        saved = price_saved(plan, usage, card) if plan is not None else None
        both = (None, None) if saved is None else (saved.tokens, saved.money)
        self._bus.publish(
            CacheUsed(event.exchange, waiting.session, use.cause, use.missed, cost.tokens, cost.money, *both)
        )

    def _find_model(self, prompt: SentPrompt) -> tuple[Card, Provider]:
        card = self._find_card(prompt.upstream, prompt.model)
        return card, self._providers.get(prompt.upstream, _UNKNOWN_PROVIDER)


def _trim(kept: OrderedDict[str, _T], most: int) -> None:
    if len(kept) > most:
        kept.popitem(last=False)
