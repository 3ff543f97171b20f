"""The metrics of a running server, in Prometheus' text format.

No label takes values that a client can choose without bound: of models, the first hundred that answered have
their own, the others are `other`.
"""

import os
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from proxy import __version__
from proxy.engine.runtime import EngineBus
from proxy.engine.stages.shadow import ShadowEnded
from proxy.model.events import (
    AgentNudgedEvent,
    AnswerRead,
    AuxiliaryEnded,
    CacheDiffers,
    CallUnreadableEvent,
    CeilingExceededEvent,
    CeilingUnreachable,
    DoomLoopDetectedEvent,
    EpochOpened,
    Event,
    ExchangeRecorded,
    Planned,
    ReasoningRemoved,
    RungFailedEvent,
    SessionIdleEvent,
    SessionsErased,
    SilentOverflowSeen,
    SummaryAddedEvent,
    SummaryWasted,
    WebhookEnded,
)
from proxy.model.log import SHADOW, ArchiveHealth
from proxy.model.search import IndexHealth
from proxy.telemetry.metric_names import METRICS

OTHER_MODELS = "other"
_MOST_MODELS = 100

_CALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BUCKETS = {"palimpsest_overhead_seconds": _OVERHEAD_BUCKETS}


class DiskUse(NamedTuple):
    """What the log takes on its disk, what is left there, and what its database may take (0: no limit); in bytes."""

    database: int = 0
    wal: int = 0
    journal: int = 0
    free: int = 0
    limit: int = 0


def measure_disk(log: Path, limit: int = 0) -> DiskUse:
    """Return the sizes of a log's files, 0 for one that is not there. Takes some hundredths of a millisecond."""
    database, wal, journal = (_measure(log.with_name(log.name + suffix)) for suffix in ("", "-wal", ".journal"))
    try:
        found = os.statvfs(log.parent)
    except OSError:
        return DiskUse(database, wal, journal, limit=limit)
    return DiskUse(database, wal, journal, found.f_bavail * found.f_frsize, limit)


