"""What a journey left in the proxy's log, through the reader that `show` and `export` use."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from proxy.assembly import open_log
from proxy.config import load_settings
from proxy.model.log import BranchRow, ExchangeRow, SessionRow
from proxy.store.sqlite.reader import SqliteReader

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange in the proxy's log."""

    wire: str
    method: str
    target: str
    completeness: tuple[str, ...]
    request: bytes
    sent: bytes
    received: bytes


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


async def _read_log(data: Path) -> Log:
    log = open_log(load_settings(None, {"data": data}))
    try:
        sessions = [(row, await log.list_exchanges(row.id)) for row in await log.list_sessions(_MOST)]
        sessions.sort(key=lambda session: session[1][0].seq)
        exchanges = [await _load(log, row) for _, rows in sessions for row in rows]
        found = [await _find(log, session, rows) for session, rows in sessions if any(row.wire for row in rows)]
        return Log(tuple(exchanges), tuple(found))
    finally:
        await log.close()


async def _load(log: SqliteReader, row: ExchangeRow) -> Recorded:
    return Recorded(
        row.wire,
        row.method,
        row.target,
        tuple(str(round_.completeness) for round_ in row.rounds),
        await log.load_request(row.id),
        await log.load_sent(row.id, 0),
        await log.load_received(row.id, 0),
    )


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
