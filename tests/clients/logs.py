"""What a journey left in the proxy's log, through the reader that `show` and `export` use."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from proxy.assembly import open_log
from proxy.config import load_settings
from proxy.model.errors import NotFound
from proxy.model.log import BranchRow, ExchangeRow, SessionRow
from proxy.store.sqlite.reader import SqliteReader

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call of the upstream in the proxy's log. `hidden` counts those that the client does not know of."""

    wire: str
    method: str
    target: str
    completeness: str
    request: bytes
    sent: bytes
    received: bytes
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A session with calls in formats we read; `branches` are drawn as `Tree` says."""

    id: str
    name: str
    parent: str
    branches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """All that is in a log. Sessions are in the order of their first calls."""

    exchanges: tuple[Recorded, ...]
    sessions: tuple[Found, ...]


def read_log(data: Path) -> Log:
    """The log in a data directory."""
    return asyncio.run(_read_log(data))


def has_call(data: Path, sent: bytes, *, is_ended: bool = False) -> bool:
    """Whether the newest call of a session in the log, which a server may be writing, was sent as this.

    `is_ended`: and is no longer waited for.
    """
    return asyncio.run(_has_call(data, sent, is_ended))


async def _has_call(data: Path, sent: bytes, is_ended: bool) -> bool:
    log = open_log(load_settings(None, {"data": data}))
    try:
        for session in await log.list_sessions(_MOST):
            newest = (await log.list_exchanges(session.id))[-1]
            if is_ended and not newest.rounds:
                continue
            with contextlib.suppress(NotFound):
                if await log.load_sent(newest.id, max(0, len(newest.rounds) - 1)) == sent:
                    return True
        return False
    finally:
        await log.close()


async def _read_log(data: Path) -> Log:
    log = open_log(load_settings(None, {"data": data}))
    try:
        sessions = [(row, await log.list_exchanges(row.id)) for row in await log.list_sessions(_MOST)]
        sessions.sort(key=lambda session: session[1][0].seq)
        exchanges = [await _load(log, row, k) for _, rows in sessions for row in rows for k in range(_count(row))]
        found = [await _find(log, session, rows) for session, rows in sessions if any(row.wire for row in rows)]
        return Log(tuple(exchanges), tuple(found))
    finally:
        await log.close()


def _count(row: ExchangeRow) -> int:
    """How many calls of the upstream an exchange has; one that a crash cut off may have none in the log."""
    return max(1, len(row.rounds))


async def _load(log: SqliteReader, row: ExchangeRow, k: int) -> Recorded:
    completeness = str(row.rounds[k].completeness) if row.rounds else ""
    return Recorded(
        row.wire,
        row.method,
        row.target,
        completeness,
        await _load_request(log, row.id),
        await log.load_sent(row.id, k),
        await log.load_received(row.id, k) if completeness else b"",
        hidden=k,
    )


async def _load_request(log: SqliteReader, exchange: str) -> bytes:
    """What the client sent: where that only names what came before, the request of the log has it written out."""
    try:
        return await log.load_held(exchange)
    except NotFound:
        return await log.load_request(exchange)


async def _find(log: SqliteReader, session: SessionRow, rows: Sequence[ExchangeRow]) -> Found:
    by_id = {row.id: row for row in rows}
    branches = [draw_branch(branch, by_id) for branch in await log.list_branches(session.id)]
    return Found(session.id, session.family, session.parent, tuple(branches))


def draw_branch(branch: BranchRow, rows: Mapping[str, ExchangeRow]) -> str:
    """The calls on the way to a tip, in words; what repeats is counted."""
    calls = [rows[call.exchange] for call in branch.exchanges]
    words = [f"({row.relation})" if row.is_side else str(row.relation) for row in calls]
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    return " ".join(word if count == 1 else f"{word}*{count}" for word, count in runs)
