"""Calls whose history we hold: one at a time in a session, each behind the newest complete path.

What a client brings is appended to that path, so a call that fails leaves no trace in it, and the next one takes its
place. The log has what the client sent, and the whole request. Paths in memory are a cache; the log decides.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from msgspec.structs import replace

from proxy.context.conversation import TurnsPolicy
from proxy.context.strategies.sources import is_nudge
from proxy.engine.conversations.bodies import build_manifest
from proxy.engine.history.answers import CapturingClient, HeldAnswer, read_held_answer
from proxy.engine.history.loading import HistoryLog, load_path
from proxy.engine.history.nudges import NO_NUDGE, Nudge, Nudger
from proxy.engine.history.path import (
    Brought,
    HeldPath,
    TailMessage,
    expect_results,
    find_instructions,
    list_waiting,
    make_whole,
    read_brought,
    strip_markers,
)
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import MOST_HELD, Client, Clock
from proxy.engine.request import ManagedRequest, SessionName
from proxy.engine.runtime import EngineBus
from proxy.model.errors import BadRequest, Conflict, NotFound, StoreUnavailable, TooLarge, Unproven
from proxy.model.exchange import SUCCESS, ClientRequest, Headers, HistoryMode, ReceivedCall, RequestOptions, SessionKey
from proxy.model.lru import LruCache
from proxy.model.manifest import make_encoded_manifest
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.headers import drop_encoding, find_header

_TURNS = TurnsPolicy()
_KEY = b"idempotency-key"
_LONGEST_KEY = 255
# Seconds to wait for the end of a call whose answer the client has, and for the log.
_ENDING_SECONDS = 5.0
LOG_SECONDS = 10.0
# Bytes of an answer that are read in the event loop.
_READ_HERE = 64 * 1024


class SessionNamer(Protocol):
    """Finds the sessions of requests, as `request_resolver` does."""

    def name_session(self, request: ClientRequest, model: bytes) -> SessionName:
        """Return the session that a request names, given its raw model. Raises BadRequest."""
        ...


class _HeldSession:
    """A session in memory: its newest complete path, and the idempotency keys of calls before the last one."""

    __slots__ = ("path", "used")

    def __init__(self, path: HeldPath, used: list[str]) -> None:
        self.path = path
        self.used: OrderedDict[str, None] = OrderedDict.fromkeys(used)

    def advance(self, path: HeldPath) -> None:
        """Take a newer path."""
        if self.path.key and self.path.key != path.key:
            self.used[self.path.key] = None
            while len(self.used) > MOST_HELD:
                self.used.popitem(last=False)
        self.path = path


class HeldExchange:
    """One call whose history we hold. `request` has all of that; `nudge` is a raw message that stands behind it."""

    def __init__(
        self,
        request: ClientRequest,
        form: Format,
        session: str,
        *,
        options: RequestOptions,
        brought: Brought,
        path: HeldPath | None,
        key: str,
        nudge: Nudge,
        is_repeated: bool,
        cap: int,
        generation: int,
    ) -> None:
        self.whole = make_whole(form, path, brought, is_repeated=is_repeated)
        self.request = replace(request, headers=drop_encoding(request.headers), body=self.whole.content, encoded=b"")
        self._encoded = request.encoded
        self.form = form
        self.session = session
        self.nudge = nudge
        self.source = options.source if brought.raws and not is_repeated else ""
        self.exchange = ""
        self.client: CapturingClient | None = None
        self._history = options.history or "server"
        self._brought = brought
        self._path = path
        self._key = key
        self._is_repeated = is_repeated
        self._cap = cap
        self._generation = generation
        # after a loss the log may lack what later bodies would refer to
        self._own = path.own if path is not None and path.generation == generation else None

    @property
    def is_first(self) -> bool:
        """Whether the history begins with this call."""
        return self._path is None

    def watch(self, client: Client) -> CapturingClient:
        """Return the client as one that keeps what it gets."""
        self.client = CapturingClient(client, self.form, self._cap)
        return self.client

    def make_record(self, request: ManagedRequest) -> ReceivedCall:
        """Return the record of what the client sent."""
        split, tenant = self._brought.split, request.session.tenant
        if self._encoded:
            manifest = make_encoded_manifest(tenant, self._encoded, self._cap)
        else:
            manifest, own = build_manifest(tenant, split, request.chain, self._own, 0)
            self._own = own or self._own
        return ReceivedCall(request.exchange, self._history, self._key, self._brought.digest, manifest)

    async def read_answer(self) -> HeldAnswer | None:
        """Return the answer that the client got, or None if it is not complete."""
        client = self.client
        if client is None or not client.is_whole or client.status not in SUCCESS:
            return None
        is_stored = self._brought.split.member("store") != b"false"
        content = client.content
        if len(content) <= _READ_HERE:
            return read_held_answer(self.form, client.headers, content, self._cap, is_stored=is_stored)
        read = partial(read_held_answer, is_stored=is_stored)
        return await asyncio.to_thread(read, self.form, client.headers, content, self._cap)

    def extend(self, answer: HeldAnswer, scan: int, now_ms: int) -> HeldPath:
        """Return the path that ends with the answer."""
        whole, before, brought = self.whole, self._path, self._brought
        content, end = strip_markers(self.form, whole.content, whole.start, whole.end)
        tail = before.tail if before is not None else ()
        if not self._is_repeated:
            fresh = [TailMessage(raw) for raw in brought.raws]
            if fresh:
                fresh[-1] = TailMessage(brought.raws[-1], self.source)
            tail = (*tail, *map(TailMessage, before.answer if before is not None else ()), *fresh)[-scan:]
        items = map(self.form.reader.read_item, answer.messages)
        return HeldPath(
            self.form.name,
            self.exchange,
            content,
            whole.first,
            end,
            answer.messages,
            find_instructions(self.form, before, brought.split),
            list_waiting(items),
            tail,
            key=self._key,
            digest=brought.digest,
            ended_ms=now_ms,
            own=self._own,
            generation=self._generation,
        )


class _Turn:
    """The call that a session is busy with."""

    __slots__ = ("done", "held")

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.held: HeldExchange | None = None

    @property
    def is_ending(self) -> bool:
        """Whether its client has the end of the answer."""
        return self.held is not None and self.held.client is not None and self.held.client.is_ending


class HeldHistories:
    """The histories that we hold. `cache_bytes` bounds their paths in memory."""

    def __init__(
        self,
        log: HistoryLog,
        nudger: Nudger,
        namer: SessionNamer,
        clock: Clock,
        *,
        record_cap: int,
        cache_bytes: int,
        scan_messages: int,
    ) -> None:
        self._log = log
        self._nudger = nudger
        self._namer = namer
        self._clock = clock
        self._cap = record_cap
        self._scan = scan_messages
        self._sessions = LruCache[str, _HeldSession](cache_bytes, weigh=lambda _, held: held.path.weight)
        self._turns: dict[str, _Turn] = {}

    async def hold(self, incoming: ClientRequest, form: Format, options: RequestOptions) -> HeldExchange:
        """Hold a session for one call, and give the call its history, until it is released.

        Raises ProxyError if it has none, if a call of the session is under way, or if the log takes nothing new.
        """
        if problem := self._log.health.problem:
            raise StoreUnavailable(f"the log holds the history, and cannot take what is new: {problem}")
        split = split_body(incoming.body, form.items_key)
        if split is None:
            raise BadRequest("x-palimpsest-history is for requests whose body can be read: a JSON object")
        if len(incoming.body) > self._cap:
            raise TooLarge(f"a history takes requests of at most {self._cap} bytes (store.record_cap_bytes)")
        local = options.local
        if local is None:
            name, told = self._namer.name_session(incoming, split.member("model")), b""
        else:
            name, told = SessionName(local.session, local.session.family), local.told
        brought = read_brought(form, split, told)
        turn = await self._take_turn(name.key.id)
        try:
            held = turn.held = await self._begin(incoming, form, name, options=options, brought=brought)
        except BaseException:
            self._end_turn(name.key.id)
            raise
        return held

    def note_sent(self, held: HeldExchange, exchange: str) -> None:
        """Note the exchange that a call has become."""
        held.exchange = exchange
        self._nudger.note_sent(held.session, exchange, held.nudge)

    async def release(self, held: HeldExchange) -> None:
        """Take over the answer of a call, and let the next call of its session begin."""
        try:
            await self._end(held)
        finally:
            self._end_turn(held.session)

    def _end_turn(self, session: str) -> None:
        self._turns.pop(session).done.set()

    def forget(self, session: str) -> None:
        """Ask the log for the path of a session when it is needed next."""
        self._sessions.pop(session)

    async def _take_turn(self, session: str) -> _Turn:
        """Wait for the end of a call that is answered. Raises Conflict while another one is under way."""
        while (running := self._turns.get(session)) is not None:
            try:
                async with asyncio.timeout(_ENDING_SECONDS if running.is_ending else 0):
                    await running.done.wait()
            except TimeoutError:
                raise Conflict("a call of this session is under way; its history takes one at a time") from None
        turn = self._turns[session] = _Turn()
        return turn

    async def _begin(
        self, incoming: ClientRequest, form: Format, name: SessionName, *, options: RequestOptions, brought: Brought
    ) -> HeldExchange:
        session = name.key.id
        key = read_key(incoming.headers) if brought.raws else ""
        known = await self._expect(name, history=options.history, key=key)
        path = known.path if known is not None else None
        if path is not None and path.wire != form.name:
            raise BadRequest(f"the history of this session is in the format {path.wire}, not {form.name}")
        is_repeated = path is not None and bool(key) and key == path.key
        if is_repeated and options.history == "record":
            raise Conflict("a turn with this idempotency-key was recorded just now")
        if known is not None and key in known.used and not is_repeated:
            raise Conflict("a call with this idempotency-key was answered, and the history has gone on since")
        if path is not None and is_repeated and brought.digest != path.digest:
            raise BadRequest("this idempotency-key was used with other messages")
        nudge = NO_NUDGE
        if not is_repeated:
            expect_results(path.waiting if path is not None else (), brought.items)
            nudge = self._find_nudge(name.key, form, path, options=options, brought=brought)
        return HeldExchange(
            incoming,
            form,
            session,
            options=options,
            brought=brought,
            path=path,
            key=key,
            nudge=nudge,
            is_repeated=is_repeated,
            cap=self._cap,
            generation=self._log.health.generation,
        )

    async def _expect(self, name: SessionName, *, history: HistoryMode | None, key: str) -> _HeldSession | None:
        """Return what is known of a session, None for one that begins. Raises ProxyError if it must not be so."""
        if history in ("program", "record"):
            return await self._find(name.key.id)
        is_new = history == "new"
        try:
            known = await self._find(name.key.id)
        except NotFound as error:
            if not is_new:
                raise
            raise Conflict(f"the session {name.named!r} had a history: {error}") from error
        if not name.is_proven and (known is not None or not is_new):
            raise Unproven(
                "the upstream has not accepted this credential lately, and a history goes only to whom it belongs; any"
                " call without x-palimpsest-history that it accepts changes that"
            )
        if is_new and known is not None and (not key or key != known.path.key):
            raise Conflict(f"the session {name.named!r} has a history already; x-palimpsest-history: server goes on")
        if not is_new and known is None:
            raise NotFound(
                f"the session {name.named!r} has no complete answer yet, for this credential and upstream;"
                " x-palimpsest-history: new begins it"
            )
        return known

    def _find_nudge(
        self, session: SessionKey, form: Format, path: HeldPath | None, *, options: RequestOptions, brought: Brought
    ) -> Nudge:
        if not brought.raws and path is None:
            raise BadRequest("a history begins with a message")
        if not brought.raws:
            assert path is not None, "said above"
            return self._nudger.nudge(session, form, path, options.source)
        if not is_nudge(options.source) and any(item.role == "user" for item in brought.items):
            self._nudger.reset(session.id)
        return NO_NUDGE

    async def _find(self, session: str) -> _HeldSession | None:
        """Return what is known of a session, None if it has no complete path. Raises NotFound, StoreUnavailable."""
        if (known := self._sessions.get(session)) is not None:
            return known
        try:
            async with asyncio.timeout(LOG_SECONDS):
                try:
                    await self._log.find_session(session)
                except NotFound:
                    return None
                path, used = await load_path(self._log, session, cap=self._cap, scan=self._scan)
        except TimeoutError:
            raise StoreUnavailable("the log did not give the history of the session in time") from None
        if path is None:
            return None
        known = _HeldSession(path, used)
        self._sessions.put(session, known)
        return known

    async def _end(self, held: HeldExchange) -> None:
        """Take over the answer of a call. If it is not certain what became of it, the log is asked next time."""
        known, client = self._sessions.pop(held.session), held.client
        is_certain = client is None or client.is_whole
        answer = await held.read_answer()
        if answer is not None:
            path = held.extend(answer, self._scan, self._clock.now_ms())
            if known is None and held.is_first:
                known = _HeldSession(path, [])
            if known is not None:
                known.advance(path)
        if known is not None and is_certain:
            self._sessions.put(held.session, known)
        is_answered = answer is not None and bool(answer.messages)
        self._nudger.note_end(held.session, held.exchange, held.nudge, is_answered=is_answered)


def read_key(headers: Headers) -> str:
    """Return the idempotency key of a request, empty if it has none."""
    return find_header(headers, _KEY).decode("latin-1").strip()[:_LONGEST_KEY]


def build_histories(
    nudges: NudgePolicy,
    policy: EnginePolicy,
    log: HistoryLog,
    resolver: SessionNamer,
    *,
    bus: EngineBus,
    clock: Clock,
    turns: TurnsPolicy = _TURNS,
    providers: Mapping[str, Provider] = MappingProxyType({}),
) -> HeldHistories:
    """Return the histories that we hold."""
    alternating = [name for name, each in providers.items() if each.strict_alternation]
    return HeldHistories(
        log,
        Nudger(nudges, clock, bus, scan=turns.scan_messages, alternating=alternating),
        resolver,
        clock,
        record_cap=policy.record_cap_bytes,
        cache_bytes=policy.cache_bytes // 4,
        scan_messages=turns.scan_messages,
    )
