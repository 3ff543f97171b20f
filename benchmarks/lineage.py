"""What recognising a conversation costs: `python -m benchmarks.lineage`.

The rule: medians of the thread's own time in one process, without a store or a network, so that lineage's own part can
be told from what it costs to split a body and take stock of it without lineage; that part is the difference between the
two medians. Either goes first in every other turn, for the second finds the body in the processor's cache. What else a
reception does (headers, tenant, opening: some 25 us) counts as lineage's.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import orjson

from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.conversations.bodies import BodyCache, build_manifest, split_known
from proxy.engine.lineage.chain import Chain, Preamble
from proxy.engine.lineage.identity import Tenants
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.policy import EnginePolicy
from proxy.engine.request import ResolvedRequest
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import EngineBus, SystemClock, TaskRunner
from proxy.model.exchange import ClientRequest
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import FakeArchive

FORM = ChatCompletions()
KEY = (b"t" * 16, FORM.name, "")
MESSAGES, BYTES = 690, 800_000
ROUNDS = 40
SMALL_ROUNDS = 3000

Message = dict[str, Any]
T = TypeVar("T")


class Figures(NamedTuple):
    """Milliseconds: the whole reception, the same without lineage, and `orjson.loads` of the body for comparison."""

    whole: float
    without: float
    loads: float


class Upstream:
    """A name; nothing is sent."""

    name = "main"

    async def send(self, *args: object) -> Any:
        raise NotImplementedError


class Numbers:
    """Ids in order."""

    def __init__(self) -> None:
        self._numbers = count()

    def next_exchange(self) -> str:
        return f"x{next(self._numbers)}"


class Desk:
    """A reception, and an answer to each request that is read at once."""

    def __init__(self) -> None:
        archive: Any = FakeArchive(is_instant=True)
        self._policy, self._clock, self._ids = EnginePolicy(cache_bytes=1 << 30), SystemClock(), Numbers()
        self.lineage = LineageTracker(archive, Tenants(b"s", self._clock), self._clock, 1 << 28, is_fresh=True)
        tasks = TaskRunner()
        self._readings = ResponseReader(archive, EngineBus(tasks), tasks, self.lineage, self._policy.record_cap_bytes)
        self.reception = self._make_reception()

    def _make_reception(self) -> RequestResolver:
        upstream: Any = Upstream()
        return RequestResolver(
            self._policy,
            [Route(upstream)],
            reader=self._readings,
            clock=self._clock,
            ids=self._ids,
        )

    def receive(self, body: bytes) -> ResolvedRequest:
        """Nothing is waited for: memory holds all there is."""
        request = ClientRequest("POST", b"/v1/chat/completions", (), body)
        try:
            self.reception.resolve(request, FORM, "observe").send(None)
        except StopIteration as done:
            received: ResolvedRequest = done.value[0]
            self.reception.make_opening(*done.value)
            return received
        raise AssertionError("it waits")

    def forget_bytes(self) -> None:
        """Let every byte be new, and every message known."""
        self.reception = self._make_reception()

    def answer(self, received: ResolvedRequest, text: str) -> None:
        value = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        self.lineage.note_answer(received.exchange, 0, FORM, value)


class Bare:
    """What was done of old: a body is split and taken stock of."""

    def __init__(self) -> None:
        self.histories = BodyCache(1 << 30)
        self.chain = Chain(b"", Preamble(0, b"", b"", b""), (), (), b"")

    def receive(self, body: bytes) -> None:
        known, shared = self.histories.find(KEY, body)
        split = split_known(body, FORM.items_key, known, shared)
        assert split is not None
        _, history = build_manifest(KEY[0], split, self.chain, known, shared)
        if history is not None:
            self.histories.remember(KEY, history, known)


def make_history(messages: int, size: int) -> list[Message]:
    """User, call, result, and so on."""
    text = "word and code(); " * (size * 3 // 2 // messages // 17)
    history: list[Message] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "hi " + text}]
    while len(history) < messages:
        i = len(history)
        function = {"name": "read", "arguments": json.dumps({"path": f"src/{i}.py", "text": text[:200]})}
        calls = [{"id": f"call_{i}xZq9", "type": "function", "function": function}]
        history.append({"role": "assistant", "content": None, "tool_calls": calls})
        history.append({"role": "tool", "tool_call_id": f"call_{i}xZq9", "content": f"{i} {text}"})
    return history


def spell(history: Sequence[Message], *, is_wide: bool = False) -> bytes:
    separators = (", ", ": ") if is_wide else (",", ":")
    return json.dumps({"model": "m", "stream": True, "messages": history}, separators=separators).encode()


def grow(history: list[Message], i: int) -> list[Message]:
    return [*history, {"role": "assistant", "content": f"answer {i}"}, {"role": "user", "content": f"and {i}?" * 50}]


def measure_turns(history: list[Message], rounds: int, *, is_respelled: bool = False) -> Figures:
    """Median milliseconds per turn of a growing session."""
    desk, bare = Desk(), Bare()
    whole: list[float] = []
    parts: list[float] = []
    loads: list[float] = []
    for i in range(rounds):
        body = spell(history, is_wide=is_respelled and i % 2 == 1)
        if is_respelled:  # nothing of the bytes is known, all of the nodes are
            desk.forget_bytes()
            bare.histories.clear()
        if i % 4 < 2:
            parts.append(take_time(lambda body=body: bare.receive(body))[0])
        spent, received = take_time(lambda body=body: desk.receive(body))
        whole.append(spent)
        if i % 4 >= 2:
            parts.append(take_time(lambda body=body: bare.receive(body))[0])
        loads.append(take_time(lambda body=body: orjson.loads(body))[0])
        assert received.lineage is not None and received.lineage.relation == ("append" if i else "root")
        desk.answer(received, f"answer {i}")
        history = grow(history, i)
    return Figures(*(statistics.median(each[1:]) for each in (whole, parts, loads)))


def measure_small(rounds: int, *, is_repeated: bool) -> Figures:
    """Median milliseconds of a call of 1 KB that begins a session, its answer included."""
    desk, bare = Desk(), Bare()
    whole: list[float] = []
    parts: list[float] = []
    loads: list[float] = []
    for i in range(rounds):
        asked = f"question {0 if is_repeated else i} " + "word " * 150
        body = spell([{"role": "system", "content": "You help. " * 20}, {"role": "user", "content": asked}])
        spent, received = take_time(lambda body=body: desk.receive(body))
        answering, _ = take_time(lambda received=received, i=i: desk.answer(received, f"This is what answers it: {i}"))
        whole.append(spent + answering)
        parts.append(take_time(lambda body=body: bare.receive(body))[0])
        loads.append(take_time(lambda body=body: orjson.loads(body))[0])
    return Figures(*map(statistics.median, (whole, parts, loads)))


def take_time(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds of this thread's own time, and what came of it."""
    began = time.thread_time_ns()
    result = work()
    return (time.thread_time_ns() - began) / 1e6, result


async def main() -> None:
    long = make_history(MESSAGES, BYTES)
    print(f"{len(spell(long)) // 1000} KB, {len(long)} messages; medians of {ROUNDS} turns, ms\n")
    print(f"{'':34}{'whole':>9}{'without':>9}{'lineage':>9}{'target':>9}{'orjson':>9}")
    for name, is_respelled, target in (("bytes repeat", False, 0.5), ("re-serialised", True, 4.0)):
        show(name, measure_turns(long, ROUNDS, is_respelled=is_respelled), f"{target}")
    for size in (10, 100, 1000, 5000):
        show(f"a turn of {size} messages (4 per 1 KB)", measure_turns(make_history(size, size * 250), ROUNDS), "flat")
    for name, is_repeated in (("a call of 1 KB, and its answer", False), ("the same, an equal body each time", True)):
        show(name, measure_small(SMALL_ROUNDS, is_repeated=is_repeated), "low")


def show(name: str, found: Figures, target: str) -> None:
    own = found.whole - found.without
    print(f"{name:34}{found.whole:9.3f}{found.without:9.3f}{own:9.3f}{target:>9}{found.loads:9.3f}")


if __name__ == "__main__":
    asyncio.run(main())
