"""What a message says, wire by wire, read for a plan and never sent.

Rule: total; what cannot be read is its own text. Text is what a person would read: tool results in any spelling, words
of user and assistant, JSON where there is nothing plainer; reasoning is none, and media are described in words.
"""

from collections.abc import Callable, Iterator, Mapping

from proxy.model.told import Told, ToolCall
from proxy.wire.json_values import format_json, load_lenient, read_objects, read_text
from proxy.wire.media import format_medium, read_medium
from proxy.wire.shaping import TEXTS, THINKING, is_answer, name_message_role, read_item_kind, read_shape

_Fields = Mapping[str, object]

_REASONING = THINKING | {"reasoning", "reasoning_content"}
# What a plan has no use for in an object that is told as JSON.
_UNTOLD = frozenset({"type", "id", "call_id", "status", "cache_control", "encrypted_content"})


def read_told(wire: str, raw: bytes) -> Told:
    """What one raw message, or item, of a wire (`Format.name`) says."""
    value = load_lenient(raw)
    if not isinstance(value, dict):
        return Told(read_shape(wire, raw).role, value if isinstance(value, str) else format_json(value))
    return _READERS[wire](value)


def _read_chat(message: _Fields) -> Told:
    answered = read_text(message.get("tool_call_id"))
    content = message.get("content")
    refusal = read_text(message.get("refusal"))
    text, media = (content, ()) if isinstance(content, str) else _tell(content)
    calls = message.get("tool_calls")
    old_call = message.get("function_call")
    return Told(
        name_message_role(message),
        "\n".join(filter(None, (text, refusal))) if refusal else text,
        tuple(_read_chat_calls(calls, old_call)) if calls or old_call else (),
        (answered,) if answered else (),
        media,
    )


def _read_chat_calls(calls: object, old_call: object) -> Iterator[ToolCall]:
    for call in [*read_objects(calls), {"function": old_call}]:
        called = call.get("function") or call.get("custom")
        if isinstance(called, dict):
            arguments = called.get("arguments", called.get("input"))
            yield ToolCall(read_text(call.get("id")), read_text(called.get("name")), _tell_arguments(arguments))


def _read_anthropic(message: _Fields) -> Told:
    content = message.get("content")
    if not isinstance(content, list):
        text, media = _tell(content)
        return Told(name_message_role(message), text, media=media)
    calls: list[ToolCall] = []
    answers: list[str] = []
    said: list[object] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else ""
        if kind == "tool_use":
            calls.append(_read_use(block))
            continue
        if kind == "tool_result":
            answers.append(read_text(block.get("tool_use_id")))
        said.append(block)
    text, media = _tell(said)
    role = "tool" if answers else name_message_role(message)
    return Told(role, text, tuple(calls), tuple(filter(None, answers)), media)


def _read_use(block: _Fields) -> ToolCall:
    return ToolCall(read_text(block.get("id")), read_text(block.get("name")), _tell_arguments(block.get("input")))


def _read_responses(item: _Fields) -> Told:
    kind = read_item_kind(item)
    if kind == "message":
        text, media = _tell(item.get("content"))
        return Told(name_message_role(item), text, media=media)
    named = read_text(item.get("call_id"))
    if is_answer(kind):
        text, media = _tell(item["output"] if "output" in item else _list_told(item))
        return Told("tool", text, (), (named,) if named else (), media)
    if kind.endswith("_call"):
        text, media = _tell(item if kind == "image_generation_call" else item.get("output"))
        return Told("assistant", text, (_read_item_call(kind, named, item),), media=media)
    text, media = ("", ()) if kind == "reasoning" else _tell(_list_told(item))
    return Told("assistant", text, (), (), media)


def _read_item_call(kind: str, named: str, item: _Fields) -> ToolCall:
    arguments = next((item[name] for name in ("arguments", "input", "action", "code") if name in item), "")
    return ToolCall(named, read_text(item.get("name")) or kind.removesuffix("_call"), _tell_arguments(arguments))


_READERS: Mapping[str, Callable[[_Fields], Told]] = {
    "chat_completions": _read_chat,
    "anthropic_messages": _read_anthropic,
    "responses": _read_responses,
}


def _tell_arguments(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else format_json(arguments)


def _tell(content: object) -> tuple[str, tuple[str, ...]]:
    """The text of a content in any spelling, and its media in words."""
    if isinstance(content, str):
        return content, ()
    texts: list[str] = []
    media: list[str] = []
    left = [content]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left.extend(reversed(found))
        elif isinstance(found, dict):
            kind = read_text(found.get("type"))
            if kind in TEXTS:
                left.append(found.get("text"))
            else:
                left.extend(reversed(_open(kind, found, media)))
        elif found is not None and found != "":
            texts.append(found if isinstance(found, str) else format_json(found))
    return "\n".join(texts), tuple(media)


def _open(kind: str, part: _Fields, media: list[str]) -> tuple[object, ...]:
    """What is to be told of a part; nothing of reasoning, nor of a medium, whose description is appended."""
    if kind == "refusal":
        return (part.get("refusal"),)
    if kind in _REASONING:
        return ()
    if kind.endswith("tool_result"):
        return (part.get("content"),)
    medium = read_medium(part)
    if medium is not None:
        media.append(format_medium(medium))
        return ()
    source = part.get("source")
    if kind == "document" and isinstance(source, dict):
        return (part.get("title"), source.get("data"), source.get("content"))
    told = _list_told(part)
    return (format_json(told),) if told else ()


def _list_told(item: _Fields) -> dict[str, object]:
    """What of an object of no known kind can be told."""
    return {name: value for name, value in item.items() if name not in _UNTOLD}
