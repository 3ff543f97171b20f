"""Anthropic's wire as its provider checks it: each rule of messages with its own 400, and reasoning that is bound.

Rule: it knows nothing of the proxy. The texts are the provider's (WIRES 1.4, 1.12, 1.14) or as public threads quote
them. A signature holds only behind what it was made behind, in the normal form of WIRES 1.9.
"""

import hmac
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count, takewhile
from random import Random
from typing import Any

from proxy.engine.ports import RequestBody
from proxy.model.exchange import Headers
from tests.support.engine import JSON, ScriptedResponse, ScriptedUpstream, Sent
from tests.support.strict_upstream import REFUSAL, Check

THINKING = ("thinking", "redacted_thinking")
STREAM: Headers = ((b"content-type", b"text/event-stream"),)
MOST_MARKERS = 4
BILLING = "x-anthropic-billing-header:"
BOUND = ("claude-fable-5-2", "claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
"""Models that check what their thinking is bound to (WIRES 1.1). None of them takes a budget of thinking."""

_KEYS = {
    "text": {"type", "text", "citations", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "compaction": {"type", "content", "signature", "cache_control"},
}
COMPACTION = "compact-2026-09-04"

Block = dict[str, Any]
CountUsage = Callable[[Block], tuple[int, int, int]]
"""Returns the tokens of a request that are neither read from a cache nor written, those read, and those written."""


def list_parts(message: Block) -> list[Block]:
    """The blocks of a message; a string is one text."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def list_thinking(message: Block) -> list[Block]:
    """The blocks of thinking of a message."""
    return [block for block in list_parts(message) if block["type"] in THINKING]


def find_signature(block: Block) -> str:
    """What a block of thinking is known by."""
    return str(block.get("signature") or block.get("data"))


def normalize(value: Any) -> Any:
    """The normal form: cache markers, one text or a list of it, outer white space and blank texts do not count."""
    if isinstance(value, list):
        texts = [part | {"text": part["text"].strip()} if "text" in part else part for part in value]
        kept = [part for part in texts if part.get("type") != "text" or part["text"]]
        return [normalize(part) for part in kept if not part.get("text", "").startswith(BILLING)]
    if not isinstance(value, dict):
        return value
    plain = {name: member for name, member in value.items() if name not in ("cache_control", "is_error")}
    if isinstance(plain.get("content"), str):
        plain["content"] = [{"type": "text", "text": plain["content"]}]
    return {name: normalize(member) if name == "content" else member for name, member in plain.items()}


class StrictMessages(ScriptedUpstream):
    """Answers as an agent's model: thinking, words, and mostly one to three calls; refuses whatever the API refuses."""

    def __init__(self, check: Check = "error", seed: int = 0) -> None:
        super().__init__()
        self.check = check
        self.is_interleaved = True  # without, it thinks at the beginning of a turn only if thinking has a budget
        self.end_chance = 0.06  # of an answer without calls
        self.count_usage: CountUsage | None = None  # without, nothing is told of a cache
        self.reports = ""  # what it answers where a report is asked for, given by `asks_for_report`
        self.asks_for_report: Callable[[bytes], bool] = lambda body: False
        self.asked: list[bytes] = []  # such requests, which are not among `calls`
        self.refusals: list[str] = []
        self.refuses_next = self.is_full_next = False
        self.dropped: list[tuple[int, str]] = []
        self.has_compaction = False
        self.compacted: list[Block] = []  # the compactions that it made, oldest first
        self.stop_of_compaction = "compaction"  # any other: it makes none
        self._random = Random(seed)
        self._numbers = count(1)
        self._made: dict[str, list[str]] = {}  # the blocks of an answer, by each of them
        self._prefixes: tuple[Block, list[bytes]] = ({}, [])  # of the request that was bound last

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return len(self.refusals)

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        is_report = self.asks_for_report(body)
        if is_report:
            self.asked.append(body)
        else:
            self.calls.append(Sent(method, target, headers, body))
        request, before = json.loads(body), len(self.dropped)
        if target.split(b"?")[0].endswith(b"/count_tokens"):
            request["max_tokens"] = 1
        problem = "It does not like this one." if self.refuses_next else ""
        self.refuses_next = False
        problem = problem or next(find_half_pairs(request, headers), "") or next(find_problems(request), "")
        problem = problem or next(self._find_problems(request), "") or next(self._find_in_compactions(request), "")
        if problem:
            self.refusals.append(problem)
            code, _, told = problem.rpartition("|")
            inner: Block = {"type": "invalid_request_error", "message": told}
            inner |= {"details": {"error_code": code}} if code else {}
            error = {"type": "error", "error": inner}
            return ScriptedResponse(json.dumps(error).encode(), status=400, headers=JSON, ending="whole")
        if target.split(b"?")[0].endswith(b"/count_tokens"):
            counted = json.dumps({"input_tokens": len(body) // 4}).encode()
            return ScriptedResponse(counted, headers=JSON, ending="whole")
        if "compaction" in request:
            message = self._compact(request)
        else:
            message = self.think(request, self.reports if is_report else "")
        if len(self.dropped) > before:
            kinds = [{"type": "thinking_dropped", "reason": reason} for _, reason in self.dropped[before:]]
            message["input_transformations"] = kinds
        return answer(message, is_stream=bool(request.get("stream")))

    def read_last(self) -> Block:
        """The last request."""
        body = self.calls[-1].body
        assert isinstance(body, bytes)
        request: Block = json.loads(body)
        return request

    def find_faults(self, request: Block) -> list[int]:
        """The places of the messages whose thinking is bound to something else than what goes before it."""
        return [place for place, _, block in _list_placed(request) if self._find_mismatch(request, place, block)]

    def _find_in_compactions(self, request: Block) -> Iterator[str]:
        """Yield what is wrong with the compactions of a request, or with asking for one (compaction-on-demand)."""
        messages = request["messages"]
        found = [
            (place, i, block)
            for place, message in enumerate(messages)
            for i, block in enumerate(list_parts(message))
            if block["type"] == "compaction"
        ]
        if "compaction" in request and not self.has_compaction:
            yield "compaction: Extra inputs are not permitted"
        for place, i, block in found:
            if not self.has_compaction:
                yield f"messages.{place}.content.{i}: Input tag 'compaction' found using 'type' does not match any"
            if (place, i) != (0, 0):
                yield "compaction_block_misplaced|`compaction` block must be sent first, in place of the messages."
            made = [each for each in self.compacted if each["signature"] == block.get("signature")]
            if not made:
                yield "compaction_signature_invalid|The `compaction` block's signature is invalid."
            if {**made[0], "cache_control": 0} != {**block, "cache_control": 0}:
                yield "compaction_content_mismatch|The `compaction` block's content does not match its signature."
        if "compaction" not in request:
            return
        if request["compaction"] != {"type": "summarize"}:
            yield "compaction: Input should be a valid dictionary"
        refused = {"stop_sequences", "context_management"} & request.keys()
        choice = request.get("tool_choice", {}).get("type")
        if refused or "format" in request.get("output_config", {}) or choice in ("any", "tool"):
            yield "This cannot be combined with `compaction`."
        if not any(message["role"] in ("user", "assistant") for message in messages):
            yield "compaction_nothing_to_summarize|There is nothing to summarize."
        if request["max_tokens"] < 4096:
            yield "The test allows no fewer output tokens."

    def _compact(self, request: Block) -> Block:
        number = next(self._numbers)
        content = [{"type": "compaction", "content": f"Summary {number}: {len(request['messages'])} messages. " * 20}]
        content[0]["signature"] = f"sealed-{number}"
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"]}
        steps = [{"type": "compaction", "input_tokens": len(json.dumps(request)) // 4, "output_tokens": 400}]
        usage = {"input_tokens": 0, "output_tokens": 0, "iterations": steps}
        if self.stop_of_compaction != "compaction":
            return head | {"content": [], "stop_reason": self.stop_of_compaction, "usage": usage}
        self.compacted += content
        return head | {"content": content, "stop_reason": "compaction", "usage": usage}

    def _find_problems(self, request: Block) -> Iterator[str]:
        """Yield what is wrong with the thinking of a request."""
        for place, i, block in _list_placed(request):
            if find_signature(block) not in self._made:
                yield f"messages.{place}.content.{i}: Invalid `signature` in `thinking` block"
            if self._find_mismatch(request, place, block):
                if self.check == "error":
                    yield REFUSAL.format(place, i)
                self.dropped.append((place, "prefix_binding_mismatch"))
        messages = request["messages"]
        last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=0)
        found = [find_signature(block) for block in list_thinking(messages[last])]
        if found and self._made.get(found[0]) != found:
            yield (
                f"messages.{last}.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message "
                "cannot be modified. These blocks must remain as they were in the original response."
            )

    def _find_mismatch(self, request: Block, place: int, block: Block) -> bool:
        model, _, signature = find_signature(block).partition(":")
        if (
            self.check == "none" or model != request["model"] or model not in BOUND
        ):  # of another model: dropped without a word
            return False
        return self._sign(request, place, block.get("thinking", "")) != signature

    def _sign(self, request: Block, place: int, text: str) -> str:
        return hmac.digest(b"key", self._list_prefixes(request)[place] + text.encode(), "sha256").hex()

    def _list_prefixes(self, request: Block) -> list[bytes]:
        """A digest of all that goes before each message, and one of the whole request."""
        known, prefixes = self._prefixes
        if known is not request:
            tools = sorted(normalize(request.get("tools") or []), key=lambda tool: json.dumps(tool, sort_keys=True))
            head = [tools, normalize({"content": request.get("system") or ""})]
            first = sha256(json.dumps(head, sort_keys=True).encode()).digest()
            pairs = zip(known["messages"], request["messages"], strict=False) if prefixes[:1] == [first] else ()
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            prefixes = [first, *prefixes[1 : same + 1]]
            for message in request["messages"][same:]:
                plain = json.dumps(normalize(message), sort_keys=True)
                prefixes.append(sha256(prefixes[-1] + plain.encode()).digest())
            self._prefixes = request, prefixes
        return prefixes

    def think(self, request: Block, report: str = "") -> Block:
        """The message with which it answers."""
        number, pick = next(self._numbers), self._random.random()
        thought = "" if pick < 0.1 else f"Step {number}: " + "I consider the output. " * self._random.randint(1, 12)
        signature = f"{request['model']}:{self._sign(request, len(request['messages']), thought)}"
        blocks: list[Block] = [{"type": "thinking", "thinking": thought, "signature": signature}]
        if not self.is_interleaved and has_budget(request) and list_results(request["messages"][-1]):
            blocks = []
        elif pick > 0.95:
            sealed = f"{request['model']}:{self._sign(request, len(request['messages']), '')}"
            blocks.append({"type": "redacted_thinking", "data": sealed})
        made = [find_signature(block) for block in blocks]
        self._made.update(dict.fromkeys(made, made))
        is_end = self._random.random() < self.end_chance or bool(report)
        calls = [] if is_end or not request.get("tools") else self.call(number)
        if is_end or not calls or self._random.random() < 0.7:
            text = f"Part {number} is done: the tests pass." if is_end else f"Part {number} comes next."
            blocks.append({"type": "text", "text": report or text})
        counted = {"input_tokens": len(json.dumps(request)) // 4, "output_tokens": 99}
        if self.count_usage is not None:
            names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            counted |= dict(zip(names, self.count_usage(request), strict=True))
        stop = "model_context_window_exceeded" if self.is_full_next else "tool_use" if calls else "end_turn"
        self.is_full_next = False
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"]}
        return head | {"content": [*blocks, *calls], "stop_reason": stop, "usage": counted}

    def call(self, number: int) -> list[Block]:
        """The calls of an answer."""
        return [
            {
                "type": "tool_use",
                "id": f"toolu_{number:020x}{i}",
                "name": "bash",
                "input": {"command": f"sed -n {number}p src/module_{number + i}.py"},
            }
            for i in range(self._random.choice((1, 1, 1, 2, 3)))
        ]


def answer(message: Block, *, is_stream: bool) -> ScriptedResponse:
    """A message as the provider sends it, whole or as events."""
    if not is_stream:
        return ScriptedResponse(json.dumps(message).encode(), headers=JSON, ending="whole")
    events: list[Block] = [{"type": "message_start", "message": message | {"content": [], "stop_reason": None}}]
    for i, block in enumerate(message["content"]):
        started, deltas = _split_block(block)
        events.append({"type": "content_block_start", "index": i, "content_block": started})
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": i})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    used = {"output_tokens": message["usage"]["output_tokens"]}
    used |= {"iterations": message["usage"]["iterations"]} if "iterations" in message["usage"] else {}
    events.append({"type": "message_delta", "delta": end, "usage": used})
    events.append({"type": "message_stop"})
    spelled = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return ScriptedResponse(spelled.encode(), headers=STREAM, ending="whole")


def read_answer(body: bytes) -> Block:
    """The message in a response, streamed or not, as a client keeps it."""
    if not body.startswith(b"event:"):
        return {"role": "assistant", "content": json.loads(body)["content"]}
    blocks: list[Block] = []
    for line in body.decode().splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if event.get("type") == "content_block_start":
            blocks.append(event["content_block"])
        if event.get("type") == "content_block_delta":
            _add_delta(blocks[-1], event["delta"])
    for block in blocks:
        if "partial" in block:
            block["input"] = json.loads(block.pop("partial"))
    return {"role": "assistant", "content": blocks}


def _add_delta(block: Block, delta: Block) -> None:
    name = {"input_json_delta": "partial_json", "signature_delta": "signature"}.get(delta["type"], delta["type"][:-6])
    kept = "partial" if name == "partial_json" else name
    block[kept] = block.get(kept, "") + delta[name]


def _split_block(block: Block) -> tuple[Block, list[Block]]:
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        said = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": "thinking", "thinking": "", "signature": ""}, [said, signed]
    if block["type"] == "tool_use":
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return block, []


def _list_placed(request: Block) -> Iterator[tuple[int, int, Block]]:
    """Yield the blocks of thinking, with the places of the message and of the block in it."""
    for place, message in enumerate(request["messages"]):
        for i, block in enumerate(list_parts(message)):
            if block["type"] in THINKING:
                yield place, i, block


def has_budget(request: Block) -> bool:
    """Whether thinking has a budget."""
    return bool(request.get("thinking", {}).get("type") == "enabled")


def list_results(message: Block) -> list[Block]:
    """The results in a message."""
    return [block for block in list_parts(message) if block["type"] == "tool_result"]


def find_half_pairs(request: Block, headers: Headers) -> Iterator[str]:
    """Yield the members that need a beta which the headers do not name (WIRES 6.3)."""
    betas = b",".join(value for name, value in headers if name.lower() == b"anthropic-beta")
    if "context_management" in request and b"context-management-" not in betas:
        yield "context_management: Extra inputs are not permitted"
    if "block_binding" in request.get("thinking", {}) and b"thinking-binding-controls-" not in betas:
        yield "thinking.adaptive.block_binding: Extra inputs are not permitted"
    if "compaction" in request and COMPACTION.encode() not in betas:
        yield f"The `compaction` parameter requires anthropic-beta: {COMPACTION}"
    has_block = any(part["type"] == "compaction" for message in request["messages"] for part in list_parts(message))
    if has_block and COMPACTION.encode() not in betas:
        yield "messages.0.content.0: `compaction` is not one of the expected content block types"
    if COMPACTION.encode() in betas and not (has_block or "compaction" in request):
        yield "The test allows this beta only where it is needed."


def find_problems(request: Block) -> Iterator[str]:
    """Yield what the provider refuses in a request, apart from thinking."""
    messages = request["messages"]
    if request.get("model") in BOUND and has_budget(request):
        yield (
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if "max_tokens" not in request:
        yield "max_tokens: Field required"
    if not messages or (messages[0]["role"] != "user" and list_parts(messages[0])[0]["type"] != "compaction"):
        yield 'messages: first message must use the "user" role'
    if messages[-1]["role"] == "assistant" and "compaction" not in request:
        yield ("This model does not support assistant message prefill. The conversation must end with a user message.")
    for place, message in enumerate(messages):
        yield from _find_in_message(place, message)
        after = messages[place + 1] if place + 1 < len(messages) else None
        if message["role"] == "system" and after is not None and after["role"] != "assistant":
            yield f"messages.{place}: role 'system' must precede an 'assistant' message or end the array"
    yield from _find_in_turn(request)
    yield from _find_in_calls(messages)
    yield from _find_in_markers(request)


def _find_in_turn(request: Block) -> Iterator[str]:
    """Yield what is wrong with the beginning of a turn under way, if thinking has a budget."""
    messages = request["messages"]
    if not has_budget(request) or not list_results(messages[-1]):
        return
    asked = [i for i, message in enumerate(messages) if message["role"] == "user" and not list_results(message)]
    place = next(i for i in range(max(asked) + 1, len(messages)) if messages[i]["role"] == "assistant")
    kind = list_parts(messages[place])[0]["type"]
    if kind not in THINKING:
        yield (
            f"messages.{place}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )


def _find_in_message(place: int, message: Block) -> Iterator[str]:
    if message["role"] not in ("user", "assistant", "system"):
        yield f"messages.{place}.role: Input should be 'user' or 'assistant'"
    for name in message.keys() - {"role", "content"}:
        yield f"messages.{place}.{name}: Extra inputs are not permitted"
    if not message["content"]:
        yield (
            f"messages.{place}: all messages must have non-empty content "
            "except for the optional final assistant message"
        )
    is_behind_call = False
    for i, part in enumerate(list_parts(message)):
        kind = part["type"]
        for name in part.keys() - _KEYS[kind]:
            yield f"messages.{place}.content.{i}.{kind}.{name}: Extra inputs are not permitted"
        if kind == "text" and not part["text"]:
            yield "messages: text content blocks must be non-empty"
        if kind == "text" and part["text"] and not part["text"].strip():
            yield "messages: text content blocks must contain non-whitespace text"
        is_behind_call = is_behind_call or kind == "tool_use"
        if kind in THINKING and is_behind_call:
            yield f"messages.{place}.content.{i}: `thinking` blocks must not follow `tool_use` blocks"


def _find_in_calls(messages: list[Block]) -> Iterator[str]:
    called: set[str] = set()
    before: list[str] = []
    for place, message in enumerate(messages):
        parts = list_parts(message)
        results: list[str] = []
        for i, part in enumerate(parts):
            if part["type"] != "tool_result":
                continue
            if part["tool_use_id"] not in before:
                yield (
                    f"messages.{place}.content.{i}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{part['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )
            if part["tool_use_id"] in results:
                yield (
                    f"messages.{place}.content.{i}: each tool_use must have a single result. Found multiple "
                    f"`tool_result` blocks with id: {part['tool_use_id']}"
                )
            if i != len(results):
                yield _miss(place - 1, [part["tool_use_id"]])
            results.append(part["tool_use_id"])
        if missing := [call for call in before if call not in results]:
            yield _miss(place - 1, missing)
        before = [part["id"] for part in parts if part["type"] == "tool_use"]
        if not called.isdisjoint(before):
            yield "messages: `tool_use` ids must be unique"
        called.update(before)
    if before:
        yield _miss(len(messages) - 1, before)


def _miss(place: int, ids: list[str]) -> str:
    return (
        f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _find_in_markers(request: Block) -> Iterator[str]:
    blocks = [*(request.get("tools") or ()), *(list_parts({"content": request.get("system") or []}))]
    for message in request["messages"]:
        for part in list_parts(message):
            blocks += part["content"] if isinstance(part.get("content"), list) else []
            blocks.append(part)
    marked = [block for block in blocks if block.get("cache_control")]
    lives = [block["cache_control"].get("ttl", "5m") for block in marked]
    lives += [request["cache_control"].get("ttl", "5m")] if request.get("cache_control") else []
    if len(lives) > MOST_MARKERS:
        yield f"A maximum of {MOST_MARKERS} blocks with cache_control may be provided. Found {len(lives)}."
    if any(block["type"] in THINKING for block in marked if "type" in block):
        yield "thinking blocks cannot have cache_control"
    if any(block.get("text") == "" for block in marked):
        yield "cache_control cannot be set for empty text blocks"
    if lives != sorted(lives):  # "1h" before "5m"
        yield (
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are "
            "processed in the following order: `tools`, `system`, `messages`."
        )
