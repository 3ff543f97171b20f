"""The calls under way, and the row of the timeline that each becomes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from proxy.context.pricing import price_saved
from proxy.engine.models import PriceList
from proxy.model.events import AnswerRead, CallCompletedEvent, ExchangeRecorded, RequestRecorded, StreamedEvent
from proxy.model.lru import LruCache

_MOST_CALLS = 4096
_LONGEST = 1000  # characters of an error

N = TypeVar("N", int, float)


@dataclass(slots=True, eq=False)
class CallUnderWay:
    """A call of which events were seen: its request, how its rounds ended, and what was read of each."""

    prices: PriceList
    request: RequestRecorded | None = None
    rounds: list[ExchangeRecorded] = field(default_factory=list)
    answers: dict[int, AnswerRead] = field(default_factory=dict)

    @property
    def session(self) -> str:
        """The id of its session, empty if unknown."""
        if self.request is not None:
            return self.request.session.id
        return self.rounds[-1].session if self.rounds else ""

    def describe(self, at_ms: int, n: int | None) -> Iterable[StreamedEvent]:
        """Return the event that tells of its end."""
        outcome, usages = self.rounds[-1], [answer.usage for answer in self.answers.values()]
        (client, sent), plan = self._count(outcome), outcome.plan
        first_byte_s = next((each.first_byte_s for each in self.rounds if each.first_byte_s), 0.0)
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
            money=self._sum_money(),
            saved_money=self._sum_saved(outcome),
            epoch=plan.epoch if plan is not None else "",
            rung=plan.rung if plan is not None else "",
            seconds=round(sum(each.total_s for each in self.rounds), 4),
            first_byte_seconds=round(first_byte_s, 4) or None,
            overhead_seconds=None if outcome.overhead_s is None else round(outcome.overhead_s, 6),
        )
        return (event,)

    def _count(self, outcome: ExchangeRecorded) -> tuple[int | None, int | None]:
        """Return the tokens of the client's own request and of what was sent for it, in the last round.

        Where it went unchanged, the provider has counted both. A round in which the model recalled has none of the
        client's: they are those of an earlier one.
        """
        plan, answer = outcome.plan, self.answers.get(outcome.k)
        counted = answer.usage.input if answer is not None else None
        if plan is None or plan.rung == "original":
            own = counted if plan is None or counted is not None else plan.tokens_client
            return own, own
        plans = [each.plan for each in reversed(self.rounds) if each.plan is not None]
        own = next((each.tokens_client for each in plans if each.tokens_client), None)
        return own, plan.tokens_upstream if counted is None else counted

    def _sum_money(self) -> float | None:
        known = [answer.price() for answer in self.answers.values() if answer.usage.input is not None]
        return _add(known) if known and None not in known else None

    def _sum_saved(self, outcome: ExchangeRecorded) -> float | None:
        """Return what managing saved, as `read/savings` finds it; None if unknown."""
        if outcome.kind == "recorded":
            return None
        card = self.prices.find_card(outcome.upstream, outcome.model)
        cache = self.prices.find_cache(outcome.upstream, card)
        read = [(self.answers[each.k], each.plan) for each in self.rounds if each.k in self.answers]
        saved = price_saved([(plan, answer.usage) for answer, plan in read], card, cache)
        return saved.money if saved is not None else None


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
        call.rounds.append(event)
        self._calls.put(event.exchange, call)
        return call

    def add_answer(self, event: AnswerRead) -> bool:
        """Note what the response to a round says. Return whether it is that to the last one."""
        call = self._calls.peek(event.exchange)
        if call is None or not call.rounds:
            return False
        call.answers[event.k] = event
        return call.rounds[-1].is_final and event.k == call.rounds[-1].k

    def close(self, exchange: str) -> CallUnderWay | None:
        """Return a call that has ended, and forget it. None if it was not known to have."""
        call = self._calls.pop(exchange)
        return call if call is not None and call.rounds else None


def _add(counts: Iterable[N | None]) -> N | None:
    """Return the sum of those that are known, None if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
