"""The requests of the clients in PROTOCOL §1, in their shapes, for a small made-up conversation.

Rule: facts of shape and order only; every word in the bodies is ours. `turns` gives a client's calls in the order they
reach the proxy, each with what the provider answered, so that a test can play either side.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from proxy.model.exchange import Headers
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses

Kind = Literal["main", "side", "compaction", "subagent"]
Message = dict[str, Any]

PATHS: Mapping[str, Format] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": AnthropicMessages(),
}
SYSTEM = "You help with a small repository. " * 20
QUESTION, FOLLOW_UP = "Which value does a.py return → now?", "Thank you. Make it seven."
FILE = "def answer():\n\treturn 6  # é\n" * 10
TASK, REPORT = "Find every use of answer().", "It is used in b.py."
DIGEST = "So far: a.py was read, and answer() returns six. " * 12
AFTER = "And run the tests."


@dataclass(frozen=True)
class Request:
    """One call: what the client sent and, in the wire's non-streamed shape, what it was answered."""

    headers: Headers
    path: str
    body: bytes
    kind: Kind
    answer: Mapping[str, object]

    @property
    def format(self) -> Format:
        """The wire it speaks."""
        return PATHS[self.path.partition("?")[0]]


@dataclass(frozen=True)
class Said:
    """What the provider says, before a wire has words for it: text, and perhaps one call of a tool."""

    text: str = ""
    call: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)


LOOK = {"path": "src/a.py", "limit": 20.0, "note": "→ é"}


@dataclass(frozen=True)
class Conversation:
    """What happens in each: a step with a tool, an answer, and two more turns of the user."""

    session: str

    @property
    def first(self) -> Said:
        """Text and a call."""
        return Said("I will look.", f"call_{self.session}_1", LOOK)

    @property
    def second(self) -> Said:
        """A call alone."""
        return Said("", f"call_{self.session}_2", {"path": "src/b.py"})

    @property
    def third(self) -> Said:
        """Text alone."""
        return Said("It returns six.")


class Recorder:
    """Gathers a client's calls."""

    def __init__(self, path: str, headers: Mapping[str, str], *, ascii_only: bool = False) -> None:
        self.requests: list[Request] = []
        self._path = path
        self._headers = headers
        self._ascii = ascii_only

    def send(self, body: Mapping[str, object], answer: Mapping[str, object], kind: Kind = "main", **more: str) -> None:
        """Note a call; `more` are header fields of this one, with `_` for `-`."""
        fields = {**self._headers, **{name.replace("_", "-"): value for name, value in more.items()}}
        headers = tuple((name.lower().encode(), value.encode()) for name, value in fields.items())
        content = json.dumps(body, ensure_ascii=self._ascii, separators=(",", ":")).encode()
        self.requests.append(Request(headers, self._path, content, kind, json.loads(json.dumps(answer))))


def shuffle(value: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """The same members in another order, as hash maps give them."""
    return {key: value[key] for key in random.sample(sorted(value), len(value))}


Play = Callable[[str], list[Request]]
