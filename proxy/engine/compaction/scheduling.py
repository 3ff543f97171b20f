"""When a summary is made, which models are asked, and which branches are worked on."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from proxy.context.compaction.spans import should_start_summary
from proxy.engine.background.jobs import SUMMARY, BackgroundJobs, Job, SpanKey
from proxy.engine.compaction.job import SentRequest
from proxy.engine.compaction.model_health import CacheHitTracker
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.ports import Upstream
from proxy.engine.request_resolver import Route
from proxy.model.lineage import count_shared_nodes
from proxy.model.lru import LruCache

_MOST_SESSIONS = 4096
_MOST_POSTPONED = 8


class SummaryModel(NamedTuple):
    """A model that may be asked for a summary, and its upstream."""

    upstream: Upstream
    model: str


def list_summary_models(
    policy: CompactionPolicy, home: Upstream, model: str, routes: Sequence[Route]
) -> Iterator[SummaryModel]:
    """Yield the models to ask about a conversation with `model` at `home`, in order.

    A conversation's content goes to its own upstream, and to another one only if the settings name that.
    """
    for name in dict.fromkeys((policy.model or model, *policy.fallback_models)):
        claiming = next((route.upstream for route in routes if name != model and route.claims(name)), home)
        yield SummaryModel(claiming if claiming.name in policy.may_receive else home, name)


def find_own_upstream(
    policy: CompactionPolicy, own: str, home: Upstream, model: str, routes: Sequence[Route]
) -> Upstream:
    """Return the upstream at which the model `own` is asked about a conversation with `model` at `home`."""
    return next(list_summary_models(replace(policy, model=own, fallback_models=()), home, model, routes)).upstream


def is_summary_due(
    request: SentRequest, policy: CompactionPolicy, cache_hits: CacheHitTracker, routes: Sequence[Route]
) -> bool:
    """Return whether a branch above its soft mark is summarised now: whether the epoch that takes the span is near.

    How near the high mark may be depends on how long summaries took so far. Before the first one they are assumed to
    take the full time limit.
    """
    state, managed = request.state, request.state.request
    if state.tariff.cache.kind == "local":  # it is asked only when idle, so waiting saves nothing
        return True
    first = next(list_summary_models(policy, managed.upstream, managed.model, routes))
    seconds = cache_hits.compute_p95_seconds(first.upstream.name, first.model)
    takes = policy.time_limit_seconds if seconds is None else seconds
    return should_start_summary(request.calls_left, request.seconds_left, takes)


class _Postponed(msgspec.Struct, frozen=True, gc=False):
    """A branch, given by the tip and depth of a request, that is postponed until it has `tokens`."""

    tip: bytes
    depth: int
    tokens: int

    def is_behind(self, request: SentRequest) -> bool:
        """Return whether a request extends the one that this was recorded for."""
        return self.depth <= len(request.kept_nodes) and request.kept_nodes[self.depth - 1] == self.tip


class JobSchedule:
    """The branches that are being summarised, and those for which that failed recently.

    Two requests are of one branch if one extends the other, but for an end that the client rewrites. In memory
    only, and bounded: forgetting a failed attempt costs one more.
    """

    def __init__(self, jobs: BackgroundJobs) -> None:
        self._jobs = jobs
        self._postponed = LruCache[str, list[_Postponed]](_MOST_SESSIONS)

    def find(self, session: str, nodes: Sequence[bytes]) -> Job | None:
        """Return the job on the branch of a request."""
        return next((job for job in self._jobs.list_jobs(session, SUMMARY) if is_one_branch(job.nodes, nodes)), None)

    def name_lease(self, request: SentRequest) -> str:
        """Return the name of a branch's lease.

        It identifies the first message that has no summary, or that no other branch here shares. Other processes derive
        the same name, unless their branch diverges from this one after that message.
        """
        nodes, live = request.kept_nodes, request.state.context.list_summaries(request.nodes, request.state.view)
        shared = [count_shared_nodes(job.nodes, nodes) for job in self._jobs.list_jobs(request.session, SUMMARY)]
        place = min(max([live[-1].stop if live else 0, *shared]), len(nodes) - 1)
        return f"summaries/{request.session}/{nodes[place].hex()}"

    def start(
        self,
        request: SentRequest,
        work: Callable[[], Awaitable[object]],
        note: Callable[[Exception], None],
        upstream: str = "",
    ) -> Job | None:
        """Start work on the branch of a request, under its lease. Return None if some is running, or at the end."""
        if self.find(request.session, request.kept_nodes) is not None:
            return None
        lease, nodes = self.name_lease(request), request.kept_nodes
        return self._jobs.start(request.session, SUMMARY, work, upstream=upstream, lease=lease, nodes=nodes, note=note)

    def claim(self, job: Job, span: SpanKey) -> bool:
        """Claim a span for a branch. Return False if another branch is working on it."""
        if any(span in each.claims for each in self._jobs.list_jobs(job.session) if each is not job):
            return False
        job.claims.add(span)
        return True

    def postpone(self, request: SentRequest, tokens: int) -> None:
        """Postpone a branch until its conversation has `tokens`."""
        others = [each for each in self._postponed.get(request.session) or () if not each.is_behind(request)]
        postponed = [*others, _Postponed(request.kept_nodes[-1], len(request.kept_nodes), tokens)]
        self._postponed.put(request.session, postponed[-_MOST_POSTPONED:])

    def is_postponed(self, request: SentRequest) -> bool:
        """Return whether it is too early to try the branch of a request again."""
        postponed = self._postponed.get(request.session) or ()
        return any(each.is_behind(request) and request.state.history.tokens < each.tokens for each in postponed)


def is_one_branch(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """Return whether one of two chains extends the other."""
    return count_shared_nodes(one, other) == min(len(one), len(other))
