"""Models of providers' prompt caches, their calibration, and why one was not read (BEHAVIOUR B11, FEATURES P23).

A retention is a declared one; where it is None (unknown) a cache never counts as cold. Sources are the providers'
pages: OpenAI's and Azure's "Prompt caching", Anthropic's "Prompt caching", DeepSeek's "Context caching".

Why a cache was not read: a prompt is compared with its precedent, the one of the session's earlier prompts with which
it shares most messages. What that left in the cache should be read again, up to the prompt's own size. Where less was
read, the first part of the prompt that differs is the cause, unless the cache was known to be cold, or the difference
does not explain what was missed.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.context.model_catalog import identify_family
from proxy.model.epoch import Plan
from proxy.model.exchange import MissCause, Usage
from proxy.model.lineage import LAYER_SIZE, LAYERS, Layer, count_shared_nodes

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


Use = Literal["first", "read", "missed", "unreported"]
"""`first`: nothing was to be read, since nothing like it was sent before, or too little to be cached."""

# Providers' templates put a few tokens behind the last message that the next request does not repeat.
_SLACK_TOKENS, _SLACK_SHARE = 128, 0.02
_MOST_ENDS = 16
# A longer history of which no message is known is a known one whose first message was changed.
_LONG = 2


class SentPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt that was sent, and the usage that came back.

    `nodes` are those of the client's messages, `layers` as in `Step`. `rewriting` names what was sent in place of the
    beginning of its history: an epoch, or a fallback level. `why` that epoch was opened is set in its first prompt.
    `ready_ms` is when the response began: no prompt that was sent before can have read this one.
    """

    exchange: str
    upstream: str
    model: str
    nodes: Sequence[bytes]
    layers: bytes = b""
    rewriting: str = ""
    why: str = ""
    sent_ms: float = 0.0
    ready_ms: float = 0.0
    usage: Usage = Usage()

    def has_model_of(self, other: "SentPrompt") -> bool:
        """Return whether both went to the same model of the same upstream."""
        return (self.upstream, self.model) == (other.upstream, other.model)


class Precedent(NamedTuple):
    """The earlier prompt that another one continues, and how many messages they share."""

    prompt: SentPrompt
    shared: int


class PromptTrail:
    """The prompts of one session that later ones may continue: the last of each branch and model."""

    def __init__(self) -> None:
        self._ends: list[SentPrompt] = []

    @property
    def weight(self) -> int:
        """The number of nodes that it holds in memory."""
        return sum([len(end.nodes) for end in self._ends])

    def find(self, prompt: SentPrompt) -> Precedent | None:
        """Return the precedent of a prompt: the one that shares most with it, at best to its model, then the newest."""
        ready = [end for end in self._ends if end.ready_ms <= prompt.sent_ms]
        ranks = [
            (count_shared_nodes(end.nodes, prompt.nodes), end.has_model_of(prompt), at) for at, end in enumerate(ready)
        ]
        shared, _, at = max(ranks, default=(0, False, 0))
        if shared:
            return Precedent(ready[at], shared)
        for end in reversed(ready):
            if _LONG < len(end.nodes) <= len(prompt.nodes) and end.has_model_of(prompt):
                return Precedent(end, 0)
        return None

    def add(self, prompt: SentPrompt) -> None:
        """Add a prompt that was answered, in place of the one that it continues."""
        self._ends = [end for end in self._ends if not _is_continued(end, prompt)][-_MOST_ENDS + 1 :]
        self._ends.append(prompt)


def _is_continued(end: SentPrompt, prompt: SentPrompt) -> bool:
    return end.has_model_of(prompt) and count_shared_nodes(end.nodes, prompt.nodes) == len(end.nodes)


class CacheUse(msgspec.Struct, frozen=True, gc=False):
    """What a prompt read of a provider's cache, in tokens as the provider counted them.

    `expected` should have been read. `missed` and the `cause` are set where clearly less was. `place` is the number of
    the message that the client changed, counted from 1 after the system prompt, 0 if none or unknown. `idle` are the
    seconds since the precedent. `is_told`: the provider named the cause itself.
    """

    use: Use
    read: int | None = None
    written: int | None = None
    expected: int = 0
    missed: int = 0
    cause: MissCause | Literal[""] = ""
    place: int = 0
    why: str = ""
    idle: float | None = None
    is_told: bool = False


