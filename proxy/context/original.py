"""The text that a reference stands for: messages as a person, or a model, would read them.

Rule: the same messages have the same text, for ever: references begin at characters of it. Whatever the messages say is
in it, arguments of calls without their JSON escapes, so that what is looked for is found as it would be typed.
"""

from collections.abc import Iterator, Sequence

import msgspec

from proxy.model.told import Told, ToolCall

PAGE = 12_000
"""Characters of a page; of what a reference stands for, the first page is what a reader surely sees."""

_MOST_DEPTH = 16

_decode = msgspec.json.Decoder().decode


def write_original(messages: Sequence[Told]) -> str:
    """The text of messages."""
    return "".join(map(write_message, messages))


def write_message(told: Told) -> str:
    """The part of one message; it ends with an empty line."""
    answered = f" · answers {', '.join(told.answers)}" if told.answers else ""
    parts = [f"--- {told.role or 'unknown'}{answered}", *([told.text] if told.text else ())]
    parts += [f"({each})" for each in told.media]
    parts += map(_write_call, told.calls)
    return "\n".join((*parts, "", ""))


def _write_call(call: ToolCall) -> str:
    return "\n".join((f"--- calls {call.name} · {call.id}", *read_arguments(call.arguments)))


def read_arguments(arguments: str) -> list[str]:
    """The arguments as lines, one `name: value` each; what is not JSON as it is."""
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return [arguments] if arguments else []
    return list(_list_values("", value, 0))


def _list_values(name: str, value: object, depth: int) -> Iterator[str]:
    if depth < _MOST_DEPTH and isinstance(value, dict):
        for key, each in value.items():
            yield from _list_values(f"{name}.{key}" if name else str(key), each, depth + 1)
    elif depth < _MOST_DEPTH and isinstance(value, list):
        for each in value:
            yield from _list_values(name, each, depth + 1)
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield f"{name}: {text}" if name else text
