"""Sessions of an agent on Anthropic's wire, with all that a client and a person may do in between.

Rule: as in `bound_sessions`; the client's markers hop as those of its kind do, and its results share one message.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

from tests.support.managing import Message
from tests.support.strict_messages import BILLING, StrictMessages, find_signature, list_thinking, read_answer
from tests.support.strict_upstream import Check, Member
from tests.support.wire_sessions import PIXEL, WireSession

Marking = Literal["", "hopping", "top", "long"]
"""Which cache markers the client sets: none, behind its system prompt and at the newest message, one for the whole
request, or a long one behind the system prompt and a short one at the newest two messages."""

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
TOOLS = [{"name": "bash", "description": "Run a command.", "input_schema": {"type": "object"}}]


class MessageSession(WireSession):
    """One session."""

    target, wire = b"/v1/messages?beta=true", "anthropic_messages"
    count_target = b"/v1/messages/count_tokens?beta=true"
    counted: tuple[str, ...] = ("model", "system", "messages", "tools", "thinking")

    def __init__(
        self,
        ceiling: int,
        *,
        marking: Marking = "hopping",
        model: str = "claude-fable-5-2",
        other: str = "claude-opus-5-5",
        is_billed: bool = False,
        **options: Any,
    ) -> None:
        """Make a session. If it `is_billed`, a line of the system prompt changes with each request."""
        super().__init__(ceiling, model=model, other=other, **options)
        self.marking, self.is_billed = marking, is_billed

    def make_upstream(self, check: Check, member: Member, seed: int) -> StrictMessages:
        """The upstream."""
        return StrictMessages(check, seed)

    def begin(self) -> list[Message]:
        """Nothing: the system prompt is no message."""
        return []

    def write(self) -> bytes:
        """The body of a call."""
        system: dict[str, Any] = {"type": "text", "text": "You are an agent. " * 30}
        messages: list[Any] = [*self.history]
        body: dict[str, Any] = {"model": self.model, "max_tokens": 4096, "stream": self.is_stream}
        body |= {"thinking": {"type": "adaptive"}, **self.more, "tools": TOOLS}
        if self.marking:
            system["cache_control"] = {"type": "ephemeral"} | ({"ttl": "1h"} if self.marking == "long" else {})
        if self.marking == "top":
            body["cache_control"] = {"type": "ephemeral"}
        places = range(len(messages))
        for place in places[-1:] if self.marking == "hopping" else places[-3::2] if self.marking == "long" else ():
            message = messages[place] = deepcopy(messages[place])
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            if message["role"] != "assistant":
                message["content"][-1]["cache_control"] = {"type": "ephemeral"}
        line = {"type": "text", "text": f"{BILLING} cc_version=2.1; cch={len(self.upstream.calls):05x};"}
        before = [line] if self.is_billed else []
        return json.dumps(body | {"system": [*before, system], "messages": messages}).encode()

    def read(self, body: bytes) -> dict[str, Any]:
        """The message in a response."""
        return read_answer(body)

    def list_signatures(self, messages: Sequence[Message]) -> set[str]:
        """What the thinking of each message is known by: its first block, for all go together."""
        return {find_signature(block) for message in messages for block in list_thinking(dict(message))[:1]}

    def go_on(self, message: dict[str, Any]) -> None:
        """Add an answer, and what follows it: all results in one message, or what a person says next."""
        self.history.append(message)
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        results: list[Any] = [self._run(call) for call in calls]
        if results and self._random.random() < 0.1:
            results.append({"type": "text", "text": "<system-reminder>The file has changed.</system-reminder>"})
        if results:
            self.history.append({"role": "user", "content": results})
        else:
            self._ask(f"Now look at part {len(self.history)}, and say what is wrong there.")
        if self._random.random() < 0.08:
            text = f"The date is {len(self.history)}."
            self.history.append({"role": "system", "content": [{"type": "text", "text": text}]})

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        output = self.make_output()
        result = {"type": "tool_result", "tool_use_id": call["id"]}
        if self._random.random() < 0.1:
            return result | {"content": f"Error: {output[:200]}", "is_error": True}
        if self._random.random() < 0.05:
            return result | {"content": [{"type": "text", "text": "A picture:"}, dict(IMAGE)]}
        return result | {"content": output if self._random.random() < 0.5 else [{"type": "text", "text": output}]}

    def _ask(self, words: str) -> None:
        said: Any = [{"type": "text", "text": words}, dict(IMAGE)] if self._random.random() < 0.1 else words
        self.history.append({"role": "user", "content": said})