def _measure(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


class _Seconds:
    """A histogram of seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def render(self, name: str, text: str) -> Metric:
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(name, text)
        family.add_metric([], buckets, self._sum)
        return family


class Metrics(Collector):
    """Counts events. The state of the log and of tasks is read, and the text rendered, only for a scrape."""

    def __init__(
        self,
        health: Callable[[], ArchiveHealth],
        in_flight: Callable[[], int],
        shortages: Callable[[], int] = lambda: 0,
        index: Callable[[], IndexHealth] = IndexHealth,
        *,
        disk: Callable[[], DiskUse] = DiskUse,
        circuits: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._health = health
        self._in_flight = in_flight
        self._shortages = shortages
        self._index = index
        self._disk = disk
        self._circuits = circuits
        self._models: set[str] = set()
        # By the metric's name and the values of its labels. A metric without labels is exposed from the start, as 0.
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            name: {} if labels else {(): 0.0} for _, name, _, labels in METRICS
        }
        self._values["palimpsest_context_tokens"] = {("client",): 0.0, ("upstream",): 0.0}
        self._seconds = {
            name: _Seconds(_BUCKETS.get(name, _CALL_BUCKETS)) for kind, name, _, _ in METRICS if kind == "seconds"
        }
        self._counters: Mapping[type[Event], Callable[[Any], None]] = {
            ExchangeRecorded: self._count_exchange,
            CallUnreadableEvent: lambda event: self._add("palimpsest_unread_answers"),
            AnswerRead: self._count_answer,
            Planned: self._count_plan,
            EpochOpened: self._count_epoch,
            RungFailedEvent: lambda event: self._add("palimpsest_failed_rungs", event.rung),
            CeilingUnreachable: lambda event: self._add("palimpsest_ceilings_unreachable"),
            CeilingExceededEvent: self._count_excess,
            ReasoningRemoved: lambda event: self._add("palimpsest_removed_reasoning", count=event.messages),
            SilentOverflowSeen: lambda event: self._add("palimpsest_silent_overflows", event.upstream, event.kind),
            CacheDiffers: lambda event: self._add("palimpsest_unlike_caches", event.upstream),
            AuxiliaryEnded: self._count_auxiliary,
            SummaryAddedEvent: lambda event: self._add("palimpsest_summaries", event.kind, str(event.level)),
            DoomLoopDetectedEvent: lambda event: self._add(
                "palimpsest_doom_loops", "same" if event.has_same_output else "other"
            ),
            AgentNudgedEvent: lambda event: self._add("palimpsest_nudges", str(event.attempt)),
            SessionIdleEvent: lambda event: self._add("palimpsest_idle_sessions"),
            SessionsErased: self._count_erased,
            WebhookEnded: lambda event: self._add("palimpsest_webhooks", event.host, event.verdict),
            ShadowEnded: lambda event: self._add(
                "palimpsest_shadow_comparisons", self._label_model(event.model), event.verdict
            ),
            SummaryWasted: lambda event: self._add("palimpsest_wasted_tokens", count=event.cost),
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._values["palimpsest_build_info"][__version__, platform.python_version()] = 1

    def subscribe(self, bus: EngineBus) -> None:
        """Count all events of a bus that have a metric."""
        for kind, count in self._counters.items():
            bus.subscribe(kind, count)

    def count(self, event: Event) -> None:
        """Count one event. Raises KeyError if its type has no metric."""
        self._counters[type(event)](event)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; prometheus_client calls this."""
        health, index = self._health(), self._index()
        for name, value in (
            ("palimpsest_tasks", self._in_flight()),
            ("palimpsest_descriptor_shortages", self._shortages()),
            ("palimpsest_log_pending_records", health.pending),
            ("palimpsest_log_pending_bytes", health.pending_bytes),
            ("palimpsest_log_dropped_records", health.dropped),
            ("palimpsest_log_degraded", int(bool(health.problem))),
            ("palimpsest_index_behind_records", index.behind),
            ("palimpsest_index_behind_seconds", index.behind_seconds),
            ("palimpsest_index_bytes", index.size),
            ("palimpsest_index_vectors", index.vectors),
            ("palimpsest_index_passages_unexamined", index.without_vectors),
            ("palimpsest_index_rebuilding", int(index.is_rebuilding)),
        ):
            self._values[name][()] = value
        disk = self._disk()
        self._values["palimpsest_disk_free_bytes"][()] = disk.free
        self._values["palimpsest_log_max_bytes"][()] = disk.limit
        for file, size in (("database", disk.database), ("wal", disk.wal), ("journal", disk.journal)):
            self._values["palimpsest_log_bytes"][file,] = size
        for name, is_open in self._circuits().items():
            self._values["palimpsest_upstream_circuit_open"][name,] = int(is_open)
        for kind, name, text, labels in METRICS:
            if kind == "seconds":
                yield self._seconds[name].render(name, text)
                continue
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
            for values, count in self._values[name].items():
                family.add_metric(values, count)
            yield family

    def _add(self, name: str, *labels: str, count: float = 1) -> None:
        values = self._values[name]
        values[labels] = values.get(labels, 0.0) + count

    def _count_exchange(self, event: ExchangeRecorded) -> None:
        """Count a client's call at its final round. `_count_auxiliary` counts our own calls."""
        if not event.is_final or event.kind == "auxiliary":
            return
        labels = (event.kind, event.wire, event.upstream, str(event.status), event.completeness)
        self._add("palimpsest_exchanges", *labels)
        self._add("palimpsest_request_bytes", count=event.request_size)
        self._add("palimpsest_response_bytes", count=event.received_size)
        if event.first_byte_s:
            self._seconds["palimpsest_first_byte_seconds"].add(event.first_byte_s)
        self._seconds["palimpsest_exchange_seconds"].add(event.total_s)
        if event.overhead_s is not None:
            self._seconds["palimpsest_overhead_seconds"].add(event.overhead_s)

    def _count_answer(self, event: AnswerRead) -> None:
        """Count the usage of a round, what it cost, what managing saved, and what was missed of the cache."""
        ended, usage = event.round, event.usage
        if ended is None:  # an earlier process counted it
            return
        label, kind = self._label_model(ended.model), "shadow" if event.exchange.endswith(SHADOW) else ended.kind
        counts = {"input": usage.input, "cached": usage.cached, "written": usage.written, "output": usage.output}
        for name, count in counts.items():
            if count is not None:
                self._add("palimpsest_usage_tokens", kind, label, name, count=count)
        if (money := event.price()) is not None:
            self._add("palimpsest_spent_money", kind, label, count=money)
        elif ended.kind != "recorded" and (usage.input, usage.output) != (None, None):
            self._add("palimpsest_unpriced_calls", label)
        if event.cause or event.saved is not None:
            self._count_cache(event)

    def _label_model(self, model: str) -> str:
        """Return the label of a model: clients can name any, and each label takes memory here and in Prometheus."""
        if model not in self._models and len(self._models) < _MOST_MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER_MODELS

    def _count_plan(self, event: Planned) -> None:
        """Count a plan. Its tokens count only if both those of the client and those sent are known."""
        plan = event.plan
        self._add("palimpsest_planned_calls", plan.rung)
        self._add("palimpsest_saved_tokens", count=plan.saving or 0.0)
        if plan.tokens_client is not None and plan.tokens_upstream is not None:
            self._add("palimpsest_context_tokens", "client", count=plan.tokens_client)
            self._add("palimpsest_context_tokens", "upstream", count=plan.tokens_upstream)

    def _count_cache(self, event: AnswerRead) -> None:
        self._add("palimpsest_corrected_saved_tokens", count=event.saved or 0.0)
        money = event.saved_money or 0.0  # two counters, since a gauge would fall to 0 with each restart
        self._add("palimpsest_saved_money" if money >= 0 else "palimpsest_lost_money", count=abs(money))
        if event.cause:
            self._add("palimpsest_cache_misses", event.cause)
            self._add("palimpsest_cache_missed_tokens", event.cause, count=event.missed)
            self._add("palimpsest_cache_missed_cost_tokens", event.cause, count=event.missed_cost)
            self._add("palimpsest_cache_missed_money", event.cause, count=event.missed_money or 0.0)

    def _count_excess(self, event: CeilingExceededEvent) -> None:
        self._add("palimpsest_calls_above_ceiling")
        self._add("palimpsest_tokens_above_ceiling", count=event.tokens - event.usable)

    def _count_epoch(self, event: EpochOpened) -> None:
        if event.epoch.why == "refused":
            self._add("palimpsest_refused_epochs")
        else:
            self._add("palimpsest_epochs", event.epoch.why)

    def _count_auxiliary(self, event: AuxiliaryEnded) -> None:
        own = "shadow" if event.exchange.endswith(SHADOW) else "auxiliary"
        kind = own if event.made is None else "embedding"
        self._add(f"palimpsest_{kind}_calls", event.upstream, event.verdict)
        self._add(f"palimpsest_{kind}_tokens", count=event.cost)
        if kind == "auxiliary":
            self._seconds["palimpsest_auxiliary_seconds"].add(event.seconds)
        elif event.made is not None:
            self._add("palimpsest_embedded_texts", count=event.made)

    def _count_erased(self, event: SessionsErased) -> None:
        self._add("palimpsest_erased_sessions", event.cause, count=event.count)
        self._add("palimpsest_erased_bytes", event.cause, count=event.bytes)
