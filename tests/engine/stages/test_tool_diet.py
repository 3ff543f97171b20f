"""Tools that were not called for long, in managed sessions: what goes upstream, and what a model gets that asks."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace as change

from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.rounds import build_rounds
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.tool_diet import list_shortened
from proxy.engine.token_counter import Piece
from proxy.model.epoch import Epoch
from proxy.model.exchange import ClientRequest
from proxy.model.manifest import compute_digest
from proxy.wire.body import split_body
from tests.context.test_tool_diet import LONG, SCHEMA, SHORT
from tests.engine.recall.test_rounds_chat import HISTORY, call, chunk, read_text, saying, stream, usage
from tests.support.engine import JSON, LIMIT, RecordingClient, ScriptedResponse, wait_out
from tests.support.managed import NAMED, ManagedEngine, Turn, answer
from tests.support.managing import MODEL
from tests.support.wire_histories import PATHS, answer_call, ask, make_request
from tests.support.wire_histories import call as call_read

NAMES = [f"tool_{number}" for number in range(14)]
BASH: dict[str, Any] = {"type": "function", "function": {"name": "bash", "description": LONG, "parameters": SCHEMA}}
OTHERS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": each, "description": LONG, "parameters": SCHEMA}} for each in NAMES
]
TOOLS = [*OTHERS[:7], BASH, *OTHERS[7:]]
CEILING = 20_000
SHORT_TOOL = {"description": "Reads a file from the disk.", "parameters": SHORT}


class Diet:
    """A session whose tools are shortened after ten steps, and its engine."""

    def __init__(self, after: "Diet | None" = None, *, steps: int = 10, is_on: bool = True) -> None:
        before = after.engine if after is not None else None
        run = self.run if is_on else None
        self.engine: ManagedEngine = ManagedEngine(run=run, ceiling=CEILING, shorten_tools_after=steps, after=before)

    async def run(self, request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        self.request = request
        return self.engine.controller.states.offers.answer(request, epoch, arguments) or "another page"

    async def send(self, steps: int, *more: Any, tools: Any = TOOLS, **members: Any) -> Turn:
        return await self.engine.send([*HISTORY[: 2 + 2 * steps], *more], tools=tools, **members)

    async def open(self, **members: Any) -> Turn:
        """Send a history until an epoch has opened."""
        turn = await self.send(14, **members)
        for steps in range(15, 60):
            if self.engine.epochs:
                break
            turn = await self.send(steps, **members)
        self.steps = steps - 1
        return turn


def list_tools(body: bytes) -> list[Any]:
    tools: list[Any] = json.loads(body)["tools"]
    return tools


def name_short(body: bytes) -> list[str]:
    """The shortened tools of a request."""
    return [
        each["function"]["name"] for each in list_tools(body) if each["function"]["description"].endswith("the disk.")
    ]


async def test_an_epoch_shortens_the_tools_that_were_not_called_for_long() -> None:
    session = Diet()
    opened = await session.open()
    tools = list_tools(opened.sent)
    assert [each["function"]["name"] for each in tools[:-1]] == [each["function"]["name"] for each in TOOLS]
    assert tools[7] == BASH
    assert [each["function"] for each in tools[:7]] == [{"name": name, **SHORT_TOOL} for name in NAMES[:7]]
    own = tools[-1]["function"]
    assert own["name"] == "context_recall" and "tool_details" in own["parameters"]["properties"]["action"]["enum"]
    assert own["parameters"]["properties"]["tool"] == {"type": "string", "enum": NAMES}
    assert list_shortened(session.engine.epochs[0].tool) == tuple(NAMES)
    assert session.engine.failures == []


async def test_the_tools_stay_the_same_until_the_next_epoch_and_after_a_restart() -> None:
    session = Diet()
    opened = await session.open()
    sent = [opened, await session.send(session.steps + 1)]
    restarted = Diet(session)
    sent.append(await restarted.send(session.steps + 2))
    off = Diet(restarted, steps=0)  # the setting does not change what an epoch has
    sent.append(await off.send(session.steps + 3))
    assert len({json.dumps(list_tools(turn.sent)) for turn in sent}) == 1
    assert len(session.engine.epochs) == 1


async def test_the_next_epoch_of_a_session_that_keeps_its_tools_changes_nothing_of_them() -> None:
    session = Diet()
    turns = [await session.open()]
    for steps in range(session.steps + 1, 60):
        turns.append(await session.send(steps))
    assert len(session.engine.epochs) > 1
    assert len({json.dumps(list_tools(turn.sent)) for turn in turns}) == 1
    assert session.engine.failures == []


async def test_switched_off_the_next_epoch_has_whole_tools() -> None:
    session = Diet()
    await session.open()
    off = Diet(session, steps=0)
    turns = [await off.send(steps) for steps in range(session.steps + 1, 60)]
    assert len(off.engine.epochs) > 1
    assert list_tools(turns[-1].sent)[:-1] == TOOLS
    assert "tool_details" not in turns[-1].sent.decode()


def count(session: Diet, body: bytes) -> int:
    """The tokens of a body: of its tools, and of each message."""
    split = split_body(body, "messages")
    assert split is not None
    raws = [body[span.start : span.end] for span in split.items]
    pieces = [Piece(compute_digest(each), each) for each in raws]
    tools = split.member("tools")
    pieces.append(Piece(compute_digest(tools), tools, is_tools=True))
    return sum(session.engine.count_tools(MODEL, pieces).tokens)


async def test_what_is_saved_is_counted() -> None:
    session = Diet()
    opened = await session.open()
    later = await session.send(session.steps + 1)
    assert opened.plan.tokens_upstream == count(session, opened.sent) == session.engine.epochs[0].tokens_after
    assert later.plan.tokens_upstream == count(session, later.sent)
    assert session.engine.epochs[0].tokens_before == count(session, opened.body)
    tools = [
        Piece(compute_digest(raw), raw, is_tools=True) for raw in (split_tools(opened.body), split_tools(later.sent))
    ]
    before, after = session.engine.count_tools(MODEL, tools).tokens
    assert after < before / 2


def split_tools(body: bytes) -> bytes:
    split = split_body(body, "messages")
    assert split is not None
    return split.member("tools")


@pytest.mark.parametrize(
    "members",
    [
        {"tool_choice": {"type": "function", "function": {"name": "bash"}}},
        {"tool_choice": "none"},
        {"tools": [{**each, "defer_loading": True} for each in TOOLS]},
        {"tools": [{**each, "function": {**each["function"], "strict": True}} for each in TOOLS]},
    ],
)
async def test_what_a_client_has_decided_about_its_tools_stays(members: dict[str, Any]) -> None:
    session = Diet()
    opened = await session.open(**members)
    tools = members.get("tools", TOOLS)
    assert session.engine.epochs and list_tools(opened.sent)[: len(tools)] == tools
    assert "tool_details" not in opened.sent.decode()


async def test_without_our_tool_none_is_shortened() -> None:
    session = Diet(is_on=False)
    opened = await session.open()
    assert session.engine.epochs and list_tools(opened.sent) == TOOLS


async def test_a_conversation_of_few_steps_shortens_nothing() -> None:
    session = Diet(steps=60)
    opened = await session.open()
    assert session.engine.epochs and list_tools(opened.sent)[:-1] == TOOLS


def asking(arguments: str) -> ScriptedResponse:
    return stream(
        chunk({"role": "assistant", "content": "Let me see. "}),
        chunk({"tool_calls": [call(arguments)]}),
        chunk({}, "tool_calls"),
        usage(1000, 20),
        b"data: [DONE]\n\n",
    )


@pytest.mark.parametrize("arguments", ['{"action":"tool_details","tool":"tool_3"}', '{"tool":["tool_3"]}'])
async def test_a_model_that_asks_gets_the_whole_schema_and_keeps_it(arguments: str) -> None:
    session = Diet()
    await session.open()
    for each in (asking(arguments), saying("I see.")):
        session.engine.upstream.prepare(each)
    turn = await session.send(session.steps + 1, stream=True)
    assert read_text(turn.client.body) == "Let me see. I see."
    assert b"context_recall" not in turn.client.body and b"tool_details" not in turn.client.body
    first, second = turn.all_sent
    assert list_tools(first) == list_tools(second)
    assert json.loads(json.loads(second)["messages"][-1]["content"]) == OTHERS[3]
    at = 2 + 2 * (session.steps + 1)
    said = [{"role": "assistant", "content": "Let me see. I see."}, {"role": "user", "content": "Go on."}]
    turns = []
    for steps in range(session.steps + 2, 60):
        history = [*HISTORY[:at], *said, *HISTORY[at : 2 + 2 * steps]]
        turns.append(await session.engine.send(history, tools=TOOLS))
        if len(session.engine.epochs) > 1:
            break
    assert name_short(turns[0].sent) == NAMES
    assert name_short(turns[-1].sent) == [name for name in NAMES if name != "tool_3"]
    assert session.engine.failures == []


async def test_a_call_of_a_shortened_tool_goes_to_the_client_and_the_next_epoch_has_it_whole() -> None:
    session = Diet()
    await session.open()
    arguments = '{"path": "a.py", "edits": [{"old": "x"}]}'
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call(arguments, "tool_5", "c1")}],
    }
    del message["tool_calls"][0]["index"]
    session.engine.upstream.prepare(
        ScriptedResponse(json.dumps({"choices": [{"message": message}]}).encode(), headers=JSON, ending="whole")
    )
    turn = await session.send(session.steps + 1)
    assert json.loads(turn.client.body)["choices"][0]["message"] == message
    at = 2 + 2 * (session.steps + 1)
    step: list[Any] = [message, {"role": "tool", "tool_call_id": "c1", "content": "done"}]
    for steps in range(session.steps + 2, 60):
        last = await session.engine.send([*HISTORY[:at], *step, *HISTORY[at : 2 + 2 * steps]], tools=TOOLS)
        if len(session.engine.epochs) > 1:
            break
        assert name_short(last.sent) == NAMES
    assert name_short(last.sent) == [name for name in NAMES if name != "tool_5"]


async def test_an_upstream_that_refuses_our_tool_gets_whole_tools() -> None:
    session = Diet()
    await session.open()
    refusal = json.dumps({"error": {"message": "tools.1: unknown tool"}}).encode()
    for each in (answer(refusal, 400), answer()):
        session.engine.upstream.prepare(each)
    turn = await session.send(session.steps + 1)
    assert name_short(turn.all_sent[0]) == NAMES
    assert list_tools(turn.all_sent[-1]) == TOOLS


async def test_a_response_that_repeats_the_tools_has_those_of_the_client() -> None:
    session = Diet()
    await session.open()
    for each in (asking("{}"), saying("I see.")):
        session.engine.upstream.prepare(each)
    await session.send(session.steps + 1, stream=True)
    offers, epoch = session.engine.controller.states.offers, session.engine.epochs[0]
    assert json.loads(offers.find_echo(session.request, epoch)) == TOOLS
    assert offers.find_echo(session.request, change(epoch, tool=b"{}")) == b""


@pytest.mark.parametrize("wire", list(PATHS))
async def test_all_formats(wire: str) -> None:
    engine = ManagedEngine(run=Diet().run, ceiling=CEILING, window=None, shorten_tools_after=10)
    items = [ask(wire, "Mend the tests.")]
    sent: Sequence[Any] = ()
    for number in range(70):
        id = f"call_{number:024x}"
        items += [call_read(wire, id, f"f{number}.py"), answer_call(wire, id, "def f(value):\n    return 1\n" * 60)]
        if number < 14:
            continue
        body = json.loads(make_request(wire, items, is_stream=False))
        (tool,) = body["tools"]
        inner = tool.get("function", tool)
        schema = "input_schema" if "input_schema" in inner else "parameters"
        others = [{**inner, "name": name, "description": LONG, schema: SCHEMA} for name in NAMES]
        body["tools"] = [tool, *[{**tool, "function": each} if "function" in tool else each for each in others]]
        engine.upstream.prepare(ScriptedResponse(b"{}", headers=JSON, ending="whole"))
        request = ClientRequest("POST", PATHS[wire].encode(), NAMED, json.dumps(body).encode())
        await wait_out(engine.begin(request, wire, RecordingClient()))
        assert await engine.tasks.finish(LIMIT)
        if engine.epochs:
            sent = list_tools(engine.upstream.calls[-1].body)  # type: ignore[arg-type]
            break
    assert sent[0] == tool
    short = {"description": "Reads a file from the disk.", schema: SHORT}
    assert [each.get("function", each) for each in sent[1:-1]] == [{**each, **short} for each in others]
    assert sent[-1].get("function", sent[-1])[schema]["properties"]["tool"]["enum"] == NAMES
    assert engine.failures == []


async def test_rounds_answer_a_call_about_tools_and_leave_all_others_to_recall() -> None:
    session = Diet()
    await session.open()
    for each in (asking("{}"), saying("I see.")):
        session.engine.upstream.prepare(each)
    await session.send(session.steps + 1, stream=True)
    states, asked = session.engine.controller.states, list[str]()

    class Recalling:
        async def run(self, scope: object, arguments: str) -> str:
            asked.append(arguments)
            return "a page"

    parts: Any = Recalling(), RecallPolicy(), states, session.engine.lineage
    run = build_rounds(*parts, bus=session.engine.bus, record_cap=1 << 20).run
    (epoch,) = session.engine.epochs
    request, bare = session.request, change(epoch, tool=b"{}")
    details = '{"action":"tool_details","tool":"tool_0"}'
    assert json.loads(await run(request, epoch, details, 9000)) == OTHERS[0]
    assert "tool is one of these: tool_0, tool_1" in await run(request, epoch, '{"tool":"other"}', 9000)
    assert await run(request, epoch, '{"action":"search","query":"x"}', 9000) == "a page"
    assert await run(request, bare, details, 9000) == "a page"
    assert asked == ['{"action":"search","query":"x"}', details]
