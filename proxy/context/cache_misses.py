"""Why a provider's cache was not read.

A prompt is compared with its precedent, the one of the session's earlier prompts with which it shares most messages.
What that left in the cache should be read again, up to the prompt's own size. Where less was read, the first part of
the prompt that differs is the cause, unless the cache was known to be cold, or the difference does not explain what was
missed.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from proxy.context.provider_cache import CacheModel
from proxy.model import Value
from proxy.model.epoch import Plan
from proxy.model.exchange import MissCause, Usage
from proxy.model.lineage import LAYER_SIZE, LAYERS, Layer, count_shared_nodes

Use = Literal["first", "read", "missed", "unreported"]
"""`first`: nothing was to be read, since nothing like it was sent before, or too little to be cached."""

# Providers' templates put a few tokens behind the last message that the next request does not repeat.
SLACK_TOKENS, SLACK_SHARE = 128, 0.02
_MOST_ENDS = 16
# A longer history of which no message is known is a known one whose first message was changed.
_LONG = 2


class SentPrompt(Value):
    """A prompt that was sent, and the usage that came back.

    `nodes` are those of the client's messages, `layers` as in `Lineage`. `rewriting` names what went in place of the
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
        self.weight = 0  # the number of nodes that it holds in memory

    def find(self, prompt: SentPrompt) -> Precedent | None:
        """Return the precedent of a prompt: the one that shares most with it, at best to its model, then the newest."""
        found, best, changed = None, (0, False), None
        for end in self._ends:
            if end.ready_ms > prompt.sent_ms:
                continue
            is_same = end.has_model_of(prompt)
            rank = count_shared_nodes(end.nodes, prompt.nodes), is_same
            if rank[0] and rank >= best:
                found, best = end, rank
            elif is_same and _LONG < len(end.nodes) <= len(prompt.nodes):
                changed = end
        if found is not None:
            return Precedent(found, best[0])
        return Precedent(changed, 0) if changed is not None else None

    def add(self, prompt: SentPrompt) -> None:
        """Add a prompt that was answered, in place of the one that it continues."""
        kept = [
            end
            for end in self._ends
            if not end.has_model_of(prompt) or count_shared_nodes(end.nodes, prompt.nodes) < len(end.nodes)
        ]
        self._ends = [*kept[-_MOST_ENDS + 1 :], prompt]
        self.weight = sum([len(end.nodes) for end in self._ends])


class CacheUse(Value):
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
    cached = 0 if precedent is None else _count_cached(precedent.prompt, cache)
    expected = cache.find_read(min(cached, usage.input))
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


def can_have_missed(prompt: SentPrompt, precedent: Precedent | None) -> bool:
    """Return whether a cache of any kind may have missed something that counts."""
    usage = prompt.usage
    if precedent is None or usage.input is None or usage.cached is None:
        return False
    return min(precedent.prompt.usage.input or 0, usage.input) - usage.cached > SLACK_TOKENS


def compute_slack(expected: float) -> float:
    """Return by how many tokens what is read may differ from what is expected without a reason."""
    return max(SLACK_TOKENS, SLACK_SHARE * expected)


def _count_cached(before: SentPrompt, cache: CacheModel) -> int:
    """Return the tokens that a prompt left in the cache: what its breakpoints covered, or all of it."""
    usage = before.usage
    if cache.has_breakpoints and usage.cached is not None and usage.written is not None:
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
    # Where reads end at breakpoints or whole units, the part before a change may be none of them.
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
