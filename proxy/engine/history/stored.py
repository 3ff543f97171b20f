"""Histories that the provider stores, and that requests refer to by ids: they are written out of what the log holds.

A request may name the response that it continues, or items of earlier answers. With these in its body, it is a request
like any other: it has its place in a session, it is recorded whole, and an epoch may open for it. Only a history that
the log holds as a whole is written out, with all that is encrypted in it, and only for the tenant whose calls it had.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.history.answers import load_held_answer
from proxy.engine.history.path import begin_body, list_members
from proxy.engine.lineage.identity import parse_json_string
from proxy.engine.lineage.tracker import RECALL_SECONDS
from proxy.engine.ports import Clock, LogReader
from proxy.engine.recorded.conversation import list_raws
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import CONVERSATION, ClientRequest, Mode, SessionKey
from proxy.model.lineage import compute_chain_root, extend_chain
from proxy.model.log import ExchangeRow
from proxy.model.lru import LruCache
from proxy.wire.body import SplitBody, replace_member, split_body
from proxy.wire.format import Format
from proxy.wire.headers import drop_encoding
from proxy.wire.json_values import encode_text, read_object, read_text

_NOTHING = (b"", b"null", b'""', b"[]")
_BARE = "only the provider has its reasoning (include: reasoning.encrypted_content)"
# Rows that are looked at first, since most requests continue the newest answer, and then at once.
_NEWEST, _PAGE = 2, 100
_ENTRY_WEIGHT = 300


class Unheld(Exception):
    """Raised where the log does not hold all that a request refers to. Its text says what it lacks."""


class ReferringRequest(NamedTuple):
    """A request that may refer to what is stored. Nothing refers to it in its first `shared` items."""

    request: ClientRequest
    form: Format
    session: SessionKey
    split: SplitBody
    shared: int
    exchange: str
    mode: Mode
    until: float


class ResolvedReferences(NamedTuple):
    """What a request refers to. `previous` is the response that it continues, and `root` that of its chain.

    `request` has the body with all that it refers to where the log holds that: then `passed` is what is sent for it as
    it stands, and else `unresolved` says what the log lacks. `own` is the body with another response to continue, if it
    has named a hidden one.
    """

    request: ClientRequest
    previous: str
    root: bytes
    own: SplitBody | None = None
    passed: bytes = b""
    unresolved: str = ""


class _WrittenBody(NamedTuple):
    """A body with all that it refers to. `is_own`: its provider stores that history as the client has it."""

    content: bytes
    is_own: bool


class _StoredAnswer(NamedTuple):
    """An answer in the log: its items by their ids, and of these the ones of which only the provider has the content.

    `proofs` are the forms of its items and the node of its end, by their names. `is_own`: it was made for
    the client's own request.
    """

    exchange: str
    items: Mapping[str, bytes]
    lacking: frozenset[str]
    proofs: Mapping[str, bytes]
    is_own: bool


_Name = tuple[bytes, str, str]  # the tenant, the upstream, and the name of a fingerprint, or of an exchange


class StoredHistories:
    """Writes out what requests refer to. `cap` is the most that the log has of a body.

    Half of `cache_bytes` has answers, the other half the histories behind which the next requests come.
    """

    def __init__(self, reader: ResponseReader, clock: Clock, *, cap: int, cache_bytes: int) -> None:
        self._log: LogReader = reader.archive
        self._lineage = reader.lineage
        self._reader = reader
        self._clock = clock
        self._cap = cap
        self._answers = LruCache[_Name, _StoredAnswer](cache_bytes // 2, weigh=_weigh_answer)
        self._written = LruCache[str, bytes](cache_bytes // 2, weigh=lambda _, items: len(items))

    def clear(self) -> None:
        """Forget everything, because the log has lost or erased something."""
        self._answers.clear()
        self._written.clear()

    async def resolve(self, asked: ReferringRequest, *, is_written: bool) -> ResolvedReferences:
        """Return what a request refers to, and if that `is_written` out, its body with it as far as the log holds it.

        As long as it is not shortened it is sent as it came, unless the provider stores a history that we shortened and
        that is to be whole again.
        """
        request, form, session, split = asked[:4]
        root = compute_chain_root(session.upstream)
        if not form.previous_key:
            return ResolvedReferences(request, "", root, passed=request.encoded)
        for exchange in self._lineage.list_unread_of(session.tenant):  # it may refer to any answer of the tenant
            await self._reader.read_now(exchange)
        previous, own = await self._redirect(asked), split
        if previous != parse_json_string(split.member(form.previous_key)):
            own = replace_member(split, form.previous_key, encode_text(previous))
        unresolved = ""
        if is_written and _refers(asked, previous):
            try:
                return await self._write_out(asked, own, previous, root)
            except Unheld as error:
                unresolved = str(error)
        if previous:
            root = await self._lineage.find_response(session, previous, asked.until) or root
        return ResolvedReferences(request, previous, root, own, request.encoded, unresolved)

    async def _redirect(self, asked: ReferringRequest) -> str:
        """Return the response that a request continues, the last one of an answer in place of a hidden one."""
        previous = parse_json_string(asked.split.member(asked.form.previous_key))
        return (await self._lineage.find_last(asked.session, previous, asked.until) if previous else "") or previous

    async def _write_out(
        self, asked: ReferringRequest, own: SplitBody, previous: str, root: bytes
    ) -> ResolvedReferences:
        """Return a request with all that it refers to. Raises Unheld."""
        request, is_redirected = asked.request, own is not asked.split
        try:
            async with asyncio.timeout(max(asked.until - self._clock.monotonic(), RECALL_SECONDS)):
                written = await self._write(asked.form, asked.session, own, previous, asked.exchange)
        except TimeoutError:
            raise Unheld("the log did not give it in time") from None
        except (NotFound, StoreUnavailable) as error:
            raise Unheld(str(error)) from error
        passed = own.content if is_redirected or not request.encoded else request.encoded
        headers = drop_encoding(request.headers) if is_redirected else request.headers
        whole = replace(request, headers=headers, body=written.content, encoded=request.encoded or request.body)
        passed = passed if written.is_own or asked.mode != "manage" else b""
        return ResolvedReferences(whole, previous, root, passed=passed)

    async def _write(
        self, form: Format, session: SessionKey, split: SplitBody, previous: str, exchange: str
    ) -> _WrittenBody:
        parts = [await self._list_items(form, session, split)]  # the newest first
        named, seen, is_own, before = previous, set[str](), True, b""
        while named and not before:
            if named in seen:
                raise Unheld("responses in the log name each other")
            stored = await self._find(form, session, f"response:{named}")
            if stored.lacking:
                raise Unheld(_BARE)
            is_own = is_own if seen else stored.is_own
            seen.add(named)
            parts.append(tuple(stored.items.values()))
            before = self._written.get(stored.exchange) or b""
            if not before:
                body = await self._load_request(form, stored.exchange)
                parts.append(await self._list_items(form, session, body))
                named = parse_json_string(body.member(form.previous_key))
        raws = [raw for part in reversed(parts) for raw in part]
        items = b",".join([before, *raws] if before else raws)
        if previous:
            self._written.put(exchange, items)
        members = b"".join((*list_members(form, split, form.previous_key), b"}"))
        return _WrittenBody(b"%b%b]%b" % (begin_body(form), items, members), is_own)

    async def _load_request(self, form: Format, exchange: str) -> SplitBody:
        content = await self._log.load_request(exchange)
        body = split_body(content, form.items_key, most_items=len(content))
        if body is None:
            raise Unheld("the log has not kept all of it")
        if body.member("conversation") not in _NOTHING:
            raise Unheld("it goes on from a conversation that the provider stores")
        return body

    async def _list_items(self, form: Format, session: SessionKey, split: SplitBody) -> Sequence[bytes]:
        """Return the items of a request, each of those that it refers to in place of the reference."""
        member, raws = split.member(form.items_key), list_raws(split)
        if not raws and member not in _NOTHING:
            if not form.read_input(member):
                raise Unheld("its input cannot be read item by item")
            raws = [form.write_message("user", member)]
        for place, raw in enumerate(raws):
            if form.reference_sign in raw and (name := form.reader.read_item(raw).reference):
                stored = await self._find(form, session, f"item:{name}")
                if name in stored.lacking:
                    raise Unheld(_BARE)
                raws[place] = stored.items[name]
            elif _is_bare(form, raw):
                raise Unheld(_BARE)
        return raws

    async def _find(self, form: Format, session: SessionKey, name: str) -> _StoredAnswer:
        """Return the answer with this fingerprint. Raises Unheld unless just one has it."""
        kind, _, id = name.partition(":")
        bearers = await self._lineage.find_bearers(session, name)
        proofs = {each.node if kind == "response" else each.form for _, each in bearers}
        if len(proofs) != 1:
            raise Unheld(f"the log has {'more than one' if proofs else 'no'} {kind} {id[:100]!r} of this client")
        key = session.tenant, session.upstream, name
        found = self._answers.get(key) or await self._search(form, bearers[0][0], key)
        if found is None or found.proofs[name] not in proofs:
            raise Unheld(f"the log does not have all of {kind} {id[:100]!r} (any more)")
        return found

    async def _search(self, form: Format, session: SessionKey, key: _Name) -> _StoredAnswer | None:
        async for stored in self._read_back(form, session):
            self._keep(session, stored)
            if (found := self._answers.peek(key)) is not None:
                return found
        return None

    def _keep(self, session: SessionKey, stored: _StoredAnswer) -> None:
        for name in (*stored.proofs, stored.exchange):
            self._answers.put((session.tenant, session.upstream, name), stored)

    async def _read_back(self, form: Format, session: SessionKey) -> AsyncIterator[_StoredAnswer]:
        """Yield the answers of a session that are complete and were not read before, the newest first."""
        end, size = (await self._log.find_session(session.id)).recorded, _NEWEST
        while end > 0:
            start = max(0, end - size)
            for row in reversed(await self._log.list_calls(session.id, start, end - start)):
                if (session.tenant, session.upstream, row.id) not in self._answers:
                    stored = await self._load(form, row)
                    if stored is not None:
                        yield stored
            end, size = start, _PAGE

    async def _load(self, form: Format, row: ExchangeRow) -> _StoredAnswer | None:
        if row.kind not in CONVERSATION or row.wire != form.name or not row.rounds:
            return None
        rounds, last = 0, row.rounds[-1]
        if len(row.rounds) > 1:
            recalled = (await self._log.load_context(row.session)).recalled
            rounds = next((len(each.rounds) for each in recalled if each.exchange == row.id), 0)
        try:
            answer = await load_held_answer(self._log, form, row, self._cap, rounds=rounds, is_stored=True)
        except NotFound:
            return None
        if answer is None:
            return None
        items = {_read_id(raw) or f"#{place}": raw for place, raw in enumerate(answer.messages)}
        lacking = frozenset([id for id, raw in items.items() if _is_bare(form, raw)])
        forms = [form.reader.read_item(raw).form for raw in answer.messages]
        proofs = {f"item:{id}": each for id, each in zip(items, forms, strict=True)}
        proofs[f"response:{answer.id}"] = extend_chain(row.tip, forms)[-1] if forms else row.tip
        return _StoredAnswer(row.id, items, lacking, proofs, last.plan is None or last.plan.rung == "original")


def _refers(asked: ReferringRequest, previous: str) -> bool:
    """Return whether a body names a stored response, or stored items, and no conversation that the provider stores."""
    sign, split, shared = asked.form.reference_sign, asked.split, asked.shared
    is_referring = split.content.find(sign, split.items[shared - 1].end if shared else 0) >= 0
    return (bool(previous) or is_referring) and split.member("conversation") in _NOTHING


def _weigh_answer(name: _Name, stored: _StoredAnswer) -> int:
    """Return the bytes of an answer's items under the name of its exchange, and otherwise those of an entry."""
    return _ENTRY_WEIGHT + (sum(map(len, stored.items.values())) if name[2] == stored.exchange else 0)


def _read_id(raw: bytes) -> str:
    return read_text((read_object(raw.decode(errors="replace")) or {}).get("id"))


def _is_bare(form: Format, raw: bytes) -> bool:
    """Return whether an item only names what the provider stores."""
    if not any(sign in raw for sign in form.foreign_signs):
        return False
    return form.is_reference(read_object(raw.decode(errors="replace")) or {})
