"""The decision whether an epoch opens before a request.

Below the soft mark no epoch opens, at the high mark one always does, and between them only if it pays; at any size one
does if the last response shows that its request was too long for the upstream. None opens if the log may have another
one, if the same history was sent before, if the upstream refused the last epoch, or if an earlier plan was no shorter.
The decision uses only known facts: it does not forecast how long a session goes on. The best forecast that needs no
other facts, as many calls again as there were (Lindy's law), delays nothing: by the time that the excess reads have
cost as much as the epoch, there were so many calls that as many again pay for it. To wait longer costs more than the
losses of sessions that end after an epoch (figures in `docs/measurements.md`).
"""

import hmac
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.pricing import Tariff
from proxy.model import Value
from proxy.model.epoch import Epoch, EpochReason, Pressure

MAX_INEFFECTIVE = 2
# An epoch may miss its mark by the error margin that a budget leaves for estimates.
_MARGIN_PERCENT = 3
# The share of the usable tokens that an epoch must free, or else it counts as ineffective.
_MIN_FREED_SHARE = 0.1


class CacheCostAccount(Value):
    """The cost, for one branch and view, of not opening an epoch. It is immutable: each event makes a new account."""

    base: int = 0  # tokens right after the last epoch, 0 before the first
    owed: float = 0.0  # the excess reads since then, in tokens of uncached input
    ineffective: int = 0  # epochs in a row that did not get below the low mark, or freed hardly anything
    missed_mark: int = 0  # low mark of the last such epoch, or of one that could not reach the ceiling, else 0
    is_reverted: bool = False  # whether a revert holds until the high mark
    sent: int = 0  # tokens of the last request, 0 if none is known that the next one continues
    sent_at: float | None = None  # monotonic time of that request in seconds, None if unknown

    @property
    def depth(self) -> int:
        """Return how much deeper the next epoch has to cut: the number of pairs of ineffective epochs."""
        return self.ineffective // MAX_INEFFECTIVE

    def find_target(self, low: int) -> int:
        """Estimate the tokens that the next epoch leaves: as many as the last one, or the low mark before the first."""
        return self.base or low

    def compute_idle(self, now: float) -> float | None:
        """Return the seconds since the last request, or None if unknown."""
        return None if self.sent_at is None else max(0.0, now - self.sent_at)


class SentTokens(Value):
    """The token counts of a request that was sent."""

    tokens: int
    cached: int | None = None  # tokens that the upstream reports as read from its cache
    kept: int | None = None  # leading tokens that were sent before, None if it continues the last request
    at: float | None = None  # monotonic time in seconds, None if unknown


def record_request(account: CacheCostAccount, sent: SentTokens, tariff: Tariff, low: int) -> CacheCostAccount:
    """Return the account after a request: `owed` grows by the price of what an epoch at the low mark would have saved.

    The excess is the tokens that were sent before and exceed the target. The price of the others does not depend on it.
    Where all is read at a tenth of the price, this adds 0.1 (size - target) per request, without what is new in it.
    """
    read, old = _split_cached(account, sent, tariff)
    excess = max(0, old - account.find_target(low))
    kept = min(read, old - excess)
    as_it_was = tariff.price(read, sent.tokens - read)
    shorter = tariff.price(kept, sent.tokens - excess - kept)
    owed = account.owed + max(0.0, as_it_was - shorter)
    return replace(account, owed=owed, sent=sent.tokens, sent_at=account.sent_at if sent.at is None else sent.at)


def record_use(account: CacheCostAccount, at: float) -> CacheCostAccount:
    """Return the account after a request that was not counted, which only kept the cache warm."""
    return replace(account, sent_at=at)


def record_epoch(
    account: CacheCostAccount, before: int, after: int, protected: int, budget: Budget
) -> CacheCostAccount:
    """Return the account after an epoch that left `after` of `before` tokens, `protected` of which had to stay."""
    low = budget.compute_low_mark(protected)
    settled = _start_after_epoch(account, after, low, is_effective=_is_effective(before, after, budget))
    return replace(settled, missed_mark=low) if budget.is_ceiling_unreachable(protected) else settled


