"""Recall inside an answer of Chat Completions, over fakes: what goes upstream, and what the client and the log have."""

import asyncio
import json
from typing import Any

import pytest

from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Recalled
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Opening, Outcome, Reading, Round
from proxy.model.lineage import Reply
from proxy.wire.headers import find_header
from tests.support.engine import JSON, LIMIT, ScriptedResponse
from tests.support.loops import put_forward
from tests.support.managed import ContextLog, ManagedEngine, Turn, answer, cut_end, refuse
from tests.support.managing import Message, make_history
from tests.support.rescuing import TOO_LONG_EVENT
from tests.support.valid_streams import find_faults

HISTORY = make_history(60, 1600)
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
PAGE = "the original page: port 8443"


def until(steps: int) -> list[Any]:
    return list(HISTORY[: 2 + 2 * steps])


async def run(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
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


def prepare(engine: ManagedEngine, *responses: ScriptedResponse | Exception | None) -> None:
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


def body_with_call(arguments: str = "{}", *more: Message, text: str = "Let me look. ") -> ScriptedResponse:
    calls = [{k: v for k, v in call(arguments).items() if k != "index"}, *more]
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    counts = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    return answer(json.dumps({"id": "c1", "model": "m", "choices": choices, "usage": counts}).encode())


def body_with_text(text: str) -> ScriptedResponse:
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    counts = {"prompt_tokens": 1100, "completion_tokens": 30, "total_tokens": 1130}
    return answer(json.dumps({"id": "c2", "model": "m", "choices": choices, "usage": counts}).encode())


async def test_the_result_is_prepared_as_soon_as_a_call_of_ours_begins() -> None:
    prepared: list[ManagedRequest] = []
    engine = ManagedEngine(run=run, prepare=prepared.append)
    await open_epoch(engine)
    response = ScriptedResponse(chunk({"role": "assistant", "content": "Let me look. "}))
    prepare(engine, response, saying("Done."))
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    await response.wait_until_starved()
    assert prepared == []
    response.feed(chunk({"tool_calls": [call("")]}))
    await response.wait_until_starved()
    assert [len(each.nodes) for each in prepared] == [len(until(23)) - 1]
    response.feed(chunk({"tool_calls": [call("{}")]}), chunk({}, "tool_calls"), DONE, ending="last")
    await turn.finish()
    assert len(prepared) == 1 and read_text(turn.client.body) == "Let me look. Done."


async def test_a_whole_body_is_answered_likewise() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, body_with_call('{"action":"search"}'), body_with_text("It is 8443."))
    turn = await engine.send(until(23), tools=TOOLS)
    value = json.loads(turn.client.body)
    assert value["choices"][0]["message"] == {"role": "assistant", "content": "Let me look. It is 8443."}
    assert value["choices"][0]["finish_reason"] == "stop"
    assert (value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]) == (1100, 50)
    assert len(turn.all_sent) == 2 and turn.client.is_whole
    history = [*until(23), value["choices"][0]["message"], {"role": "user", "content": "Thanks."}]
    later = await engine.send(history, tools=TOOLS)
    assert [each["role"] for each in later.messages[-4:]] == ["assistant", "tool", "assistant", "user"]


async def test_what_is_sent_only_grows_over_many_requests_and_after_a_restart() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling("One. "), recalling("Two. "), saying("Three."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    history = [*until(23), {"role": "assistant", "content": "One. Two. Three."}]
    before = json.loads(turn.all_sent[-1])["messages"]
    epoch = engine.epochs[-1].id
    for step in range(20):
        if step == 10:
            engine = ManagedEngine(run=run, after=engine)
        history += [{"role": "user", "content": f"Question {step}"}]
        later = await engine.send(history, tools=TOOLS)
        assert later.messages[: len(before)] == before
        assert later.plan.epoch == epoch
        before = later.messages
        history += [{"role": "assistant", "content": f"Answer {step}"}]
    assert engine.failures == []
    assert [each["role"] for each in before].count("tool") >= 2


async def test_the_next_epoch_drops_the_rounds_that_it_replaces() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), saying("Done."))
    await engine.send(until(23), tools=TOOLS, stream=True)
    said = {"role": "assistant", "content": "Let me look. Done."}
    history = [*until(23), said, {"role": "user", "content": "Go on."}, *HISTORY[48:]]
    turn = await engine.send(history[:60], tools=TOOLS)
    while len(engine.epochs) == 1 or engine.epochs[-1].depth < 49:
        history += [{"role": "assistant", "content": "x " * 1500}, {"role": "user", "content": "Go on."}]
        turn = await engine.send(history, tools=TOOLS)
    assert PAGE not in turn.sent.decode() and engine.failures == []
    assert "context_recall" in json.dumps(json.loads(turn.sent)["tools"])


