"""Constraints on stored values: texts and counts that fit their columns, and summaries that cover their spans.

Model names, targets and counts come from outside: a lone surrogate has no UTF-8 form, and 10**30 tokens fit no column.
Such values are replaced here, so that they never prevent a record from being stored.
"""

from collections.abc import Sequence
from operator import is_not
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from proxy.model.epoch import Summary
from proxy.model.exchange import Usage

Kind = TypeVar("Kind", bound=Struct)

_LARGEST = 2**63 - 1


def fit_text(text: str) -> str:
    """Return the text with every lone surrogate replaced by a question mark."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def fit_usage(usage: Usage | None) -> Usage | None:
    """Return the usage with every count clamped to 64 bits, or None if it is empty."""
    if usage is None or usage == Usage():
        return None
    counts = (usage.input, usage.output, usage.cached, usage.written, usage.reasoning)
    return Usage(*[None if count is None else max(-_LARGEST, min(count, _LARGEST)) for count in counts])


def fit_texts(record: Kind) -> Kind:
    """Return a record with all its texts fitted, those in its tuples and parts included; itself if they fit."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    fitted = {name: found for name, value in values.items() if (found := _fit(value)) is not value}
    return replace(record, **fitted) if fitted else record


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return fit_text(value)
    if isinstance(value, Struct):
        return fit_texts(value)
    if isinstance(value, tuple):
        fitted = tuple(map(_fit, value))
        return fitted if any(map(is_not, fitted, value)) else value
    return value


class MessageSpan(NamedTuple):
    """Messages `start` up to but not including `stop` of a conversation, in the format of a wire."""

    wire: str
    start: int
    stop: int


def span_of(summary: Summary) -> MessageSpan:
    """Return the messages that a summary stands for."""
    return MessageSpan(summary.wire, summary.start, summary.stop)


class SummaryIdentity(NamedTuple):
    """The values that must be equal if a summary is appended again under the same id."""

    span: MessageSpan
    last: bytes
    kind: str
    level: int
    text_digest: bytes


def find_summary_fault(
    kind: str, span: MessageSpan, messages: int, parents: Sequence[MessageSpan], superseded: Sequence[MessageSpan]
) -> str:
    """Return what is wrong with a summary of `messages` messages and of these parents, or an empty text.

    A leaf is made of all messages of its span only; any other summary is made of parents that cover it without a gap.
    """
    if not 0 <= span.start < span.stop:
        return "it stands for no messages"
    if any(each.wire != span.wire for each in (*parents, *superseded)):
        return "what it names is in another format"
    if kind == "leaf":
        is_whole = not parents and messages == span.stop - span.start
    else:
        is_whole = bool(parents) and not messages and _covers(parents, span)
    if not is_whole:
        return "what it was made of is not what it stands for"
    if any(each.start < span.start or span.stop < each.stop for each in superseded):
        return "what it stands in place of is not within its span"
    return ""


def _covers(parents: Sequence[MessageSpan], span: MessageSpan) -> bool:
    starts, stops = [each.start for each in parents], [each.stop for each in parents]
    return [span.start, *stops] == [*starts, span.stop] and all(start < stop for _, start, stop in parents)
