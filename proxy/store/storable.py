"""What every store can hold. Rule: a value that no column takes is replaced here, so that it never costs a record.

Model names, targets and counts come from outside: a lone surrogate has no UTF-8, 10**30 tokens have no column.
"""

from proxy.model.exchange import Usage

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
