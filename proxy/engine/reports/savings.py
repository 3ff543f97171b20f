"""What managing saves: sessions that are managed, beside those that are only observed (FEATURES P19).

Rule: both arms are measured alike. A session counts if it began when some were already observed, and if one of its
requests as the client made it came up to the soft mark: up to there nothing is managed, so managing has no part in
which do. Its cost is the whole bill, answers and our own calls included, for each token of the client's own requests.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

from proxy.context.budget import BudgetPolicy, find_soft
from proxy.context.epoch_decision import HELD_OUT
from proxy.context.pricing import LEAST_SESSIONS, Comparison, Cost, compare, price_usage
from proxy.engine.ports import LogReader
from proxy.model.card import Card
from proxy.model.log import Bill

Document = dict[str, Any]
Unit = Literal["money", "tokens"]

_PAGE = 256  # the event loop is held for two milliseconds by each
_MOST_CARDS = 1024  # to find one takes longer than all else that is done with a call
_NONE_HELD = "no session was only observed so far; compaction.holdout_fraction says how many of them are"
_TOO_FEW = f"too few sessions to tell: it takes {LEAST_SESSIONS} of each that came up to the soft mark"
_FREE = "what these sessions cost is not known"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What sessions are measured with: what is known of an upstream's model, and where the soft mark is."""

    find_card: Callable[[str, str], Card]
    policy: BudgetPolicy


@dataclass(frozen=True, slots=True)
class Arm:
    """So many sessions, and what they cost on average for each token of the client's; None where there are none.

    `blind` are those of which no answer told what was read from the cache, so that all of it counts as new.
    """

    sessions: int
    cost: float | None
    blind: int


@dataclass(frozen=True, slots=True)
class Savings:
    """What is saved; where `comparison` is None, `reason` says why. Costs are in money where all prices are known.

    Not counted are `short` sessions, which did not come up to the soft mark, and `mixed` ones, which were in both arms.
    `since_ms` is when the first one that is only observed began, None where there is none.
    """

    unit: Unit
    managed: Arm
    held_out: Arm
    comparison: Comparison | None
    reason: str
    short: int
    mixed: int
    since_ms: int | None


@dataclass(slots=True)
class _Session:
    """What is known of a session so far."""

    began_ms: int
    cost: Cost = field(default_factory=Cost)
    tokens: int = 0
    is_long: bool = False
    is_held: bool = False
    is_cut: bool = False
    is_blind: bool = True

    def price(self, unit: Unit) -> float:
        """What it cost for each token of the client's."""
        return ((self.cost.money or 0.0) if unit == "money" else self.cost.tokens) / self.tokens


async def load_savings(log: LogReader, yardstick: Yardstick) -> Savings:
    """Compare the sessions of the log; a page of its calls is in memory at a time. Raises StoreUnavailable."""
    known = replace(yardstick, find_card=lru_cache(_MOST_CARDS)(yardstick.find_card))
    sessions: dict[str, _Session] = {}
    page = await log.list_bills(0, _PAGE)
    while page:
        for _, rounds in groupby(page, key=lambda bill: bill.seq):
            _enter(sessions, list(rounds), known)
        page = await log.list_bills(page[-1].seq, _PAGE)
    return _judge(sessions.values())


def describe_savings(savings: Savings) -> Document:
    """The comparison as a document: shares of what is saved, from `low` to `high` with a chance of 95 %."""
    return {
        "saving": None,
        "low": None,
        "high": None,
        **(asdict(savings.comparison) if savings.comparison is not None else {}),
        **{name: value for name, value in asdict(savings).items() if name != "comparison"},
    }


def _enter(sessions: dict[str, _Session], rounds: Sequence[Bill], yardstick: Yardstick) -> None:
    """One call, all its rounds. What nobody counted is left out on both sides."""
    first = rounds[0]
    session = sessions.setdefault(first.session, _Session(first.opened_ms))
    session.is_held = session.is_held or any(bill.reason == HELD_OUT for bill in rounds)
    session.is_cut = session.is_cut or any(bill.rung not in ("", "original") for bill in rounds)
    counted = [bill for bill in rounds if bill.usage.input is not None]
    tokens = 0 if first.kind == "auxiliary" else _count_client(rounds)
    if not counted or not (tokens or first.kind == "auxiliary"):
        return
    for bill in counted:
        session.cost += price_usage(bill.usage, yardstick.find_card(bill.upstream, bill.model))
        session.is_blind = session.is_blind and bill.usage.cached is None
    session.tokens += tokens
    if first.usable and tokens >= find_soft(first.usable, yardstick.policy):
        session.is_long = True


def _count_client(rounds: Iterable[Bill]) -> int:
    """The tokens of the client's own request: as the provider counted it where it was sent so; 0 where nobody knows."""
    for bill in rounds:
        own = bill.usage.input if bill.rung in ("", "original") else None
        if tokens := own or bill.tokens_client:
            return tokens
    return 0


def _judge(sessions: Collection[_Session]) -> Savings:
    all_held = [session.began_ms for session in sessions if session.is_held]
    since = min(all_held, default=None)
    asked = [each for each in sessions if since is not None and each.began_ms >= since]
    pure = [each for each in asked if not (each.is_held and each.is_cut)]
    long = [each for each in pure if each.is_long]
    unit: Unit = "money" if long and all(each.cost.money for each in long) else "tokens"
    managed, held = ([each for each in long if each.is_held == is_held] for is_held in (False, True))
    comparison = compare(*([each.price(unit) for each in arm] for arm in (managed, held)))
    is_enough = min(len(managed), len(held)) >= LEAST_SESSIONS
    reason = _NONE_HELD if since is None else _FREE if is_enough else _TOO_FEW
    return Savings(
        unit,
        _make_arm(managed, unit),
        _make_arm(held, unit),
        comparison,
        "" if comparison is not None else reason,
        len(pure) - len(long),
        len(asked) - len(pure),
        since,
    )


def _make_arm(sessions: Sequence[_Session], unit: Unit) -> Arm:
    mean = sum(each.price(unit) for each in sessions) / len(sessions) if sessions else None
    return Arm(len(sessions), mean, sum(each.is_blind for each in sessions))
