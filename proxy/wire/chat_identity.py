"""What makes a Chat Completions message the same message.

Rule: role, name, content, tool calls and the call that is answered count, and nothing else: not reasoning in any
spelling, not refusals, annotations or what a server adds, nor white space at the end of an answer, which aider drops.
`developer` is `system`. The older `function_call` counts unless it is null, and `function` messages count as such,
though lineage sees them as a tool's.
"""

from collections.abc import Mapping

import msgspec

from proxy.wire.identity import (
    Item,
    ItemPosition,
    Part,
    Reader,
    Settled,
    collapse,
    digest_form,
    load_elements,
    name_role,
    settle_parts,
    weigh,
)
from proxy.wire.json_values import normalize_arguments, normalize_object, read_objects

_WIRE = "chat_completions"
_TEXTS = frozenset({"text"})
_FUNCTION = ("function", None, "")
_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})


class _Function(msgspec.Struct, gc=False):
    """What a call calls."""

    name: str | None = None
    arguments: object = None


class _ToolCall(msgspec.Struct, gc=False):
    """A tool call."""

    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _ChatMessage(msgspec.Struct, gc=False):
    """What counts of a message."""

    role: str = ""
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None


def read_alternatives(value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
    """The message of each choice of an answer."""
    messages = (choice.get("message") for choice in read_objects(value.get("choices")))
    return tuple((_read_answer(message),) if isinstance(message, dict) else () for message in messages)


def _read_answer(message: Mapping[str, object]) -> Item:
    return READER.read_value({**message, "role": message.get("role") or "assistant"})


def _read(message: _ChatMessage, source: ItemPosition) -> Item:
    content: object = message.content or None
    if isinstance(content, list):
        content = collapse(settle_parts(content, source, _TEXTS, _REASONING))
    if message.role == "assistant" and isinstance(content, str):
        content = content.rstrip() or None
    answered = message.tool_call_id or None
    results = (answered,) if answered else ()
    role = "system" if message.role == "developer" else message.role
    weight = len(content) if isinstance(content, str) else weigh(content)
    if message.tool_calls or message.function_call is not None:
        calls, made, heard = _settle_calls(message, source)
        form = digest_form((_WIRE, role, content, message.name, answered, *calls))
        return Item(name_role(role), form, made, results, weight + heard)
    form = digest_form((_WIRE, role, content, message.name, answered))
    return Item(name_role(role), form, (), results, weight)


def _settle_calls(message: _ChatMessage, source: ItemPosition) -> tuple[list[Settled], tuple[str, ...], int]:
    """The calls a message makes, their ids, and what they weigh. The older kind of call has no id, not even None."""
    settled: list[Settled] = []
    made: list[str] = []
    whole: list[object] = []  # decoded once, however many calls are of another kind
    weight = 0
    for place, call in enumerate(message.tool_calls or ()):
        function = call.function
        if function is not None and call.type in _FUNCTION:
            arguments = normalize_arguments(function.arguments)
            settled.append((call.id or None, function.name, arguments))
            weight += len(arguments)
        else:
            whole = whole or load_elements(source, "tool_calls")
            settled.append(normalize_object(whole[place], "index"))
            weight += weigh(settled[-1])
        made += [call.id] if call.id else []
    if message.function_call is not None:
        arguments = normalize_arguments(message.function_call.arguments)
        settled.append((message.function_call.name, arguments))
        weight += len(arguments)
    return settled, tuple(made), weight


READER = Reader(_WIRE, _ChatMessage, _read)
