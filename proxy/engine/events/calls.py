"""The calls under way, and the row of the timeline that each becomes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.context.pricing import Cost, price_saved
from proxy.engine.models import PriceList
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead, AnswerUninformative, ExchangeRecorded, RequestRecorded
from proxy.model.exchange import Usage
from proxy.model.lru import LruCache
from proxy.model.stream_events import CallCompletedEvent, StreamEvent

_MOST_CALLS = 4096
_LONGEST = 1000  # characters of an error


@dataclass(slots=True, eq=False)
class CallUnderWay:
    """A call of which events were seen. What it has of usage and plans is by the number of the round."""

    prices: PriceList
    request: RequestRecorded | None = None
    outcome: ExchangeRecorded | None = None  # of the last round so far
    plans: dict[int, Plan] = field(default_factory=dict)
    usages: dict[int, Usage] = field(default_factory=dict)
    first_byte_s: float = 0.0
    seconds: float = 0.0

    @property
    def session(self) -> str:
        """The id of its session, empty if unknown."""
        if self.request is not None:
            return self.request.session.id
        return self.outcome.session if self.outcome is not None else ""

    def describe(self, at_ms: int, n: int | None) -> Iterable[StreamEvent]:
        """Return the event that tells of its end."""
        outcome, usages = self.outcome, list(self.usages.values())
        assert outcome is not None, "it has ended"
        client, sent = self._count()
        cost, saved, plan = self._sum_cost(outcome), self._sum_saved(outcome), outcome.plan
        event = CallCompletedEvent(
            at_ms=at_ms,
            session=outcome.session,
            exchange=outcome.exchange,
            n=n,
            kind=outcome.kind,
            model=outcome.model,
            upstream=outcome.upstream,
            wire=outcome.wire,
            is_side=self.request is not None and self.request.is_side,
            status=outcome.status,
            completeness=outcome.completeness,
            error=outcome.error[:_LONGEST],
            client=client,
            sent=sent,
            input=_add(usage.input for usage in usages),
            read=_add(usage.cached for usage in usages),
            written=_add(usage.written for usage in usages),
            output=_add(usage.output for usage in usages),
            money=None if cost is None else cost.money,
            saved_money=None if saved is None else saved.money,
            epoch=plan.epoch if plan is not None else "",
            rung=plan.rung if plan is not None else "",
            seconds=round(self.seconds, 4),
            first_byte_seconds=round(self.first_byte_s, 4) or None,
            overhead_seconds=None if outcome.overhead_s is None else round(outcome.overhead_s, 6),
        )
        return (event,)

    def _count(self) -> tuple[int | None, int | None]:
        """Return the tokens of the client's own request and of what was sent for it, in the last round.

        Where it went unchanged, the provider has counted both. A round in which the model recalled has none of the
        client's: they are those of an earlier one.
        """
        k = self.outcome.k if self.outcome is not None else 0
        plan, counted = self.plans.get(k), self.usages.get(k, Usage()).input
        if plan is None or plan.rung == "original":
            own = counted if plan is None or counted is not None else plan.tokens_client
            return own, own
        own = next(
            (each.tokens_client for _, each in sorted(self.plans.items(), reverse=True) if each.tokens_client), None
        )
        return own, plan.tokens_upstream if counted is None else counted

    def _sum_cost(self, outcome: ExchangeRecorded) -> Cost | None:
        known = [usage for usage in self.usages.values() if usage.input is not None]
        if not known or outcome.kind == "recorded":
            return None
        return sum((self.prices.price(outcome.upstream, outcome.model, usage) for usage in known), start=Cost())

    def _sum_saved(self, outcome: ExchangeRecorded) -> Cost | None:
        """Return what managing saved, as `read/savings` finds it; None if unknown."""
        if outcome.kind == "recorded":
            return None
        card = self.prices.find_card(outcome.upstream, outcome.model)
        cache = self.prices.find_cache(outcome.upstream, card)
        pairs = [(self.plans[k], usage) for k, usage in self.usages.items() if k in self.plans]
        return price_saved(pairs, card, cache)


class OpenCalls:
    """The calls under way by the ids of their exchanges. The oldest are forgotten above a limit."""

    def __init__(self, prices: PriceList) -> None:
        self._prices = prices
        self._calls = LruCache[str, CallUnderWay](_MOST_CALLS)

    def clear(self) -> None:
        """Forget all."""
        self._calls = LruCache(_MOST_CALLS)

    def find(self, exchange: str) -> CallUnderWay | None:
        """Return a call, None if nothing is known of it."""
        return self._calls.peek(exchange)

    def open(self, event: RequestRecorded) -> None:
        """Note a request."""
        self._calls.put(event.exchange, CallUnderWay(self._prices, event))

    def add_round(self, event: ExchangeRecorded) -> CallUnderWay:
        """Note how a round ended. Return its call."""
        call = self._calls.peek(event.exchange) or CallUnderWay(self._prices)
        call.outcome = event
        call.seconds += event.total_s
        call.first_byte_s = call.first_byte_s or event.first_byte_s
        if event.plan is not None:
            call.plans[event.k] = event.plan
        self._calls.put(event.exchange, call)
        return call

    def add_answer(self, event: AnswerRead | AnswerUninformative) -> bool:
        """Note what the response to a round says. Return whether it is that to the last one."""
        call = self._calls.peek(event.exchange)
        if call is None or call.outcome is None:
            return False
        if isinstance(event, AnswerRead):
            call.usages[event.k] = event.usage
        return call.outcome.is_final and event.k == call.outcome.k

    def close(self, exchange: str) -> CallUnderWay | None:
        """Return a call that has ended, and forget it. None if it was not known to have."""
        call = self._calls.pop(exchange)
        return call if call is not None and call.outcome is not None else None


def _add(counts: Iterable[int | None]) -> int | None:
    """Return the sum of those that are known, None if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
