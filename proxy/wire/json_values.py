"""JSON that others sent: reading it whatever its shape, comparing it, and editing its raw bytes.

Three kinds of functions. Parsing is total where it says so: what is not of the expected kind is None or empty, and
nothing raises. The canonical encoding is equal for values that say the same and different for all others. Raw objects
and arrays are edited member by member, so that what is not exchanged keeps its bytes.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import msgspec

from proxy.wire.body import split_body

JSON_ERRORS = (ValueError, RecursionError)
"""What `load_json` and `encode_canonical` raise for text that is not JSON, or nested too deeply."""

# Deeper JSON is passed over: whoever renders a response recurses, and orjson gives up at 254.
MAX_DEPTH = 128

_LARGEST_COUNT = 2**63 - 1  # of SQLite and PostgreSQL
# Marks parts for a cache, and is moved about between requests.
_MARKER = "cache_control"
# Members whose inside is a tool's own: a marker or a null there is data.
_OPAQUE = frozenset({"input", "arguments"})
_GAP = b"{, \t\r\n"

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode

Change = Callable[[str, bytes], bytes | None]


# Parsing


def parse_number(literal: str) -> int | float | msgspec.Raw:
    """Parse a number with a fraction or an exponent; an integer if it is one, for JavaScript writes 1.0 as 1."""
    value = float(literal)
    if value.is_integer():
        return int(value)
    return value if value - value == 0 else msgspec.Raw(literal.encode())


_decode = msgspec.json.Decoder(float_hook=parse_number).decode


def load_json(text: str | bytes) -> object:
    """Return the value of a JSON text. Raises one of JSON_ERRORS where it has none.

    Integers keep all their digits; numbers that no float holds are `msgspec.Raw`.
    """
    try:
        return _decode(text)
    except ValueError:
        # The standard library takes what msgspec refuses: lone surrogates, integers of any length, NaN.
        text = text.decode() if isinstance(text, bytes) else text
        return json.loads(text, parse_float=parse_number, parse_constant=lambda name: msgspec.Raw(name.encode()))


def load_lenient(raw: bytes) -> object:
    """Return the value of a JSON text; the text itself where it is none, or is nested too deeply."""
    try:
        value = load_json(raw)
    except JSON_ERRORS:
        return raw.decode(errors="replace")
    return limit_depth(value, raw)


def limit_depth(value: object, raw: bytes) -> object:
    """Return the value of a JSON text; the text itself where that is nested too deeply."""
    # Brackets in strings count too, so only the few texts with many are walked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and not is_shallow(value):
        return raw.decode(errors="replace")
    return value


def read_object(text: str) -> dict[str, object] | None:
    """Return the JSON object in a text, every digit of its integers kept; None where there is none, or one too deep."""
    try:
        value = msgspec.json.decode(text)
    except JSON_ERRORS:
        try:  # the standard library takes lone surrogates, NaN, numbers of any size and raw line ends
            value = json.loads(text, strict=False)
        except JSON_ERRORS:
            return None
    if not isinstance(value, dict):
        return None
    # Brackets inside strings count too, so only the few texts with many are walked.
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_shallow(value):
        return None
    return value


def is_shallow(value: object) -> bool:
    """Return whether nothing in a value is deeper than MAX_DEPTH."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        members = [member for outer in level for member in (outer.values() if isinstance(outer, dict) else outer)]
        level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return True
    return False


def read_objects(value: object) -> list[dict[str, object]]:
    """Return the objects in a list, none where it is no list."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def read_text(value: object) -> str:
    """Return a string, an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def read_count(value: object) -> int | None:
    """Return a number of tokens that a log can hold; None where it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


# Canonical encoding


def encode_canonical(value: object) -> bytes:
    """Encode a value of `load_json` so that what a parse and a re-serialisation may change does not show.

    That is key order, spaces, escapes and `1.0` for `1`, and nothing more: lone surrogates and numbers that no float
    holds stay what they are. Raises one of JSON_ERRORS.
    """
    try:
        encoded = _encode_sorted(value)
    except UnicodeEncodeError:
        # Has a lone surrogate, which only this encoding can have; so the two never give the same bytes.
        encoded = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_refuse).encode()
    # A limit of our own, since the stack's depends on who calls. Brackets in strings count too, so few are walked.
    if encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH and not is_shallow(value):
        raise ValueError("too deep")
    return encoded


def normalize_arguments(arguments: object) -> bytes | str:
    """Return a tool call's arguments as canonical bytes; the string itself where it is not JSON. Nothing is `{}`."""
    if arguments is None or arguments == "":
        return b"{}"
    if not isinstance(arguments, str):
        return encode_canonical(arguments)
    try:
        return encode_canonical(load_json(arguments))
    except JSON_ERRORS:
        return arguments


def normalize_object(value: object, *dropped: str) -> bytes:
    """Return the canonical bytes of a part or item as a whole, without the `dropped` members of its own."""
    pruned = drop_markers(value)
    if isinstance(pruned, dict):
        for name in dropped:
            pruned.pop(name, None)
    return encode_canonical(pruned)


def drop_markers(value: object, depth: int = MAX_DEPTH) -> object:
    """Return the value without cache markers and null members at any level, except inside a tool's input.

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
    # a number that no float holds beside a lone surrogate: no encoder here can write both
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


# Editing raw bytes: only the white space between members and elements may go, and what cannot be split to the last byte
# stays whole.


def change_members(raw: bytes, change: Change) -> bytes:
    """Return an object with the value that `change(name, value)` gives for each member; None leaves the member out."""
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
    """Return an object with a member of this raw value, in its place or at the end."""
    split = split_body(raw, "")
    if split is None:
        return raw
    if name in split.members:
        span = split.members[name]
        return raw[: span.start] + value + raw[span.end :]
    comma = b"," if split.members else b""
    return b"%b%b%b:%b}" % (raw[: raw.rindex(b"}")].rstrip(), comma, encode_text(name), value)


def read_member(raw: bytes, name: str) -> bytes:
    """Return the raw value of a member, empty where there is none."""
    split = split_body(raw, "")
    return split.member(name) if split else b""


def list_elements(raw: bytes) -> list[bytes]:
    """Return the raw elements of an array, none where it is no array."""
    split = split_body(b'{"":%b}' % raw, "", len(raw))
    return [split.content[span.start : span.end] for span in split.items] if split else []


def join_array(elements: Iterable[bytes]) -> bytes:
    """Return an array of raw elements."""
    return b"[%b]" % b",".join(elements)
