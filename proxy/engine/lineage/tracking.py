"""Lineage as the engine uses it: requests are placed, answers become nodes, the log is asked for what memory lacks.

Rule: on the event loop, and waits for nothing but the log, and for that only where a request shows an answer that
memory does not know. What is derived here may be missing; it never fails a call.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.engine.lineage.chain import Messages
from proxy.engine.lineage.forest import Forest
from proxy.engine.lineage.known import Known
from proxy.engine.lineage.placing import Asked, Place, Placing, name_answer, name_unknown
from proxy.engine.lineage.tenants import Tenants
from proxy.engine.ports import Archive, Clock
from proxy.model.errors import StoreUnavailable
from proxy.model.events import ExchangeRecorded, ReadingFailed
from proxy.model.lineage import Adoption, Mark, NodeRow, Reply, extend_chain, name_mark
from proxy.wire.evidence import read_text
from proxy.wire.format import Format
from proxy.wire.identity import Item

_RECALL_SECONDS = 0.25
_SUCCESS = range(200, 300)


class _Open(msgspec.Struct, gc=False):
    """An exchange whose answer has not become nodes yet."""

    known: Known
    tip: bytes
    token: bytes
    source: tuple[str, bytes] | None


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

    def find_response(self, tenant: bytes, response: str) -> bytes:
        """The node of a stored Responses answer of this tenant, which a request goes on from; else empty."""
        mark = self._find_mark(tenant, name_mark(f"response:{response}"))
        return mark.node if mark is not None else b""

    def resolve(self, tenant: bytes, messages: Messages) -> Messages:
        """References to items that are stored, in place of which their forms count."""
        if not any(item.reference for item in messages.fresh):
            return messages
        return replace(messages, fresh=[self._resolve(tenant, item) for item in messages.fresh])

    def list_unread(self, asked: Asked) -> Sequence[str]:
        """The exchanges whose answers this request may show, and which have not been read yet.

        Not those of its own tip: it shows nothing behind that.
        """
        if not self._unread:
            return ()
        nodes = asked.nodes[max(0, asked.start - 1) : -1]
        return [exchange for node in nodes for exchange in self._unread.get(node, ())]

    async def place(self, asked: Asked) -> Place:
        """Decide where a request belongs, and keep it in mind until its answer has been read."""
        if self._placing.lacks(asked):
            await self._recall(asked)
        place = self._placing.place(asked)
        known = self._forest.get(place.session.id)
        assert known is not None, "it has just been placed there"
        self._open[asked.exchange] = _Open(known, place.step.tip, asked.token, place.source)
        return place

    def note_outcome(self, event: ExchangeRecorded) -> None:
        """An answer has been recorded, whole or broken, or none came."""
        place = self._open.get(event.exchange)
        if place is None:
            return
        if event.status in _SUCCESS:
            self._accept(place)
        if event.completeness != "complete" or event.status not in _SUCCESS:
            self._placing.note_unanswered(place.known, place.tip)
        if event.is_readable:
            self._unread.setdefault(place.tip, []).append(event.exchange)
        else:
            self.close(event.exchange)

    def note_answer(self, exchange: str, k: int, form: Format, value: Mapping[str, object]) -> Reply | None:
        """An answer has been read: what a client will show of it becomes nodes, a chain for each alternative."""
        place = self._open.get(exchange)
        self.close(exchange)
        if place is None:
            return None
        response = read_text(value.get("id")) if form.previous_key else ""
        ids = form.read_ids(value)
        nodes: list[NodeRow] = []
        marks: list[Mark] = []
        for items in form.read_reply(value):
            chain = extend_chain(place.tip, (item.form for item in items))
            nodes += _list_answer(place, chain)
            for i, (item, node) in enumerate(zip(items, chain, strict=True)):
                marks += [Mark(name, node, item.form) for name in name_answer(item, ids[i] if i < len(ids) else "")]
            if response and chain:
                marks.append(Mark(name_mark(f"response:{response}"), chain[-1], items[-1].form))
        self._forest.add(place.known, nodes, marks)
        return Reply(exchange, k, tuple(nodes), tuple(marks))

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

    def _accept(self, place: _Open) -> None:
        """The upstream has accepted the credential: what it goes on from, if that is another's, is its own now."""
        self.tenants.prove(place.token)
        if place.source is not None:
            session, node = place.source
            self._archive.append(Adoption(place.known.key.id, session, node, self._clock.now_ms()), is_urgent=False)

    def _find_mark(self, tenant: bytes, name: str) -> Mark | None:
        """The mark of this name, if only one session of the tenant has it."""
        found = [known.marks[name] for known in self._forest.find_by_mark(name) if known.key.tenant == tenant]
        return found[0] if len(found) == 1 else None

    def _resolve(self, tenant: bytes, item: Item) -> Item:
        mark = self._find_mark(tenant, name_mark(f"item:{item.reference}")) if item.reference else None
        return item if mark is None else replace(item, form=mark.form)

    async def _recall(self, asked: Asked) -> None:
        try:
            async with asyncio.timeout(_RECALL_SECONDS):
                found = await self._archive.recall(asked.nodes, name_unknown(asked), asked.session.id)
        except (StoreUnavailable, TimeoutError):
            return  # a conversation that is found twice does no harm
        for stored in found:
            self._forest.absorb(stored)
        self._placing.note_recalled(asked)


def _list_answer(place: _Open, chain: Sequence[bytes]) -> list[NodeRow]:
    """The nodes of an answer behind a request's tip, but those that were recorded as answers before."""
    pairs = zip([place.tip, *chain], chain, strict=False)
    return [NodeRow(node, parent, True) for parent, node in pairs if node != parent and not place.known.is_answer(node)]
