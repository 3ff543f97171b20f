"""What a provider sent, read as evidence. Rule: total; what is not of the expected kind says nothing, none raises."""

import json
from collections.abc import Mapping, Sequence

import msgspec

from proxy.model.exchange import Usage
from proxy.wire.sse import ServerEvent

# Deeper JSON is passed over: whoever renders an answer recurses, and orjson gives up at 254.
MAX_DEPTH = 128

_LARGEST_COUNT = 2**63 - 1  # of SQLite and PostgreSQL
_UNSAID = "error without a message"


def read_object(text: str) -> dict[str, object] | None:
    """The JSON object in a text, every digit of its integers kept; None where there is none, or a too deep one."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        value = _decode_leniently(text)
    if not isinstance(value, dict):
        return None
    # Brackets inside strings count too, so only the few texts with many are walked.
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_shallow(value):
        return None
    return value


def _decode_leniently(text: str) -> object:
    """As the standard library reads it, which takes lone surrogates, NaN, numbers of any size and raw line ends."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def is_shallow(value: object) -> bool:
    """Whether nothing in a value is deeper than MAX_DEPTH."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        members = [member for outer in level for member in (outer.values() if isinstance(outer, dict) else outer)]
        level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return True
    return False


def read_fields(event: ServerEvent) -> dict[str, object] | None:
    """The object in an event's data; an `error` event's plain text becomes its message."""
    sent = read_object(event.data)
    return {"message": event.data} if sent is None and event.name == "error" else sent


def read_kind(event: ServerEvent, sent: Mapping[str, object]) -> str:
    """What an event is, where the wire gives its events types: its `type`, or the event's name."""
    kind = sent.get("type")
    return kind if isinstance(kind, str) else event.name


def read_objects(value: object) -> list[dict[str, object]]:
    """The objects in a list."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def read_text(value: object) -> str:
    """A string, or an empty one."""
    return value if isinstance(value, str) else ""


def read_count(value: object) -> int | None:
    """A number of tokens, as far as it is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


class UsageNames:
    """Where a wire's servers put their token counts: for each field of Usage its names, the first that counts.

    A dot in a name leads into an inner object.
    """

    def __init__(self, **names: tuple[str, ...]) -> None:
        self._paths = [[_split(path) for path in names.get(field, ())] for field in Usage.__struct_fields__]

    def read(self, value: object) -> Usage | None:
        """The counts in a usage object; None where it has none."""
        if not isinstance(value, dict) or not value:
            return None
        usage = Usage(*[_find_count(value, paths) for paths in self._paths])
        return None if usage == _NO_COUNTS else usage


_NO_COUNTS = Usage()


def _split(path: str) -> tuple[str, list[str]]:
    first, *inner = path.split(".")
    return first, inner


def _find_count(usage: Mapping[str, object], paths: Sequence[tuple[str, Sequence[str]]]) -> int | None:
    for first, inner in paths:
        value = usage.get(first)
        for name in inner:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None and (count := read_count(value)) is not None:
            return count
    return None


def read_error(value: Mapping[str, object], *, is_error: bool = False) -> str:
    """The message in an error body, empty if it is none; `is_error` tells that the object is known to be one.

    Forms: `{"error": {…}}` or `{"error": "…"}` (OpenAI, Anthropic, most), the error itself with `object` or `type`
    "error" (vLLM, Responses events), `{"detail": …}` (FastAPI).
    """
    error = value.get("error")
    if error:
        return _describe(error)
    if is_error or value.get("object") == "error" or value.get("type") == "error":
        return _describe(value)
    detail = value.get("detail")
    return _describe(detail) if detail and "id" not in value else ""


def read_typed_error(kind: str, sent: Mapping[str, object]) -> str:
    """The message in an event of a wire whose events have types; other types may have an `error` of their own."""
    if kind in ("error", "") or sent.get("object") == "error":
        return read_error(sent, is_error=kind == "error")
    return ""


def _describe(error: object) -> str:
    if isinstance(error, list):
        return "; ".join(_describe(each) for each in read_objects(error)) or _UNSAID
    if not isinstance(error, Mapping):
        return read_text(error) or _UNSAID
    for key in ("message", "msg", "code", "type"):
        said = error.get(key)
        count = read_count(said)
        text = read_text(said) if count is None else str(count)
        if text:
            return text
    return _UNSAID
