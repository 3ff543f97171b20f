"""Live says that the server answers, ready whether calls are served and kept; metrics are Prometheus text."""

import json

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from proxy.engine.policy import EnginePolicy
from proxy.model.epoch import Plan as ContextPlan
from proxy.model.events import (
    AuxiliaryEnded,
    CacheUsed,
    CeilingExceeded,
    CeilingUnreachable,
    EmbeddingEnded,
    EpochOpened,
    ExchangeRecorded,
    Nudged,
    Planned,
    ReadingFailed,
    ReasoningRemoved,
    RungFailed,
    SessionWentIdle,
    SummaryAdded,
    SummaryWasted,
)
from proxy.model.log import ArchiveHealth
from proxy.model.search import IndexHealth
from proxy.server.health import Metrics
from tests.support.scripted import Message, ScriptedUpstream, request
from tests.support.serving import TOKEN, Plan, Served, serving

FULL = ArchiveHealth("disk full", 3, 4096, 2, 1)


def told(got: Message) -> tuple[int, str, list[str]]:
    """Status, state and reasons of an answer of `/-/ready`."""
    value = json.loads(got.body)
    return got.status, value["status"], value["reasons"]


@pytest.mark.parametrize("path", ["/-/live", "/-/ready"])
async def test_both_are_open_to_anybody_and_never_forwarded(
    served: Served, upstream: ScriptedUpstream, path: str
) -> None:
    assert (await served.ask(request("GET", path, host="localhost:1"))).status == 200
    assert (await served.ask(request("HEAD", path))).status == 200
    assert upstream.accepted == 0


async def test_a_server_that_serves_is_ready(served: Served) -> None:
    assert told(await served.ask(request("GET", "/-/ready"))) == (200, "ready", [])
    assert json.loads((await served.ask(request("GET", "/-/live"))).body) == {"status": "live"}


async def test_a_server_that_still_loads_lives_and_is_not_ready(served: Served) -> None:
    served.health.is_starting = True
    assert told(await served.ask(request("GET", "/-/ready"))) == (503, "starting", ["loading the tokenizer"])
    assert (await served.ask(request("GET", "/-/live"))).status == 200
    served.health.is_starting = False
    assert told(await served.ask(request("GET", "/-/ready")))[0] == 200


async def test_a_degraded_log_is_told_and_calls_go_on(served: Served) -> None:
    served.archive.health = FULL
    status, state, reasons = told(await served.ask(request("GET", "/-/ready")))
    assert (status, state, reasons[0]) == (200, "degraded", "disk full")
    assert "not held back until they are durable" in reasons[1]


async def test_a_degraded_log_is_not_ready_where_calls_are_refused(upstream: ScriptedUpstream) -> None:
    async with serving(Plan(upstream.url, engine=EnginePolicy(on_failure="refuse"))) as served:
        served.archive.health = FULL
        status, state, reasons = told(await served.ask(request("GET", "/-/ready")))
        assert (status, state) == (503, "degraded")
        assert "no response is completed before it is durable" in reasons[1]


async def test_a_server_that_is_shutting_down_lives_and_is_not_ready(served: Served) -> None:
    served.health.is_draining = True
    assert told(await served.ask(request("GET", "/-/ready"))) == (503, "draining", ["shutting down"])
    served.archive.health = FULL
    assert told(await served.ask(request("GET", "/-/ready")))[2] == ["shutting down", "disk full"]
    assert (await served.ask(request("GET", "/-/live"))).status == 200


