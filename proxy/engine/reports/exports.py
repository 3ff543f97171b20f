"""A session written out. Rule: piece by piece, so that memory holds one exchange at a time, however long the session.

What cannot be found is told before the first piece.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.reports.conversation import load_conversation, pick_end
from proxy.engine.reports.documents import Document, describe_body, describe_exchange, describe_missing, write_json
from proxy.engine.reports.finding import find_exchanges, pick_branch
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow

Form = Literal["json", "jsonl", "openai"]
FORMS: tuple[Form, ...] = get_args(Form)


class Export(NamedTuple):
    """What is written: the exchanges, and the pieces of the document made of them."""

    session: str
    exchanges: Sequence[ExchangeRow]
    pieces: AsyncIterator[bytes]


async def open_export(log: LogReader, prefix: str, form: Form, tip: str = "") -> Export:
    """The session whose id begins so, all of it or the branch whose tip begins so. Raises NotFound."""
    session, rows = await find_exchanges(log, prefix)
    branch = pick_branch(await log.list_branches(session), tip) if tip else None
    names = {name for _, name in branch.exchanges} if branch is not None else {row.id for row in rows}
    chosen = [row for row in rows if row.id in names]
    if form == "openai":
        items = await load_conversation(log, rows, pick_end(rows, branch))
        return Export(session, chosen, _yield_one(write_json([msgspec.Raw(item) for item in items])))
    write = _write_lines if form == "jsonl" else _write_document
    return Export(session, chosen, write(log, session, chosen))


async def describe_whole(log: LogReader, row: ExchangeRow) -> Document:
    """An exchange with its request's body; where that was erased, with the reason."""
    try:
        body = describe_body(await log.load_request(row.id))
    except NotFound as error:
        body = describe_missing(str(error))
    return describe_exchange(row) | body


async def _yield_one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def _write_lines(log: LogReader, session: str, rows: Sequence[ExchangeRow]) -> AsyncIterator[bytes]:
    for row in rows:
        yield write_json(await describe_whole(log, row))


async def _write_document(log: LogReader, session: str, rows: Sequence[ExchangeRow]) -> AsyncIterator[bytes]:
    """`{"session": …, "exchanges": […]}` on one line."""
    mark = b'{"session":%b,"exchanges":[' % msgspec.json.encode(session)
    for row in rows:
        yield mark + write_json(await describe_whole(log, row))[:-1]
        mark = b","
    yield (b"" if rows else mark) + b"]}\n"
