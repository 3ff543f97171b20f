"""A scripted session: what its user asks and its model answers, as data, and the agent that plays it in any format."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.wire import OWN_FORMAT
from proxy.wire.format import Format
from proxy.wire.json_values import format_json
from proxy.wire.rounds import OwnTool, spell_tool
from proxy.wire.translation.conversations import translate

Message = dict[str, Any]
"""A message as chat completions spells it."""


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    """One answer of the model: a sentence, and a call of a tool; without one the turn ends.

    With `recalls` the model first looks up in its own history what this text finds, if it can.
    """

    said: str
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    recalls: str = ""

    def write(self, call: str) -> Message:
        """Return the step as a message of the model, in which the call of the tool has this id."""
        message: Message = {"role": "assistant", "content": self.said or None}
        if self.tool:
            function = {"name": self.tool, "arguments": json.dumps(dict(self.arguments))}
            message["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        return message


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """What the user says, and the steps that follow."""

    asked: str
    steps: Sequence[ScriptedStep]


class ScriptedAgent:
    """The client of a session with a model: it keeps the history, and runs its tools by `run`, as a client does."""

    def __init__(
        self, form: Format, model: str, run: Callable[[str, Mapping[str, Any]], str], system: str = ""
    ) -> None:
        self._form = form
        self._model = model
        self._run = run
        self._messages: list[bytes] = []
        if system:
            self._add(role="system", content=system)

    def ask(self, text: str) -> None:
        """Say something as the user."""
        self._add(role="user", content=text)

    def take(self, answer: Message) -> None:
        """Take an answer of the model, and run what it calls."""
        self._add(**answer)
        for call in answer.get("tool_calls") or ():
            function = call["function"]
            result = self._run(function["name"], json.loads(function["arguments"]))
            self._add(role="tool", tool_call_id=call["id"], content=result)

    def write(self, tools: Sequence[OwnTool]) -> bytes:
        """Write the request. The messages come last, so that a later request begins with the bytes of this one."""
        form, items = self._form, self._messages
        if form is not OWN_FORMAT:
            items = [*translate(OWN_FORMAT, form, items).items]
        head = json.dumps({"model": self._model, **form.own_members})[:-1].encode()
        spelled = b", ".join(spell_tool(form, tool) for tool in tools)
        return b'%b, "tools": [%b], "%b": [%b]}' % (head, spelled, form.items_key.encode(), b", ".join(items))

    def _add(self, **message: Any) -> None:
        self._messages.append(format_json(message).encode())
