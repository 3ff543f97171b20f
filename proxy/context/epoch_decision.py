"""When an epoch opens, and what that decision rests on (BEHAVIOUR B4, B10, B12).

Below the soft mark none opens, at the high mark always, between them only where it pays; and none where the log may
know of another, where this very history was sent before, where the upstream refused the last one, or where a plan was
made in vain. Everything that is used is known: nothing forecasts how long a session goes on.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.pricing import Tariff
from proxy.model.epoch import Epoch, EpochReason, Pressure

MAX_INEFFECTIVE = 2
# An epoch that misses its mark by what a budget leaves its estimator has not missed it.
_MARGIN_PERCENT = 3
# The part of what is usable that an epoch frees at least, or it was in vain.
_MIN_FREED_SHARE = 0.1


class CacheCostAccount(msgspec.Struct, frozen=True, gc=False):
    """The cost, for one branch and view, of not opening an epoch. A value: each event makes a new one.

    `base`: tokens right after the last epoch, 0 before the first. `owed`: the excess reads since, in tokens of uncached
    input. `ineffective` counts the epochs in a row that did not get below the low mark, or freed hardly anything.
    `missed_mark`: the low mark of the last such epoch, or of one for which the ceiling was out of reach, else 0.
    `is_held`: a revert holds until the high mark. `sent`: the tokens of the last request, 0 where none is known that
    the next one goes on from; `sent_at`: when that was, in monotonic seconds, None where unknown.
    """

    base: int = 0
    owed: float = 0.0
    ineffective: int = 0
    missed_mark: int = 0
    is_held: bool = False
    sent: int = 0
    sent_at: float | None = None

    @property
    def depth(self) -> int:
        """Return how much deeper the next epoch has to go: how often two in a row did not help (B12)."""
        return self.ineffective // MAX_INEFFECTIVE

    def find_target(self, low: int) -> int:
        """Estimate what the next epoch will leave: as much as the last one, or the low mark before the first."""
        return self.base or low

    def compute_idle(self, now: float) -> float | None:
        """Seconds since the last request, None where nobody knows."""
        return None if self.sent_at is None else max(0.0, now - self.sent_at)


class SentTokens(msgspec.Struct, frozen=True, gc=False):
    """A request that was sent: its tokens, and what the upstream said it read of them from its cache.

    `kept` are the tokens at its beginning that were sent before, None where it goes on from the last request. `at` is
    in monotonic seconds, None where that is not known.
    """

    tokens: int
    cached: int | None = None
    kept: int | None = None
    at: float | None = None


def record_request(account: CacheCostAccount, sent: SentTokens, tariff: Tariff, low: int) -> CacheCostAccount:
    """After a request: what it cost more than one that an epoch at the low mark had made shorter.

    The excess is what was sent before and lies above the target; without it the rest would have cost the same. Where
    all is read at a tenth this is CONTEXT-ECONOMY's sum of 0.1 (size - L), but for what is new in the request.
    """
    read, old = _split_cached(account, sent, tariff)
    excess = max(0, old - account.find_target(low))
    kept = min(read, old - excess)
    as_it_was = tariff.price(read, sent.tokens - read)
    shorter = tariff.price(kept, sent.tokens - excess - kept)
    owed = account.owed + max(0.0, as_it_was - shorter)
    return replace(account, owed=owed, sent=sent.tokens, sent_at=account.sent_at if sent.at is None else sent.at)


def record_use(account: CacheCostAccount, at: float) -> CacheCostAccount:
    """After a request that was not counted: it kept the cache warm, no more."""
    return replace(account, sent_at=at)


def record_epoch(
    account: CacheCostAccount, before: int, after: int, protected: int, budget: Budget
) -> CacheCostAccount:
    """After an epoch that left `after` of `before` tokens, `protected` of which had to stay: a new account.

    The ledger is part of what an epoch leaves for a reason, so it is judged by the highest low mark there is (0.85 of
    what is usable): below it there is room to go on, and the next epoch is worth opening.
    """
    mark = min(budget.compute_low_mark(after), before - int(_MIN_FREED_SHARE * budget.usable))
    settled = _start_after_epoch(account, after, mark, budget.compute_low_mark(protected))
    return (
        replace(settled, missed_mark=budget.compute_low_mark(protected))
        if budget.is_ceiling_unreachable(protected)
        else settled
    )


def record_revert(account: CacheCostAccount, after: int) -> CacheCostAccount:
    """After a person went back to what stood before, which is `after` tokens: it holds until the high mark (B19)."""
    return CacheCostAccount(base=after, is_held=True, sent_at=account.sent_at)


def restore_account(epochs: Iterable[Epoch], owed: float, budget: Budget) -> CacheCostAccount:
    """Restore the account from what the log has: the epochs of its path and view, oldest first, and what was owed last.

    The log does not tell what had to stay then, and so the low mark: only what is above the highest there can be counts
    as ineffective.
    """
    account = CacheCostAccount()
    low = budget.compute_low_mark(budget.usable)
    for epoch in epochs:
        after = epoch.tokens_after
        mark = min(low, epoch.tokens_before - int(_MIN_FREED_SHARE * budget.usable))
        account = record_revert(account, after) if epoch.is_reversion else _start_after_epoch(account, after, mark, low)
    return replace(account, owed=owed, sent=account.base)


def _start_after_epoch(account: CacheCostAccount, after: int, mark: int, low: int) -> CacheCostAccount:
    is_futile = after * 100 > mark * (100 + _MARGIN_PERCENT)
    ineffective, missed_mark = (account.ineffective + 1, low) if is_futile else (0, 0)
    return CacheCostAccount(after, ineffective=ineffective, missed_mark=missed_mark, sent_at=account.sent_at)


def _split_cached(account: CacheCostAccount, sent: SentTokens, tariff: Tariff) -> tuple[int, int]:
    """Of a request: the tokens read from the cache, and those that were sent before."""
    kept = min(account.sent if sent.kept is None else sent.kept, sent.tokens)
    if sent.cached is None:
        return tariff.estimate_cached(kept), kept
    read = min(sent.cached, sent.tokens)
    return read, max(kept, read)


# By how much of the budget the low mark must have fallen below the one that was missed, before it is tried again.
_RETRY_SHARE = 0.1
# The factor by which a request must have grown before planning is tried again after a plan in vain.
_GROWN = 1.05

BOUND = "the model signs its reasoning over what goes before it"
SIDE = "a side request opens no epoch"
INEFFECTIVE = f"{MAX_INEFFECTIVE} epochs in a row did not get below the low mark"
HELD = "a revert holds until the high mark"
OUT_OF_REACH = "more must stay than the ceiling leaves room for"
NO_ROOM = "the answer asked for leaves no room to manage"
NOTHING_TO_GAIN = "an epoch would leave no less"
MUST_STAY = "the rest must stay as it is"
REFUSED = "the upstream refused the last epoch"
SENT_BEFORE = "the same history goes out as it did before"
UNREAD = "what the log knows of this session could not be read"
LATE = "what the log knows of this session could not be read in time"
OBSTACLES = frozenset({UNREAD, LATE, SENT_BEFORE, REFUSED, MUST_STAY})
"""The reasons why none opens though a request's size and price ask for one."""


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts about a request before it is sent.

    `tokens` are those it has without a new epoch, `protected` those that no epoch may take. `kept` are the tokens at
    its beginning that were sent before, None where it goes on from the last request; `stable` those at its beginning
    that an epoch would leave as they are. `idle` are the seconds since anything kept this prompt's cache warm, None
    where that is not known. `is_bound`: it has signed reasoning that a new beginning would make invalid (B37).

    `unread` says what could not be read of the session's log, empty where all was; `may_be_held_out`: the log tells
    whether the session is only observed. `is_repeat`: this very history was sent before, as memory tells, `is_retry`:
    as the log tells (B5). `is_refused`: the upstream refused the last epoch of late (B8a). `in_vain` are the tokens of
    the last request for which a plan was made that was no shorter, 0 where there was none; `is_tried`: that was this
    request.
    """

    tokens: int
    budget: Budget
    tariff: Tariff
    protected: int = 0
    kept: int | None = None
    stable: int = 0
    idle: float | None = None
    is_side: bool = False
    is_bound: bool = False
    unread: str = ""
    may_be_held_out: bool = False
    is_repeat: bool = False
    is_retry: bool = False
    is_refused: bool = False
    in_vain: int = 0
    is_tried: bool = False

    @property
    def low(self) -> int:
        """Return the tokens that an epoch should leave."""
        return self.budget.compute_low_mark(self.protected)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The decision on an epoch: why one opens, or None and the reason in words."""

    why: EpochReason | None
    pressure: Pressure
    reason: str = ""


