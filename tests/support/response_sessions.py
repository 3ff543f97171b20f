"""Sessions of an agent on the Responses wire, with all that a client and a person may do in between.

Rule: as in `bound_sessions`; an `Echo` is how a client sends an answer's items again.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

from tests.support.bound_sessions import CHANCES
from tests.support.engine import RecordingClient
from tests.support.managing import Message
from tests.support.strict_responses import LATER, StrictResponses, read_answer
from tests.support.strict_upstream import Check, Member
from tests.support.wire_sessions import PIXEL, WireSession

Echo = Literal["whole", "codex", "bare", "between"]
"""As they came; without ids and states; also without reasoning; or as they came, with each output behind its call."""

IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "bash", "description": "Run a command.", "parameters": {"type": "object"}},
    {"type": "custom", "name": "sh"},
    {"type": "shell"},
    {"type": "web_search"},
]


ASYNC: dict[str, Any] = {
    "type": "function",
    "name": LATER,
    "description": "Run it for hours.",
    "parameters": {"type": "object"},
}
_TRIGGER: Message = {"type": "compaction_trigger"}
_LATEST = 12  # messages of the assistant after which an output that comes later is there


class ResponseSession(WireSession):
    """One session. If it `is_async`, outputs of some calls come turns later."""

    chances = CHANCES | {"compact": 8}
    target, wire, items_key = b"/v1/responses", "responses", "input"
    count_target, counted = b"/v1/responses/input_tokens", ("model", "instructions", "input", "tools")

    def __init__(
        self,
        ceiling: int,
        *,
        echo: Echo = "whole",
        model: str = "gpt-5.6",
        other: str = "gpt-6-sol",
        is_async: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(ceiling, model=model, other=other, **options)
        self.echo, self.tools = echo, [*TOOLS, ASYNC] if is_async else TOOLS

    async def do(self, what: str) -> None:
        """Let the provider compact the history, and go on without; or what any session may do."""
        if what != "compact":
            return await super().do(what)
        self.history.append(_TRIGGER)
        client = await self.call(keeps=False)
        self.history.pop()
        kinds = [item["type"] for item in read_answer(client.body).get("output", ())]
        self.counts["odd compactions"] += kinds != ["compaction"]

    def _count(self, client: RecordingClient, sent: list[Any], told: int) -> None:
        super()._count(client, sent, told)
        self.counts["unsaid"] = 0  # reasoning goes with the step that it led to

    def make_upstream(self, check: Check, member: Member, seed: int) -> StrictResponses:
        """The upstream."""
        return StrictResponses(seed)

    def begin(self) -> list[Message]:
        """What precedes the user's first message."""
        text = {"type": "input_text", "text": "<permissions>You may run commands.</permissions>"}
        return [{"type": "message", "role": "developer", "content": [text]}]

    def write(self) -> bytes:
        """The body of a call."""
        body = {"model": self.model, "instructions": "You are an agent. " * 30, "input": self.history}
        body["tools"] = self.tools
        asked = {"store": False, "stream": self.is_stream, "include": ["reasoning.encrypted_content"]}
        return json.dumps(body | asked | {"prompt_cache_key": "talk", **self.more}).encode()

    def read(self, body: bytes) -> dict[str, Any]:
        """The response."""
        return read_answer(body)

    def list_signatures(self, messages: Sequence[Message]) -> set[str]:
        """What is encrypted in the reasoning."""
        sealed = {item.get("encrypted_content") for item in messages if item.get("type") == "reasoning"}
        return {str(each) for each in sealed if each}

    def count_answers(self, messages: Sequence[Message]) -> int:
        """How many answers among these items had reasoning: those with reasoning, of which none is removed alone."""
        return sum(item.get("type") == "reasoning" for item in messages)

    def list_turns(self) -> list[int]:
        """The places behind which a person may go on in another way."""
        places: list[int] = []
        missing: set[str] = set()
        for place, item in enumerate(self.history):
            kind, call_id = item.get("type", "message"), str(item.get("call_id", ""))
            if kind.endswith("_output"):
                missing.discard(call_id)
            elif call_id:
                missing.add(call_id)
            if place > 1 and not missing and (kind.endswith("_output") or item.get("role") == "user"):
                places.append(place)
        return places

    def go_on(self, message: dict[str, Any]) -> None:
        """Add an answer, and what follows it: an output for each call, or what a person says next."""
        outputs = [self._run(call) for call in self._list_due()] if ASYNC in self.tools else []
        for item in message["output"]:
            if (echoed := self._echo(item)) is not None:
                self.history.append(echoed)
            if item.get("call_id") and item.get("name") != LATER:
                outputs.append(self._run(item))
                if self.echo == "between":
                    self.history.append(outputs[-1])
        if self.echo != "between":
            self.history += outputs
        if not outputs:
            self._ask(f"Now look at part {len(self.history)}, and say what is wrong there.")
        if self._random.random() < 0.05:
            self.history.append({"type": "configuration_update", "reasoning": {"effort": "high"}})

    def _list_due(self) -> list[Message]:
        """The calls whose outputs come now: each some messages of the assistant later."""
        answered = {item["call_id"] for item in self.history if item.get("type", "").endswith("_output")}
        waiting = [i for i, item in enumerate(self.history) if item.get("name") == LATER]
        since = {i: sum(item.get("role") == "assistant" for item in self.history[i:]) for i in waiting}
        calls = [self.history[i] for i in waiting if since[i] >= _LATEST]
        return [call for call in calls if call["call_id"] not in answered]

    def _echo(self, item: dict[str, Any]) -> Message | None:
        if self.echo in ("whole", "between"):
            return deepcopy(item)
        if self.echo == "bare" and item["type"] == "reasoning":
            return None
        kept = {name: value for name, value in item.items() if name not in ("id", "status")}
        if item["type"] == "message":
            kept["content"] = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
        return kept

    def _run(self, call: Message) -> Message:
        output = self.make_output()
        result: dict[str, Any] = {"type": f"{call['type']}_output", "call_id": call["call_id"]}
        if call["type"] == "shell_call":
            outcome = {"type": "exit", "exit_code": 0}
            return result | {"output": [{"stdout": output, "stderr": "", "outcome": outcome}]}
        if self._random.random() < 0.1:
            return result | {"output": f"Error: {output[:200]}"}
        if self._random.random() < 0.05:
            return result | {"output": [{"type": "input_text", "text": "A picture:"}, dict(IMAGE)]}
        return result | {"output": output if self._random.random() < 0.7 else [{"type": "input_text", "text": output}]}

    def _ask(self, words: str) -> None:
        text = {"type": "input_text", "text": words}
        parts = [text, dict(IMAGE)] if self._random.random() < 0.1 else [text]
        self.history.append({"type": "message", "role": "user", "content": parts})
