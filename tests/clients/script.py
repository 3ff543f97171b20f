"""What the scripted model does next: it uses the tools it is offered, one after another, and then says that it is done.

Rule: pure; the answer follows from the request alone, so that a client is told the same direct and through the proxy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

NOTE, COPY = "notes.txt", "copy.txt"
CONTENT = "The log is complete. é\n"
# Every last answer of a turn begins with this: it is how the script knows its own in a history.
DONE = "Done:"
# What the model calls, by part: both of a pair in one answer. A part that no offered tool plays is left out.
STEPS = (("read", "shell"), ("shell",), ("helper",), ("write",))
# What it asks of a helper, in the first turn only; whoever is asked this asks no helper in turn.
HELP = "Help me with the notes."

_PARTS = {
    "read": re.compile(r"(read|view|cat)(_?files?)?", re.IGNORECASE),
    "shell": re.compile(
        r"(local_)?(bash|shell|terminal)(_command)?|(exec|execute|run)(_shell)?_commands?", re.IGNORECASE
    ),
    "helper": re.compile(r"(spawn_)?agent|task", re.IGNORECASE),
    "write": re.compile(r"(write|create)(_?(to_)?file)?|editor", re.IGNORECASE),
}
_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema")
_PATH = re.compile(r"(absolute_?|file_?)?(path|name)s?", re.IGNORECASE)
_COMMAND = re.compile(r"(cmd|command)s?", re.IGNORECASE)
_TEXT = re.compile(r"(new_?|file_?)?(contents?|text)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model."""

    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model: what it says, and what it calls. Without calls it is the last one of its turn."""

    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """How the model answers one client. `folder`: where the client works; `command`: what it runs in the shell;
    `ending`: the command that ends the work, for clients that want one; `helper`: the kind of subagent it asks, if any;
    `prose`: what is said where no tool is offered, for clients that take their edits from text. `run`: how many runs of
    the client were answered before: no id and no prose is said twice. `note` and `copy` are the files that are read and
    written, `text` is what is written.
    """

    folder: str = ""
    command: str = f"cat {NOTE}"
    ending: str = ""
    helper: str = ""
    prose: str = ""
    run: int = 0
    note: str = NOTE
    copy: str = COPY
    text: str = CONTENT

    def answer(self, asked: Json) -> Turn:
        """The answer to a request in any of the three wire formats."""
        tools = dict(read_tools(asked))
        said = list(read_history(asked))
        asks_help = self.helper and DONE not in said and not is_helper(asked)
        parts = [part for part in STEPS if part != ("helper",) or asks_help]
        steps = [step for part in parts if (step := self.fit(part, tools))]
        left = said[::-1].index(DONE) if DONE in said else len(said)
        for step in steps:
            if left < len(step):
                return Turn("I will look.", tuple(step))
            left -= len(step)
        if self.prose and not tools:
            return Turn(f"This is answer {count_answers(asked) + 1} of run {self.run + 1}. {self.prose}")
        calls = [Call(call.name, call.arguments | {"command": self.ending}) for call in self.fit(["shell"], tools)]
        return Turn(f"{DONE} turn {said.count(DONE) + 1}. \U0001f600", tuple(calls) if self.ending else ())

    def fit(self, parts: Sequence[str], tools: Mapping[str, Json]) -> list[Call]:
        """The calls that play these parts with the tools that are offered."""
        found = [(part, name) for part in parts for name in tools if _PARTS[part].fullmatch(name)]
        first = {part: name for part, name in reversed(found)}
        return [Call(first[part], self._fill(part, tools[first[part]])) for part in parts if part in first]

    def _fill(self, part: str, schema: Json) -> Json:
        """Arguments for all that the schema demands, and for what gives the call its meaning."""
        properties = schema.get("properties") or {}
        wanted = set(schema.get("required") or properties)
        return {name: self._value(part, name, kind) for name, kind in properties.items() if name in wanted}

    def _value(self, part: str, name: str, schema: Json) -> Any:
        kind = _find_kind(schema)
        text = "notes"
        if _PATH.fullmatch(name):
            text = f"{self.folder}/{self.copy if part == 'write' else self.note}"
        elif _COMMAND.fullmatch(name):
            text = self.command
        elif _TEXT.fullmatch(name):
            text = self.text
        elif name in ("prompt", "task"):
            text = HELP
        elif name == "subagent_type":
            text = self.helper
        if kind == "array":
            return [self._value(part, name, schema.get("items") or {})]
        if kind == "object":
            return self._fill(part, schema)
        return (
            schema["enum"][0] if schema.get("enum") else {"boolean": False, "integer": 1, "number": 1}.get(kind, text)
        )


def read_tools(asked: Json) -> Iterator[tuple[str, Json]]:
    """Names and schemas of the functions that a request offers; other kinds of tools are left out."""
    for tool in asked.get("tools") or ():
        for inner in tool.get("functionDeclarations") or [tool.get("function") or tool]:
            schema = next((inner[name] for name in _SCHEMAS if inner.get(name)), None)
            if inner.get("name") and isinstance(schema, dict):
                yield inner["name"], schema


def list_items(asked: Json) -> list[Json]:
    """The messages of a request, in whichever format."""
    items = asked.get("messages") or asked.get("input") or asked.get("contents") or ()
    return [{"role": "user", "content": items}] if isinstance(items, str) else list(items)


def is_helper(asked: Json) -> bool:
    """Whether a conversation begins with the model's own request for help."""
    texts = [str(item.get("content")) for item in list_items(asked) if item.get("role") == "user"]
    return any(HELP in text for text in texts)


def count_answers(asked: Json) -> int:
    """How many answers a history shows."""
    return sum(1 for item in list_items(asked) if item.get("role") == "assistant")


def read_history(asked: Json) -> Iterator[str]:
    """What the model did so far, oldest first: the name of each tool it called, and DONE where it ended a turn."""
    for item in list_items(asked):
        if item.get("type") == "function_call":
            yield item["name"]
        if item.get("role") not in ("assistant", "model"):
            continue
        yield from (call["function"]["name"] for call in item.get("tool_calls") or ())
        content = item.get("content") or item.get("parts") or ()
        for part in [{"text": content}] if isinstance(content, str) else content:
            if isinstance(call := part.get("functionCall"), dict):
                yield call["name"]
            elif part.get("type") == "tool_use":
                yield part["name"]
            elif str(part.get("text")).startswith(DONE):
                yield DONE


def _find_kind(schema: Json) -> str:
    """The first type that is not null, of a schema that may name several."""
    kinds = schema.get("type") or [option.get("type") for option in schema.get("anyOf") or ()]
    return next((kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind and kind != "null"), "string")
