"""Which tools of a client are sent with a shortened schema, and how a shortened one is spelt.

A shortened tool has its name, the first sentence of its description, and a schema with the required parameters alone,
without descriptions. That schema allows nothing that the whole one does not allow: whatever a model writes by it is
valid for the client, whether the model has asked for the whole schema or not.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_MOST_SENTENCE = 200  # characters
# Bytes of JSON: by which a tool has to become shorter, since its name stands in the list; and what a choice has to
# save. Less is lost again with the cache once a tool is used and whole again (measured with 14 small tools, all used).
_LEAST_SAVED, _LEAST_ALL = 100, 6_000
# What another choice has to save of the tools that are sent, since a provider's cache begins with them.
_LEAST_SHARE = 0.3
_MOST_DEPTH = 32
_SCHEMAS = ("parameters", "input_schema")
# Members of a schema that say nothing about which values are valid.
_REMARKS = frozenset(
    {"title", "description", "examples", "example", "default", "deprecated", "readOnly", "writeOnly", "$comment"}
)
# Members whose values are schemas: one, a list of them, or one for each name.
_ONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedProperties"}
)
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
# An object with other members than these may require properties that it does not list as required.
_PLAIN = frozenset({"$schema", "additionalProperties", "properties", "required", "type"})
_REFERENCE = re.compile(rb'"\$\w*[rR]ef"')
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s|$)")
_FAULTS = (ValueError, OverflowError, RecursionError)  # of JSON that cannot be decoded, or encoded again

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class OfferedTool(NamedTuple):
    """A tool as the client sends it, and shortened: the same bytes if it has to stay as it is."""

    name: str
    whole: bytes
    short: bytes

    @property
    def saved(self) -> int:
        """The bytes by which it becomes shorter."""
        return len(self.whole) - len(self.short)


def read_tools(tools: bytes) -> tuple[OfferedTool, ...]:
    """Read the raw `tools` of a request of any format; nothing if they cannot be read.

    Where the client leaves it to the provider to load some of them later, all stay as they are.
    """
    try:
        raws = list(map(bytes, _decode_raws(tools)))
        decoded = list(map(msgspec.json.decode, raws))
        shorts = list(map(_spell, decoded, raws))
    except _FAULTS:
        return ()
    is_deferred = any(isinstance(each, dict) and "defer_loading" in each for each in decoded)
    names = list(map(_read_name, decoded))
    read = [OfferedTool(*each) for each in zip(names, raws, shorts, strict=True)]
    return tuple(
        [each._replace(short=each.whole) if is_deferred or names.count(each.name) > 1 else each for each in read]
    )


def choose_shortened(
    tools: Sequence[OfferedTool], used: Collection[str], before: Collection[str], *, is_long: bool, is_first: bool
) -> tuple[str, ...]:
    """Return the names of the tools that an epoch shortens, in the client's order.

    `used` are the tools that were called lately, or whose whole schemas were asked for; `before` those that are
    shortened now. `is_long`: the conversation has so many steps that what is not in `used` was not called for long.
    `is_first`: the tools change with this epoch in any case. Else they stay as they are, unless a shortened one was
    used, or others save much: their change costs what a provider's cache has of them.
    """
    idle = {each.name: each.saved for each in tools if each.saved >= _LEAST_SAVED and each.name not in used}
    kept = tuple([name for name in idle if name in before])
    chosen = tuple(idle) if is_long else kept
    if before and len(kept) < len(before):
        return chosen
    sent = sum([len(each.whole) for each in tools]) - sum([idle[name] for name in kept])
    least = _LEAST_ALL if is_first else max(_LEAST_ALL, _LEAST_SHARE * sent)
    return chosen if sum([idle[name] for name in chosen]) - sum([idle[name] for name in kept]) >= least else kept


def write_tools(tools: Sequence[OfferedTool], shortened: Collection[str]) -> list[bytes]:
    """Return the raw tools, those with these names shortened."""
    return [each.short if each.name in shortened else each.whole for each in tools]


def take_sentence(text: str) -> str:
    """Return the first sentence of a description, or what of its first line fits."""
    line = text.strip().split("\n", 1)[0].lstrip("# ").rstrip()[:_MOST_SENTENCE]
    end = _END.search(line)
    return line[: end.end()] if end is not None else line


def shorten_schema(schema: object) -> object:
    """Return a JSON schema that allows a part of what a schema allows, or the same: see the module.

    Where a part of it refers to another part, only remarks are left out.
    """
    plain = _drop_remarks(schema, _MOST_DEPTH)
    return plain if _REFERENCE.search(_encode(plain)) else _require(plain, _MOST_DEPTH)


def _read_name(tool: object) -> str:
    name = _find_function(tool).get("name")
    return name if isinstance(name, str) else ""


def _find_function(tool: object) -> Mapping[str, Any]:
    """Return the object with the name of a tool, which some formats have inside the tool."""
    if not isinstance(tool, dict):
        return {}
    inner = tool.get("function")
    return inner if isinstance(inner, dict) else tool


def _spell(tool: object, raw: bytes) -> bytes:
    """Return a tool shortened. One with a strict schema, or a kind of its own, stays as it is."""
    function = _find_function(tool)
    schema = next((name for name in _SCHEMAS if isinstance(function.get(name), dict)), "")
    said = function.get("description", "")
    if not (function.get("name") and schema and isinstance(said, str)) or function.get("strict"):
        return raw
    changes = {"description": take_sentence(said), schema: shorten_schema(function[schema])}
    short = {name: changes.get(name, value) for name, value in function.items() if name != "input_examples"}
    spelt = _encode(short if function is tool else {**tool, "function": short})  # type: ignore[dict-item]
    return spelt if len(spelt) < len(raw) else raw


def _drop_remarks(schema: object, depth: int) -> object:
    """Return a schema without remarks in any of its parts."""
    if not isinstance(schema, dict) or not depth:
        return schema
    return {name: _change_parts(name, value, depth) for name, value in schema.items() if name not in _REMARKS}


def _change_parts(name: str, value: object, depth: int) -> object:
    if name in _NAMED and isinstance(value, dict):
        return {key: _drop_remarks(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list) and (name in _LIST or name == "items"):
        return [_drop_remarks(each, depth - 1) for each in value]
    return _drop_remarks(value, depth - 1) if name in _ONE else value


def _require(schema: object, depth: int) -> object:
    """Return a schema whose objects have their required properties alone, and no others."""
    if not isinstance(schema, dict) or not depth:
        return schema
    changed = dict(schema)
    if isinstance(schema.get("items"), dict):
        changed["items"] = _require(schema["items"], depth - 1)
    if isinstance(schema.get("anyOf"), list):
        changed["anyOf"] = [_require(each, depth - 1) for each in schema["anyOf"]]
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return changed
    required = _list_required(schema, properties)
    shown = properties if required is None else {name: properties[name] for name in properties if name in required}
    changed["properties"] = {name: _require(each, depth - 1) for name, each in shown.items()}
    return changed if required is None else {**changed, "additionalProperties": False}


def _list_required(schema: Mapping[str, Any], properties: Mapping[str, Any]) -> Iterable[str] | None:
    """Return the names of the required properties of an object; None if it may need others, too."""
    required = schema.get("required", [])
    is_plain = _PLAIN.issuperset(schema) and schema.get("type", "object") == "object" and isinstance(required, list)
    return required if is_plain and all([isinstance(each, str) and each in properties for each in required]) else None
