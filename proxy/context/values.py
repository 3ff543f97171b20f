"""Outlines of structured values: JSON, lines of JSON, TOML, YAML.

Rule: an outline is empty where the text is not of its kind; none raises. Two levels are shown, keys in their order.
"""

import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

_REFUSED = (ValueError, RecursionError)
_MOST_KEYS = 40
_MOST_INNER = 12
_LONGEST_KEY = 60
_MOST_DEPTH = 32
# tomllib takes time by the square of a key's parts.
_MOST_PARTS = 100

_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", type(None): "null"}

_decode = msgspec.json.Decoder().decode
# libyaml where PyYAML was built with it, as its wheels are. Its events do not recurse.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def outline_json(text: str) -> list[str]:
    """The keys of an object, or what a list is of."""
    try:
        return list(_describe(_decode(text)))
    except _REFUSED:
        return []


def outline_json_lines(text: str) -> list[str]:
    """How many lines there are, and the keys of the first."""
    first, _, rest = text.partition("\n")
    described = outline_json(first) if len(first) <= 1_000_000 else []
    return [f"{rest.count(chr(10)) + bool(rest)} lines below the first", *described] if described else []


def outline_toml(text: str) -> list[str]:
    """The tables and their keys."""
    if any(line.count(".") > _MOST_PARTS for line in text.splitlines()):
        return []
    try:
        return list(_describe(tomllib.loads(text)))
    except _REFUSED:
        return []


def outline_yaml(text: str) -> list[str]:
    """The keys of the first document, two levels of them, with their lines."""
    found: list[str] = []
    try:
        for depth, key, line in _read_keys(text):
            found.append(f"{'  ' * depth}{key[:_LONGEST_KEY]} · line {line}")
            if len(found) > _MOST_KEYS * 2:
                break
    except (yaml.YAMLError, *_REFUSED):
        return []
    return found


def _read_keys(text: str) -> Iterator[tuple[int, str, int]]:
    """Depth, name and line of the keys of mappings in mappings; raises ValueError where they are too deep."""
    # For each open collection, whether a key of it comes next; None for a list.
    states: list[bool | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        if len(states) > _MOST_DEPTH:
            raise ValueError("too deep")
        if isinstance(event, yaml.DocumentEndEvent):
            return
        if isinstance(event, yaml.CollectionEndEvent):
            states.pop()
        elif isinstance(event, yaml.NodeEvent):
            is_key = bool(states) and states[-1] is True
            if is_key and isinstance(event, yaml.ScalarEvent) and len(states) <= 2 and None not in states:
                yield len(states) - 1, event.value, event.start_mark.line + 1  # type: ignore[union-attr]  # never None
            if states and states[-1] is not None:
                states[-1] = not states[-1]
            if isinstance(event, yaml.CollectionStartEvent):
                states.append(True if isinstance(event, yaml.MappingStartEvent) else None)


def _describe(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key in list(value)[:_MOST_KEYS]:
            yield f"{key[:_LONGEST_KEY]}: {_name(value[key])}"
        if len(value) > _MOST_KEYS:
            yield f"and {len(value) - _MOST_KEYS} more keys"
    elif isinstance(value, list):
        yield _name(value)


def _name(value: Any) -> str:
    """What a value is, and what it holds."""
    if isinstance(value, list):
        return f"array of {len(value)}{f', the first: {_name_shortly(value[0])}' if value else ''}"
    return _name_shortly(value)


def _name_shortly(value: Any) -> str:
    if isinstance(value, dict):
        return f"object of {', '.join(_list_keys(value)) or 'nothing'}"
    return _NAMES.get(type(value), type(value).__name__)


def _list_keys(value: dict[str, Any]) -> list[str]:
    keys = [key[:_LONGEST_KEY] for key in list(value)[:_MOST_INNER]]
    return [*keys, "…"] if len(value) > _MOST_INNER else keys
