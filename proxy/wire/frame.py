"""The members of a request beside its messages, as far as the validity of a rewritten one hangs on them.

Rule: they go out as the client sent them; what cannot be read demands nothing.
"""

from itertools import chain

from proxy.wire.body import SplitBody
from proxy.wire.canonical import REFUSED, load
from proxy.wire.shaping import read_markers
from proxy.wire.validity import Rules

_MARKER = "cache_control"


def read_rules(wire: str, body: SplitBody, leading: int = 0, *, is_alternating: bool = False) -> Rules:
    """What a request demands of its messages behind the `leading` ones, which always stay.

    `is_alternating` is what is known of its upstream.
    """
    return Rules(
        is_itemised=wire == "responses",
        is_alternating=is_alternating,
        needs_json=_read_output_format(body) == "json_object" and not _say_json(body, leading),
        markers=tuple(chain(_read_marked(body, "tools"), _read_marked(body, "system"), _read_own(body))),
    )


def _read_output_format(body: SplitBody) -> object:
    """The type of the output format: `response_format`, on the Responses wire under `text`."""
    text = _load(body, "text")
    asked = text.get("format") if isinstance(text, dict) else _load(body, "response_format")
    return asked.get("type") if isinstance(asked, dict) else None


def _say_json(body: SplitBody, leading: int) -> bool:
    """Whether one of the leading messages has the word that the output format wants said."""
    return any(b"json" in body.content[span.start : span.end].lower() for span in body.items[:leading])


def _read_marked(body: SplitBody, name: str) -> tuple[str, ...]:
    """The markers in a member, which is read only where there may be some: tools are long, and come with every request.

    A name may be spelt with escapes.
    """
    raw = body.member(name)
    return read_markers(_load(body, name)) if _MARKER.encode() in raw or b"\\u" in raw else ()


def _read_own(body: SplitBody) -> tuple[str, ...]:
    """The marker of the request itself."""
    return read_markers([{_MARKER: _load(body, _MARKER)}]) if _MARKER in body.members else ()


def _load(body: SplitBody, name: str) -> object:
    """A member's value; None where it is absent, null or unreadable."""
    if name not in body.members:
        return None
    try:
        return load(body.member(name))
    except REFUSED:
        return None
