"""A managed context as JSON: plans, epochs, reverts, pins, manual compactions, summaries, originals by reference."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from proxy.context.budget import bound_tokens
from proxy.context.memory.traces import fit_text
from proxy.engine.compaction.manual import Compaction
from proxy.engine.context.epoch_admin import Pinned, Reversion, RevertDocument
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import cut_page, load_original_text
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import find_session
from proxy.model.epoch import (
    Edit,
    Epoch,
    EpochReason,
    Kept,
    Plan,
    Pressure,
    Reference,
    Replaced,
    Rung,
    SummaryKind,
    SummaryLevel,
)
from proxy.model.errors import Erased, NotFound
from proxy.model.log import ExchangeRow
from proxy.model.results import CompactionResult
from proxy.wire import FORMATS

SummaryStatus = Literal["live", "parent", "superseded"]
"""`live`: no other summary replaces it. `parent`: a condensed summary was made of it. `superseded`: a better one of the
same messages replaces it.
"""

Whole = TypeVar("Whole")

_MAX_NAMED = 5
_MAX_PIN_CHARACTERS = 200
_REFERENCE = re.compile(r"(?:ref:)?([a-z0-9]{10})")
_WHERE = "`palimpsest diff SESSION N` and GET /-/api/sessions/SESSION/epochs/N name those there are"


class PlanDocument(msgspec.Struct, frozen=True):
    """The plan of a round. `saving` and `owed` are in tokens of uncached input.

    A saving is negative where the request cost more than the client's own would have.
    """

    rung: Rung
    epoch: str
    pressure: Pressure
    reason: str
    tokens_client: int | None
    tokens_upstream: int | None
    usable: int
    owed: float
    saving: float | None
    client_read: int | None
    sent_read: int | None


class ReferenceDocument(Reference, array_like=False):
    """A reference to the text of the messages from `start` up to `stop`, from character `offset` on."""

    offset: int


class EditDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an epoch has in place of the message at `place`, or of those from `start` up to `stop`.

    `kept`: the message itself. `tombstone`, `file`, `shortened`, `detached`: the message with another text. `written`:
    a text of ours, such as a ledger or a summary.
    """

    edit: Literal["kept", "tombstone", "file", "shortened", "detached", "written"]
    place: int | None = None
    start: int | None = None
    stop: int | None = None
    text: str | None = None


class WholeEpoch(msgspec.Struct, frozen=True):
    """An epoch with its edits, and the messages that are sent as the client's format has them."""

    n: int
    id: str
    view: str
    parent: str
    why: EpochReason
    exchange: str
    opened_ms: int
    depth: int
    tokens_before: int
    tokens_after: int
    references: list[ReferenceDocument]
    through: str
    edits: list[EditDocument]
    rendered: list[msgspec.Raw]


class ReversionDocument(msgspec.Struct, frozen=True):
    """A revert, `is_done` or only quoted; at depth 0 no epoch applies any more. `epoch` is null where it is quoted."""

    is_done: bool
    epoch: str | None
    depth: int
    tokens_now: int
    tokens_then: int
    price: RevertDocument
    is_lasting: bool


class PinDocument(msgspec.Struct, frozen=True):
    """A pinned message with the first characters of its text; all null but the node where no branch has it.

    `price` is what keeping it whole costs at most, where that was asked for.
    """

    node: str
    exchange: int | None
    place: int | None
    role: str | None
    text: str | None
    tokens: int | None
    price: RevertDocument | None = None


class CompactionDocument(CompactionResult, frozen=True, kw_only=True):
    """The result of a compaction that was asked for; `summary` is the one that was made last.

    `session`, `summary`, `messages_covered` and `ms` say the same as the fields of `CompactionResult`. `level` is that
    of the summary, null if none was made. `reason` says why the result is no better than it is.
    """

    session: str
    epoch: str | None
    summary: str | None
    level: SummaryLevel | None
    kind: SummaryKind | None
    messages_covered: int
    ms: int
    calls: list[str]
    cost_tokens: int
    reason: str


class SummaryDocument(msgspec.Struct, frozen=True):
    """A summary of the messages from `start` up to `stop`; `is_live` where no other was made of it or supersedes it."""

    id: str
    session: str
    kind: SummaryKind
    level: SummaryLevel
    is_provisional: bool
    start: int
    stop: int
    tokens: int
    covered: int
    parents: tuple[str, ...]
    supersedes: tuple[str, ...]
    files: tuple[str, ...]
    model: str
    reason: str
    exchange: str
    calls: tuple[str, ...]
    made_ms: int
    text: str
    is_live: bool


