"""Streamed responses: parsing server-sent events, and assembling the response from them.

Reading is lenient and never raises, because recorded bytes must stay readable: what is not understood is skipped.
Events are parsed as in WHATWG HTML ("Interpreting an event stream"): CR, LF and CRLF end lines, comments and unknown
fields are ignored; but a last event without its blank line counts.
"""

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from proxy.model.exchange import Usage
from proxy.wire.json_values import JSON_ERRORS, MAX_DEPTH, read_count, read_object, read_objects, read_text

# Beginnings of a line, for end markers. The field's name comes before the look-behind, because only a pattern that
# begins with letters lets `re` skip through a chunk: 0.3 µs instead of 5.8 for 326 bytes.
DATA_LINE = rb"data:(?<![^\r\n]data:) ?"
EVENT_LINE = rb"event:(?<![^\r\n]event:) ?"
TYPED_DATA_LINE = DATA_LINE + rb'\{[ \t]{0,4}"type"[ \t]{0,4}:[ \t]{0,4}"'

# The most bytes of an end marker, the line end before it included. To search a stream in pieces, put this many of the
# preceding bytes before each piece (b"\n" before the first), and search from 1: at 0 any byte looks like the first of a
# line.
MARKER_REACH = 64

END = "[DONE]"
"""The data of the event that ends a stream in some formats."""

EVENT_END = re.compile(rb"\n\n|\r\r|\r\n\r\n|\n\r\n")

# Members that are not sent in fragments. Some servers repeat them in each fragment: the first value that is set stays.
_FIXED = frozenset({"id", "type", "role", "name", "format"})
_UNSAID = "error without a message"
# Nearly all events. It begins at a line and never gives back what it has of one, so that no text takes long.
_PLAIN_EVENT = re.compile(r"^(?:event: ?(.*+)\n)?data: ?(.*+)\n\n", re.MULTILINE)

_decode = msgspec.json.Decoder(dict[str, Any]).decode

T = TypeVar("T")


class ServerEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: its `event:` name (empty if none), its `data:` lines joined with newlines, and the object in them.

    `value` is None if there is none. The plain text of an `error` event is the `message` of its object.
    """

    name: str
    data: str
    value: dict[str, object] | None = None


def read_events(stream: bytes) -> list[ServerEvent]:
    """Return the events of a stream, except those without data."""
    text = stream.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    parts = _PLAIN_EVENT.split(text)  # what is between events, the name, and the data of each in turn
    names, data = _split_events(text) if any(parts[::3]) else (parts[1::3], parts[2::3])
    return [
        ServerEvent(name or "", said, {"message": said} if sent is None and name == "error" else sent)
        for name, said, sent in zip(names, data, _read_values(data), strict=True)
    ]


def _split_events(text: str) -> tuple[list[str], list[str]]:
    """Return the names and the data of a stream's events, whatever other lines it has."""
    names, data = list[str](), list[str]()
    name, said = "", list[str]()
    # Not `str.splitlines`, which would also split at U+2028, which JSON strings may contain.
    for line in (*text.split("\n"), ""):
        field, _, value = line.partition(":")
        if field == "data":
            said.append(value.removeprefix(" "))
        elif field == "event":
            name = value.removeprefix(" ")
        elif not line:
            if said:
                names.append(name)
                data.append("\n".join(said))
            name, said = "", []
    return names, data


def _read_values(data: Sequence[str]) -> list[dict[str, object] | None]:
    """Return the object in each text, or None."""
    # Counting brackets is cheap; whatever is too deep has one more at its end for each.
    if not any([len(said) > 2 * MAX_DEPTH and said.count("{") + said.count("[") > MAX_DEPTH for said in data]):
        try:
            return [None if said[:1] == "[" else _decode(said) for said in data]
        except JSON_ERRORS:
            pass
    return list(map(read_object, data))  # one may be too deep, or is no object, or one that msgspec refuses


def read_kind(event: ServerEvent, sent: Mapping[str, object]) -> str:
    """Return the type of an event in a format with typed events: its `type`, or the event's name."""
    kind = sent.get("type")
    return kind if isinstance(kind, str) else event.name


class GrowingText:
    """A string to which fragments are appended."""

    __slots__ = ("fragments",)

    def __init__(self, *fragments: str) -> None:
        self.fragments = list(fragments)


class GrowingList:
    """A list to which fragments are appended. Fragments of the same `index` and type make one element."""

    __slots__ = ("_placed", "items")

    def __init__(self, fragments: list[object]) -> None:
        self.items: list[object] = []
        self._placed: dict[int, dict[str, object]] = {}
        self.extend(fragments)

    def extend(self, fragments: list[object]) -> None:
        """Add the elements of a fragment."""
        for fragment in fragments:
            index = fragment.get("index") if isinstance(fragment, dict) else None
            if isinstance(fragment, dict) and type(index) is int:
                merge(self._find(index, fragment.get("type")), fragment)
            else:
                self.items.append(fragment)

    def add_text(self, text: str) -> None:
        """Add plain text after content parts, as Mistral sends it after its thinking."""
        last = self.items[-1] if self.items else None
        if isinstance(last, dict) and last.get("type") == "text":
            merge(last, {"text": text})
        else:
            self.items.append({"type": "text", "text": text})

    def _find(self, index: int, kind: object) -> dict[str, object]:
        known = self._placed.get(index)
        if known is not None:
            known_kind = known.get("type")
            if known_kind == kind or not (isinstance(known_kind, str) and isinstance(kind, str)):
                return known
        begun = self._placed[index] = {}
        self.items.append(begun)
        return begun


