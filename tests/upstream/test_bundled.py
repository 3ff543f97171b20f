"""What litellm's wheel bundles."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from proxy.model.card import Offer, Prices, Rates, Tier
from proxy.upstream.bundled import BundledMap, find_litellm, read_map, read_ranks

MODELS = {
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
    },
    "old": {"mode": "completion", "max_tokens": 10},
    "spec": {"mode": "one of: chat, embedding", "max_tokens": "a number"},
    "odd": {"mode": "chat", "max_tokens": "many", "input_cost_per_token": None},
    "drawing": {"mode": "image_generation", "max_tokens": 10},
    "a/shared": {"mode": "chat", "max_input_tokens": 100},
    "b/shared": {"mode": "chat", "max_input_tokens": 50},
}
BUNDLED = BundledMap(orjson.dumps(MODELS))


def test_a_model_has_sizes_and_prices_and_dearer_ones_above_a_size() -> None:
    base = Rates(2.0, 8.0, 0.2, 2.0)
    tiers = (Tier(128_000, Rates(3.0, 12.0, 0.2 * 1.5, 3.0)), Tier(200_000, Rates(4.0, 16.0, 1.0, 4.0)))
    found = BUNDLED.find("m")
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
    assert BUNDLED.find("old") == Offer(10, 10)


@pytest.mark.parametrize("name", ["spec", "odd", "drawing", "nobody"])
def test_what_takes_no_conversation_or_says_nothing_is_unknown(name: str) -> None:
    assert BUNDLED.find(name) == Offer()


def test_a_model_of_several_providers_is_as_large_as_the_smallest() -> None:
    assert BUNDLED.find("shared").window == 50


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"m":5}', b'{"m":' * 5000])
def test_a_garbled_map_is_empty(content: bytes) -> None:
    assert len(BundledMap(content)) == 0


def test_without_the_package_there_is_neither_map_nor_ranks(tmp_path: Path) -> None:
    for package in (None, tmp_path):
        assert len(read_map(package)) == 0
        assert read_ranks(package, "o200k_base") is None


def test_the_installed_map_knows_the_models_of_the_day() -> None:
    bundled = read_map(find_litellm())
    assert len(bundled) > 2000
    for model, window in (("gpt-4o", 128_000), ("claude-sonnet-4-5", 200_000), ("gemini-2.5-pro", 1_048_576)):
        found = bundled.find(model)
        assert found.window == window
        assert found.prices is not None
        assert found.prices != Prices(found.prices.rates) or model != "gemini-2.5-pro"


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_a_rank_file_is_taken_only_whole_and_is_left_where_it_is(encoding: str, tmp_path: Path) -> None:
    ranks = read_ranks(find_litellm(), encoding)  # type: ignore[arg-type]
    assert ranks is not None
    package = find_litellm()
    assert package is not None
    folder = package / "litellm_core_utils" / "tokenizers"
    [name] = [path.name for path in folder.iterdir() if path.is_file() and path.read_bytes() == ranks]
    spoiled = tmp_path / "litellm_core_utils" / "tokenizers" / name
    spoiled.parent.mkdir(parents=True)
    spoiled.write_bytes(ranks[:-1])
    assert read_ranks(tmp_path, encoding) is None  # type: ignore[arg-type]
    assert spoiled.read_bytes() == ranks[:-1]
    spoiled.write_bytes(ranks)
    assert read_ranks(tmp_path, encoding) == ranks  # type: ignore[arg-type]


def test_litellm_is_found_without_being_imported() -> None:
    code = (
        "import sys; from proxy.upstream.bundled import find_litellm, read_map; assert len(read_map(find_litellm()));"
        "sys.exit('litellm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
