"""Recall inside an answer of Chat Completions, over fakes: what goes upstream, and what the client and the log have."""

import asyncio
import json
from typing import Any

from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Recalled
from proxy.model.exchange import Outcome, Reading, Round
from proxy.model.lineage import Reply
from tests.support.engine import ScriptedResponse
from tests.support.managed import ManagedEngine, Turn, cut_end
from tests.support.managing import Message, make_history

HISTORY = make_history(60, 1600)
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
PAGE = "the original page: port 8443"


def until(steps: int) -> list[Any]:
    return list(HISTORY[: 2 + 2 * steps])


async def run(request: ManagedRequest, epoch: Epoch, arguments: str) -> str:
    await asyncio.sleep(0)
    return f"{PAGE} for {arguments}"


def chunk(delta: Message, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    value = {"id": more.pop("id", "c1"), "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    return b"data: " + json.dumps({**value, "choices": choices}).encode() + b"\n\n"


def call(arguments: str, name: str = "context_recall", id: str = "own1", index: int = 0) -> Message:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def usage(prompt: int, output: int, id: str = "c1") -> bytes:
    value = {"id": id, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return b"data: " + json.dumps({**value, "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(*events: bytes) -> ScriptedResponse:
    return ScriptedResponse(*events, ending="last")


def recalling(text: str = "Let me look. ", arguments: str = '{"action":"search","query":"port"}') -> ScriptedResponse:
    return stream(
        chunk({"role": "assistant", "content": text}),
        chunk({"tool_calls": [call("")]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}),
        chunk({}, "tool_calls"),
        usage(1000, 20),
        DONE,
    )


def saying(text: str, id: str = "c2") -> ScriptedResponse:
    return stream(
        chunk({"role": "assistant", "content": text}, id=id),
        chunk({}, "stop", id=id),
        usage(1100, 30, id=id),
        DONE,
    )


def prepare(engine: ManagedEngine, *responses: ScriptedResponse) -> None:
    for each in responses:
        engine.upstream.prepare(each)


async def open_epoch(engine: ManagedEngine, **members: Any) -> Turn:
    await engine.send(until(14), tools=TOOLS, **members)
    return await engine.send(until(22), tools=TOOLS, **members)


def read_text(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for each in events for choice in each["choices"])


async def test_the_tool_comes_with_the_first_epoch_and_stays_the_same() -> None:
    engine = ManagedEngine(run=run)
    first = await engine.send(until(14), tools=TOOLS)
    assert first.sent == first.body
    opened = await engine.send(until(22), tools=TOOLS)
    tools = json.loads(opened.sent)["tools"]
    assert tools[:-1] == TOOLS and tools[-1]["function"]["name"] == "context_recall"
    assert "call context_recall" in opened.sent.decode() and "palimpsest expand" not in opened.sent.decode()
    turns = [opened, *[await engine.send(until(steps), tools=TOOLS) for steps in range(23, 60)]]
    assert len(engine.epochs) >= 3 and {epoch.tool for epoch in engine.epochs} == {engine.epochs[0].tool}
    assert {json.dumps(json.loads(turn.sent)["tools"]) for turn in turns} == {json.dumps(tools)}
    assert engine.failures == []


async def test_a_call_of_ours_is_answered_within_the_answer_and_repeated_later() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), saying("The port is 8443."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. The port is 8443."
    assert turn.client.body.count(b"[DONE]") == 1 and b"context_recall" not in turn.client.body
    assert turn.client.is_whole
    first, second = turn.all_sent
    added = json.loads(second)["messages"][len(json.loads(first)["messages"]) :]
    assert [each["role"] for each in added] == ["assistant", "tool"]
    assert added[1]["content"].startswith(PAGE)
    assert second.startswith(cut_end(first))
    rounds = [each for each in engine.log.of(Round) if each.exchange == turn.exchange]
    assert [each.k for each in rounds] == [0, 1]
    outcomes = [each for each in engine.log.of(Outcome) if each.exchange == turn.exchange]
    assert [(each.k, each.status, each.completeness) for each in outcomes] == [
        (0, 200, "complete"),
        (1, 200, "complete"),
    ]
    readings = {each.k: each.usage for each in engine.log.of(Reading) if each.exchange == turn.exchange}
    assert {k: (each.input, each.output) for k, each in readings.items() if each} == {0: (1000, 20), 1: (1100, 30)}
    (recalled,) = engine.log.of(Recalled)
    (reply,) = [each for each in engine.log.of(Reply) if each.exchange == turn.exchange]
    assert [row.node for row in reply.nodes] == [recalled.node]
    assert [(plan.k, plan.tokens_client) for plan in turn.plans][1:] == [(1, 0)]
    said = {"role": "assistant", "content": "Let me look. The port is 8443."}
    history = [*until(23), said, {"role": "user", "content": "Thanks. And the host?"}]
    later = await engine.send(history, tools=TOOLS)
    assert later.messages[: len(json.loads(second)["messages"])] == json.loads(second)["messages"]
    assert [each["role"] for each in later.messages[-4:]] == ["assistant", "tool", "assistant", "user"]
    assert engine.failures == []
