"""Lineage as the engine uses it: requests are placed, answers become nodes, the log is asked for what memory lacks.

Rule: on the event loop, and waits for nothing but the log, and for that only where a request shows an answer, or names
a conversation or a stored item, that memory does not know: until the time that the request says. What is derived here
may be missing; it never fails a call.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from proxy.engine.lineage.chain import Messages
from proxy.engine.lineage.forest import Forest
from proxy.engine.lineage.known import SessionNodes
from proxy.engine.lineage.placing import (
    Likeness,
    LineageQuery,
    Placement,
    Placing,
    list_telling,
    name_answer,
    name_unknown,
)
from proxy.engine.lineage.tenants import Tenants
from proxy.engine.ports import Archive, Clock
from proxy.model.errors import StoreUnavailable
from proxy.model.events import ExchangeRecorded, ReadingFailed
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Adoption, CallFingerprint, NodeRow, Reply, extend_chain, name_mark
from proxy.wire.format import Format
from proxy.wire.identity import Item
from proxy.wire.json_values import read_text

# For so long the log is waited for in any case, also behind a wait for something else of the same call.
_RECALL_SECONDS = 0.25
_SUCCESS = range(200, 300)

_log = logging.getLogger("palimpsest.lineage")

T = TypeVar("T")


class _Open(msgspec.Struct, gc=False):
    """An exchange whose answer has not become nodes yet."""

    known: SessionNodes
    tip: bytes
    token: bytes = b""
    likeness: Likeness = (b"", b"", b"", "")
    source: tuple[str, bytes] | None = None
    pending: LineageQuery | None = None


class Lineage:
    """Places requests. `most_bytes` bounds the nodes in memory; `is_fresh`: the log holds no session yet."""

    def __init__(
        self, archive: Archive, tenants: Tenants, clock: Clock, most_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self._archive = archive
        self._clock = clock
        self._forest = Forest(most_bytes, is_complete=is_fresh)
        self._placing = Placing(self._forest)
        self._open: dict[str, _Open] = {}
        self._unread: dict[bytes, list[str]] = {}
        self._generation = archive.health.generation
        self.tenants = tenants

    def forget_lost(self) -> bool:
        """Whether the log has lost records since this was asked last: nothing in memory is certain then, or kept."""
        generation = self._archive.health.generation
        if generation == self._generation:
            return False
        self._generation = generation
        self._forest.clear()
        return True

    async def find_response(self, session: SessionKey, response: str, until: float = 0.0) -> bytes:
        """The node of a stored Responses answer of this tenant and upstream, which a request goes on from; or empty."""
        name = name_mark(f"response:{response}")
        await self._learn(session, [name], until)
        nodes = {mark.node for mark in self._list_marks(session, name)}
        return nodes.pop() if len(nodes) == 1 else b""

    async def resolve(self, session: SessionKey, messages: Messages, until: float = 0.0) -> Messages:
        """References to items that are stored, in place of which their forms count."""
        names = [name_mark(f"item:{item.reference}") for item in messages.fresh if item.reference]
        if not names:
            return messages
        await self._learn(session, names, until)
        return replace(messages, fresh=[self._resolve(session, item) for item in messages.fresh])

    async def count_links(self, links: Sequence[bytes], until: float = 0.0) -> int:
        """How many of the links of a body are in the log, as far as that can be told in time."""
        try:
            async with self._limit(until):
                return await self._archive.count_links(links)
        except (StoreUnavailable, TimeoutError):
            return 0

    def list_unread(self, asked: LineageQuery) -> Iterator[str]:
        """The exchanges whose answers this request may show, and which have not been read yet.

        Not those of its own tip, behind which it shows nothing, nor those before its deepest known answer, which prove
        less than that. To be read one by one as they come: where those in its own chain prove nothing, it may show any
        of the tenant's.
        """
        if not self._unread:
            return
        waiting = [node for node in self._placing.list_undecided(asked) if node in self._unread]
        yield from [exchange for node in dict.fromkeys(waiting) for exchange in self._unread[node]]
        if self._placing.is_unproven(asked):
            yield from self.list_unread_of(asked.session.tenant)

    def list_unread_of(self, tenant: bytes) -> Sequence[str]:
        """All exchanges of a tenant whose answers wait to be read."""
        waiting = [exchange for exchanges in self._unread.values() for exchange in exchanges]
        return [exchange for exchange in waiting if self._open[exchange].known.key.tenant == tenant]

    async def place(self, asked: LineageQuery) -> Placement:
        """Decide where a request belongs, and keep it in mind until its answer has been read."""
        is_certain = not self._placing.lacks(asked) or await self._recall(asked)
        place = self._placing.place(asked, is_certain=is_certain)
        known = self._forest.open(place.session)
        self._forest.shrink()
        pending = asked if place.step is None else None
        self._open[asked.exchange] = _Open(known, asked.tip, asked.token, asked.likeness, place.source, pending)
        return place

    def note_outcome(self, event: ExchangeRecorded) -> None:
        """An answer has been recorded, whole or broken, or none came. The place waits for that of the last round."""
        place = self._open.get(event.exchange)
        if place is None or not event.is_final:
            return
        if event.status in _SUCCESS:
            self._accept(place)
        elif place.pending is not None:  # whoever it was has not become part of the conversation
            self.close(event.exchange)
            return
        if event.completeness != "complete" or event.status not in _SUCCESS:
            self._placing.note_unanswered(place.known, place.likeness)
        if event.is_readable:
            self._wait(event.exchange, place)
        else:
            self.close(event.exchange)

    async def reopen(self, exchange: str, session: SessionKey, tip: bytes) -> bool:
        """An answer that another process recorded will be read; False where the log does not say what goes before."""
        if self._forest.get(session.id) is None and not await self._ask((), (), session):
            return False
        place = self._open[exchange] = _Open(self._forest.open(session), tip)
        self._forest.shrink()
        self._wait(exchange, place)
        return True

    def note_answer(self, exchange: str, k: int, form: Format, value: Mapping[str, object]) -> Reply | None:
        """An answer has been read: what a client will show of it becomes nodes, a chain for each alternative."""
        place = self._open.get(exchange)
        self.close(exchange)
        if place is None:
            return None
        response = read_text(value.get("id")) if form.previous_key else ""
        ids = form.read_ids(value)
        nodes: list[NodeRow] = []
        marks: list[CallFingerprint] = []
        for items in form.read_reply(value):
            chain = extend_chain(place.tip, [item.form for item in items])
            nodes += _list_answer(place, chain)
            marks += _list_names(place, chain, items, ids)
            if response and chain:
                marks.append(CallFingerprint(name_mark(f"response:{response}"), chain[-1], items[-1].form))
        if not place.known.has(place.tip):  # a root bears none
            marks = [mark for mark in marks if mark.node != place.tip]
        self._forest.add(place.known.key.id, nodes, marks)
        self._placing.note_answer(nodes, marks)
        self._forest.shrink()
        return Reply(exchange, k, _keep_once(nodes), _keep_once(marks))

    def note_unread(self, event: ReadingFailed) -> None:
        """An answer could not be read."""
        self.close(event.exchange)

    def close(self, exchange: str) -> None:
        """No answer of this exchange will be read (any more)."""
        place = self._open.pop(exchange, None)
        if place is None:
            return
        waiting = self._unread.get(place.tip, [])
        if exchange in waiting:
            waiting.remove(exchange)
            if not waiting:
                del self._unread[place.tip]

    def _wait(self, exchange: str, place: _Open) -> None:
        """What this answers may be shown before it has been read."""
        self._unread.setdefault(place.tip, []).append(exchange)

    def _accept(self, place: _Open) -> None:
        """The upstream has accepted the credential: where it stands counts, and what it goes on from is its own now."""
        self.tenants.prove(place.token)
        if place.pending is not None:
            known = self._forest.open(place.known.key)
            self._archive.append(self._placing.enter(place.pending, known), is_urgent=False)
            place.known, place.pending = known, None
        if place.source is not None and place.source[0] not in place.known.adopted:
            session, node = place.source
            place.known.adopted.add(session)
            self._archive.append(Adoption(place.known.key.id, session, node, self._clock.now_ms()), is_urgent=False)

    def _list_marks(self, session: SessionKey, name: str) -> list[CallFingerprint]:
        """The marks of this name that the session's tenant has at its upstream."""
        return [known.marks[name] for known in self._forest.find_by_mark(session.tenant, session.upstream, name)]

    def _resolve(self, session: SessionKey, item: Item) -> Item:
        marks = self._list_marks(session, name_mark(f"item:{item.reference}")) if item.reference else ()
        forms = {mark.form for mark in marks}
        return replace(item, form=forms.pop()) if len(forms) == 1 else item

    async def _learn(self, session: SessionKey, names: Sequence[str], until: float) -> None:
        """Have the sessions in memory that bear these marks."""
        unknown = [name for name in names if not self._list_marks(session, name)]
        if unknown and not self._forest.is_complete:
            await self._ask((), unknown, session, until)

    def _limit(self, until: float) -> asyncio.Timeout:
        """The end of a wait for the log: then, or a little later where that is near or over."""
        return asyncio.timeout(max(until - self._clock.monotonic(), _RECALL_SECONDS))

    async def _recall(self, asked: LineageQuery) -> bool:
        is_answered = await self._ask(list_telling(asked), name_unknown(asked), asked.session, asked.until)
        if is_answered:
            self._placing.note_recalled(asked)
        else:
            _log.warning(
                "exchange %s: the log did not say in time which session it belongs to; it is taken as one of %s alone",
                asked.exchange,
                asked.session.id,
            )
        return is_answered

    async def _ask(self, nodes: Sequence[bytes], names: Sequence[str], session: SessionKey, until: float = 0.0) -> bool:
        """Whether the log has answered."""
        try:
            async with self._limit(until):
                found = await self._archive.recall(nodes, names, session)
        except (StoreUnavailable, TimeoutError):
            return False  # a conversation that is found twice does no harm
        for stored in found:
            self._forest.absorb(stored)
        return True


def _list_answer(place: _Open, chain: Sequence[bytes]) -> list[NodeRow]:
    """The nodes of an answer behind a request's tip, but those that were recorded as answers before."""
    pairs = zip([place.tip, *chain], chain, strict=False)
    return [NodeRow(node, parent, True) for parent, node in pairs if node != parent and not place.known.is_answer(node)]


def _list_names(
    place: _Open, chain: Sequence[bytes], items: Sequence[Item], ids: Sequence[str]
) -> list[CallFingerprint]:
    """What the messages of an answer may be known by."""
    session = place.known.key
    return [
        CallFingerprint(name, node, item.form)
        for i, (item, node) in enumerate(zip(items, chain, strict=True))
        for name in name_answer(item, ids[i] if i < len(ids) else "", session)
    ]


def _keep_once(rows: Sequence[T]) -> tuple[T, ...]:
    """Each once: alternatives may be equal, or begin alike."""
    return tuple(rows) if len(rows) < 2 else tuple(dict.fromkeys(rows))
