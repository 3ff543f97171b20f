"""The summaries of a session, as JSON and as a tree. Rule: derived from the log's rows; each is told once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from proxy.engine.ports import LogReader
from proxy.engine.reports.finding import find_session
from proxy.model.errors import NotFound
from proxy.model.summary import Summary

Document = dict[str, Any]
Standing = Literal["live", "parent", "superseded"]
"""Nothing stands in its place; a condensed one was made of it; a better one stands in its place."""

_FIELDS = (
    *("id", "session", "kind", "level", "is_provisional", "start", "stop", "tokens", "covered", "parents"),
    *("supersedes", "files", "model", "reason", "exchange", "calls", "made_ms", "text"),
)
_NAMED_AT_MOST = 5


class SummaryNode(NamedTuple):
    """A summary in its tree: how many are above it, and how it stands to the one above."""

    summary: Summary
    depth: int
    standing: Standing


async def load_summaries(log: LogReader, prefix: str) -> Sequence[Summary]:
    """All summaries of the session whose id begins so, oldest first. Raises NotFound."""
    return await log.list_summaries(await find_session(log, prefix))


async def load_summary(log: LogReader, prefix: str, name: str) -> Document:
    """One of them, given by its id, with or without `ref:`. Raises NotFound, naming the newest there are."""
    summaries = await load_summaries(log, prefix)
    for document in describe_summaries(summaries):
        if document["id"] == name.strip().lower().removeprefix("ref:"):
            return document
    newest = ", ".join(summary.id for summary in summaries[: -_NAMED_AT_MOST - 1 : -1])
    there = f"the newest are {newest}" if newest else "it has none"
    raise NotFound(f"this session has no summary {name[:40]!r}; {there}")


def describe_summaries(summaries: Sequence[Summary]) -> list[Document]:
    """Summaries as documents; `is_live` where no other of them was made of it or stands in its place."""
    replaced = _list_replaced(summaries)
    return [
        {name: getattr(summary, name) for name in _FIELDS} | {"is_live": summary.id not in replaced}
        for summary in summaries
    ]


def order_nodes(summaries: Sequence[Summary]) -> Iterator[SummaryNode]:
    """Those that nothing stands in place of, in the order of their messages, each before what it stands on."""
    known, replaced = {summary.id: summary for summary in summaries}, _list_replaced(summaries)
    roots = [SummaryNode(summary, 0, "live") for summary in _sort(summaries) if summary.id not in replaced]
    seen: set[str] = set()
    waiting = roots[::-1]
    while waiting:
        node = waiting.pop()
        if node.summary.id not in seen:
            seen.add(node.summary.id)
            yield node
            waiting += reversed(_list_below(node, known))


def _list_below(node: SummaryNode, known: dict[str, Summary]) -> list[SummaryNode]:
    """Those of the session that it was made of, then those that it stands in place of."""
    summary, depth = node.summary, node.depth + 1
    return [
        *[SummaryNode(known[name], depth, "parent") for name in summary.parents if name in known],
        *[SummaryNode(known[name], depth, "superseded") for name in summary.supersedes if name in known],
    ]


def _list_replaced(summaries: Iterable[Summary]) -> set[str]:
    return {name for summary in summaries for name in (*summary.parents, *summary.supersedes)}


def _sort(summaries: Iterable[Summary]) -> list[Summary]:
    return sorted(summaries, key=lambda summary: (summary.start, summary.stop))
