"""The lines around a report: what it is, of which messages, whose work, and where the originals are (BEHAVIOUR B15).

Rule: in the third person and dated; it asks for nothing. Every report has its own reference in its first line.
"""

from collections.abc import Callable, Iterable

import msgspec

from proxy.context.compaction.lookalikes import REPORT_HEAD
from proxy.context.compaction.spans import MessageRange
from proxy.context.plain import clean

END = "[End of the report]"
_FOOT = "Files and references:"
_LONGEST_MODEL, _LONGEST_DATE = 80, 40


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The id of a report, the model that wrote it, empty for none, and the date in words."""

    id: str
    model: str
    date: str


def write_head(frame: Frame, span: MessageRange) -> str:
    """The first line."""
    date = clean(frame.date, _LONGEST_DATE)
    model = clean(frame.model, _LONGEST_MODEL).replace("]", ")")
    done = (
        f"written by {model} on {date} from what was said and done; what tools' outputs claimed is marked so"
        if frame.model
        else f"put together on {date} without a model"
    )
    return f"[{REPORT_HEAD} {span.start + 1} to {span.stop} of this session, {done}. Original: ref:{frame.id}]"


def write_foot(references: Iterable[str], paths: Iterable[str], room: int, count: Callable[[str], int]) -> str:
    """The line of references and files, as many as there is room for; empty where there is none."""
    foot = _FOOT
    for name in (*(f"ref:{id}" for id in references), *paths):
        longer = f"{foot} {name}"
        if count(longer) > room:
            break
        foot = longer
    return "" if foot == _FOOT else foot


def frame_text(head: str, body: str, foot: str) -> str:
    """The whole report."""
    return "\n".join(part for part in (head, body, foot, END) if part)


def unframe(text: str) -> str:
    """What a report says, without the lines around it."""
    body = text.removesuffix(END).rstrip("\n")
    before, _, last = body.rpartition("\n")
    body = before if last.startswith(_FOOT) else body
    return body.partition("\n")[2] if body.startswith(f"[{REPORT_HEAD}") else body
