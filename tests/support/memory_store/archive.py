"""The log in memory, for tests; what can be observed is as with a file.

Records of one append are taken together, at worst without those that are derived, or not at all; what is a duplicate or
refers to nothing is refused and counted.
It is bounded by nothing but memory, and gone with the process.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from proxy.engine.ports import ALL_SESSIONS, MOST_BEARING, MOST_HELD, MOST_MARKS, MOST_UNREAD, MOST_UNREAD_BYTES
from proxy.model.epoch import Epoch, EpochUse, StoredContext, StoredOriginal, Summary
from proxy.model.errors import NotFound
from proxy.model.exchange import HeldRow, Opening, Round, SessionKey, Trailer
from proxy.model.lineage import NodeRow, Step, StoredSession, name_mark
from proxy.model.log import (
    ArchiveHealth,
    AuxiliaryUsage,
    BranchRow,
    ExchangeRow,
    Record,
    RoundRow,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
    drop_derived,
)
from proxy.model.manifest import (
    BlobPiece,
    Manifest,
    Piece,
    compute_digest,
    compute_root_link,
    decode_recipe,
)
from proxy.model.memory import MemoryOrder, StoredMemory
from proxy.store.constraints import fit_text, fit_usage
from proxy.store.sqlite.lineage_queries import choose_recalled
from tests.support.figures import DerivedFigures
from tests.support.memory_store.checks import verify_tables
from tests.support.memory_store.contexts import (
    list_epochs,
    list_summaries,
    list_uses,
    load_context,
    load_epoch,
    load_memory,
    load_original,
)
from tests.support.memory_store.listing import find_last, is_called, make_session, sum_auxiliary
from tests.support.memory_store.tables import Exchange, Tables
from tests.support.memory_store.tree import Tree

_SALT_SIZE = 32


class MemoryArchive(DerivedFigures):
    """The `Archive` port over dictionaries, one for each table."""

    def __init__(self) -> None:
        self._salt = os.urandom(_SALT_SIZE)
        self.tables = Tables()
        self._dropped = 0
        self._generation = 0
        self._is_closed = False

    @property
    def salt(self) -> bytes:
        """32 random bytes: what fingerprints of credentials are salted with."""
        return self._salt

    @property
    def health(self) -> ArchiveHealth:
        """How the log is doing now; cheap."""
        return ArchiveHealth("", 0, 0, self._dropped, self._generation)

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        """Take records, all or none; the future is done at once."""
        taken = self._take(records)
        if len(taken) < len(records):
            self._dropped += len(records) - len(taken)
            self._generation += 1
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        stored.set_result(bool(taken))
        return stored

    def flush(self) -> None:
        """Nothing waits here."""

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        """Newest activity first."""
        chosen = [key for key in self.tables.sessions if self._is_chosen(key, selection)]
        chosen = [key for key in chosen if selection.family or is_called(self.tables, key)]
        latest = sorted(chosen, key=lambda key: find_last(self.tables, key).seq, reverse=True)
        return [make_session(self.tables, key) for key in latest[:limit]]

    async def find_session(self, session: str) -> SessionRow:
        """The session with this id. Raises NotFound."""
        return make_session(self.tables, self._expect(session))

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        """The ids of sessions that begin so, in order."""
        return sorted(key for key in self.tables.sessions if key.startswith(fit_text(prefix)))[:limit]

    async def number_calls(self, exchanges: Sequence[str]) -> dict[str, int]:
        """The numbers of exchanges in their sessions, by their ids, without those that are unknown."""
        return {each: self.tables.exchanges[each].n for each in exchanges if each in self.tables.exchanges}

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """The exchanges of a session behind number `after`, oldest first. Raises NotFound for an unknown session."""
        names = list(self.tables.sessions[self._expect(session)].values())
        return [self._make_exchange(self.tables.exchanges[name]) for name in names[after : after + limit]]

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        """As `list_exchanges`, but every `answer` is empty."""
        return [_leave_answers(row) for row in await self.list_exchanges(session, after, limit)]

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        """The branches of a session in the order in which they began. Raises NotFound for an unknown session."""
        tables = self.tables
        return tables.trees[self._expect(session)].list_branches(tables.sessions[session])

    async def recall(
        self, nodes: Sequence[bytes], marks: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        """Sessions that may hold what a request continues; newest last (see `Ancestry`)."""
        trees, keys, names = self.tables.trees, self.tables.keys, list(map(name_mark, marks[-MOST_MARKS:]))
        own = [key for key in trees if keys[key].tenant == session.tenant]
        named = [key for key in own if key == session.id]
        answered = _find_answered({key: trees[key] for key in own}, nodes)
        each = [[key for key in own if name in trees[key].marks][-MOST_BEARING:] for name in names]
        bearing = [] if answered else [key for key in own if any(key in bearers for bearers in each)]
        others = [] if answered else _find_answered(trees, nodes)
        found = (key for group in (named, answered, bearing, others) for key in reversed(group))
        kept = set(choose_recalled(found, lambda key: trees[key].weight))
        return [tree.store(keys[key]) for key, tree in trees.items() if key in kept]

    async def count_links(self, links: Sequence[bytes]) -> int:
        """How many of the links of a chain, in its order, are in the log."""
        return sum(link in self.tables.slices for link in links)

    async def find_key(self, session: str) -> SessionKey:
        """Whose the session with this id is, and what names it. Raises NotFound."""
        return self.tables.keys[self._expect(session)]

    async def has_sessions(self) -> bool:
        """False while the log has none."""
        return bool(self.tables.sessions)

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        """Answers among the newest outcomes that nobody has read; newest first (see `Backlog`)."""
        return list(_list_unread(self.tables, limit, most_bytes))

    async def load_request(self, exchange: str) -> bytes:
        """The client's body, byte for byte (its head, where it was capped). Raises NotFound."""
        opening = self._find_opening(exchange)
        return self._join(opening.session.tenant, opening.body)

    async def load_held(self, exchange: str) -> bytes:
        """What the client sent of a request whose history we hold. Raises NotFound."""
        if exchange not in self.tables.held:
            raise NotFound(f"exchange {exchange} has no held history")
        return self._join(self._find_opening(exchange).session.tenant, self.tables.held[exchange].body)

    async def list_held(self, session: str) -> Sequence[HeldRow]:
        """The newest calls of a session whose history we hold, newest first."""
        held = [each for each in self.tables.held.values() if self.tables.find_session(each.exchange) == session]
        rows = [HeldRow(each.exchange, each.history, each.key, each.digest) for each in held[::-1] if each.history]
        return rows[:MOST_HELD]

    async def load_sent(self, exchange: str, k: int) -> bytes:
        """The body sent upstream in round k, byte for byte. Raises NotFound."""
        record = self.tables.rounds.get(exchange, {}).get(k)
        if record is None:
            raise NotFound(f"there is no round {k} of exchange {exchange}")
        opening, held = self._find_opening(exchange), self.tables.held.get(exchange)
        own = held.body if held is not None and not held.history else opening.body
        return self._join(opening.session.tenant, own if record.body is None else record.body)

    async def load_received(self, exchange: str, k: int) -> bytes:
        """The body the upstream answered with in round k, trailers included, as far as kept. Raises NotFound."""
        outcome = self.tables.outcomes.get((exchange, k))
        if outcome is None:
            raise NotFound(f"there is no answer to round {k} of exchange {exchange}")
        # behind a capped body there is a gap, so nothing that came later may be joined to it
        trailers = [] if outcome.whole_digest else self._list_trailers(exchange, k)
        return b"".join((outcome.received, *[trailer.received for trailer in trailers]))

    async def load_context(self, session: str) -> StoredContext:
        """How a session is managed: its epochs, pins and accounts (see `LogReader`)."""
        return load_context(self.tables, session)

    async def list_uses(self, session: str) -> Sequence[EpochUse]:
        """The uses of epochs in a session (see `LogReader`)."""
        return list(list_uses(self.tables, session))

    async def load_memory(self, session: str) -> StoredMemory:
        """The memory of a session (see `MemoryLog`)."""
        return load_memory(self.tables, session)

    async def list_memory_requests(self) -> Sequence[str]:
        """The sessions of which memory is to be made (see `MemoryReader`)."""
        asked: dict[str, str] = {}
        for each in self.tables.memory.values():
            if isinstance(each, MemoryOrder) and each.kind in ("request", "clear", "reset"):
                asked[each.session] = each.kind
        return [session for session, kind in asked.items() if kind == "request"]

    async def load_original(self, reference: str) -> StoredOriginal:
        """What a reference stands for. Raises NotFound."""
        return load_original(self.tables, reference)

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        """All epochs of a session in the order in which they were opened, `rendered` empty. Raises NotFound."""
        return list_epochs(self.tables, self._expect(session))

    async def load_epoch(self, session: str, n: int) -> Epoch:
        """The n-th epoch of a session, from 1, with all its content. Raises NotFound."""
        return load_epoch(self.tables, self._expect(session), n)

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        """All summaries of a session, oldest first. Raises NotFound."""
        return list_summaries(self.tables, self._expect(session))

    async def sum_auxiliary(self, since_ms: int) -> Sequence[AuxiliaryUsage]:
        """What auxiliary calls opened since then came to (see `LogReader`)."""
        return sum_auxiliary(self.tables, since_ms)

    async def list_nodes(self, session: str) -> Sequence[NodeRow]:
        """The nodes of a session, parents first. Raises NotFound for an unknown session."""
        return list(self.tables.trees[self._expect(session)].nodes.values())

    async def verify(self) -> Verification:
        """Re-derive every digest, link and recipe from what is stored."""
        return verify_tables(self.tables)

    async def close(self) -> None:
        """Take nothing more; what was taken can still be read."""
        self._is_closed = True

    def _take(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Those that are kept: all, all but what was derived, or none."""
        for offer in (records, drop_derived(records)):
            if offer and not self._is_closed and self.tables.add(offer):
                return offer
        return ()

    def _expect(self, session: str) -> str:
        if session not in self.tables.sessions:
            raise NotFound(f"there is no session {session}")
        return session

    def _is_chosen(self, session: str, selection: Selection) -> bool:
        key = self.tables.keys[session]
        return (
            fit_text(key.family).startswith(fit_text(selection.family))
            and fit_text(key.parent).startswith(fit_text(selection.parent))
            and find_last(self.tables, session).seq < selection.before
            and selection.tenant in (b"", key.tenant)
        )

    def _find_opening(self, exchange: str) -> Opening:
        if exchange not in self.tables.exchanges:
            raise NotFound(f"there is no exchange {exchange}")
        return self.tables.exchanges[exchange].opening

    def _list_trailers(self, exchange: str, k: int) -> list[Trailer]:
        trailers = self.tables.trailers.get((exchange, k), {})
        return [trailers[i] for i in sorted(trailers)]

    def _join(self, tenant: bytes, body: Manifest) -> bytes:
        return b"".join(part for piece in decode_recipe(body.recipe) for part in self._list_parts(tenant, piece))

    def _list_parts(self, tenant: bytes, piece: Piece) -> Sequence[bytes]:
        if isinstance(piece, bytes):
            return (piece,)
        if isinstance(piece, BlobPiece):
            return (self.tables.blobs[tenant, piece.digest],)
        parts: list[bytes] = []
        link, root = piece.link, compute_root_link(tenant)
        while link != root:
            element = self.tables.slices[link]
            parts += (self.tables.blobs[tenant, element.digest], element.gap)
            link = element.parent
        return parts[::-1]

    def _make_exchange(self, exchange: Exchange) -> ExchangeRow:
        opening = exchange.opening
        rounds = sorted(self.tables.rounds[opening.exchange].items())
        step = _find_step(self.tables, exchange)
        return ExchangeRow(
            seq=exchange.seq,
            id=opening.exchange,
            session=opening.session.id,
            n=exchange.n,
            kind=opening.kind,
            wire=opening.wire,
            mode=opening.mode,
            model=fit_text(opening.model),
            method=fit_text(opening.method),
            target=fit_text(opening.target),
            headers=opening.headers,
            request_size=opening.body.size,
            is_capped=bool(opening.body.whole_digest),
            digest=compute_digest(opening.body.recipe),
            opened_ms=opening.opened_ms,
            rounds=tuple(self._make_round(record) for _, record in rounds),
            relation=step.relation if step else "",
            is_side=bool(step and step.is_side),
            tip=step.tip if step else b"",
            depth=step.depth if step else 0,
            base=step.base if step else 0,
            layers=step.layers if step else b"",
        )

    def _make_round(self, record: Round) -> RoundRow:
        key = (record.exchange, record.k)
        outcome, reading = self.tables.outcomes.get(key), self.tables.readings.get(key)
        trailers = self._list_trailers(*key)
        return RoundRow(
            k=record.k,
            upstream=fit_text(record.upstream),
            status=outcome.status if outcome else 0,
            headers=outcome.headers if outcome else (),
            completeness=outcome.completeness if outcome else "",
            received_size=outcome.size + sum(len(trailer.received) for trailer in trailers) if outcome else 0,
            is_capped=bool(outcome and outcome.whole_digest),
            timings=outcome.timings if outcome else None,
            error=fit_text((outcome.error if outcome else "") or (reading.error if reading else "")),
            answer=reading.answer if reading else b"",
            usage=fit_usage(reading.usage) if reading else None,
            finish=fit_text(reading.finish) if reading else "",
            plan=self.tables.plans.get(key),
        )


def _list_unread(tables: Tables, limit: int, most_bytes: int) -> Iterator[UnreadRow]:
    for key, outcome in islice(reversed(tables.outcomes.items()), limit):
        exchange = tables.exchanges[outcome.exchange]
        opening = exchange.opening
        if opening.wire and 0 < outcome.size <= most_bytes and key not in tables.readings:
            most_bytes -= outcome.size
            step, session = _find_step(tables, exchange), tables.keys[opening.session.id]
            tip = step.tip if step else b""
            yield UnreadRow(*key, opening.wire, session, tip, outcome.headers, outcome.received)


def _find_answered(trees: Mapping[str, Tree], nodes: Sequence[bytes]) -> list[str]:
    """Those of the sessions in which the deepest of the nodes that is an answer in any of them is one."""
    found = ([key for key, tree in trees.items() if tree.has_answer(node)] for node in reversed(nodes))
    return next(filter(None, found), [])


def _leave_answers(row: ExchangeRow) -> ExchangeRow:
    return replace(row, rounds=tuple(replace(each, answer=b"") for each in row.rounds))


def _find_step(tables: Tables, exchange: Exchange) -> Step | None:
    return tables.trees[exchange.opening.session.id].steps.get(exchange.n)
