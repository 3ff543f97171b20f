"""The package's map of models, and the program that makes it from litellm's."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from proxy.model.card import Offer, Prices, Rates, Tier
from proxy.upstream.model_catalog import MAP_PATH, ModelMap, load_model_map
from scripts import model_map as program
from scripts.model_map import FACTS_PATH, convert, find_source, format_map, read_rules

SOURCE: dict[str, dict[str, object]] = {
    "m": {
        "mode": "chat",
        "max_tokens": 10,
        "max_input_tokens": 100,
        "max_output_tokens": 20,
        "input_cost_per_token": 2.0,
        "output_cost_per_token": 8.0,
        "cache_creation_input_token_cost": 0.0,
        "input_cost_per_token_above_200k_tokens": 4.0,
        "cache_read_input_token_cost_above_200k_tokens": 1.0,
        "input_cost_per_token_above_128k_tokens": 3.0,
        "input_cost_per_token_above_200k_tokens_batches": 1.0,
        "input_cost_per_token_above_somek_tokens": 1.0,
        "supports_vision": True,
    },
    "old": {"mode": "completion", "max_tokens": 10},
    "spec": {"mode": "one of: chat, embedding", "max_tokens": "a number"},
    "odd": {"mode": "chat", "max_tokens": "many", "input_cost_per_token": None},
    "free": {"mode": "chat", "input_cost_per_token": 0, "input_cost_per_token_above_200k_tokens": 1.0},
    "drawing": {"mode": "image_generation", "max_tokens": 10},
    "a/shared": {"mode": "chat", "max_input_tokens": 100},
    "b/shared": {"mode": "chat", "max_input_tokens": 50},
}
MADE = ModelMap(format_map(convert(SOURCE), "litellm 1.0", date(2026, 11, 24)).encode())


def test_a_model_has_sizes_and_prices_and_higher_ones_above_a_size() -> None:
    base = Rates(2.0, 8.0, 0.2, 2.0)
    tiers = (Tier(128_000, Rates(3.0, 12.0, 0.2 * 1.5, 3.0)), Tier(200_000, Rates(4.0, 16.0, 1.0, 4.0)))
    found = MADE.find("m")
    assert (found.window, found.output) == (100, 20)
    assert found.prices is not None
    assert found.prices.rates == base
    assert [tier.above for tier in found.prices.tiers] == [128_000, 200_000]
    for tier, wanted in zip(found.prices.tiers, tiers, strict=True):
        assert tier.rates.cached == pytest.approx(wanted.rates.cached)
        assert (tier.rates.input, tier.rates.output, tier.rates.written) == (
            wanted.rates.input,
            wanted.rates.output,
            wanted.rates.written,
        )


def test_an_entry_with_one_size_has_it_for_both() -> None:
    assert MADE.find("old") == Offer(10, 10)


@pytest.mark.parametrize("name", ["spec", "odd", "free", "drawing", "nobody"])
def test_what_holds_no_conversation_or_says_nothing_is_unknown(name: str) -> None:
    assert MADE.find(name) == Offer()


def test_a_model_of_several_providers_is_as_large_as_the_smallest() -> None:
    assert MADE.find("shared").window == 50


def test_a_line_of_the_file_is_a_model_with_what_is_used_of_it() -> None:
    lines = format_map(convert(SOURCE), "litellm 1.0", date(2026, 11, 24)).splitlines()
    assert lines[:3] == ['{"source":"litellm 1.0","date":"2026-11-24","caches":[', "", '],"models":{']
    assert lines[3] == (
        '"m":{"window":100,"output":20,"rates":[2.0,8.0,null,0.0],'
        '"tiers":{"128000":[3.0,null,null,null],"200000":[4.0,null,1.0,null]}},'
    )
    assert lines[4:] == [
        *('"old":{"window":10,"output":10},', '"odd":{},', '"free":{},'),
        *('"a/shared":{"window":100},', '"b/shared":{"window":50}', "}}"),
    ]


def test_the_map_knows_the_models_of_the_day() -> None:
    found = load_model_map()
    for model, window in (("gpt-4o", 128_000), ("claude-sonnet-4-5", 200_000), ("gemini-2.5-pro", 1_048_576)):
        offer = found.find(model)
        assert offer.window == window
        assert offer.prices is not None
        assert offer.prices != Prices(offer.prices.rates) or model != "gemini-2.5-pro"


def test_the_map_is_small_and_says_when_it_was_made_of_what() -> None:
    found = load_model_map()
    assert found.source.startswith("litellm 1.")
    assert date(2026, 11, 24) <= date.fromisoformat(found.date)
    assert len(found.entries) > 2000
    assert MAP_PATH.stat().st_size < 500_000


def test_the_map_has_every_value_of_the_locked_source() -> None:
    """Whoever updates litellm runs `make map`."""
    _, rules = read_rules(FACTS_PATH.read_bytes())
    assert load_model_map().entries == convert(json.loads(find_source().read_bytes()), rules)


def test_the_map_has_every_fact_of_ours_each_with_its_source() -> None:
    day, rules = read_rules(FACTS_PATH.read_bytes())
    found = load_model_map()
    assert found.caches == rules
    assert found.source.endswith(f"; caches: facts of {date.fromisoformat(day)}")
    assert all(rule.facts.source.split(",")[0] in ("Anthropic", "OpenAI", "DeepSeek") for rule in rules)


def test_prices_that_the_source_lacks_follow_from_our_facts_and_stated_ones_stay() -> None:
    _, rules = read_rules(FACTS_PATH.read_bytes())
    priced: dict[str, object] = {"mode": "chat", "input_cost_per_token": 2.0}
    stated = {"cache_read_input_token_cost": 0.5, "cache_creation_input_token_cost": 0.0}
    source: dict[str, dict[str, object]] = {
        "x/claude-fable-5.2": priced | {"input_cost_per_token_above_200k_tokens": 4.0},
        "gpt-5.6-sol": priced | stated,
        "gpt-5": priced,
        "claude-v2": priced,
        "claude-opus-5": {"mode": "chat"},
    }
    entries = convert(source, rules)
    assert entries["x/claude-fable-5.2"].rates == (2.0, None, 0.05, 2.5)
    assert entries["x/claude-fable-5.2"].tiers == {200_000: (4.0, None, 0.1, 5.0)}
    assert entries["gpt-5.6-sol"].rates == (2.0, None, 0.5, 0.0)
    assert entries["gpt-5"].rates == entries["claude-v2"].rates == (2.0, None, None, None)
    assert entries["claude-opus-5"].rates is None


def test_the_locked_source_states_the_prices_of_our_facts() -> None:
    """Where both state the multiple of a read or a write for a provider's own model, they agree."""
    found = load_model_map()
    checked = 0
    for name in ("claude-opus-5-5", "claude-sonnet-5-5", "claude-fable-5-1", "claude-opus-5", "gpt-5.6", "gpt-6-sol"):
        offer = found.find(name)
        facts = offer.caches[0]
        assert offer.prices is not None
        for rates in (offer.prices.rates, *(tier.rates for tier in offer.prices.tiers)):
            assert rates.cached / rates.input == pytest.approx(facts.read)
            assert rates.written / rates.input == pytest.approx(facts.write)
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("model", "kind", "minimum", "read"),
    [
        ("claude-opus-5-5", "breakpoints", 1024, 0.05),
        ("anthropic/claude-opus-5.5", "breakpoints", 1024, 0.05),
        ("openrouter/anthropic/claude-sonnet-5.5:beta", "breakpoints", 512, 0.05),
        ("us.anthropic.claude-sonnet-5-5-20260901-v1:0", "breakpoints", 512, 0.05),
        ("claude-fable-5-2", "breakpoints", 1024, 0.025),
        ("vertex_ai/claude-fable-5-1@20260801", "breakpoints", 512, 0.025),
        ("claude-fable-5", "breakpoints", 512, 0.1),
        ("Claude-Opus-5-20260101", "breakpoints", 512, 0.1),
        ("claude-opus-4-8", "breakpoints", 1024, 0.1),
        ("claude-sonnet-4-6", "breakpoints", 1024, 0.1),
        ("anthropic/claude-4.5-sonnet", "breakpoints", 1024, 0.1),
        ("claude-opus-4-7-20260416", "breakpoints", 2048, 0.1),
        ("claude-opus-4.6-thinking", "breakpoints", 4096, 0.1),
        ("anthropic/claude-4.5-haiku", "breakpoints", 4096, 0.1),
        ("claude-opus-5-6", "breakpoints", 1024, 0.1),  # newer than what is known: as the family
        ("claude-saga-7", "breakpoints", 1024, 0.1),
        ("gpt-5.6", "openai-breakpoints", 1024, 0.1),
        ("openai/gpt-5.6-sol-2026-07-01", "openai-breakpoints", 1024, 0.1),
        ("gpt-6-astra", "openai-breakpoints", 1024, 0.1),
        ("gpt-6.1-sol", "openai-breakpoints", 1024, 0.1),
        ("gpt-7", "openai-breakpoints", 1024, 0.1),
    ],
)
def test_a_model_has_the_cache_of_its_generation_however_it_is_named(
    model: str, kind: str, minimum: int, read: float
) -> None:
    facts = load_model_map().find(model).caches[0]
    assert (facts.kind, facts.minimum, facts.read) == (kind, minimum, read)


@pytest.mark.parametrize(
    "model",
    ["gpt-5", "gpt-5-2025-08-07", "gpt-5.5", "gpt-5-codex", "gpt-4o", "gpt-4.1", "gpt-35-turbo", "gpt-oss-120b", "o3"],
)
def test_older_models_have_the_cache_of_their_host(model: str) -> None:
    caches = load_model_map().find(model).caches
    assert {facts.kind for facts in caches if not facts.hosts and not facts.is_default} == set()
    assert next(facts for facts in caches if "openai.com" in facts.hosts).block == 128


def test_the_program_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAP_PATH", tmp_path / "map.json")
    program.main()
    made, own = ModelMap((tmp_path / "map.json").read_bytes()), load_model_map()
    assert (made.source, made.entries, made.caches) == (own.source, own.entries, own.caches)


def test_without_litellm_the_program_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="litellm is not installed: make test installs it"):
        find_source()


def test_litellm_is_imported_neither_for_the_map_nor_by_the_program() -> None:
    code = (
        "import sys; from scripts.model_map import find_source; assert find_source().exists();"
        "from proxy.upstream.model_catalog import load_model_map; load_model_map(); sys.exit('litellm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
