"""Why a prompt was not read from the cache: named by what two prompts share, what they sent, and what came back."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.context.cache_misses import (
    CacheUse,
    Precedent,
    PromptTrail,
    SentPrompt,
    can_have_missed,
    explain_use,
    name_rewriting,
)
from proxy.context.pricing import Cost, estimate_own, estimate_size, price_missed, price_saved
from proxy.context.provider_cache import UNKNOWN, CacheModel
from proxy.model.card import Card, Prices, Rates
from proxy.model.epoch import Plan, Rung
from proxy.model.exchange import Usage
from tests.support.caches import choose_cache

OPENAI = choose_cache(None, "api.openai.com", "gpt-4o")
EXACT = choose_cache(None, "api.openai.com", "gpt-5.6")
MARKED = choose_cache("breakpoints", "api.anthropic.com", "claude", ["5m"])
LAYERS = b"tools---system--settings"
PRICED = Card(prices=Prices(Rates(2e-6, 1e-5, 2e-7, 2.5e-6)), prices_source="settings")


def name_nodes(count: int, branch: str = "a", since: int = 0) -> list[bytes]:
    """The nodes of a history, of which those from `since` on belong to a branch of its own."""
    return [f"{'a' if place < since else branch}{place}".encode() for place in range(count)]


def make_prompt(
    nodes: int | Sequence[bytes] = 10, read: int | None = 0, size: int | None = 20_000, at: float = 0.0, **changes: Any
) -> SentPrompt:
    """A prompt that was sent at a time, in seconds, and answered a second later."""
    known = name_nodes(nodes) if isinstance(nodes, int) else nodes
    usage = Usage(size, 100, read, changes.pop("written", None))
    prompt = SentPrompt("x", "openai", "m", known, LAYERS, sent_ms=1000 * at, ready_ms=1000 * at + 1000, usage=usage)
    return replace(prompt, **changes)


def explain(
    prompt: SentPrompt, before: SentPrompt | None = None, cache: CacheModel = UNKNOWN, told: Any = ""
) -> CacheUse:
    """What the prompt read, compared with the one before it, by default of ten messages."""
    trail = PromptTrail()
    trail.add(before or make_prompt())
    return explain_use(prompt, trail.find(prompt), cache, told)


def test_what_was_sent_before_is_expected_to_be_read() -> None:
    use = explain(make_prompt(12, 20_000, 24_000, 10))
    assert use == CacheUse("read", 20_000, None, 20_000, idle=10.0)


def test_no_more_is_expected_than_the_prompt_has() -> None:
    use = explain(make_prompt(10, 5000, 6000, 10, rewriting="e1", why="soft"))
    assert (use.expected, use.missed, use.cause) == (6000, 1000, "epoch")


@pytest.mark.parametrize("cache", [UNKNOWN, OPENAI, EXACT, MARKED])
@pytest.mark.parametrize("size", [None, 100, 2000, 24_000])
@pytest.mark.parametrize("read", [None, 0, 900, 1871, 1872, 19_599])
def test_what_cannot_have_missed_is_never_told_as_a_miss(cache: CacheModel, size: int | None, read: int | None) -> None:
    prompt, trail = make_prompt(12, read, size, 10, written=0), PromptTrail()
    trail.add(make_prompt(written=20_000))
    precedent = trail.find(prompt)
    use = explain_use(prompt, precedent, cache)
    assert use.use != "missed" or can_have_missed(prompt, precedent)


def test_a_miss_takes_a_precedent_and_more_tokens_than_a_template_has() -> None:
    precedent = Precedent(make_prompt(), 10)
    assert not can_have_missed(make_prompt(12, 0, 2000, 10), None)
    assert not can_have_missed(make_prompt(12, 1872, 2000, 10), precedent)
    assert can_have_missed(make_prompt(12, 1871, 2000, 10), precedent)


def test_a_few_tokens_of_a_template_are_no_miss() -> None:
    assert explain(make_prompt(12, 19_600, 24_000, 10)).use == "read"
    assert explain(make_prompt(12, 19_599, 24_000, 10)).missed == 401
    short = make_prompt(10, size=1000)
    assert explain(make_prompt(12, 872, 1100, 10), short).use == "read"
    assert explain(make_prompt(12, 871, 1100, 10), short).missed == 129


def test_a_block_of_the_cache_that_was_not_filled_is_no_miss() -> None:
    before = make_prompt(10, size=2000)
    assert explain(make_prompt(12, 1792, 2100, 10), before, OPENAI) == CacheUse("read", 1792, None, 1920, idle=10.0)


def test_the_first_prompt_has_nothing_to_read() -> None:
    prompt = make_prompt()
    assert explain_use(prompt, PromptTrail().find(prompt), UNKNOWN) == CacheUse("first", 0)
    assert explain(make_prompt(12, 0, 1010, 10), make_prompt(size=1000), OPENAI).use == "first"  # below the minimum


@pytest.mark.parametrize(("size", "read"), [(None, 5), (1000, None)])
def test_a_usage_that_says_too_little_explains_nothing(size: int | None, read: int | None) -> None:
    assert explain(make_prompt(12, read, size, 10)) == CacheUse("unreported", read)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"layers": b"TOOLS---system--settings"}, "tools"),
        ({"layers": b"tools---SYSTEM--settings"}, "system"),
        ({"layers": b"TOOLS---SYSTEM--SETTINGS"}, "tools"),
        ({"layers": b"tools---system--SETTINGS"}, "parameters"),
        ({"model": "other"}, "model"),
        ({"upstream": "other"}, "model"),
        ({"rewriting": "e1", "why": "hard"}, "epoch"),
        ({"rewriting": "e1", "why": "client"}, "epoch"),  # the client changed nothing
        ({"layers": b""}, "unrecorded"),
        ({}, "provider"),
    ],
)
def test_what_differs_is_the_cause(change: dict[str, Any], cause: str) -> None:
    use = explain(make_prompt(12, 0, 24_000, 10, **change))
    assert (use.use, use.expected, use.missed, use.cause) == ("missed", 20_000, 20_000, cause)
    assert use.why == (change.get("why", "") if cause == "epoch" else "")


def test_an_edited_message_is_numbered() -> None:
    edited = name_nodes(12, "b", 4)
    use = explain(make_prompt(edited, 8000, 24_000, 10))
    assert (use.cause, use.place, use.missed) == ("message", 5, 12_000)
    both = explain(make_prompt(edited, 8000, 24_000, 10, layers=b"tools---system--SETTINGS"))
    assert (both.cause, both.place) == ("message", 5)


def test_an_epoch_that_followed_on_an_edit_was_caused_by_it() -> None:
    edited = name_nodes(12, "b", 4)
    use = explain(make_prompt(edited, 0, 9000, 10, rewriting="e1", why="client"))
    assert (use.cause, use.place) == ("message", 5)
    assert explain(make_prompt(edited, 0, 9000, 10, rewriting="e1", why="hard")).cause == "epoch"


def test_an_edit_near_the_end_does_not_explain_that_all_was_missed() -> None:
    edited = name_nodes(12, "b", 9)
    assert explain(make_prompt(edited, 0, 24_000, 10)).cause == "provider"
    marked = make_prompt(10, 0, written=20_000)
    assert explain(make_prompt(edited, 0, 24_000, 10), marked, MARKED).cause == "message"  # markers stand anywhere


def test_a_first_message_that_changes_is_no_new_conversation() -> None:
    use = explain(make_prompt(name_nodes(12, "b"), 0, 24_000, 10))
    assert (use.cause, use.place) == ("message", 1)
    assert explain(make_prompt(name_nodes(2, "b"), 0, 24_000, 10)).use == "first"
    assert explain(make_prompt(name_nodes(12, "b"), 0, 24_000, 10, model="other")).use == "first"
    short = make_prompt(2)
    assert explain(make_prompt(name_nodes(12, "b"), 0, 24_000, 10), short).use == "first"


def test_what_was_kept_for_less_time_than_passed_was_lost_by_that() -> None:
    cache = CacheModel(retention=300.0)
    assert explain(make_prompt(12, 0, 24_000, 361), cache=cache).cause == "idle"
    assert explain(make_prompt(12, 0, 24_000, 359), cache=cache).cause == "provider"
    assert explain(make_prompt(12, 0, 24_000, 1e6)).cause == "provider"  # nobody says how long it is kept
    assert explain(make_prompt(12, 0, 24_000, 361, rewriting="e1", why="cold"), cache=cache).cause == "idle"
    edited = name_nodes(12, "b", 5)
    assert explain(make_prompt(edited, 0, 24_000, 361), cache=cache).cause == "idle"
    assert explain(make_prompt(edited, 10_000, 24_000, 361), cache=cache).cause == "message"  # it was kept all the same


def test_what_markers_covered_is_expected_of_a_cache_that_wants_them() -> None:
    before = make_prompt(10, 12_000, written=5000)
    assert explain(make_prompt(12, 17_000, 24_000, 10), before, MARKED).use == "read"
    assert explain(make_prompt(12, 12_000, 24_000, 10), before, MARKED).missed == 5000
    silent = make_prompt(10, 12_000)
    assert explain(make_prompt(12, 17_000, 24_000, 10), silent, MARKED).expected == 20_000
    assert explain(make_prompt(12, 0, 24_000, 10), make_prompt(10, 0, written=0), MARKED).use == "first"
    assert explain(make_prompt(12, 20_000, 24_000, 10), make_prompt(10, 0, written=0)).use == "read"


def test_what_breakpoints_covered_is_expected_of_a_cache_that_reads_up_to_them_only() -> None:
    before = make_prompt(10, 12_000, written=5000)
    assert explain(make_prompt(12, 17_000, 24_000, 10), before, EXACT).use == "read"
    assert explain(make_prompt(12, 12_000, 24_000, 10), before, EXACT).missed == 5000
    assert explain(make_prompt(12, 0, 24_000, 10), make_prompt(10, 0, written=0), EXACT).use == "first"
    marked, edited = make_prompt(10, 0, written=20_000), name_nodes(12, "b", 9)
    assert explain(make_prompt(edited, 0, 24_000, 10), marked, EXACT).cause == "message"  # the one before it may be far
    assert explain(make_prompt(12, 0, 24_000, 2161), marked, EXACT).cause == "idle"
    assert explain(make_prompt(12, 0, 24_000, 2159), marked, EXACT).cause == "provider"


def test_the_provider_is_believed_where_nothing_else_explains_a_miss() -> None:
    use = explain(make_prompt(12, 0, 24_000, 10), told="tools")
    assert (use.cause, use.is_told) == ("tools", True)
    assert explain(make_prompt(12, 0, 24_000, 10, layers=b""), told="system").cause == "system"
    known = explain(make_prompt(12, 0, 24_000, 10, rewriting="e1", why="soft"), told="message")
    assert (known.cause, known.is_told) == ("epoch", False)
    assert explain(make_prompt(12, 20_000, 24_000, 10), told="tools").cause == ""


def test_the_precedent_shares_most_and_is_of_the_same_model_if_it_can_be() -> None:
    trail = PromptTrail()
    main, side = make_prompt(10, exchange="main"), make_prompt(name_nodes(3, "s", 1), exchange="side", at=5)
    trail.add(main)
    trail.add(side)
    assert trail.find(make_prompt(12, at=10)) == Precedent(main, 10)
    trail.add(other := make_prompt(10, exchange="other", model="n", at=6))
    assert trail.find(make_prompt(12, at=10)) == Precedent(main, 10)
    assert trail.find(make_prompt(12, at=10, model="n")) == Precedent(other, 10)
    trail.add(longer := make_prompt(11, exchange="longer", model="n", at=7))
    assert trail.find(make_prompt(12, at=10)) == Precedent(longer, 11)
    trail.add(again := make_prompt(10, exchange="again", at=8))
    assert trail.find(make_prompt(10, at=10)) == Precedent(again, 10)


def test_no_prompt_can_be_read_before_its_response_began() -> None:
    trail = PromptTrail()
    trail.add(make_prompt(10, at=5))
    assert trail.find(make_prompt(12, at=5.9)) is None
    assert trail.find(make_prompt(12, at=6)) is not None


def test_a_trail_forgets_the_oldest_ends() -> None:
    trail = PromptTrail()
    for number in range(20):
        trail.add(make_prompt(name_nodes(2, f"{number}-")))
    assert trail.find(make_prompt(name_nodes(4, "3-"), at=10)) is None
    assert trail.find(make_prompt(name_nodes(4, "4-"), at=10)) is not None


def test_a_miss_costs_what_writing_costs_more_than_reading() -> None:
    use = CacheUse("missed", 0, None, 20_000, 20_000, "provider")
    assert price_missed(use, Usage(24_000, 100, 0), Card()) == Cost(18_000.0, None)
    written = price_missed(use, Usage(24_000, 100, 0, 24_000), PRICED)
    assert written.tokens == pytest.approx(20_000 * (1.25 - 0.1))
    assert written.money == pytest.approx(20_000 * 2.3e-6)
    assert price_missed(CacheUse("read", 20_000), Usage(24_000, 100, 20_000), PRICED) == Cost(0.0, 0.0)


def make_counted(client: int = 100_000, sent: int = 30_000, client_read: int = 95_000, sent_read: int = 25_000) -> Plan:
    plan = Plan("x", 0, "m", "epoch", "e1", saving=7.0)
    counts = (client, sent, client_read, sent_read)
    return replace(
        plan, **dict(zip(("tokens_client", "tokens_upstream", "client_read", "sent_read"), counts, strict=True))
    )


def save(plan: Plan, usage: Usage, card: Card | None = None) -> Cost | None:
    return price_saved([(plan, usage)], card or Card())


def test_a_saving_is_counted_as_the_provider_counts() -> None:
    as_estimated = save(make_counted(), Usage(30_000, 10, 25_000))
    assert as_estimated is not None
    assert as_estimated.tokens == pytest.approx((5000 + 9500) - (5000 + 2500))
    known = replace(make_counted(), own_expected=100_000, sent_expected=30_000)
    assert save(known, Usage(30_000, 10, 25_000)) == as_estimated
    more = save(known, Usage(30_500, 10, 25_000), PRICED)  # what is new in both has more tokens than expected
    assert more is not None
    assert more.tokens == pytest.approx(as_estimated.tokens)
    assert more.money == pytest.approx(more.tokens * 2e-6)


def test_of_two_sizes_of_the_clients_own_request_the_smaller_one_counts() -> None:
    for paid, size in ((39_000, 109_000), (15_000, 50_000)):
        found = estimate_own(make_counted(), Usage(paid, 10, 0))
        assert found is not None
        assert found.size == found.own.input == size
    assert estimate_size(replace(make_counted(), tokens_client=None), 30_000) is None


def test_what_was_missed_is_missed_of_the_clients_own_request_in_tokens_not_as_a_share_of_it() -> None:
    saved = save(make_counted(), Usage(30_000, 10, 0))
    assert saved is not None
    assert saved.tokens == pytest.approx((30_000 + 0.1 * 70_000) - 30_000)


@pytest.mark.parametrize("missed", [-400, 400, 4000])
def test_a_few_tokens_more_or_less_would_have_been_so_many_of_the_clients_own_request(missed: int) -> None:
    saved = save(make_counted(), Usage(30_000, 10, 25_000 - missed))
    assert saved is not None
    own, sent = (fresh + missed + 0.1 * (read - missed) for fresh, read in ((5000, 95_000), (5000, 25_000)))
    assert saved.tokens == pytest.approx(own - sent)


def test_a_cache_that_was_taken_to_be_cold_and_is_not_would_have_had_the_clients_own_request() -> None:
    saved = save(make_counted(client_read=0, sent_read=0), Usage(30_000, 10, 25_000))
    assert saved is not None
    assert saved.tokens == pytest.approx((5000 + 9500) - (5000 + 2500))
    cold = save(make_counted(client_read=0, sent_read=0), Usage(30_000, 10, 0))
    assert cold is not None
    assert cold.tokens == pytest.approx(100_000 - 30_000)


def test_an_epoch_that_has_to_be_written_costs_more_than_it_saves() -> None:
    opened = make_counted(client_read=95_000, sent_read=2000)
    saved = save(opened, Usage(30_000, 10, 0))
    assert saved is not None
    assert saved.tokens == pytest.approx((5000 + 9500) - 30_000)
    written = save(opened, Usage(30_000, 10, 0, 30_000), PRICED)
    assert written is not None
    assert written.tokens == pytest.approx((5000 * 1.25 + 9500) - 30_000 * 1.25)


def test_where_nothing_is_reported_the_cache_is_taken_to_work_as_expected() -> None:
    assert save(make_counted(), Usage(30_000, 10)) == save(make_counted(), Usage(30_000, 10, 25_000))
    all_read = save(make_counted(sent_read=40_000), Usage(30_000, 10, 30_000))
    assert all_read is not None
    assert all_read.tokens == pytest.approx(5000 + 9500 - 3000)


def test_more_than_a_window_takes_is_not_counted() -> None:
    found = estimate_own(replace(make_counted(), window=60_000), Usage(30_000, 10, 25_000))
    assert found is not None
    assert (found.size, found.own.input, found.own.cached) == (100_000, 60_000, 55_000)


def test_a_round_in_which_the_model_recalled_is_a_cost_and_no_answer_of_the_clients_own() -> None:
    first, second = make_counted(), replace(make_counted(client=0, client_read=0), k=1, own_expected=0)
    found = price_saved([(first, Usage(30_000, 100, 25_000)), (second, Usage(33_000, 200, 30_000))], Card())
    alone = save(first, Usage(30_000, 0, 25_000))
    assert found is not None and alone is not None
    assert found.tokens == pytest.approx(alone.tokens - 3000 - 0.1 * 30_000 - 100 * 5)


@pytest.mark.parametrize(
    "change", [{"tokens_client": None}, {"tokens_upstream": None}, {"client_read": None}, {"sent_read": None}]
)
def test_what_was_not_counted_is_saved_as_it_was_estimated(change: dict[str, Any]) -> None:
    plan = replace(make_counted(), **change)
    assert save(plan, Usage(30_000, 10, 0)) == Cost(7.0, None)
    assert save(plan, Usage(30_000, 10, 0), PRICED) == Cost(7.0, 7.0 * 2e-6)
    assert save(replace(plan, saving=None), Usage(30_000, 10, 0), PRICED) is None
    assert save(replace(plan, rung="original"), Usage(30_000, 10, 0), PRICED) is None
    twice = price_saved([(plan, Usage(30_000, 10, 0)), (replace(plan, saving=None), Usage(30_000, 10, 0))], Card())
    assert twice == Cost(7.0, None)
    assert price_saved([(None, Usage(30_000, 10, 0)), (plan, Usage(None, 10, 0))], PRICED) is None


RUNGS: tuple[Rung, ...] = ("original", "epoch", "plan", "minimal")
SIZES = st.integers(0, 400_000)


@st.composite
def make_rounds(draw: st.DrawFn) -> tuple[Plan, Usage]:
    """A round of any sizes, and a usage that a provider may report of it."""
    input = draw(st.integers(1, 400_000))
    cached = draw(st.none() | st.integers(0, input))
    written = draw(st.none() | st.integers(0, input - (cached or 0)))
    plan = Plan(
        *("x", 0, "m"),
        rung=draw(st.sampled_from(RUNGS)),
        tokens_client=draw(SIZES),
        tokens_upstream=draw(st.integers(1, 400_000)),
        client_read=draw(SIZES),
        sent_read=draw(SIZES),
        own_expected=draw(st.none() | SIZES),
        sent_expected=draw(st.none() | SIZES),
        window=draw(st.just(0) | st.integers(1, 400_000)),
    )
    return plan, Usage(input, draw(SIZES), cached, written)


@given(make_rounds())
def test_a_saving_is_never_more_than_a_request_of_its_size_within_the_window_could_have_cost(
    made: tuple[Plan, Usage],
) -> None:
    plan, usage = made
    found, saved = estimate_own(plan, usage), save(plan, usage, PRICED)
    assert found is not None and saved is not None
    own, paid = found.own, found.paid
    assert own.input is not None and own.cached is not None
    assert 0 <= own.cached <= own.input <= found.size
    assert plan.rung == "original" or 0 <= (own.written or 0) <= own.input - own.cached
    assert (paid.input, paid.output, paid.written) == (usage.input, usage.output, usage.written)
    if plan.rung == "original":
        assert (own, saved) == (paid, Cost(0.0, 0.0))
    elif plan.window:
        assert own.input <= plan.window


@given(make_rounds(), st.integers(0, 400_000))
def test_what_a_cache_misses_more_is_charged_to_both_requests_alike(made: tuple[Plan, Usage], missed: int) -> None:
    plan, usage = made
    read = usage.cached or 0
    assume(plan.rung != "original" and 2 * (plan.sent_read or 0) >= (plan.tokens_upstream or 0))
    less = replace(usage, cached=max(0, read - missed), written=None)
    one, other = (estimate_own(plan, each) for each in (replace(usage, cached=read, written=None), less))
    assert one is not None and other is not None
    assume(plan.own_expected is None or 2 * (plan.sent_read or 0) >= (usage.input or 0))
    shortfall = (one.own.cached or 0) - (other.own.cached or 0)
    assert 0 <= shortfall <= read - (less.cached or 0)


def test_a_rewriting_is_named_by_its_epoch_or_its_level() -> None:
    assert [name_rewriting(each) for each in (None, make_counted(), Plan("x", 0, "m", "minimal"))] == [
        "",
        "e1",
        "minimal",
    ]
    assert name_rewriting(Plan("x", 0, "m", "original")) == ""