async def test_after_the_most_hops_the_model_is_told_and_what_it_calls_then_is_ignored() -> None:
    engine = ManagedEngine(run=run, max_hops=2)
    await open_epoch(engine)
    prepare(engine, *[recalling(f"{n}. ") for n in range(5)])
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert len(turn.all_sent) == 5
    results = [json.loads(sent)["messages"][-1]["content"] for sent in turn.all_sent[1:]]
    assert [each.startswith(PAGE) for each in results] == [True, True, False, False]
    assert "used up" in results[2]
    assert [json.loads(sent).get("tool_choice") for sent in turn.all_sent] == [None, None, None, None, "none"]
    assert read_text(turn.client.body) == "0. 1. 2. 3. 4. "
    assert turn.client.body.count(b"[DONE]") == 1 and b'"finish_reason":"stop"' in turn.client.body.replace(b" ", b"")
    history = [*until(23), {"role": "assistant", "content": "0. 1. 2. 3. 4. "}, {"role": "user", "content": "Well?"}]
    later = await engine.send(history, tools=TOOLS)
    assert [each["role"] for each in later.messages[-10:]] == [*["assistant", "tool"] * 4, "assistant", "user"]
    assert engine.failures == []


async def test_own_calls_beside_the_clients_are_answered_with_the_clients_results() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    bash = call('{"command":"ls"}', "bash", "call_b", 1)
    prepare(
        engine,
        stream(
            chunk({"role": "assistant", "content": "Both. "}),
            chunk({"tool_calls": [call('{"action":"search"}')]}),
            chunk({"tool_calls": [bash]}),
            chunk({}, "tool_calls"),
            DONE,
        ),
    )
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert len(turn.all_sent) == 1 and b"context_recall" not in turn.client.body
    assert b'"call_b"' in turn.client.body and b'"index":0' in turn.client.body.replace(b" ", b"")
    calls = [{"id": "call_b", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}]
    history = [
        *until(23),
        {"role": "assistant", "content": "Both. ", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_b", "content": "files"},
    ]
    later = await engine.send(history, tools=TOOLS)
    assert [each["role"] for each in later.messages[-3:]] == ["assistant", "tool", "tool"]
    assert [each["id"] for each in later.messages[-3]["tool_calls"]] == ["own1", "call_b"]
    assert [each["tool_call_id"] for each in later.messages[-2:]] == ["own1", "call_b"]
    assert engine.failures == []


async def test_a_client_that_edits_the_answer_gets_nothing_inserted() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), saying("Done."))
    await engine.send(until(23), tools=TOOLS, stream=True)
    history = [*until(23), {"role": "assistant", "content": "I said so."}, {"role": "user", "content": "Thanks."}]
    later = await engine.send(history, tools=TOOLS)
    assert later.messages[-2:] == history[-2:] and PAGE not in later.sent.decode()


@pytest.mark.parametrize("at", ["running", "waiting", "streaming"])
async def test_a_client_that_leaves_ends_all_of_it(at: str) -> None:
    began, never = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> str:
        began.set()
        await never.wait()
        return ""

    engine = ManagedEngine(run=hang if at == "running" else run)
    await open_epoch(engine)
    prepare(engine, recalling(), *[None] * (at == "waiting"))
    if at == "streaming":
        prepare(engine, ScriptedResponse(chunk({"role": "assistant", "content": "The port"}, id="c2")))
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    if at == "running":
        async with asyncio.timeout(LIMIT):
            await began.wait()
    elif at == "waiting":
        await engine.upstream.wait_until_starved()
    else:
        await turn.client.wait_for_body(len(chunk({"content": "Let me look. "})) + 60)
    turn.task.cancel()
    await asyncio.wait((turn.task,))
    assert await engine.tasks.finish(LIMIT)
    outcomes = [(each.k, each.completeness) for each in engine.log.of(Outcome)][-2:]
    newest = engine.log.of(Opening)[-1].exchange
    mine = [(each.k, each.completeness) for each in engine.log.of(Outcome) if each.exchange == newest]
    assert mine == ([(0, "complete")] if at == "running" else [(0, "complete"), (1, "aborted")]), outcomes
    assert engine.log.of(Recalled) == []
    assert [each for each in engine.log.of(Reply) if each.exchange == newest] == [], "our own call is no answer"
    assert engine.lineage.open_exchanges == {} or at != "running"
    later = await ManagedEngine(run=run, after=engine).send(until(24), tools=TOOLS)
    assert later.plan.epoch


