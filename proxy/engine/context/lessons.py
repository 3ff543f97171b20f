"""What answers teach: how a model counts, what its cache keeps, how long a token takes.

Rule: what the upstream did not report teaches nothing. Memory only; who knows nothing yet goes by what is published.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from proxy.context.cache import find_cache_model
from proxy.context.calibration import Calibration, learn_read, learn_seconds, learn_survival
from proxy.context.tariff import Tariff, make_tariff
from proxy.engine.counting import Counting
from proxy.engine.policy import Provider
from proxy.model.card import Card
from proxy.model.events import AnswerRead

_MOST_WAITING = 4096
_MOST_MODELS = 1024
_UNKNOWN = Provider()

_Taught = tuple[float, float | None, float]
_Basis = tuple[Card, tuple[str, ...], _Taught | None]
"""What a tariff is made of beside what stays as it is: what is known of the model, markers, what was learned."""


class Lesson(msgspec.Struct, frozen=True, gc=False):
    """A request whose answer will teach something, in tokens as we count them.

    `expected` are those that should be read from the cache; of the first request of an epoch, `stable` are those that
    stand before its first edit.
    """

    upstream: str
    model: str
    tokens: int
    expected: int = 0
    stable: int | None = None


class Lessons:
    """What was learned of each model of each upstream; of models without end, those heard of last."""

    def __init__(self, counting: Counting, providers: Mapping[str, Provider]) -> None:
        self._counting = counting
        self._providers = providers
        self._waiting: OrderedDict[tuple[str, int], Lesson] = OrderedDict()
        self._learned: OrderedDict[tuple[str, str], Calibration] = OrderedDict()
        self._tariffs: OrderedDict[tuple[str, str], tuple[_Basis, Tariff]] = OrderedDict()

    def find_tariff(self, upstream: str, model: str, card: Card, markers: Sequence[str]) -> Tariff:
        """What a model's input costs; `markers` are the retentions of the request's cache markers."""
        key, provider = (upstream, model), self._providers.get(upstream, _UNKNOWN)
        learned, known = self._learned.get(key), self._tariffs.get(key)
        basis = card, tuple(markers), _tell_taught(learned, provider)
        if known is not None and known[0] == basis:
            return known[1]
        cache = find_cache_model(provider.cache, provider.host, model, markers, card.retention)
        tariff = make_tariff(card.prices, cache, learned)
        self._tariffs[key] = basis, tariff
        if len(self._tariffs) > _MOST_MODELS:
            self._tariffs.popitem(last=False)
        return tariff

    def wait_for(self, exchange: str, k: int, lesson: Lesson) -> None:
        """A request was sent."""
        self._waiting[exchange, k] = lesson
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def note_answer(self, event: AnswerRead) -> None:
        """Its answer has been read."""
        lesson = self._waiting.pop((event.exchange, event.k), None)
        usage = event.usage
        if lesson is None or not usage.input:
            return
        self._counting.learn(lesson.upstream, lesson.model, lesson.tokens, usage.input)
        key = (lesson.upstream, lesson.model)
        known = self._learned.pop(key, Calibration())
        scale = usage.input / lesson.tokens if lesson.tokens else 1.0
        if lesson.stable is not None:
            known = learn_survival(known, round(lesson.stable * scale), usage.cached)
        else:
            known = learn_read(known, round(lesson.expected * scale), usage.cached)
        if event.first_byte_s:
            known = learn_seconds(known, usage.input, usage.cached, event.first_byte_s)
        self._learned[key] = known
        if len(self._learned) > _MOST_MODELS:
            self._learned.popitem(last=False)


def _tell_taught(learned: Calibration | None, provider: Provider) -> _Taught | None:
    """What of it a tariff is made of: seconds, which are never twice the same, only where time is the price."""
    if learned is None:
        return None
    return learned.read, learned.survival, learned.cached_ratio if provider.cache == "local" else 0.0
