"""Models of providers' prompt caches, and their calibration by the tokens that providers report (BEHAVIOUR B11).

A retention is a declared one; where it is None (unknown) a cache never counts as cold. Sources are the providers'
pages: OpenAI's and Azure's "Prompt caching", Anthropic's "Prompt caching", DeepSeek's "Context caching".
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from proxy.context.model_catalog import identify_family

CacheKind = Literal["prefix", "breakpoints", "units", "local"]
"""`prefix`: the longest prefix that was sent before. `breakpoints`: the prefix up to the last marker before any change.
`units`: whole stored units. `local`: the longest prefix, and it saves time, not money."""

# A retention runs from the last use, and a provider's clock starts later than ours.
_MARGIN = 1.2
_TTL = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# Anthropic: writing costs 2 for a retention of an hour, 1.25 (the figure of price lists) for five minutes.
_SHORT_TTL = 300.0
_LONG_WRITE = 2.0


class CacheModel(msgspec.Struct, frozen=True, gc=False):
    """A provider's cache: a read is of whole blocks of `block` tokens, and of `minimum` tokens at least.

    `retention`: the seconds without a read after which content is surely evicted. `is_used` is False where a request
    asks for no caching. `least_write`: the least that writing costs, in multiples of uncached input.
    """

    kind: CacheKind = "prefix"
    block: int = 1
    minimum: int = 0
    retention: float | None = None
    is_used: bool = True
    least_write: float = 0.0

    @property
    def is_head_kept(self) -> bool:
        """True if the prefix before the first change is sure to be read again (B11: else all of it is written anew)."""
        return self.is_used and self.kind in ("breakpoints", "local")

    def find_read(self, matching: int) -> int:
        """Return the tokens that are read of a request whose first `matching` ones were sent before.

        Where the markers and units end is not known: one is taken to end where the match does.
        """
        whole = matching // self.block * self.block
        return whole if self.is_used and whole >= self.minimum else 0

    def is_cold(self, idle: float | None) -> bool:
        """Return whether nothing can be left after `idle` seconds without a request."""
        return self.retention is not None and idle is not None and idle > self.retention * _MARGIN


UNKNOWN = CacheModel()
# OpenAI keeps a prompt for an hour at most, or a day where a request or the model's default asks for it.
_OPENAI = CacheModel(block=128, minimum=1024, retention=86_400.0)
_DEEPSEEK = CacheModel(block=64)
# The least minimum that Anthropic states for its models (1024 to 4096). Its markers state the retention.
_ANTHROPIC = CacheModel("breakpoints", minimum=1024)
_HOSTS = (
    ("anthropic.com", _ANTHROPIC),
    ("openai.com", _OPENAI),
    ("azure.com", _OPENAI),
    ("deepseek.com", _DEEPSEEK),
)


def choose_cache_model(
    kind: CacheKind | None, host: str, model: str, ttls: Sequence[str] = (), retention: float | None = None
) -> CacheModel:
    """Return the cache of a model at a host; `kind` and `retention` are settings, None where they are not set.

    `ttls` are those of the request's cache markers, as sent. Where a model whose provider wants markers is reached at
    another host and the request has none, what that host does is unknown: the longest prefix is assumed.
    """
    found = _choose_by_host(host.lower().rstrip("."))
    if kind is None and ttls and identify_family(model).vendor == "anthropic":
        found = _ANTHROPIC
    if kind is not None and kind != found.kind:
        found = _ANTHROPIC if kind == "breakpoints" else CacheModel(kind)
    if found.kind == "breakpoints":
        found = _apply_markers(found, ttls)
    return found if retention is None else replace(found, retention=retention)


def _choose_by_host(host: str) -> CacheModel:
    for suffix, model in _HOSTS:
        if host == suffix or host.endswith(f".{suffix}"):
            return model
    return UNKNOWN


def _apply_markers(model: CacheModel, ttls: Sequence[str]) -> CacheModel:
    """Return the model with the longest retention of the markers; unknown where one of them cannot be parsed."""
    kept = [_parse_ttl(ttl) for ttl in ttls]
    known = [seconds for seconds in kept if seconds is not None]
    retention = max(known) if known and len(known) == len(kept) else None
    is_long = any(seconds > _SHORT_TTL for seconds in known)
    return replace(model, retention=retention, is_used=bool(ttls), least_write=_LONG_WRITE if is_long else 0.0)


def _parse_ttl(ttl: str) -> float | None:
    match = _TTL.fullmatch(ttl)
    return int(match[1]) * _SECONDS[match[2]] if match else None


_LEARNING_RATE = 0.2
# With fewer, the time to the first byte depends on the network, not on the tokens.
_MIN_TIMED_TOKENS = 4096
_MOSTLY_UNCACHED, _MOSTLY_CACHED = 0.1, 0.9


class Calibration(msgspec.Struct, frozen=True, gc=False):
    """The learned behaviour of a cache.

    `read`: the share that was read of what should have been. `survival`: the share that was read of what precedes an
    epoch's first edit, when the epoch opened; None before the first report. `fresh_seconds` and `cached_seconds`: the
    seconds per token of uncached and of cached input.
    """

    read: float = 1.0
    survival: float | None = None
    fresh_seconds: float | None = None
    cached_seconds: float | None = None

    @property
    def cached_ratio(self) -> float:
        """The time of a cached token as a share of an uncached one's; 0.0 before it was measured."""
        if not self.fresh_seconds or self.cached_seconds is None:
            return 0.0
        return min(1.0, self.cached_seconds / self.fresh_seconds)


def learn_read(calibration: Calibration, expected: int, cached: int | None) -> Calibration:
    """Return the calibration after a report of a request of which `expected` tokens should be read (0: ignored)."""
    if cached is None or expected <= 0:
        return calibration
    return replace(calibration, read=_move_average(calibration.read, _compute_share(cached, expected)))


def learn_survival(calibration: Calibration, stable: int, cached: int | None) -> Calibration:
    """Return the calibration after the report of an epoch's first request; its first `stable` tokens were unchanged."""
    if cached is None or stable <= 0:
        return calibration
    return replace(calibration, survival=_learn_value(calibration.survival, _compute_share(cached, stable)))


def learn_seconds(calibration: Calibration, tokens: int, cached: int | None, seconds: float) -> Calibration:
    """Return the calibration after a time to the first byte of a request that was cached by >= 90 % or <= 10 %."""
    if cached is None or tokens < _MIN_TIMED_TOKENS or seconds < 0:
        return calibration
    share = _compute_share(cached, tokens)
    if share <= _MOSTLY_UNCACHED:
        return replace(
            calibration, fresh_seconds=_learn_value(calibration.fresh_seconds, seconds / ((1 - share) * tokens))
        )
    fresh = calibration.fresh_seconds
    if share < _MOSTLY_CACHED or fresh is None:
        return calibration
    left = max(0.0, seconds - (1 - share) * tokens * fresh)
    return replace(calibration, cached_seconds=_learn_value(calibration.cached_seconds, left / (share * tokens)))


def _compute_share(part: int, whole: int) -> float:
    return min(1.0, max(0, part) / whole)


def _learn_value(known: float | None, seen: float) -> float:
    return seen if known is None else _move_average(known, seen)


def _move_average(known: float, seen: float) -> float:
    return known + _LEARNING_RATE * (seen - known)
