"""Token budgets of requests, and estimates of their tokens without a tokenizer.

A budget follows from window, output and policy alone. No tokens are counted where the bytes prove a request small.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TypeVar

from msgspec.structs import replace

from proxy.context.model_catalog import Family
from proxy.model import Value
from proxy.model.card import UNPRICED, Prices
from proxy.model.epoch import Pressure, Strategy
from proxy.model.settings import AutoFraction, AutoMargin, AutoTokens, DottedPath, PositiveFraction, Tokens

_T = TypeVar("_T")

# Replaying working days, this costs four fifths of what 200,000 does and keeps as many references. 64,000 costs less
# still, but of days of 400,000 tokens it loses a fourth of the far references (table in `docs/measurements.md`).
AUTO_CEILING = 128_000
_LARGE_BUDGET = 60_000
LEAST_TRIGGER = 8_000
"""Tokens below which no client's trigger lowers a budget: the rules of epochs were measured from there on."""
_MARGIN_PERCENT = 3
_MOST_PROTECTED, _MOST_PROTECTED_AT_TRIGGER = 0.7, 0.6
_LARGE_LOW_FRACTION, _SMALL_LOW_FRACTION = 0.2, 0.3
_NEAR_WINDOW_SHARE = 0.75
# The share of the usable tokens that messages keep beside a preamble which alone is above the ceiling: as much as
# protection gives way for. From the other share on, at which messages have that much less, the marks rise up to that.
_MESSAGES_SHARE, _LIFTED_FROM = 0.3, 0.8
_LEAST_OUTPUT = 4096

# Names and types that add tokens besides a request's own text: media, or history and prompts that the provider stores.
# They match as JSON strings only: inside a text or arguments their quotes would be escaped. Escaped letters could spell
# any of them, so they count as such.
_UNBOUNDED = re.compile(
    rb'"(?:image|image_url|input_image|computer_screenshot|image_generation_call|file|input_file|file_id|document|audio'
    rb"|input_audio|video|video_url|input_video|previous_response_id|conversation|prompt|item_reference|container"
    rb'|container_upload|cached_content|cachedContent)"(?!\s*:\s*null)'
)
# A pattern of its own: both patterns begin with literal bytes, which `re` searches for fast.
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[67])")
# Content that is named, and not in the request.
_REFERRING = re.compile(rb'"(?:file_id|file_url|image_url|url)"\s*:\s*"(?!data:)')
# Tokens that are counted for what a template puts around a message.
MESSAGE_FRAME = 4
Count = Callable[[str], int]
"""Counts the tokens of a text."""

# Instructions that a provider adds where tools are offered (Anthropic states up to 735 tokens), and the template's
# opening of the response.
_ADDED_BY_PROVIDER = 1024


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """How many tokens a request may send upstream."""

    ceiling_tokens: AutoTokens = None
    """Most tokens of a request, tools included. auto: 128,000, or fewer where the model's long-context prices begin
    earlier (docs/ceiling.md). Where system prompt and tools alone take more than 0.8 of it, messages keep 0.2 to 0.3
    of it beside them."""
    soft_fraction: AutoFraction = None
    """Fraction of the budget above which a context is shortened if it pays. auto: 0.6; large ones 0.4."""
    low_fraction: AutoFraction = None
    """Fraction of the budget to which a context is shortened. auto: 0.3; large ones 0.2."""
    output_reserve: Tokens = 8192
    """Tokens reserved for the response where the request sets no limit, if the model allows as many."""
    compaction_reserve: Tokens = 20_000
    """Further tokens of the window kept free, at most an eighth of it."""
    estimator: DottedPath = ""
    """Dotted path of a function estimate(text, model=None) that returns the tokens of a text as an int. It is used
    wherever text is counted, in the worker process, too; model is None for what no model reads yet. Empty: OpenAI's
    encodings."""

    def __post_init__(self) -> None:
        """Raise ValueError if nothing could be gained."""
        if self.soft_fraction is not None and self.low_fraction is not None and self.low_fraction >= self.soft_fraction:
            raise ValueError("low_fraction must be below soft_fraction, or nothing is gained")


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """What differs by model."""

    strategy: Strategy | None = None
    """Strategy of its requests. Without: as for all models."""
    window: AutoTokens = None
    """Its context window; tokens. auto: as known of the model."""
    max_output: AutoTokens = None
    """Most tokens of a response. auto: as known of the model."""
    compaction_ratio: PositiveFraction = 0.8
    """Strategy snapshot: share of the tokens for input above which memory is made."""
    safety_margin_tokens: AutoMargin = None
    """Strategy snapshot: tokens left of these for errors of counting. auto: 3 %."""

    def compute_memory_mark(self, room: int) -> int:
        """Return the tokens of a prompt at which the strategy `snapshot` makes memory, given the room for input.

        The room is the ceiling, or what the window leaves beside the output.
        """
        margin = self.safety_margin_tokens
        margin = room * _MARGIN_PERCENT // 100 if margin is None else margin
        return int(self.compaction_ratio * max(0, room - margin))


