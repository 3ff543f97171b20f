"""What is known of a managed context, as JSON: plans, epochs, summaries, compactions, reverts, pins and originals."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.context.budget import bound_tokens
from proxy.context.pricing import RevertPrice
from proxy.context.references import PAGE, write_original
from proxy.engine.ports import LogReader
from proxy.engine.reports.lookup import find_session
from proxy.model.epoch import Epoch
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.plan import Edit, Kept, Plan, Replaced
from proxy.model.summary import Summary
from proxy.wire.telling import read_told

Document = dict[str, Any]

_edits = msgspec.json.Decoder(tuple[Edit, ...])
_PLAN_FIELDS = ("rung", "epoch", "pressure", "reason", "tokens_client", "tokens_upstream", "usable", "owed", "saving")
_EPOCH_FIELDS = (*("id", "view", "parent", "why", "exchange", "opened_ms", "depth", "tokens_before", "tokens_after"),)


def describe_plan(plan: Plan | None) -> Document | None:
    """What was decided for a round; `saving` and `owed` are in tokens of uncached input, the former may be negative."""
    return None if plan is None else {name: getattr(plan, name) for name in _PLAN_FIELDS}


def find_bound(row: ExchangeRow, request: bytes) -> int | None:
    """More tokens than a request has, where nothing of it was counted; None where it was, or where none can tell."""
    if row.kind != "managed" or row.is_capped or any(is_counted(each.plan) for each in row.rounds):
        return None
    return bound_tokens(request)


def is_counted(plan: Plan | None) -> bool:
    """Whether both its tokens are known."""
    return plan is not None and plan.tokens_client is not None and plan.tokens_upstream is not None


async def list_epochs(log: LogReader, prefix: str) -> list[Document]:
    """The epochs of the session whose id begins so, the oldest first. Raises NotFound."""
    epochs = await log.list_epochs(await find_session(log, prefix))
    return [describe_epoch(epoch, n) for n, epoch in enumerate(epochs, 1)]


async def load_epoch(log: LogReader, prefix: str, n: int) -> Document:
    """The n-th epoch of that session, with all it sends. Raises NotFound."""
    session = await find_session(log, prefix)
    try:
        epoch = await log.load_epoch(session, n)
    except NotFound as error:
        count = len(await log.list_epochs(session))
        raise NotFound(f"{error}; it has {count}, counted from 1") from error
    return describe_epoch(epoch, n) | {
        "through": epoch.through.hex(),
        "edits": [describe_edit(edit) for edit in read_edits(epoch)],
        "rendered": [msgspec.Raw(message) for message in epoch.rendered],
    }


def describe_epoch(epoch: Epoch, n: int) -> Document:
    """An epoch as in a listing."""
    return {"n": n} | {name: getattr(epoch, name) for name in _EPOCH_FIELDS} | {"references": list_references(epoch)}


def list_references(epoch: Epoch) -> list[Document]:
    """What its references stand for: messages from `start` up to `stop`, from a character of their text on."""
    return [
        {"id": each.id, "start": each.place, "stop": each.place + len(each.digests), "offset": each.offset}
        for each in epoch.originals
    ]


def read_edits(epoch: Epoch) -> Sequence[Edit]:
    """An epoch's edits; none where they were erased."""
    return _edits.decode(epoch.edits) if epoch.edits else ()


def describe_edit(edit: Edit) -> Document:
    """An edit under the name of its kind."""
    if isinstance(edit, Kept):
        return {"edit": "kept", "place": edit.place}
    if isinstance(edit, Replaced):
        return {"edit": edit.kind, "place": edit.place, "text": edit.text}
    return {"edit": "written", "start": edit.start, "stop": edit.stop, "text": edit.text}


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


_BEGINNING = 200


class Reversion(NamedTuple):
    """A way back: the epoch that holds from then on, and what it costs against what is sent `now`, in tokens."""

    epoch: Epoch
    quote: RevertPrice
    now: int


class Pinned(NamedTuple):
    """A pinned message: its node, and where it was found; no exchange and no bytes where no branch has it."""

    node: bytes
    exchange: ExchangeRow | None = None
    place: int = 0
    raw: bytes = b""
    tokens: int = 0


def describe_reversion(reversion: Reversion, *, is_done: bool) -> Document:
    """A way back, taken or only asked for; no epoch holds where all is sent as it comes (depth 0)."""
    epoch, quote = reversion.epoch, reversion.quote
    return {
        "is_done": is_done,
        "epoch": epoch.id if is_done else None,
        "depth": epoch.depth,
        "tokens_now": reversion.now,
        "tokens_then": quote.tokens,
        "price": {"once": quote.once, "each": quote.each, "unit": "tokens of uncached input"},
        "is_lasting": quote.is_lasting,
    }


def describe_pinned(pinned: Pinned) -> Document:
    """A pinned message, and how its text begins."""
    if pinned.exchange is None:
        return {"node": pinned.node.hex(), "exchange": None, "place": None, "role": None, "text": None, "tokens": None}
    told = read_told(pinned.exchange.wire, pinned.raw)
    return {
        "node": pinned.node.hex(),
        "exchange": pinned.exchange.n,
        "place": pinned.place,
        "role": told.role,
        "text": told.text[:_BEGINNING],
        "tokens": pinned.tokens,
    }


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


_ID = re.compile(r"(?:ref:)?([a-z0-9]{10})")
_WHERE = "`palimpsest diff SESSION N` and GET /-/api/sessions/SESSION/epochs/N name those there are"


class OriginalPage(NamedTuple):
    """Part of an original, or all of it: then it is the only page."""

    reference: str
    session: str
    text: str
    number: int
    pages: int

    @property
    def content(self) -> bytes:
        """As it is given out; a lone surrogate of a message has no bytes, so a question mark stands for it."""
        return self.text.encode("utf-8", "replace")


async def load_page(log: LogReader, reference: str, number: int | None = 1) -> OriginalPage:
    """A page of what a reference stands for, counted from 1; None: all of it. Raises NotFound."""
    found = _ID.fullmatch(reference.strip().lower())
    if found is None:
        raise NotFound(f"{reference[:40]!r} is no reference: one is `ref:` and ten letters and digits; {_WHERE}")
    name = found[1]
    try:
        stored = await log.load_original(name)
    except NotFound as error:
        raise NotFound(f"{error}; {_WHERE}") from error
    text = write_original([read_told(stored.original.wire, raw) for raw in stored.messages])[stored.original.offset :]
    if number is None:
        return OriginalPage(name, stored.session, text, 1, 1)
    count = max(1, -(-len(text) // PAGE))
    if not 1 <= number <= count:
        raise NotFound(f"ref:{name} has {count} page{'s' * (count > 1)}, counted from 1, and no page {number}")
    part = text[(number - 1) * PAGE : number * PAGE]
    if number < count:
        part += (
            f"\n[page {number} of {count} of ref:{name}; the next: `palimpsest expand {name} --page {number + 1}`"
            f" or GET /-/api/refs/{name}?page={number + 1}]\n"
        )
    return OriginalPage(name, stored.session, part, number, count)
