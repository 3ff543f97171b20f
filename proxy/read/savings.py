"""What managing saves: estimated for each session, and sessions compared that are managed or only observed (P19, P23).

The estimate of a session compares what its calls cost, by the usage that came back, with what the client's own requests
would have cost; our auxiliary calls count against it. It is negative where a session cost more.

Both arms of the comparison are measured alike. A session counts if it began after the first one that was only observed,
and if one of its requests, as the client made it, reached the soft mark: below it nothing is managed, so that managing
has no influence on which sessions count. A session's cost is that of all its calls, responses and our auxiliary calls
included, for each token of the client's own requests.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from proxy.context.budget import BudgetPolicy, compute_soft_mark
from proxy.context.epoch_decision import HELD_OUT
from proxy.context.pricing import (
    MIN_SESSIONS,
    Comparison,
    Cost,
    compare,
    price_estimate,
    price_saved,
    price_split,
)
from proxy.engine.models import PriceList
from proxy.engine.ports import LogReader
from proxy.engine.runtime import SystemClock
from proxy.model.figures import TIERS, Tally
from proxy.model.log import Bill

Unit = Literal["money", "tokens"]

_PAGE = 256  # exchanges; the event loop is blocked for 2 ms by each page
_MAX_CARDS = 1024  # finding one takes longer than all else that is done with an exchange
_NO_HOLDOUT = "no session was only observed so far; compaction.holdout_fraction says how many of them are"
_TOO_FEW = f"too few sessions to tell: it takes {MIN_SESSIONS} of each that came up to the soft mark"
_NO_COST = "what these sessions cost is not known"


@dataclass(frozen=True, slots=True)
class SavingsInputs:
    """What reports need beside the log: the prices of calls, the policy that sets the marks, and the time."""

    prices: PriceList
    policy: BudgetPolicy
    now_ms: Callable[[], int] = SystemClock().now_ms


@dataclass(slots=True)
class SavingEstimate:
    """What managing a session saved so far, by the usage that came back, and our auxiliary calls for it.

    `cost` is that of its calls. `epochs` were opened for its calls, `later` calls came after the last of these.
    """

    saved: Cost = field(default_factory=Cost)
    auxiliary: Cost = field(default_factory=Cost)
    cost: Cost = field(default_factory=Cost)
    is_known: bool = False
    epochs: int = 0
    later: int = 0

    @property
    def net(self) -> Cost:
        """What is left of the saving after our auxiliary calls; negative for a loss."""
        return self.saved - self.auxiliary

    @property
    def is_loss(self) -> bool:
        """Whether the session cost more than the client's own requests would have."""
        return self.net.tokens < 0

    @property
    def reason(self) -> str:
        """Why it is a loss, empty if it is none."""
        if not self.is_loss:
            return ""
        if self.saved.tokens >= 0:
            return "its summaries cost more than was saved"
        if self.epochs:
            count = {0: "no call", 1: "1 call"}.get(self.later, f"{self.later} calls")
            return f"{count} came after its last epoch, too few to pay for writing the cache anew"
        return "what was sent had to be written to the cache anew, and the calls since have not paid for it"

    def add(self, rounds: Sequence[Bill], inputs: SavingsInputs) -> None:
        """Add the rounds of one exchange."""
        is_own = rounds[0].kind == "auxiliary"
        if any(bill.rung == "plan" for bill in rounds):
            self.epochs, self.later = self.epochs + 1, 0
        elif not is_own:
            self.later += 1
        counted = [bill for bill in rounds if bill.usage.input is not None]
        for bill in counted:
            cost = inputs.prices.price(bill.upstream, bill.model, bill.usage)
            if is_own:
                self.auxiliary += cost
            else:
                self.cost += cost
        if is_own or not counted:
            return
        card = inputs.prices.find_card(counted[0].upstream, counted[0].model)
        cache = inputs.prices.find_cache(counted[0].upstream, card)
        if (saved := price_saved([(bill, bill.usage) for bill in counted], card, cache)) is not None:
            self.saved, self.is_known = self.saved + saved, True


@dataclass(frozen=True, slots=True)
class TotalEstimate:
    """The estimates of all sessions of which one is known. `share` is that of what sending everything would have cost.

    `losses` is the sum over the `losing` sessions, and negative.
    """

    sessions: int
    saved: Cost
    share: float | None
    losing: int
    losses: Cost


@dataclass(frozen=True, slots=True)
class Arm:
    """The sessions of one arm, and their mean cost for each token of the client's requests; None without sessions.

    `blind` sessions are those of which no response reported cached tokens: all their input counts as uncached.
    """

    sessions: int
    cost: float | None
    blind: int


