"""Finding a session, exchange or branch by a prefix of its id; the log is read a page at a time."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Literal

from proxy.engine.ports import ALL_SESSIONS, LogReader
from proxy.model.errors import NotFound
from proxy.model.log import BranchRow, ExchangeRow, Selection, SessionRow

Part = Literal["request", "sent", "received"]

_PAGE = 100
_NAMED_AT_MOST = 5
_NEAR_CHARACTERS = 3
_LONGEST = 200
_LONGEST_ID = 40


async def list_matching(log: LogReader, limit: int, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
    """Sessions, newest activity first."""
    rows: list[SessionRow] = []
    while len(rows) < limit:
        asked = min(limit - len(rows), _PAGE)
        page = await log.list_sessions(asked, selection)
        rows += page
        if len(page) < asked:
            break
        selection = replace(selection, before=page[-1].seq)
    return rows


async def find_session(log: LogReader, prefix: str) -> str:
    """The id of the one session whose id begins so. Raises NotFound, naming candidates."""
    ids = await log.list_ids(prefix, _NAMED_AT_MOST + 1) if prefix else ()
    if prefix in ids or len(ids) == 1:
        return ids[0]
    if ids:
        count = len(ids) if len(ids) <= _NAMED_AT_MOST else f"more than {_NAMED_AT_MOST}"
        raise NotFound(f"{count} sessions begin with {_quote(prefix)} ({_name(ids)})")
    near = await _list_near(log, prefix)
    hint = f"near it: {_name(near)}" if near else "`palimpsest sessions` or GET /-/api/sessions lists them"
    raise NotFound(f"no session begins with {_quote(prefix)}; {hint}")


async def find_exchange(log: LogReader, prefix: str, n: int) -> ExchangeRow:
    """The n-th exchange, counted from 1, of the one session whose id begins so. Raises NotFound."""
    session = await find_session(log, prefix)
    for row in await log.list_exchanges(session, n - 1, 1) if n > 0 else ():
        return row
    count = (await log.find_session(session)).recorded
    raise NotFound(f"this session has no exchange {n}; it has {count}, counted from 1")


async def read_pages(
    log: LogReader, session: str, after: int = 0, limit: int | None = None
) -> AsyncIterator[Sequence[ExchangeRow]]:
    """Calls of a session behind number `after`, a page at a time, without answers. Raises NotFound."""
    end = (await log.find_session(session)).recorded  # one that grows meanwhile has an end too
    if limit is not None:
        end = min(end, after + limit)
    for start in range(after, end, _PAGE):
        yield await log.list_calls(session, start, min(_PAGE, end - start))


async def read_back(log: LogReader, session: str) -> AsyncIterator[ExchangeRow]:
    """Calls of a session, the newest first, without answers. Raises NotFound."""
    end = (await log.find_session(session)).recorded
    for after in range(max(0, end - _PAGE), -_PAGE, -_PAGE):
        for row in reversed(await log.list_calls(session, max(0, after), min(_PAGE, after + _PAGE))):
            yield row


async def read_branch_back(log: LogReader, session: str, branch: BranchRow) -> AsyncIterator[ExchangeRow]:
    """Calls on a branch of a session, the newest first, without answers. Raises NotFound."""
    for call in reversed(branch.exchanges):
        for row in await log.list_calls(session, call.n - 1, 1):
            yield row


async def read_exchanges(log: LogReader, session: str, branch: BranchRow | None = None) -> AsyncIterator[ExchangeRow]:
    """The exchanges of a session, or of a branch, one at a time. Raises NotFound for an unknown session."""
    count = (await log.find_session(session)).recorded
    for n in range(1, count + 1) if branch is None else (call.n for call in branch.exchanges):
        for row in await log.list_exchanges(session, n - 1, 1):
            yield row


def pick_branch(rows: Sequence[BranchRow], prefix: str) -> BranchRow:
    """The one branch whose tip, in hexadecimal digits, begins so. Raises NotFound, naming the tips there are."""
    found = [row for row in rows if row.tip.hex().startswith(prefix.lower())] if prefix else []
    if len(found) == 1:
        return found[0]
    if not rows:
        raise NotFound("this session has no branches: none of its calls was in a wire format that is read")
    tips = _name([row.tip.hex()[:12] for row in found or reversed(rows)])
    if found:
        raise NotFound(f"{len(found)} branches begin with {_quote(prefix)} ({tips})")
    raise NotFound(f"no branch begins with {_quote(prefix)}; the tips are {tips}")


async def load_part(log: LogReader, row: ExchangeRow, part: Part, k: int | None = None) -> bytes:
    """One body of an exchange, of round k or the last one. Raises NotFound, saying whether it was ever there."""
    if part == "request":
        return await log.load_request(row.id)
    last = row.rounds[-1].k if row.rounds else 0
    load = log.load_sent if part == "sent" else log.load_received
    return await load(row.id, last if k is None else k)


async def _list_near(log: LogReader, text: str) -> Sequence[str]:
    """Sessions of that family, else those whose ids have the longest beginning in common with the text."""
    named = await log.list_sessions(_NAMED_AT_MOST + 1, Selection(family=text)) if text else ()
    if same := [row.id for row in named if row.family == text]:
        return same
    for size in range(min(len(text) - 1, _LONGEST_ID), _NEAR_CHARACTERS - 1, -1):
        if near := await log.list_ids(text[:size], _NAMED_AT_MOST + 1):
            return near
    return ()


def _name(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST // 4 else text[: _LONGEST // 4] + "…")
