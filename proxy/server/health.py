"""Liveness, readiness and Prometheus metrics of a running server, and which upstreams fail now.

All responses come from memory; nothing here waits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.engine.runtime import EventBus
from proxy.model.events import (
    AuxiliaryEnded,
    CacheDiffers,
    CacheUsed,
    CeilingExceeded,
    CeilingUnreachable,
    EmbeddingEnded,
    EpochOpened,
    EpochRefused,
    Event,
    ExchangeRecorded,
    Nudged,
    Planned,
    ReadingFailed,
    ReasoningRemoved,
    RungFailed,
    SessionsErased,
    SessionWentIdle,
    SilentOverflowSeen,
    SummaryAdded,
    SummaryWasted,
)
from proxy.model.log import ArchiveHealth
from proxy.model.search import IndexHealth

OPEN_AFTER = 3
"""The number of failures in a row that open a circuit."""

_SERVER_ERROR = 500
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_Kind = Literal["counter", "gauge", "seconds"]


class _Seconds:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def render(self, name: str, text: str) -> Metric:
        total, buckets = 0, []
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(name, text)
        family.add_metric([], buckets, self._sum)
        return family


# The metrics in the order of their output: kind, name, help text, labels.
_METRICS: tuple[tuple[_Kind, str, str, tuple[str, ...]], ...] = (
    (
        "counter",
        "palimpsest_exchanges",
        "Client calls by how they ended.",
        ("kind", "wire", "upstream", "status", "completeness"),
    ),
    ("counter", "palimpsest_request_bytes", "Bytes of request bodies.", ()),
    ("counter", "palimpsest_response_bytes", "Bytes of response bodies.", ()),
    ("counter", "palimpsest_unread_answers", "Recorded responses that could not be read.", ()),
    ("seconds", "palimpsest_first_byte_seconds", "From the whole request to the first byte.", ()),
    ("seconds", "palimpsest_exchange_seconds", "From the whole request to the end of the response.", ()),
    ("gauge", "palimpsest_tasks", "Tasks under way.", ()),
    (
        "counter",
        "palimpsest_descriptor_shortages",
        "How often idle connections were closed because hardly a file descriptor was free.",
        (),
    ),
    ("counter", "palimpsest_epochs", "Epochs by why they were opened.", ("why",)),
    ("counter", "palimpsest_planned_calls", "Calls of which it was decided what to send, by what was sent.", ("rung",)),
    ("counter", "palimpsest_failed_rungs", "Fallback levels that failed.", ("rung",)),
    ("counter", "palimpsest_context_tokens", "Tokens of counted calls, as made and as sent.", ("side",)),
    ("counter", "palimpsest_ceilings_unreachable", "Sessions that cannot be cut to their ceiling.", ()),
    ("counter", "palimpsest_refused_epochs", "Epochs whose requests an upstream refused.", ()),
    ("counter", "palimpsest_removed_reasoning", "Messages that are sent without their signed reasoning.", ()),
    (
        "counter",
        "palimpsest_silent_overflows",
        "Requests too long for their model that an upstream accepted, by how that shows.",
        ("upstream", "kind"),
    ),
    ("counter", "palimpsest_unlike_caches", "Caches found to work not as the map of models says.", ("upstream",)),
    ("counter", "palimpsest_calls_above_ceiling", "Managed calls sent above their ceiling.", ()),
    ("counter", "palimpsest_tokens_above_ceiling", "By how many tokens, together.", ()),
    ("gauge", "palimpsest_saved_tokens", "Estimated saving so far, in tokens of uncached input.", ()),
    (
        "gauge",
        "palimpsest_corrected_saved_tokens",
        "Saving so far by the usage that came back, without auxiliary calls; negative for a loss.",
        (),
    ),
    ("gauge", "palimpsest_saved_money", "The same in money, of models whose prices are known.", ()),
    ("counter", "palimpsest_cache_misses", "Calls that read clearly less of the cache than expected.", ("cause",)),
    ("counter", "palimpsest_cache_missed_tokens", "Tokens that should have been read and were not.", ("cause",)),
    ("counter", "palimpsest_cache_missed_cost", "What that cost, in tokens of uncached input.", ("cause",)),
    ("counter", "palimpsest_cache_missed_money", "The same in money, of models whose prices are known.", ("cause",)),
    ("counter", "palimpsest_auxiliary_calls", "Calls of our own for summaries, by verdict.", ("upstream", "verdict")),
    (
        "counter",
        "palimpsest_summaries",
        "Summaries by what they were made of and how: 1 and 2 by a model, 3 without one.",
        ("kind", "level"),
    ),
    ("counter", "palimpsest_auxiliary_tokens", "What they cost, in tokens of uncached input.", ()),
    ("counter", "palimpsest_wasted_tokens", "The part of it that went into summaries never used.", ()),
    ("counter", "palimpsest_nudges", "Nudges of agents that nobody prompted, by how many in a row.", ("attempt",)),
    ("counter", "palimpsest_idle_sessions", "Sessions that went idle because no nudge was answered.", ()),
    ("seconds", "palimpsest_auxiliary_seconds", "From the request to the end of its response.", ()),
    ("counter", "palimpsest_embedding_calls", "Calls of our own for vectors, by verdict.", ("upstream", "verdict")),
    ("counter", "palimpsest_embedding_tokens", "What they cost, in tokens of uncached input.", ()),
    ("counter", "palimpsest_embedded_texts", "Vectors that they brought, of passages and of queries.", ()),
    ("gauge", "palimpsest_log_pending_records", "Records not yet in log.db.", ()),
    ("gauge", "palimpsest_log_pending_bytes", "Bytes of those records.", ()),
    ("counter", "palimpsest_erased_sessions", "Sessions whose content was erased, by why.", ("cause",)),
    ("counter", "palimpsest_erased_bytes", "Bytes of it, as they were stored.", ("cause",)),
    ("counter", "palimpsest_log_dropped_records", "Records lost for good.", ()),
    ("gauge", "palimpsest_log_degraded", "1 while responses do not wait until their record is durable.", ()),
    ("gauge", "palimpsest_index_behind_records", "Records of the log that search does not find yet.", ()),
    ("gauge", "palimpsest_index_behind_seconds", "Age of the oldest call that search does not find yet.", ()),
    ("gauge", "palimpsest_index_bytes", "Size of the index.", ()),
    ("gauge", "palimpsest_index_vectors", "Passages with a vector.", ()),
    (
        "gauge",
        "palimpsest_index_without_vectors",
        "Passages of the same sessions of which it is not known yet whether they need one.",
        (),
    ),
    ("gauge", "palimpsest_index_rebuilding", "1 while the index is made anew and has not caught up.", ()),
)


class Metrics(Collector):
    """Counts events. The state of the log and of tasks is read, and the text rendered, only for a scrape."""

    def __init__(
        self,
        health: Callable[[], ArchiveHealth],
        in_flight: Callable[[], int],
        shortages: Callable[[], int] = lambda: 0,
        index: Callable[[], IndexHealth] = IndexHealth,
    ) -> None:
        self._health = health
        self._in_flight = in_flight
        self._shortages = shortages
        self._index = index
        # By the metric's name and the values of its labels. A metric without labels is exposed from the start, as 0.
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            name: {} if labels else {(): 0.0} for _, name, _, labels in _METRICS
        }
        self._values["palimpsest_context_tokens"] = {("client",): 0.0, ("upstream",): 0.0}
        self._seconds = {name: _Seconds() for kind, name, _, _ in _METRICS if kind == "seconds"}
        self._counters: Mapping[type[Event], Callable[[Any], None]] = {
            ExchangeRecorded: self._count_exchange,
            ReadingFailed: lambda event: self._add("palimpsest_unread_answers"),
            Planned: self._count_plan,
            CacheUsed: self._count_cache,
            EpochOpened: lambda event: self._add("palimpsest_epochs", event.why),
            RungFailed: lambda event: self._add("palimpsest_failed_rungs", event.rung),
            CeilingUnreachable: lambda event: self._add("palimpsest_ceilings_unreachable"),
            CeilingExceeded: self._count_excess,
            EpochRefused: lambda event: self._add("palimpsest_refused_epochs"),
            ReasoningRemoved: lambda event: self._add("palimpsest_removed_reasoning", count=event.messages),
            SilentOverflowSeen: lambda event: self._add("palimpsest_silent_overflows", event.upstream, event.kind),
            CacheDiffers: lambda event: self._add("palimpsest_unlike_caches", event.upstream),
            AuxiliaryEnded: self._count_auxiliary,
            EmbeddingEnded: self._count_embedding,
            SummaryAdded: lambda event: self._add("palimpsest_summaries", event.kind, str(event.level)),
            Nudged: lambda event: self._add("palimpsest_nudges", str(event.attempt)),
            SessionWentIdle: lambda event: self._add("palimpsest_idle_sessions"),
            SessionsErased: self._count_erased,
            SummaryWasted: lambda event: self._add("palimpsest_wasted_tokens", count=event.cost),
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def subscribe(self, bus: EventBus) -> None:
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
            ("palimpsest_index_without_vectors", index.without_vectors),
            ("palimpsest_index_rebuilding", int(index.is_rebuilding)),
        ):
            self._values[name][()] = value
        for kind, name, text, labels in _METRICS:
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

    def _count_plan(self, event: Planned) -> None:
        """Count a plan. Its tokens count only if both those of the client and those sent are known."""
        plan = event.plan
        self._add("palimpsest_planned_calls", plan.rung)
        self._add("palimpsest_saved_tokens", count=plan.saving or 0.0)
        if plan.tokens_client is not None and plan.tokens_upstream is not None:
            self._add("palimpsest_context_tokens", "client", count=plan.tokens_client)
            self._add("palimpsest_context_tokens", "upstream", count=plan.tokens_upstream)

    def _count_cache(self, event: CacheUsed) -> None:
        self._add("palimpsest_corrected_saved_tokens", count=event.saved or 0.0)
        self._add("palimpsest_saved_money", count=event.saved_money or 0.0)
        if event.cause:
            self._add("palimpsest_cache_misses", event.cause)
            self._add("palimpsest_cache_missed_tokens", event.cause, count=event.missed)
            self._add("palimpsest_cache_missed_cost", event.cause, count=event.cost)
            self._add("palimpsest_cache_missed_money", event.cause, count=event.money or 0.0)

    def _count_excess(self, event: CeilingExceeded) -> None:
        self._add("palimpsest_calls_above_ceiling")
        self._add("palimpsest_tokens_above_ceiling", count=event.tokens - event.usable)

    def _count_auxiliary(self, event: AuxiliaryEnded) -> None:
        self._add("palimpsest_auxiliary_calls", event.upstream, event.verdict)
        self._add("palimpsest_auxiliary_tokens", count=event.cost)
        self._seconds["palimpsest_auxiliary_seconds"].add(event.seconds)

    def _count_erased(self, event: SessionsErased) -> None:
        self._add("palimpsest_erased_sessions", event.cause, count=event.count)
        self._add("palimpsest_erased_bytes", event.cause, count=event.bytes)

    def _count_embedding(self, event: EmbeddingEnded) -> None:
        self._add("palimpsest_embedding_calls", event.upstream, event.verdict)
        self._add("palimpsest_embedding_tokens", count=event.cost)
        self._add("palimpsest_embedded_texts", count=event.made)


class UpstreamCircuit(msgspec.Struct, frozen=True, gc=False):
    """The failures of one upstream in a row, and the status of the last one, 0 where no response came."""

    failures: int = 0
    status: int = 0

    @property
    def state(self) -> Literal["closed", "open"]:
        """Whether the upstream fails."""
        return "open" if self.failures >= OPEN_AFTER else "closed"

    def describe(self) -> dict[str, object]:
        """Return it as `/-/ready` shows it."""
        told: dict[str, object] = {"circuit": self.state}
        if self.failures:
            told |= {"failures": self.failures, "last": f"status {self.status}" if self.status else "no response"}
        return told


class UpstreamCircuits:
    """The circuits of all upstreams. Reads the outcome of each call from the bus.

    A circuit is open once several calls in a row got no response or an error of the server (from 500 on), and closed
    again with the next response. It refuses no call: whether to try again is the client's decision, as it is without a
    proxy, and each upstream has its own connections and time limits, so that one that fails delays only its own calls.
    What the proxy asks by itself stops earlier, by model (`compaction/model_health`).
    """

    def __init__(self, names: Iterable[str], bus: EventBus) -> None:
        self._circuits = dict.fromkeys(names, UpstreamCircuit())
        bus.subscribe(ExchangeRecorded, self.note)

    def note(self, event: ExchangeRecorded) -> None:
        """Count a failure, or close the circuit. A call that told nothing of its upstream changes nothing."""
        if event.is_unreached or event.status >= _SERVER_ERROR:
            known = self._circuits.get(event.upstream, UpstreamCircuit())
            self._circuits[event.upstream] = UpstreamCircuit(known.failures + 1, event.status)
        elif event.status:
            self._circuits[event.upstream] = UpstreamCircuit()

    def describe(self) -> dict[str, dict[str, object]]:
        """Return the circuits by upstream, as `/-/ready` shows them."""
        return {name: circuit.describe() for name, circuit in self._circuits.items()}


_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

_RELEASING = "while this lasts, responses are not held back until they are durable"
_REFUSING = "while this lasts, calls are refused, and no response is completed before it is durable (store.on_failure)"


class Health:
    """The endpoints `/-/live`, `/-/ready` and `/-/metrics`.

    `problem` returns why recording does not keep its durability promise, or an empty text. Such a degraded server is
    still ready, since calls go on, unless it `refuses` them. A draining server is not ready. Nor is one that
    `is_starting`: it accepts calls, but the first would wait for what is still being loaded. `upstreams`
    describes the circuit of each upstream: one that fails makes the server no less ready for the others. `index`
    describes how current search is, which makes it no less ready either.
    """

    def __init__(
        self,
        problem: Callable[[], str],
        metrics: Metrics,
        *,
        refuses: bool,
        upstreams: Callable[[], Mapping[str, object]] = dict,
        index: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._problem = problem
        self._index = index
        self._upstreams = upstreams
        self._metrics = metrics
        self._refuses = refuses
        self.is_draining = False
        self.is_starting = False

    async def live(self, request: Request) -> Response:
        """Respond 200: the process runs."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Respond 200 if calls are served, else 503; with the reasons if the durability promise is suspended."""
        reasons, upstreams = [text for text in (self._problem(),) if text], dict(self._upstreams())

        def tell(status: str, told: list[str], code: int = 200) -> Response:
            shown = {"status": status, "reasons": told, "upstreams": upstreams, "index": dict(self._index())}
            return JSONResponse(shown, code)

        if self.is_draining:
            return tell("draining", ["shutting down", *reasons], 503)
        if self.is_starting:
            return tell("starting", ["loading the tokenizer", *reasons], 503)
        if reasons:
            reasons.append(_REFUSING if self._refuses else _RELEASING)
            return tell("degraded", reasons, 503 if self._refuses else 200)
        return tell("ready", [])

    async def metrics(self, request: Request) -> Response:
        """Respond with the metrics in Prometheus' text format."""
        return Response(self._metrics.render(), media_type=_EXPOSITION)
