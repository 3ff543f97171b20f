"""The end of an answer in which a model recalls: what waits for what, who may leave when, what is above the ceiling."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Plan, Recalled
from proxy.model.events import CeilingExceededEvent
from proxy.model.exchange import Outcome
from proxy.model.lineage import Reply
from proxy.wire.rounds.stitching import MOST_READ
from tests.engine.recall.test_rounds_chat import (
    DONE,
    PAGE,
    TOOLS,
    call,
    chunk,
    open_epoch,
    prepare,
    recalling,
    run,
    saying,
    stream,
    until,
    usage,
)
from tests.support.engine import JSON, LIMIT, ScriptedResponse
from tests.support.managed import ContextLog, ManagedEngine


class SlowRun:
    """Recalls when it may."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        self.began.set()
        await self.may_end.wait()
        return PAGE


def beside() -> ScriptedResponse:
    """A call of ours and one of the client's."""
    calls = [call('{"action":"search","query":"port"}'), call("{}", "bash", "call_9", 1)]
    deltas = [chunk({"role": "assistant", "content": "Both. "}), *[chunk({"tool_calls": [each]}) for each in calls]]
    return stream(*deltas, chunk({}, "tool_calls"), usage(1000, 20), DONE)


async def test_a_client_that_leaves_before_the_last_event_still_has_the_whole_answer_recorded() -> None:
    slow = SlowRun()
    engine = ManagedEngine(run=slow)
    await open_epoch(engine)
    prepare(engine, beside())
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    async with asyncio.timeout(LIMIT):
        await slow.began.wait()
    assert b'"bash"' in turn.client.body and b"[DONE]" not in turn.client.body
    turn.task.cancel()
    slow.may_end.set()
    await turn.finish()
    assert turn.task.cancelled() and engine.lineage.open_exchanges == {}
    (outcome,) = [each for each in engine.log.of(Outcome) if each.exchange == turn.exchange]
    (recalled,) = engine.log.of(Recalled)
    assert (outcome.completeness, recalled.exchange, recalled.rounds[-1].results[0][1]) == (
        "complete",
        turn.exchange,
        PAGE,
    )
    assert [each.exchange for each in engine.log.of(Reply)][-1] == turn.exchange


async def test_a_second_cancellation_ends_it() -> None:
    slow = SlowRun()
    engine = ManagedEngine(run=slow)
    await open_epoch(engine)
    prepare(engine, beside())
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    async with asyncio.timeout(LIMIT):
        await slow.began.wait()
    turn.task.cancel()
    await asyncio.sleep(0)
    turn.task.cancel()
    await turn.finish()
    assert turn.task.cancelled() and engine.lineage.open_exchanges == {}
    assert [each.completeness for each in engine.log.of(Outcome) if each.exchange == turn.exchange] == ["complete"]
    assert engine.log.of(Recalled) == []


@pytest.mark.parametrize("make", [saying, beside])
async def test_the_last_event_waits_for_the_record(make: Any) -> None:
    log = ContextLog(is_lazy=True)
    engine = ManagedEngine(run=run, archive=log)
    await open_epoch(engine)
    seen: list[bytes] = []
    append = log.append

    def look(*records: Any, is_urgent: bool = True) -> "asyncio.Future[bool]":
        seen.extend([turn.client.body for each in records if isinstance(each, Outcome | Recalled)])
        return append(*records, is_urgent=is_urgent)

    log.append = look  # type: ignore[method-assign]
    prepare(engine, make("The end.") if make is saying else make())
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    await turn.finish()
    assert turn.client.body.endswith(DONE) and turn.client.is_whole
    assert seen and all(body and b"[DONE]" not in body for body in seen)


async def test_an_answer_is_known_no_sooner_than_its_record_is_queued() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    histories = engine.controller.states.caches.histories
    nodes: list[set[bytes]] = []
    count = histories.count_messages

    async def look(request: ManagedRequest, raws: Sequence[bytes]) -> int:
        await asyncio.sleep(0)
        tree = engine.lineage.index.get(request.session.id)
        nodes.append(set(tree.standings) if tree is not None else set())
        return await count(request, raws)

    histories.count_messages = look  # type: ignore[method-assign]
    prepare(engine, recalling(), saying("Done."))
    await engine.send(until(23), tools=TOOLS, stream=True)
    (recalled,) = engine.log.of(Recalled)
    assert len(nodes) >= 2 and all(recalled.node not in each for each in nodes)
    (appended,) = [each.records for each in engine.log.appended if recalled in each.records]
    assert [type(record) for record in appended] == [Outcome, Reply, Recalled]


async def test_what_a_recall_takes_above_the_ceiling_is_said() -> None:
    async def run_long(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        return "7 " * (room // 2)  # more tokens than its characters let expect

    engine = ManagedEngine(run=run_long)
    await open_epoch(engine)
    prepare(engine, recalling(), recalling(), recalling(), saying("Done."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    told = [event for event in engine.events if isinstance(event, CeilingExceededEvent)]
    plans: list[Plan] = [plan for plan in turn.plans if plan.k]
    above = [plan for plan in plans if (plan.tokens_upstream or 0) > plan.usable]
    assert 0 < len(above) < len(plans) == 3, plans
    assert [plan for plan in plans if "above the ceiling" in plan.reason] == above
    assert [(event.exchange, event.tokens, event.usable) for event in told] == [
        (turn.exchange, plan.tokens_upstream, plan.usable) for plan in above
    ]
    assert f"{told[0].tokens} tokens of {told[0].usable}" in above[0].reason


async def test_a_body_that_is_too_long_to_be_read_is_sent_behind_its_head() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    content = b'{"choices":[{"message":{"role":"assistant","content":"%b"}}]}' % (b"x" * MOST_READ)
    prepare(engine, ScriptedResponse(content[:99], content[99:], headers=JSON, ending="eof"))
    turn = await engine.send(until(23), tools=TOOLS)
    assert (turn.client.status, turn.client.body == content, turn.client.is_whole) == (200, True, True)