class OriginalPage(NamedTuple):
    """A page of an original, or all of it as the only page."""

    session: str
    text: str
    number: int
    pages: int

    @property
    def content(self) -> bytes:
        """The text in UTF-8, with a question mark for each lone surrogate, which UTF-8 cannot hold."""
        return self.text.encode("utf-8", "replace")


def describe_plan(plan: Plan | None) -> PlanDocument | None:
    """Return the plan of a round as a document; None where there was nothing to decide."""
    return None if plan is None else describe(PlanDocument, plan)


def find_bound(row: ExchangeRow, request: bytes) -> int | None:
    """Return an upper bound of a request's tokens, from its bytes alone; None where it was counted or is not whole."""
    if row.kind != "managed" or row.is_capped:
        return None
    plans = [each.plan for each in row.rounds if each.plan is not None]
    if any(plan.tokens_client is not None and plan.tokens_upstream is not None for plan in plans):
        return None
    return bound_tokens(request)


async def load_epoch(log: LogReader, prefix: str, n: int) -> WholeEpoch:
    """Return the n-th epoch of that session, with its edits and the messages it sends. Raises NotFound."""
    session = await find_session(log, prefix)
    try:
        epoch = await log.load_epoch(session, n)
    except NotFound as error:
        count = len(await log.list_epochs(session))
        raise NotFound(f"{error}; it has {count}, counted from 1") from error
    return describe_epoch(WholeEpoch, epoch, n=n)


def describe_epoch(kind: type[Whole], epoch: Epoch, **own: Any) -> Whole:
    """Return a document of a kind of an epoch with its edits, of which none are left where they were erased."""
    return describe(
        kind,
        epoch,
        references=list_references(epoch),
        through=epoch.through.hex(),
        edits=[_describe_edit(edit) for edit in epoch.list_edits()],
        rendered=[msgspec.Raw(message) for message in epoch.rendered],
        **own,
    )


def list_references(epoch: Epoch) -> list[ReferenceDocument]:
    """Return the references of an epoch."""
    return [
        ReferenceDocument(each.id, each.place, each.place + len(each.digests), each.offset) for each in epoch.originals
    ]


def _describe_edit(edit: Edit) -> EditDocument:
    if isinstance(edit, Kept):
        return EditDocument("kept", place=edit.place)
    if isinstance(edit, Replaced):
        return EditDocument(edit.kind, place=edit.place, text=edit.text)
    return EditDocument("written", start=edit.start, stop=edit.stop, text=edit.text)


def describe_reversion(reversion: Reversion, *, is_done: bool) -> ReversionDocument:
    """Return a revert as a document, `is_done` or only quoted."""
    epoch, quote = reversion.epoch, reversion.quote
    return ReversionDocument(
        is_done=is_done,
        epoch=epoch.id if is_done else None,
        depth=epoch.depth,
        tokens_now=reversion.now,
        tokens_then=quote.tokens,
        price=RevertDocument(quote.once, quote.each),
        is_lasting=quote.is_lasting,
    )


def describe_pinned(pinned: Pinned) -> PinDocument:
    """Return a pinned message as a document."""
    if pinned.exchange is None:
        return PinDocument(pinned.node.hex(), None, None, None, None, None)
    message = FORMATS[pinned.exchange.wire].parse_message(pinned.raw)
    text = fit_text(message.text[:_MAX_PIN_CHARACTERS])
    place, tokens = pinned.place, pinned.tokens
    return PinDocument(pinned.node.hex(), pinned.exchange.n, place, message.role, text, tokens, pinned.price)


def make_compaction_result(found: Compaction) -> CompactionResult:
    """Return the result of a manual compaction as programs get it."""
    last = found.summaries[-1] if found.summaries else None
    return CompactionResult(
        session_id=found.session,
        summary_message_id=last.id if last else None,
        level_used=last.level if last else 3,  # a ledger is made without a model
        compacted_message_count=_count_covered(found),
        summary_token_count=last.tokens if last else 0,
        tokens_before=found.epoch.tokens_before if found.epoch else found.tokens,
        tokens_after=found.epoch.tokens_after if found.epoch else found.tokens,
        elapsed_ms=found.ms,
    )


