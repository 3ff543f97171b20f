"""The members of a request beside its messages, as far as the validity of a rewritten one hangs on them.

Rule: as with messages, only what the client's own request did not have is a fault (PROTOCOL §3, 2 and 9).
"""

from collections.abc import Iterator
from itertools import chain

from proxy.wire.body import SplitBody
from proxy.wire.canonical import REFUSED, load
from proxy.wire.shaping import read_markers
from proxy.wire.validity import Rules

_NEED_TOOLS = ("tool_choice", "parallel_tool_calls")


def read_rules(wire: str, body: SplitBody, *, is_alternating: bool = False) -> Rules:
    """What a request demands of its messages; `is_alternating` is what is known of its upstream."""
    marked = (_load(body, "tools"), _load(body, "system"), [{"cache_control": _load(body, "cache_control")}])
    return Rules(
        is_itemised=wire == "responses",
        is_alternating=is_alternating,
        needs_json=_read_output_format(body) == "json_object",
        markers=tuple(chain.from_iterable(map(read_markers, marked))),
    )


def find_frame_faults(before: SplitBody, after: SplitBody) -> tuple[str, ...]:
    """What a rewritten request's members have wrong that the client's had not, each in a few words."""
    if all(before.member(name) == after.member(name) for name in _LOOKED_AT):
        return ()
    known = set(_judge(before))
    return tuple(fault for fault in _judge(after) if fault not in known)


def _judge(body: SplitBody) -> Iterator[str]:
    tools = _load(body, "tools")
    if tools == []:
        yield "tools is empty"
    for name in _NEED_TOOLS:
        if not tools and _load(body, name) is not None:
            yield f"{name} without tools"
    if _load(body, "stream_options") is not None and _load(body, "stream") is not True:
        yield "stream_options without stream"


_LOOKED_AT = ("tools", *_NEED_TOOLS, "stream_options", "stream")


def _read_output_format(body: SplitBody) -> object:
    """The type of the output format: `response_format`, on the Responses wire under `text`."""
    text = _load(body, "text")
    asked = text.get("format") if isinstance(text, dict) else _load(body, "response_format")
    return asked.get("type") if isinstance(asked, dict) else None


def _load(body: SplitBody, name: str) -> object:
    """A member's value; None where it is absent, null or unreadable."""
    try:
        return load(body.member(name) or b"null")
    except REFUSED:
        return None