_UNSTATED = ModelPolicy()


def find_model_policy(models: Mapping[str, ModelPolicy], model: str) -> ModelPolicy:
    """Return what is stated of a model, by shell patterns of names: the first that matches counts."""
    return next((each for pattern, each in models.items() if fnmatchcase(model, pattern)), _UNSTATED)


_ASSUMED_WINDOW = 200_000


class Budget(Value):
    """The marks of one request, in tokens. A window of None is unknown.

    All shares are of `usable`. `lifted` are tokens of the preamble that do not count: the marks are higher by them.
    `most` are what the window leaves for input, None where it is unknown.
    """

    window: int | None
    output: int
    usable: int
    soft: int
    _low_fraction: float
    most: int | None = None
    lifted: int = 0

    @property
    def high(self) -> int:
        """The tokens from which on an epoch is opened whatever it costs."""
        return self.usable + self.lifted

    def find_room(self) -> int | None:
        """Return the tokens that a request may have so that its response fits; None where the window is unknown."""
        return None if self.window is None else self.window - self.output

    def compute_low_mark(self, protected: int) -> int:
        """Return the target of an epoch in tokens, where `protected` tokens must stay unchanged."""
        wished = max(self._low_fraction * self.usable, protected - self.lifted + 0.2 * self.usable)
        return int(min(0.85 * self.usable, wished)) + self.lifted

    def scale(self, ratio: float) -> "Budget":
        """Return this budget, window included, in units of `ratio` tokens each."""
        if ratio == 1.0:
            return self
        window, most = (None if size is None else int(size / ratio) for size in (self.window, self.most))
        output, usable, soft = (int(size / ratio) for size in (self.output, self.usable, self.soft))
        return Budget(window, output, usable, soft, self._low_fraction, most)

    def lift(self, preamble: int) -> "Budget":
        """Return this budget with marks that leave messages a share of it beside a preamble of so many tokens.

        They rise from a preamble of `_LIFTED_FROM` of the usable tokens on, no higher than the window allows. Managing
        then goes on as if the preamble had `lifted` tokens less.
        """
        slope = _MESSAGES_SHARE / (1 - _LIFTED_FROM)
        wished = min(preamble - (1 - _MESSAGES_SHARE) * self.usable, slope * (preamble - _LIFTED_FROM * self.usable))
        lifted = int(wished if self.most is None else min(wished, self.most - self.usable))
        if lifted <= 0 or not self.usable:
            return self
        return replace(self, soft=self.soft + lifted, lifted=lifted)

    def lower(self, lifted: int) -> "Budget":
        """Return this budget for a request that counts as so many tokens less."""
        if lifted == self.lifted == 0:
            return self
        window, most = (None if size is None else size - lifted for size in (self.window, self.most))
        usable = self.usable + self.lifted - lifted
        return Budget(window, self.output, usable, max(0, self.soft - lifted), self._low_fraction, most)

    def limit(self, usable: int) -> "Budget":
        """Return this budget with at most `usable` tokens usable; the soft mark is lowered in proportion."""
        if usable >= self.high or not self.usable:
            return self
        soft = int((self.soft - self.lifted) * usable / self.usable)
        return Budget(self.window, self.output, max(0, usable), max(0, soft), self._low_fraction, self.most)

    def begin_at(self, trigger: int, protected: int = 0) -> "Budget":
        """Return this budget with its high mark at the `trigger` from which on a client wants outputs cleared.

        A lower high mark stays, and so does the soft mark unless it is higher: nothing is cleared before the client or
        the policy wants it. A trigger counts as more where `protected` tokens would have to give way for it.
        """
        usable = max(trigger, LEAST_TRIGGER, int(protected / _MOST_PROTECTED_AT_TRIGGER))
        if usable >= self.high:
            return self
        low = self._low_fraction if usable >= _LARGE_BUDGET else max(self._low_fraction, _SMALL_LOW_FRACTION)
        return Budget(self.window, self.output, usable, min(self.soft, usable), low, self.most)

    def compute_pressure(self, tokens: int) -> Pressure:
        """Return the pressure of a request of `tokens`: `none` below the soft mark, and where no tokens are usable."""
        if not self.usable or tokens < self.soft:
            return "none"
        return "soft" if tokens < self.high else "hard"

    def is_ceiling_unreachable(self, protected: int) -> bool:
        """Return whether `protected` leaves no epoch that stays below the ceiling for long (`CeilingUnreachable`)."""
        return protected - self.lifted > _MOST_PROTECTED * self.usable

    def is_near_window(self, tokens: int) -> bool:
        """Return whether the upstream may refuse the request as too long: the response head is then held."""
        return self.window is None or tokens >= _NEAR_WINDOW_SHARE * self.window


