"""What every store holds summaries to. Rule: one says which messages it stands for, all of them and nothing else."""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.model.summary import Summary


class Stretch(NamedTuple):
    """Which messages of a conversation, in whose format."""

    wire: str
    start: int
    stop: int


class Identity(NamedTuple):
    """What is the same where a summary comes again under its id."""

    stretch: Stretch
    last: bytes
    kind: str
    level: int
    text_digest: bytes


def find_stretch(summary: Summary) -> Stretch:
    """The messages that it stands for."""
    return Stretch(summary.wire, summary.start, summary.stop)


def find_flaw(
    kind: str, stretch: Stretch, messages: int, parents: Sequence[Stretch], superseded: Sequence[Stretch]
) -> str:
    """What is wrong with what a summary names, so many messages among it; empty for nothing."""
    if not 0 <= stretch.start < stretch.stop:
        return "it stands for no messages"
    if any(each.wire != stretch.wire for each in (*parents, *superseded)):
        return "what it names is in another format"
    if kind == "leaf":
        is_whole = not parents and messages == stretch.stop - stretch.start
    else:
        is_whole = bool(parents) and not messages and _is_covered(stretch, parents)
    if not is_whole:
        return "what it was made of is not what it stands for"
    if any(each.start < stretch.start or stretch.stop < each.stop for each in superseded):
        return "what it stands in place of is not within its span"
    return ""


def _is_covered(stretch: Stretch, parents: Sequence[Stretch]) -> bool:
    begins, ends = [each.start for each in parents], [each.stop for each in parents]
    return [stretch.start, *ends] == [*begins, stretch.stop] and all(begin < end for _, begin, end in parents)
