"""An agent on any wire, without an SDK: its requests, its upstream, and an upstream's counts. The same on all wires."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.upstream import ScriptedCall
from tests.clients.script import Turn
from tests.support.answers import WRITERS, Tokens

Item = dict[str, Any]
Answer = Callable[[Item], tuple[int, Item]]
"""Returns the status and the body of the response to a request."""

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
WIRES = tuple(PATHS)
_KEYS = {"chat": "messages", "messages": "messages", "responses": "input"}
_WORDS = ("cache", "parser", "socket", "buffer", "index", "lexer", "handler", "config", "token", "loader", "worker")
_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}


def write_prose(words: int, seed: int) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(_WORDS) for _ in range(words))


def make_tool(wire: str, name: str, description: str) -> Item:
    named = {"name": name, "description": description}
    if wire == "messages":
        return {**named, "input_schema": _PARAMETERS}
    function = {**named, "parameters": _PARAMETERS}
    return {"type": "function", "function": function} if wire == "chat" else {"type": "function", **function}


def say(wire: str, text: str, *parts: Item) -> Item:
    """A message of the user, with these parts before its text."""
    spelt = {"type": "input_text" if wire == "responses" else "text", "text": text}
    return {"role": "user", "content": [*parts, spelt] if parts else text}


def make_step(wire: str, number: int, output: str) -> list[Item]:
    """A call of a tool, and its output."""
    id, arguments = f"call_{number:06d}", {"path": f"src/file_{number}.py"}
    if wire == "chat":
        function = {"name": "read", "arguments": json.dumps(arguments)}
        call = {
            "role": "assistant",
            "content": f"Step {number}.",
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        }
        return [call, {"role": "tool", "tool_call_id": id, "content": output}]
    if wire == "messages":
        said = [
            {"type": "text", "text": f"Step {number}."},
            {"type": "tool_use", "id": id, "name": "read", "input": arguments},
        ]
        result = {"type": "tool_result", "tool_use_id": id, "content": output}
        return [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    call = {"type": "function_call", "call_id": id, "name": "read", "arguments": json.dumps(arguments)}
    return [call, {"type": "function_call_output", "call_id": id, "output": output}]


def make_body(wire: str, items: list[Item], tools: list[Item], system: str = "You are an agent.") -> Item:
    body: Item = {"model": "m", "tools": tools}
    if wire == "chat":
        return {**body, "messages": [{"role": "system", "content": system}, *items]}
    if wire == "messages":
        return {**body, "max_tokens": 1000, "system": system, "messages": items}
    return {**body, "store": False, "instructions": system, "input": items}


def answer(wire: str, tokens: int, text: str = "Go on.") -> Item:
    """An answer that ends, with the input tokens that its provider counts."""
    told: Item = json.loads(WRITERS[PATHS[wire]](Turn(text), 1, {"model": "m"}, Tokens(tokens, answer=3))[0])
    return told


@dataclass
class PlainUpstream:
    """An upstream that keeps what it was sent, and counts six bytes a token unless `respond` says otherwise."""

    wire: str
    respond: Answer | None = None
    sent: list[Item] = field(default_factory=list)

    async def answer(self, call: ScriptedCall) -> WholeResponse:
        body = json.loads(call.body)
        self.sent.append(body)
        status, told = (200, answer(self.wire, count(body))) if self.respond is None else self.respond(body)
        return WholeResponse(status, (), json.dumps(told).encode())

    def list_items(self, place: int) -> list[Item]:
        found: list[Item] = self.sent[place][_KEYS[self.wire]]
        return found


def count(body: Item) -> int:
    """Count the tokens of a request as an upstream might."""
    return len(json.dumps(body)) // 6


@dataclass
class PlainClient:
    """A client that repeats its whole history with each call."""

    origin: str
    wire: str
    tools: list[Item]
    items: list[Item] = field(default_factory=list)
    labels: list[dict[str, str]] = field(default_factory=list)

    def send(self, **members: Any) -> Item:
        key = {"authorization": "Bearer sk-client-0001", "x-palimpsest-session": "agent"}
        body = {**make_body(self.wire, self.items, self.tools), **members}
        response = httpx.post(self.origin + PATHS[self.wire], json=body, headers=key, timeout=60)
        assert response.status_code == 200, response.text
        self.labels.append(dict(response.headers))
        said: Item = response.json()
        return said

    def work(self, steps: range, output: Callable[[int], str]) -> None:
        """Send a call for each step, whose call and output are then in the history."""
        for number in steps:
            self.items += make_step(self.wire, number, output(number))
            self.send()

    def list_told(self, words: str) -> list[int]:
        """Return the calls whose notice has these words."""
        return [place for place, each in enumerate(self.labels) if words in each.get("x-palimpsest-notice", "")]