async def test_metrics_are_prometheus_text(served: Served) -> None:
    served.archive.health = FULL
    got = await served.ask(request("GET", "/-/metrics", f"Authorization: Bearer {TOKEN}"))
    assert got.find(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
    assert b"\npalimpsest_log_degraded 1.0\n" in got.body


# --- metrics ----------------------------------------------------------------------------------------------------------

HEALTH = ArchiveHealth("", 1, 2, 3, 4)


def recorded(first_byte_s: float = 0.2, total_s: float = 0.7) -> ExchangeRecorded:
    """A call that ended well."""
    return ExchangeRecorded(
        "e", "s", "managed", "chat_completions", "openai", 200, "complete", 10, 20, first_byte_s, total_s
    )


def read(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample in the text, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_nothing_has_happened_at_the_start() -> None:
    told = read(Metrics(lambda: HEALTH, lambda: 7))
    assert told["palimpsest_request_bytes_total", ()] == 0
    assert told["palimpsest_exchange_seconds_count", ()] == 0
    assert told["palimpsest_tasks", ()] == 7
    assert not any(name == "palimpsest_exchanges_total" for name, _ in told)


def test_calls_are_counted_by_how_they_ended() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for _ in range(3):
        metrics.count(recorded())
    metrics.count(replace(recorded(), is_final=False))  # the client gets nothing of it
    labels = (
        ("completeness", "complete"),
        ("kind", "managed"),
        ("status", "200"),
        ("upstream", "openai"),
        ("wire", "chat_completions"),
    )
    told = read(metrics)
    assert told["palimpsest_exchanges_total", labels] == 3
    assert told["palimpsest_request_bytes_total", ()] == 30
    assert told["palimpsest_response_bytes_total", ()] == 60


def test_calls_of_our_own_are_counted_apart() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    metrics.count(replace(recorded(), kind="auxiliary"))
    metrics.count(AuxiliaryEnded("x1", "s", "openai", "m1", "answered", 70.5, 3.0))
    metrics.count(AuxiliaryEnded("x2", "s", "openai", "m2", "answered", 1.0, 4.0))
    metrics.count(AuxiliaryEnded("x3", "s", "openai", "m1", "failed", 0.0, 1.0))
    metrics.count(SummaryWasted("x1", "s", 20.5))
    for level in (1, 3, 3):
        metrics.count(SummaryAdded("r", "s", "x", "leaf", level, 900, 90))
    told = read(metrics)
    assert not any(name == "palimpsest_exchanges_total" for name, _ in told)
    assert told["palimpsest_first_byte_seconds_count", ()] == told["palimpsest_request_bytes_total", ()] == 0
    assert told["palimpsest_auxiliary_calls_total", (("upstream", "openai"), ("verdict", "answered"))] == 2
    assert told["palimpsest_auxiliary_calls_total", (("upstream", "openai"), ("verdict", "failed"))] == 1
    assert told["palimpsest_auxiliary_tokens_total", ()] == 71.5
    assert told["palimpsest_summaries_total", (("kind", "leaf"), ("level", "1"))] == 1
    assert told["palimpsest_summaries_total", (("kind", "leaf"), ("level", "3"))] == 2
    assert told["palimpsest_wasted_tokens_total", ()] == 20.5
    assert told["palimpsest_auxiliary_seconds_sum", ()] == 8.0


def test_vectors_are_counted_by_what_they_cost_and_what_came() -> None:
    health = IndexHealth(vectors=40, without_vectors=2)
    metrics = Metrics(lambda: HEALTH, lambda: 0, index=lambda: health)
    metrics.count(EmbeddingEnded("x1", "s", "openai", "e", "answered", 60, 70.5, 3.0))
    metrics.count(EmbeddingEnded("x2", "s", "openai", "e", "failed", 0, 1.5, 1.0))
    told = read(metrics)
    assert told["palimpsest_embedding_calls_total", (("upstream", "openai"), ("verdict", "answered"))] == 1
    assert told["palimpsest_embedding_calls_total", (("upstream", "openai"), ("verdict", "failed"))] == 1
    assert told["palimpsest_embedded_texts_total", ()] == 60
    assert told["palimpsest_embedding_tokens_total", ()] == 72.0
    assert told["palimpsest_index_vectors", ()] == 40
    assert told["palimpsest_index_without_vectors", ()] == 2


def test_managing_is_counted_by_few_labels() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for number in range(3):
        metrics.count(EpochOpened(f"e{number}", f"s{number}", "x", "soft", 900, 300))
        metrics.count(
            Planned(
                "s", ContextPlan(f"x{number}", 0, f"m{number}", "epoch", "e", "soft", "", 900, 300, 1000, 0.0, -2.5)
            )
        )
        metrics.count(RungFailed(f"x{number}", "s", "plan", f"why {number}"))
        metrics.count(CeilingExceeded(f"x{number}", f"s{number}", "m", 1100 + number, 1000, "it is"))
        metrics.count(CeilingUnreachable(f"x{number}", f"s{number}", "m", 900, 1000))
        metrics.count(ReasoningRemoved(f"x{number}", f"s{number}", "m", "e", number))
    metrics.count(EpochOpened("e", "s", "", "revert", 300, 900))
    metrics.count(Planned("s", ContextPlan("x", 0, "m", "original", tokens_client=50)))
    told = {name: value for name, value in read(metrics).items() if value}
    assert told["palimpsest_epochs_total", (("why", "soft"),)] == 3
    assert told["palimpsest_epochs_total", (("why", "revert"),)] == 1
    assert told["palimpsest_planned_calls_total", (("rung", "epoch"),)] == 3
    assert told["palimpsest_planned_calls_total", (("rung", "original"),)] == 1
    assert told["palimpsest_failed_rungs_total", (("rung", "plan"),)] == 3
    assert told["palimpsest_context_tokens_total", (("side", "client"),)] == 2700
    assert told["palimpsest_context_tokens_total", (("side", "upstream"),)] == 900
    assert told["palimpsest_saved_tokens", ()] == -7.5
    assert told["palimpsest_ceilings_unreachable_total", ()] == 3
    assert told["palimpsest_removed_reasoning_total", ()] == 3
    assert told["palimpsest_calls_above_ceiling_total", ()] == 3
    assert told["palimpsest_tokens_above_ceiling_total", ()] == 303


def test_nudges_are_counted_by_how_many_in_a_row() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for attempt in (1, 1, 2):
        metrics.count(Nudged("x", "s", attempt))
    metrics.count(SessionWentIdle("x", "s", 3))
    told = {name: value for name, value in read(metrics).items() if value}
    assert told["palimpsest_nudges_total", (("attempt", "1"),)] == 2
    assert told["palimpsest_nudges_total", (("attempt", "2"),)] == 1
    assert told["palimpsest_idle_sessions_total", ()] == 1


def test_misses_of_the_cache_are_counted_by_cause_and_losses_lower_the_saving() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    metrics.count(CacheUsed("x1", "s", saved=100.0, saved_money=0.5))
    metrics.count(CacheUsed("x2", "s", "epoch", 2000, 1800.0, 0.25, -300.0, -1.5))
    metrics.count(CacheUsed("x3", "s", "provider", 500, 450.0, None))
    told = {name: value for name, value in read(metrics).items() if value}
    for cause, missed, cost in (("epoch", 2000, 1800), ("provider", 500, 450)):
        labels = (("cause", cause),)
        assert told["palimpsest_cache_misses_total", labels] == 1
        assert told["palimpsest_cache_missed_tokens_total", labels] == missed
        assert told["palimpsest_cache_missed_cost_total", labels] == cost
    assert told["palimpsest_cache_missed_money_total", (("cause", "epoch"),)] == 0.25
    assert ("palimpsest_cache_missed_money_total", (("cause", "provider"),)) not in told
    assert told["palimpsest_corrected_saved_tokens", ()] == -200
    assert told["palimpsest_saved_money", ()] == -1


def test_seconds_fall_into_buckets_that_add_up() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for seconds in (0.05, 0.06, 1000.0):
        metrics.count(recorded(first_byte_s=0.0, total_s=seconds))
    told = read(metrics)
    counts = [
        told["palimpsest_exchange_seconds_bucket", (("le", bound),)] for bound in ("0.05", "0.1", "300.0", "+Inf")
    ]
    assert counts == [1, 2, 2, 3]
    assert told["palimpsest_exchange_seconds_sum", ()] == 1000.11
    assert told["palimpsest_first_byte_seconds_count", ()] == 0


def test_the_state_of_the_log_is_told() -> None:
    health = HEALTH
    metrics = Metrics(lambda: health, lambda: 0)
    metrics.count(ReadingFailed("e", "why"))
    told = read(metrics)
    assert told["palimpsest_unread_answers_total", ()] == 1
    assert told["palimpsest_log_pending_records", ()] == 1
    assert told["palimpsest_log_pending_bytes", ()] == 2
    assert told["palimpsest_log_dropped_records_total", ()] == 3
    assert told["palimpsest_log_degraded", ()] == 0
    health = ArchiveHealth("disk full", 0, 0, 0, 0)
    assert read(metrics)["palimpsest_log_degraded", ()] == 1
