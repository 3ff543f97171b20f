"""Whether a branch above its soft mark is reported now, or is left until its high mark is near (BEHAVIOUR B27).

Rule: what was seen of the upstream decides: whether its cache is read, and how long it took over reports so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.context.compaction.spans import Pace, is_due
from proxy.engine.compaction.candidates import list_candidates
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.warmth import Warmth
from proxy.engine.compaction.work import Latest
from proxy.engine.request_resolver import Route


@dataclass(frozen=True, slots=True)
class Urgency:
    """Knows what was seen. `routes` are all upstreams there are."""

    policy: CompactionPolicy
    warmth: Warmth
    routes: Sequence[Route]

    def is_due(self, latest: Latest) -> bool:
        """Whether a report is begun behind this request, which was accepted just now."""
        case = latest.case
        if case.tariff.cache.kind == "local":  # is asked when it is idle: to wait would save nothing (B30)
            return True
        left = case.budget.high - latest.tokens
        return is_due(left, _find_pace(latest), self._find_time(latest), is_warm=self._is_warm(latest))

    def _is_warm(self, latest: Latest) -> bool:
        """Whether the cache holds the request, as far as the tariff and calls of our own tell."""
        case, home = latest.case, latest.case.subject.session.upstream
        return case.tariff.expect_read(latest.tokens) > 0 and not self.warmth.is_cold(home, case.view)

    def _find_time(self, latest: Latest) -> float:
        """The seconds that a report takes; before the first one, the most that it may."""
        subject = latest.case.subject
        first = next(list_candidates(self.policy, subject.upstream, subject.model, self.routes))
        seen = self.warmth.find_p95(first.upstream.name, first.model)
        return self.policy.time_limit_seconds if seen is None else seen


def _find_pace(latest: Latest) -> Pace:
    path = latest.case.path
    calls = 1 + sum(shape.role == "assistant" for shape in path.shapes)
    return Pace((path.tokens - path.head.tokens) / calls, latest.interval)