@dataclass(frozen=True, slots=True)
class Savings:
    """The result; where `comparison` is None, `reason` says why. Costs are in money where all prices are known.

    Not counted are `short` sessions, which did not reach the soft mark, and `mixed` ones, which were in both arms.
    `since_ms` is when the first session that is only observed began, None without one.
    """

    unit: Unit
    managed: Arm
    held_out: Arm
    comparison: Comparison | None
    reason: str
    short: int
    mixed: int
    since_ms: int | None
    estimate: TotalEstimate | None = None


@dataclass(slots=True)
class _Session:
    """What has been read of a session so far."""

    began_ms: int
    cost: Cost = field(default_factory=Cost)
    tokens: int = 0
    is_long: bool = False
    is_held: bool = False
    is_cut: bool = False
    is_blind: bool = True

    def compute_price(self, unit: Unit) -> float:
        """Return its cost for each token of the client's requests."""
        return ((self.cost.money or 0.0) if unit == "money" else self.cost.tokens) / self.tokens


async def load_comparison(log: LogReader, inputs: SavingsInputs, *, is_held: bool = True) -> Savings:
    """Compare the sessions of the log, reading it a page at a time, if one `is_held` out. Raises StoreUnavailable."""
    known = remember_cards(inputs)
    sessions: dict[str, _Session] = {}
    page = await log.list_bills(0, _PAGE) if is_held else ()
    while page:
        for _, rounds in groupby(page, key=lambda bill: bill.seq):
            _add_exchange(sessions, list(rounds), known)
        page = await log.list_bills(page[-1].seq, _PAGE)
    return _compare_arms(sessions.values())


async def load_estimate(log: LogReader, session: str, inputs: SavingsInputs) -> SavingEstimate | None:
    """Estimate what managing a session saved, None if nothing is known of it. Raises StoreUnavailable."""
    estimate = SavingEstimate()
    page = await log.list_bills(0, _PAGE, session)
    while page:
        for _, rounds in groupby(page, key=lambda bill: bill.seq):
            estimate.add(list(rounds), inputs)
        page = await log.list_bills(page[-1].seq, _PAGE, session)
    return estimate if estimate.is_known else None


def remember_cards(inputs: SavingsInputs) -> SavingsInputs:
    """Return the same inputs that find each card only once."""
    return replace(inputs, prices=replace(inputs.prices, find_card=lru_cache(_MAX_CARDS)(inputs.prices.find_card)))


def _add_exchange(sessions: dict[str, _Session], rounds: Sequence[Bill], inputs: SavingsInputs) -> None:
    """Add the rounds of one exchange to its session. What was not counted is left out on both sides."""
    first = rounds[0]
    session = sessions.setdefault(first.session, _Session(first.opened_ms))
    session.is_held = session.is_held or any(bill.reason == HELD_OUT for bill in rounds)
    session.is_cut = session.is_cut or any(bill.rung not in ("", "original") for bill in rounds)
    counted = [bill for bill in rounds if bill.usage.input is not None]
    tokens = 0 if first.kind == "auxiliary" else _count_client(rounds)
    if not counted or not (tokens or first.kind == "auxiliary"):
        return
    for bill in counted:
        session.cost += inputs.prices.price(bill.upstream, bill.model, bill.usage)
        session.is_blind = session.is_blind and bill.usage.cached is None
    session.tokens += tokens
    if first.usable and tokens >= compute_soft_mark(first.usable, inputs.policy):
        session.is_long = True


def _count_client(rounds: Iterable[Bill]) -> int:
    """Return the tokens of the client's own request, as the provider counted it if sent unchanged; 0 if unknown."""
    for bill in rounds:
        own = bill.usage.input if bill.rung in ("", "original") else None
        if tokens := own or bill.tokens_client:
            return tokens
    return 0


def _compare_arms(sessions: Collection[_Session]) -> Savings:
    observed = [session.began_ms for session in sessions if session.is_held]
    since = min(observed, default=None)
    recent = [each for each in sessions if since is not None and each.began_ms >= since]
    unmixed = [each for each in recent if not (each.is_held and each.is_cut)]
    long = [each for each in unmixed if each.is_long]
    unit: Unit = "money" if long and all(each.cost.money for each in long) else "tokens"
    managed, held = ([each for each in long if each.is_held == is_held] for is_held in (False, True))
    comparison = compare(*([each.compute_price(unit) for each in arm] for arm in (managed, held)))
    is_enough = min(len(managed), len(held)) >= MIN_SESSIONS
    reason = _NO_HOLDOUT if since is None else _NO_COST if is_enough else _TOO_FEW
    return Savings(
        unit=unit,
        managed=_make_arm(managed, unit),
        held_out=_make_arm(held, unit),
        comparison=comparison,
        reason="" if comparison is not None else reason,
        short=len(unmixed) - len(long),
        mixed=len(recent) - len(unmixed),
        since_ms=since,
    )


