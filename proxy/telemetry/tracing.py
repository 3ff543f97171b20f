"""Traces by OpenTelemetry: a span for each call of a client to a model, and for each of our own for a summary.

Attributes are those of the GenAI conventions; what they lack is below `palimpsest.`. A span continues the trace of the
client (`traceparent`), and what goes to the upstream names our span as its parent. Spans end behind calls; a thread
exports them from a bounded queue, so that a collector that does not respond delays nothing and costs only spans.

This module is imported only where `telemetry.endpoint` is set: its library takes 0.1 s and 4 MB.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy import __version__
from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.runtime import EngineBus
from proxy.model.events import AnswerRead, CallUnreadableEvent, EpochOpened, ExchangeRecorded, Planned
from proxy.model.exchange import Headers, Usage
from proxy.telemetry.policy import TelemetryPolicy
from proxy.telemetry.span_content import describe_request, describe_response
from proxy.wire import FORMATS, OWN_FORMAT
from proxy.wire.format import Format

_log = logging.getLogger("palimpsest.telemetry")

_PATH = "/v1/traces"
_MOST_SPANS = 4096
_MOST_BODIES = 256
_QUEUE = 2048
_BATCH = 256
_DELAY_MS = 2000
_EXPORT_SECONDS = 5
CLOSE_SECONDS = 2.0
_PROPAGATED = frozenset({b"traceparent", b"tracestate"})
_ERROR = 400
_PROVIDERS = {
    "openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "anthropic.com": "anthropic",
    "googleapis.com": "gcp.gen_ai",
    "amazonaws.com": "aws.bedrock",
    "mistral.ai": "mistral_ai",
    "groq.com": "groq",
    "deepseek.com": "deepseek",
    "x.ai": "x_ai",
}


class Tracing:
    """Makes the spans of calls from what the engine tells of them. `servers` are the URLs of upstreams by their name.

    `processor` gets the spans; None: they are exported as the policy says.
    """

    def __init__(
        self, policy: TelemetryPolicy, servers: Mapping[str, str], processor: SpanProcessor | None = None
    ) -> None:
        named = {"service.name": policy.service_name, "service.version": __version__}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor or _make_processor(policy))
        self._tracer = self._provider.get_tracer("palimpsest", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._servers = {name: _describe_server(url) for name, url in servers.items()}
        self._has_content = policy.capture_content
        self._sent: OrderedDict[str, tuple[Format, bytes]] = OrderedDict()  # what was sent, by exchange
        self._usage: OrderedDict[str, dict[str, int]] = OrderedDict()  # so far, by exchange
        self._open: OrderedDict[str, Span] = OrderedDict()  # by exchange
        self._ended: OrderedDict[str, tuple[Span, int]] = OrderedDict()  # and when, until the response was read

    def subscribe(self, bus: EngineBus) -> None:
        """Follow the calls of a bus."""
        bus.subscribe(Planned, self.note_plan)
        bus.subscribe(EpochOpened, self.note_epoch)
        bus.subscribe(ExchangeRecorded, self.note_round)
        bus.subscribe(AnswerRead, self.note_answer)
        bus.subscribe(CallUnreadableEvent, self.note_end)

    def add_headers(self, exchange: OpenExchange, headers: Headers, body: bytes = b"") -> Headers:
        """Return the headers of a request with our span as the parent of the upstream's. Begins the span.

        Further rounds of a call have the span of the first.
        """
        span = self._open.get(exchange.id)
        if span is None:
            waited = time.monotonic() - exchange.arrived if exchange.arrived else 0.0
            span = self._begin(exchange.id, time.time_ns() - int(waited * 1e9), self._read_parent(headers))
        if self._has_content and exchange.format is not None:
            self._sent[exchange.id] = exchange.format, body
            if len(self._sent) > _MOST_BODIES:
                self._sent.popitem(last=False)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        kept = tuple([header for header in headers if header[0] not in _PROPAGATED])
        return (*kept, *[(name.encode("latin-1"), value.encode("latin-1")) for name, value in carrier.items()])

    def note_plan(self, event: Planned) -> None:
        """Note what was sent, and whether it is a shortened conversation."""
        span, plan = self._open.get(event.exchange), event.plan
        if span is None:
            return
        span.set_attribute("palimpsest.rung", plan.rung)
        if plan.tokens_client is not None and plan.tokens_upstream is not None:
            span.set_attribute("palimpsest.client_tokens", plan.tokens_client)
            span.set_attribute("palimpsest.sent_tokens", plan.tokens_upstream)
        if plan.epoch:
            span.set_attribute("gen_ai.conversation.compacted", True)
            span.set_attribute("palimpsest.epoch.id", plan.epoch)

    def note_epoch(self, event: EpochOpened) -> None:
        """Add the opening of an epoch to the span of the call that it was opened for."""
        epoch, span = event.epoch, self._open.get(event.epoch.exchange)
        if span is not None and not epoch.is_reversion:
            sizes = {"palimpsest.tokens_before": epoch.tokens_before, "palimpsest.tokens_after": epoch.tokens_after}
            span.add_event("gen_ai.conversation.compacted", {"palimpsest.epoch.why": epoch.why, **sizes})

    def note_round(self, event: ExchangeRecorded) -> None:
        """Describe a call once it has ended. Its span ends when its response was read, with the time of now."""
        if not event.is_final:
            return
        now = time.time_ns()
        span = self._open.pop(event.exchange, None)
        if span is None:  # one of our own, or one that was never sent
            span = self._begin(event.exchange, now - int(event.total_s * 1e9))
            self._open.pop(event.exchange, None)
        self._describe(span, event)
        if event.is_readable:
            self._ended[event.exchange] = span, now
            if len(self._ended) > _MOST_SPANS:
                _, (oldest, ended) = self._ended.popitem(last=False)
                oldest.end(ended)
        else:
            span.end(now)

    def note_answer(self, event: AnswerRead) -> Awaitable[None] | None:
        """Add up what the provider counted. The first of several rounds are read before the call has ended."""
        span, _ = self._ended.get(event.exchange) or (self._open.get(event.exchange), 0)
        if span is not None:
            counts = self._usage.setdefault(event.exchange, {})
            for name, count in _list_usage(event.usage):
                counts[name] = counts.get(name, 0) + count
            span.set_attributes(dict(counts))
            if len(self._usage) > _MOST_SPANS:
                self._usage.popitem(last=False)
            if event.finish and not event.is_hidden:
                span.set_attribute("gen_ai.response.finish_reasons", event.finish.split(","))
        return None if event.is_hidden else self.note_end(event)

    def note_end(self, event: AnswerRead | CallUnreadableEvent) -> Awaitable[None] | None:
        """End the span of a call of whose response nothing more will be read.

        Its content, if it is wanted, is added in a thread.
        """
        span, ended = self._ended.pop(event.exchange, (None, 0))
        sent = self._sent.pop(event.exchange, None)
        self._usage.pop(event.exchange, None)
        if span is None:
            return None
        if sent is not None and span.is_recording() and isinstance(event, AnswerRead):
            return asyncio.to_thread(_end_with_content, span, ended, sent, event)
        span.end(ended)
        return None

    def close(self) -> None:
        """End and export what there is, for two seconds at most."""
        now = time.time_ns()
        for span in self._open.values():
            span.end(now)
        for span, ended in self._ended.values():
            span.end(ended)
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _begin(self, exchange: str, start: int, parent: Context | None = None) -> Span:
        span = self._tracer.start_span("call", parent or Context(), SpanKind.CLIENT, start_time=start)
        self._open[exchange] = span
        if len(self._open) > _MOST_SPANS:
            _, oldest = self._open.popitem(last=False)
            oldest.end()
        return span

    def _read_parent(self, headers: Headers) -> Context:
        """Return the context that a request names. One that is not valid begins a trace of its own."""
        named = [(name, value.decode("latin-1")) for name, value in headers if name in _PROPAGATED]
        parents = [value for name, value in named if name == b"traceparent"]
        if len(parents) != 1:
            return Context()
        states = [value for name, value in named if name == b"tracestate"]
        carrier = {"traceparent": parents[0]} | ({"tracestate": ",".join(states)} if states else {})
        return self._propagator.extract(carrier, Context())

    def _describe(self, span: Span, event: ExchangeRecorded) -> None:
        attributes: dict[str, str | int | float] = {
            "gen_ai.conversation.id": event.session,
            "palimpsest.exchange.id": event.exchange,
            "palimpsest.kind": event.kind,
            "palimpsest.upstream": event.upstream,
            "palimpsest.completeness": event.completeness,
        }
        server = self._servers.get(event.upstream, {})
        if event.wire or event.kind == "auxiliary":  # ours without a wire ask for vectors
            provider = _name_provider(str(server.get("server.address", "")), event.wire)
            operation = "chat" if event.wire else "embeddings"
            attributes |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": provider}
            if event.first_byte_s:
                attributes["gen_ai.response.time_to_first_chunk"] = event.first_byte_s
            if event.model:
                attributes["gen_ai.request.model"] = event.model
            span.update_name(f"{operation} {event.model}".rstrip())
        if event.status:
            attributes["http.response.status_code"] = event.status
        if event.overhead_s is not None:
            attributes["palimpsest.overhead_seconds"] = event.overhead_s
        if event.status >= _ERROR or event.completeness in ("failed", "truncated"):
            attributes["error.type"] = str(event.status) if event.status >= _ERROR else event.completeness
            span.set_status(StatusCode.ERROR)
        span.set_attributes({**attributes, **server})


def _end_with_content(span: Span, ended: int, sent: tuple[Format, bytes], event: AnswerRead) -> None:
    form, body = sent
    try:
        span.set_attributes(describe_request(form, body))
        span.set_attributes(describe_response(form, event.answer, event.finish))
    except (ValueError, TypeError, LookupError):
        _log.debug("the content of a call cannot be described", extra={"exchange": event.exchange})
    finally:
        span.end(ended)


class ReportingExporter(SpanExporter):
    """Exports spans, and says in our log when a collector does not take them."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch. Called by the thread of the queue."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            _log.warning("the collector at %s took no spans, which are lost; check telemetry.endpoint", self._endpoint)
        return result

    def shutdown(self) -> None:
        """End the export."""
        self._exporter.shutdown()


