"""Judgements: each fact that matters changes the finding, and each finding that is not ok says what to do."""

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.doctor.rehearsal import Rehearsal, judge_passing, judge_rehearsal
from proxy.model.epoch import Strategy
from proxy.model.exchange import Mode
from proxy.read.findings import (
    Diagnosis,
    Finding,
    State,
    StoreFacts,
    UpstreamProbe,
    conclude,
    judge_clock,
    judge_disk,
    judge_key,
    judge_local,
    judge_mode,
    judge_route,
    judge_server,
    judge_store,
    judge_token,
    judge_traffic,
    judge_upstream,
    judge_window,
    list_clients,
)

DAY_MS = 86_400_000
PROBE = UpstreamProbe(name="main", address="http://a/v1", status=200, models=3, has_key=True, seconds=0.01, skew=0.2)
STORE = StoreFacts(
    path="/data/log.db",
    exists=True,
    is_served=True,
    log_bytes=100_000_000,
    free_bytes=50_000_000_000,
    checked=7,
    began_ms=0,
    last_ms=10 * DAY_MS,
)
PLAYED = Rehearsal(
    upstream="main",
    model="m",
    wire="chat_completions",
    strategy="epochs",
    client=100_000,
    sent=20_000,
    is_managed=True,
    is_one=True,
    is_repeated=True,
    is_passed=True,
)


def check(finding: Finding | None, state: State, *words: str) -> None:
    """A finding of this state whose text has these words; what is not ok has advice."""
    assert finding is not None and finding.state == state
    assert all(word in f"{finding.sentence} {finding.advice}" for word in words), finding
    assert finding.sentence.endswith(".") and "\n" not in finding.sentence
    assert state == "ok" or finding.advice


@pytest.mark.parametrize(("mode", "state"), [("manage", "ok"), ("observe", "warning"), ("bypass", "fault")])
def test_a_mode_in_which_nothing_has_effect_is_a_fault(mode: Mode, state: State) -> None:
    check(judge_mode(mode), state, mode)


@pytest.mark.parametrize(
    ("changes", "state", "word"),
    [
        ({}, "ok", "10 ms"),
        ({"status": 404}, "ok", "responds"),
        ({"status": 503}, "warning", "503"),
        ({"status": 0, "problem": "refused"}, "fault", "refused"),
    ],
)
def test_an_upstream_that_does_not_respond_is_a_fault(changes: dict[str, object], state: State, word: str) -> None:
    check(judge_upstream(msgspec.structs.replace(PROBE, **changes)), state, word)


@pytest.mark.parametrize(
    ("changes", "state", "word"),
    [
        ({}, "ok", "3 models"),
        ({"has_key": False, "status": 401}, "ok", "each client sends its own"),
        ({"status": 401}, "fault", "refuses"),
        ({"status": 403}, "fault", "refuses"),
        ({"status": 404}, "warning", "--live"),
    ],
)
def test_a_key_is_judged_by_the_list_of_models(changes: dict[str, object], state: State, word: str) -> None:
    check(judge_key(msgspec.structs.replace(PROBE, **changes)), state, word)


@pytest.mark.parametrize("changes", [{"problem": "refused", "status": 0}, {"status": 500}])
def test_nothing_is_said_of_a_key_that_nobody_looked_at(changes: dict[str, object]) -> None:
    assert judge_key(msgspec.structs.replace(PROBE, **changes)) is None


@pytest.mark.parametrize(
    ("skews", "last_ms", "state", "word"),
    [
        ([0.5], 1000, "ok", "agrees"),
        ([], None, "ok", "No upstream"),
        ([None], None, "ok", "No upstream"),
        ([90.0, 2.0], None, "ok", "agrees"),
        ([90.0], None, "warning", "90 s ahead"),
        ([-90.0], None, "warning", "90 s behind"),
        ([0.5], 10_000_000, "warning", "future"),
    ],
)
def test_a_clock_is_compared_with_upstreams_and_log(
    skews: list[float | None], last_ms: int | None, state: State, word: str
) -> None:
    probes = [msgspec.structs.replace(PROBE, skew=skew) for skew in skews]
    check(judge_clock(probes, last_ms, 2000), state, word)


