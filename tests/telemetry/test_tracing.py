"""Traces: what a span says of a call, how it continues the client's trace, and that a collector delays nothing."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead, CallUnreadableEvent, EpochOpened, ExchangeRecorded, Planned
from proxy.model.exchange import Headers, Usage
from proxy.telemetry.policy import TelemetryPolicy
from proxy.telemetry.tracing import ReportingExporter, Tracing
from proxy.wire import FORMATS
from tests.store.samples import make_epoch
from tests.support.scripted import ScriptedUpstream, answer, request
from tests.support.server_process import CHAT, running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTINUED: Headers = ((b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", b"vendor=1"))
RECORDED = ExchangeRecorded(
    *("e1", "s1", "managed", "chat_completions", "main", 200, "complete", 10, 20, 0.1, 0.2),
    is_readable=True,
    model="gpt-5",
    overhead_s=0.003,
)


class Traced:
    """Spans in memory."""

    def __init__(self, *, capture_content: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.tasks = TaskRunner()
        self.bus = EngineBus(self.tasks)
        servers = {"main": "https://api.openai.com/v1", "claude": "https://api.anthropic.com"}
        self.tracing = Tracing(
            TelemetryPolicy("http://none", capture_content=capture_content), servers, SimpleSpanProcessor(self.exporter)
        )
        self.tracing.subscribe(self.bus)

    def send(self, *headers: tuple[bytes, bytes], exchange: str = "e1", body: bytes = b"") -> dict[bytes, bytes]:
        """The headers of a request as they leave."""
        unused: Any = None
        form = FORMATS["chat_completions"]
        call = OpenExchange(exchange, unused, unused, form, "main", unused, CappedBuffer(1), ())
        call.arrived = time.monotonic() - 0.5
        return dict(self.tracing.add_headers(call, ((b"host", b"x"), *headers), body))

    @property
    def span(self) -> ReadableSpan:
        """The only span."""
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def traced() -> Traced:
    """Spans in memory."""
    return Traced()


def test_a_call_is_a_span_with_the_attributes_of_the_conventions(traced: Traced) -> None:
    traced.send()
    opened = make_epoch("ep1", session="s1", exchange="e1")
    traced.bus.publish(EpochOpened(replace(opened, why="soft", tokens_before=900, tokens_after=300)))
    plan = Plan("e1", 0, "gpt-5", "epoch", "ep1", tokens_client=900, tokens_upstream=300)
    traced.bus.publish(Planned("s1", plan))
    traced.bus.publish(replace(RECORDED, is_final=False))
    traced.bus.publish(AnswerRead("e1", 0, Usage(100, 2, 100), is_hidden=True))
    traced.bus.publish(RECORDED)
    assert traced.exporter.get_finished_spans() == (), "the usage of the last round is not known yet"
    traced.bus.publish(AnswerRead("e1", 1, Usage(210, 5, 156, reasoning=3), finish="stop,length", answer=b"{}"))
    span = traced.span
    assert (span.name, span.kind.name, span.status.status_code) == ("chat gpt-5", "CLIENT", StatusCode.UNSET)
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.conversation.id": "s1",
        "gen_ai.conversation.compacted": True,
        "gen_ai.response.time_to_first_chunk": 0.1,
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 310,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 256,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "server.address": "api.openai.com",
        "server.port": 443,
        "http.response.status_code": 200,
        "palimpsest.exchange.id": "e1",
        "palimpsest.kind": "managed",
        "palimpsest.upstream": "main",
        "palimpsest.completeness": "complete",
        "palimpsest.rung": "epoch",
        "palimpsest.epoch.id": "ep1",
        "palimpsest.client_tokens": 900,
        "palimpsest.sent_tokens": 300,
        "palimpsest.overhead_seconds": 0.003,
    }
    assert [(event.name, dict(event.attributes or {})["palimpsest.tokens_after"]) for event in span.events] == [
        ("gen_ai.conversation.compacted", 300)
    ]
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0.5e9 <= span.end_time - span.start_time < 60e9, "it begins when the whole request was there"
    assert span.resource.attributes["service.name"] == "palimpsest"


BODY = json.dumps(
    {
        "model": "gpt-5",
        "messages": [
            {"role": "user", "content": "x" * 100_000},
            {"role": "user", "content": "read a"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ],
    }
).encode()
ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}'


@pytest.mark.parametrize("is_wanted", [False, True])
async def test_a_span_has_content_only_where_that_is_wanted(is_wanted: bool) -> None:
    traced = Traced(capture_content=is_wanted)
    traced.send(body=BODY)
    traced.bus.publish(RECORDED)
    traced.bus.publish(AnswerRead("e1", 0, answer=ANSWER, finish="stop"))
    await traced.tasks.finish(10.0)
    attributes = dict(traced.span.attributes or {})
    content = {name: value for name, value in attributes.items() if "messages" in name}
    if not is_wanted:
        assert content == {}
        return
    assert json.loads(str(content.pop("gen_ai.input.messages"))) == [
        {"role": "user", "parts": [{"type": "text", "content": "read a"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "read", "arguments": "{}"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "found"}]},
    ]
    assert json.loads(str(content.pop("gen_ai.output.messages"))) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}
    ]
    assert content == {"palimpsest.input.messages_left_out": 1}


async def test_content_that_cannot_be_described_leaves_the_span() -> None:
    traced = Traced(capture_content=True)
    traced.send(body=b"no JSON")
    traced.bus.publish(RECORDED)
    traced.bus.publish(AnswerRead("e1", 0, answer=b"no JSON"))
    await traced.tasks.finish(10.0)
    assert traced.span.name == "chat gpt-5"


def test_the_trace_of_the_client_goes_on_to_the_upstream(traced: Traced) -> None:
    sent = traced.send(*CONTINUED)
    again = traced.send(*CONTINUED)
    traced.bus.publish(replace(RECORDED, is_readable=False))
    span = traced.span
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert sent == {
        b"host": b"x",
        b"traceparent": f"00-{TRACE}-{span.context.span_id:016x}-01".encode(),
        b"tracestate": b"vendor=1",
    }
    assert again == sent, "a further round of a call is in the same span"


@pytest.mark.parametrize("value", [b"nonsense", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff"])
def test_a_trace_that_is_not_valid_begins_anew(traced: Traced, value: bytes) -> None:
    sent = traced.send((b"traceparent", value))
    assert TRACE.encode() not in sent[b"traceparent"]
    assert len(sent[b"traceparent"]) == 55
    twice = traced.send(*CONTINUED, (b"traceparent", value), exchange="e2")
    assert TRACE.encode() not in twice[b"traceparent"]


def test_a_client_that_does_not_sample_is_not_traced_and_still_named(traced: Traced) -> None:
    sent = traced.send((b"traceparent", f"00-{TRACE}-{PARENT}-00".encode()))
    traced.bus.publish(replace(RECORDED, is_readable=False))
    assert traced.exporter.get_finished_spans() == ()
    assert sent[b"traceparent"].startswith(f"00-{TRACE}-".encode())
    assert sent[b"traceparent"].endswith(b"-00")


def test_failures_are_errors_and_our_own_calls_have_spans_of_their_own(traced: Traced) -> None:
    traced.send()
    traced.bus.publish(replace(RECORDED, status=529, upstream="claude", wire="anthropic_messages", is_final=False))
    traced.bus.publish(replace(RECORDED, status=529, upstream="claude", wire="anthropic_messages"))
    traced.bus.publish(CallUnreadableEvent(exchange="e1", error="no JSON"))
    traced.bus.publish(replace(RECORDED, exchange="x1", kind="auxiliary", is_readable=False, total_s=2.0))
    traced.bus.publish(replace(RECORDED, exchange="p1", kind="passthrough", wire="", is_readable=False, status=0))
    traced.bus.publish(replace(RECORDED, exchange="f1", completeness="failed", is_readable=False, status=0))
    failed, own, passed, unreached = traced.exporter.get_finished_spans()
    assert failed.attributes is not None
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes["error.type"], failed.attributes["gen_ai.provider.name"]) == ("529", "anthropic")
    assert own.attributes is not None
    assert (own.name, own.attributes["palimpsest.kind"], own.parent) == ("chat gpt-5", "auxiliary", None)
    assert (own.end_time or 0) - (own.start_time or 0) == 2_000_000_000
    assert passed.attributes is not None
    assert "gen_ai.operation.name" not in passed.attributes
    assert unreached.attributes is not None
    assert unreached.attributes["error.type"] == "failed"


def test_spans_that_wait_end_with_the_server_and_are_bounded(traced: Traced) -> None:
    for number in range(5000):
        traced.send(exchange=f"e{number}")
    assert len(traced.exporter.get_finished_spans()) == 5000 - 4096
    traced.bus.publish(replace(RECORDED, exchange="e4999"))
    traced.tracing.close()
    assert len(traced.exporter.get_finished_spans()) == 5000


class Collector(HTTPServer):
    """A receiver of OTLP over HTTP on loopback, or one that never responds."""

    def __init__(self, *, is_dead: bool = False) -> None:
        self.requests: list[tuple[str, str, ExportTraceServiceRequest]] = []
        self.is_dead = is_dead
        self.release = threading.Event()
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Receiver(BaseHTTPRequestHandler):
    """One request to the collector."""

    server: Collector

    def do_POST(self) -> None:
        """Take spans."""
        if self.server.is_dead:
            self.server.release.wait(60)
            return
        body = self.rfile.read(int(self.headers["content-length"]))
        found = ExportTraceServiceRequest.FromString(body)
        self.server.requests.append((self.path, self.headers["x-key"], found))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def collecting(*, is_dead: bool = False) -> Iterator[Collector]:
    """A collector in a thread."""
    with Collector(is_dead=is_dead) as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield collector
        finally:
            collector.release.set()
            collector.shutdown()
            thread.join()


async def test_a_server_sends_spans_to_its_collector_and_the_trace_to_its_upstream(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        upstream.answer_with(answer(b'{"id":"x","usage":{"prompt_tokens":5}}', "Content-Type: application/json"))
        with collecting() as collector:
            telemetry: dict[str, Any] = {"telemetry.endpoint": collector.url, "telemetry.headers": {"x-key": "k"}}
            async with running(upstream, tmp_path, **telemetry) as server:
                async with await server.connect() as client:
                    traceparent = f"Traceparent: {CONTINUED[0][1].decode()}"
                    client.send(request("POST", CHAT, traceparent, body=b'{"model":"gpt-5","messages":[]}'))
                    assert (await client.read_answer()).status == 200
                server.tell()
                code, said = await server.end()
            (forwarded,) = upstream.requests
    assert (code, said) == (0, "")
    ((path, key, found),) = collector.requests
    assert (path, key) == ("/v1/traces", "k")
    (span,) = found.resource_spans[0].scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("chat gpt-5", TRACE)
    assert forwarded.find(b"traceparent") == f"00-{TRACE}-{span.span_id.hex()}-01".encode()


async def test_a_collector_that_does_not_respond_delays_neither_calls_nor_the_end(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        upstream.answer_with(answer(b'{"id":"x"}', "Content-Type: application/json"))
        with collecting(is_dead=True) as collector:
            async with running(upstream, tmp_path, **{"telemetry.endpoint": collector.url}) as server:
                async with await server.connect() as client:
                    async with asyncio.timeout(30):
                        for _ in range(20):
                            client.send(request("POST", CHAT, body=b'{"model":"gpt-5","messages":[]}'))
                            assert (await client.read_answer()).status == 200
                server.tell()
                assert (await server.end(60))[0] == 0
    assert await server.completeness() == ["complete"] * 20


class FailingExporter(InMemorySpanExporter):
    """A collector that takes nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Refuse."""
        return SpanExportResult.FAILURE


def test_a_collector_that_takes_nothing_is_told_with_what_to_check(caplog: pytest.LogCaptureFixture) -> None:
    exporter = ReportingExporter(FailingExporter(), "http://collector:4318")
    assert exporter.export(()) is SpanExportResult.FAILURE
    exporter.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "the collector at http://collector:4318 took no spans, which are lost; check telemetry.endpoint"
    ]


def test_nothing_of_opentelemetry_is_imported_where_it_is_off() -> None:
    program = "import sys, proxy.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_end_waits_two_seconds_at_most_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(SimpleSpanProcessor):
        """A queue that cannot be emptied."""

        def shutdown(self) -> None:
            """Wait for a collector that never responds."""
            released.wait(60)

    released = threading.Event()
    monkeypatch.setattr("proxy.telemetry.tracing.CLOSE_SECONDS", 0.01)
    tracing = Tracing(TelemetryPolicy("http://none"), {}, Stuck(InMemorySpanExporter()))
    closing = threading.Thread(target=tracing.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    released.set()
