"""Resolving a client's request: its tenant, its session, what of its body is new, and its upstream."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from proxy.context.budget import has_token_bound
from proxy.engine.body_cache import (
    BodyCache,
    CachedBody,
    Holding,
    Key,
    build_manifest,
    hold,
    link_items,
    list_links,
    split_known,
)
from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.lineage.identity import ClientIdReader, Credential, make_session, parse_json_string, read_body_id
from proxy.engine.lineage.resolver import LineageQuery, Placement
from proxy.engine.lineage.session_index import Traits
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock, Ids, Upstream
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.response_reader import ResponseReader
from proxy.model.exchange import ClientRequest, Mode, Opening, SessionKey
from proxy.model.lineage import compute_chain_root
from proxy.model.manifest import Manifest, make_capped_manifest, make_manifest
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.headers import redact_target, select_stored

# A body of that size is counted in any case.
_MOST_LOOKED_AT = 256 * 1024
_NOTHING = make_manifest(b"")
_NONE = (b"", b"[]", b"null")
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

_log = logging.getLogger("palimpsest.requests")


@dataclass(frozen=True, slots=True)
class Route:
    """An upstream and the shell patterns of the models that go to it; without patterns it takes what none claims."""

    upstream: Upstream
    models: tuple[str, ...] = ()

    def claims(self, model: str) -> bool:
        """Return whether a model of this name goes to it by its patterns."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class _Remembered(NamedTuple):
    """The cached body that a request shares most items with, how many, and how often the cache was cleared by then."""

    known: CachedBody | None
    shared: int
    losses: int