def _is_effective(before: int, after: int, budget: Budget) -> bool:
    """Return whether an epoch that leaves `after` of `before` tokens frees enough to go on.

    The ledger is a useful part of what an epoch leaves. So the epoch is judged by the highest possible low mark (0.85
    of the usable tokens): below that there is room to go on, and the next epoch is worth opening.
    """
    return _reaches(after, min(budget.compute_low_mark(after), before - int(_MIN_FREED_SHARE * budget.usable)))


def record_revert(account: CacheCostAccount, after: int) -> CacheCostAccount:
    """Return the account after a person reverted to `after` tokens, which holds until the high mark."""
    return CacheCostAccount(base=after, is_reverted=True, sent_at=account.sent_at)


def restore_account(epochs: Iterable[Epoch], owed: float, budget: Budget) -> CacheCostAccount:
    """Restore the account from the log: the epochs of its path and view, oldest first, and the last `owed`.

    The log has neither the protected tokens of that time nor, therefore, the low mark. So only an epoch above the
    highest possible low mark counts as ineffective.
    """
    account = CacheCostAccount()
    low = budget.compute_low_mark(budget.high)
    for epoch in epochs:
        if epoch.why == "unsigned":  # it replaces no more than the one before it
            continue
        after = epoch.tokens_after
        mark = min(low, epoch.tokens_before - int(_MIN_FREED_SHARE * budget.usable))
        account = (
            record_revert(account, after)
            if epoch.is_reversion
            else _start_after_epoch(account, after, low, is_effective=_reaches(after, mark))
        )
    return replace(account, owed=owed, sent=account.base)


def _reaches(after: int, mark: int) -> bool:
    return after * 100 <= mark * (100 + _MARGIN_PERCENT)


def _start_after_epoch(account: CacheCostAccount, after: int, low: int, *, is_effective: bool) -> CacheCostAccount:
    ineffective, missed_mark = (0, 0) if is_effective else (account.ineffective + 1, low)
    return CacheCostAccount(after, ineffective=ineffective, missed_mark=missed_mark, sent_at=account.sent_at)


def _split_cached(account: CacheCostAccount, sent: SentTokens, tariff: Tariff) -> tuple[int, int]:
    """Return the tokens of a request that were read from the cache, and those that were sent before."""
    kept = min(account.sent if sent.kept is None else sent.kept, sent.tokens)
    if sent.cached is None:
        return tariff.estimate_cached(kept), kept
    read = min(sent.cached, sent.tokens)
    return read, max(kept, read)


# The share of the budget by which the low mark must have fallen below the missed one before another epoch is tried.
_RETRY_SHARE = 0.1
# The factor by which a request must have grown before planning is tried again after a plan that was no shorter.
_GROWN = 1.05

IN_LOOP = "the reasoning is bound to what goes before it: an epoch waits for the end of the turn"
SIDE = "a side request opens no epoch"
INEFFECTIVE = f"{MAX_INEFFECTIVE} epochs in a row did not get below the low mark"
REVERTED = "a revert holds until the high mark"
OUT_OF_REACH = "more must stay than the ceiling leaves room for"
NO_ROOM = "the longest response that is asked for leaves no room to manage"
NOTHING_TO_GAIN = "an epoch would leave no less"
MUST_STAY = "the rest must stay as it is"
REFUSED = "the upstream refused the last epoch"
SENT_BEFORE = "the same history goes out as it did before"
NOT_DUE = "the strategy calls for no epoch yet"
REPORTING = "a summary of what it would take is being made"
UNREAD = "what the log knows of this session could not be read"
LATE = "what the log knows of this session could not be read in time"
NEEDED: tuple[EpochReason, ...] = ("hard", "overflow")
"""The reasons for which a request is cut even if its plan is late."""
AWAITED: tuple[EpochReason, ...] = (*NEEDED, "turn", "memory")
"""The reasons for which a call waits as long for its plan as the settings allow."""
PRICED: tuple[EpochReason, ...] = ("soft", "cold", "client")
"""The reasons for which an epoch opens only if that pays."""
OBSTACLES = frozenset({UNREAD, LATE, SENT_BEFORE, REFUSED, MUST_STAY})
"""The reasons why no epoch opens though a request's size and price call for one."""


