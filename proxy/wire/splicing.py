"""Raw JSON objects and arrays with some of their parts exchanged.

Rule: what is not exchanged keeps its bytes; only the white space between members and elements may go. What cannot be
taken apart to the last byte stays whole.
"""

import json
from collections.abc import Callable, Iterable

import msgspec

from proxy.wire.body import split_body

_GAP = b"{, \t\r\n"
_encode = msgspec.json.Encoder().encode

Change = Callable[[str, bytes], bytes | None]


def change_members(raw: bytes, change: Change) -> bytes:
    """An object with the value that `change(name, value)` gives for each member, None leaves the member out."""
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
    """An object with a member of this value, in its place or at the end."""
    split = split_body(raw, "")
    if split is None:
        return raw
    if name in split.members:
        span = split.members[name]
        return raw[: span.start] + value + raw[span.end :]
    comma = b"," if split.members else b""
    return b"%b%b%b:%b}" % (raw[: raw.rindex(b"}")].rstrip(), comma, spell_text(name), value)


def read_member(raw: bytes, name: str) -> bytes:
    """The raw value of a member, empty where there is none."""
    split = split_body(raw, "")
    return split.member(name) if split else b""


def list_elements(raw: bytes) -> list[bytes]:
    """The raw elements of an array, none where it is no array."""
    split = split_body(b'{"":%b}' % raw, "", len(raw))
    return [split.content[span.start : span.end] for span in split.items] if split else []


def join_array(elements: Iterable[bytes]) -> bytes:
    """An array of raw elements."""
    return b"[%b]" % b",".join(elements)


def spell_text(text: str) -> bytes:
    """A text as a JSON string."""
    try:
        return _encode(text)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(text).encode()