class RequestResolver:
    """Resolves each request: its tenant, its session, what of it is new, and its upstream.

    It never fails a call: a body that cannot be read message by message is kept whole and goes to the first upstream.
    """

    def __init__(
        self,
        policy: EnginePolicy,
        routes: Sequence[Route],
        *,
        lineage: LineageTracker,
        reader: ResponseReader,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._policy = policy
        self._routes = tuple(routes)
        self._lineage = lineage
        self._reader = reader
        self._naming = ClientIdReader(policy.session_headers)
        self._histories = BodyCache(policy.cache_bytes // 2)
        self._clock = clock
        self._ids = ids

    async def resolve(self, request: ClientRequest, form: Format, mode: Mode) -> ResolvedRequest:
        """Resolve a request whose body is at hand. Waits for the log where memory does not know its history."""
        exchange = self._ids.next_exchange()
        caller = self._lineage.tenants.identify(request.headers)
        try:
            resolved = await self._resolve(request, form, mode, caller, exchange)
        except Exception:  # noqa: BLE001 - a boundary: a body that we cannot read is still a call to carry
            _log.exception("a request was not understood; it is carried and kept whole")
            resolved = None
        return resolved or self._resolve_unread(request, form, mode, caller, exchange)

    def resolve_stream(self, request: ClientRequest, mode: Mode) -> ResolvedRequest:
        """Resolve a request whose body is still to come; its reader fills in the opening's body."""
        exchange, upstream = self._ids.next_exchange(), self._choose("")
        tenant = self._lineage.tenants.identify(request.headers).tenant
        session = make_session(tenant, upstream.name, self._naming.read(request.headers), exchange)
        opened_ms = self._clock.now_ms()
        return ResolvedRequest(exchange, mode, "passthrough", "", session, upstream, "", opened_ms, lambda: _NOTHING)

    def make_opening(self, request: ClientRequest, resolved: ResolvedRequest) -> Opening:
        """Make the first record of an exchange. Building the manifest is a tenth of a short call: do it once the
        request is on its way.
        """
        try:
            body = resolved.build_body()
        except Exception:  # noqa: BLE001 - a boundary: what cannot be told from earlier bodies is kept whole
            _log.exception("a request was not understood; it is carried and kept whole")
            body = self._keep_whole(request.body)
        return Opening(
            exchange=resolved.exchange,
            session=resolved.session,
            kind=resolved.kind,
            wire=resolved.wire,
            mode=resolved.mode,
            model=resolved.model,
            method=request.method,
            target=redact_target(request.target),
            headers=select_stored(request.headers),
            body=body,
            opened_ms=resolved.opened_ms,
        )

    async def _resolve(
        self, request: ClientRequest, form: Format, mode: Mode, caller: Credential, exchange: str
    ) -> ResolvedRequest | None:
        """Resolve a body that can be read message by message; None of any other."""
        content, until = request.body, self._clock.monotonic() + self._policy.hard_wait_seconds
        named = self._naming.read(request.headers)
        key = (caller.tenant, form.name, named.family)
        if self._lineage.forget_lost():
            self._histories.clear()  # manifests lean on what earlier ones brought to the log
        known, shared = self._histories.find(key, content)
        remembered = _Remembered(known, shared, self._histories.losses)
        if (split := split_known(content, form.items_key, known, shared)) is None:
            return None
        model = parse_json_string(split.member("model"))
        upstream = self._choose(model)
        session = make_session(caller.tenant, upstream.name, read_body_id(named, split), exchange)
        previous = parse_json_string(split.member(form.previous_key)) if form.previous_key else ""
        root = await self._find_root(form, session, previous, until)
        before = known.chain if known is not None else None
        messages = await self._lineage.resolve_references(
            session, read_messages(form, split, before, shared, root), until
        )
        chain = make_chain(messages, before, root, is_plain=_is_plain(content, known, shared))
        traits = Traits(
            model, split.member("tools") not in _NONE, messages.preamble.system, split.member("stream") == b"true"
        )
        query = LineageQuery(
            exchange=exchange,
            session=session,
            token=caller.token,
            traits=traits,
            root=chain.root,
            nodes=chain.nodes,
            items=chain.items,
            most_output=read_output_limit(split),
            previous=previous,
            is_trusted=self._lineage.tenants.trusts(caller),
            until=until,
        )
        is_large = len(content) > self._policy.record_cap_bytes
        holding = await self._hold(caller.tenant, split, remembered, until) if is_large else None
        place = await self._place(query) if session.family or self._policy.infer else None
        # From here on nothing waits: what is remembered is in the log with the opening, before any later request's.
        managed = None
        if place is not None and split.items:
            managed = _make_managed(request, upstream, form, query, place, split=split, chain=chain, holding=holding)
        return ResolvedRequest(
            exchange,
            mode,
            "managed",
            form.name,
            session if place is None else place.session,
            upstream,
            model,
            self._clock.now_ms(),
            partial(self._build_body, key, split, chain, remembered, holding),
            traits.is_stream,
            place.step if place is not None else None,
            managed,
        )

    async def _find_root(self, form: Format, session: SessionKey, previous: str, until: float) -> bytes:
        """Return the root of a request's chain: the stored answer that it continues, else the upstream's root."""
        root = compute_chain_root(session.upstream)
        if form.previous_key:
            for exchange in self._lineage.list_unread_of(session.tenant):
                await self._reader.hurry(exchange)  # a request may refer to any of them by an id
        return await self._lineage.find_response(session, previous, until) or root if previous else root

    async def _place(self, query: LineageQuery) -> Placement:
        for exchange in self._lineage.list_unread(query):
            await self._reader.hurry(exchange)
        return await self._lineage.place(query)

    async def _hold(self, tenant: bytes, split: SplitBody, remembered: "_Remembered", until: float) -> Holding:
        """Compute how much of a body above the cap goes to the log; ask what is there where much is not known."""
        cap, known = self._policy.record_cap_bytes, remembered.known
        links = list_links(known, remembered.shared)
        holding = hold(split, cap, links, known)
        if holding.stop < len(split.items):
            made = await asyncio.to_thread(link_items, tenant, split, cap, links)
            count = await self._lineage.count_links(made, until)
            holding = hold(split, cap, made[:count], known) if count > len(links) else holding
        return holding

    def _build_body(
        self, key: Key, split: SplitBody, chain: Chain, remembered: "_Remembered", holding: Holding | None
    ) -> Manifest:
        """Build the manifest of a body, which refers to a cached one only if nothing was lost since."""
        if self._lineage.forget_lost():
            self._histories.clear()
        known, shared, losses = remembered
        if losses != self._histories.losses:
            known, shared = None, 0
            holding = hold(split, holding.cap, ()) if holding is not None else None
        body, history = build_manifest(key[0], split, chain, known, shared, holding=holding)
        if history is not None:
            self._histories.remember(key, history, known)
        return body

    def _resolve_unread(
        self, request: ClientRequest, form: Format, mode: Mode, caller: Credential, exchange: str
    ) -> ResolvedRequest:
        """Resolve a body that is not understood: whole, to the first upstream, in the session that its headers name."""
        upstream = self._choose("")
        session = make_session(caller.tenant, upstream.name, self._naming.read(request.headers), exchange)
        build_body = partial(self._keep_whole, request.body)
        return ResolvedRequest(
            exchange, mode, "managed", form.name, session, upstream, "", self._clock.now_ms(), build_body
        )

    def _keep_whole(self, content: bytes) -> Manifest:
        return make_capped_manifest(content, self._policy.record_cap_bytes)

    def _choose(self, model: str) -> Upstream:
        if model:
            for route in self._routes:
                if route.claims(model):
                    return route.upstream
        for route in self._routes:
            if not route.models:
                return route.upstream
        return self._routes[0].upstream


def _is_plain(content: bytes, known: CachedBody | None, shared: int) -> bool:
    """Return whether a body has no more tokens than bytes; what repeats was checked before, and much at once is not."""
    if known is None or not shared:
        return len(content) <= _MOST_LOOKED_AT and has_token_bound(content)
    return known.chain.is_plain and has_token_bound(content[known.split.items[shared - 1].end :])


def _make_managed(
    request: ClientRequest,
    upstream: Upstream,
    form: Format,
    query: LineageQuery,
    place: Placement,
    *,
    split: SplitBody,
    chain: Chain,
    holding: Holding | None,
) -> ManagedRequest:
    return ManagedRequest(
        query.exchange,
        place.session,
        form.name,
        form.items_key,
        query.traits.model,
        query.most_output,
        split,
        chain,
        place.step,
        request.headers,
        request.target,
        upstream,
        is_new=place.is_new and place.source is None,
        holding=holding,
        until=query.until,
        is_certain=place.is_certain,
    )


def read_output_limit(split: SplitBody) -> int:
    """Return how many tokens the response may have; 0 where the request does not say."""
    for name in _OUTPUT_LIMITS:
        if name in split.members and (raw := split.member(name)).isdigit():
            return int(raw[:9])
    return 0
