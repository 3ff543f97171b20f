"""Make the package's map of models from litellm's: `python -m scripts.model_map`.

Read from the litellm that is installed (the extra `providers`), which is neither imported nor asked for anything newer.
Kept are the models that hold conversations, and of each only what `proxy/upstream/model_catalog.py` reads.
"""

import importlib.util
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from proxy.upstream.model_catalog import MAP_PATH, ModelEntry, StatedRates
from proxy.upstream.model_listing import read_price
from proxy.wire.json_values import read_count

_SOURCE = "model_prices_and_context_window_backup.json"
_MODES = frozenset(["chat", "responses", "completion"])
_TIER = "input_cost_per_token_above_"


def find_source() -> Path:
    """Return the path of litellm's map. Raises SystemExit where litellm is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        raise SystemExit("litellm is not installed: make test installs it")
    return Path(spec.origin).with_name(_SOURCE)


def convert(source: Mapping[str, Mapping[str, object]]) -> dict[str, ModelEntry]:
    """Return the entries of the models that hold conversations, in the order of the source."""
    return {name: _convert_entry(entry) for name, entry in source.items() if entry.get("mode") in _MODES}


def format_map(entries: Mapping[str, ModelEntry], origin: str, made: date) -> str:
    """Return the file's content: one model a line, so that two versions can be compared."""
    lines = ",\n".join(f"{json.dumps(name)}:{msgspec.json.encode(entry).decode()}" for name, entry in entries.items())
    return f'{{"source":{json.dumps(origin)},"date":"{made}","models":{{\n{lines}\n}}}}\n'


def _convert_entry(entry: Mapping[str, object]) -> ModelEntry:
    most = read_count(entry.get("max_tokens")) or None
    rates, tiers = _read_rates(entry), {}
    if rates is not None:
        sizes = [name.removeprefix(_TIER).removesuffix("k_tokens") for name in entry if name.startswith(_TIER)]
        # Also named `_above_200k_tokens_batches` and the like, which are prices of something else.
        named = {int(size) * 1000: _read_rates(entry, f"_above_{size}k_tokens") for size in sizes if size.isdecimal()}
        tiers = {above: stated for above, stated in sorted(named.items()) if stated is not None}
    window, output = read_count(entry.get("max_input_tokens")), read_count(entry.get("max_output_tokens"))
    return ModelEntry(window or most, output or most, rates, tiers)


def _read_rates(entry: Mapping[str, object], ending: str = "") -> StatedRates | None:
    """Return the prices whose names end so; None where none for input is stated, or it is 0."""
    given = read_price(entry.get(f"input_cost_per_token{ending}"))
    others = ("output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost")
    output, cached, written = (read_price(entry.get(f"{name}{ending}")) for name in others)
    return (given, output, cached, written) if given else None


def main() -> None:
    """Write the file."""
    entries = convert(json.loads(find_source().read_bytes()))
    MAP_PATH.write_text(format_map(entries, f"litellm {version('litellm')}", datetime.now(UTC).date()))
    print(f"{MAP_PATH}: {len(entries):,} models, {MAP_PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
