"""Server-sent events, read from recorded bytes (WHATWG HTML, "Interpreting an event stream").

Rule: lenient and total. Any bytes give some events; CR, LF and CRLF end lines, comments and unknown fields are passed
over, and a last event without its blank line counts, since it is evidence of what was sent.
"""

import re
from collections.abc import Iterator

import msgspec

# Beginnings of a line, for end markers. The field's name stands before the look-behind, not after it, because only a
# pattern that begins with letters lets `re` skip through a chunk: 0.3 µs instead of 5.8 for 326 bytes.
DATA_LINE = rb"data:(?<![^\r\n]data:) ?"
EVENT_LINE = rb"event:(?<![^\r\n]event:) ?"
TYPED_DATA_LINE = DATA_LINE + rb'\{[ \t]{0,4}"type"[ \t]{0,4}:[ \t]{0,4}"'

# No end marker is longer, the line end before it included. Who searches a stream in pieces must put as many of the last
# bytes before each piece, beginning with b"\n" before the first, and search from 1: at 0 any byte looks like a line's
# first.
MARKER_REACH = 64

EVENT_END = re.compile(rb"\n\n|\r\r|\r\n\r\n|\n\r\n")


class ServerEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: its `event:` name (empty if none) and its `data:` lines joined by newlines."""

    name: str
    data: str


def read_events(stream: bytes) -> Iterator[ServerEvent]:
    """The events in a stream; events without data are none."""
    name, data = "", list[str]()
    # Lines are split as bytes: `str.splitlines` would also split at U+2028, which JSON strings may contain.
    for line in stream.removeprefix(b"\xef\xbb\xbf").splitlines():
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")
    if data:
        yield ServerEvent(name, "\n".join(data))
