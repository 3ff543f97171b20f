"""Models of providers' prompt caches, and their calibration by the tokens that providers report.

What is known of each provider and generation of models is data: `CacheFacts` of the bundled map, each with its source.
A lifetime is a declared one; where it is None (unknown) a cache never counts as cold.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from proxy.model import Value
from proxy.model.card import UNASKED, CacheFacts, CacheKind, CacheTerms

# A lifetime runs from the last use, and a provider's clock starts later than ours.
_MARGIN = 1.2
_TTL = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class CacheModel(Value):
    """The cache of one model at one upstream, for requests with the same terms.

    `retention`: the seconds without a read after which content is surely evicted. `is_used` is False where a request
    asks for no caching. `least_write`: the least that writing costs, in multiples of uncached input. `read` and `write`
    are such multiples, too: they count where no source states a price. The other fields are those of `CacheFacts`.
    """

    kind: CacheKind = "prefix"
    block: int = 1
    minimum: int = 0
    retention: float | None = None
    is_used: bool = True
    least_write: float = 0.0
    lookback: int = 0
    most_marks: int = 0
    is_refreshed: bool = True
    has_head_breakpoint: bool = False  # whether the prefix before the messages ends at a breakpoint
    read: float | None = None
    write: float | None = None

    @property
    def is_head_kept(self) -> bool:
        """True if the prefix before the first change is sure to be read again; else all of it is written anew."""
        return self.is_used and (self.kind == "local" or (self.has_breakpoints and self.has_head_breakpoint))

    @property
    def has_breakpoints(self) -> bool:
        """True if a read ends at a breakpoint, or near one."""
        return self.kind in ("breakpoints", "openai-breakpoints")

    def find_read(self, matching: int, ends: Sequence[int] | None = None) -> int:
        """Return the tokens that are read of a request whose first `matching` ones were sent before.

        `ends` are the tokens up to each breakpoint. If they are not given, one is taken to end where the match does.
        """
        if ends is not None and self.has_breakpoints:
            matching = max((end for end in ends if end <= matching), default=0)
        whole = matching // self.block * self.block
        return whole if self.is_used and whole >= self.minimum else 0

    def list_readable(self, breakpoints: Sequence[int], count: int) -> list[int]:
        """Return the indexes of the blocks up to which a prompt may be read, the last one first.

        It has `count` blocks; those at `breakpoints`, in order, end at a breakpoint.
        """
        if self.kind == "openai-breakpoints":
            return list(reversed(breakpoints[-self.lookback :] if self.lookback else breakpoints))
        if self.kind != "breakpoints":
            return list(reversed(range(count)))
        reach = self.lookback or count
        return sorted({place for at in breakpoints for place in range(max(0, at - reach + 1), at + 1)}, reverse=True)

    def is_cold(self, idle: float | None) -> bool:
        """Return whether nothing can be left after `idle` seconds without a request."""
        return self.retention is not None and idle is not None and idle > self.retention * _MARGIN


UNKNOWN = CacheModel()


@lru_cache(maxsize=1024)
def choose_cache_model(
    facts: tuple[CacheFacts, ...],
    kind: CacheKind | None,
    host: str,
    terms: CacheTerms = UNASKED,
    retention: float | None = None,
) -> CacheModel:
    """Return the cache of a model at a host; `kind` and `retention` are settings, None where they are not set.

    `facts` are those of the model. Where a model whose provider wants markers is reached at another host and the
    request has none, what that host does is unknown: the longest prefix is assumed.
    """
    found = _choose_facts(facts, kind, host.lower().rstrip("."), terms)
    if found is None:
        return UNKNOWN if retention is None else CacheModel(retention=retention)
    lifetimes = _list_lifetimes(found, terms)
    known = [seconds for seconds in lifetimes if seconds is not None]
    is_whole = len(known) == len(lifetimes)
    is_long = found.lifetime is not None and any(seconds > found.lifetime for seconds in known)
    return CacheModel(
        found.kind,
        found.block,
        found.minimum,
        retention=retention if retention is not None else max(known, default=None) if is_whole else None,
        is_used=_is_used(found, terms),
        least_write=found.long_write or 0.0 if is_long else 0.0,
        lookback=found.lookback,
        most_marks=found.most_marks,
        is_refreshed=found.is_refreshed,
        has_head_breakpoint=_has_head_breakpoint(found, terms),
        read=found.read,
        write=found.write,
    )


def _choose_facts(
    facts: Sequence[CacheFacts], kind: CacheKind | None, host: str, terms: CacheTerms
) -> CacheFacts | None:
    if kind is None:
        return next((each for each in facts if not each.is_default and _applies_at(each, host, terms)), None)
    of_kind = [each for each in facts if each.kind == kind]
    at_host = (each for each in of_kind if _is_host_of(each, host))
    stated = next(at_host, None) or next((each for each in of_kind if each.is_default), None)
    return stated or CacheFacts(kind, "the settings")


def _applies_at(facts: CacheFacts, host: str, terms: CacheTerms) -> bool:
    if facts.kind == "breakpoints" and not facts.hosts:
        return bool(terms.markers)
    return not facts.hosts or _is_host_of(facts, host)


def _is_host_of(facts: CacheFacts, host: str) -> bool:
    if not facts.hosts:
        return not facts.is_default
    return any(host == name or host.endswith(f".{name}") for name in facts.hosts)


def _is_used(facts: CacheFacts, terms: CacheTerms) -> bool:
    if facts.kind == "breakpoints":
        return bool(terms.markers)
    return not terms.is_explicit or facts.kind != "openai-breakpoints"


def _has_head_breakpoint(facts: CacheFacts, terms: CacheTerms) -> bool:
    """Return whether a breakpoint ends what precedes the messages. OpenAI sets one behind leading instructions."""
    if facts.kind == "openai-breakpoints":
        return terms.has_leading and not terms.is_explicit
    return facts.kind == "breakpoints" and bool(terms.head)


def _list_lifetimes(facts: CacheFacts, terms: CacheTerms) -> list[float | None]:
    """Return the lifetimes that the request's own terms set, or else the declared one. None: it cannot be parsed."""
    if facts.kind == "breakpoints":
        return [_parse_ttl(ttl) for ttl in terms.markers]
    if terms.lifetime and facts.lifetime is not None:
        name = terms.lifetime.replace("-", "_")
        return [dict(facts.named).get(name, _parse_ttl(name))]
    return [facts.lifetime]


