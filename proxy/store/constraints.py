"""Constraints on stored values: texts and counts that fit their columns, and summaries that cover their spans.

Model names, targets and counts come from outside: a lone surrogate has no UTF-8 form, and 10**30 tokens fit no column.
Such values are replaced here, so that they never prevent a record from being stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from proxy.model.epoch import Epoch, Original, Plan, Recalled, Summary
from proxy.model.exchange import Usage
from proxy.model.memory import Remembered

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


def fit_epoch(epoch: Epoch) -> Epoch:
    """Return the epoch with its view fitted, which is a model name from the client."""
    return epoch if epoch.view.isascii() else replace(epoch, view=fit_text(epoch.view))


def fit_recalled(recalled: Recalled) -> Recalled:
    """Return the rounds of an answer with their view fitted."""
    return recalled if recalled.view.isascii() else replace(recalled, view=fit_text(recalled.view))


def fit_remembered(remembered: Remembered) -> Remembered:
    """Return what was remembered with its texts fitted."""
    facts = tuple(
        replace(each, text=fit_text(each.text), tags=tuple(map(fit_text, each.tags)), replaces=fit_text(each.replaces))
        for each in remembered.facts
    )
    tags = tuple(map(fit_text, remembered.tags))
    return replace(remembered, summary=fit_text(remembered.summary), tags=tags, facts=facts)


def fit_original(original: Original) -> Original:
    """Return the original with its names fitted."""
    return replace(original, id=fit_text(original.id), wire=fit_text(original.wire))


def fit_plan(plan: Plan) -> Plan:
    """Return the plan with its texts fitted."""
    return replace(plan, view=fit_text(plan.view), reason=fit_text(plan.reason))


def fit_summary(summary: Summary) -> Summary:
    """Return the summary with its texts and names fitted."""
    return replace(
        summary,
        id=fit_text(summary.id),
        wire=fit_text(summary.wire),
        text=fit_text(summary.text),
        model=fit_text(summary.model),
        reason=fit_text(summary.reason),
        calls=tuple(map(fit_text, summary.calls)),
        parents=tuple(map(fit_text, summary.parents)),
        supersedes=tuple(map(fit_text, summary.supersedes)),
        files=tuple(map(fit_text, summary.files)),
        facts=tuple(map(fit_text, summary.facts)),
    )


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
