"""Parsers of upstreams' lists of models: windows, output limits and prices.

Parsing never fails. Of several numbers for one limit the smallest counts, since a server may have been started with
less than its model supports. Supported are `/v1/models` (vLLM, SGLang, llama.cpp, OpenRouter, Groq, Mistral, Together,
Anthropic, Gemini), LM Studio's `/api/v0/models`, and Ollama's `/api/ps` and `/api/show`.
"""

import math
import re
from collections.abc import Iterable, Mapping

from proxy.model.card import Offer, Prices, Rates
from proxy.wire.json_values import JSON_ERRORS, load_json, read_count, read_objects, read_text

_LISTS = ("data", "models")
_NAMES = ("id", "name", "model", "key")
_WINDOWS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "loaded_context_length",
    "max_input_tokens",
    "inputTokenLimit",
    "n_ctx",
    "n_ctx_train",
)
_OUTPUTS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "outputTokenLimit")
_INNER = ("meta", "top_provider", "limits")
_NUM_CTX = re.compile(r"(?m)^[^\S\n]*+num_ctx\s+(\d{1,9})\s*$")


def read_listing(content: bytes) -> Mapping[str, Offer]:
    """Return the models of a listing by name. Models without any known value are left out."""
    try:
        value = load_json(content)
    except JSON_ERRORS:
        return {}
    listed = [each for name in _LISTS for each in read_objects(_member(value, name))] or read_objects(value)
    return {name: offer for each in listed if (offer := read_offer(each)) != _NOTHING for name in _list_names(each)}


def read_offer(value: Mapping[str, object]) -> Offer:
    """Return the limits and prices in the JSON object of one model."""
    inner = [value, *(each for name in _INNER if isinstance(each := value.get(name), dict))]
    windows = [count for each in inner for count in _read_counts(each, _WINDOWS)]
    outputs = [count for each in inner for count in _read_counts(each, _OUTPUTS)]
    return Offer(
        window=min([*windows, *_read_ollama(value)], default=None),
        output=min(outputs, default=None),
        prices=_read_prices(value.get("pricing")),
    )


def _list_names(value: Mapping[str, object]) -> list[str]:
    names = [read_text(value.get(name)).removeprefix("models/") for name in _NAMES]
    return [name for name in dict.fromkeys(names) if name]


def _read_counts(value: Mapping[str, object], names: Iterable[str]) -> list[int]:
    return [count for name in names if (count := read_count(value.get(name)))]


def _read_ollama(value: Mapping[str, object]) -> list[int]:
    """Return `num_ctx` of the parameters, and `<architecture>.context_length` of the model."""
    told = value.get("model_info")
    members = told.items() if isinstance(told, dict) else ()
    lengths = [read_count(each) for name, each in members if name.endswith(".context_length")]
    set_ones = [int(digits) for digits in _NUM_CTX.findall(read_text(value.get("parameters")))]
    return [count for count in (*lengths, *set_ones) if count]


def _read_prices(value: object) -> Prices | None:
    """Return prices in OpenRouter's form: dollars per token, as text."""
    if not isinstance(value, dict):
        return None
    return make_prices(*(read_price(value.get(name)) for name in _PRICES))


_PRICES = ("prompt", "completion", "input_cache_read", "input_cache_write")


def make_prices(
    given: float | None, output: float | None, cached: float | None, written: float | None
) -> Prices | None:
    """Return prices. Missing ones and zeros are derived from the input price; without that, return None.

    A price of 0 for cache writes means that there is no surcharge. The prices of a free model tell nothing.
    """
    if not given:
        return None
    return Prices(Rates(given, output or 5 * given, cached or given / 10, written or given))


def read_price(value: object) -> float | None:
    """Parse a price that is a number or text. Return None if it is not a finite number, or negative."""
    try:
        price = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return price if 0 <= price < math.inf else None


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


_NOTHING = Offer()
