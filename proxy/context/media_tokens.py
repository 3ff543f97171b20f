"""Tokens of images, documents and audio by the rules that providers publish.

Rule: a size that the request does not tell counts as the largest the rule knows, so that a budget errs on the safe
side. The rules are OpenAI's "Images and vision", Anthropic's "Vision", "PDF support" and "Tool use", Gemini's
"Understand and count tokens"; models of nobody we know are counted by Anthropic's rule for images.
"""

from collections.abc import Sequence
from math import ceil

from proxy.context.model_names import Family, Vendor, strip_provider
from proxy.model.countable import Medium

# OpenAI: tokens of a picture, and of each tile of 512 pixels; the longest beginning of a name counts.
_TILES = {
    "": (85, 170),
    "gpt-4o-mini": (2833, 5667),
    "gpt-5": (70, 140),
    "o1": (75, 150),
    "o3": (75, 150),
    "computer-use": (65, 129),
}
# OpenAI: tokens of each patch of 32 pixels, for models that count so.
_PATCHES = {
    "gpt-4.1-mini": 1.62,
    "gpt-4.1-nano": 2.46,
    "gpt-5-mini": 1.62,
    "gpt-5-nano": 2.46,
    "o4-mini": 1.72,
}
_MOST_PATCHES = 1536
_MOST_TILES = 8

_ANTHROPIC_SIDE, _ANTHROPIC_MOST = 1568, 1600
_GEMINI_IMAGE, _GEMINI_SIDE, _GEMINI_TILE, _GEMINI_MOST_TILES = 258, 384, 768, 6

# A page of a document as text and picture together; Gemini states one figure for both.
_PAGE: dict[Vendor, int] = {"openai": 2000, "anthropic": 3000, "gemini": 258, "other": 3000}
_PAGE_BYTES, _MOST_PAGES = 50_000, 100

_AUDIO_PER_SECOND: dict[Vendor, int] = {"openai": 10, "anthropic": 32, "gemini": 32, "other": 32}
_AUDIO_BYTES_PER_SECOND, _UNKNOWN_SECONDS = 8_000, 60.0

_TOOL_PROMPT: dict[Vendor, int] = {"openai": 0, "anthropic": 346, "gemini": 0, "other": 0}


def count_media(media: Sequence[Medium], family: Family, model: str) -> int:
    """The tokens of all media of a message."""
    return sum([_COUNTS[medium.kind](medium, family.vendor, strip_provider(model.lower())) for medium in media])


def count_tool_prompt(family: Family) -> int:
    """What a provider adds of its own to a request that offers tools."""
    return _TOOL_PROMPT[family.vendor]


def _count_image(medium: Medium, vendor: Vendor, model: str) -> int:
    if vendor == "openai":
        return _count_openai(medium, model)
    if vendor == "gemini":
        return _count_gemini(medium)
    if not medium.width:
        return _ANTHROPIC_MOST
    shrunk = min(1.0, _ANTHROPIC_SIDE / max(medium.width, medium.height))
    return min(_ANTHROPIC_MOST, ceil(medium.width * medium.height * shrunk**2 / 750))


def _count_openai(medium: Medium, model: str) -> int:
    patches = _find_longest(_PATCHES, model)
    if patches is not None:
        return ceil(_count_patches(medium) * _PATCHES[patches])
    base, tile = _TILES[_find_longest(_TILES, model) or ""]
    return base if medium.is_low else base + tile * _count_tiles(medium)


def _count_patches(medium: Medium) -> int:
    """Patches of 32 pixels, of a picture shrunk until there are no more than `_MOST_PATCHES`."""
    if not medium.width:
        return _MOST_PATCHES
    return min(_MOST_PATCHES, ceil(medium.width / 32) * ceil(medium.height / 32))


def _count_tiles(medium: Medium) -> int:
    """Tiles of 512 pixels, of a picture brought into a square of 2048 and then to a short side of 768."""
    if not medium.width:
        return _MOST_TILES
    shrunk = min(1.0, 2048 / max(medium.width, medium.height))
    width, height = medium.width * shrunk, medium.height * shrunk
    shrunk = min(1.0, 768 / min(width, height))
    return ceil(width * shrunk / 512) * ceil(height * shrunk / 512)


def _count_gemini(medium: Medium) -> int:
    if not medium.width:
        return _GEMINI_IMAGE * _GEMINI_MOST_TILES
    if max(medium.width, medium.height) <= _GEMINI_SIDE:
        return _GEMINI_IMAGE
    return _GEMINI_IMAGE * ceil(medium.width / _GEMINI_TILE) * ceil(medium.height / _GEMINI_TILE)


def _count_document(medium: Medium, vendor: Vendor, _: str) -> int:
    pages = medium.pages or ceil(medium.size / _PAGE_BYTES) or _MOST_PAGES
    return _PAGE[vendor] * pages


def _count_audio(medium: Medium, vendor: Vendor, _: str) -> int:
    seconds = medium.seconds or medium.size / _AUDIO_BYTES_PER_SECOND or _UNKNOWN_SECONDS
    return ceil(_AUDIO_PER_SECOND[vendor] * seconds)


def _find_longest(names: dict[str, float] | dict[str, tuple[int, int]], model: str) -> str | None:
    return max((name for name in names if model.startswith(name)), key=len, default=None)


_COUNTS = {"image": _count_image, "document": _count_document, "audio": _count_audio}
