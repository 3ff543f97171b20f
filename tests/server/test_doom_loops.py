"""Agents that go round in circles, on every wire: who is told, when, and that the calls go on."""

import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from proxy.engine.call.response_stream import LabellingClient
from proxy.engine.policy import DoomLoopSettings
from proxy.model.events import DoomLoopDetectedEvent
from tests.support.scripted import Message, ScriptedUpstream, answer, request
from tests.support.serving import Plan, Served, serving

COMMAND = '{"cmd": "make", "n": 1}'
Step = tuple[str, str, str]  # the name of a tool, its arguments, its output


@dataclass(frozen=True)
class Tongue:
    """How a wire spells a conversation in which tools are called."""

    path: str

    def spell(self, steps: Sequence[Step]) -> dict[str, Any]:
        """The body of a request after these steps."""
        items: list[dict[str, Any]] = [{"role": "user", "content": "build it"}]
        for n, (name, arguments, output) in enumerate(steps):
            items += [*self.call(n, name, arguments), self.give(n, output)]
        key = "input" if "responses" in self.path else "messages"
        return {"model": "m", "max_tokens": 9, key: items}

    def call(self, n: int, name: str, arguments: str) -> list[dict[str, Any]]:
        """The elements of a conversation that call a tool."""
        if "chat" in self.path:
            made = {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            return [{"role": "assistant", "content": None, "tool_calls": [made]}]
        if "responses" in self.path:
            return [{"type": "function_call", "call_id": f"c{n}", "name": name, "arguments": arguments}]
        block = {"type": "tool_use", "id": f"c{n}", "name": name, "input": json.loads(arguments)}
        return [{"role": "assistant", "content": [block]}]

    def give(self, n: int, output: str) -> dict[str, Any]:
        """The element that has the output."""
        if "chat" in self.path:
            return {"role": "tool", "tool_call_id": f"c{n}", "content": output}
        if "responses" in self.path:
            return {"type": "function_call_output", "call_id": f"c{n}", "output": output}
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": output}]}

    def answer(self, n: int, name: str, arguments: str) -> dict[str, Any]:
        """A response that calls a tool."""
        made = self.call(n, name, arguments)
        if "chat" in self.path:
            return {"choices": [{"message": made[0], "finish_reason": "tool_calls"}]}
        if "responses" in self.path:
            return {"id": f"r{n}", "object": "response", "status": "completed", "output": made}
        return {"type": "message", "role": "assistant", "content": made[0]["content"], "stop_reason": "tool_use"}


TONGUES = [Tongue("/v1/chat/completions"), Tongue("/v1/responses"), Tongue("/v1/messages")]


class Agent:
    """One that does what the model says, and the model that says it."""

    def __init__(self, served: Served, upstream: ScriptedUpstream, tongue: Tongue) -> None:
        self.served = served
        self.upstream = upstream
        self.tongue = tongue
        self.steps: list[Step] = []
        self.told: list[DoomLoopDetectedEvent] = []
        self.calls = 0
        served.bus.subscribe(DoomLoopDetectedEvent, self.told.append)

    async def step(self, output: str = "failed", arguments: str = COMMAND, name: str = "bash") -> Message:
        """One call, in whose answer the model calls a tool; the tool gives this output."""
        said = json.dumps(self.tongue.answer(len(self.steps), name, arguments)).encode()
        self.upstream.close_after(answer(said, "Content-Type: application/json", "Connection: close"))
        content = json.dumps(self.tongue.spell(self.steps)).encode()
        fields = ("authorization: Bearer k", "x-palimpsest-session: build")
        got = await self.served.ask(request("POST", self.tongue.path, *fields, body=content))
        assert (got.status, got.body) == (200, said), "the response passes as it came"
        self.calls += 1
        await self.served.read_answer(self.calls)
        self.steps.append((name, arguments, output))
        return got


def is_labelled(got: Message) -> bool:
    return got.find(b"x-palimpsest-doom-loop") == b"true"


@pytest.mark.parametrize("tongue", TONGUES)
async def test_the_third_call_in_a_row_is_told_at_once_and_the_next_response_says_so(
    plan: Plan, upstream: ScriptedUpstream, tongue: Tongue, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(plan) as served:
        agent = Agent(served, upstream, tongue)
        with caplog.at_level(logging.WARNING):
            got = [await agent.step(arguments=each) for each in (COMMAND, '{"n":1,"cmd":"make"}', COMMAND)]
        assert [(each.tool, each.count, each.has_same_output) for each in agent.told] == [("bash", 3, True)]
        assert "the model has called bash 3 times in a row with the same arguments, with the same output" in caplog.text
        assert not any(map(is_labelled, got)), "their heads had left"
        labelled = await agent.step()
        assert is_labelled(labelled) and labelled.find(b"x-palimpsest-session")
        assert is_labelled(await agent.step(arguments='{"cmd": "ls"}')), "it was still in the loop when it was asked"
        assert not is_labelled(await agent.step())
        assert len(agent.told) == 1


async def test_a_long_loop_is_told_again_whenever_it_has_doubled(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(plan) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for _ in range(12):
            await agent.step()
        assert [each.count for each in agent.told] == [3, 6, 12]
        await agent.step(name="other")
        for n in range(3):
            await agent.step(output=str(n))
        assert [(each.count, each.has_same_output) for each in agent.told[3:]] == [(3, False)]


async def test_another_branch_is_not_labelled(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(plan) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for _ in range(3):
            await agent.step()
        assert len(agent.told) == 1
        agent.steps = [("bash", '{"cmd": "other"}', "x")] * 4
        assert not is_labelled(await agent.step())


@pytest.mark.parametrize("threshold", [0, 5])
async def test_the_threshold_can_be_set(plan: Plan, upstream: ScriptedUpstream, threshold: int) -> None:
    async with serving(replace(plan, loops=DoomLoopSettings(threshold))) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for _ in range(6):
            await agent.step()
        assert [each.count for each in agent.told] == ([5] if threshold else [])


def test_a_label_stands_beside_those_of_the_call() -> None:
    class Client:
        fields: Any = ()

        def label(self, fields: Any) -> None:
            self.fields = fields

    client: Any = Client()
    LabellingClient(client, ((b"a", b"1"),)).label(((b"b", b"2"),))
    assert client.fields == ((b"b", b"2"), (b"a", b"1"))


# --- what the model is told ------------------------------------------------------------------------------------------

TOLD = "[This call was made {} times in a row, with the same arguments and the same output each time. "


def annotating(plan: Plan) -> Plan:
    return replace(plan, loops=DoomLoopSettings(action="annotate"))


def list_items(asked: Message) -> list[Any]:
    body = json.loads(asked.body)
    items: list[Any] = body.get("input") or body["messages"]
    return items


def find_told(asked: Message) -> dict[int, int]:
    """How many calls are told of, by the index of the element that tells it."""
    found = {}
    for place, item in enumerate(list_items(asked)):
        for count in range(2, 20):
            if TOLD.format(count) in json.dumps(item):
                found[place] = count
    return found


@pytest.mark.parametrize("tongue", TONGUES)
async def test_a_model_is_told_behind_the_output_that_makes_it_a_loop_and_the_line_stays(
    plan: Plan, upstream: ScriptedUpstream, tongue: Tongue
) -> None:
    async with serving(annotating(plan)) as served:
        agent = Agent(served, upstream, tongue)
        for _ in range(8):
            await agent.step()
        await agent.step(name="other")
        await agent.step()
    told = [find_told(asked) for asked in upstream.requests]
    assert told == [{}] * 3 + [{6: 3}] * 3 + [{6: 3, 12: 6}] * 4
    for earlier, later in itertools.pairwise(upstream.requests):  # what a provider's cache has stays as it was
        body = earlier.body[: earlier.body.rindex(b"]") if b"[" in earlier.body else 0]
        assert later.body.startswith(body[: body.rindex(b"}") + 1])
    own = [list_items(asked) for asked in upstream.requests]
    given = json.dumps(own[3][6])
    assert json.loads(given.replace(json.dumps("\n\n" + read_line(given))[1:-1], "")) == tongue.give(2, "failed")


def read_line(text: str) -> str:
    start = text.index("[This call")
    return text[start : text.index("]", start) + 1]


async def test_outputs_that_differ_or_words_of_the_user_make_no_line(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(annotating(plan)) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for n in range(6):
            await agent.step(output=str(n // 2))
    assert [find_told(asked) for asked in upstream.requests] == [{}] * 6


async def test_the_line_is_the_same_after_a_restart_and_on_another_branch(
    plan: Plan, upstream: ScriptedUpstream
) -> None:
    async with serving(annotating(plan)) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for _ in range(5):
            await agent.step()
        agent.steps[4:] = [("other", "{}", "x")]
        await agent.step()
        agent.steps[2:] = [("other", "{}", "x")] * 2
        await agent.step()
    async with serving(annotating(plan)) as served:
        again = Agent(served, upstream, TONGUES[0])
        again.steps = [("bash", COMMAND, "failed")] * 4
        await again.step()
    told = [find_told(asked) for asked in upstream.requests]
    assert told[4:] == [{6: 3}, {6: 3}, {}, {6: 3}]
    assert upstream.requests[4].body == upstream.requests[7].body


async def test_several_calls_at_once_are_told_of_when_all_have_an_output(
    plan: Plan, upstream: ScriptedUpstream
) -> None:
    tongue = TONGUES[0]
    asks = [tongue.call(n, "bash", COMMAND)[0]["tool_calls"][0] for n in range(4)]
    body = tongue.spell([("bash", COMMAND, "failed")] * 2)
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": asks}]
    body["messages"] += [tongue.give(n, "failed") for n in range(4)]
    async with serving(annotating(plan)) as served:
        upstream.close_after(answer(b"{}", "Connection: close"))
        await served.ask(request("POST", tongue.path, "x-palimpsest-session: s", body=json.dumps(body).encode()))
    assert find_told(upstream.requests[0]) == {9: 6}


@pytest.mark.parametrize("field", ["x-palimpsest-mode: observe", "x-palimpsest-mode: bypass", "x-other: 1"])
async def test_only_what_is_managed_is_annotated(plan: Plan, upstream: ScriptedUpstream, field: str) -> None:
    async with serving(annotating(plan)) as served:
        agent = Agent(served, upstream, TONGUES[0])
        for _ in range(3):
            await agent.step()
        fields = ("authorization: Bearer k", "x-palimpsest-session: build", field)
        body = agent.tongue.spell(agent.steps)
        body["messages"][0]["content"] += ' "thinking"'  # where reasoning may be signed, that is looked for
        content = json.dumps(body).encode()
        await served.ask(request("POST", agent.tongue.path, *fields, body=content))
    assert find_told(upstream.requests[3]) == ({6: 3} if "other" in field else {})


@pytest.mark.parametrize(("model", "is_told"), [("claude-next-1", False), ("claude-sonnet-4-5", True)])
async def test_where_reasoning_may_be_bound_to_what_precedes_it_no_line_is_written(
    plan: Plan, upstream: ScriptedUpstream, model: str, is_told: bool
) -> None:
    tongue = TONGUES[2]
    body = {**tongue.spell([("bash", COMMAND, "failed")] * 4), "model": model}
    body["messages"][1]["content"].insert(0, {"type": "thinking", "thinking": "hm", "signature": "s"})
    async with serving(annotating(plan)) as served:
        upstream.close_after(answer(b"{}", "Connection: close"))
        await served.ask(request("POST", tongue.path, "x-palimpsest-session: s", body=json.dumps(body).encode()))
    assert find_told(upstream.requests[0]) == ({6: 3} if is_told else {})
