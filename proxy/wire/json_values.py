"""JSON received from others: reading it whatever its shape, comparing it, and editing its raw bytes.

The `read_` functions never raise: a value of an unexpected kind becomes None or empty. The canonical encoding is equal
for equivalent values and different for all others. Raw objects and arrays are edited member by member, so that all
other bytes stay as they are.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import msgspec

from proxy.wire.body import split_body

JSON_ERRORS = (ValueError, RecursionError)
"""What `load_json` and `encode_canonical` raise for text that is not JSON, or nested too deeply."""

# Deeper JSON is not read, because rendering a response recurses, and orjson gives up at 254.
MAX_DEPTH = 128

_LARGEST_COUNT = 2**63 - 1  # of SQLite and PostgreSQL
# Marks parts for a cache. Clients move it to other messages between requests.
_MARKER = "cache_control"
# Members whose content belongs to a tool: a marker or a null there is data.
_OPAQUE = frozenset({"input", "arguments"})
_GAP = b"{, \t\r\n"

_encode = msgspec.json.Encoder().encode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode

Change = Callable[[str, bytes], bytes | None]


# Parsing


def parse_number(literal: str) -> int | float | msgspec.Raw:
    """Parse a number with a fraction or an exponent. Return an int for a whole one: JavaScript writes 1.0 as 1."""
    value = float(literal)
    if value.is_integer():
        return int(value)
    return value if value - value == 0 else msgspec.Raw(literal.encode())


_decode = msgspec.json.Decoder(float_hook=parse_number).decode


def load_json(text: str | bytes) -> object:
    """Return the value of a JSON text. Raises one of JSON_ERRORS if it is not valid.

    Integers keep all their digits. Numbers that do not fit a float are `msgspec.Raw`.
    """
    try:
        return _decode(text)
    except ValueError:
        # The standard library takes what msgspec refuses: lone surrogates, integers of any length, NaN.
        text = text.decode() if isinstance(text, bytes) else text
        return json.loads(text, parse_float=parse_number, parse_constant=lambda name: msgspec.Raw(name.encode()))


def load_lenient(raw: bytes) -> object:
    """Return the value of a JSON text, or the text itself if it is not valid or is nested too deeply."""
    try:
        value = load_json(raw)
    except JSON_ERRORS:
        return raw.decode(errors="replace")
    return limit_depth(value, raw)


def limit_depth(value: object, raw: bytes) -> object:
    """Return the value, or its JSON text if it is nested too deeply."""
    # Counting brackets is cheap. It includes those in strings, so the few texts with many are walked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and not is_shallow(value):
        return raw.decode(errors="replace")
    return value


def read_object(text: str) -> dict[str, object] | None:
    """Return the JSON object in a text, with all digits of its integers, or None if there is none or it is too deep."""
    try:
        value = msgspec.json.decode(text)
    except JSON_ERRORS:
        try:  # the standard library takes lone surrogates, NaN, numbers of any size and raw line ends
            value = json.loads(text, strict=False)
        except JSON_ERRORS:
            return None
    if not isinstance(value, dict):
        return None
    # As in `limit_depth`.
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_shallow(value):
        return None
    return value


def is_shallow(value: object) -> bool:
    """Return whether nothing in a value is deeper than MAX_DEPTH."""
    inner = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        members = [member for outer in inner for member in (outer.values() if isinstance(outer, dict) else outer)]
        inner = [member for member in members if isinstance(member, dict | list)]
        if not inner:
            return True
    return False


def read_objects(value: object) -> list[dict[str, object]]:
    """Return the objects in a list; an empty list for anything else."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def read_text(value: object) -> str:
    """Return a string; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def read_count(value: object) -> int | None:
    """Return a count that a database can hold; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


def encode_value(value: object) -> bytes:
    """Encode a decoded value as compact JSON."""
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":"), default=lambda raw: bytes(raw).decode()).encode()


# Canonical encoding


