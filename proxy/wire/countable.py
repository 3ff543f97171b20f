"""Messages and tools as far as they cost tokens, on any wire.

Rule: total; what is of no known shape counts as its text, names and numbers included, so that nothing is left out.
Base64 is never text.
"""

import json
from collections.abc import Mapping

import msgspec

from proxy.model.countable import Countable, Medium
from proxy.wire.canonical import REFUSED, load
from proxy.wire.evidence import MAX_DEPTH, is_shallow, read_objects, read_text
from proxy.wire.media import read_medium

# A message is framed by three tokens, and a name costs one more (OpenAI's cookbook, "How to count tokens").
_MESSAGE_FRAME, _NAME_FRAME = 3, 1
# The frames of a function, of its properties, of one property, of an enum's members, and of all functions (the same).
_FUNCTION, _PROPERTIES, _PROPERTY, _ENUM, _MEMBER, _END = 7, 3, 3, -3, 3, 12

# Members that steer and that a model does not read. Ids of calls count: some templates show them, and where one does
# not, the ratio that its usage teaches says so.
_UNREAD = frozenset(["type", "cache_control", "signature", "status", "index", "is_error"])
# Members whose objects a model reads as JSON.
_JSON = frozenset(["input", "arguments", "action", "parameters", "input_schema", "schema"])


def read_message(raw: bytes) -> Countable:
    """What a message of any wire costs tokens for."""
    value = load_shallow(raw)
    texts: list[str] = []
    media: list[Medium] = []
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, str):
            texts.append(found)
        elif isinstance(found, list):
            left.extend(reversed(found))
        elif isinstance(found, dict):
            medium = read_medium(found)
            if medium is not None:
                media.append(medium)
            else:
                left.extend(_list_members(found))
        elif found is not None:
            texts.append(spell(found))
    named = _NAME_FRAME if isinstance(value, dict) and value.get("name") else 0
    return Countable("\n".join(texts), tuple(media), _MESSAGE_FRAME + named)


def _list_members(value: Mapping[str, object]) -> list[object]:
    """What a model reads of an object, last first."""
    read = [(name, member) for name, member in value.items() if name not in _UNREAD]
    return [spell(member) if name in _JSON and isinstance(member, dict) else member for name, member in reversed(read)]


def read_tools(raw: bytes) -> Countable:
    """What a `tools` array costs, by the rule OpenAI publishes; other providers send much the same text."""
    texts: list[str] = []
    frame = 0
    tools = read_objects(load_shallow(raw))
    for tool in tools:
        function = tool.get("function")
        inner = function if isinstance(function, dict) else tool
        schema = inner.get("parameters", inner.get("input_schema"))
        if isinstance(schema, dict):
            texts.append(f"{read_text(inner.get('name'))}:{read_text(inner.get('description')).rstrip('.')}")
            frame += _FUNCTION + _read_schema(schema, texts)
        else:
            texts.append(spell(tool))
            frame += _FUNCTION
    return Countable("\n".join(texts), (), frame + _END if tools else 0)


def _read_schema(schema: Mapping[str, object], texts: list[str]) -> int:
    """Append the lines of a schema; the tokens of their frames. What is nested counts like what is not."""
    frame = 0
    left: list[object] = [schema]
    while left:
        found = left.pop()
        if not isinstance(found, dict):
            continue
        properties = found.get("properties")
        if isinstance(properties, dict) and properties:
            frame += _PROPERTIES
            for name, each in properties.items():
                frame += _PROPERTY + _read_property(name, each, texts)
            left.extend(properties.values())
        left.extend(_list_inner(found))
    return frame


def _list_inner(schema: Mapping[str, object]) -> list[object]:
    """The schemas inside one, its properties aside."""
    defined = schema.get("$defs")
    inner = [schema.get("items"), *(defined.values() if isinstance(defined, dict) else ())]
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner += read_objects(schema.get(name))
    return inner


def _read_property(name: str, schema: object, texts: list[str]) -> int:
    if not isinstance(schema, dict):
        texts.append(f"{name}:{spell(schema)}")
        return 0
    kind = schema.get("type")
    texts.append(f"{name}:{kind if isinstance(kind, str) else spell(kind)}:{read_text(schema.get('description'))}")
    members = schema.get("enum")
    if not isinstance(members, list) or not members:
        return 0
    texts += [each if isinstance(each, str) else spell(each) for each in members]
    return _ENUM + _MEMBER * len(members)


def load_shallow(raw: bytes) -> object:
    """The value of a JSON text; the text itself where it is none, or too deep."""
    try:
        value = load(raw)
    except REFUSED:
        return raw.decode(errors="replace")
    # Brackets in strings count too, so only the few texts with many are walked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and not is_shallow(value):
        return raw.decode(errors="replace")
    return value


def spell(value: object) -> str:
    """A value that `load_shallow` gave, as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_spell_number)


def _spell_number(literal: msgspec.Raw) -> str:
    """A number that no float holds, as it was sent."""
    return bytes(literal).decode()
