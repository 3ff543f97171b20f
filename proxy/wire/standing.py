"""Whether a request manages its context already, so that we only watch it (BEHAVIOUR B7).

Rule: only what steers is looked at: some members, and of the messages those that are new and have a suspicious word in
their bytes. A person who quotes a ledger does not turn managing off: ours begin with it.
"""

import re
from collections.abc import Callable, Mapping

from proxy.model.marker import LEDGER_HEAD
from proxy.wire.body import SplitBody
from proxy.wire.canonical import REFUSED, load
from proxy.wire.countable import load_shallow
from proxy.wire.evidence import read_objects, read_text
from proxy.wire.telling import read_told

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
# As `context/reference` writes them.
_PRUNED = re.compile(r"\[tool: [^\n]* — output pruned; completed[^\n]*; ref:[a-z2-7]{10}\]")
_FILE = re.compile(r"\[FILE: [^\n]*\]\nref:[a-z2-7]{10} · ")


def find_management(wire: str, body: SplitBody, known: int = 0) -> str:
    """What manages the context of a request already, in a few words; empty where nothing does.

    The first `known` items are passed over: they were looked at with an earlier request, and nothing was found.
    """
    telling = _RESPONSES_MEMBERS if wire == "responses" else _MEMBERS
    for name, manages in telling.items():
        if name in body.members and manages(_load(body.member(name))):
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
    return "the messages have a compaction" if _is_compacted(load_shallow(raw)) else ""


def _is_compacted(value: object) -> bool:
    """Whether an item is a provider's own compaction, or a message has one."""
    parts = [value, *read_objects(value.get("content"))] if isinstance(value, dict) else []
    return any(read_text(part.get("type")) in _COMPACTIONS for part in parts)


def _load(member: bytes) -> object:
    """The value of a member; None where it is unreadable, which is the upstream's to judge."""
    try:
        return load(member)
    except REFUSED:
        return None