@pytest.mark.parametrize(
    ("changes", "name", "state", "word"),
    [
        ({}, "store", "ok", "running server writes it"),
        ({"is_served": False}, "store", "ok", "no server writes it"),
        ({"problem": "/data cannot be written"}, "store", "fault", "--data"),
        ({"exists": False}, "store", "ok", "can be made"),
        ({}, "records", "ok", "all 7 calls"),
        ({"is_whole": False}, "records", "ok", "palimpsest verify"),
        ({"faults": ("row 3 is altered",)}, "records", "fault", "row 3 is altered"),
        ({}, "search", "ok", "follows"),
        ({"behind_seconds": 61.0}, "search", "warning", "61 s behind"),
        ({"behind_seconds": 61.0, "is_served": False}, "search", "ok", "follows"),
        ({"index_fault": "damaged"}, "search", "warning", "index --rebuild"),
    ],
)
def test_a_log_is_judged(changes: dict[str, object], name: str, state: State, word: str) -> None:
    found = {finding.name: finding for finding in judge_store(msgspec.structs.replace(STORE, **changes))}
    check(found[name], state, word)


@pytest.mark.parametrize(
    ("changes", "state", "word"),
    [
        ({}, "ok", "10.0 MB a day"),
        ({"log_bytes": 0}, "ok", "50.0 GB"),
        ({"free_bytes": 900_000_000}, "warning", "Only 0.9 GB"),
        ({"free_bytes": 2_000_000_000, "log_bytes": 9_000_000_000}, "warning", "store.max_bytes"),
        ({"used_bytes": 91_000_000, "max_bytes": 100_000_000}, "warning", "91 of the 100 MB of store.max_bytes"),
        ({"used_bytes": 91_000_000, "max_bytes": 100_000_000, "is_room_made": True}, "ok", "10.0 MB a day"),
        ({"used_bytes": 89_000_000, "max_bytes": 100_000_000}, "ok", "10.0 MB a day"),
    ],
)
def test_a_disk_is_judged_by_space_and_growth(changes: dict[str, object], state: State, word: str) -> None:
    check(judge_disk(msgspec.structs.replace(STORE, **changes)), state, word)


@pytest.mark.parametrize(
    ("mode", "is_set", "state"),
    [(0o600, False, "ok"), (None, False, "ok"), (0o644, True, "ok"), (0o640, False, "fault"), (0o604, False, "fault")],
)
def test_a_token_that_others_can_read_is_a_fault(mode: int | None, is_set: bool, state: State) -> None:
    check(judge_token(mode, "/data/admin-token", is_set=is_set), state, "token")


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("epochs", ("shortened from 49,664 tokens on where it pays, from 124,160 on always",)),
        ("turns", ("with each prompt", "124,160")),
        ("snapshot", ("memory is made from 49,664",)),
    ],
)
def test_where_shortening_starts_is_told_by_strategy(strategy: Strategy, words: tuple[str, ...]) -> None:
    budget = make_budget(200_000, None, None, BudgetPolicy())
    finding = judge_window("main", "m", budget, strategy)
    check(finding, "ok", "m at main: window 200,000 tokens", f"strategy {strategy}", *words)
    assert (finding.facts["soft_mark"], finding.facts["high_mark"]) == (budget.soft, budget.high)


def test_a_window_that_is_not_known_or_too_small_is_told() -> None:
    check(
        judge_window("main", "m", make_budget(None, None, None, BudgetPolicy()), "epochs"),
        "warning",
        "window not known",
    )
    small = msgspec.structs.replace(make_budget(100, 100, None, BudgetPolicy()), usable=0)
    check(judge_window("main", "m", small, "epochs"), "fault", "no room for input")


def test_an_upstream_that_gets_no_call_is_told() -> None:
    check(judge_route("second"), "warning", "No call goes to second", "`models`")


def test_a_local_engine_is_told_what_it_is_asked_for() -> None:
    check(judge_local("here", summary_model=""), "ok", "here", "one request at a time", "without a model")
    check(judge_local("here", summary_model="small"), "ok", "summaries by small, in idle moments")


