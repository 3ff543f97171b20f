"""What the members of a request beside its messages, and its newest messages, say of how it may be managed."""

import re
from collections.abc import Callable, Mapping
from itertools import chain

from proxy.model.marker import LEDGER_HEAD
from proxy.wire.body import SplitBody
from proxy.wire.json_values import JSON_ERRORS, load_json, load_lenient, read_objects, read_text
from proxy.wire.shaping import read_markers
from proxy.wire.telling import read_told
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
        return load_json(body.member(name))
    except JSON_ERRORS:
        return None


_SET = bool  # anything but null, false, and what is empty

_MEMBERS: Mapping[str, Callable[[object], bool]] = {
    "context_management": _SET,
    "truncation": lambda value: value == "auto",
    "transforms": _SET,
    "cached_content": _SET,
    "cachedContent": _SET,
    "background": _SET,
}
_RESPONSES_MEMBERS: Mapping[str, Callable[[object], bool]] = {
    **_MEMBERS,
    "previous_response_id": _SET,
    "conversation": _SET,
    "store": lambda value: value is True,
}
_OUR_SIGNS = (LEDGER_HEAD.encode(), b'"[tool: ', b'"[FILE: ')
_SIGNS = (*_OUR_SIGNS, b'"compaction', b'"context_compaction"')
_COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
# As `context/references` writes them.
_PRUNED = re.compile(r"\[tool: [^\n]* — output pruned; completed[^\n]*; ref:[a-z2-7]{10}\]")
_FILE = re.compile(r"\[FILE: [^\n]*\]\nref:[a-z2-7]{10} · ")


def find_management(wire: str, body: SplitBody, known: int = 0) -> str:
    """What manages the context of a request already, in a few words; empty where nothing does.

    The first `known` items are passed over: they were looked at with an earlier request, and nothing was found.
    """
    telling = _RESPONSES_MEMBERS if wire == "responses" else _MEMBERS
    for name, manages in telling.items():
        if name in body.members and manages(_load(body, name)):
            return f"the request has {name}"
    if known >= len(body.items):
        return ""
    start, end = body.items[known].start, body.items[-1].end
    # Chat Completions have no compaction, and every word to look for is half a millisecond in a long first request.
    signs = _OUR_SIGNS if wire == "chat_completions" else _SIGNS
    found = [at for sign in signs if (at := body.content.find(sign, start, end)) >= 0]
    return _look_closer(wire, body, known, min(found)) if found else ""


def _look_closer(wire: str, body: SplitBody, known: int, at: int) -> str:
    """The items from the first with a sign on."""
    for span in body.items[known:]:
        raw = body.content[span.start : span.end]
        if span.end > at and any(sign in raw for sign in _SIGNS) and (sign := _find_sign(wire, raw)):
            return sign
    return ""


def _find_sign(wire: str, raw: bytes) -> str:
    told = read_told(wire, raw)
    if told.role in ("user", "assistant") and LEDGER_HEAD in told.text.partition("\n")[0]:
        return "the messages have a ledger of palimpsest"
    if told.role in ("user", "tool") and (_PRUNED.match(told.text) or _FILE.match(told.text)):
        return "the messages have references of palimpsest"
    return "the messages have a compaction" if _is_compacted(load_lenient(raw)) else ""


def _is_compacted(value: object) -> bool:
    """Whether an item is a provider's own compaction, or a message has one."""
    parts = [value, *read_objects(value.get("content"))] if isinstance(value, dict) else []
    return any(read_text(part.get("type")) in _COMPACTIONS for part in parts)
