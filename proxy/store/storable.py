"""What every store can hold. Rule: a value that no column takes is replaced here, so that it never costs a record.

Model names, targets and counts come from outside: a lone surrogate has no UTF-8, 10**30 tokens have no column.
"""

from msgspec.structs import replace

from proxy.model.epoch import Epoch, Original
from proxy.model.exchange import Usage
from proxy.model.plan import Plan
from proxy.model.summary import Summary

_LARGEST = 2**63 - 1


def fit_text(text: str) -> str:
    """The text with every lone surrogate replaced by a question mark."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def fit_count(count: int | None) -> int | None:
    """The count, held within 64 bits."""
    if count is None:
        return None
    return max(-_LARGEST, min(count, _LARGEST))


def fit_usage(usage: Usage | None) -> Usage | None:
    """The usage with every count fitted; None where it says nothing."""
    if usage is None or usage == Usage():
        return None
    return Usage(
        fit_count(usage.input),
        fit_count(usage.output),
        fit_count(usage.cached),
        fit_count(usage.written),
        fit_count(usage.reasoning),
    )


def fit_epoch(epoch: Epoch) -> Epoch:
    """The epoch with the name of its view fitted: a model's name is the client's."""
    return epoch if epoch.view.isascii() else replace(epoch, view=fit_text(epoch.view))


def fit_original(original: Original) -> Original:
    """The original with its names fitted."""
    return replace(original, id=fit_text(original.id), wire=fit_text(original.wire))


def fit_plan(plan: Plan) -> Plan:
    """The plan with its texts fitted."""
    return replace(plan, view=fit_text(plan.view), reason=fit_text(plan.reason))


def fit_summary(summary: Summary) -> Summary:
    """The summary with its texts and names fitted."""
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
    )
