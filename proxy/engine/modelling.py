"""stand-in until helper F's lands"""

from collections.abc import Sequence

from proxy.context.budget import Budget, BudgetPolicy, make_budget
from proxy.context.cache import find_cache_model
from proxy.context.estimate import Ratio
from proxy.context.tariff import Tariff, make_tariff
from proxy.engine.counting import Counting
from proxy.model.card import UNPRICED


class Models:
    """stand-in"""

    def __init__(self, counting: Counting, policy: BudgetPolicy) -> None:
        self._counting, self._policy = counting, policy
        self._limits: dict[tuple[str, str], int] = {}

    def find_ratio(self, upstream: str, model: str) -> Ratio:
        return self._counting.find_ratio(upstream, model)

    def find_budget(self, upstream: str, model: str, asked: int | None, ceiling: int | None) -> Budget:
        from dataclasses import replace

        policy = self._policy if ceiling is None else replace(self._policy, ceiling_tokens=ceiling)
        return make_budget(self._limits.get((upstream, model), 200_000), None, asked, policy)

    def find_tariff(self, upstream: str, model: str, markers: Sequence[str]) -> Tariff:
        return make_tariff(UNPRICED, find_cache_model(None, "", model, markers))

    def note_limit(self, upstream: str, model: str, window: int, sent: int) -> None:
        self._limits[upstream, model] = window