def tell(version: str, mode: Mode) -> Diagnosis:
    """What a server of this version and mode finds."""
    return conclude(version, (judge_mode(mode),))


@pytest.mark.parametrize(
    ("address", "told", "state", "word"),
    [
        ("", None, "warning", "No server runs"),
        ("http://a", None, "warning", "does not tell its version"),
        ("http://a", tell("0.9", "manage"), "warning", "Restart"),
        ("http://a", tell("1.0", "manage"), "ok", "http://a"),
        ("http://a", conclude("1.0", ()), "ok", "http://a"),
        ("http://a", tell("1.0", "observe"), "warning", "mode observe"),
        ("http://a", tell("1.0", "bypass"), "fault", "mode bypass"),
    ],
)
def test_a_server_is_judged_by_version_and_mode(address: str, told: Diagnosis | None, state: State, word: str) -> None:
    check(judge_server(address, told, "1.0", "manage"), state, word)


def test_a_server_that_refuses_our_token_is_told() -> None:
    check(judge_server("http://a", None, "1.0", "manage", is_refusing=True), "warning", "--admin-token")


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [(1000, "1 seconds ago"), (300_000, "5 minutes ago"), (3 * 3_600_000, "3 hours ago"), (3 * DAY_MS, "3 days ago")],
)
def test_the_newest_call_is_told(age_ms: int, words: str) -> None:
    check(judge_traffic(STORE, (STORE.last_ms or 0) + age_ms), "ok", words)


def test_a_log_without_calls_is_a_warning() -> None:
    check(judge_traffic(msgspec.structs.replace(STORE, last_ms=None), 0), "warning", "base URL")


def test_clients_are_told_the_address_of_each_api_once() -> None:
    finding = list_clients("http://127.0.0.1:8484", ["openai", "anthropic", "openai"])
    check(finding, "ok", "http://127.0.0.1:8484/v1 as OPENAI_BASE_URL", "http://127.0.0.1:8484 as ANTHROPIC_BASE_URL")
    assert finding.sentence.count("OPENAI_BASE_URL") == 1


@pytest.mark.parametrize(
    ("changes", "name", "state", "word"),
    [
        ({}, "session", "ok", "one session"),
        ({"is_one": False}, "session", "fault", "sessions.infer"),
        ({"is_inferred": False}, "session", "warning", "sessions.infer"),
        ({"is_inferred": False, "is_one": False}, "session", "fault", "sessions.infer"),
        ({}, "shortening", "ok", "100,000 to 20,000 tokens (80 %)"),
        ({"sent": 100_000}, "shortening", "fault", "was not shortened"),
        ({"is_managed": False}, "shortening", "fault", "was not shortened"),
        ({"sent": 100_000, "strategy": "snapshot"}, "shortening", "warning", "snapshot"),
        ({}, "cache", "ok", "begins with the bytes"),
        ({"is_repeated": False}, "cache", "fault", "would miss"),
        ({"is_repeated": False, "strategy": "turns"}, "cache", "warning", "epochs does not"),
        ({"problem": "it broke"}, "rehearsal", "fault", "it broke"),
    ],
)
def test_a_rehearsed_session_is_judged(changes: dict[str, object], name: str, state: State, word: str) -> None:
    found = {finding.name: finding for finding in judge_rehearsal(msgspec.structs.replace(PLAYED, **changes))}
    check(found[name], state, word)


def test_what_clients_expect_of_a_gateway_is_judged() -> None:
    check(judge_passing(PLAYED), "ok", "unchanged")
    check(judge_passing(msgspec.structs.replace(PLAYED, is_passed=False)), "fault", "report")
    assert judge_passing(msgspec.structs.replace(PLAYED, problem="it broke")) is None


def test_the_worst_finding_counts() -> None:
    ok, warning, fault = judge_mode("manage"), judge_mode("observe"), judge_mode("bypass")
    assert conclude("1", ()).state == conclude("1", (ok,)).state == "ok"
    assert conclude("1", (ok, warning)).state == "warning"
    assert conclude("1", (fault, warning, ok)).state == "fault"
