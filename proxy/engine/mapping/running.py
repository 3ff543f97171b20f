"""A run of an operator: its results one by one, what they have cost in total, and what is told of it.

A run is an object beside its results, since what it adds up is read after the last of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sized
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from proxy.engine.mapping.pool import Inputs, run_each
from proxy.engine.mapping.sandbox import RunSandbox, Sandbox, TaskFailed
from proxy.engine.policy import OperatorPolicy
from proxy.engine.ports import Clock, Ids
from proxy.engine.runtime import SystemClock, SystemIds, TaskRunner
from proxy.engine.turns.conversation import Conversations
from proxy.model.errors import ProxyError
from proxy.model.events import MapCompletedEvent, MapItemCompletedEvent, MapStartedEvent
from proxy.model.results import TokenUsage

# Statuses after which the same call may succeed. 529: Anthropic is overloaded.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# Statuses that concern all calls of a run alike: the credential, or the model.
_OF_ALL = frozenset({401, 403, 404})
_LONGEST_PAUSE = 60.0
_LONGEST_ERROR = 500

FIRST_PAUSE = 0.5
"""The seconds before a call is repeated, unless the upstream says how long; each further pause is twice as long."""

Operator = Literal["llm_map", "agentic_map"]
Publish = Callable[[MapStartedEvent | MapItemCompletedEvent | MapCompletedEvent], None]
"""Tells of a run. It must not raise."""


class ItemResult(Protocol):
    """What the results of all operators have."""

    @property
    def success(self) -> bool:
        """Whether the item has an output."""
        ...

    @property
    def error(self) -> str | None:
        """Why it has none."""
        ...


R = TypeVar("R", bound=ItemResult)


class MapTotals(msgspec.Struct):
    """What a run has come to so far.

    `cost` is in the currency of the prices, null where a model's price is not known. `uncounted` are the calls whose
    answers told no tokens: they are in neither sum.
    """

    succeeded: int = 0
    failed: int = 0
    calls: int = 0
    uncounted: int = 0
    tokens: TokenUsage = TokenUsage()
    cost: float | None = 0.0

    def add_call(self, tokens: TokenUsage | None, cost: float | None) -> None:
        """Add a call that was answered; without tokens where the answer told none."""
        self.calls += 1
        if tokens is None:
            self.uncounted += 1
            return
        self.tokens += tokens
        self.cost = None if self.cost is None or cost is None else self.cost + cost


@dataclass(kw_only=True, eq=False)
class MapRun:
    """One run of an operator over a list. `publish` is told of it; `concurrency` items are worked on at once."""

    id: str
    operator: Operator
    model: str
    concurrency: int
    tasks: TaskRunner
    clock: Clock
    sandbox: RunSandbox
    publish: Publish
    session: str = ""  # where its calls are kept, once that is known
    totals: MapTotals = field(default_factory=MapTotals)

    async def go_through(
        self, inputs: Inputs[Any], work: Callable[[int, Any], Awaitable[R]]
    ) -> AsyncGenerator[tuple[int, R]]:
        """Yield the number and the result of each item as they are completed. `work` must not raise.

        However it ends, nothing is running afterwards.
        """
        began, is_cancelled = self.clock.monotonic(), True
        self._tell_start(len(inputs) if isinstance(inputs, Sized) else None)
        try:
            async with aclosing(run_each(inputs, work, self.concurrency, self.tasks)) as results:
                async for number, result in results:
                    self._tell_item(number, result)
                    yield number, result
            is_cancelled = False
        finally:
            self._tell_end(round(1000 * (self.clock.monotonic() - began)), is_cancelled=is_cancelled)

    def _tell_start(self, items: int | None) -> None:
        self.publish(MapStartedEvent(**self._identify(), model=self.model, items=items))

    def _identify(self) -> dict[str, Any]:
        """Return the members that all events of the run have."""
        return {"at_ms": self.clock.now_ms(), "session": self.session, "run": self.id, "operator": self.operator}

    def _tell_item(self, number: int, result: ItemResult) -> None:
        self.totals.succeeded += result.success
        self.totals.failed += not result.success
        event = MapItemCompletedEvent(
            **self._identify(),
            index=number,
            success=result.success,
            error=result.error,
            attempts=getattr(result, "attempts", 1),
            item_session=getattr(result, "session_id", ""),
        )
        self.publish(event)

    def _tell_end(self, elapsed_ms: int, *, is_cancelled: bool) -> None:
        event = MapCompletedEvent(
            **self._identify(),
            succeeded=self.totals.succeeded,
            failed=self.totals.failed,
            is_cancelled=is_cancelled,
            tokens=self.totals.tokens,
            money=self.totals.cost,
            elapsed_ms=elapsed_ms,
        )
        self.publish(event)


@dataclass(frozen=True, slots=True)
class OperatorEngine:
    """What operators need of an engine."""

    home: Conversations  # the sessions of programs, with what makes calls
    policy: OperatorPolicy
    sandbox: Sandbox
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)

    def begin(
        self, operator: Operator, model: str, concurrency: int | None = None, publish: Publish | None = None
    ) -> MapRun:
        """Return a new run. Raises ValueError for a concurrency below 1."""
        usual = {"llm_map": self.policy.llm_map_concurrency, "agentic_map": self.policy.agentic_map_concurrency}
        id = self.ids.next_exchange()
        return MapRun(
            id=id,
            operator=operator,
            model=model,
            concurrency=require_least("concurrency", usual[operator] if concurrency is None else concurrency, 1),
            tasks=self.home.tasks,
            clock=self.clock,
            sandbox=RunSandbox(self.sandbox, id),
            publish=publish or (lambda event: None),
        )


def require_least(name: str, number: int, least: int) -> int:
    """Return a number. Raises ValueError if it is below the least one, or no whole number."""
    if not isinstance(number, int):
        raise ValueError(f"{name} is a whole number, not {number!r:.100}")
    if number < least:
        raise ValueError(f"{name} is at least {least}, not {number}")
    return number


class CallFailed(Exception):
    """A call without an answer. `is_final`: another one would fail, too. `pause` is in seconds, if it is told."""

    def __init__(self, reason: str, *, is_final: bool = False, pause: float | None = None) -> None:
        super().__init__(reason[:_LONGEST_ERROR])
        self.is_final = is_final
        self.pause = pause


class CallPacer:
    """When calls of a run are made again, and when none is made any more.

    A pause that the upstream asks for is one of all its calls. A refusal of the credential or of the model, before any
    call had an answer, is one of all calls.
    """

    def __init__(self, run: MapRun, max_retries: int) -> None:
        self.most_calls = 1 + require_least("max_retries", max_retries, 0)
        self._run = run
        self._until = 0.0
        self._refusal: CallFailed | None = None

    async def wait(self) -> None:
        """Wait until a call may be made. Raises CallFailed if none is made any more."""
        if (left := self._until - self._run.clock.monotonic()) > 0:
            await asyncio.sleep(left)
            return await self.wait()  # it may have become longer
        if self._refusal is not None and not self._run.totals.calls:
            raise self._refusal

    def refuse(self, status: int, reason: str, pause: float | None = None) -> CallFailed:
        """Return the failure of a call that the upstream has refused, which may be one of all calls."""
        refused = CallFailed(reason, is_final=status not in _PASSING, pause=pause)
        if status in _OF_ALL:
            self._refusal = refused
        return refused

    async def wait_after(self, failure: CallFailed, count: int) -> None:
        """Wait after the call number `count` of an item; with all others if the upstream has said how long.

        Raises the failure if it was the last call, or if another one would fail, too.
        """
        if failure.is_final or count >= self.most_calls:
            raise failure
        if failure.pause is not None:
            until = self._run.clock.monotonic() + min(failure.pause, _LONGEST_PAUSE)
            self._until = max(self._until, until)
        else:
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** (count - 1), _LONGEST_PAUSE))


def describe_problem(error: Exception, *expected: type[Exception]) -> str:
    """Return why an item has no output: for an `expected` error and for one of ours its text, else its type, too."""
    if isinstance(error, (CallFailed, TaskFailed, ProxyError, *expected)):
        return str(error)
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