def decide(account: CacheCostAccount, facts: RequestFacts) -> Decision:
    """Decide whether an epoch opens before this request."""
    decision = _decide_by_size(account, facts)
    if decision.why is None or not (against := _find_obstacle(facts, decision.why)):
        return decision
    return Decision(None, decision.pressure, against)


def _decide_by_size(account: CacheCostAccount, facts: RequestFacts) -> Decision:
    pressure = facts.budget.compute_pressure(facts.tokens)
    if pressure == "none":
        return Decision(None, pressure, _explain_no_pressure(facts))
    if against := _find_objection(account, facts, pressure):
        return Decision(None, pressure, against)
    if pressure == "hard":
        return Decision("hard", pressure)
    if facts.tokens <= account.find_target(facts.low):
        return Decision(None, pressure, NOTHING_TO_GAIN)
    return _decide_by_price(account, facts, pressure)


def price_opening(account: CacheCostAccount, facts: RequestFacts) -> float:
    """Return what an epoch would cost now: the price of the bust, in tokens of uncached input."""
    return facts.tariff.price_cache_bust(account.find_target(facts.low), facts.stable)


def _explain_no_pressure(facts: RequestFacts) -> str:
    if not facts.budget.usable:
        return NO_ROOM
    return f"{facts.tokens} tokens are below the soft mark of {facts.budget.soft}"


