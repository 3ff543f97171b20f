"""What sending more than an epoch would have cost so far, for one branch and view (BEHAVIOUR B4, B10).

Rule: an account is a value; each thing that happens to it gives a new one. Tokens are those of whole requests, money is
tokens of uncached input (`context/tariff`).
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.tariff import Tariff
from proxy.model.epoch import Epoch

MOST_FUTILE = 2
# An epoch that misses its mark by what a budget leaves its estimator has not missed it.
_MARGIN_PERCENT = 3
# The part of what is usable that an epoch frees at least, or it was in vain.
_LEAST_FREED = 0.1


class Account(msgspec.Struct, frozen=True, gc=False):
    """`base`: tokens right after the last epoch, 0 before the first. `owed`: the excess reads since.

    `futile` counts the epochs in a row that did not get below the low mark, or freed hardly anything. `stuck` is the
    low mark of the last epoch where it was so or the ceiling was out of reach, else 0. `is_held`: a revert holds until
    the high mark. `sent`: the tokens of the last request, 0 where none is known that the next one goes on from;
    `sent_at` is when it was sent, in monotonic seconds, None where unknown.
    """

    base: int = 0
    owed: float = 0.0
    futile: int = 0
    stuck: int = 0
    is_held: bool = False
    sent: int = 0
    sent_at: float | None = None

    @property
    def depth(self) -> int:
        """How much deeper the next epoch has to go: how often two in a row did not help (B12)."""
        return self.futile // MOST_FUTILE

    def find_target(self, low: int) -> int:
        """What the next epoch will probably leave: as much as the last one, or the low mark before the first."""
        return self.base or low

    def find_idle(self, now: float) -> float | None:
        """Seconds since the last request, None where nobody knows."""
        return None if self.sent_at is None else max(0.0, now - self.sent_at)


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A request that was sent: its tokens, and what the upstream said it read of them from its cache.

    `kept` are the tokens at its beginning that were sent before, None where it goes on from the last request. `at` is
    in monotonic seconds, None where that is not known.
    """

    tokens: int
    cached: int | None = None
    kept: int | None = None
    at: float | None = None


def note_sent(account: Account, sent: Sent, tariff: Tariff, low: int) -> Account:
    """After a request: what it cost more than one that an epoch at the low mark had made shorter.

    The excess is what was sent before and lies above the target; without it the rest would have cost the same. Where
    all is read at a tenth this is CONTEXT-ECONOMY's sum of 0.1 (size - L), but for what is new in the request.
    """
    read, old = _find_read(account, sent, tariff)
    excess = max(0, old - account.find_target(low))
    kept = min(read, old - excess)
    as_it_was = tariff.price(read, sent.tokens - read)
    shorter = tariff.price(kept, sent.tokens - excess - kept)
    owed = account.owed + max(0.0, as_it_was - shorter)
    return replace(account, owed=owed, sent=sent.tokens, sent_at=account.sent_at if sent.at is None else sent.at)


def note_use(account: Account, at: float) -> Account:
    """After a request that was not counted: it kept the cache warm, no more."""
    return replace(account, sent_at=at)


def note_epoch(account: Account, before: int, after: int, protected: int, budget: Budget) -> Account:
    """After an epoch that left `after` of `before` tokens, `protected` of which had to stay: a new account.

    The ledger is part of what an epoch leaves for a reason, so it is judged by the highest low mark there is (0.85 of
    what is usable): below it there is room to go on, and the next epoch is worth opening.
    """
    mark = min(budget.find_low(after), before - int(_LEAST_FREED * budget.usable))
    settled = _settle(account, after, mark, budget.find_low(protected))
    return replace(settled, stuck=budget.find_low(protected)) if budget.is_out_of_reach(protected) else settled


def note_revert(account: Account, after: int) -> Account:
    """After a person went back to what stood before, which is `after` tokens: it holds until the high mark (B19)."""
    return Account(base=after, is_held=True, sent_at=account.sent_at)


def restore_account(epochs: Iterable[Epoch], owed: float, budget: Budget) -> Account:
    """The account as the log tells of it: the epochs of its path and view, oldest first, and what was owed last.

    The log does not tell what had to stay then, and so the low mark: only what is above the highest there can be counts
    as futile.
    """
    account = Account()
    low = budget.find_low(budget.usable)
    for epoch in epochs:
        after = epoch.tokens_after
        mark = min(low, epoch.tokens_before - int(_LEAST_FREED * budget.usable))
        account = note_revert(account, after) if epoch.is_reversion else _settle(account, after, mark, low)
    return replace(account, owed=owed, sent=account.base)


def _settle(account: Account, after: int, mark: int, low: int) -> Account:
    is_futile = after * 100 > mark * (100 + _MARGIN_PERCENT)
    futile, stuck = (account.futile + 1, low) if is_futile else (0, 0)
    return Account(after, futile=futile, stuck=stuck, sent_at=account.sent_at)


def _find_read(account: Account, sent: Sent, tariff: Tariff) -> tuple[int, int]:
    """Of a request: the tokens read from the cache, and those that were sent before."""
    kept = min(account.sent if sent.kept is None else sent.kept, sent.tokens)
    if sent.cached is None:
        return tariff.expect_read(kept), kept
    read = min(sent.cached, sent.tokens)
    return read, max(kept, read)
