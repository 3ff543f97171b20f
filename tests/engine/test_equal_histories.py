"""The same history, sent again and again without a session id: it costs what it costs with one, however often.

What is counted does not depend on the machine: own calls, records and plans.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest

import proxy
from proxy.context.conversation import PlanRequest
from proxy.model.epoch import ContextPlan
from proxy.model.exchange import Headers
from proxy.model.lineage import Lineage
from tests.support.managed import NAMED, ManagedEngine, OwnBuilder, answer
from tests.support.managing import make_history

UNNAMED: Headers = ((b"authorization", b"Bearer k"),)
HISTORY = make_history(16, 1600)  # above the soft mark, and below the high one
OWN = str(Path(proxy.__file__).parent)
REPEATS, PART = 300, 20


class NotingBuilder(OwnBuilder):
    """Notes the history that each plan is made for, by its last node."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def build(self, view: PlanRequest) -> ContextPlan:
        self.sizes.append(len(view.messages))
        return super().build(view)


@contextmanager
def count_own_calls() -> Iterator[list[int]]:
    """Count the Python functions of the package that run on this thread."""
    counted = [0]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        counted[0] += event == "call" and frame.f_code.co_filename.startswith(OWN)

    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(None)


async def repeat(engine: ManagedEngine, base: Headers, times: int, first: int = 0) -> list[int]:
    """Send the history so many times, each time with another answer. Return the own calls of each."""
    counts: list[int] = []
    for number in range(first, first + times):
        said = b'{"choices":[{"message":{"role":"assistant","content":"number %d"},"finish_reason":"stop"}]}' % number
        engine.upstream.prepare(answer(said))
        with count_own_calls() as counted:
            await engine.send(HISTORY, base=base)
            await engine.wait_for_ahead()
        counts += counted
    return counts


async def test_without_an_id_a_history_costs_as_much_as_with_one_and_the_300th_time_as_the_first() -> None:
    builder = NotingBuilder()
    unnamed, named = ManagedEngine(builder=builder), ManagedEngine()
    counts = await repeat(unnamed, UNNAMED, REPEATS)
    with_id = await repeat(named, NAMED, 2 * PART)
    first, last = counts[PART : 2 * PART], counts[-PART:]
    assert median(last) <= 1.01 * median(first)
    assert median(last) <= 1.1 * median(with_id[PART:])
    records = [len(engine.log.appended) / times for engine, times in ((unnamed, REPEATS), (named, 2 * PART))]
    assert records[0] == pytest.approx(records[1], rel=0.05)
    assert len(builder.sizes) == 1
    steps = unnamed.log.of(Lineage)
    assert {step.tip for step in steps} == {steps[0].tip}
    assert {(len(step.nodes), len(step.fingerprints)) for step in steps[1:]} == {(0, 0)}


async def test_every_time_the_same_messages_are_sent_with_the_parameters_of_the_client() -> None:
    engine = ManagedEngine()
    history = make_history(24, 1600)  # above the high mark
    turns = [await engine.send(history, base=UNNAMED, temperature=number) for number in range(3)]
    assert [turn.plan.rung for turn in turns] == ["plan", "epoch", "epoch"]
    assert turns[0].messages == turns[1].messages == turns[2].messages != history
    assert [json.loads(turn.sent)["temperature"] for turn in turns] == [0, 1, 2]
    assert len({turn.labels["x-palimpsest-session"] for turn in turns}) == len(engine.epochs) == 1