class _Change(NamedTuple):
    """The first part of a prompt that differs from its precedent, and the tokens that go before it."""

    cause: MissCause
    matching: int = 0
    place: int = 0


def explain_use(
    prompt: SentPrompt, precedent: Precedent | None, cache: CacheModel, told: MissCause | Literal[""] = ""
) -> CacheUse:
    """Return what a prompt read of the cache, and why it was not more. `told` is the provider's own diagnosis."""
    usage = prompt.usage
    if usage.input is None or usage.cached is None:
        return CacheUse("unreported", usage.cached, usage.written)
    read = usage.cached
    held = 0 if precedent is None else _count_held(precedent.prompt, cache)
    expected = cache.find_read(min(held, usage.input))
    if precedent is None or not expected:
        return CacheUse("first", read, usage.written)
    idle = max(0.0, prompt.sent_ms - precedent.prompt.sent_ms) / 1000
    missed, slack = max(0, expected - read), max(cache.block, compute_slack(expected))
    if missed <= slack:
        return CacheUse("read", read, usage.written, expected, idle=idle)
    change = _find_cause(prompt, precedent, cache, expected, slack)
    is_told = bool(told) and change.cause in ("provider", "unrecorded")
    return CacheUse(
        "missed",
        read,
        usage.written,
        expected,
        missed,
        told if told and is_told else change.cause,
        change.place,
        prompt.why if change.cause == "epoch" else "",
        idle,
        is_told,
    )


def compute_slack(expected: float) -> float:
    """Return by how many tokens what is read may differ from what is expected without a reason."""
    return max(_SLACK_TOKENS, _SLACK_SHARE * expected)


def _count_held(before: SentPrompt, cache: CacheModel) -> int:
    """Return the tokens that a prompt left in the cache: what its markers covered, or all of it."""
    usage = before.usage
    if cache.kind == "breakpoints" and usage.cached is not None and usage.written is not None:
        return usage.cached + usage.written
    return usage.input or 0


def _find_cause(prompt: SentPrompt, precedent: Precedent, cache: CacheModel, expected: int, slack: float) -> _Change:
    before, read = precedent.prompt, prompt.usage.cached or 0
    if not prompt.has_model_of(before):
        return _Change("model")
    change = _find_change(prompt, precedent, expected)
    matching = 0 if change is None else cache.find_read(change.matching)
    is_alive = slack < matching <= read + slack  # all that a change left to be read was read
    if cache.is_cold((prompt.sent_ms - before.sent_ms) / 1000) and not is_alive:
        return _Change("idle")
    if change is None:
        return _Change("provider" if prompt.layers and before.layers else "unrecorded")
    # Where only whole marked parts are read, the part before a change may be none of them.
    is_by_prefix = cache.kind in ("prefix", "local")
    if is_by_prefix and change.cause == "message" and matching - read > expected - matching:
        return _Change("provider")
    return change


def _find_change(prompt: SentPrompt, precedent: Precedent, expected: int) -> _Change | None:
    """Return the first part that differs, in the order of a prompt. Parameters come last: not all of them matter."""
    before, shared = precedent.prompt, precedent.shared
    layers = _list_changed(prompt.layers, before.layers)
    for layer in layers:
        if layer != "parameters":
            return _Change(layer)
    is_edited = shared < len(before.nodes)
    if prompt.rewriting != before.rewriting and not (prompt.why == "client" and is_edited):
        return _Change("epoch")
    if is_edited:
        return _Change("message", int(expected * shared / len(before.nodes)), shared + 1)
    return _Change("parameters") if layers else None


def _list_changed(layers: bytes, before: bytes) -> list[Layer]:
    if not (layers and before):
        return []
    parts = [slice(at, at + LAYER_SIZE) for at in range(0, len(LAYERS) * LAYER_SIZE, LAYER_SIZE)]
    return [layer for layer, part in zip(LAYERS, parts, strict=True) if layers[part] != before[part]]


def name_rewriting(plan: Plan | None) -> str:
    """Return what a plan sends in place of the beginning of a history, as `SentPrompt.rewriting` has it."""
    if plan is None:
        return ""
    return plan.epoch or (plan.rung if plan.rung != "original" else "")
