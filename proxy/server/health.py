"""What an operator asks of a running server: does it live, is it ready, and Prometheus metrics.

Everything is answered from memory; nothing here waits.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.model.events import (
    AuxiliaryEnded,
    CeilingExceeded,
    CeilingUnreachable,
    EpochOpened,
    EpochRefused,
    ExchangeRecorded,
    Planned,
    ReadingFailed,
    RungFailed,
    SummaryAdded,
    SummaryWasted,
)
from proxy.model.log import ArchiveHealth

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


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


class Metrics(Collector):
    """Counts events; reads the state of log and tasks when asked. Names and text format are made then, too."""

    def __init__(
        self,
        health: Callable[[], ArchiveHealth],
        in_flight: Callable[[], int],
        shortages: Callable[[], int] = lambda: 0,
    ) -> None:
        self._health = health
        self._in_flight = in_flight
        self._shortages = shortages
        self._exchanges: Counter[tuple[str, str, str, str, str]] = Counter()
        self._unread = 0
        self._epochs: Counter[str] = Counter()
        self._rungs: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter(client=0, upstream=0)
        self._saved = 0.0
        self._unreachable = 0
        self._exceeded = 0
        self._refused = 0
        self._exceeded_tokens = 0
        self._auxiliary: Counter[tuple[str, str]] = Counter()
        self._auxiliary_cost = 0.0
        self._wasted = 0.0
        self._summaries: Counter[tuple[str, str]] = Counter()
        self._auxiliary_seconds = _Seconds()
        self._request_bytes = 0
        self._response_bytes = 0
        self._first_byte = _Seconds()
        self._total = _Seconds()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count_exchange(self, event: ExchangeRecorded) -> None:
        """Count a client's call, by its final round; calls of our own are counted by `count_auxiliary`."""
        if not event.is_final or event.kind == "auxiliary":
            return
        self._exchanges[(event.kind, event.wire, event.upstream, str(event.status), event.completeness)] += 1
        self._request_bytes += event.request_size
        self._response_bytes += event.received_size
        if event.first_byte_s:
            self._first_byte.add(event.first_byte_s)
        self._total.add(event.total_s)

    def count_unread(self, event: ReadingFailed) -> None:
        """Count a response that could not be read."""
        self._unread += 1

    def count_epoch(self, event: EpochOpened) -> None:
        """Count an epoch that was opened."""
        self._epochs[event.why] += 1

    def count_plan(self, event: Planned) -> None:
        """Count a decision. Tokens are those of requests of which both sides were counted."""
        plan = event.plan
        self._rungs[plan.rung] += 1
        self._saved += plan.saving or 0.0
        if plan.tokens_client is not None and plan.tokens_upstream is not None:
            self._tokens["client"] += plan.tokens_client
            self._tokens["upstream"] += plan.tokens_upstream

    def count_failed_rung(self, event: RungFailed) -> None:
        """Count a fallback level that failed."""
        self._failed[event.rung] += 1

    def count_unreachable(self, event: CeilingUnreachable) -> None:
        """Count a session whose ceiling is out of reach."""
        self._unreachable += 1

    def count_excess(self, event: CeilingExceeded) -> None:
        """Count a call above its ceiling."""
        self._exceeded += 1
        self._exceeded_tokens += event.tokens - event.usable

    def count_refusal(self, event: EpochRefused) -> None:
        """Count a refused epoch."""
        self._refused += 1

    def count_auxiliary(self, event: AuxiliaryEnded) -> None:
        """Count a call of our own."""
        self._auxiliary[(event.upstream, event.verdict)] += 1
        self._auxiliary_cost += event.cost
        self._auxiliary_seconds.add(event.seconds)

    def count_summary(self, event: SummaryAdded) -> None:
        """Count a summary."""
        self._summaries[(event.kind, str(event.level))] += 1

    def count_waste(self, event: SummaryWasted) -> None:
        """Count a summary that was never used."""
        self._wasted += event.cost

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Part of prometheus_client's Collector."""
        labels = ("kind", "wire", "upstream", "status", "completeness")
        exchanges = CounterMetricFamily("palimpsest_exchanges", "Client calls by how they ended.", labels=labels)
        for values, count in self._exchanges.items():
            exchanges.add_metric(values, count)
        yield exchanges
        yield CounterMetricFamily("palimpsest_request_bytes", "Bytes of request bodies.", value=self._request_bytes)
        yield CounterMetricFamily("palimpsest_response_bytes", "Bytes of response bodies.", value=self._response_bytes)
        yield CounterMetricFamily(
            "palimpsest_unread_answers", "Recorded responses that could not be read.", value=self._unread
        )
        yield self._first_byte.render("palimpsest_first_byte_seconds", "From the whole request to the first byte.")
        yield self._total.render("palimpsest_exchange_seconds", "From the whole request to the end of the response.")
        yield GaugeMetricFamily("palimpsest_tasks", "Tasks under way.", value=self._in_flight())
        yield CounterMetricFamily(
            "palimpsest_descriptor_shortages",
            "How often idle connections were closed because hardly a file descriptor was free.",
            value=self._shortages(),
        )
        yield from self._collect_contexts()
        yield from self._collect_auxiliary()
        yield from self._collect_log()

    def _collect_contexts(self) -> Iterable[Metric]:
        counts = (
            ("palimpsest_epochs", "Epochs by why they were opened.", "why", self._epochs),
            (
                "palimpsest_planned_calls",
                "Calls of which it was decided what to send, by what was sent.",
                "rung",
                self._rungs,
            ),
            ("palimpsest_failed_rungs", "Fallback levels that failed.", "rung", self._failed),
            ("palimpsest_context_tokens", "Tokens of counted calls, as made and as sent.", "side", self._tokens),
        )
        for name, text, label, counter in counts:
            family = CounterMetricFamily(name, text, labels=(label,))
            for value, count in counter.items():
                family.add_metric((value,), count)
            yield family
        yield CounterMetricFamily(
            "palimpsest_ceilings_unreachable", "Sessions that cannot be cut to their ceiling.", value=self._unreachable
        )
        yield CounterMetricFamily(
            "palimpsest_refused_epochs", "Epochs whose requests an upstream refused.", value=self._refused
        )
        yield CounterMetricFamily(
            "palimpsest_calls_above_ceiling", "Managed calls sent above their ceiling.", value=self._exceeded
        )
        yield CounterMetricFamily(
            "palimpsest_tokens_above_ceiling", "By how many tokens, together.", value=self._exceeded_tokens
        )
        yield GaugeMetricFamily(
            "palimpsest_saved_tokens", "Estimated saving so far, in tokens of uncached input.", value=self._saved
        )

    def _collect_auxiliary(self) -> Iterable[Metric]:
        text = "Calls of our own for summaries, by verdict."
        calls = CounterMetricFamily("palimpsest_auxiliary_calls", text, labels=("upstream", "verdict"))
        for values, count in self._auxiliary.items():
            calls.add_metric(values, count)
        yield calls
        text = "Summaries by what they were made of and how: 1 and 2 by a model, 3 without one."
        summaries = CounterMetricFamily("palimpsest_summaries", text, labels=("kind", "level"))
        for values, count in self._summaries.items():
            summaries.add_metric(values, count)
        yield summaries
        yield CounterMetricFamily(
            "palimpsest_auxiliary_tokens", "What they cost, in tokens of uncached input.", value=self._auxiliary_cost
        )
        yield CounterMetricFamily(
            "palimpsest_wasted_tokens", "The part of it that went into summaries never used.", value=self._wasted
        )
        yield self._auxiliary_seconds.render(
            "palimpsest_auxiliary_seconds", "From the request to the end of its response."
        )

    def _collect_log(self) -> Iterable[Metric]:
        health = self._health()
        yield GaugeMetricFamily("palimpsest_log_pending_records", "Records not yet in log.db.", value=health.pending)
        yield GaugeMetricFamily("palimpsest_log_pending_bytes", "Bytes of those records.", value=health.pending_bytes)
        yield CounterMetricFamily("palimpsest_log_dropped_records", "Records lost for good.", value=health.dropped)
        yield GaugeMetricFamily(
            "palimpsest_log_degraded", "1 while the log does not keep its promise.", value=int(bool(health.problem))
        )