def _parse_ttl(ttl: str) -> float | None:
    match = _TTL.fullmatch(ttl)
    return int(match[1]) * _SECONDS[match[2]] if match else None


_LEARNING_RATE = 0.2
# With fewer, the time to the first byte depends on the network, not on the tokens.
_MIN_TIMED_TOKENS = 4096
_MOSTLY_UNCACHED, _MOSTLY_CACHED = 0.1, 0.9
HARDLY_ANY = 0.05
"""A cache of which less is read than this share of what should be is none."""
# A single miss may have any cause: an eviction, another machine. Several in a row show how the cache works.
_MANY_MISSES = 4
# Many providers cache no shorter prefix, so that reading none of one shows nothing.
_LEAST_MISSED = 4096


class Calibration(Value):
    """The learned behaviour of a cache.

    `read`: the share that was read of what should have been. `survival`: the share that was read of what precedes an
    epoch's first edit, when the epoch opened; None before the first report. `fresh_seconds` and `cached_seconds`: the
    seconds per token of uncached and of cached input. `counted`: the provider's tokens for each of ours in the last
    response, None before the first. `misses`: the reports in a row that nothing was read of what should have been.
    """

    read: float = 1.0
    survival: float | None = None
    fresh_seconds: float | None = None
    cached_seconds: float | None = None
    counted: float | None = None
    misses: int = 0

    @property
    def is_missing(self) -> bool:
        """True if the cache surely is not what it is said to be: nothing is read of it again and again."""
        return self.misses >= _MANY_MISSES

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
    share = _compute_share(cached, expected)
    learned = replace(
        calibration,
        read=_move_average(calibration.read, share),
        misses=_count_misses(calibration.misses, expected, share),
    )
    return replace(learned, read=min(learned.read, share)) if learned.is_missing else learned


def _count_misses(before: int, expected: int, share: float) -> int:
    if share >= HARDLY_ANY:
        return 0
    return before + (expected >= _LEAST_MISSED)


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
