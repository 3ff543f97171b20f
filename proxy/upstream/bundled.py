"""What litellm's wheel bundles: a map of models and the rank files of two encodings, found without importing it.

Rule: never a download and never an exception; what is missing, or is not what it should be, is as if it were not there.
"""

import importlib.util
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from proxy.context.catalogue import Names, agree
from proxy.context.model_names import Encoding
from proxy.model.card import Offer, Prices, Rates, Tier
from proxy.wire.json_values import read_count
from proxy.wire.model_listing import make_prices, read_price

_MAP = "model_prices_and_context_window_backup.json"
_RANKS = "litellm_core_utils/tokenizers"
# Names under which tiktoken keeps the files, and the hashes it asks of them.
_FILES: Mapping[Encoding, tuple[str, str]] = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
_MODES = frozenset(["chat", "responses", "completion"])
_TIER = "input_cost_per_token_above_"


class _Entry(msgspec.Struct, gc=False):
    """What is looked at to tell whether an entry is of a model that takes conversations."""

    mode: object = None


_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


def find_litellm() -> Path | None:
    """The folder of the installed package."""
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_ranks(package: Path | None, encoding: Encoding) -> bytes | None:
    """The rank file of an encoding, None unless it is there and every byte is as it should be."""
    name, digest = _FILES[encoding]
    content = _read(package, f"{_RANKS}/{name}")
    return content if content is not None and sha256(content).hexdigest() == digest else None


class BundledMap:
    """The map of models. Entries stay raw until somebody asks for one: 3 MB in place of 30, 4 ms in place of 17."""

    def __init__(self, content: bytes) -> None:
        self._entries = _decode(content)
        self._names = Names(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, model: str) -> Offer:
        """What the map says of a model; nothing where it has no entry."""
        return agree([_read_entry(self._entries[name]) for name in self._names.find(model)])


def read_map(package: Path | None) -> BundledMap:
    """The map in the package, empty where there is none."""
    return BundledMap(_read(package, _MAP) or b"{}")


def _read(package: Path | None, name: str) -> bytes | None:
    try:
        return (package / name).read_bytes() if package is not None else None
    except OSError:
        return None


def _decode(content: bytes) -> dict[str, msgspec.Raw]:
    try:
        entries = _entries.decode(content)
        return {name: raw for name, raw in entries.items() if _entry.decode(raw).mode in _MODES}
    except (ValueError, TypeError, RecursionError):
        return {}


def _read_entry(raw: msgspec.Raw) -> Offer:
    entry = msgspec.json.decode(raw, type=dict[str, object])
    most = read_count(entry.get("max_tokens")) or None
    return Offer(
        window=read_count(entry.get("max_input_tokens")) or most,
        output=read_count(entry.get("max_output_tokens")) or most,
        prices=_read_prices(entry),
    )


def _read_prices(entry: Mapping[str, object]) -> Prices | None:
    base = _read_rates(entry, "")
    if base is None:
        return None
    endings = [name.removeprefix(_TIER) for name in entry if name.startswith(_TIER) and name.endswith("k_tokens")]
    tiers = [
        Tier(int(ending.removesuffix("k_tokens")) * 1000, rates)
        for ending in endings
        if ending.removesuffix("k_tokens").isdecimal() and (rates := _read_rates(entry, f"_above_{ending}", base))
    ]
    return Prices(base, tuple(sorted(tiers, key=lambda tier: tier.above)))


def _read_rates(entry: Mapping[str, object], ending: str, base: Rates | None = None) -> Rates | None:
    """The rates under names that end so; what a tier does not state is in the proportion of the base."""
    named = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    given, output, cached, written = (
        read_price(entry.get(f"{name}{ending}")) for name in (*named, "cache_creation_input_token_cost")
    )
    if base is not None and given:
        scale = given / base.input
        output, cached = output or base.output * scale, cached or base.cached * scale
        written = written or base.written * scale
    prices = make_prices(given, output, cached, written)
    return prices.rates if prices else None