class IndexedSlots(dict[int, T]):
    """Values by index. A second value at an index comes after the first, and receives all later fragments."""

    def __init__(self) -> None:
        self._all: list[tuple[int, T]] = []
        self._last = 0

    def locate(self, index: object) -> int:
        """Return the index, or the last one again if it is missing."""
        if type(index) is int:
            self._last = index
        return self._last

    def put(self, index: int, thing: T) -> T:
        """Put a value at an index, and return it."""
        self._all.append((index, thing))
        self[index] = thing
        return thing

    def ordered(self) -> list[T]:
        """Return all values, sorted by index."""
        return [thing for _, thing in sorted(self._all, key=itemgetter(0))]


def set_members(known: dict[str, object], fields: Mapping[str, object]) -> None:
    """Set members to their latest values. A null or empty value does not replace one that is set."""
    for key, value in fields.items():
        if value or key not in known or isinstance(value, int | float):
            known[key] = value


def merge(known: dict[str, object], *fragments: Mapping[str, object]) -> None:
    """Merge fragments into an object: append to strings and lists, merge objects, replace anything else."""
    for fragment in fragments:
        for key, value in fragment.items():
            was = known.get(key)
            if was is None:
                known[key] = _begin(value)
            elif type(was) is GrowingText and type(value) is str:  # before the rest, for speed: nearly always so
                was.fragments.append(value)
            elif value is not None and not (was and key in _FIXED):
                known[key] = value if key in _FIXED else _continue(was, value)


def finish(value: object) -> object:
    """Return the value as plain JSON, with all fragments joined.

    Joining them once at the end avoids copying a long response for every token.
    """
    if isinstance(value, GrowingText):
        return "".join(value.fragments)
    if isinstance(value, GrowingList):
        return [finish(item) for item in value.items]
    if isinstance(value, dict):
        return {key: finish(inner) for key, inner in value.items()}
    return value


def finish_object(known: Mapping[str, object]) -> dict[str, object]:
    """Return an object with the fragments of all its members joined."""
    return {key: finish(value) for key, value in known.items()}


def _begin(value: object) -> object:
    # Merged into an empty value, since one fragment may have several elements of the same index.
    if isinstance(value, dict):
        begun: dict[str, object] = {}
        merge(begun, value)
        return begun
    return _lengthen([], value) if isinstance(value, list) else value


def _continue(was: object, value: object) -> object:
    match was, value:
        case str(), str():
            return GrowingText(was, value)
        case dict(), dict():
            merge(was, value)
            return was
        case list() | GrowingList(), list() | str():
            return _lengthen(was, value)
        case str() | GrowingText(), list():
            return _lengthen(_lengthen([], finish(was)), value)
    return _begin(value)


def _lengthen(was: GrowingList | list[object], value: object) -> GrowingList:
    elements = was if isinstance(was, GrowingList) else GrowingList(was)
    if isinstance(value, list):
        elements.extend(value)
    elif isinstance(value, str) and value:
        elements.add_text(value)
    return elements


class UsageNames:
    """The names of token counts in a format: for each field of Usage a list of names, of which the first found counts.

    A dot in a name leads into an inner object.
    """

    def __init__(self, **names: tuple[str, ...]) -> None:
        self._paths = [[_split_path(path) for path in names.get(field, ())] for field in Usage.__struct_fields__]

    def read(self, value: object) -> Usage | None:
        """Return the counts in a usage object, or None if it has none."""
        if not isinstance(value, dict) or not value:
            return None
        usage = Usage(*[_find_count(value, paths) for paths in self._paths])
        return None if usage == _NO_COUNTS else usage


_NO_COUNTS = Usage()


def _split_path(path: str) -> tuple[str, list[str]]:
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
    """Return the message in an error body, empty if it is not an error. `is_error`: the object is known to be one.

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


def read_error_object(body: bytes) -> dict[str, object]:
    """Return the error in a body that is no stream, with a type and a message."""
    text = body.decode("utf-8", "replace")
    value = read_object(text)
    error = value.get("error") if value is not None else None
    said = (read_error(value) or read_error(value, is_error=True) if value is not None else text.strip()) or _UNSAID
    told = error if isinstance(error, dict) else {}
    return {"type": "server_error", "message": said, **{name: each for name, each in told.items() if each is not None}}


def read_typed_error(kind: str, sent: Mapping[str, object]) -> str:
    """Return the error message in a typed event. Only error events count: others may have an `error` of their own."""
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
