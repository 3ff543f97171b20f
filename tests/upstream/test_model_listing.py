"""Listings of models, as servers send them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.card import Offer, Prices, Rates
from proxy.upstream.model_listing import make_prices, read_listing, read_offer, read_price


@pytest.mark.parametrize(
    ("model", "offer"),
    [
        ({"id": "m", "max_model_len": 32_768}, Offer(32_768)),  # vLLM, SGLang
        ({"id": "m", "meta": {"n_ctx_train": 131_072}}, Offer(131_072)),  # llama.cpp
        ({"id": "m", "meta": {"n_ctx_train": 131_072, "n_ctx": 8192}}, Offer(8192)),
        ({"id": "m", "max_context_length": 32_768, "loaded_context_length": 4096}, Offer(4096)),  # LM Studio
        (
            {"id": "m", "context_length": 200, "top_provider": {"context_length": 100, "max_completion_tokens": 10}},
            Offer(100, 10),  # OpenRouter
        ),
        ({"id": "m", "context_window": 131_072, "max_completion_tokens": 32_768}, Offer(131_072, 32_768)),  # Groq
        ({"id": "m", "max_input_tokens": 200_000, "max_tokens": 64_000}, Offer(200_000, 64_000)),  # Anthropic
        ({"id": "m", "inputTokenLimit": 1_048_576, "outputTokenLimit": 8192}, Offer(1_048_576, 8192)),  # Gemini
        ({"name": "m", "context_length": 4096}, Offer(4096)),  # Ollama's /api/ps
        (
            {"model_info": {"llama.context_length": 131_072}, "parameters": "stop x\nnum_ctx 8192\n"},
            Offer(8192),  # Ollama's /api/show
        ),
        ({"id": "m", "max_model_len": 0, "context_length": "many", "pricing": 1, "model_info": {"x": 1}}, Offer()),
    ],
)
def test_every_server_has_its_own_spelling(model: dict[str, object], offer: Offer) -> None:
    assert read_offer(model) == offer


def test_prices_come_as_text() -> None:
    pricing = {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003", "image": "1"}
    assert read_offer({"pricing": pricing}).prices == Prices(Rates(3e-6, 1.5e-5, 3e-7, 3e-6))


@pytest.mark.parametrize("given", [None, 0.0])
def test_without_a_price_of_input_there_are_none(given: float | None) -> None:
    assert make_prices(given, 1.0, 1.0, 1.0) is None


def test_what_is_unsaid_or_0_follows_from_the_price_of_input() -> None:
    assert make_prices(2.0, None, 0.0, 0.0) == Prices(Rates(2.0, 10.0, 0.2, 2.0))


@pytest.mark.parametrize(("value", "price"), [("0.5", 0.5), (1, 1.0), ("-1", None), ("x", None), (None, None)])
def test_a_price_is_a_number_that_is_not_negative(value: object, price: float | None) -> None:
    assert read_price(value) == price


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1e999"])
def test_numbers_without_end_are_no_prices(value: object) -> None:
    assert read_price(value) is None


def test_a_listing_names_each_model_in_all_its_ways_once() -> None:
    one = {"id": "m", "name": "models/Em", "max_model_len": 5}
    assert read_listing(json.dumps({"data": [one, {"id": "silent"}]}).encode()) == {"m": Offer(5), "Em": Offer(5)}
    assert read_listing(json.dumps({"models": [one]}).encode()) == {"m": Offer(5), "Em": Offer(5)}
    assert read_listing(json.dumps([one]).encode()) == {"m": Offer(5), "Em": Offer(5)}


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b"5", b'{"data":{"id":1}}', b"[" * 5000])
def test_what_is_no_listing_lists_nothing(content: bytes) -> None:
    assert read_listing(content) == {}


NAMES = st.sampled_from(["id", "max_model_len", "meta", "model_info", "pricing", "prompt", "parameters"])


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(max_size=8),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(NAMES, x),
        max_leaves=12,
    )
)
def test_reading_is_total(value: object) -> None:
    assert isinstance(read_listing(json.dumps({"data": [value]}).encode()), dict)
