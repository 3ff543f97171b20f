"""Who recalls, and what they may read: what a request continues, what its delegating agent continued, or more."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from proxy.engine.ports import LogReader
from proxy.engine.recall.history import History, read_form
from proxy.engine.recall.policy import RecallScope
from proxy.engine.recorded.conversation import OriginalText, load_history
from proxy.engine.recorded.lookup import read_back
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Kept, Replaced
from proxy.model.errors import NotFound
from proxy.model.exchange import CONVERSATION, SessionKey
from proxy.model.log import ExchangeRow
from proxy.wire import FORMATS

_MOST_SOURCES = 16
_MOST_LOOKED_AT = 200


class RecallLog(LogReader, Protocol):
    """The log as recall reads it."""

    async def find_key(self, session: str) -> SessionKey:
        """Return the key of the session with this id. Raises NotFound."""
        ...


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A requester. `tenant` is the fingerprint of its tenant; None means everything, which the administrator may see.

    `session` and `history` are those of the request that recalls, or of the conversation that a program looks at.
    `parent` is the session of the agent that delegated it. `visible` are the nodes whose whole content it sees. `room`
    are the characters that the result of a search may have, if they are fewer than a page's.
    """

    tenant: bytes | None
    session: str = ""
    parent: str = ""
    history: History | None = None
    visible: frozenset[bytes] = frozenset()
    reach: RecallScope = "branch"
    room: int | None = None


class Relatives(msgspec.Struct, frozen=True):
    """The sessions whose content belongs to a requester: its own with those that it continues, and its parent's part.

    `parent` are the messages that the delegating agent had when it delegated; None if there is no such agent.
    """

    line: tuple[str, ...]
    parent_session: str = ""
    parent: History | None = None
    is_mixed: bool = False  # it continues sessions of other credentials


class Standing(msgspec.Struct, frozen=True):
    """Where messages stand in a history that the requester may read; without a history, elsewhere."""

    history: History | None = None
    places: range = range(0)
    is_parents: bool = False


def make_scope(
    request: ManagedRequest, reach: RecallScope, epoch: Epoch | None = None, room: int | None = None
) -> Scope:
    """Return the scope of a request that is sent under an epoch."""
    raws = request.list_raws()
    return Scope(
        tenant=request.session.tenant,
        session=request.session.id,
        parent=request.session.parent,
        history=History(request.wire, request.nodes, raws),
        visible=find_visible(request.nodes, epoch),
        reach=reach,
        room=room,
    )


def find_visible(nodes: Sequence[bytes], epoch: Epoch | None) -> frozenset[bytes]:
    """Return the nodes of messages that are sent whole under an epoch."""
    if epoch is None:
        return frozenset(nodes)
    edits = epoch.list_edits()
    kept = [
        edit.place
        for edit in edits
        if isinstance(edit, Kept) or (isinstance(edit, Replaced) and edit.kind == "detached")
    ]
    seen = {nodes[place] for place in kept if place < len(nodes)}
    # A node that stands at several places is in view only if none of these was removed.
    removed = {nodes[place] for place in set(range(min(epoch.depth, len(nodes)))).difference(kept)}
    return frozenset(seen.union(nodes[epoch.depth :]) - removed)


async def find_relatives(log: RecallLog, scope: Scope) -> Relatives:
    """Return whose content belongs to a requester. What the log does not have (yet) is left out."""
    if not scope.session:
        return Relatives(())
    line, at, opened_ms = [scope.session], scope.session, 0
    while len(line) < _MOST_SOURCES:
        try:
            row = await log.find_session(at)
        except NotFound:
            break
        opened_ms = opened_ms or row.created_ms
        if not row.adopted or row.adopted in line:
            break
        line.append(at := row.adopted)
    parent = await _load_parent(log, scope, opened_ms) if scope.parent and scope.parent not in line else None
    return Relatives(tuple(line), scope.parent if parent is not None else "", parent, len(line) > 1)


async def _load_parent(log: RecallLog, scope: Scope, opened_ms: int) -> History | None:
    """Load the newest history that the delegating agent had before this session began."""
    looked_at = 0
    try:
        if scope.tenant is not None and (await log.find_key(scope.parent)).tenant != scope.tenant:
            return None
        async for row in read_back(log, scope.parent):
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                return None
            if is_conversation(row) and (row.opened_ms <= opened_ms or not opened_ms):
                return await load_row(log, row)
    except NotFound:
        pass
    return None


def is_conversation(row: ExchangeRow) -> bool:
    """Return whether an exchange is part of a conversation whose messages can be read."""
    return row.wire in FORMATS and row.kind in CONVERSATION and bool(row.tip) and not row.is_side


async def load_row(log: LogReader, row: ExchangeRow) -> History:
    """Load the history of an exchange. Raises NotFound."""
    loaded = await load_history(log, row)
    return History(row.wire, loaded.nodes, loaded.raws)


def find_standing(scope: Scope, relatives: Relatives, stored: OriginalText) -> Standing:
    """Find the messages of an original in what the requester, or its parent, continues.

    Messages are the same however they are spelt: clients move cache markers. A client may have cut its history, so that
    they stand elsewhere now.
    """
    wire, place = stored.original.wire, stored.original.place
    forms = [read_form(wire, raw) for raw in stored.messages]
    for history, sessions, is_parents in list_readable(scope, relatives):
        start = _find_run(history, forms, place) if history.wire == wire and stored.session in sessions else None
        if start is not None:
            return Standing(history, range(start, start + len(forms)), is_parents)
    return Standing()


def list_readable(scope: Scope, relatives: Relatives) -> Iterator[tuple[History, tuple[str, ...], bool]]:
    """Yield the histories that a requester may read, with their sessions, and whether it is the parent's."""
    if scope.history is not None:
        yield scope.history, relatives.line, False
    if relatives.parent is not None:
        yield relatives.parent, (relatives.parent_session,), True


def _find_run(history: History, forms: Sequence[bytes], place: int) -> int | None:
    """Return where messages of these forms stand one after the other: at this place if they do, else the last time."""
    if not forms:
        return None
    if history.forms[place : place + len(forms)] == forms:
        return place
    for start in range(len(history.forms) - len(forms), -1, -1):
        if history.forms[start] == forms[0] and history.forms[start : start + len(forms)] == forms:
            return start
    return None