_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

_RELEASING = "while this lasts, responses are not held back until they are durable"
_REFUSING = "while this lasts, calls are refused, and no response is completed before it is durable (store.on_failure)"


class Health:
    """The endpoints `/-/live`, `/-/ready` and `/-/metrics`.

    `problem` says why recording is not as promised (empty: it is). Degraded is still ready, since calls go on;
    `refuses` says that they do not. Draining is not ready, nor is a server that `is_starting`: it takes calls, of which
    the first would wait for what is still being loaded.
    """

    def __init__(self, problem: Callable[[], str], metrics: Metrics, *, refuses: bool) -> None:
        self._problem = problem
        self._metrics = metrics
        self._refuses = refuses
        self.is_draining = False
        self.is_starting = False

    async def live(self, request: Request) -> Response:
        """Respond 200: the process runs."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Respond 200 while calls are served, with the reasons if the durability promise is suspended; else 503."""
        reasons = [text for text in (self._problem(),) if text]
        if self.is_draining:
            return JSONResponse({"status": "draining", "reasons": ["shutting down", *reasons]}, 503)
        if self.is_starting:
            return JSONResponse({"status": "starting", "reasons": ["loading the tokenizer", *reasons]}, 503)
        if reasons:
            reasons.append(_REFUSING if self._refuses else _RELEASING)
            return JSONResponse({"status": "degraded", "reasons": reasons}, 503 if self._refuses else 200)
        return JSONResponse({"status": "ready", "reasons": []})

    async def metrics(self, request: Request) -> Response:
        """Respond with the metrics in Prometheus' text format."""
        return Response(self._metrics.render(), media_type=_EXPOSITION)
