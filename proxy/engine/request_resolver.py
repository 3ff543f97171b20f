"""Resolving a client's request: its tenant, its session, what of its body is new, and its upstream."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec.structs import asdict, replace

from proxy.context.budget import has_token_bound
from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.conversations.bodies import (
    BodyCache,
    CachedBody,
    KeptPart,
    Key,
    Measures,
    build_manifest,
    find_kept,
    link_items,
    list_links,
    split_known,
)
from proxy.engine.history.stored import ReferringRequest, ResolvedReferences, StoredHistories
from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.lineage.identity import (
    ClientId,
    ClientIdReader,
    Credential,
    is_said_aside,
    make_session,
    parse_json_string,
    read_body_id,
)
from proxy.engine.lineage.resolver import LineageQuery, Placement
from proxy.engine.lineage.session_index import Traits
from proxy.engine.policy import EnginePolicy, choose_upstream, matches
from proxy.engine.ports import Clock, Ids, Upstream
from proxy.engine.request import PLAIN_ARRIVAL, UNREADABLE, Arrival, ManagedRequest, ResolvedRequest, SessionName
from proxy.model.errors import BadRequest, Conflict, StoreUnavailable
from proxy.model.exchange import ClientRequest, Opening, RequestOptions, SessionKey
from proxy.model.lineage import Lineage, compute_chain_root
from proxy.model.manifest import Manifest, make_capped_manifest
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.headers import read_encoding, redact_target, select_stored

# A larger body without a cached part is not examined: it is counted in any case.
_MOST_LOOKED_AT = 256 * 1024
# A body of fewer bytes is below any soft mark that is worth managing.
_WORTH_TELLING = 64 * 1024
_BEGINNING = 64
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_UNNAMED = "nothing names its session, and sessions.infer is off"
_NONE = (b"", b"[]", b"null")
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

BuildManifest = Callable[[], Manifest]

_log = logging.getLogger("palimpsest.requests")


@dataclass(frozen=True, slots=True)
class Route:
    """An upstream and the shell patterns of its models. Without patterns it gets the models that no other claims."""

    upstream: Upstream
    models: tuple[str, ...] = ()

    def claims(self, model: str) -> bool:
        """Return whether a pattern matches this model's name."""
        return matches(model, self.models)


class _Remembered(NamedTuple):
    """The cached body that shares most items with a request, their number, and the cache's `losses` at that time.

    `measured` is what is known of the request's messages.
    """

    known: CachedBody | None
    shared: int
    losses: int
    measured: Measures | None = None