async def test_a_hop_that_is_too_long_goes_on_without_the_page_then_begins_anew_then_fails() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), refuse("maximum context length is 9000 tokens"), saying("Without."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. Without."
    assert "no room" in json.loads(turn.all_sent[2])["messages"][-1]["content"]
    prepare(engine, recalling(), *[refuse("maximum context length is 9000 tokens") for _ in range(2)], saying("Short."))
    turn = await engine.send(until(24), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. Short." and turn.client.is_whole
    assert engine.epochs[-1].why == "overflow" and PAGE not in turn.all_sent[3].decode()
    assert find_faults("chat_completions", turn.client.body) == []
    said = {"role": "assistant", "content": "Let me look. Short."}
    later = await engine.send([*until(24), said, {"role": "user", "content": "And?"}], tools=TOOLS)
    assert later.messages[-2:] == [said, {"role": "user", "content": "And?"}]
    prepare(engine, recalling(), *[refuse("maximum context length is 9000 tokens") for _ in range(3)])
    turn = await engine.send(until(25), tools=TOOLS, stream=True)
    assert "maximum context length" in turn.client.body.decode() and DONE not in turn.client.body
    assert find_faults("chat_completions", turn.client.body) == []
    assert engine.failures == []


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_refused_hop_is_answered_without_the_tool(is_stream: bool) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    refused = answer(b'{"error":{"message":"messages.31: unexpected"}}', 400)
    prepare(engine, recalling() if is_stream else body_with_call(), refused)
    prepare(engine, saying("So.") if is_stream else body_with_text("So."))
    turn = await engine.send(until(23), tools=TOOLS, stream=is_stream)
    assert turn.client.status == 200 and turn.client.is_whole and b"unexpected" not in turn.client.body
    if is_stream:
        assert read_text(turn.client.body) == "Let me look. So."
        assert find_faults("chat_completions", turn.client.body) == []
    else:
        assert json.loads(turn.client.body)["choices"][0]["message"]["content"] == "Let me look. So."
        assert "without the tool" in turn.labels["x-palimpsest-notice"]
    assert json.loads(turn.all_sent[2])["tools"] == TOOLS and b"own1" not in turn.all_sent[2]
    assert engine.epochs[-1].why == "untooled" and [each.k for each in turn.plans][-1] == 2
    outcomes = [(each.k, each.status) for each in engine.log.of(Outcome) if each.exchange == turn.exchange]
    assert outcomes == [(0, 200), (1, 400), (2, 200)] and engine.log.of(Recalled) == []
    said = {"role": "assistant", "content": "Let me look. So."}
    history: list[Any] = [*until(23), said, {"role": "user", "content": "And?"}]
    later = await engine.send(history, tools=TOOLS)
    assert later.messages[-2:] == history[-2:] and json.loads(later.sent)["tools"] == TOOLS
    (reply,) = [each for each in engine.log.of(Reply) if each.exchange == turn.exchange]
    assert len(reply.nodes) == 1
    turns = [await engine.send(until(steps), tools=TOOLS) for steps in range(24, 50)]
    assert {json.dumps(json.loads(each.sent)["tools"]) for each in turns} == {json.dumps(TOOLS)}
    assert engine.failures == []


async def test_a_hop_that_is_refused_in_every_form_ends_with_the_answer_to_the_clients_own_request() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, body_with_call(), *[answer(b'{"error":{"message":"no %d"}}' % i, 400) for i in range(3)])
    turn = await engine.send(until(23), tools=TOOLS)
    assert (turn.client.status, turn.client.body) == (400, b'{"error":{"message":"no 2"}}')
    assert turn.all_sent[3] == turn.body and len(turn.all_sent) == 4


@pytest.mark.parametrize("events", [[], [chunk({"role": "assistant", "content": "The p"}, id="c2")], [b": ping\n\n"]])
async def test_a_hop_that_ends_before_its_last_event_is_broken_for_the_client_too(events: list[bytes]) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), ScriptedResponse(*events, ending="eof"))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and b"[DONE]" not in turn.client.body
    outcome = [each for each in engine.log.of(Outcome) if each.exchange == turn.exchange][-1]
    assert (outcome.k, outcome.completeness) == (1, "truncated") and "last event" in outcome.error
    assert engine.log.of(Recalled) == []
    begun = chunk({"role": "assistant", "content": "a"}), chunk({"tool_calls": [call("{}")]})
    prepare(engine, ScriptedResponse(*begun, ending="eof"))
    turn = await engine.send(until(24), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and turn.client.body == begun[0]
    assert engine.failures == []


async def test_a_hop_whose_stream_says_that_it_is_too_long_goes_on_without_the_page() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), stream(TOO_LONG_EVENT), saying("Without."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. Without." and turn.client.is_whole
    assert "no room" in json.loads(turn.all_sent[2])["messages"][-1]["content"]


async def test_ids_that_a_provider_counts_anew_in_each_answer_stand_once_in_a_request() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    function = {"name": "bash", "arguments": "{}"}
    calls = [{"id": "call_0", "type": "function", "function": function}]
    counted: list[Any] = [{"role": "assistant", "content": None, "tool_calls": calls}]
    counted.append({"role": "tool", "tool_call_id": "call_0", "content": "files"})
    history: list[Any] = [*until(23), *counted]
    for n in range(3):
        own = [{k: v for k, v in call("{}", id=f"call_{i}").items() if k != "index"} for i in range(2)]
        prepare(engine, body_with_call("{}", *own), body_with_text(f"Done {n}."))
        turn = await engine.send(history, tools=TOOLS)
        said = json.loads(turn.client.body)["choices"][0]["message"]["content"]
        history = [*history, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
        history += counted
        later = await engine.send(history, tools=TOOLS)
        ours = [
            each["id"]
            for message in later.messages
            for each in message.get("tool_calls") or ()
            if each["function"]["name"] == "context_recall"
        ]
        answered = [each["tool_call_id"] for each in later.messages if each["role"] == "tool"]
        assert len(set(ours)) == len(ours) == 3 * (n + 1) and answered.count("call_0") == n + 2
        assert all(answered.count(id) == 1 for id in ours) and later.messages[-2:] == history[-2:]
    assert engine.failures == []


@pytest.mark.parametrize("kind", [(), ((b"content-type", b"text/plain"),), ((b"content-type", b"application/json"),)])
@pytest.mark.parametrize("pieces", [1, 3, 500])
async def test_a_stream_is_known_by_its_first_bytes(kind: Any, pieces: int) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    events = [chunk({"role": "assistant", "content": "Let me look. "}), chunk({"tool_calls": [call("{}")]})]
    first = b"".join([b"\n", *events, chunk({}, "tool_calls"), usage(1000, 20), DONE])
    for content in (first, b"".join([chunk({"content": "Done."}, id="c2"), chunk({}, "stop", id="c2"), DONE])):
        cut = [content[at : at + pieces] for at in range(0, 3 * pieces, pieces)] + [content[3 * pieces :]]
        prepare(engine, ScriptedResponse(*filter(None, cut), headers=kind, ending="eof"))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. Done." and b"context_recall" not in turn.client.body
    assert find_header(turn.client.headers, b"content-type") == dict(kind).get(b"content-type", b"")
    await engine.tasks.finish(LIMIT)
    readings = [each for each in engine.log.of(Reading) if each.exchange == turn.exchange]
    assert len(readings) == 2 and {each.finish for each in readings} == {"tool_calls", "stop"}
    assert engine.log.of(Recalled)[0].rounds[0].results


async def test_a_body_that_comes_in_place_of_a_stream_is_read_as_one() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    first, second = body_with_call(), body_with_text("Done.")
    first.headers = second.headers = ()
    prepare(engine, first, second)
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert json.loads(turn.client.body)["choices"][0]["message"]["content"] == "Let me look. Done."
    prepare(engine, ScriptedResponse(b" ", headers=(), ending="cut"))
    turn = await engine.send(until(24), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and turn.client.body == b" "
    prepare(engine, response := ScriptedResponse(b" ", headers=()))
    turn = engine.start(until(25), tools=TOOLS, stream=True)
    await response.wait_until_starved()
    turn.task.cancel()
    await asyncio.wait((turn.task,))
    assert await engine.tasks.finish(LIMIT)
    assert engine.log.of(Outcome)[-1].completeness == "aborted"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_another_failure_of_a_hop_reaches_the_client_as_it_is(is_stream: bool) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling() if is_stream else body_with_call(), answer(b'{"error":{"message":"busy"}}', 503))
    turn = await engine.send(until(23), tools=TOOLS, stream=is_stream)
    assert b"busy" in turn.client.body and (turn.client.status == 503) is not is_stream
    assert engine.log.of(Recalled) == []
    prepare(engine, recalling() if is_stream else body_with_call(), UpstreamUnreachable("gone"))
    turn = await engine.send(until(24), tools=TOOLS, stream=is_stream)
    assert turn.client.is_aborted if is_stream else isinstance(turn.client.error, UpstreamUnreachable)


async def test_a_round_that_breaks_off_breaks_the_answer_off() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(), ScriptedResponse(chunk({"content": "The p"}, id="c2"), ending="cut"))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and read_text(turn.client.body) == "Let me look. The p"
    prepare(engine, ScriptedResponse(chunk({"content": "The p"}), b"data: {", ending="cut"))
    turn = await engine.send(until(24), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and turn.client.body == chunk({"content": "The p"}) + b"data: {"
    assert engine.log.of(Recalled) == []


async def test_a_stream_without_a_call_of_ours_passes_byte_for_byte() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    said = [chunk({"role": "assistant", "content": "Yes."}), chunk({}, "stop"), DONE]
    prepare(engine, ScriptedResponse(*said, b": late\n\n", ending="eof"))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert turn.client.body == b"".join(said) + b": late\n\n"
    assert engine.log.of(Recalled) == []


async def test_a_client_that_waits_gets_comments() -> None:
    free = asyncio.Event()

    async def linger(*_: object) -> str:
        await free.wait()
        return PAGE

    engine = ManagedEngine(run=linger)
    await open_epoch(engine)
    prepare(engine, recalling(), saying("Done."))
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    await turn.client.wait_for_body(10)
    for _ in range(3):
        await asyncio.sleep(0)
        await put_forward(6.0)
    assert turn.client.body.count(b": waiting\n\n") >= 2
    free.set()
    await turn.finish()
    assert read_text(turn.client.body) == "Let me look. Done."


async def test_a_refused_tool_is_left_out_for_a_day() -> None:
    engine = ManagedEngine(run=run)
    await engine.send(until(14), tools=TOOLS)
    prepare(engine, answer(b'{"error":{"message":"unknown tool"}}', 400), answer())
    turn = await engine.send(until(22), tools=TOOLS)
    with_tool, without = turn.all_sent
    assert json.loads(without)["tools"] == TOOLS and len(json.loads(with_tool)["tools"]) == 2
    assert "context_recall" not in without.decode() and "palimpsest expand" in without.decode()
    assert [epoch.why for epoch in engine.epochs] == ["hard", "untooled"]
    turns = [await engine.send(until(steps), tools=TOOLS) for steps in range(23, 50)]
    assert {json.dumps(json.loads(turn.sent)["tools"]) for turn in turns} == {json.dumps(TOOLS)}
    assert len(engine.epochs) > 2 and "context_recall" not in turns[-1].sent.decode()
    assert engine.failures == []


@pytest.mark.parametrize("members", [{}, {"tools": []}, {"tools": TOOLS, "n": 2}])
async def test_a_request_that_cannot_have_the_tool_is_told_the_other_way(members: dict[str, Any]) -> None:
    engine = ManagedEngine(run=run)
    await engine.send(until(14), **members)
    turn = await engine.send(until(22), **members)
    assert turn.plan.rung == "plan" and not engine.epochs[0].tool
    assert "palimpsest expand" in turn.sent.decode() and "context_recall" not in turn.sent.decode()


async def test_a_choice_of_tools_leaves_the_tools_as_they_are() -> None:
    engine = ManagedEngine(run=run)
    opened = await open_epoch(engine)
    turn = await engine.send(until(23), tools=TOOLS, tool_choice="none")
    assert json.loads(turn.sent)["tools"] == json.loads(opened.sent)["tools"]
    bare = await engine.send(until(24))
    assert "tools" not in json.loads(bare.sent) and bare.plan.epoch == turn.plan.epoch


@pytest.mark.parametrize(
    ("kind", "extra", "is_read"),
    [
        (b"text/event-stream", ((b"content-length", b"999"),), True),
        (b"text/event-stream", ((b"content-encoding", b"compress"),), False),
        (b"text/plain", (), True),
        (b"application/json", ((b"content-encoding", b"identity"), (b"content-length", b"999")), True),
    ],
)
async def test_whatever_can_be_read_is_searched_for_calls_of_ours(kind: bytes, extra: Any, is_read: bool) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    is_stream = kind == b"text/event-stream"
    first, second = (recalling(), saying("Done.")) if is_stream else (body_with_call(), body_with_text("Done."))
    first.headers = second.headers = ((b"content-type", kind), *extra)
    prepare(engine, first)
    if is_read:
        prepare(engine, second)
    turn = await engine.send(until(23), tools=TOOLS, stream=is_stream)
    assert (b"context_recall" in turn.client.body) is not is_read
    assert len(turn.all_sent) == 1 + is_read
    length = find_header(turn.client.headers, b"content-length")
    assert length == (b"" if is_stream or not length else b"%d" % len(turn.client.body))


async def test_the_end_of_an_answer_waits_until_its_rounds_are_in_the_log() -> None:
    engine = ManagedEngine(run=run, archive=ContextLog(is_lazy=True))
    await open_epoch(engine)
    prepare(engine, recalling(), saying("Done."))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. Done." and turn.client.is_whole
    kinds = [type(record) for each in engine.log.appended for record in each.records]
    assert kinds.index(Recalled) > max(i for i, kind in enumerate(kinds) if kind is Outcome)
    assert all(each.commit.done() for each in engine.log.appended if Recalled in map(type, each.records))


async def test_of_many_calls_at_once_some_are_answered_and_what_does_not_fit_is_told() -> None:
    async def run_long(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        assert 0 < room < 100_000
        return "long " * 100_000 if arguments == "{}" else f"short \ud800 {arguments}"

    engine = ManagedEngine(run=run_long)
    await open_epoch(engine)
    calls = [{k: v for k, v in call("1", id=f"own{i}").items() if k != "index"} for i in range(9)]
    prepare(engine, body_with_call("{}", *calls), body_with_text("Done."))
    turn = await engine.send(until(23), tools=TOOLS)
    results = [each["content"] for each in json.loads(turn.all_sent[1])["messages"][-10:]]
    assert "no room" in results[0] and results[1:8] == ["short ? 1"] * 7
    assert all("at once" in each for each in results[8:])
    assert engine.log.of(Recalled)[0].rounds[0].results[1][1] == "short ? 1"


async def test_a_whole_body_is_the_refusal_where_nothing_fits_any_more() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, body_with_call(), *[refuse("maximum context length is 9000 tokens") for _ in range(3)])
    turn = await engine.send(until(23), tools=TOOLS)
    assert turn.client.status == 400 and turn.client.is_whole and b"maximum context length" in turn.client.body
    prepare(engine, ScriptedResponse(b'{"choices": [', headers=JSON, ending="cut"))
    turn = await engine.send(until(24), tools=TOOLS)
    assert turn.client.is_aborted and turn.client.body == b'{"choices": ['


async def test_an_answer_of_which_the_client_has_nothing_is_not_repeated() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, recalling(""), saying(""))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "" and turn.client.is_whole
    later = await engine.send([*until(23), {"role": "user", "content": "Well?"}], tools=TOOLS)
    assert later.messages[-1]["content"] == "Well?" and PAGE not in later.sent.decode()
    assert engine.failures == []


async def test_a_stream_without_a_call_of_ours_gets_no_comments() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    said = chunk({"role": "assistant", "content": "Yes."})
    response = ScriptedResponse(said, chunk({}, "stop")[:20])
    prepare(engine, response)
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    await turn.client.wait_for_body(len(said))
    for _ in range(3):
        await asyncio.sleep(0)
        await put_forward(6.0)
    response.feed(chunk({}, "stop")[20:], DONE, ending="eof")
    await turn.finish()
    assert turn.client.body == said + chunk({}, "stop") + DONE
