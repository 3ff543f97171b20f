"""Make the package's map of models from litellm's and from our own facts: `python -m scripts.model_map`.

Read from the litellm that is installed (the extra `providers`), which is neither imported nor asked for anything newer.
Kept are the models that hold conversations, and of each only what `proxy/upstream/model_catalog.py` reads. How prompt
caches behave, and prices of reads and writes that litellm lacks, are in `model_facts.json`, each with its source.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from proxy.model.card import CacheFacts
from proxy.upstream.model_catalog import MAP_PATH, CacheRule, ModelEntry, StatedRates, find_caches
from proxy.upstream.model_listing import read_price
from proxy.wire.json_values import read_count

FACTS_PATH = Path(__file__).with_name("model_facts.json")
_SOURCE = "model_prices_and_context_window_backup.json"
_MODES = frozenset(["chat", "responses", "completion"])
_TIER = "input_cost_per_token_above_"


def find_source() -> Path:
    """Return the path of litellm's map. Raises SystemExit where litellm is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        raise SystemExit("litellm is not installed: make test installs it")
    return Path(spec.origin).with_name(_SOURCE)


class _FactsFile(msgspec.Struct, frozen=True):
    """The content of `model_facts.json`: the day of the facts, and for each pattern of models the facts' members."""

    date: str
    facts: tuple[dict[str, object], ...]


def read_rules(content: bytes) -> tuple[str, tuple[CacheRule, ...]]:
    """Return the date of our own facts, and the rules that they make."""
    found = msgspec.json.decode(content, type=_FactsFile)
    facts = [CacheRule(str(each.pop("models")), msgspec.convert(each, CacheFacts)) for each in found.facts]
    return found.date, tuple(facts)


def convert(source: Mapping[str, Mapping[str, object]], rules: Sequence[CacheRule] = ()) -> dict[str, ModelEntry]:
    """Return the entries of the models that hold conversations, in the order of the source.

    Where it has no price of cache reads or writes, they follow from the price of input and the rules.
    """
    kept = {name: _convert_entry(entry) for name, entry in source.items() if entry.get("mode") in _MODES}
    return {name: _add_prices(name, entry, rules) for name, entry in kept.items()}


def _add_prices(name: str, entry: ModelEntry, rules: Sequence[CacheRule]) -> ModelEntry:
    named = [rule for rule in rules if rule.models]
    facts = next(iter(find_caches(named, name)), None)
    if facts is None or entry.rates is None:
        return entry
    tiers = {above: _complete(stated, facts) for above, stated in entry.tiers.items()}
    return msgspec.structs.replace(entry, rates=_complete(entry.rates, facts), tiers=tiers)


def _complete(stated: StatedRates, facts: CacheFacts) -> StatedRates:
    given, output, cached, written = stated
    if cached is None and facts.read is not None:
        cached = round(given * facts.read, 12)
    if written is None and facts.write is not None:
        written = round(given * facts.write, 12)
    return given, output, cached, written


def format_map(entries: Mapping[str, ModelEntry], origin: str, made: date, rules: Sequence[CacheRule] = ()) -> str:
    """Return the file's content: one rule or model a line, so that two versions can be compared."""
    lines = ",\n".join(f"{json.dumps(name)}:{msgspec.json.encode(entry).decode()}" for name, entry in entries.items())
    caches = ",\n".join(msgspec.json.encode(rule).decode() for rule in rules)
    head = f'{{"source":{json.dumps(origin)},"date":"{made}","caches":[\n{caches}\n],"models":{{'
    return f"{head}\n{lines}\n}}}}\n"


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
    day, rules = read_rules(FACTS_PATH.read_bytes())
    entries = convert(json.loads(find_source().read_bytes()), rules)
    origin = f"litellm {version('litellm')}; caches: facts of {day}"
    MAP_PATH.write_text(format_map(entries, origin, datetime.now(UTC).date(), rules))
    print(f"{MAP_PATH}: {len(entries):,} models, {len(rules)} rules of caches, {MAP_PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