def _count_covered(found: Compaction) -> int:
    return len({place for each in found.summaries for place in range(each.start, each.stop)})


def describe_compaction(found: Compaction) -> CompactionDocument:
    """Return the result of a manual compaction as a document."""
    last, result = found.summaries[-1] if found.summaries else None, make_compaction_result(found)
    return CompactionDocument(
        **msgspec.structs.asdict(result),
        session=result.session_id,
        epoch=found.epoch.id if found.epoch else None,
        summary=result.summary_message_id,
        level=last.level if last else None,
        kind=last.kind if last else None,
        messages_covered=result.compacted_message_count,
        ms=result.elapsed_ms,
        calls=list(found.calls),
        cost_tokens=round(found.cost),
        reason=found.reason,
    )


async def load_summaries(log: LogReader, prefix: str) -> list[SummaryDocument]:
    """Load all summaries of the session whose id has this prefix, oldest first. Raises NotFound."""
    summaries = await log.list_summaries(await find_session(log, prefix))
    replaced = {name for summary in summaries for name in (*summary.parents, *summary.supersedes)}
    return [describe(SummaryDocument, each, is_live=each.id not in replaced) for each in summaries]


async def load_summary(log: LogReader, prefix: str, name: str) -> SummaryDocument:
    """Return the summary with this id, with or without `ref:`. Raises NotFound, naming the newest there are."""
    summaries = await load_summaries(log, prefix)
    for summary in summaries:
        if summary.id == name.strip().lower().removeprefix("ref:"):
            return summary
    newest = ", ".join(summary.id for summary in summaries[: -_MAX_NAMED - 1 : -1])
    hint = f"the newest are {newest}" if newest else "it has none"
    raise NotFound(f"this session has no summary {name[:40]!r}; {hint}")


def order_summaries(summaries: Sequence[SummaryDocument]) -> Iterator[tuple[SummaryDocument, int, SummaryStatus]]:
    """Yield summaries as a tree, each with its depth, and its status towards the one above it.

    Live ones come in the order of their messages, each before those that it replaces.
    """
    known = {summary.id: summary for summary in summaries}
    live = sorted((each for each in summaries if each.is_live), key=lambda each: (each.start, each.stop))
    seen: set[str] = set()
    pending: list[tuple[SummaryDocument, int, SummaryStatus]] = [(each, 0, "live") for each in reversed(live)]
    while pending:
        summary, depth, status = pending.pop()
        if summary.id in seen:
            continue
        seen.add(summary.id)
        yield summary, depth, status
        pending += [(known[name], depth + 1, "superseded") for name in reversed(summary.supersedes) if name in known]
        pending += [(known[name], depth + 1, "parent") for name in reversed(summary.parents) if name in known]


async def load_page(log: LogReader, reference: str, number: int | None = 1) -> OriginalPage:
    """Load a page, counted from 1, of the original that a reference names; None: all of it. Raises NotFound.

    A reference has the same pages for ever, and each page but the last ends with the command that writes the next one.
    That of a summary begins with all references that it covers.
    """
    found = _REFERENCE.fullmatch(reference.strip().lower())
    if found is None:
        raise NotFound(f"{reference[:40]!r} is no reference: one is `ref:` and ten letters and digits; {_WHERE}")
    name = found[1]
    try:
        loaded = await load_original_text(log, name)
    except Erased:
        raise
    except NotFound as error:
        raise NotFound(f"{error}; {_WHERE}") from error
    page = make_page(name, loaded.session, loaded.text, number)
    if page.number == page.pages:
        return page
    following = page.number + 1
    hint = (
        f"\n[page {page.number} of {page.pages} of ref:{name}; the next: `palimpsest expand {name} --page {following}`"
        f" or GET /-/api/refs/{name}?page={following}]\n"
    )
    return page._replace(text=page.text + hint)


def make_page(name: str, session: str, text: str, number: int | None) -> OriginalPage:
    """Return a page, counted from 1, of what a reference names; None: all of it. Raises NotFound."""
    if number is None:
        return OriginalPage(session, text, 1, 1)
    part, count = cut_page(text, number)
    if not 1 <= number <= count:
        raise NotFound(f"ref:{name} has {count} page{'s' * (count > 1)}, counted from 1, and no page {number}")
    return OriginalPage(session, part, number, count)
