import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.provider_cache import (
    UNKNOWN,
    CacheModel,
    Calibration,
    choose_cache_model,
    learn_read,
    learn_seconds,
    learn_survival,
)
from proxy.model.card import CacheKind, CacheTerms
from tests.support.caches import MAP, choose_cache

OPENAI = choose_cache(None, "api.openai.com", "gpt-5")
KINDS: tuple[CacheKind, ...] = ("prefix", "breakpoints", "openai-breakpoints", "units", "local")


@pytest.mark.parametrize(("matching", "read"), [(1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_a_prefix_is_read_in_whole_blocks_from_a_least_size_on(matching: int, read: int) -> None:
    assert OPENAI.find_read(matching) == read


def test_blocks_are_those_of_the_host() -> None:
    deepseek = choose_cache(None, "api.deepseek.com", "deepseek-chat")
    assert [deepseek.find_read(tokens) for tokens in (63, 64, 127, 128)] == [0, 64, 64, 128]
    assert UNKNOWN.find_read(1) == 1


def test_a_marker_is_taken_to_be_at_the_end_of_the_match() -> None:
    model = choose_cache(None, "api.anthropic.com", "claude-sonnet-4-5", ["5m"])
    assert [model.find_read(tokens) for tokens in (1023, 1024, 7777)] == [0, 1024, 7777]


@pytest.mark.parametrize(
    ("ttls", "retention", "least_write"),
    [
        (["5m"], 300.0, 0.0),
        (["5m", "1h"], 3600.0, 2.0),
        (["90s"], 90.0, 0.0),
        (["6m"], 360.0, 2.0),
        (["1d"], 86_400.0, 2.0),
        (["5m", "soon"], None, 0.0),  # may be kept for any time
    ],
)
def test_markers_declare_how_long_they_are_kept(ttls: list[str], retention: float | None, least_write: float) -> None:
    model = choose_cache(None, "api.anthropic.com", "claude-sonnet-4-5", ttls)
    assert (model.retention, model.least_write, model.is_used) == (retention, least_write, True)


def test_without_a_marker_a_cache_that_wants_them_is_not_used() -> None:
    model = choose_cache(None, "api.anthropic.com", "claude-sonnet-4-5")
    assert not model.is_used
    assert model.find_read(100_000) == 0
    assert not model.is_head_kept
    assert model.retention is None


@pytest.mark.parametrize(
    ("host", "model", "ttls", "kind", "retention"),
    [
        ("api.openai.com", "gpt-5", [], "prefix", 86_400.0),
        ("API.OpenAI.com.", "gpt-5", [], "prefix", 86_400.0),
        ("corp.openai.azure.com", "gpt-4o", [], "prefix", 86_400.0),
        ("notopenai.com", "gpt-5", [], "prefix", None),
        ("api.deepseek.com", "deepseek-chat", [], "prefix", None),
        ("api.anthropic.com", "claude-sonnet-4-5", ["5m"], "breakpoints", 300.0),
        ("openrouter.ai", "anthropic/claude-sonnet-4.5", ["5m"], "breakpoints", 300.0),
        ("openrouter.ai", "anthropic/claude-sonnet-4.5", [], "prefix", None),
        ("openrouter.ai", "qwen/qwen3", ["5m"], "prefix", None),
        ("127.0.0.1", "llama", [], "prefix", None),  # local is what somebody declares
    ],
)
def test_host_and_family_tell_the_model(
    host: str, model: str, ttls: list[str], kind: CacheKind, retention: float | None
) -> None:
    found = choose_cache(None, host, model, ttls)
    assert (found.kind, found.retention) == (kind, retention)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_person_set_holds(kind: CacheKind) -> None:
    for host in ("api.openai.com", "api.anthropic.com", "elsewhere"):
        assert choose_cache(kind, host, "gpt-5", ["5m"]).kind == kind
        assert choose_cache(kind, host, "gpt-5", ["5m"], retention=42.0).retention == 42.0


def test_a_kind_that_was_set_takes_what_the_host_declares_where_it_is_the_same() -> None:
    assert choose_cache("prefix", "api.openai.com", "gpt-5") == OPENAI
    assert choose_cache("units", "api.openai.com", "gpt-5") == CacheModel("units")


def test_what_stands_before_the_first_change_is_sure_to_be_read_by_markers_and_at_home() -> None:
    kept = {kind: choose_cache(kind, "", "", ["5m"]).is_head_kept for kind in KINDS}
    assert kept == {"prefix": False, "breakpoints": True, "openai-breakpoints": True, "units": False, "local": True}


def test_a_cache_is_cold_some_time_after_its_declared_retention() -> None:
    model = CacheModel(retention=300.0)
    assert [model.is_cold(idle) for idle in (300.0, 360.0, 360.1, None)] == [False, False, True, False]


@given(st.none() | st.floats(0, 1e12))
def test_a_retention_that_nobody_declared_is_never_over(idle: float | None) -> None:
    assert not UNKNOWN.is_cold(idle)


@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_never_more_is_read_than_matches(kind: CacheKind, matching: int) -> None:
    for host in ("api.openai.com", "api.anthropic.com", "elsewhere"):
        assert 0 <= choose_cache(kind, host, "m", ["5m"]).find_read(matching) <= matching


def test_newer_models_of_openai_read_at_breakpoints_and_keep_them_for_half_an_hour() -> None:
    for host in ("api.openai.com", "openrouter.ai"):
        model = choose_cache(None, host, "openai/gpt-5.6")
        assert (model.kind, model.retention, model.is_used, model.is_head_kept) == (
            *("openai-breakpoints", 1800.0),
            *(True, True),
        )
    assert (model.lookback, model.most_marks, model.write) == (80, 4, 1.25)
    assert model.is_cold(1800 * 1.2 + 1)
    assert not model.is_cold(1801)


def choose_by(terms: CacheTerms, model: str = "gpt-5.6", host: str = "api.openai.com") -> CacheModel:
    return choose_cache_model(MAP.find(model).caches, None, host, terms)


@pytest.mark.parametrize(
    ("model", "lifetime", "retention"),
    [
        ("gpt-5.6", "30m", 1800.0),
        ("gpt-5.6", "2h", 7200.0),
        ("gpt-5.6", "for long", None),
        ("gpt-5", "in_memory", 3600.0),
        ("gpt-5", "in-memory", 3600.0),
        ("gpt-5", "24h", 86_400.0),
        ("gpt-5", "", 86_400.0),
        ("gpt-5", "always", None),
    ],
)
def test_the_request_says_how_long_its_prompt_is_kept(model: str, lifetime: str, retention: float | None) -> None:
    assert choose_by(CacheTerms(lifetime=lifetime), model).retention == retention


def test_a_lifetime_that_is_asked_of_a_cache_of_unknown_lifetime_declares_nothing() -> None:
    assert choose_by(CacheTerms(lifetime="24h"), "deepseek-chat", "api.deepseek.com").retention is None


def test_without_a_leading_message_or_with_explicit_breakpoints_only_no_head_is_kept() -> None:
    assert not choose_by(CacheTerms()).is_head_kept
    assert choose_by(CacheTerms(has_leading=True)).is_head_kept
    explicit = choose_by(CacheTerms(has_leading=True, is_explicit=True))
    assert not explicit.is_used
    assert explicit.find_read(100_000) == 0
    assert choose_by(CacheTerms(is_explicit=True), "gpt-5").is_used


def test_a_head_is_kept_by_a_marker_in_it_and_not_by_one_behind_it() -> None:
    terms = CacheTerms(head=("1h",), messages=("5m",))
    head = choose_by(terms, "claude-opus-5", "api.anthropic.com")
    behind = choose_by(CacheTerms(messages=("5m",)), "claude-opus-5", "api.anthropic.com")
    assert (head.is_head_kept, head.retention, head.least_write) == (True, 3600.0, 2.0)
    assert (behind.is_head_kept, behind.retention, behind.least_write) == (False, 300.0, 0.0)


def test_what_is_declared_of_an_unknown_model_is_as_of_the_kind() -> None:
    declared = choose_cache("openai-breakpoints", "gateway.example", "whatever")
    assert (declared.minimum, declared.lookback, declared.retention) == (1024, 80, 1800.0)
    marked = choose_cache("breakpoints", "gateway.example", "anthropic/claude-opus-4.6", ["5m"])
    assert marked.minimum == 4096
    assert choose_cache_model((), None, "h") == UNKNOWN
    assert choose_cache_model((), None, "h", retention=5.0).retention == 5.0
    assert choose_cache_model((), "openai-breakpoints", "h").kind == "openai-breakpoints"


def test_a_read_ends_at_a_breakpoint_where_those_are_known() -> None:
    exact = choose_cache(None, "api.openai.com", "gpt-5.6")
    assert [exact.find_read(5000, ends) for ends in ([2000, 4000, 6000], [6000], [], [1000])] == [4000, 0, 0, 0]
    assert OPENAI.find_read(5000, [2000]) == 4992  # the longest prefix has none


MARKED = CacheModel("breakpoints", minimum=1024, lookback=3, most_marks=4, retention=300.0)


def test_a_prompt_may_be_read_up_to_where_its_breakpoints_reach() -> None:
    assert MARKED.list_readable([0, 6], 8) == [6, 5, 4, 0]
    assert CacheModel("breakpoints").list_readable([6], 8) == [6, 5, 4, 3, 2, 1, 0]
    assert CacheModel("openai-breakpoints", lookback=1).list_readable([0, 6], 8) == [6]
    assert CacheModel("openai-breakpoints").list_readable([0, 6], 8) == [6, 0]
    assert CacheModel().list_readable([0], 3) == [2, 1, 0]


NEW = Calibration()
reports = st.lists(st.tuples(st.integers(-5, 10**6), st.none() | st.integers(-5, 10**6)), max_size=50)


def test_what_was_not_reported_teaches_nothing() -> None:
    assert learn_read(NEW, 1000, None) is NEW
    assert learn_survival(NEW, 1000, None) is NEW
    assert learn_seconds(NEW, 10_000, None, 1.0) is NEW


def test_where_nothing_should_have_been_read_nothing_is_learned() -> None:
    assert learn_read(NEW, 0, 500) is NEW
    assert learn_survival(NEW, 0, 500) is NEW


def test_a_report_of_nothing_read_is_a_report() -> None:
    assert learn_read(NEW, 1000, 0).read == pytest.approx(0.8)
    assert learn_survival(NEW, 1000, 0).survival == 0.0


def test_four_reports_in_a_row_that_nothing_was_read_show_that_nothing_is_kept() -> None:
    learned, seen = NEW, []
    for expected, cached in ((5000, 0), (5000, 200), (4095, 0), (5000, 0), (5000, 0), (5000, 0), (5000, 5000)):
        learned = learn_read(learned, expected, cached)
        seen.append((learned.misses, learned.is_missing))
    assert seen == [(1, False), (2, False), (2, False), (3, False), (4, True), (5, True), (0, False)]
    assert learned.read == pytest.approx(0.2)  # it is believed again by and by


def test_a_share_follows_the_reports_by_a_fifth_each() -> None:
    once = learn_read(NEW, 1000, 500)
    assert once.read == pytest.approx(0.9)
    assert learn_read(once, 1000, 500).read == pytest.approx(0.82)


def test_the_first_report_of_what_survives_an_epoch_counts_whole() -> None:
    once = learn_survival(NEW, 1000, 500)
    assert once.survival == 0.5
    assert learn_survival(once, 1000, 1000).survival == pytest.approx(0.6)


def test_more_than_all_is_all() -> None:
    assert learn_read(NEW, 1000, 5000).read == 1.0
    assert learn_survival(NEW, 1000, 5000).survival == 1.0


def test_seconds_are_learned_of_requests_that_were_cached_hardly_or_nearly_whole() -> None:
    fresh = learn_seconds(NEW, 10_000, 1000, 9.0)
    assert (fresh.fresh_seconds, fresh.cached_seconds) == (0.001, None)
    assert learn_seconds(fresh, 10_000, 5000, 10.0) is fresh
    both = learn_seconds(fresh, 10_000, 9000, 1.9)  # 1000 uncached ones took one second
    assert both.cached_seconds == pytest.approx(0.0001)
    assert both.cached_ratio == pytest.approx(0.1)
    assert learn_seconds(both, 10_000, 0, 20.0).fresh_seconds == pytest.approx(0.0012)
    assert learn_seconds(fresh, 10_000, 9000, 0.5).cached_seconds == 0.0  # less than the rest alone should take


def test_short_requests_and_clocks_that_went_back_tell_no_seconds() -> None:
    assert learn_seconds(NEW, 4095, 0, 1.0) is NEW
    assert learn_seconds(NEW, 10_000, 0, -1.0) is NEW
    assert learn_seconds(NEW, 4096, 0, 4.096).fresh_seconds == pytest.approx(0.001)


def test_what_cached_tokens_take_is_nothing_until_measured_and_no_more_than_uncached_ones() -> None:
    assert learn_seconds(NEW, 10_000, 9500, 1.0) is NEW
    ratios = [
        Calibration(fresh_seconds=fresh, cached_seconds=cached).cached_ratio
        for fresh, cached in ((None, None), (1.0, None), (0.0, 1.0), (1.0, 0.25), (1.0, 3.0))
    ]
    assert ratios == [0.0, 0.0, 0.0, 0.25, 1.0]


@given(reports)
def test_shares_stay_shares(seen: list[tuple[int, int | None]]) -> None:
    learned = NEW
    for expected, cached in seen:
        learned = learn_survival(learn_read(learned, expected, cached), expected, cached)
    assert 0.0 <= learned.read <= 1.0
    assert learned.survival is None or 0.0 <= learned.survival <= 1.0
