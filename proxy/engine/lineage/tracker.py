"""Lineage as the engine uses it: it places requests, turns answers into nodes, and asks the log for what memory lacks.

All of it runs on the event loop and waits only for the log. It waits only if a request contains an answer, or names a
conversation or stored item, that memory does not have, and no longer than the request allows. What is derived here may
be missing; that never fails a call.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from proxy.engine.lineage.chain import Messages
from proxy.engine.lineage.identity import Tenants
from proxy.engine.lineage.resolver import (
    Likeness,
    LineageQuery,
    Placement,
    SessionResolver,
    list_proving_nodes,
    list_shown_fingerprints,
    name_answer,
)
from proxy.engine.lineage.session_index import ANSWER, SessionIndex, SessionNodes
from proxy.engine.ports import Archive, Clock
from proxy.model.errors import StoreUnavailable
from proxy.model.events import CallUnreadableEvent, ExchangeRecorded
from proxy.model.exchange import SUCCESS, SessionKey
from proxy.model.lineage import Adoption, CallFingerprint, NodeRow, Reply, extend_chain, name_fingerprint
from proxy.wire.format import Format
from proxy.wire.identity import Item
from proxy.wire.json_values import read_text

# The least number of seconds to wait for the log, even if the call has used up its waiting time.
RECALL_SECONDS = 0.25
# How the names of responses begin: of those that a client may continue, and of those that began an answer of
# several rounds, of which the client is to continue the last one.
_ANSWERED, _HIDDEN = "response:", "hidden:"

_get_form = attrgetter("form")
_log = logging.getLogger("palimpsest.lineage")


class _OpenExchange(msgspec.Struct, gc=False):
    """An exchange whose answer was not read yet. `untrusted` is its query until the upstream accepts it."""

    known: SessionNodes
    tip: bytes
    token: bytes = b""
    likeness: Likeness = (b"", b"", b"", "")
    origin: tuple[str, bytes] | None = None
    untrusted: LineageQuery | None = None


class LineageTracker:
    """Places requests. `most_bytes` bounds the nodes in memory; `is_fresh`: the log has no session yet.

    `open_exchanges` are those whose answers have not become nodes yet. `unread` has those of them whose answers wait to
    be read, by the node that they answer.
    """

    def __init__(
        self, archive: Archive, tenants: Tenants, clock: Clock, most_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self.tenants = tenants
        self.index = SessionIndex(most_bytes, is_complete=is_fresh)
        self.archive = archive
        self._clock = clock
        self._resolver = SessionResolver(self.index)
        self.open_exchanges: dict[str, _OpenExchange] = {}
        self.unread: dict[bytes, list[str]] = {}
        self._generation = archive.health.generation

    def forget_lost(self) -> bool:
        """Forget everything if the log has lost records since the last call. Return whether that was so."""
        generation = self.archive.health.generation
        if generation == self._generation:
            return False
        self._generation = generation
        self.index.clear()
        return True

    async def find_response(self, session: SessionKey, response: str, until: float = 0.0) -> bytes:
        """Return the node of a stored Responses answer of this tenant and upstream, or b"" unless there is just one."""
        name = name_fingerprint(f"{_ANSWERED}{response}")
        await self._recall_fingerprints(session, [name], until)
        nodes = {fingerprint.node for fingerprint in self._list_fingerprints(session, name)}
        return nodes.pop() if len(nodes) == 1 else b""

    async def find_last(self, session: SessionKey, response: str, until: float = 0.0) -> str:
        """Return the id of the response that ended the answer which a hidden one began; empty if it is no such one."""
        name = name_fingerprint(f"{_HIDDEN}{response}")
        await self._recall_fingerprints(session, [name], until)
        for known in self.index.find_by_fingerprint(session.tenant, session.upstream, name):
            node = known.fingerprints[name].node
            for each, fingerprint in known.fingerprints.items():
                if fingerprint.node == node and each.startswith(_ANSWERED):
                    return each.removeprefix(_ANSWERED)
        return ""

    async def find_bearers(self, session: SessionKey, name: str) -> list[tuple[SessionKey, CallFingerprint]]:
        """Return this tenant's sessions at this upstream with a message of this name, each with its fingerprint."""
        name = name_fingerprint(name)
        await self._recall_fingerprints(session, [name], 0.0)
        bearers = self.index.find_by_fingerprint(session.tenant, session.upstream, name)
        return [(known.key, known.fingerprints[name]) for known in bearers]

    async def resolve_references(self, session: SessionKey, messages: Messages, until: float = 0.0) -> Messages:
        """Return the messages with the forms of stored items in place of the references to them."""
        names: list[str] = []
        for item in messages.fresh:
            if item.reference:
                names.append(name_fingerprint(f"item:{item.reference}"))
        if not names:
            return messages
        await self._recall_fingerprints(session, names, until)
        return replace(messages, fresh=[self._resolve_reference(session, item) for item in messages.fresh])

    async def count_links(self, links: Sequence[bytes], until: float = 0.0) -> int:
        """Return how many links of a body are in the log, as far as the log responds in time."""
        try:
            async with self._limit(until):
                return await self.archive.count_links(links)
        except (StoreUnavailable, TimeoutError):
            return 0

    def list_unread(self, query: LineageQuery) -> Iterator[str]:
        """Yield the exchanges with unread answers that this request may contain.

        Answers to its own tip are left out, since it has no messages after that, and so are answers before its deepest
        known one, which prove less. Read each answer before taking the next exchange: if those in the request's own
        chain prove nothing, it may contain any of the tenant's.
        """
        waiting = [node for node in self._resolver.list_undecided(query) if node in self.unread]
        yield from [exchange for node in dict.fromkeys(waiting) for exchange in self.unread[node]]
        if self._resolver.is_unproven(query):
            yield from self.list_unread_of(query.session.tenant)

    def list_unread_of(self, tenant: bytes) -> Sequence[str]:
        """Return all exchanges of a tenant whose answers wait to be read."""
        waiting = [exchange for exchanges in self.unread.values() for exchange in exchanges]
        return [exchange for exchange in waiting if self.open_exchanges[exchange].known.key.tenant == tenant]

    async def find_session(self, query: LineageQuery) -> SessionNodes | None:
        """Return the session that a request would continue, or None if there is none. Nothing is remembered of it."""
        proof = self._resolver.prove(query)
        if not self.index.is_complete and self._resolver.needs_log(query, proof):
            await self._recall(query)
            proof = self._resolver.prove(query)
        return self.index.get(query.session.id) if query.session.family else proof.known

    async def place(self, query: LineageQuery) -> Placement:
        """Decide where a request belongs, and remember it until its answer has been read."""
        resolver, index, is_certain = self._resolver, self.index, True
        proof = resolver.prove(query)
        if not index.is_complete and resolver.needs_log(query, proof):
            is_certain = await self._recall(query)
            proof = resolver.prove(query)
        placement = resolver.place(query, proof, is_certain=is_certain)
        if index.weight > index.most_bytes:
            index.shrink()
        likeness = query.likeness
        untrusted = query if placement.lineage is None else None
        self.open_exchanges[query.exchange] = _OpenExchange(
            placement.known, likeness[1], query.token, likeness, placement.origin, untrusted
        )
        return placement

    def note_outcome(self, event: ExchangeRecorded) -> None:
        """Record that an answer is in the log, whole or broken, or that none came. Only the last round counts."""
        exchange = self.open_exchanges.get(event.exchange)
        if exchange is None or not event.is_final:
            return
        is_accepted = event.status in SUCCESS
        if is_accepted:
            if event.kind != "recorded":  # no upstream of ours has seen a credential
                self.tenants.prove(exchange.token)
            if exchange.untrusted is not None or exchange.origin is not None:
                self._accept(exchange)
        elif exchange.untrusted is not None:  # a rejected caller's request does not become part of the conversation
            self.close(event.exchange)
            return
        if not is_accepted or event.completeness != "complete":
            self._resolver.record_unanswered(exchange.known, exchange.likeness)
        if event.is_readable:
            self.unread.setdefault(exchange.tip, []).append(event.exchange)
        else:
            self.close(event.exchange)

    async def reopen(self, exchange: str, session: SessionKey, tip: bytes) -> bool:
        """Expect an answer that another process recorded. Return False if the log does not have what precedes it."""
        if self.index.get(session.id) is None and not await self._ask((), (), session):
            return False
        self.open_exchanges[exchange] = _OpenExchange(self.index.open(session), tip)
        self.index.shrink()
        self.unread.setdefault(tip, []).append(exchange)
        return True

    def note_answer(
        self,
        exchange: str,
        k: int,
        form: Format,
        value: Mapping[str, object],
        *,
        begun: str = "",
        is_read: bool = True,
    ) -> Reply | None:
        """Return the nodes of an answer that was read, one chain for each alternative that a client may continue.

        `begun` is the id of another response, by which the client may know this one. Without `is_read` the answer is
        still expected to be read.
        """
        place = self.open_exchanges.get(exchange)
        if is_read:
            self.close(exchange)
        if place is None:
            return None
        known, tip = place.known, place.tip
        response = read_text(value.get("id")) if form.previous_key else ""
        ids = form.read_ids(value)
        rows: list[NodeRow] = []
        fingerprints: list[CallFingerprint] = []
        for items in form.read_reply(value):
            chain = extend_chain(tip, map(_get_form, items))
            parent = tip
            for i, node in enumerate(chain):
                item = items[i]
                for name in name_answer(item, ids[i] if i < len(ids) else "", known.key):
                    fingerprints.append(CallFingerprint(name, node, item.form))
                if node != parent and known.standings.get(node) != ANSWER:  # else it was recorded before
                    rows.append(NodeRow(node, parent, True))
                parent = node
            if response and chain:
                fingerprints.append(CallFingerprint(name_fingerprint(f"{_ANSWERED}{response}"), parent, items[-1].form))
                if begun not in ("", response):
                    fingerprints.append(CallFingerprint(name_fingerprint(f"{_HIDDEN}{begun}"), parent, items[-1].form))
        if fingerprints and tip not in known.standings:  # a root has no fingerprints
            fingerprints = [fingerprint for fingerprint in fingerprints if fingerprint.node != tip]
        self.index.add(known.key.id, rows, fingerprints)
        self._resolver.record_answer(rows, fingerprints)
        if self.index.weight > self.index.most_bytes:
            self.index.shrink()
        # Remove duplicates: alternatives may be equal, or begin alike.
        return Reply(exchange, k, tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(fingerprints)))

    def list_open(self, session: str) -> list[str]:
        """Return the exchanges of a session whose answers have not become nodes yet."""
        return [exchange for exchange, place in self.open_exchanges.items() if place.known.key.id == session]

    def note_unread(self, event: CallUnreadableEvent) -> None:
        """Record that an answer could not be read."""
        self.close(event.exchange)

    def close(self, exchange: str) -> None:
        """Stop expecting an answer of this exchange."""
        place = self.open_exchanges.pop(exchange, None)
        if place is None:
            return
        waiting = self.unread.get(place.tip)
        if waiting is not None and exchange in waiting:
            waiting.remove(exchange)
            if not waiting:
                del self.unread[place.tip]

    def _accept(self, exchange: _OpenExchange) -> None:
        """Record an accepted request in its session, and the session of another credential that it extends."""
        if exchange.untrusted is not None:
            known = self.index.open(exchange.known.key)
            self.archive.append(self._resolver.record_request(exchange.untrusted, known), is_urgent=False)
            exchange.known, exchange.untrusted = known, None
        if exchange.origin is not None and exchange.origin[0] not in exchange.known.adopted:
            session, node = exchange.origin
            exchange.known.adopted.add(session)
            adoption = Adoption(exchange.known.key.id, session, node, self._clock.now_ms())
            self.archive.append(adoption, is_urgent=False)

    def _list_fingerprints(self, session: SessionKey, name: str) -> list[CallFingerprint]:
        """Return the fingerprints of this name that the session's tenant has at its upstream."""
        return [
            known.fingerprints[name] for known in self.index.find_by_fingerprint(session.tenant, session.upstream, name)
        ]

    def _resolve_reference(self, session: SessionKey, item: Item) -> Item:
        fingerprints = (
            self._list_fingerprints(session, name_fingerprint(f"item:{item.reference}")) if item.reference else ()
        )
        forms = {fingerprint.form for fingerprint in fingerprints}
        return replace(item, form=forms.pop()) if len(forms) == 1 else item

    async def _recall_fingerprints(self, session: SessionKey, names: Sequence[str], until: float) -> None:
        """Load the sessions that have these fingerprints."""
        unknown = [name for name in names if not self._list_fingerprints(session, name)]
        if unknown and not self.index.is_complete:
            await self._ask((), unknown, session, until)

    def _limit(self, until: float) -> asyncio.Timeout:
        """Return a time limit for a wait for the log: `until`, but at least RECALL_SECONDS from now."""
        return asyncio.timeout(max(until - self._clock.monotonic(), RECALL_SECONDS))

    async def _recall(self, query: LineageQuery) -> bool:
        """Load the sessions that a request may extend. Return False if the log did not respond in time."""
        is_answered = await self._ask(
            list_proving_nodes(query), list_shown_fingerprints(query), query.session, query.until
        )
        if is_answered:
            self._resolver.record_recall(query)
        else:
            _log.warning(
                "the log did not say in time which session a call belongs to; it is recorded in a session of its own."
                " The disk is slow, or busy",
                extra={"exchange": query.exchange, "session": query.session.id},
            )
        return is_answered

    async def _ask(self, nodes: Sequence[bytes], names: Sequence[str], session: SessionKey, until: float = 0.0) -> bool:
        """Load sessions from the log. Return whether it responded."""
        try:
            async with self._limit(until):
                found = await self.archive.recall(nodes, names, session)
        except (StoreUnavailable, TimeoutError):
            return False  # splitting a conversation in two does no harm
        for stored in found:
            self.index.absorb(stored)
        return True