def encode_canonical(value: object) -> bytes:
    """Encode a value of `load_json` canonically, so that parsing and re-serialising the JSON changes nothing.

    This evens out key order, spaces, escapes and `1.0` for `1`, and nothing more: lone surrogates and numbers that do
    not fit a float stay distinct. Raises one of JSON_ERRORS.
    """
    try:
        encoded = _encode_sorted(value)
    except UnicodeEncodeError:
        # It has a lone surrogate, which only this encoder accepts, so the two encoders never give the same bytes.
        encoded = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_refuse).encode()
    # We set a limit, since that of the stack depends on the caller. The count of brackets is as in `limit_depth`.
    if encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH and not is_shallow(value):
        raise ValueError("too deep")
    return encoded


def normalize_arguments(arguments: object) -> bytes | str:
    """Return a tool call's arguments as canonical bytes, or as the string if it is not JSON. Empty ones are `{}`."""
    if arguments is None or arguments == "":
        return b"{}"
    if not isinstance(arguments, str):
        return encode_canonical(arguments)
    try:
        return encode_canonical(load_json(arguments))
    except JSON_ERRORS:
        return arguments


def normalize_object(value: object, *dropped: str) -> bytes:
    """Return the canonical bytes of a whole part or item, without its own `dropped` members."""
    pruned = drop_markers(value)
    if isinstance(pruned, dict):
        for name in dropped:
            pruned.pop(name, None)
    return encode_canonical(pruned)


def drop_markers(value: object, depth: int = MAX_DEPTH) -> object:
    """Return the value without cache markers and null members at any depth, except inside a tool's input.

    Raises ValueError for a value deeper than `depth`.
    """
    if not depth:
        raise ValueError("too deep")
    if isinstance(value, Mapping):
        return {
            key: member if key in _OPAQUE else drop_markers(member, depth - 1)
            for key, member in value.items()
            if member is not None and key != _MARKER
        }
    return [drop_markers(element, depth - 1) for element in value] if isinstance(value, list) else value


def _refuse(value: object) -> NoReturn:
    # a number that does not fit a float beside a lone surrogate: no encoder here can write both
    raise ValueError(f"no encoding for {value!r}")


def format_json(value: object) -> str:
    """Format a value of `load_json` as compact JSON for a model or a person to read."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_format_raw)


def _format_raw(literal: msgspec.Raw) -> str:
    return bytes(literal).decode()


def encode_text(text: str) -> bytes:
    """Encode a text as a JSON string."""
    try:
        return _encode(text)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(text).encode()


# Editing raw bytes. Only white space between members and elements may be lost. What cannot be split to the last byte is
# returned unchanged.


def change_members(raw: bytes, change: Change) -> bytes:
    """Return an object with each member's value replaced by `change(name, value)`; None removes the member."""
    split = split_body(raw, "")
    if split is None:
        return raw
    pairs = []
    at = 0
    for name, span in split.members.items():
        value = change(name, raw[span.start : span.end])
        if value is not None:
            pairs.append(raw[at : span.start].lstrip(_GAP) + value)
        at = span.end
    return b"{%b}" % b",".join(pairs)


def set_member(raw: bytes, name: str, value: bytes) -> bytes:
    """Return an object with a member set to a raw value, in its place or at the end."""
    split = split_body(raw, "")
    if split is None:
        return raw
    if name in split.members:
        span = split.members[name]
        return raw[: span.start] + value + raw[span.end :]
    comma = b"," if split.members else b""
    return b"%b%b%b:%b}" % (raw[: raw.rindex(b"}")].rstrip(), comma, encode_text(name), value)


def read_member(raw: bytes, name: str) -> bytes:
    """Return the raw value of a member, empty if there is none. Of several with one name the last counts."""
    try:
        return bytes(_read_members(raw).get(name, b""))
    except JSON_ERRORS:  # as in `split_body`, which says more than is wanted here
        split = split_body(raw, "")
        return split.member(name) if split else b""


def list_elements(raw: bytes) -> list[bytes]:
    """Return the raw elements of an array; an empty list for anything else."""
    try:
        return list(map(bytes, _read_elements(raw)))
    except JSON_ERRORS:
        split = split_body(b'{"":%b}' % raw, "", len(raw))
        return [split.content[span.start : span.end] for span in split.items] if split else []


def join_array(elements: Iterable[bytes]) -> bytes:
    """Return an array of raw elements."""
    return b"[%b]" % b",".join(elements)