class RequestFacts(Value):
    """The facts about a request before it is sent."""

    tokens: int  # without a new epoch
    budget: Budget
    tariff: Tariff
    protected: int = 0  # tokens that no epoch may remove
    kept: int | None = None  # leading tokens that were sent before, None if it continues the last request
    stable: int = 0  # leading tokens that an epoch would not change
    idle: float | None = None  # seconds since anything kept this prompt's cache warm, None if unknown
    is_side: bool = False
    lost: float = 0.0  # the price of the bound reasoning that an epoch would lose, in tokens of uncached input
    is_in_loop: bool = False  # it would lose some within a turn
    needs_thinking: bool = False  # a turn has to begin with thinking, so that it may not lose any
    unread: str = ""  # what could not be read of the session's log, empty if all was read
    may_be_holdout: bool = False  # only the log tells whether the session is in the holdout
    is_repeat: bool = False  # the same history was sent before, according to memory
    is_retry: bool = False  # the same, according to the log
    is_refused: bool = False  # the upstream refused the last epoch recently
    is_overflowed: bool = False  # the last response shows that its request was too long
    unshortened: int = 0  # tokens of the last request whose plan was no shorter, 0 if there was none
    is_unshortened: bool = False  # that request was this one
    planned: int | None = None  # tokens that the plan leaves which an epoch would open with, None if there is none yet
    is_due: bool | None = None  # whether the strategy calls for an epoch now, at any price; None: the price decides
    due_as: EpochReason = "turn"  # the reason of such an epoch

    @property
    def low(self) -> int:
        """Return the tokens that an epoch should leave."""
        return self.budget.compute_low_mark(self.protected)

    def find_target(self, account: CacheCostAccount) -> int:
        """Return the tokens that the next epoch leaves: those of its plan, or an estimate while there is no plan."""
        return account.find_target(self.low) if self.planned is None else self.planned


class Decision(Value):
    """The decision on an epoch: `why` one opens, or None and the `reason` in words."""

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
    if facts.is_overflowed and not facts.is_side:
        return Decision("overflow", pressure)
    if pressure == "none" and not facts.is_due:
        return Decision(None, pressure, _explain_no_pressure(facts))
    if against := _find_objection(account, facts, pressure):
        return Decision(None, pressure, against)
    if pressure == "hard":
        return Decision("hard", pressure)
    if facts.is_due is not None:
        return Decision(facts.due_as, pressure) if facts.is_due else Decision(None, pressure, NOT_DUE)
    if facts.tokens <= facts.find_target(account):
        return Decision(None, pressure, NOTHING_TO_GAIN)
    return _decide_by_price(account, facts, pressure)


def price_opening(account: CacheCostAccount, facts: RequestFacts) -> float:
    """Return the price of opening an epoch now, in tokens of uncached input: the cache bust and the lost reasoning."""
    return facts.tariff.price_cache_bust(facts.find_target(account), facts.stable) + facts.lost


def forecast_calls(account: CacheCostAccount, facts: RequestFacts, growth: float, most: int = 100) -> float:
    """Estimate after how many further calls the next one opens an epoch, if each adds `growth` tokens.

    It opens above the soft mark when the excess reads have reached its price, or at the high mark. Infinite where that
    is more than `most` calls away.
    """
    price, target = price_opening(account, facts), facts.find_target(account)
    repeated, owed, tokens = facts.tariff.price_repeated(target), account.owed, float(facts.tokens)
    for calls in range(most + 1):
        is_paid = owed >= price and tokens + growth >= facts.budget.soft
        if is_paid or tokens + growth >= facts.budget.high:
            return calls
        tokens += growth
        owed += max(0.0, facts.tariff.price_repeated(int(tokens)) - repeated)
    return inf


def _explain_no_pressure(facts: RequestFacts) -> str:
    if not facts.budget.usable:
        return NO_ROOM
    return f"{facts.tokens} tokens are below the soft mark of {facts.budget.soft}"


def _find_objection(account: CacheCostAccount, facts: RequestFacts, pressure: Pressure) -> str:
    """Return why no epoch opens whatever it would save, or empty.

    Above the ceiling ineffective epochs are no objection: the next one cuts deeper. Below it, no third epoch
    follows two ineffective ones.
    """
    if facts.is_side:
        return SIDE
    if facts.is_in_loop and facts.needs_thinking:
        return IN_LOOP
    if pressure == "hard":
        return ""
    if facts.is_in_loop:
        return IN_LOOP
    if facts.is_due is None and (against := _find_futility(account, facts)):
        return against
    return REVERTED if account.is_reverted else ""


