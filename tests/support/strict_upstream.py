"""An upstream that signs its reasoning over the whole request, and checks it when it comes back (WIRES 1.3 to 1.9).

Rule: it knows nothing of the proxy. A signature holds only behind what it was made behind, in their normal form.
"""

import hmac
import json
from itertools import count
from random import Random
from typing import Any, Literal

from proxy.engine.ports import RequestBody
from proxy.model.exchange import Headers
from tests.support.engine import JSON, ScriptedResponse, ScriptedUpstream, Sent
from tests.support.managing import Message

Check = Literal["error", "drop", "none"]
Member = Literal["reasoning_details", "thinking_blocks"]

REFUSAL = (
    "messages.{}.content.{}: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_PREFIX = "prefix_binding_mismatch"


def list_blocks(message: Message) -> list[dict[str, Any]]:
    """The blocks of signed reasoning of a message."""
    return [block for name in ("reasoning_details", "thinking_blocks") for block in message.get(name) or ()]


def normalize(message: Message) -> Any:
    """The normal form of a message: cache markers, spelling, outer white space and blank texts do not count."""
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    texts = [{**part, "text": part["text"].strip()} if part.get("type") == "text" else part for part in parts]
    kept = [
        {name: value for name, value in part.items() if name != "cache_control"}
        for part in texts
        if part.get("type") != "text" or part["text"]
    ]
    calls = [
        [call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    blocks = [block["signature"] for block in list_blocks(message)]
    return [message["role"], kept, calls, message.get("tool_call_id"), blocks]


class StrictUpstream(ScriptedUpstream):
    """Answers as an agent's model: mostly with a call, else with words, and always with a signed block."""

    def __init__(self, check: Check = "error", member: Member = "reasoning_details", seed: int = 0) -> None:
        super().__init__()
        self.check = check
        self.member = member
        self.refused = 0
        self.dropped: list[tuple[int, str]] = []  # the place and the reason
        self._random = Random(seed)
        self._numbers = count(1)

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        self.calls.append(Sent(method, target, headers, body))
        request = json.loads(body)
        messages, dropped, is_broken = request["messages"], list[tuple[int, str]](), False
        for place, message in enumerate(messages):
            for i, block in enumerate(list_blocks(message)):
                reason = self._find_mismatch(request, place, block)
                is_broken = is_broken or reason == _PREFIX  # nothing behind it is read
                if is_broken and self.check == "error":
                    self.refused += 1
                    error = {"type": "invalid_request_error", "message": REFUSAL.format(place, i)}
                    return _answer({"error": error}, 400)
                if is_broken or reason:
                    dropped.append((place, _PREFIX if is_broken else reason))
        self.dropped += dropped
        answer: dict[str, Any] = {"choices": [{"index": 0, "message": self.think(request), "finish_reason": "stop"}]}
        if dropped:
            answer["input_transformations"] = [
                {"type": "thinking_dropped", "path": f"messages.{place}", "reason": reason} for place, reason in dropped
            ]
        return _answer(answer, 200)

    def read_last(self) -> dict[str, Any]:
        """The last request."""
        body = self.calls[-1].body
        assert isinstance(body, bytes)
        request: dict[str, Any] = json.loads(body)
        return request

    def find_faults(self, request: dict[str, Any]) -> list[int]:
        """The places of the messages whose reasoning is bound to something else than what goes before it."""
        blocks = [(place, block) for place, message in enumerate(request["messages"]) for block in list_blocks(message)]
        return [place for place, block in blocks if self._find_mismatch(request, place, block) == _PREFIX]

    def _find_mismatch(self, request: dict[str, Any], place: int, block: dict[str, Any]) -> str:
        """Why a block is not read here, or nothing."""
        text = block.get("text") or block.get("thinking", "")
        model, _, signature = block["signature"].partition(":")
        if self.check == "none":
            return ""
        if model != request["model"]:
            return "model_binding_mismatch"
        return "" if self._sign(request, place, text) == signature else _PREFIX

    def _sign(self, request: dict[str, Any], place: int, text: str) -> str:
        tools = sorted(request.get("tools") or (), key=lambda tool: json.dumps(tool, sort_keys=True))
        bound = [tools, [normalize(message) for message in request["messages"][:place]], text]
        return hmac.digest(b"key", json.dumps(bound, sort_keys=True).encode(), "sha256").hex()

    def think(self, request: dict[str, Any]) -> dict[str, Any]:
        """The message with which it answers."""
        number = next(self._numbers)
        thought = f"Step {number}: " + "I consider what the last output says. " * self._random.randint(1, 12)
        signature = f"{request['model']}:{self._sign(request, len(request['messages']), thought)}"
        if self.member == "thinking_blocks":
            block: dict[str, Any] = {"type": "thinking", "thinking": thought, "signature": signature}
        else:
            block = {"type": "reasoning.text", "text": thought, "signature": signature, "index": 0}
        message = {"role": "assistant", "content": f"Part {number} comes next.", self.member: [block]}
        if self._random.random() < 0.06:
            return message | {"content": f"Part {number} is done: the tests of module_{number} pass."}
        function = {"name": "bash", "arguments": json.dumps({"command": f"sed -n {number}p src/module_{number}.py"})}
        return message | {"tool_calls": [{"id": f"call_{number:024x}", "type": "function", "function": function}]}


def _answer(value: dict[str, Any], status: int) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(value).encode(), status=status, headers=JSON, ending="whole")
