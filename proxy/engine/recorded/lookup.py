"""Finding a session, exchange or branch by a prefix of its id; the log is read a page at a time."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Literal

from proxy.engine.ports import ALL_SESSIONS, LogReader
from proxy.model.epoch import Epoch
from proxy.model.errors import Erased, NotFound
from proxy.model.exchange import CONVERSATION
from proxy.model.log import BranchRow, ExchangeRow, Selection, SessionRow
from proxy.wire import FORMATS

Part = Literal["request", "sent", "received", "held"]

_PAGE = 100
_MAX_NAMED = 5
_MIN_PREFIX = 3
_MAX_QUOTED = 50
_MAX_ID = 40
# How a family is made of the name that a client sends (`engine/lineage/identity`).
_FAMILIES = (
    *("x-session-id:%s", "codex:%s", "claude-code:%s:main", "x-dynamo-session-id:%s", "helicone-session-id:%s"),
    *("x-litellm-session-id:%s", "litellm_session_id:%s", "session_id:%s", "conversation:%s"),
)


async def list_matching(log: LogReader, limit: int, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
    """Return at most `limit` sessions that match, the newest activity first."""
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
    """Return the id of the one session whose id has this prefix, or that has this name. Raises NotFound, naming some.

    A prefix of one id takes precedence over names, which clients choose.
    """
    ids = await log.list_ids(prefix, _MAX_NAMED + 1) if prefix else ()
    if prefix in ids or len(ids) == 1:
        return ids[0]
    named = await list_named(log, prefix)
    if len(named) == 1:
        return named[0]
    if named:
        raise NotFound(f"{len(named)} sessions are called {_quote(prefix)}; name one by its id: {_join(named)}")
    if ids:
        count = len(ids) if len(ids) <= _MAX_NAMED else f"more than {_MAX_NAMED}"
        raise NotFound(f"{count} sessions begin with {_quote(prefix)} ({_join(ids)})")
    near = await _list_near(log, prefix)
    hint = f"near it: {_join(near)}" if near else "`palimpsest sessions` or GET /-/api/sessions lists them"
    raise NotFound(f"no session begins with {_quote(prefix)}, or is called so; {hint}")


async def list_named(log: LogReader, name: str) -> list[str]:
    """Return the ids of the sessions that their client gave this name, the newest first."""
    found: list[SessionRow] = []
    for family in (name, *(each % name for each in _FAMILIES)) if name else ():
        rows = await log.list_sessions(_MAX_NAMED + 1, Selection(family=family))
        found += [row for row in rows if row.family == family]
    return [row.id for row in sorted(found, key=lambda row: -row.seq)]


async def find_exchange(log: LogReader, prefix: str, n: int) -> ExchangeRow:
    """Return the n-th exchange, counted from 1, of the one session with this prefix. Raises NotFound."""
    session = await find_session(log, prefix)
    for row in await log.list_exchanges(session, n - 1, 1) if n > 0 else ():
        return row
    count = (await log.find_session(session)).recorded
    raise NotFound(f"this session has no exchange {n}; it has {count}, counted from 1")


async def read_pages(
    log: LogReader, session: str, after: int = 0, limit: int | None = None
) -> AsyncIterator[Sequence[ExchangeRow]]:
    """Yield pages of a session's exchanges after number `after`, without responses. Raises NotFound."""
    end = (await log.find_session(session)).recorded  # fixed here, so that a session that grows meanwhile ends too
    if limit is not None:
        end = min(end, after + limit)
    for start in range(after, end, _PAGE):
        yield await log.list_calls(session, start, min(_PAGE, end - start))


async def read_back(log: LogReader, session: str) -> AsyncIterator[ExchangeRow]:
    """Yield the exchanges of a session, the newest first, without responses. Raises NotFound."""
    end = (await log.find_session(session)).recorded
    for after in range(max(0, end - _PAGE), -_PAGE, -_PAGE):
        for row in reversed(await log.list_calls(session, max(0, after), min(_PAGE, after + _PAGE))):
            yield row


async def find_newest_call(log: LogReader, session: str) -> ExchangeRow:
    """Return the newest call of the conversation of a session that was sent, and can be read. Raises NotFound."""
    async for row in read_back(log, session):
        if row.kind in CONVERSATION and row.wire in FORMATS and row.rounds and not row.is_side:
            return row
    raise NotFound("no call of this session can be read: none was in a known wire format")


async def load_sent_epoch(log: LogReader, row: ExchangeRow) -> Epoch | None:
    """Load the epoch that a call was sent under, None if there was none."""
    name = next((each.plan.epoch for each in reversed(row.rounds) if each.plan is not None and each.plan.epoch), "")
    epochs = await log.list_epochs(row.session) if name else ()
    return next((each for each in epochs if each.id == name), None)


async def read_branch_back(log: LogReader, session: str, branch: BranchRow) -> AsyncIterator[ExchangeRow]:
    """Yield the exchanges of a branch, the newest first, without responses. Raises NotFound."""
    for call in reversed(branch.exchanges):
        for row in await log.list_calls(session, call.n - 1, 1):
            yield row


async def read_exchanges(log: LogReader, session: str, branch: BranchRow | None = None) -> AsyncIterator[ExchangeRow]:
    """Yield the exchanges of a session, or of a branch, with responses. Raises NotFound for an unknown session."""
    count = (await log.find_session(session)).recorded
    for n in range(1, count + 1) if branch is None else (call.n for call in branch.exchanges):
        for row in await log.list_exchanges(session, n - 1, 1):
            yield row


def pick_branch(rows: Sequence[BranchRow], prefix: str) -> BranchRow:
    """Return the one branch whose tip, in hexadecimal digits, has this prefix. Raises NotFound, naming all tips."""
    found = [row for row in rows if row.tip.hex().startswith(prefix.lower())] if prefix else []
    if len(found) == 1:
        return found[0]
    if not rows:
        raise NotFound("this session has no branches: none of its calls was in a wire format that is read")
    tips = _join([row.tip.hex()[:12] for row in found or reversed(rows)])
    if found:
        raise NotFound(f"{len(found)} branches begin with {_quote(prefix)} ({tips})")
    raise NotFound(f"no branch begins with {_quote(prefix)}; its branches are {tips}")


async def load_part(log: LogReader, row: ExchangeRow, part: Part, k: int | None = None) -> bytes:
    """Return one body of an exchange, of round k or the last. Raises NotFound, saying whether it ever existed.

    `held` is what the client itself sent: of a call whose history we hold only its new messages, of a body in a
    content-encoding that, else the request.
    """
    if part == "request":
        return await log.load_request(row.id)
    if part == "held":
        try:
            return await log.load_held(row.id)
        except Erased:
            raise
        except NotFound:  # its history is the client's own
            return await log.load_request(row.id)
    last = row.rounds[-1].k if row.rounds else 0
    load = log.load_sent if part == "sent" else log.load_received
    return await load(row.id, last if k is None else k)


async def _list_near(log: LogReader, text: str) -> Sequence[str]:
    """Return sessions whose ids share the longest prefix with the text."""
    for size in range(min(len(text) - 1, _MAX_ID), _MIN_PREFIX - 1, -1):
        if near := await log.list_ids(text[:size], _MAX_NAMED + 1):
            return near
    return ()


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")
