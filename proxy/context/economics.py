"""When an epoch opens (BEHAVIOUR B10).

Rule: below the soft mark never, at the high mark always, between them only where it pays. What decides is known: no
forecast of how long a session goes on. A person's wish and the rescue of a refused request are not asked here.
"""

import msgspec

from proxy.context.account import MOST_FUTILE, Account
from proxy.context.budget import Budget
from proxy.context.tariff import Tariff
from proxy.model.epoch import Why
from proxy.model.plan import Pressure

# By how much of the budget the low mark must have fallen below the one that was missed, before it is tried again.
_RELIEF = 0.1

BOUND = "the model signs its reasoning over what goes before it"
SIDE = "a side request opens no epoch"
FUTILE = f"{MOST_FUTILE} epochs in a row did not get below the low mark"
HELD = "a revert holds until the high mark"
OUT_OF_REACH = "more must stay than the ceiling leaves room for"
NO_ROOM = "the answer asked for leaves no room to manage"
NOTHING_TO_GAIN = "an epoch would leave no less"


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What is known of a request before it is sent.

    `tokens` are those it has without a new epoch, `protected` those that no epoch may take. `kept` are the tokens at
    its beginning that were sent before, None where it goes on from the last request; `stable` those at its beginning
    that an epoch would leave as they are. `idle` are the seconds since anything kept this prompt's cache warm, None
    where that is not known. `is_bound`: it has signed reasoning that a new beginning would make invalid (B37).
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

    @property
    def low(self) -> int:
        """What an epoch should leave."""
        return self.budget.find_low(self.protected)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Whether an epoch opens: why, or None and the reason in words."""

    why: Why | None
    pressure: Pressure
    reason: str = ""


def decide(account: Account, facts: Facts) -> Decision:
    """Whether an epoch opens before this request."""
    pressure = facts.budget.find_pressure(facts.tokens)
    if pressure == "none":
        return Decision(None, pressure, _tell_none(facts))
    if against := _find_objection(account, facts, pressure):
        return Decision(None, pressure, against)
    if pressure == "hard":
        return Decision("hard", pressure)
    if facts.tokens <= account.find_target(facts.low):
        return Decision(None, pressure, NOTHING_TO_GAIN)
    return _weigh(account, facts, pressure)


def price_opening(account: Account, facts: Facts) -> float:
    """What an epoch would cost now: the price of the bust, in tokens of uncached input."""
    return facts.tariff.price_bust(account.find_target(facts.low), facts.stable)


def _tell_none(facts: Facts) -> str:
    if not facts.budget.usable:
        return NO_ROOM
    return f"{facts.tokens} tokens are below the soft mark of {facts.budget.soft}"


def _find_objection(account: Account, facts: Facts, pressure: Pressure) -> str:
    """Why none opens whatever it would save. Above the ceiling one opens always (B12): what did not help goes deeper.

    Below it, what did not help twice is not done again.
    """
    if facts.is_side or facts.is_bound:
        return SIDE if facts.is_side else BOUND
    if pressure == "hard":
        return ""
    if account.futile >= MOST_FUTILE and facts.low > account.stuck - _RELIEF * facts.budget.usable:
        return FUTILE
    if account.stuck and facts.budget.is_out_of_reach(facts.protected):
        return OUT_OF_REACH
    return HELD if account.is_held else ""


def _weigh(account: Account, facts: Facts, pressure: Pressure) -> Decision:
    """Ski-rental (Karlin et al. 1988): what was paid for hiring reaches the price of buying.

    Then no more is paid than twice what the best moment would have cost, whatever comes, and the one excess read that
    went over it. What is owed is `Account.owed`, the price `price_opening`.
    """
    if facts.tariff.cache.is_cold(facts.idle):
        return Decision("cold", pressure)
    if _is_broken(account, facts):
        return Decision("client", pressure)
    price = price_opening(account, facts)
    if account.owed >= price:
        return Decision("soft", pressure)
    return Decision(None, pressure, f"excess reads of {account.owed:.0f} have not reached the price of {price:.0f}")


def _is_broken(account: Account, facts: Facts) -> bool:
    """Whether the client changed so much of what was sent that going on costs no less than an epoch (B6)."""
    if facts.kept is None or facts.kept >= account.sent:
        return False
    read = facts.tariff.expect_read(min(facts.kept, facts.tokens))
    rewritten = facts.tariff.price_rewritten(account.find_target(facts.low), facts.stable)
    return rewritten <= facts.tariff.price(read, facts.tokens - read)