def _make_processor(policy: TelemetryPolicy) -> SpanProcessor:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # ReportingExporter says it in our words
    endpoint = f"{policy.endpoint.rstrip('/').removesuffix(_PATH)}{_PATH}"
    exporter = OTLPSpanExporter(endpoint, headers=dict(policy.headers), timeout=_EXPORT_SECONDS)
    place = urlsplit(policy.endpoint)
    return BatchSpanProcessor(
        ReportingExporter(exporter, f"{place.scheme}://{place.netloc.rpartition('@')[2]}"),
        max_queue_size=_QUEUE,
        schedule_delay_millis=_DELAY_MS,
        max_export_batch_size=_BATCH,
    )


def _describe_server(url: str) -> dict[str, str | int]:
    place = urlsplit(url)
    if not place.hostname:
        return {}
    return {"server.address": place.hostname, "server.port": place.port or (443 if place.scheme == "https" else 80)}


def _name_provider(host: str, wire: str) -> str:
    """Return the conventions' name of the provider at a host, else that of the API that it speaks."""
    for ending, provider in _PROVIDERS.items():
        if host == ending or host.endswith(f".{ending}"):
            return provider
    return FORMATS.get(wire, OWN_FORMAT).api


def _list_usage(usage: Usage) -> list[tuple[str, int]]:
    named = (
        ("gen_ai.usage.input_tokens", usage.input),
        ("gen_ai.usage.output_tokens", usage.output),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached),
        ("gen_ai.usage.cache_creation.input_tokens", usage.written),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning),
    )
    return [(name, count) for name, count in named if count is not None]