def _find_objection(account: CacheCostAccount, facts: RequestFacts, pressure: Pressure) -> str:
    """Why none opens whatever it would save. Above the ceiling one opens always (B12): what did not help goes deeper.

    Below it, what did not help twice is not done again.
    """
    if facts.is_side or facts.is_bound:
        return SIDE if facts.is_side else BOUND
    if pressure == "hard":
        return ""
    if account.ineffective >= MAX_INEFFECTIVE and facts.low > account.missed_mark - _RETRY_SHARE * facts.budget.usable:
        return INEFFECTIVE
    if account.missed_mark and facts.budget.is_ceiling_unreachable(facts.protected):
        return OUT_OF_REACH
    return HELD if account.is_held else ""


def _find_obstacle(facts: RequestFacts, why: EpochReason) -> str:
    """Why none opens though size and price ask for it: another may be known, was sent, was refused, or made in vain.

    Where the log could not be read, the ceiling is kept all the same (B8b), unless the session may only be observed.
    """
    if facts.unread and (why != "hard" or facts.may_be_held_out):
        return facts.unread
    if facts.is_repeat or (facts.is_retry and why != "hard"):
        return SENT_BEFORE
    if facts.is_refused:
        return REFUSED
    is_in_vain = facts.is_tried if why == "hard" else facts.in_vain <= facts.tokens < facts.in_vain * _GROWN
    return MUST_STAY if is_in_vain else ""


def _decide_by_price(account: CacheCostAccount, facts: RequestFacts, pressure: Pressure) -> Decision:
    """Ski-rental (Karlin et al. 1988): what was paid for hiring reaches the price of buying.

    Then no more is paid than twice what the best moment would have cost, whatever comes, and the one excess read that
    went over it. What is owed is `Account.owed`, the price `price_opening`.
    """
    if facts.tariff.cache.is_cold(facts.idle):
        return Decision("cold", pressure)
    if _is_prefix_broken(account, facts):
        return Decision("client", pressure)
    price = price_opening(account, facts)
    if account.owed >= price:
        return Decision("soft", pressure)
    return Decision(None, pressure, f"excess reads of {account.owed:.0f} have not reached the price of {price:.0f}")


def _is_prefix_broken(account: CacheCostAccount, facts: RequestFacts) -> bool:
    """Return whether the client changed so much of what was sent that going on costs no less than an epoch (B6)."""
    if facts.kept is None or facts.kept >= account.sent:
        return False
    read = facts.tariff.estimate_cached(min(facts.kept, facts.tokens))
    rewritten = facts.tariff.price_rewritten(account.find_target(facts.low), facts.stable)
    return rewritten <= facts.tariff.price(read, facts.tokens - read)


HELD_OUT = "holdout"
"""The reason that the log has with every call of such a session."""

_BITS = 53  # those of a float: nothing is rounded, so that all is never reached
_WHOLE = 1 << _BITS


@dataclass(frozen=True, slots=True)
class Holdout:
    """The sessions whose hash is below a threshold; `secret` is the log's own, so that they stay as long as it does."""

    fraction: float = 0.0
    secret: bytes = b""

    def has(self, session: str) -> bool:
        """Return whether the session with this id is one of them."""
        return _hash_to_unit(self.secret, session) < self.fraction


def _hash_to_unit(secret: bytes, session: str) -> float:
    """From 0 to below 1, evenly."""
    tag = hmac.digest(secret, b"holdout\0" + session.encode("utf-8", "surrogatepass"), "sha256")
    return (int.from_bytes(tag[:8]) >> (64 - _BITS)) / _WHOLE
