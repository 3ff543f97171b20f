"""Finding what somebody names.

Rule: how an id begins is enough where only one begins so; an error says what is near.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from proxy.engine.ports import LogReader
from proxy.model.errors import NotFound
from proxy.model.log import BranchRow, ExchangeRow, SessionRow

EVERY = 2**31
"""A limit that no listing reaches."""

Part = Literal["request", "sent", "received"]

_NAMED_AT_MOST = 5
_NEAR_CHARACTERS = 3
_LONGEST = 200


async def list_matching(log: LogReader, limit: int, family: str = "", parent: str = "") -> Sequence[SessionRow]:
    """Sessions, newest activity first: those whose family, and whose parent's id, begin so."""
    if not family and not parent:
        return await log.list_sessions(limit)
    rows = await log.list_sessions(EVERY)
    return [row for row in rows if row.family.startswith(family) and row.parent.startswith(parent)][:limit]


async def find_exchanges(log: LogReader, prefix: str) -> tuple[str, Sequence[ExchangeRow]]:
    """The id of the one session whose id begins so, and its exchanges. Raises NotFound, naming candidates.

    A whole id, which is what programs have, takes no look at the other sessions.
    """
    if prefix.isascii() and prefix.isalnum() and len(prefix) <= _LONGEST:
        with suppress(NotFound):
            return prefix, await log.list_exchanges(prefix)
    session = pick_session(await log.list_sessions(EVERY), prefix).id
    return session, await log.list_exchanges(session)


def pick_session(rows: Sequence[SessionRow], prefix: str) -> SessionRow:
    """The one session whose id begins so. Raises NotFound, naming candidates."""
    found = [row for row in rows if row.id.startswith(prefix)] if prefix else []
    whole = [row for row in found if row.id == prefix]
    if whole or len(found) == 1:
        return (whole or found)[0]
    if found:
        raise NotFound(f"{len(found)} sessions begin with {prefix!r} ({_name([row.id for row in found])})")
    near = _list_near(rows, prefix)
    hint = f"near it: {_name(near)}" if near else "`palimpsest sessions` or GET /-/api/sessions lists them"
    raise NotFound(f"no session begins with {_quote(prefix)}; {hint}")


def pick_exchange(rows: Sequence[ExchangeRow], n: int) -> ExchangeRow:
    """The n-th exchange of a session, counted from 1. Raises NotFound."""
    for row in rows:
        if row.n == n:
            return row
    raise NotFound(f"this session has no exchange {n}; it has {len(rows)}, counted from 1")


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


def _list_near(rows: Sequence[SessionRow], text: str) -> list[str]:
    """Sessions of that family, else those whose ids have the longest beginning in common with the text."""
    if named := [row.id for row in rows if text and row.family == text]:
        return named
    for size in range(min(len(text), _LONGEST) - 1, _NEAR_CHARACTERS - 1, -1):
        if near := [row.id for row in rows if row.id.startswith(text[:size])]:
            return near
    return []


def _name(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST // 4 else text[: _LONGEST // 4] + "…")
