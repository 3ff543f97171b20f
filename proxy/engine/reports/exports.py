"""A session written out. Rule: piece by piece; memory holds one exchange with its bodies, however many.

What cannot be found is told before the first piece.
"""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.reports.contexts import find_bound
from proxy.engine.reports.conversation import load_conversation
from proxy.engine.reports.documents import Document, describe_body, describe_exchange, describe_missing, write_json
from proxy.engine.reports.finding import find_session, pick_branch, read_exchanges
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow

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
