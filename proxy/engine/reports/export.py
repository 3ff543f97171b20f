"""A session written out: as one JSON document, as JSON lines, as messages, or as a handoff in Markdown."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import msgspec

from proxy.context.references import read_arguments
from proxy.engine.ports import LogReader
from proxy.engine.reports.context import find_bound
from proxy.engine.reports.conversation import load_conversation, load_history
from proxy.engine.reports.lookup import find_session, pick_branch, read_exchanges
from proxy.engine.reports.sessions import Document, describe_body, describe_exchange, describe_missing, write_json
from proxy.model.epoch import Epoch
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.told import Told
from proxy.wire.telling import read_told

Form = Literal["json", "jsonl", "openai"]
FORMS: tuple[Form, ...] = get_args(Form)


class Export(NamedTuple):
    """What is written: the pieces of a document, and the exchanges that it is made of, read anew for whoever asks."""

    pieces: AsyncIterator[bytes]
    read: Callable[[], AsyncIterator[ExchangeRow]]


async def open_export(log: LogReader, prefix: str, form: Form, tip: str = "") -> Export:
    """The session whose id begins so, all of it or the branch whose tip begins so. Raises NotFound."""
    session = await find_session(log, prefix)
    branch = pick_branch(await log.list_branches(session), tip) if tip else None
    read = partial(read_exchanges, log, session, branch)
    if form == "openai":
        items = (await load_conversation(log, session, branch)).items
        return Export(_yield_one(write_json([msgspec.Raw(item) for item in items])), read)
    return Export(_write_lines(log, read()) if form == "jsonl" else _write_document(log, session, read()), read)


async def describe_whole(log: LogReader, row: ExchangeRow) -> Document:
    """An exchange with its request's body; where that was erased, with the reason.

    `bound` are more tokens than the request has, where nobody counted them; else null.
    """
    try:
        request = await log.load_request(row.id)
    except NotFound as error:
        return describe_exchange(row) | {"bound": None} | describe_missing(str(error))
    return describe_exchange(row) | {"bound": find_bound(row, request)} | describe_body(request)


async def _yield_one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def _write_lines(log: LogReader, rows: AsyncIterator[ExchangeRow]) -> AsyncIterator[bytes]:
    async for row in rows:
        yield write_json(await describe_whole(log, row))


async def _write_document(log: LogReader, session: str, rows: AsyncIterator[ExchangeRow]) -> AsyncIterator[bytes]:
    """`{"session": …, "exchanges": […]}` on one line."""
    yield b'{"session":%b,"exchanges":[' % msgspec.json.encode(session)
    mark = b""
    async for row in rows:
        yield mark + write_json(await describe_whole(log, row))[:-1]
        mark = b","
    yield b"]}\n"


_TICKS = re.compile(r"^`{3,}", re.MULTILINE)
_HOW = (
    "Whoever goes on from here has what is below and nothing else: the system prompt and the tools are the new client's"
    " own. What a `ref:` names is not lost: `palimpsest expand ID` writes it, or GET `/-/api/refs/ID` of the proxy."
)


class Handoff(NamedTuple):
    """What is handed on: the exchange it ends with, the epoch that stands for its beginning, and the messages."""

    end: ExchangeRow
    epoch: Epoch | None
    ledger: Sequence[Told]
    messages: Sequence[Told]


async def load_handoff(log: LogReader, prefix: str, tip: str = "") -> Handoff:
    """The newest conversation of the session whose id begins so, or that of a branch. Raises NotFound."""
    session = await find_session(log, prefix)
    branch = pick_branch(await log.list_branches(session), tip) if tip else None
    end, items = await load_conversation(log, session, branch)
    told = [read_told(end.wire, item) for item in items]
    leading = next((i for i, each in enumerate(told) if each.role != "system"), len(told))
    epoch = await _find_epoch(log, end)
    ledger = [read_told(end.wire, raw) for raw in epoch.rendered] if epoch is not None else []
    return Handoff(end, epoch, ledger, told[leading + (epoch.depth if epoch is not None else 0) :])


async def _find_epoch(log: LogReader, end: ExchangeRow) -> Epoch | None:
    """The newest epoch that stands for the beginning of a request; of its own view, if there is one."""
    epochs = [epoch for epoch in (await log.load_context(end.session)).epochs if epoch.depth]
    if not epochs:
        return None
    try:
        nodes = (await load_history(log, end)).nodes
    except NotFound:
        return None
    found = [epoch for epoch in epochs if epoch.depth <= len(nodes) and nodes[epoch.depth - 1] == epoch.through]
    return next((epoch for epoch in reversed(found) if epoch.view == end.model), found[-1] if found else None)


def write_handoff(handoff: Handoff) -> str:
    """The text, in Markdown."""
    return "\n".join(_write(handoff)) + "\n"


def _write(handoff: Handoff) -> Iterator[str]:
    end, epoch = handoff.end, handoff.epoch
    yield f"# Handoff of session {end.session}"
    yield ""
    yield f"Up to exchange {end.n} with {end.model or 'no model'}, as recorded by palimpsest. {_HOW}"
    if epoch is not None:
        yield ""
        yield f"## The first {epoch.depth} messages, in short"
        yield from _write_messages(handoff.ledger)
    yield ""
    yield "## Word for word"
    yield from _write_messages(handoff.messages)
    if epoch is not None and epoch.originals:
        yield ""
        yield "## References"
        yield ""
        for each in epoch.originals:
            last = each.place + len(each.digests) - 1
            what = f"message {each.place}" if last == each.place else f"messages {each.place} to {last}"
            where = f", from character {each.offset:,}" if each.offset else ""
            yield f"- `palimpsest expand {each.id}`: {what}{where}"


def _write_messages(messages: Sequence[Told]) -> Iterator[str]:
    for told in messages:
        answers = f" (answers {', '.join(told.answers)})" if told.answers else ""
        yield ""
        yield f"### {told.role or 'unknown'}{answers}"
        yield ""
        if told.text:
            yield from _fence(told.text) if told.role == "tool" else (told.text,)
        for medium in told.media:
            yield f"({medium})"
        for call in told.calls:
            yield f"calls `{call.name}` ({call.id}):"
            yield from _fence("\n".join(read_arguments(call.arguments)))


def _fence(text: str) -> tuple[str, str, str]:
    """A text as it is, between lines that it does not have itself."""
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return fence, text, fence
