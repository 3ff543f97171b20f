"""A catalog of models: family by name, window, output and prices by listing, and the tokens of media.

The nearest source wins, value by value: settings, then the upstream itself, then the bundled map. Media rules are
OpenAI's "Images and vision", Anthropic's "Vision", "PDF support" and "Tool use", Gemini's "Understand and count
tokens"; a size that the request does not state counts as the largest of the rule.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Literal, TypeVar

from proxy.model import Value
from proxy.model.card import UNPRICED, Card, Limit, Offer, Source
from proxy.model.messages import Medium

Encoding = Literal["o200k_base", "cl100k_base"]
Vendor = Literal["openai", "anthropic", "gemini", "other"]

# `-2024-08-06`, `-20241022`, `@20240620`, `-0613`, `-latest`, `-preview-05-06`, Bedrock's `-v1:0`
_VARIANT = re.compile(
    r"(?:[-@](?:20\d{2}-?[01]\d-?[0-3]\d|[01]\d-?[0-3]\d|latest|default|preview|exp)|-v\d+)$", re.IGNORECASE
)
_REGION = re.compile(r"^(?:us|eu|apac|au|jp|global|us-gov)\.(?=[a-z]+\.)")
_CLOUD_VENDOR = re.compile(r"^(?:anthropic|amazon|meta|mistral|deepseek|cohere|ai21|openai|qwen)\.")

_OLD_OPENAI = re.compile(r"gpt-(?:4(?![o.\d])|3\.5|35)|text-embedding-(?:3|ada)")
_OPENAI = re.compile(r"(?:chat)?gpt|o\d|codex|davinci|text-embedding-")


class Family(Value):
    """A vendor's rules and an encoding for a model's tokens. `is_exact`: the encoding is the model's own."""

    vendor: Vendor
    encoding: Encoding
    is_exact: bool


def list_names(model: str) -> tuple[str, ...]:
    """Return the names that an entry for this model may have, the most exact first, in lower case.

    They are the name itself; without what precedes each slash; without a variant after a colon (`:free`, `:8b`);
    without region and vendor of a cloud (`us.anthropic.`); without dates, versions and `latest`, one after the other.
    """
    name = model.strip().lower()
    found = dict.fromkeys([name])
    for spelled in _without_prefixes(name):
        found[spelled] = None
    for spelled in tuple(found):
        found |= dict.fromkeys(_without_variants(spelled))
    return tuple(found)


def strip_provider(name: str) -> str:
    """Return the part of an entry's name after the last slash."""
    return name.rpartition("/")[2]


@lru_cache(maxsize=1024)
def identify_family(model: str) -> Family:
    """Return the family of a model by its name; `other` where the name is of no known vendor."""
    name = strip_cloud(model)
    if _OLD_OPENAI.match(name):
        return Family("openai", "cl100k_base", is_exact=True)
    if _OPENAI.match(name):
        return Family("openai", "o200k_base", is_exact=True)
    if name.startswith("claude"):
        return Family("anthropic", "o200k_base", is_exact=False)
    if name.startswith(("gemini", "gemma")):
        return Family("gemini", "o200k_base", is_exact=False)
    return Family("other", "o200k_base", is_exact=False)


def strip_cloud(model: str) -> str:
    """Return the name of a model without the provider before it, and without region and vendor of a cloud."""
    name = strip_provider(model.strip().lower())
    return _CLOUD_VENDOR.sub("", _REGION.sub("", name))


# No name has more slashes or variants. Each is cut off by itself, so that more of them would take quadratic time.
_MOST_PARTS = 16


def _without_prefixes(name: str) -> list[str]:
    found: list[str] = []
    while "/" in name and len(found) < _MOST_PARTS:
        name = name.partition("/")[2]
        found.append(name)
    bare = strip_cloud(name)
    return [*found, *([bare] if bare != name else [])]


def _without_variants(name: str) -> list[str]:
    found = list[str]()
    if ":" in name:
        name = name.partition(":")[0]
        found.append(name)
    while (shorter := _VARIANT.sub("", name)) != name and len(found) < _MOST_PARTS:
        name = shorter
        found.append(name)
    return found


