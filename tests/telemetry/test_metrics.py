"""Metrics: what is counted, under names and labels that Prometheus' conventions ask for."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from proxy import __version__
from proxy.engine.stages.shadow import ShadowEnded, Verdict
from proxy.model.epoch import Plan as ContextPlan
from proxy.model.events import (
    AgentNudgedEvent,
    AnswerRead,
    AuxiliaryEnded,
    CallUnreadableEvent,
    CeilingExceededEvent,
    CeilingUnreachable,
    EpochOpened,
    ExchangeRecorded,
    Planned,
    ReasoningRemoved,
    RungFailedEvent,
    SessionIdleEvent,
    SummaryAddedEvent,
    SummaryWasted,
)
from proxy.model.exchange import Kind, Usage
from proxy.model.log import ArchiveHealth
from proxy.model.search import IndexHealth
from proxy.telemetry.metric_names import METRICS
from proxy.telemetry.metrics import DiskUse, Metrics, measure_disk
from tests.store.samples import make_epoch

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
        metrics.count(SummaryAddedEvent(exchange="x", summary="r", kind="leaf", level=level, covered=900, tokens=90))
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


def test_checks_of_shortened_calls_are_told_apart_from_summaries() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    metrics.count(AuxiliaryEnded("x1.shadow", "s", "openai", "m", "tool_call", 70.5, 3.0))
    metrics.count(AuxiliaryEnded("x2.shadow", "s", "openai", "m", "failed", 0.0, 3.0))
    verdicts: tuple[Verdict, ...] = ("same", "same", "uncompared")
    for verdict in verdicts:
        metrics.count(ShadowEnded("x1", "s", "openai", "m", verdict))
    told = read(metrics)
    assert told["palimpsest_shadow_calls_total", (("upstream", "openai"), ("verdict", "tool_call"))] == 1
    assert told["palimpsest_shadow_tokens_total", ()] == 70.5
    assert told["palimpsest_shadow_comparisons_total", (("model", "m"), ("verdict", "same"))] == 2
    assert told["palimpsest_shadow_comparisons_total", (("model", "m"), ("verdict", "uncompared"))] == 1
    assert told["palimpsest_auxiliary_seconds_count", ()] == told["palimpsest_auxiliary_tokens_total", ()] == 0


@pytest.mark.parametrize(("exchange", "kind"), [("x1", "auxiliary"), ("x1.shadow", "shadow")])
def test_their_usage_is_told_apart_too(exchange: str, kind: str) -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    ended = ExchangeRecorded(exchange, "s", "auxiliary", "w", "openai", 200, "complete", 1, 1, 0.1, 0.1, model="m")
    metrics.count(AnswerRead(exchange, 0, Usage(90, 5), round=ended, price=lambda: 0.5))
    told = read(metrics)
    assert told["palimpsest_spent_money_total", (("kind", kind), ("model", "m"))] == 0.5
    assert told["palimpsest_usage_tokens_total", (("kind", kind), ("model", "m"), ("type", "input"))] == 90


def test_vectors_are_counted_by_what_they_cost_and_what_came() -> None:
    health = IndexHealth(vectors=40, without_vectors=2)
    metrics = Metrics(lambda: HEALTH, lambda: 0, index=lambda: health)
    metrics.count(AuxiliaryEnded("x1", "s", "openai", "e", "answered", 70.5, 3.0, 60))
    metrics.count(AuxiliaryEnded("x2", "s", "openai", "e", "failed", 1.5, 1.0, 0))
    told = read(metrics)
    assert told["palimpsest_embedding_calls_total", (("upstream", "openai"), ("verdict", "answered"))] == 1
    assert told["palimpsest_embedding_calls_total", (("upstream", "openai"), ("verdict", "failed"))] == 1
    assert told["palimpsest_embedded_texts_total", ()] == 60
    assert told["palimpsest_embedding_tokens_total", ()] == 72.0
    assert told["palimpsest_index_vectors", ()] == 40
    assert told["palimpsest_index_passages_unexamined", ()] == 2


def test_managing_is_counted_by_few_labels() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for number in range(3):
        metrics.count(EpochOpened(replace(make_epoch(), why="soft")))
        metrics.count(
            Planned(
                "s", ContextPlan(f"x{number}", 0, f"m{number}", "epoch", "e", "soft", "", 900, 300, 1000, 0.0, -2.5)
            )
        )
        metrics.count(RungFailedEvent(exchange=f"x{number}", session="s", rung="plan", error=f"why {number}"))
        metrics.count(CeilingExceededEvent(exchange=f"x{number}", tokens=1100 + number, usable=1000, error="it is"))
        metrics.count(CeilingUnreachable(f"x{number}", f"s{number}", "m", 900, 1000))
        metrics.count(ReasoningRemoved(f"x{number}", f"s{number}", "m", "e", number))
    metrics.count(EpochOpened(replace(make_epoch(), why="revert")))
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
        metrics.count(AgentNudgedEvent(exchange="x", session="s", attempt=attempt))
    metrics.count(SessionIdleEvent(exchange="x", session="s", attempts=3))
    told = {name: value for name, value in read(metrics).items() if value}
    assert told["palimpsest_nudges_total", (("attempt", "1"),)] == 2
    assert told["palimpsest_nudges_total", (("attempt", "2"),)] == 1
    assert told["palimpsest_idle_sessions_total", ()] == 1


def test_misses_of_the_cache_are_counted_by_cause_and_losses_lower_the_saving() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    metrics.count(AnswerRead("x1", 0, round=recorded(), saved=100.0, saved_money=0.5))
    missed = AnswerRead("x2", 0, round=recorded(), cause="epoch", missed=2000, missed_cost=1800.0, missed_money=0.25)
    metrics.count(replace(missed, saved=-300.0, saved_money=-1.5))
    metrics.count(replace(missed, cause="provider", missed=500, missed_cost=450.0, missed_money=None))
    told = {name: value for name, value in read(metrics).items() if value}
    for cause, tokens, cost in (("epoch", 2000, 1800), ("provider", 500, 450)):
        labels = (("cause", cause),)
        assert told["palimpsest_cache_misses_total", labels] == 1
        assert told["palimpsest_cache_missed_tokens_total", labels] == tokens
        assert told["palimpsest_cache_missed_cost_tokens_total", labels] == cost
    assert told["palimpsest_cache_missed_money_total", (("cause", "epoch"),)] == 0.25
    assert ("palimpsest_cache_missed_money_total", (("cause", "provider"),)) not in told
    assert told["palimpsest_corrected_saved_tokens", ()] == -200
    assert told["palimpsest_saved_money_total", ()] == 0.5
    assert told["palimpsest_lost_money_total", ()] == 1.5


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
    metrics.count(CallUnreadableEvent(exchange="e", error="why"))
    told = read(metrics)
    assert told["palimpsest_unread_answers_total", ()] == 1
    assert told["palimpsest_log_pending_records", ()] == 1
    assert told["palimpsest_log_pending_bytes", ()] == 2
    assert told["palimpsest_log_dropped_records_total", ()] == 3
    assert told["palimpsest_log_degraded", ()] == 0
    health = ArchiveHealth("disk full", 0, 0, 0, 0)
    assert read(metrics)["palimpsest_log_degraded", ()] == 1


def test_what_calls_cost_is_counted_once_their_response_was_read() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    calls: list[tuple[Kind, str]] = [("managed", "m1"), ("auxiliary", "m1"), ("managed", "m2")]
    for number, (kind, model) in enumerate(calls):
        ended = replace(recorded(), exchange=f"e{number}", kind=kind, model=model, is_readable=True)
        answer = AnswerRead(f"e{number}", 0, Usage(100, 20, 60), round=ended)
        metrics.count(replace(answer, price=lambda: 0.25) if model == "m1" else answer)
    metrics.count(AnswerRead("silent", 0, Usage(), round=replace(recorded(), exchange="silent", model="m1")))
    metrics.count(AnswerRead("never recorded", 0, Usage(1, 1)))
    told = read(metrics)
    assert told["palimpsest_spent_money_total", (("kind", "managed"), ("model", "m1"))] == 0.25
    assert told["palimpsest_spent_money_total", (("kind", "auxiliary"), ("model", "m1"))] == 0.25
    assert {key for key in told if key[0] == "palimpsest_unpriced_calls_total"} == {
        ("palimpsest_unpriced_calls_total", (("model", "m2"),))
    }
    counted = (("kind", "managed"), ("model", "m1"))
    assert told["palimpsest_usage_tokens_total", (*counted, ("type", "input"))] == 100
    assert told["palimpsest_usage_tokens_total", (*counted, ("type", "cached"))] == 60
    assert told["palimpsest_usage_tokens_total", (*counted, ("type", "output"))] == 20
    assert ("palimpsest_usage_tokens_total", (*counted, ("type", "written"))) not in told


def test_clients_cannot_make_labels_without_bound() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for number in range(300):
        ended = replace(recorded(), exchange=f"e{number}", model=f"m{number}", is_readable=True)
        metrics.count(AnswerRead(f"e{number}", 0, Usage(1, 1), round=ended))
    told = read(metrics)
    models = {dict(labels)["model"] for name, labels in told if name == "palimpsest_usage_tokens_total"}
    assert len(models) == 101
    labels = (("kind", "managed"), ("model", "other"), ("type", "input"))
    assert told["palimpsest_usage_tokens_total", labels] == 200


def test_what_the_proxy_takes_of_a_call_is_measured_from_a_tenth_of_a_millisecond_on() -> None:
    metrics = Metrics(lambda: HEALTH, lambda: 0)
    for seconds in (None, 0.00009, 0.0002, 0.02):
        metrics.count(replace(recorded(), overhead_s=seconds))
    told = read(metrics)
    counts = [told["palimpsest_overhead_seconds_bucket", (("le", bound),)] for bound in ("0.0001", "0.00025", "+Inf")]
    assert counts == [1, 2, 3]


def test_the_files_of_the_log_and_what_is_left_of_the_disk_are_measured(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    log.write_bytes(b"12345")
    (tmp_path / "log.db-wal").write_bytes(b"123")
    found = measure_disk(log, 9)
    assert found[:3] == (5, 3, 0)
    assert found.free > 0
    assert measure_disk(tmp_path / "gone" / "log.db") == DiskUse()
    told = read(Metrics(lambda: HEALTH, lambda: 0, disk=lambda: found, circuits=lambda: {"openai": True}))
    assert told["palimpsest_log_max_bytes", ()] == 9
    assert told["palimpsest_log_bytes", (("file", "wal"),)] == 3
    assert told["palimpsest_upstream_circuit_open", (("upstream", "openai"),)] == 1


def test_the_version_and_the_process_are_told() -> None:
    told = dict(read(Metrics(lambda: HEALTH, lambda: 0)).keys())
    assert ("version", __version__) in told["palimpsest_build_info"]
    assert {"process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"} <= set(told)


# --- conventions -----------------------------------------------------------------------------------------------------

# What `promtool check metrics` complains of, beside what the format itself refuses.
_UNITS = re.compile(r"_(?:ms|milliseconds|minutes|hours|kb|kib|mb|kilobytes|percent)(?:_|$)")


def find_faults(kind: str, name: str, text: str, labels: tuple[str, ...]) -> list[str]:
    """What is wrong with a metric."""
    faults = {
        "no namespace": not name.startswith("palimpsest_"),
        "its type or _total is in its name": bool(re.search(r"_(?:total|count|sum|bucket|counter|gauge)$", name)),
        "no base unit": bool(_UNITS.search(name)),
        "a histogram without its unit": kind == "seconds" and not name.endswith("_seconds"),
        "not snake case": not re.fullmatch(r"[a-z][a-z0-9_]*", name),
        "a help text that needs another one": bool(re.match(r"(?:The same|That|What that|They|By) |.{,19}$", text)),
        "no sentence": not text.endswith("."),
        "labels": len(labels) != len(set(labels)) or bool({"le", "job", "instance", "quantile"} & {*labels}),
    }
    return [fault for fault, is_there in faults.items() if is_there]


def test_metrics_are_named_as_prometheus_asks() -> None:
    faults = {name: find_faults(kind, name, text, labels) for kind, name, text, labels in METRICS}
    assert {name: found for name, found in faults.items() if found} == {}
    assert len(faults) == len(METRICS)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("gauge", "palimpsest_wait_ms", "Milliseconds that calls waited for the log."),
        ("counter", "palimpsest_calls_total", "Calls that were made, by how they ended."),
        ("seconds", "palimpsest_wait", "Seconds that calls waited for the log."),
        ("counter", "palimpsest_money", "The same in money, of models whose prices are known."),
    ],
)
def test_the_rules_find_faults(kind: str, name: str, text: str) -> None:
    assert find_faults(kind, name, text, ())
