"""The Responses API as its provider checks it: ids, pairing and reasoning, each rule with its own error.

Rule: it knows nothing of the proxy. The texts are those that public threads quote (WIRES 5.1 to 5.4, 5.8). Outputs may
come later than directly behind their calls, but none may be missing, unless its tool is `later`.
"""

import json
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

from proxy.engine.ports import RequestBody
from proxy.model.exchange import Headers
from tests.support.engine import JSON, ScriptedResponse, ScriptedUpstream, Sent

STREAM: Headers = ((b"content-type", b"text/event-stream"),)
LATER = "later"
"""The tool whose outputs may come turns later."""

Item = dict[str, Any]
CountUsage = Callable[[Item], tuple[int, int, int]]
"""Returns the tokens of a request that are neither read from a cache nor written, those read, and those written."""

Problem = tuple[int, str, str | None]
"""Status, message and code."""

_CALLS = {"function_call": "function call", "custom_tool_call": "custom tool call", "shell_call": "shell call"}
_PARTS = {
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
}
_PHASES = {"commentary", "final_answer"}


class StrictResponses(ScriptedUpstream):
    """Answers as an agent's model: reasoning, words, and mostly one to three calls; refuses what the API refuses."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.end_chance = 0.06  # of an answer without calls
        self.count_usage: CountUsage = lambda request: (len(json.dumps(request)) // 4, 0, 0)
        self.reports = ""  # what it answers where a report is asked for, given by `asks_for_report`
        self.asks_for_report: Callable[[bytes], bool] = lambda body: False
        self.asked: list[bytes] = []  # such requests, which are not among `calls`
        self.refusals: list[str] = []
        self.answers: list[bytes] = []
        self.overflows_next = ""  # how the next request is refused as too long: "error", "failed" or not
        self.refuses_next = False
        self.has_compaction = True
        self.compacted: list[Item] = []  # the compactions that it made, oldest first
        self._random = Random(seed)
        self._numbers = count(1)
        self._made: dict[str, Item] = {}  # items of answers by id and, of reasoning, by what is encrypted
        self._needed: dict[str, Item] = {}  # the reasoning that an item needs, by its id
        self._next: dict[str, Item] = {}  # the item behind reasoning, by what is encrypted in that

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return len(self.refusals)

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        if method == "GET":  # it lists no models
            return ScriptedResponse(b"{}", status=404, headers=JSON, ending="whole")
        is_report = self.asks_for_report(body)
        if is_report:
            self.asked.append(body)
        else:
            self.calls.append(Sent(method, target, headers, body))
        request = json.loads(body)
        is_stream = bool(request.get("stream"))
        if self.overflows_next:
            how, self.overflows_next = self.overflows_next, ""
            return refuse_long(is_stream=how == "failed")
        problem = next(self._find_problems(request), None)
        if self.refuses_next:
            self.refuses_next, problem = False, (400, "It does not like this one.", None)
        if problem is not None:
            status, message, code = problem
            self.refusals.append(message)
            error = {"type": "invalid_request_error", "message": message, "param": "input", "code": code}
            return ScriptedResponse(json.dumps({"error": error}).encode(), status=status, headers=JSON, ending="whole")
        if target.split(b"?")[0].endswith(b"/input_tokens"):
            counted = {"object": "response.input_tokens", "input_tokens": len(body) // 4}
            return ScriptedResponse(json.dumps(counted).encode(), headers=JSON, ending="whole")
        said = answer(self._respond(request, self.reports if is_report else ""), is_stream=is_stream)
        self.answers.append(b"".join(said.pieces))
        return said

    def read_last(self) -> Item:
        """The last request."""
        body = self.calls[-1].body
        assert isinstance(body, bytes)
        request: Item = json.loads(body)
        return request

    def _find_problems(self, request: Item) -> Iterator[Problem]:
        items: list[Item] = request["input"]
        for place, item in enumerate(items):
            yield from _find_in_item(place, item)
            if item.get("type") == "compaction_trigger" and place != len(items) - 1:
                yield 400, "compaction_trigger must be the last input item.", None
            if item.get("type") == "compaction_trigger" and not self.has_compaction:
                yield 400, f"Invalid value: 'compaction_trigger'. Supported values are: {', '.join(_CALLS)}.", None
            if item.get("type") == "compaction" and not (item in self.compacted and self.has_compaction):
                told = f"The encrypted content {item.get('encrypted_content', '')[:8]}... could not be verified."
                yield 400, told, "invalid_encrypted_content"
        seen: set[str] = set()
        for item in items:
            own = item.get("id")
            if own in seen:
                told = f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
                yield 400, told, None
            seen |= {own} if own else set()
        yield from self._find_in_pairs(items)
        yield from self._find_in_reasoning(items)
        for item in items:
            made = self._made.get(item.get("id", ""))
            if made is not None and made.get("phase") != item.get("phase"):
                yield 400, f"Item '{item['id']}' lost its phase.", None

    def _find_in_pairs(self, items: list[Item]) -> Iterator[Problem]:
        called: dict[str, Item] = {}
        answered: set[str] = set()
        for item in items:
            kind, call_id = item.get("type", ""), item.get("call_id", "")
            if kind in _CALLS:
                called[call_id] = item
            elif kind.endswith("_output") and call_id not in called:
                named = _CALLS[kind.removesuffix("_output")]
                yield 400, f"No tool call found for {named} output with call_id {call_id}.", None
            elif kind.endswith("_output"):
                answered.add(call_id)
        for call_id, item in called.items():
            if call_id not in answered and item.get("name") != LATER:
                yield 400, f"No tool output found for {_CALLS[item['type']]} {call_id}.", None

    def _find_in_reasoning(self, items: list[Item]) -> Iterator[Problem]:
        sealed = {item.get("encrypted_content") for item in items if item.get("type") == "reasoning"}
        for place, item in enumerate(items):
            own = item.get("id", "")
            if item.get("type") == "reasoning":
                if not item.get("encrypted_content"):
                    told = f"Item with id '{own}' not found. Items are not persisted when `store` is set to false."
                    yield 404, told, None
                made = self._made.get(item["encrypted_content"])
                if made is None:
                    told = f"The encrypted content {item['encrypted_content'][:8]}... could not be verified."
                    yield 400, told, "invalid_encrypted_content"
                behind = items[place + 1] if place + 1 < len(items) else {}
                if made is not None and not _is_same(behind, self._next[item["encrypted_content"]]):
                    told = f"Item '{made['id']}' of type 'reasoning' was provided without its required following item."
                    yield 400, told, None
            elif own and (needed := self._needed.get(own)) and needed["encrypted_content"] not in sealed:
                told = f"Item '{own}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                yield 400, f"{told}'{needed['id']}'.", None

    def _respond(self, request: Item, report: str) -> Item:
        number = next(self._numbers)
        is_trigger = request["input"][-1].get("type") == "compaction_trigger"
        output = [self._compact(number)] if is_trigger else self.think(request, number, report)
        fresh, read, written = self.count_usage(request)
        details = {"cached_tokens": read, "cache_write_tokens": written}
        usage = {"input_tokens": fresh + read + written, "input_tokens_details": details, "output_tokens": 99}
        head = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": request["model"]}
        return head | {"output": output, "usage": usage}

    def _compact(self, number: int) -> Item:
        sealed = f"gAAAA{number}" + "Cc" * 1200
        self.compacted.append({"id": f"cmp_{number}", "type": "compaction", "encrypted_content": sealed})
        return self.compacted[-1]

    def think(self, request: Item, number: int, report: str) -> list[Item]:
        """The items with which it answers."""
        pick, output = self._random.random(), list[Item]()
        if pick < 0.85:
            sealed = "gAAAA" + f"{number:08d}" + "Zk3" * self._random.randint(20, 400)
            thought: Item = {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": sealed}
            if pick < 0.3:
                thought["summary"] = [{"type": "summary_text", "text": f"**Part {number}** I consider the output."}]
            output.append(thought)
        is_end = self._random.random() < self.end_chance or bool(report)
        has_later = any(tool.get("name") == LATER for tool in request.get("tools") or ())
        calls = [] if is_end or not request.get("tools") else self.call(number, has_later=has_later)
        if self._random.random() < 0.05:
            action = {"type": "search", "query": f"parser {number}"}
            output.append({"id": f"ws_{number}", "type": "web_search_call", "status": "completed", "action": action})
        if is_end or not calls or self._random.random() < 0.6:
            text = f"Part {number} is done: the tests pass." if is_end else f"Part {number} comes next."
            part = {"type": "output_text", "text": report or text, "annotations": [], "logprobs": []}
            message = {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant"}
            output.append(message | {"content": [part], "phase": "commentary" if calls else "final_answer"})
        output += calls
        self._remember(output)
        return output

    def _remember(self, output: list[Item]) -> None:
        for i, item in enumerate(output):
            self._made[item["id"]] = item
            if item["type"] == "reasoning":
                self._made[item["encrypted_content"]] = item
                self._next[item["encrypted_content"]] = output[i + 1]
            elif output[0]["type"] == "reasoning":
                self._needed[item["id"]] = output[0]

    def call(self, number: int, *, has_later: bool) -> list[Item]:
        """The calls of an answer."""
        calls: list[Item] = []
        if has_later and self._random.random() < 0.1:
            ids = {"id": f"fc_{number}_later", "call_id": f"call_{number:020x}later"}
            call = {"type": "function_call", "status": "completed", "name": LATER, "arguments": "{}"}
            calls.append(ids | call)
        for i in range(self._random.choice((1, 1, 1, 2, 3))):
            named = f"sed -n {number}p src/module_{number + i}.py"
            ids = {"id": f"fc_{number}_{i}", "call_id": f"call_{number:020x}{i}"}
            if self._random.random() < 0.15:
                calls.append(ids | {"type": "custom_tool_call", "status": "completed", "name": "sh", "input": named})
            elif self._random.random() < 0.1:
                action = {"commands": [named], "timeout_ms": 1000}
                calls.append(ids | {"type": "shell_call", "status": "completed", "action": action})
            else:
                arguments = json.dumps({"command": named})
                call = {"type": "function_call", "status": "completed", "name": "bash", "arguments": arguments}
                calls.append(ids | call)
        return calls


def refuse_long(*, is_stream: bool) -> ScriptedResponse:
    """The refusal of a request that is too long, as a response or inside a stream."""
    told = "Your input exceeds the context window of this model. Please adjust your input and try again."
    error = {"type": "invalid_request_error", "message": told, "param": "input", "code": "context_length_exceeded"}
    if not is_stream:
        return ScriptedResponse(json.dumps({"error": error}).encode(), status=400, headers=JSON, ending="whole")
    begun: Item = {"id": "resp_0", "object": "response", "status": "in_progress", "output": []}
    failed = begun | {"status": "failed", "error": {"code": error["code"], "message": told}}
    kinds = (("created", begun), ("in_progress", begun), ("failed", failed))
    return _stream([{"type": f"response.{kind}", "response": each} for kind, each in kinds])


def answer(response: Item, *, is_stream: bool) -> ScriptedResponse:
    """A response as the provider sends it, whole or as events."""
    if not is_stream:
        return ScriptedResponse(json.dumps(response).encode(), headers=JSON, ending="whole")
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    events: list[Item] = [{"type": "response.created", "response": begun}]
    for i, item in enumerate(response["output"]):
        events.append({"type": "response.output_item.added", "output_index": i, "item": item})
        events.append({"type": "response.output_item.done", "output_index": i, "item": item})
    return _stream([*events, {"type": "response.completed", "response": response}])


def _stream(events: list[Item]) -> ScriptedResponse:
    spelled = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return ScriptedResponse(spelled.encode(), headers=STREAM, ending="whole")


def read_answer(body: bytes) -> Item:
    """The response in a body, streamed or not."""
    if not body.startswith((b"event:", b":")):
        response: Item = json.loads(body)
        return response
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    return next(event["response"] for event in reversed(events) if "response" in event)


def _is_same(item: Item, made: Item) -> bool:
    if item.get("type") != made["type"]:
        return False
    names = ("call_id", "action") if made["type"] != "message" else ("role",)
    return all(item.get(name) == made.get(name) for name in names)


def _find_in_item(place: int, item: Item) -> Iterator[Problem]:
    kind = item.get("type") or ("message" if item.get("role") else "")
    if kind == "message":
        yield from _find_in_message(place, item)
    elif kind == "shell_call_output":
        for each in item["output"]:
            if set(each) != {"stdout", "stderr", "outcome"}:
                yield 400, f"Invalid 'input[{place}].output'.", None
    elif kind.endswith("_output"):
        output = item.get("output")
        kinds = {part["type"] for part in output} if isinstance(output, list) else set()
        if not isinstance(output, str | list) or not kinds <= _PARTS["user"]:
            yield 400, f"Invalid type for 'input[{place}].output'.", "invalid_type"
    if "cache_control" in item:
        yield 400, f"Unknown parameter: 'input[{place}].cache_control'.", "unknown_parameter"


def _find_in_message(place: int, item: Item) -> Iterator[Problem]:
    content, role = item.get("content"), item.get("role", "")
    if role not in _PARTS:
        yield 400, f"Invalid value: '{role}'. Supported values are: {', '.join(_PARTS)}.", None
    if not content:
        yield 400, f"Invalid 'input[{place}].content': empty.", None
    for part in content if isinstance(content, list) else ():
        if part["type"] not in _PARTS.get(role, ()):
            told = f"Invalid value: '{part['type']}'. Supported values are: {sorted(_PARTS.get(role, ()))}."
            yield 400, told, "invalid_value"
    if item.get("phase") not in (None, *_PHASES):
        yield 400, "Invalid phase.", None