_MIN_BELIEVED_SHARE = 0.25
_REMEMBERED_SECONDS = 24 * 3600.0

T = TypeVar("T")
SourcedOffer = tuple[Source, Offer]


def make_card(said: Sequence[SourcedOffer], limit: Limit | None, now: float) -> Card:
    """Make a card of the offers of several sources, the nearest first, and of a learned limit that holds at `now`."""
    window, window_source = _choose_first((source, offer.window) for source, offer in said)
    output, output_source = _choose_first((source, offer.output) for source, offer in said)
    prices, prices_source = _choose_first((source, offer.prices) for source, offer in said)
    retention, _ = _choose_first((source, offer.retention) for source, offer in said)
    caches, _ = _choose_first((source, offer.caches or None) for source, offer in said)
    if limit is not None and is_believed(limit, window, now, is_set=window_source == "settings"):
        window, window_source = limit.window, "learned"
    return Card(
        window, output, prices or UNPRICED, window_source, output_source, prices_source, retention, caches or ()
    )


def is_believed(limit: Limit, stated: int | None, now: float, *, is_set: bool = False) -> bool:
    """Return whether a learned window counts in place of one that is `stated` elsewhere.

    One that the upstream named does, but none above one that `is_set` by settings. One that was inferred does for 24
    hours if it is less than was sent, and 25 to 100 % of the other.
    """
    if limit.is_stated:
        return limit.window > 0 and not (is_set and stated is not None and limit.window > stated)
    if not 0 < limit.window < limit.sent or now - limit.learned >= _REMEMBERED_SECONDS:
        return False
    return stated is None or _MIN_BELIEVED_SHARE * stated <= limit.window <= stated