def _make_arm(sessions: Sequence[_Session], unit: Unit) -> Arm:
    mean = sum(each.compute_price(unit) for each in sessions) / len(sessions) if sessions else None
    return Arm(len(sessions), mean, sum(each.is_blind for each in sessions))


_COUNTS = ("calls", "errors", "ends", "plans", "held", "counted", "client", "sent", "told", "read", "output")


@dataclass(slots=True)
class SessionTotal:
    """What a session, or a part of one, came to: the cost of the client's calls, of ours, what managing saved, counts.

    `saved` is None where nothing is known of it. The counts are as in `Tally`.
    """

    cost: Cost = field(default_factory=Cost)
    auxiliary: Cost = field(default_factory=Cost)
    auxiliary_input: int = 0
    auxiliary_output: int = 0
    saved: Cost | None = None
    is_charged: bool = False
    calls: int = 0
    errors: int = 0
    ends: int = 0
    plans: int = 0
    held: int = 0
    counted: int = 0
    client: int = 0
    sent: int = 0
    told: int = 0
    read: int = 0
    output: int = 0
    ended_ms: int = 0

    @property
    def spent(self) -> Cost:
        """All that was spent."""
        return self.cost + self.auxiliary

    @property
    def net(self) -> Cost:
        """What is left of the saving after our own calls; negative for a loss."""
        return (self.saved or Cost()) - self.auxiliary

    @property
    def share(self) -> float | None:
        """The saving as a share of what sending everything would have cost; None if that is unknown, or nothing."""
        if self.saved is None:
            return None
        return compute_share(self.net, self.spent)

    def add(self, tally: Tally, prices: PriceList) -> None:
        """Add what a tally comes to, at the prices of its model."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.ended_ms = max(self.ended_ms, tally.ended_ms)
        if not tally.is_known:
            return
        self.is_charged = True
        card = prices.find_card(tally.upstream, tally.model)
        cache = prices.find_cache(tally.upstream, card)
        cost = price_split(tally.usage, tally.largest, card, cache)
        if tally.is_auxiliary:
            self.auxiliary += cost
            used = tally.usage
            self.auxiliary_input += (used.input or 0) + (used.cached or 0) + (used.written or 0)
            self.auxiliary_output += used.output or 0
            return
        self.cost += cost
        saved = price_estimate(tally.saving, card)
        if tally.own is not None and tally.paid is not None:
            own = price_split(tally.own, tally.largest_own, card, cache)
            saved = own - price_split(tally.paid, tally.largest, card, cache)
        if saved is not None:
            self.saved = saved if self.saved is None else self.saved + saved


def compute_share(net: Cost, spent: Cost) -> float | None:
    """Return a saving as a share of what sending everything would have cost: of money where that is known."""
    whole = spent + net
    if whole.money is not None and net.money is not None and whole.money > 0:
        return net.money / whole.money
    return net.tokens / whole.tokens if whole.tokens > 0 else None


async def load_tallies(log: LogReader, sessions: Sequence[str] | None, prices: PriceList) -> Sequence[Tally]:
    """Load what is charged alike in sessions, None: in all of them, apart for each tier of the models' prices."""
    tallies = await log.load_tallies(sessions)
    tiers = {
        tier.above
        for upstream, model in {(tally.upstream, tally.model) for tally in tallies}
        for tier in prices.find_card(upstream, model).prices.tiers
    }
    largest = max((max(each.largest, each.largest_own) for each in tallies), default=0)
    if {tier for tier in tiers if tier < largest} <= set(TIERS):
        return tallies
    return await log.load_tallies(sessions, sorted(tiers))


async def load_totals(log: LogReader, sessions: Sequence[str], inputs: SavingsInputs) -> dict[str, SessionTotal]:
    """Load what sessions came to, by their ids."""
    prices = remember_cards(inputs).prices
    return sum_totals(await load_tallies(log, sessions, prices), prices)


def sum_totals(tallies: Iterable[Tally], prices: PriceList) -> dict[str, SessionTotal]:
    """Sum up tallies by session."""
    totals: dict[str, SessionTotal] = {}
    for tally in tallies:
        totals.setdefault(tally.session, SessionTotal()).add(tally, prices)
    return totals