def _find_futility(account: CacheCostAccount, facts: RequestFacts) -> str:
    """Return why another epoch would not help either, or empty."""
    if account.ineffective >= MAX_INEFFECTIVE and facts.low > account.missed_mark - _RETRY_SHARE * facts.budget.usable:
        return INEFFECTIVE
    return OUT_OF_REACH if account.missed_mark and facts.budget.is_ceiling_unreachable(facts.protected) else ""


def _find_obstacle(facts: RequestFacts, why: EpochReason) -> str:
    """Return why no epoch opens though size and price call for one, or empty.

    If the log could not be read, the ceiling is still kept, unless the session may be in the holdout.
    """
    if facts.unread and (why not in NEEDED or facts.may_be_holdout):
        return facts.unread
    if why != "overflow" and (facts.is_repeat or (facts.is_retry and why != "hard")):
        return SENT_BEFORE
    if facts.is_refused or why == "overflow":
        return REFUSED if facts.is_refused else ""
    if why == "turn":
        return MUST_STAY if facts.is_unshortened else ""
    is_near = facts.unshortened <= facts.tokens < facts.unshortened * _GROWN
    return MUST_STAY if (facts.is_unshortened if why == "hard" else is_near) else ""


def _decide_by_price(account: CacheCostAccount, facts: RequestFacts, pressure: Pressure) -> Decision:
    """Decide by ski-rental (Karlin et al. 1988): open an epoch when the rent paid reaches the purchase price.

    Whatever comes, the total is then at most twice the cost at the best moment, plus the one excess read that went over
    it. The rent is `CacheCostAccount.owed`, the purchase price is `price_opening`.
    """
    if _is_worth_reasoning(account, facts):
        if facts.tariff.cache.is_cold(facts.idle):
            return Decision("cold", pressure)
        if _is_prefix_broken(account, facts):
            return Decision("client", pressure)
    price, owed = price_opening(account, facts), account.owed * _find_saved_share(account, facts)
    if owed >= price:
        return Decision("soft", pressure)
    return Decision(None, pressure, f"not rewritten yet: {owed:,.0f} of {price:,.0f} tokens' worth")


def _find_saved_share(account: CacheCostAccount, facts: RequestFacts) -> float:
    """Return the share of the excess reads that the plan would have saved: they were counted above an estimate.

    It is the share that it saves of this request, which is at least that of the shorter ones before it.
    """
    estimated, planned = account.find_target(facts.low), facts.find_target(account)
    return 1.0 if planned <= estimated else (facts.tokens - planned) / (facts.tokens - estimated)


def _is_worth_reasoning(account: CacheCostAccount, facts: RequestFacts) -> bool:
    """Return whether an epoch without a cache bust saves what the reasoning costs that it loses."""
    saved = facts.tariff.price(0, facts.tokens) - facts.tariff.price(0, facts.find_target(account))
    return facts.lost <= account.owed + saved


def _is_prefix_broken(account: CacheCostAccount, facts: RequestFacts) -> bool:
    """Return whether the client changed so much of the sent prefix that an epoch costs no more than going on."""
    if facts.kept is None or facts.kept >= account.sent:
        return False
    read = facts.tariff.estimate_cached(min(facts.kept, facts.tokens))
    rewritten = facts.tariff.price_rewritten(facts.find_target(account), facts.stable)
    return rewritten <= facts.tariff.price(read, facts.tokens - read)


HOLDOUT = "holdout"
"""The reason that the log has with every call of a held-out session."""

_BITS = 53  # the precision of a float, so that nothing is rounded up to 1
_WHOLE = 1 << _BITS


class Holdout(Value):
    """The held-out sessions: those whose hash is below `fraction`. The `secret` is the log's, so they never change."""

    fraction: float = 0.0
    secret: bytes = b""

    def has(self, session: str) -> bool:
        """Return whether the session with this id is held out."""
        return _hash_to_unit(self.secret, session) < self.fraction


def _hash_to_unit(secret: bytes, session: str) -> float:
    """Hash a session's id to a number from 0 to below 1, uniformly."""
    tag = hmac.digest(secret, b"holdout\0" + session.encode("utf-8", "surrogatepass"), "sha256")
    return (int.from_bytes(tag[:8]) >> (64 - _BITS)) / _WHOLE