class ModelNames:
    """An index of a map's entries by name, to find those of a model."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._whole = {name.lower(): name for name in reversed(entries)}
        self._bare: dict[str, list[str]] = {}
        for name in entries:
            self._bare.setdefault(strip_provider(name.lower()), []).append(name)

    def find(self, model: str) -> Sequence[str]:
        """Return the entry of that name, else all that differ only in the provider; by the most exact name with any."""
        for name in list_names(model):
            if name in self._whole:
                return (self._whole[name],)
            if name in self._bare:
                return self._bare[name]
        return ()


def look_up_offer(names: ModelNames, offers: Mapping[str, Offer], model: str) -> Offer:
    """Return the offer of a model in a listing; an empty one where the listing has none."""
    return merge_offers([offers[name] for name in names.find(model)])


def merge_offers(offers: Sequence[Offer]) -> Offer:
    """Merge the offers of several providers of one model: the smallest of each size, prices only if all agree."""
    prices = {offer.prices for offer in offers}
    return Offer(
        window=min((offer.window for offer in offers if offer.window), default=None),
        output=min((offer.output for offer in offers if offer.output), default=None),
        prices=prices.pop() if len(prices) == 1 else None,
    )


def _choose_first(values: Iterable[tuple[Source, T | None]]) -> tuple[T | None, Source]:
    for source, value in values:
        if value is not None:
            return value, source
    return None, ""


# OpenAI: tokens of an image, and of each tile of 512 pixels; the longest prefix of a name counts.
_TILES = {
    "": (85, 170),
    "gpt-4o-mini": (2833, 5667),
    "gpt-5": (70, 140),
    "o1": (75, 150),
    "o3": (75, 150),
    "computer-use": (65, 129),
}
# OpenAI: tokens of each patch of 32 pixels, for models that count patches.
_PATCHES = {
    "gpt-4.1-mini": 1.62,
    "gpt-4.1-nano": 2.46,
    "gpt-5-mini": 1.62,
    "gpt-5-nano": 2.46,
    "o4-mini": 1.72,
}
_MAX_PATCHES = 1536
_MAX_TILES = 8

_ANTHROPIC_SIDE, _ANTHROPIC_MAX = 1568, 1600
_GEMINI_IMAGE, _GEMINI_SIDE, _GEMINI_TILE, _GEMINI_MAX_TILES = 258, 384, 768, 6

# Tokens of a document's page as text and image together; Gemini states one figure for both.
_PAGE: dict[Vendor, int] = {"openai": 2000, "anthropic": 3000, "gemini": 258, "other": 3000}
_PAGE_BYTES = 50_000
# The first guess for a document by reference, until usage tells its size: too low a guess costs one call that is cut
# late, too high a one shortens each call of a short session. opencode estimates as many.
_UNKNOWN_DOCUMENT = 2_000

_AUDIO_PER_SECOND: dict[Vendor, int] = {"openai": 10, "anthropic": 32, "gemini": 32, "other": 32}
_AUDIO_BYTES_PER_SECOND, _UNKNOWN_SECONDS = 8_000, 60.0

_TOOL_PROMPT: dict[Vendor, int] = {"openai": 0, "anthropic": 346, "gemini": 0, "other": 0}


def count_media(media: Sequence[Medium], family: Family, model: str) -> int:
    """Return the tokens of all media of a message."""
    return sum([_COUNTS[medium.kind](medium, family.vendor, strip_provider(model.lower())) for medium in media])


def count_tool_prompt(family: Family) -> int:
    """Return the tokens that a provider adds to a request that offers tools."""
    return _TOOL_PROMPT[family.vendor]


def _count_image(medium: Medium, vendor: Vendor, model: str) -> int:
    if vendor == "openai":
        return _count_openai(medium, model)
    if vendor == "gemini":
        return _count_gemini(medium)
    if not medium.width:
        return _ANTHROPIC_MAX
    shrunk = min(1.0, _ANTHROPIC_SIDE / max(medium.width, medium.height))
    return min(_ANTHROPIC_MAX, ceil(medium.width * medium.height * shrunk**2 / 750))


def _count_openai(medium: Medium, model: str) -> int:
    patches = _find_longest_prefix(_PATCHES, model)
    if patches is not None:
        return ceil(_count_patches(medium) * _PATCHES[patches])
    base, tile = _TILES[_find_longest_prefix(_TILES, model) or ""]
    return base if medium.is_low else base + tile * _count_tiles(medium)


def _count_patches(medium: Medium) -> int:
    """Return the patches of 32 pixels of an image, which providers shrink to at most `_MAX_PATCHES`."""
    if not medium.width:
        return _MAX_PATCHES
    return min(_MAX_PATCHES, ceil(medium.width / 32) * ceil(medium.height / 32))


def _count_tiles(medium: Medium) -> int:
    """Return the tiles of 512 pixels of an image, shrunk to fit a square of 2048 and then to a short side of 768."""
    if not medium.width:
        return _MAX_TILES
    shrunk = min(1.0, 2048 / max(medium.width, medium.height))
    width, height = medium.width * shrunk, medium.height * shrunk
    shrunk = min(1.0, 768 / min(width, height))
    return ceil(width * shrunk / 512) * ceil(height * shrunk / 512)


def _count_gemini(medium: Medium) -> int:
    if not medium.width:
        return _GEMINI_IMAGE * _GEMINI_MAX_TILES
    if max(medium.width, medium.height) <= _GEMINI_SIDE:
        return _GEMINI_IMAGE
    return _GEMINI_IMAGE * ceil(medium.width / _GEMINI_TILE) * ceil(medium.height / _GEMINI_TILE)


def _count_document(medium: Medium, vendor: Vendor, _: str) -> int:
    pages = medium.pages or ceil(medium.size / _PAGE_BYTES)
    return _PAGE[vendor] * pages or _UNKNOWN_DOCUMENT


def _count_audio(medium: Medium, vendor: Vendor, _: str) -> int:
    seconds = medium.seconds or medium.size / _AUDIO_BYTES_PER_SECOND or _UNKNOWN_SECONDS
    return ceil(_AUDIO_PER_SECOND[vendor] * seconds)


def _find_longest_prefix(names: dict[str, float] | dict[str, tuple[int, int]], model: str) -> str | None:
    return max((name for name in names if model.startswith(name)), key=len, default=None)


_COUNTS = {"image": _count_image, "document": _count_document, "audio": _count_audio}
