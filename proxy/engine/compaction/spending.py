"""The cost of clients' calls, and what may be spent on summaries in addition."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from proxy.context.pricing import Cost
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.models import PriceList
from proxy.engine.ports import Clock
from proxy.engine.runtime import EngineBus
from proxy.model.events import AnswerRead, ExchangeRecorded, SummaryWasted
from proxy.model.exchange import CONVERSATION, Usage
from proxy.model.log import AuxiliaryUsage
from proxy.model.lru import LruCache

_DAY_MS = 86_400_000
_MOST_SESSIONS = 4096
_MOST_WAITING = 4096
_MOST_CALLS = 4096
_MOST_UNPRICED = 64

_Call = tuple[str, str, Usage]
"""An upstream, a model of it, and the usage, reported or expected."""


@dataclass(slots=True)
class Balance:
    """The costs of a session: of its own calls, of its summaries, and what is reserved for running summary calls.

    Own calls stay in `unpriced` until their cost is needed, which is rare. Calls in `expected` have no reported usage,
    either not yet or never.
    """

    main: Cost = field(default_factory=Cost)
    unpriced: list[_Call] = field(default_factory=list)
    expected: dict[str, _Call] = field(default_factory=dict)
    summaries: Cost = field(default_factory=Cost)
    reserved: Cost = field(default_factory=Cost)


class SpendBudget:
    """Keeps account of what was spent. A summary is made only if its expected cost still fits the limits.

    The amount spent today is read from the log after a start. The share of a session counts from the start on, for its
    own calls and for its summaries.
    """

    def __init__(self, policy: CompactionPolicy, prices: PriceList, bus: EngineBus, clock: Clock) -> None:
        self._policy = policy
        self._prices = prices
        self._bus = bus
        self._clock = clock
        self._balances = LruCache[str, Balance](_MOST_SESSIONS)
        self._waiting = LruCache[str, ExchangeRecorded](_MOST_WAITING)
        self._estimates = LruCache[str, Usage](_MOST_WAITING)
        self._calls = LruCache[str, Cost](_MOST_CALLS)
        self._reserved = Cost()
        self._day = clock.now_ms() // _DAY_MS
        self._today = Cost()
        self.is_loaded = not policy.spend_per_day

    async def load_today(self, sum_auxiliary: Callable[[int], Awaitable[Sequence[AuxiliaryUsage]]]) -> None:
        """Read what was spent today. Until then a daily cap allows no call. Raises StoreUnavailable.

        `sum_auxiliary` is `LogReader.sum_auxiliary`.
        """
        day = self._clock.now_ms() // _DAY_MS
        spent = await sum_auxiliary(day * _DAY_MS)
        self._begin_day()
        if day == self._day:
            self._today += sum((self.price(each.upstream, each.model, each.usage) for each in spent), Cost())
        self.is_loaded = True

    def record_estimate(self, exchange: str, expected: Usage) -> None:
        """Record the expected usage of a client's call, since many streams report none."""
        self._estimates.put(exchange, expected)

    def record_exchange(self, event: ExchangeRecorded) -> None:
        """Record that a client's call has ended, whose response will be read. Subscribed to the bus."""
        estimate = self._estimates.pop(event.exchange)
        if event.kind not in CONVERSATION or not event.is_readable or not event.is_final:
            return
        self._waiting.put(event.exchange, event)
        if estimate is None:
            return
        balance = self.get_balance(event.session)
        balance.expected[event.exchange] = event.upstream, event.model, estimate
        if len(balance.expected) > _MOST_UNPRICED:  # the oldest keeps its expected cost for good
            oldest = next(iter(balance.expected))
            self._waiting.pop(oldest)
            self._add_own_call(balance, balance.expected.pop(oldest))

    def record_answer(self, event: AnswerRead) -> None:
        """Record the reported usage of a client's call. Subscribed to the bus."""
        if event.usage.input is not None and (call := self._waiting.pop(event.exchange)) is not None:
            balance = self.get_balance(call.session)
            balance.expected.pop(event.exchange, None)
            self._add_own_call(balance, (call.upstream, call.model, event.usage))

    def find_objection(self, session: str, expected: Cost, *, is_manual: bool = False) -> str:
        """Return why a call with this expected cost must not be made, or an empty string if it may.

        A manual call may exceed the share of its session.
        """
        policy, balance = self._policy, self.get_balance(session)
        if policy.spend_per_day and (objection := self._find_daily_objection(expected)):
            return objection
        if not is_manual and self._exceeds_share(balance, expected, self._sum_own_calls(balance)):
            share = f"{policy.spend_fraction:.0%} of what this session's own calls cost"
            return f"it would take more than {share} (compaction.spend_fraction)"
        return ""

    def count_affordable(self, session: str, upstream: str, model: str, prompt: Usage, most: int) -> int:
        """Return the output tokens, at most `most`, that the share of a session allows for a call with this prompt."""
        balance = self.get_balance(session)
        own = self._sum_own_calls(balance)

        def is_above(output: int) -> bool:
            expected = self.price(upstream, model, replace(prompt, output=output))
            return self._exceeds_share(balance, expected, own)

        return max(0, bisect_right(range(most + 1), False, key=is_above) - 1 if is_above(most) else most)

    def _sum_own_calls(self, balance: Balance) -> Cost:
        """Return the cost of the client's calls, those included whose usage has not come yet."""
        self._price_own_calls(balance)
        return sum((self.price(*call) for call in balance.expected.values()), balance.main)

    def _exceeds_share(self, balance: Balance, expected: Cost, own: Cost) -> bool:
        return (balance.summaries + balance.reserved + expected).exceeds(self._policy.spend_fraction, own)

    def price(self, upstream: str, model: str, usage: Usage) -> Cost:
        """Return the cost of a call with this usage."""
        return self._prices.price(upstream, model, usage)

    def reserve(self, session: str, expected: Cost) -> None:
        """Reserve the expected cost of a call that begins. Call `settle` once with the same amount."""
        self.get_balance(session).reserved += expected
        self._reserved += expected

    def settle(self, session: str, exchange: str, expected: Cost, cost: Cost) -> None:
        """Replace a reservation by the cost of the call."""
        balance = self.get_balance(session)
        balance.reserved = _release(balance.reserved, expected)
        self._reserved = _release(self._reserved, expected)
        balance.summaries += cost
        self._begin_day()
        self._today += cost
        self._calls.put(exchange, cost)

    def record_waste(self, session: str, calls: Sequence[str]) -> Cost:
        """Record that the summary made by these exchanges will never be used. Return their cost, as far as known."""
        wasted = Cost()
        for exchange in calls:
            wasted += self._calls.pop(exchange) or Cost()
        self._bus.publish(SummaryWasted(calls[-1] if calls else "", session, wasted.tokens))
        return wasted

    def _add_own_call(self, balance: Balance, call: _Call) -> None:
        balance.unpriced.append(call)
        if len(balance.unpriced) > _MOST_UNPRICED:
            self._price_own_calls(balance)

    def _price_own_calls(self, balance: Balance) -> None:
        for call in balance.unpriced:
            balance.main += self.price(*call)
        balance.unpriced.clear()

    def _find_daily_objection(self, expected: Cost) -> str:
        self._begin_day()
        if not self.is_loaded:
            return "what was spent today has not been read from the log yet"
        spent = self._today + self._reserved + expected
        if spent.money is None:
            return "compaction.spend_per_day is set, and what models cost is not known; state it under pricing"
        if spent.money > self._policy.spend_per_day:
            return f"it would take more than {self._policy.spend_per_day:g} a day (compaction.spend_per_day)"
        return ""

    def _begin_day(self) -> None:
        """Reset the daily sums if a new day has begun."""
        day = self._clock.now_ms() // _DAY_MS
        if day != self._day:
            self._day, self._today = day, Cost()

    def get_balance(self, session: str) -> Balance:
        """Return the costs of a session since the start."""
        balance = self._balances.get(session)
        if balance is None:
            balance = Balance()
            self._balances.put(session, balance)
        return balance


def _release(reserved: Cost, expected: Cost) -> Cost:
    """Return what is still reserved: exactly zero after the last release, without rounding errors."""
    left = reserved - expected
    return left if left.tokens > 1e-6 else Cost()