def make_budget(
    window: int | None,
    most_output: int | None,
    asked_output: int | None,
    policy: BudgetPolicy,
    *,
    prices: Prices = UNPRICED,
    memory: ModelPolicy | None = None,
) -> Budget:
    """Return the budget of a request for `asked_output` tokens (None: unstated) to a model of `most_output` at most.

    The model's `prices` count where the ceiling is `auto`. If `memory` is set, the soft mark is where memory is made.
    """
    output = compute_output_reserve(window, most_output, asked_output, policy)
    room = ceiling = policy.ceiling_tokens or choose_ceiling(prices)
    most = None
    if window is not None:
        left = window - output - min(policy.compaction_reserve, window // 8)
        room, most = min(room, left), _leave_margin(left)
    usable = _leave_margin(room)
    low = policy.low_fraction if policy.low_fraction is not None else _choose_low_fraction(usable)
    soft = compute_soft_mark(usable, policy)
    if memory is not None:
        soft = min(usable, memory.compute_memory_mark(max(0, min(ceiling, (window or _ASSUMED_WINDOW) - output))))
    return Budget(window, output, usable, soft, low, most)


def _leave_margin(room: int) -> int:
    return max(0, room * (100 - _MARGIN_PERCENT) // 100)


def _choose_low_fraction(usable: int) -> float:
    return _LARGE_LOW_FRACTION if usable >= _LARGE_BUDGET else _SMALL_LOW_FRACTION


def choose_ceiling(prices: Prices) -> int:
    """Return what `auto` means for a model: `AUTO_CEILING`, or less where its long-context prices begin earlier.

    Unknown prices have no tiers. The price of cached input does not count here: it decides when an epoch pays, so that
    where reads are cheap there are fewer epochs below the same ceiling.
    """
    base = prices.rates
    dearer = [tier.above for tier in prices.tiers if tier.rates.input > base.input or tier.rates.cached > base.cached]
    return min([AUTO_CEILING, *dearer])


def compute_soft_mark(usable: int, policy: BudgetPolicy) -> int:
    """Return the soft mark: the tokens from which on a request is managed."""
    fraction = policy.soft_fraction
    if fraction is None:
        fraction = 0.4 if usable >= _LARGE_BUDGET else 0.6
    return int(fraction * usable)


def compute_output_reserve(window: int | None, most: int | None, asked: int | None, policy: BudgetPolicy) -> int:
    """Return the tokens kept free for the response: those asked for, else the least of known limits and reserve."""
    if asked is not None:
        return asked
    known = (most, policy.output_reserve, None if window is None else window // 4)
    return min(value for value in known if value is not None)


def take_fitting(items: Iterable[_T], room: float, weigh: Callable[[_T], float]) -> list[_T]:
    """Return the leading items whose weights add up to at most `room`. It stops at the first that does not fit."""
    fitting = []
    for item in items:
        room -= weigh(item)
        if room < 0:
            break
        fitting.append(item)
    return fitting


def find_cap(sizes: Iterable[int], room: float) -> int:
    """Return the size to which the largest of these have to be cut so that all fit into `room`; 0 if they cannot."""
    ordered = sorted(sizes)
    for left, size in zip(range(len(ordered), 0, -1), ordered, strict=True):
        if size > room / left:
            return max(0, int(room / left))
        room -= size
    return ordered[-1] if ordered else 0


def lower_output(asked: int, window: int, sent: int) -> int | None:
    """Return the `max_tokens` with which a request of `sent` tokens fits, or None if context must be cut."""
    fitting = min(asked, window - sent)
    return fitting if fitting >= min(asked, max(_LEAST_OUTPUT, asked // 4)) else None


def bound_tokens(request: bytes) -> int | None:
    """Return an upper bound of a request's tokens, from its bytes, or None if there is none.

    Every tokenizer in use is byte-level BPE, or falls back to bytes: a token has at least one byte of UTF-8. JSON never
    encodes text in fewer bytes than UTF-8, and the frames that templates put around a message, a call or a tool
    (3 to 20 tokens) are shorter than the JSON around it (`{"role":"user","content":""}` has 28 bytes). So there are
    never more tokens than bytes, except for what a provider adds (`_ADDED_BY_PROVIDER`) and for media and stored
    history, which have no bound.
    """
    return len(request) + _ADDED_BY_PROVIDER if has_token_bound(request) else None


def has_token_bound(fresh: bytes) -> bool:
    """Return whether nothing in these bytes can make more tokens than it has bytes."""
    return not (_UNBOUNDED.search(fresh) or _ESCAPED_LETTER.search(fresh))


def has_reference(message: bytes) -> bool:
    """Return whether a message may name content that is not in it, so that nothing in it tells its size."""
    return _REFERRING.search(message) is not None


def is_below_soft_mark(budget: Budget, size: int) -> bool:
    """Return whether a request that `size` bytes (or counted tokens) bound is below the soft mark."""
    return size + _ADDED_BY_PROVIDER < budget.soft


def is_surely_below_soft_mark(budget: Budget, fresh: bytes, counted: int = 0) -> bool:
    """Return whether its bytes alone prove a request to be below the soft mark, so that no tokens need be counted."""
    return is_below_soft_mark(budget, counted + len(fresh)) and has_token_bound(fresh)


LONGEST_RUN = 4096
_BYTES_PER_TOKEN = 3

# A pre-token of o200k or cl100k is letters (with marks), signs, or white space, and a few characters around them. So it
# is long only if it has one of these runs. Non-ASCII characters may be of any kind.
_STEP = LONGEST_RUN // 2
_KINDS = tuple(
    (re.compile(rf"{kind}{{{_STEP}}}"), re.compile(rf"{kind}*+"))
    for kind in (r"[A-Za-z\u0080-\U0010ffff]", r"[^A-Za-z0-9\s]", r"\s")
)

_LEAST_SAMPLE = 500
_WEIGHT_OF_NEW = 0.2
_LOWEST, _HIGHEST = 0.5, 2.5


def cut_stretches(text: str) -> Iterator[str]:
    """Yield the text in parts without long runs; the sum of their tokens is exactly or nearly that of the text.

    It is exact where no run of `LONGEST_RUN` characters of one kind is cut: the text is then one part. In a run that is
    cut, the true count and ours are both at least bytes / 128 (o200k's longest token) and at most the bytes, so the
    bound of `bound_tokens` holds; measured, they differ by at most two tokens a cut or 2 % of the run.
    """
    start = at = 0
    runs = [run for kind in _KINDS for run in _find_long_runs(text, *kind)] if len(text) >= LONGEST_RUN else []
    for begin, until in sorted(runs, key=itemgetter(0)):  # of those that begin together the first kind is first
        first = max(begin, at)  # a character of two kinds belongs to the run that has begun
        if until - first < LONGEST_RUN:
            continue
        at = until
        for end in range(first + LONGEST_RUN, until, LONGEST_RUN):
            yield text[start:end]
            start = end
    yield text[start:]


def _find_long_runs(text: str, step: "re.Pattern[str]", run: "re.Pattern[str]") -> Iterator[tuple[int, int]]:
    """Yield where runs of one kind begin and end that have `LONGEST_RUN` characters or more.

    Each has a whole step within it. So only the first characters of each step are read where there are none.
    """
    at = before = 0
    while at + _STEP <= len(text):
        if step.match(text, at) is None:
            at += _STEP
            continue
        behind, ahead = run.match(text[max(before, at - _STEP) : at][::-1]), run.match(text, at)
        assert behind is not None, "it may be empty"
        assert ahead is not None, "it is a step at least"
        before = ahead.end()
        if before - at + behind.end() >= LONGEST_RUN:
            yield at - behind.end(), before
        at = -(-before // _STEP) * _STEP


def estimate_tokens(text: str) -> int:
    """Estimate tokens without a tokenizer: three bytes each (English has four a token, code three, Chinese less)."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


class TokenRatio(Value):
    """The tokens that a model counts for each of ours: an exponential moving average of its reported usage.

    Before any report it is the result of `guess_ratio`.
    """

    value: float = 1.0

    def learn(self, ours: int, theirs: int) -> "TokenRatio":
        """Return the ratio after a response whose input we counted as `ours` and the provider as `theirs` tokens.

        Small requests are ignored, because what templates add weighs too much in them; outliers are clamped to bounds.
        """
        if ours < _LEAST_SAMPLE or theirs <= 0:
            return self
        sample = min(_HIGHEST, max(_LOWEST, theirs / ours))
        return TokenRatio(self.value + _WEIGHT_OF_NEW * (sample - self.value))

    def apply(self, tokens: int) -> int:
        """Convert a number of our tokens to the model's."""
        return round(tokens * self.value)


EXACT = TokenRatio(1.0)
# Anthropic's and Gemini's tokenizers give more tokens than o200k on the whole; too high a guess only manages a little
# early. Most others of today have vocabularies of 100,000 and more, as cl100k and o200k, which differ by a few percent.
_GUESSED = {"anthropic": TokenRatio(1.15), "gemini": TokenRatio(1.15)}


def guess_ratio(family: Family) -> TokenRatio:
    """Return the ratio of a family before any usage of its model was reported."""
    return EXACT if family.is_exact else _GUESSED.get(family.vendor, EXACT)
