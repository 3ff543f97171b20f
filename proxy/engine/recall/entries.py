"""What references name: originals that epochs replaced, summaries, and entries of the index, if they may be read."""

import asyncio
import difflib
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from proxy.engine.ports import Index
from proxy.engine.recall.history import History
from proxy.engine.recall.scope import (
    RecallLog,
    Relatives,
    Scope,
    Standing,
    find_standing,
    is_conversation,
    list_readable,
    load_row,
)
from proxy.engine.recall.versions import list_paths
from proxy.engine.recorded.conversation import OriginalText, load_original_text
from proxy.engine.recorded.documents import describe
from proxy.engine.recorded.lookup import read_back
from proxy.model.epoch import OUTSIDE
from proxy.model.errors import Erased, NotFound
from proxy.model.messages import Message
from proxy.model.search import EntryKind, IndexedEntry
from proxy.wire import FORMATS
from proxy.wire.json_values import read_object, read_text

_MOST_NAMED = 3
_CLOSE = 0.75
_BELONGS_ELSEWHERE = (
    "ref:{name} belongs to another branch or session, which this conversation may not read."
    " The user can read it with `palimpsest expand {name}`."
)


class FoundEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a reference names. `at_ms` is when it was recorded, 0 if that has to be looked up."""

    reference: str
    session: str
    kind: EntryKind
    role: str
    tool: str
    text: str
    path: str = ""
    at_ms: int = 0
    standing: Standing


class EntryFinder:
    """Finds what references name. What a requester may not read is refused as if it did not exist."""

    def __init__(self, log: RecallLog, index: Index) -> None:
        self._log = log
        self._index = index

    async def find(self, scope: Scope, relatives: Relatives, name: str) -> FoundEntry:
        """Return what an id names, given without `ref:`. Raises NotFound, which says to a model what to do.

        A reference of another tenant is like one that never was; of the own ones, erased ones are told. For a requester
        without a history of its own, it stands in the newest of its session.
        """
        try:
            loaded = await load_original_text(self._log, name)
        except Erased as error:
            if await self._is_own(scope, relatives, error.session):
                text = f"What ref:{name} names was erased from the log{error.day}; it cannot be read any more."
                raise Erased(text, error.session, error.at_ms) from error
            raise NotFound(await self._tell_unknown(scope, name)) from error
        except NotFound:
            indexed = await self._index.find_entry(name)
            if indexed is None or not await self._is_own(scope, relatives, indexed.session):
                raise NotFound(await self._tell_unknown(scope, name)) from None
            find = partial(_find_indexed, entry=indexed)
            return _read_indexed(indexed, await self._place(scope, relatives, name, indexed.session, find))
        if not await self._is_own(scope, relatives, loaded.session):
            raise NotFound(await self._tell_unknown(scope, name))
        if loaded.original.place == OUTSIDE and loaded.session in (*relatives.line, relatives.parent_session):
            return _read_file(name, loaded)
        find = partial(find_standing, stored=loaded)
        standing = await self._place(scope, relatives, name, loaded.session, find)
        return await asyncio.to_thread(_read_original, name, loaded, standing)

    async def _place(
        self, scope: Scope, relatives: Relatives, name: str, session: str, find: Callable[[Scope, Relatives], Standing]
    ) -> Standing:
        """Return where the content of a reference stands. Raises NotFound if the requester may not read it."""
        standing = await asyncio.to_thread(find, scope, relatives)
        if standing.history is not None:
            return standing
        if not await self._reaches(scope, relatives, session):
            raise NotFound(_BELONGS_ELSEWHERE.format(name=name))
        if scope.history is None and (history := await self.find_newest(session)) is not None:
            own = msgspec.structs.replace(scope, session=session, history=history)
            return await asyncio.to_thread(find, own, Relatives((session,)))
        return standing

    async def find_newest(self, session: str) -> History | None:
        """Load the newest history of a session that can be read; None if there is none."""
        try:
            async for row in read_back(self._log, session):
                if is_conversation(row):
                    return await load_row(self._log, row)
        except NotFound:
            pass
        return None

    async def find_time(self, entry: FoundEntry) -> int:
        """Return when the last message of an entry came, in milliseconds since 1970; 0 if that is not known."""
        history, places = entry.standing.history, entry.standing.places
        if entry.at_ms or history is None or not places:
            return entry.at_ms
        try:
            branches = await self._log.list_branches(entry.session)
            calls = [
                call
                for branch in branches
                if branch.tip in history.places
                for call in branch.exchanges
                if call.depth >= places.stop
            ]
            for row in await self._log.list_calls(entry.session, min(calls).n - 1, 1) if calls else ():
                return row.opened_ms
        except NotFound:
            pass
        return 0

    async def find_reference(self, session: str, history: History, place: int) -> str:
        """Return the reference of the message at a place, with as few others as possible; empty if it has none."""
        try:
            epochs = await self._log.list_epochs(session)
        except NotFound:
            return ""
        spans = [
            (len(each.digests), each.id)
            for epoch in reversed(epochs)
            if epoch.through in history.places
            for each in epoch.originals
            if not each.offset and each.place <= place < each.place + len(each.digests)
        ]
        return min(spans)[1] if spans else ""

    async def _is_own(self, scope: Scope, relatives: Relatives, session: str) -> bool:
        """Return whether a session is the requester's tenant's, or one that its own goes on from."""
        return session in relatives.line or await self._is_tenants(scope, session)

    async def _reaches(self, scope: Scope, relatives: Relatives, session: str) -> bool:
        """Return whether content of a session may be read that the requester does not continue.

        Sessions of other credentials never are, but for the part that it goes on from.
        """
        is_near = scope.reach == "tenant" or (scope.reach == "session" and session in relatives.line)
        return (scope.tenant is None or is_near) and await self._is_tenants(scope, session)

    async def _is_tenants(self, scope: Scope, session: str) -> bool:
        if scope.tenant is None:
            return True
        try:
            return (await self._log.find_key(session)).tenant == scope.tenant
        except NotFound:
            return False

    async def _tell_unknown(self, scope: Scope, name: str) -> str:
        """Say that there is no such reference, with the ones of the session that a model may have meant."""
        known: Sequence[str] = ()
        if scope.session:
            try:
                epochs = await self._log.list_epochs(scope.session)
                known = list({each.id for epoch in epochs for each in epoch.originals})
            except NotFound:
                pass
        near = difflib.get_close_matches(name, known, _MOST_NAMED, _CLOSE)
        meant = f" Did you mean {' or '.join(f'ref:{each}' for each in near)}?" if near else ""
        return f"There is no ref:{name}.{meant} Copy a reference as it stands, or find its content with search."


def _read_original(name: str, loaded: OriginalText, standing: Standing) -> FoundEntry:
    """Return what the reference of an original names. Blocks: the calls of its history may have to be found."""
    messages = [FORMATS[loaded.original.wire].parse_message(raw) for raw in loaded.messages]
    kind: EntryKind = "summary" if loaded.is_summary else "output" if _is_output(messages) else "message"
    act = standing.history.find_call(standing.places.start) if standing.history is not None else None
    paths = list_paths(act.call) if act is not None else []
    return FoundEntry(
        reference=name,
        session=loaded.session,
        kind=kind,
        role=_name_roles(messages),
        tool=act.call.name if act is not None else "",
        text=loaded.text,
        path=paths[0] if len(paths) == 1 else "",
        standing=standing,
    )


def _read_file(name: str, loaded: OriginalText) -> FoundEntry:
    """Return what the reference of a file names that a program has put into the log."""
    members = read_object(loaded.messages[0].decode(errors="replace")) or {}
    return FoundEntry(
        reference=name,
        session=loaded.session,
        kind="message",
        role=read_text(members.get("role")),
        tool="",
        text=loaded.text,
        path=read_text(members.get("name")),
        standing=Standing(),
    )


def _find_indexed(scope: Scope, relatives: Relatives, entry: IndexedEntry) -> Standing:
    """Find the message of an entry in what the requester, or its parent, continues."""
    for history, sessions, is_parents in list_readable(scope, relatives):
        place = history.places.get(entry.node) if entry.session in sessions else None
        if place is not None and place < len(history):
            return Standing(history, range(place, place + 1), is_parents)
    return Standing()


def _read_indexed(entry: IndexedEntry, standing: Standing) -> FoundEntry:
    return describe(FoundEntry, entry, standing=standing)


def _is_output(messages: Sequence[Message]) -> bool:
    return len(messages) == 1 and bool(messages[0].results)


def _name_roles(messages: Sequence[Message]) -> str:
    """Name who said the messages: the role of one, or how many there are."""
    return messages[0].role if len(messages) == 1 else f"{len(messages)} messages"
