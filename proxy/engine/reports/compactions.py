"""What came of compacting a session by hand, as JSON. Rule: tokens are a whole request's, as its model counts."""

from typing import Any, NamedTuple

from proxy.model.epoch import Epoch
from proxy.model.summary import Summary

Document = dict[str, Any]


class Compaction(NamedTuple):
    """The epoch that was opened and the summaries that were made, None and none where there was nothing to be had.

    `tokens` are those of the newest request, as it would go out without the epoch. `calls` are the exchanges in which
    models were asked, `cost` is in tokens of uncached input, `reason` says why it is no better than it is.
    """

    session: str
    epoch: Epoch | None
    summaries: tuple[Summary, ...]
    tokens: int
    ms: int
    calls: tuple[str, ...]
    cost: float
    reason: str


def describe_compaction(found: Compaction) -> Document:
    """A compaction; `summary` is the one that was made last."""
    last = found.summaries[-1] if found.summaries else None
    return {
        "session": found.session,
        "epoch": found.epoch.id if found.epoch else None,
        "summary": last.id if last else None,
        "level": last.level if last else None,
        "kind": last.kind if last else None,
        "messages_covered": count_covered(found.summaries),
        "tokens_before": found.epoch.tokens_before if found.epoch else found.tokens,
        "tokens_after": found.epoch.tokens_after if found.epoch else found.tokens,
        "ms": found.ms,
        "calls": list(found.calls),
        "cost_tokens": round(found.cost),
        "reason": found.reason,
    }


def count_covered(summaries: tuple[Summary, ...]) -> int:
    """How many messages these are of, each counted once."""
    return len({place for each in summaries for place in range(each.start, each.stop)})
