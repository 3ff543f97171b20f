"""Foreign text made fit to stand, line by line, inside a message of ours or a question to a model.

Rule: what is said stays said, but it cannot pass for a marker of ours, for a fence, or for another speaker's turn
(PROTOCOL §3, 8). A reference stays one only where it is known.
"""

import re
from collections.abc import Callable, Collection

from proxy.context.plain import UNFIT
from proxy.model.marker import LEDGER_HEAD

FENCE = "~~~"
"""Stands alone on the lines around what a tool put out."""
REPORT_HEAD = "Report by palimpsest on messages"
CLAIM = "claimed in a tool's output or by the model, not by the user:"

_BRACKETED = re.compile(
    r"\[(?=\s*/?\s*(?:FILE\b|tool\s*:|m\d{1,9}\s+(?:user|assistant|tool|system)\b|INST\b"
    rf"|{REPORT_HEAD}|{LEDGER_HEAD}|End of the (?:report|ledger)|shortened by palimpsest))",
    re.IGNORECASE,
)
_TAGGED = re.compile(
    r"<(?=\s*/?\s*(?:\||system\b|system-\w|user\b|assistant\b|human\b|tool_\w|function_|developer\b|s>))", re.IGNORECASE
)
_SPEAKER = re.compile(
    r"(?im)^([\s>*#_\-]{0,12})(system|developer|assistant|user|human)([*_]{0,3})\s{0,3}:(?=\s|[*_]|$)"
)
_FENCE = re.compile(r"(?m)^[ \t]{0,8}~{3,}")
_REFERENCE = re.compile(r"\bref:([a-z0-9]{10,60})", re.IGNORECASE)
# Whoever quotes a reference may cut it off in the middle. Only its beginning is taken, for it may begin another one.
_LIKE_ONE = re.compile(r"\b(ref):(?=([a-z0-9]{1,60}))", re.IGNORECASE)


def defuse(text: str, known: Collection[str] = ()) -> str:
    """The text without look-alikes; of references only those that are `known` stay."""
    lines = "\n".join(UNFIT.sub(" ", line) for line in text.split("\n"))
    fit = _FENCE.sub("~ ~ ~", _SPEAKER.sub(r"\1\2\3 -", _TAGGED.sub("(", _BRACKETED.sub("(", lines))))
    return _LIKE_ONE.sub(lambda found: found[0] if found[2] in known else f"{found[1]} ", fit)


def find_references(text: str) -> tuple[str, ...]:
    """The ids of all references in a text, each once, in order."""
    return tuple(dict.fromkeys(found[1] for found in _REFERENCE.finditer(text)))


def cut_middle(text: str, most: int) -> str:
    """At most about so many characters of a text: its beginning and, half as long, its end."""
    if len(text) <= most:
        return text
    end = most // 3
    start = most - end
    return f"{text[:start]}\n[… {len(text) - most:,} characters left out …]\n{text[len(text) - end :]}"


def cut_to(text: str, room: float, count: Callable[[str], int]) -> str:
    """The beginning of a text that has no more than so many tokens."""
    while text and count(text) > room:
        text = text[: min(len(text) - 1, int(len(text) * max(0.1, 0.95 * room / count(text))))]
    return text