class RequestResolver:
    """Resolves each request: its tenant, its session, what of it is new, and its upstream.

    It never fails a call. A body that cannot be read message by message is kept whole and goes to the first upstream.
    """

    def __init__(
        self,
        policy: EnginePolicy,
        routes: Sequence[Route],
        *,
        reader: ResponseReader,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._policy = policy
        self._routes = tuple(routes)
        self._patterns = tuple([route.models for route in routes])
        self._lineage = reader.lineage
        self._reader = reader
        self._naming = ClientIdReader(policy.session_headers)
        self._histories = BodyCache(policy.cache_bytes // 4 * 3)
        cap, cache_bytes = policy.record_cap_bytes, policy.cache_bytes // 8
        self._stored = StoredHistories(reader, clock, cap=cap, cache_bytes=cache_bytes)
        self._clock = clock
        self._ids = ids

    def name_session(self, request: ClientRequest, model: bytes) -> SessionName:
        """Return the session that a request names (`NameSession`)."""
        caller, named = self._lineage.tenants.identify(request.headers), self._naming.read(request.headers)
        if not named.family or named.is_weak:
            raise BadRequest("x-palimpsest-history needs a session: x-palimpsest-session names it")
        key = make_session(caller.tenant, self._choose(parse_json_string(model)).upstream.name, named, "")
        return SessionName(key, named.family, self._lineage.tenants.trusts(caller))

    def make_key(self, name: str, model: str, upstream: str = "", parent: str = "") -> SessionKey:
        """Return the key of a session that is begun without a credential, of this name. Raises BadRequest."""
        names = [route.upstream.name for route in self._routes]
        if upstream not in ("", *names):
            raise BadRequest(f"the settings have the upstreams {', '.join(names)}, not {upstream[:100]!r}")
        route = self._find_route(upstream) if upstream else self._choose(model)
        caller, named = self._lineage.tenants.identify(()), ClientId(name)
        return replace(make_session(caller.tenant, route.upstream.name, named, ""), parent=parent)

    def find_upstream(self, model: str) -> str:
        """Return the name of the upstream that requests to a model go to."""
        return self._choose(model).upstream.name

    async def resolve(
        self, request: ClientRequest, form: Format, options: RequestOptions, arrival: Arrival = PLAIN_ARRIVAL
    ) -> tuple[ResolvedRequest, BuildManifest]:
        """Resolve a request whose body is in memory. Return it with a function that builds the manifest of its body.

        It is a `ManagedRequest` if the body was understood and has a place in a session. Wait for the log if memory
        lacks its history. Build the manifest once, before another request is resolved: later bodies refer to it.
        Raises StoreUnavailable if a body that must be understood is not.
        """
        exchange = self._ids.next_exchange()
        caller, problem = self._identify(request, arrival), ""
        try:
            self.forget_lost()
            resolved = await self._resolve(request, form, caller, exchange, options, arrival=arrival)
        except Exception:  # noqa: BLE001 - a boundary: a body that we cannot read is still a call to carry
            _log.exception(
                "a request was not understood and is sent as it came. Please report this line",
                extra={"exchange": exchange},
            )
            resolved, problem = None, "the server's log says why"
        if arrival.is_whole and (resolved is None or not isinstance(resolved[0], ManagedRequest)):
            self._lineage.close(exchange)
            raise StoreUnavailable("the history of the session could not be read; the server's log says why")
        if resolved is None:
            problem = problem or _find_problem(request)
            raw = replace(request, body=request.encoded, encoded=b"") if request.encoded else request
            unread = self._resolve_unread(raw, options, caller, exchange, form.name)
            unread = replace(unread, unread=f"{UNREADABLE}: {problem}")
            resolved = unread, partial(self._keep_whole, raw.body)
        if resolved[0].unread.startswith(UNREADABLE) and resolved[0].mode == "manage":
            extra = {"exchange": exchange, "session": resolved[0].session.id}
            _log.warning("a request is sent as it came: %s", resolved[0].unread, extra=extra)
        return resolved

    def resolve_stream(self, request: ClientRequest, options: RequestOptions) -> ResolvedRequest:
        """Resolve a request whose body is still to come."""
        caller = self._lineage.tenants.identify(request.headers)
        return self._resolve_unread(request, options, caller, self._ids.next_exchange())

    async def find_counted(self, request: ClientRequest, form: Format, unread: ResolvedRequest) -> ResolvedRequest:
        """Return a request whose tokens are to be counted, with its messages and the session that it would continue.

        It becomes no part of that. If there is no such session, only its upstream is found. `unread` is what its
        headers say.
        """
        caller, named = self._lineage.tenants.identify(request.headers), self._naming.read(request.headers)
        key = (caller.tenant, form.name, named.family)
        known, shared = self._histories.find(key, request.body)
        split = split_known(request.body, form.items_key, known, shared)
        if split is None:
            return unread
        until = self._clock.monotonic() + self._policy.hard_wait_seconds
        model = parse_json_string(split.member("model"))
        upstream = self._choose(model).upstream
        alone = make_session(caller.tenant, upstream.name, named, unread.exchange)
        unread = replace(unread, session=alone, upstream=upstream)
        if not split.items or not self._lineage.tenants.trusts(caller):
            return unread
        session = make_session(caller.tenant, upstream.name, read_body_id(named, split), unread.exchange)
        remembered = _Remembered(known, shared, self._histories.losses)
        root = compute_chain_root(session.upstream)
        chain = await self._read_chain(form, session, split, remembered, root=root, until=until)
        query = _make_query(unread.exchange, session, caller, split=split, chain=chain, until=until)
        found = await self._lineage.find_session(query)
        if found is None:
            return unread
        base = found.measure(chain.nodes)
        lineage = Lineage(unread.exchange, "append", False, chain.tip, len(chain.nodes), base, (), ())
        resolved = replace(unread, session=found.key, wire=form.name, model=model, lineage=lineage)
        measured = self._histories.find_measured(key, known, shared, chain, (session.upstream, model))
        return _make_managed(resolved, form, query, split=split, chain=chain, measured=measured)

    def forget_lost(self) -> None:
        """Forget earlier bodies if the log has lost anything since: manifests refer to what they added to it."""
        if self._lineage.forget_lost():
            self._histories.clear()
            self._stored.clear()

    def make_opening(self, request: ResolvedRequest, build: BuildManifest) -> Opening:
        """Make the first record of an exchange.

        Building the manifest takes a tenth of a short call's time, so call this after the request was sent.
        """
        try:
            body = build()
        except Exception:  # noqa: BLE001 - a boundary: a body that cannot be related to earlier ones is kept whole
            _log.exception(
                "a body could not be related to earlier ones; it is kept whole, which takes more space",
                extra={"exchange": request.exchange, "session": request.session.id},
            )
            body = self._keep_whole(request.body)
        return Opening(
            exchange=request.exchange,
            session=request.session,
            kind=request.kind,
            wire=request.wire,
            mode=request.mode,
            model=request.model,
            method=request.method,
            target=redact_target(request.target),
            headers=select_stored(request.headers),
            body=body,
            opened_ms=request.opened_ms,
        )

    async def _resolve(
        self,
        request: ClientRequest,
        form: Format,
        caller: Credential,
        exchange: str,
        options: RequestOptions,
        *,
        arrival: Arrival,
    ) -> tuple[ResolvedRequest, BuildManifest] | None:
        """Resolve a body that can be read message by message, else return None."""
        until, named = self._clock.monotonic() + self._policy.hard_wait_seconds, self._naming.read(request.headers)
        own = arrival.session
        key = (caller.tenant, form.name, named.family if own is None else own.family)
        remembered = _Remembered(*self._histories.find(key, request.body), self._histories.losses)
        if (split := split_known(request.body, form.items_key, *remembered[:2], is_ours=arrival.is_whole)) is None:
            return None
        model = parse_json_string(split.member("model"))
        route = self._choose(model) if own is None else self._find_route(own.upstream)
        session = own or make_session(caller.tenant, route.upstream.name, read_body_id(named, split), exchange)
        asked = ReferringRequest(request, form, session, split, remembered.shared, exchange, options.mode, until)
        found, split, remembered = await self._follow(asked, key, remembered, caller, is_whole=arrival.is_whole)
        read, request = found.own or split, found.request
        chain = await self._read_chain(form, session, split, remembered, root=found.root, until=until)
        query = replace(
            _make_query(exchange, session, caller, split=split, chain=chain, until=until),
            previous=found.previous,
            is_trusted=self._lineage.tenants.trusts(caller),
            is_aside=form.is_aside(split) or is_said_aside(request.headers),
            is_whole=arrival.is_whole,
        )
        kept_part = await self._find_kept(caller.tenant, split, remembered, until)
        place = await self._place(query) if (session.family or self._policy.infer) and not options.is_alone else None
        # Nothing awaits from here on: the opening, with what the cache refers to, is logged before any later request's.
        resolved = ResolvedRequest(
            **asdict(request),
            exchange=exchange,
            session=session if place is None else place.session,
            upstream=route.upstream,
            mode="observe" if options.is_alone and options.mode == "manage" else options.mode,
            kind=arrival.kind,
            wire=form.name,
            opened_ms=self._clock.now_ms(),
            model=model,
            ceiling=options.ceiling,
            is_pinning=options.is_pinning,
            is_stream=query.traits.is_stream,
            strategy=options.strategy or self._policy.find_strategy(model),
            lineage=None if place is None else place.lineage,
            unread=_explain_unplaced(split, form.items_key) if not (place and split.items) else "",
            redirected=read.content if read is not split else b"",
            passed=found.passed,
            unresolved=found.unresolved,
        )
        if place is not None and split.items:
            measured = self._histories.find_measured(key, *remembered[:2], chain, (session.upstream, model))
            remembered = remembered._replace(measured=measured)
            resolved = _make_managed(resolved, form, query, split=read, chain=chain, measured=measured)
            resolved = replace(resolved, is_new=place.is_new, kept_part=kept_part, is_certain=place.is_certain)
        return resolved, partial(self._build_body, key, split, chain, remembered, kept_part)

    async def _follow(
        self, asked: ReferringRequest, key: Key, remembered: _Remembered, caller: Credential, *, is_whole: bool
    ) -> tuple[ResolvedReferences, SplitBody, _Remembered]:
        """Return what a request refers to, the split of its body with that, and what this shares with a cached one."""
        is_written = not is_whole and self._lineage.tenants.trusts(caller)
        found = await self._stored.resolve(asked, is_written=is_written)
        if found.request is asked.request:
            return found, asked.split, remembered
        remembered = _Remembered(*self._histories.find(key, found.request.body), self._histories.losses)
        split = split_known(found.request.body, asked.form.items_key, *remembered[:2], is_ours=True)
        assert split is not None, "it was made of whole values"
        return found, split, remembered

    async def _read_chain(
        self, form: Format, session: SessionKey, split: SplitBody, remembered: _Remembered, *, root: bytes, until: float
    ) -> Chain:
        """Read the messages of a body, and resolve their references to stored items."""
        known, shared, *_ = remembered
        before = known.chain if known is not None else None
        messages = await self._lineage.resolve_references(
            session, read_messages(form, split, before, shared, root), until
        )
        return make_chain(messages, before, root, is_plain=_is_plain(split.content, known, shared))

    async def _place(self, query: LineageQuery) -> Placement:
        for exchange in self._lineage.list_unread(query) if self._lineage.unread else ():
            await self._reader.read_now(exchange)
        return await self._lineage.place(query)

    async def _find_kept(
        self, tenant: bytes, split: SplitBody, remembered: _Remembered, until: float
    ) -> KeptPart | None:
        """Compute how much of a body above the cap goes to the log, None for one below it.

        Ask the log what it has if much is not cached.
        """
        cap, known = self._policy.record_cap_bytes, remembered.known
        if len(split.content) <= cap:
            return None
        links = list_links(known, remembered.shared)
        kept_part = find_kept(split, cap, links, known)
        if kept_part.stop < len(split.items):
            made = await asyncio.to_thread(link_items, tenant, split, cap, links)
            count = await self._lineage.count_links(made, until)
            kept_part = find_kept(split, cap, made[:count], known) if count > len(links) else kept_part
        return kept_part

    def _build_body(
        self, key: Key, split: SplitBody, chain: Chain, remembered: "_Remembered", kept_part: KeptPart | None
    ) -> Manifest:
        """Build the manifest of a body. It refers to a cached one only if nothing was lost since."""
        self.forget_lost()
        known, shared, losses, measured = remembered
        if losses != self._histories.losses:
            known, shared = None, 0
            kept_part = kept_part and find_kept(split, kept_part.cap, ())
        body, history = build_manifest(key[0], split, chain, known, shared, measured=measured, kept_part=kept_part)
        if history is not None:
            self._histories.remember(key, history, known)
        return body

    def _resolve_unread(
        self, request: ClientRequest, options: RequestOptions, caller: Credential, exchange: str, wire: str = ""
    ) -> ResolvedRequest:
        """Resolve a body that is not read or not understood, to the first upstream and the session in its headers."""
        upstream = self._choose("").upstream
        return ResolvedRequest(
            request.method,
            request.target,
            request.headers,
            request.body,
            request.encoded,
            exchange=exchange,
            session=make_session(caller.tenant, upstream.name, self._naming.read(request.headers), exchange),
            upstream=upstream,
            mode=options.mode,
            passed=request.encoded,
            kind="managed" if wire else "passthrough",
            wire=wire,
            opened_ms=self._clock.now_ms(),
        )

    def _keep_whole(self, content: bytes) -> Manifest:
        return make_capped_manifest(content, self._policy.record_cap_bytes)

    def _identify(self, request: ClientRequest, arrival: Arrival) -> Credential:
        """Return the caller. Where the session is known, it says whose the call is."""
        if arrival.session is not None:
            return Credential(arrival.session.tenant, b"")
        return self._lineage.tenants.identify(request.headers)

    def _find_route(self, upstream: str) -> Route:
        """Return the route to an upstream. Raises Conflict if the settings have none of this name."""
        for route in self._routes:
            if route.upstream.name == upstream:
                return route
        raise Conflict(f"the upstream of this session, {upstream!r}, is no longer in the settings")

    def _choose(self, model: str) -> Route:
        return self._routes[choose_upstream(self._patterns, model)]


def _find_problem(request: ClientRequest) -> str:
    """Return why the body of a request could not be split."""
    content, encoding = request.body, read_encoding(request.headers)
    if encoding not in ("", "identity") and not request.encoded:
        return f"it is not in content-encoding {encoding[:40]!r}, or that is not known here"
    if content.startswith(_BYTE_ORDER_MARKS) or b"\0" in content[:_BEGINNING]:
        return "it has a byte order mark, or is not in UTF-8"
    return "it is no whole JSON object, is nested too deep, or has a member twice"


def _explain_unplaced(split: SplitBody, items_key: str) -> str:
    """Return why a request is not managed though its body was split; empty if that is short."""
    if len(split.content) < _WORTH_TELLING:
        return ""
    if split.items:
        return _UNNAMED
    return f"{UNREADABLE}: {items_key!r} is no list of messages, or has more than can be told apart"


def _is_plain(content: bytes, known: CachedBody | None, shared: int) -> bool:
    """Return whether a body is known to have no more tokens than bytes, examining only the part that is not cached."""
    if known is None or not shared:
        return len(content) <= _MOST_LOOKED_AT and has_token_bound(content)
    return known.chain.is_plain and has_token_bound(content[known.split.items[shared - 1].end :])


def _make_query(
    exchange: str, session: SessionKey, caller: Credential, *, split: SplitBody, chain: Chain, until: float
) -> LineageQuery:
    """Make the question to which session a request belongs, by its body."""
    return LineageQuery(
        exchange=exchange,
        session=session,
        token=caller.token,
        traits=Traits(
            parse_json_string(split.member("model")),
            split.member("tools") not in _NONE,
            chain.preamble.system,
            split.member("stream") == b"true",
        ),
        root=chain.root,
        nodes=chain.nodes,
        items=chain.items,
        most_output=read_output_limit(split),
        until=until,
    )


def _make_managed(
    request: ResolvedRequest,
    form: Format,
    query: LineageQuery,
    *,
    split: SplitBody,
    chain: Chain,
    measured: Measures,
) -> ManagedRequest:
    return ManagedRequest(
        **asdict(request),
        items_key=form.items_key,
        split=split,
        chain=chain,
        most_output=query.most_output,
        until=query.until,
        measured=measured,
    )


def read_output_limit(split: SplitBody) -> int:
    """Return how many tokens the response may have, or 0 if the request does not say."""
    for name in _OUTPUT_LIMITS:
        if name in split.members and (raw := split.member(name)).isdigit():
            return int(raw[:9])
    return 0
