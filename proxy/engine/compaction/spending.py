"""The purse: what sessions' own calls cost, and what was spent besides for summaries (BEHAVIOUR B27; FEATURES P19).

Rule: a call of our own is made only where what it will probably cost fits with all that was spent so far. What a day's
calls cost is known from the log after a start; the share of a session counts from the start on, on both sides.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.context.pricing import Cost, price_usage
from proxy.engine.compaction.bounded import keep_newest
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.ports import Clock
from proxy.engine.runtime import EventBus
from proxy.model.card import Card
from proxy.model.events import AnswerRead, ExchangeRecorded, SummaryWasted
from proxy.model.exchange import Usage

_DAY_MS = 86_400_000
_MOST_SESSIONS = 4096
_MOST_WAITING = 4096
_MOST_CALLS = 4096
_MOST_UNPRICED = 64

FindCard = Callable[[str, str], Card]
_Call = tuple[str, str, Usage]
"""An upstream, a model of it, and what was counted, or will be."""


class SummarySpending(Protocol):
    """What a model of an upstream was asked for summaries of a session, all calls together."""

    @property
    def upstream(self) -> str:
        """Whose model it is."""
        ...

    @property
    def model(self) -> str:
        """Its name."""
        ...

    @property
    def usage(self) -> Usage:
        """As the provider counted it."""
        ...


class AuxiliaryLog(Protocol):
    """What the log knows of calls of our own."""

    async def sum_auxiliary(self, since_ms: int) -> Sequence[SummarySpending]:
        """What was spent since a time, by session, upstream and model. Raises StoreUnavailable."""
        ...


@dataclass(slots=True)
class _Balance:
    """Of a session: what its own calls cost, and those for its summaries; `held` for those that are under way.

    Own calls wait in `unpriced` until somebody asks: of most sessions nobody does. Those `expected` are not answered
    yet, or nobody said how much they were.
    """

    main: Cost = field(default_factory=Cost)
    unpriced: list[_Call] = field(default_factory=list)
    expected: dict[str, _Call] = field(default_factory=dict)
    extra: Cost = field(default_factory=Cost)
    held: Cost = field(default_factory=Cost)


class Purse:
    """Keeps account. `find_card` tells what is known of a model of an upstream."""

    def __init__(self, policy: CompactionPolicy, find_card: FindCard, bus: EventBus, clock: Clock) -> None:
        self._policy = policy
        self._find_card = find_card
        self._bus = bus
        self._clock = clock
        self._balances: OrderedDict[str, _Balance] = OrderedDict()
        self._waiting: OrderedDict[str, ExchangeRecorded] = OrderedDict()
        self._estimates: OrderedDict[str, Usage] = OrderedDict()
        self._calls: OrderedDict[str, Cost] = OrderedDict()
        self._held = Cost()
        self._day = self._find_day()
        self._today = Cost()
        self._is_open = not policy.spend_per_day

    async def open(self, log: AuxiliaryLog) -> None:
        """Read what was spent today; until that is known a cap on it lets nothing pass. Raises StoreUnavailable."""
        day = self._find_day()
        spent = await log.sum_auxiliary(day * _DAY_MS)
        self._turn_page()
        if day == self._day:
            self._today += self._sum_up(spent)
        self._is_open = True

    def note_estimate(self, exchange: str, expected: Usage) -> None:
        """What a client's call will probably be counted as: of many streams nobody asks how much it was."""
        keep_newest(self._estimates, exchange, expected, _MOST_WAITING)

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """A subscriber of the bus: a client's call has ended, whose answer will be read."""
        estimate = self._estimates.pop(event.exchange, None)
        if event.kind == "managed" and event.is_readable and event.is_final:
            keep_newest(self._waiting, event.exchange, event, _MOST_WAITING)
            if estimate is not None:
                self._expect(event, estimate)

    def note_answer(self, event: AnswerRead) -> None:
        """A subscriber of the bus: what a client's call cost is known."""
        if event.exchange in self._waiting and event.usage.input is not None:
            call = self._waiting.pop(event.exchange)
            balance = self._find_balance(call.session)
            balance.expected.pop(event.exchange, None)
            self._book(balance, (call.upstream, call.model, event.usage))

    def find_objection(self, session: str, expected: Cost, *, is_wished: bool = False) -> str:
        """Why a call that will probably cost so much is not to be made; empty where it may be.

        What a person wished may take more than the share of its session.
        """
        policy, balance = self._policy, self._find_balance(session)
        if policy.spend_per_day and (objection := self._object_to_day(expected)):
            return objection
        if is_wished:
            return ""
        if (balance.extra + balance.held + expected).exceeds(policy.spend_fraction, self._sum_main(balance)):
            share = f"{policy.spend_fraction:.0%} of what this session's own calls cost"
            return f"it would take more than {share} (compaction.spend_fraction)"
        return ""

    def find_extra(self, session: str) -> Cost:
        """What was spent besides for a session, as far as that is known since the start."""
        return self._find_balance(session).extra

    def price(self, upstream: str, model: str, usage: Usage) -> Cost:
        """What a call costs that is, or will be, counted so."""
        return price_usage(usage, self._find_card(upstream, model))

    def hold(self, session: str, expected: Cost) -> None:
        """A call is made that will probably cost so much; `settle` is called once with the same."""
        self._find_balance(session).held += expected
        self._held += expected

    def settle(self, session: str, exchange: str, expected: Cost, cost: Cost) -> None:
        """It has ended, and this is what it cost."""
        balance = self._find_balance(session)
        balance.held = _release(balance.held, expected)
        self._held = _release(self._held, expected)
        balance.extra += cost
        self._turn_page()
        self._today += cost
        keep_newest(self._calls, exchange, cost, _MOST_CALLS)

    def book_loss(self, session: str, calls: Sequence[str]) -> Cost:
        """The exchanges in which a summary was made that is never used; what they cost, as far as that is known yet."""
        lost = Cost()
        for exchange in calls:
            lost += self._calls.pop(exchange, Cost())
        self._bus.publish(SummaryWasted(calls[-1] if calls else "", session, lost.tokens))
        return lost

    def _expect(self, event: ExchangeRecorded, usage: Usage) -> None:
        """Reckon with what a call will be counted as; with the oldest of very many for good."""
        balance = self._find_balance(event.session)
        balance.expected[event.exchange] = event.upstream, event.model, usage
        if len(balance.expected) > _MOST_UNPRICED:
            oldest = next(iter(balance.expected))
            self._waiting.pop(oldest, None)
            self._book(balance, balance.expected.pop(oldest))

    def _book(self, balance: _Balance, call: _Call) -> None:
        balance.unpriced.append(call)
        if len(balance.unpriced) > _MOST_UNPRICED:
            self._price_all(balance)

    def _sum_main(self, balance: _Balance) -> Cost:
        """What a session's own calls cost, those included that are only expected to."""
        self._price_all(balance)
        return sum((self.price(*call) for call in balance.expected.values()), balance.main)

    def _price_all(self, balance: _Balance) -> None:
        """Add up what a session's own calls cost of which that has not been asked yet."""
        for call in balance.unpriced:
            balance.main += self.price(*call)
        balance.unpriced.clear()

    def _object_to_day(self, expected: Cost) -> str:
        self._turn_page()
        if not self._is_open:
            return "what was spent today has not been read from the log yet"
        spent = self._today + self._held + expected
        if spent.money is None:
            return "compaction.spend_per_day is set, and what models cost is not known; state it under pricing"
        if spent.money > self._policy.spend_per_day:
            return f"it would take more than {self._policy.spend_per_day:g} a day (compaction.spend_per_day)"
        return ""

    def _sum_up(self, spent: Sequence[SummarySpending]) -> Cost:
        total = Cost()
        for each in spent:
            total += self.price(each.upstream, each.model, each.usage)
        return total

    def _turn_page(self) -> None:
        """Begin a day."""
        day = self._find_day()
        if day != self._day:
            self._day, self._today = day, Cost()

    def _find_day(self) -> int:
        return self._clock.now_ms() // _DAY_MS

    def _find_balance(self, session: str) -> _Balance:
        balance = self._balances.get(session) or _Balance()
        return keep_newest(self._balances, session, balance, _MOST_SESSIONS)


def _release(held: Cost, expected: Cost) -> Cost:
    """What is still held; nothing at all where the last was let go, whatever rounding left."""
    left = held - expected
    return left if left.tokens > 1e-6 else Cost()
