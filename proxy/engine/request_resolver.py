"""Receiving a request: whose it is, which conversation it belongs to, what of its body is new, where it goes.

Rule: recognising never fails a call. A body that cannot be read in parts is kept whole and goes to the first upstream.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

import msgspec

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
from proxy.engine.boundary import attempt, attempt_now
from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.lineage.known import Traits
from proxy.engine.lineage.naming import Naming, make_session, read_body, read_text
from proxy.engine.lineage.placing import LineageQuery, Placement
from proxy.engine.lineage.tenants import Credential
from proxy.engine.lineage.tracking import Lineage
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Clock, Ids, Upstream
from proxy.engine.request import ManagedRequest
from proxy.engine.response_reader import ResponseReader
from proxy.model.exchange import ClientRequest, Kind, Mode, Opening, SessionKey
from proxy.model.lineage import Step, root_of_chain
from proxy.model.manifest import Manifest, keep_to, keep_whole
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.headers import keep_for_log, keep_target

# A body of that size is counted in any case.
_MOST_LOOKED_AT = 256 * 1024
_NOTHING = keep_whole(b"")
_NONE = (b"", b"[]", b"null")
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

_log = logging.getLogger("palimpsest.reception")


@dataclass(frozen=True, slots=True)
class Route:
    """An upstream and the shell patterns of the models that go to it; without patterns it takes what none claims."""

    upstream: Upstream
    models: tuple[str, ...] = ()

    def claims(self, model: str) -> bool:
        """Whether a model of this name goes to it by its patterns."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class ResolvedRequest:
    """A request as recognised. `is_stream`: a streamed answer is asked for. `step`: where it stands, if known.

    `subject` is None where there is nothing to manage: what is not understood, or has no place.
    """

    __slots__ = ("_make", "_opening", "exchange", "is_stream", "mode", "session", "step", "subject", "upstream")

    def __init__(self, exchange: str, mode: Mode, recognised: "_Recognised", make: Callable[[], Opening]) -> None:
        self.exchange = exchange
        self.mode = mode
        self.session = recognised.session
        self.upstream = recognised.upstream
        self.is_stream = recognised.is_stream
        self.step = recognised.step
        self.subject = recognised.subject
        self._make: Callable[[], Opening] | None = make
        self._opening: Opening | None = None

    @property
    def opening(self) -> Opening:
        """What goes to the log, made when it is asked for first, which must be before anything else is received.

        Taking stock of a body is a tenth of a short call; until then the request may be on its way.
        """
        if self._opening is None:
            assert self._make is not None, "it is made once"
            self._opening = self._make()
            self._make = None  # what it is made of may be let go
        return self._opening

    def take_opening(self) -> Opening:
        """The same, to be queued: what is long in it is not kept here beside."""
        opening = self.opening
        self._opening = opening.leave_content()
        return opening


class _Recognised(msgspec.Struct, frozen=True, gc=False):
    """What a body says. `step` is None where it cannot be read in parts; `take_stock` gives its manifest, once."""

    session: SessionKey
    upstream: Upstream
    model: str
    take_stock: Callable[[], Manifest]
    is_stream: bool = False
    step: Step | None = None
    subject: ManagedRequest | None = None


class _Remembered(NamedTuple):
    """The body seen before that a request shares most with, how many items, and how much had been lost by then."""

    known: CachedBody | None
    shared: int
    losses: int


class _Reading(msgspec.Struct, frozen=True, gc=False):
    """What was read of a request."""

    kind: Kind
    wire: str
    model: str
    opened_ms: int


class RequestResolver:
    """Turns requests into openings."""

    def __init__(
        self,
        policy: EnginePolicy,
        routes: Sequence[Route],
        lineage: Lineage,
        readings: ResponseReader,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._policy = policy
        self._routes = tuple(routes)
        self._lineage = lineage
        self._readings = readings
        self._naming = Naming(policy.session_headers)
        self._histories = BodyCache(policy.cache_bytes // 2)
        self._clock = clock
        self._ids = ids

    async def receive(self, request: ClientRequest, form: Format, mode: Mode) -> ResolvedRequest:
        """Recognise a request whose body is at hand. Waits for the log where memory does not know its history."""
        exchange = self._ids.next_exchange()
        caller = self._lineage.tenants.find(request.headers)
        recognised = await attempt(self._recognise(request, form, caller, exchange), _note_riddle)
        if recognised is None:
            recognised = self._keep_apart(request, caller, exchange)
        reading = _Reading("managed", form.name, recognised.model, self._clock.now_ms())
        make = partial(self._open, request, mode, exchange, recognised, reading)
        return ResolvedRequest(exchange, mode, recognised, make)

    def receive_stream(self, request: ClientRequest, mode: Mode) -> ResolvedRequest:
        """Recognise a request whose body is still to come; whoever passes it on fills in the opening's body."""
        exchange, upstream = self._ids.next_exchange(), self._choose("")
        tenant = self._lineage.tenants.find(request.headers).tenant
        session = make_session(tenant, upstream.name, self._naming.read(request.headers), exchange)
        recognised = _Recognised(session, upstream, "", lambda: _NOTHING)
        reading = _Reading("passthrough", "", "", self._clock.now_ms())
        make = partial(self._open, request, mode, exchange, recognised, reading)
        return ResolvedRequest(exchange, mode, recognised, make)

    def _open(
        self, request: ClientRequest, mode: Mode, exchange: str, recognised: _Recognised, reading: _Reading
    ) -> Opening:
        body = attempt_now(recognised.take_stock, _note_riddle)
        return Opening(
            exchange=exchange,
            session=recognised.session,
            kind=reading.kind,
            wire=reading.wire,
            mode=mode,
            model=reading.model,
            method=request.method,
            target=keep_target(request.target),
            headers=keep_for_log(request.headers),
            body=self._keep_whole(request.body) if body is None else body,
            opened_ms=reading.opened_ms,
        )

    async def _recognise(self, request: ClientRequest, form: Format, caller: Credential, exchange: str) -> _Recognised:
        content, until = request.body, self._clock.monotonic() + self._policy.hard_wait_seconds
        named = self._naming.read(request.headers)
        key = (caller.tenant, form.name, named.family)
        self._forget_lost()
        known, shared = self._histories.find(key, content)
        remembered = _Remembered(known, shared, self._histories.losses)
        split = split_known(content, form.items_key, known, shared)
        if split is None:
            return self._keep_apart(request, caller, exchange)
        model = read_text(split.member("model"))
        upstream = self._choose(model)
        session = make_session(caller.tenant, upstream.name, read_body(named, split), exchange)
        previous = read_text(split.member(form.previous_key)) if form.previous_key else ""
        root = await self._find_root(form, session, previous, until)
        before = known.chain if known is not None else None
        messages = await self._lineage.resolve(session, read_messages(form, split, before, shared, root), until)
        chain = make_chain(messages, before, root, is_plain=_is_plain(content, known, shared))
        traits = Traits(
            model, split.member("tools") not in _NONE, messages.preamble.system, split.member("stream") == b"true"
        )
        asked = LineageQuery(
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
        place = await self._place(asked) if session.family or self._policy.infer else None
        # From here on nothing waits: what is remembered is in the log with the opening, before any later request's.
        body = partial(self._take_stock, key, split, chain, remembered, holding)
        if place is not None:
            parts = (split, chain, holding)
            subject = _make_subject(request, upstream, form, asked, parts, place) if split.items else None
            return _Recognised(place.session, upstream, model, body, traits.is_stream, place.step, subject)
        return _Recognised(session, upstream, model, body, traits.is_stream)

    async def _find_root(self, form: Format, session: SessionKey, previous: str, until: float) -> bytes:
        """Where the chain of a request begins: at the stored answer it goes on from, else at the upstream's root."""
        root = root_of_chain(session.upstream)
        if form.previous_key:
            for exchange in self._lineage.list_unread_of(session.tenant):
                await self._readings.hurry(exchange)  # a request may refer to any of them by an id
        return await self._lineage.find_response(session, previous, until) or root if previous else root

    async def _place(self, asked: LineageQuery) -> Placement:
        for exchange in self._lineage.list_unread(asked):
            await self._readings.hurry(exchange)
        return await self._lineage.place(asked)

    async def _hold(self, tenant: bytes, split: SplitBody, remembered: "_Remembered", until: float) -> Holding:
        """How much goes to the log of a body above the cap. Asks what of it is there where much is not known."""
        cap, known = self._policy.record_cap_bytes, remembered.known
        links = list_links(known, remembered.shared)
        holding = hold(split, cap, links, known)
        if holding.stop < len(split.items):
            made = await asyncio.to_thread(link_items, tenant, split, cap, links)
            count = await self._lineage.count_links(made, until)
            holding = hold(split, cap, made[:count], known) if count > len(links) else holding
        return holding

    def _take_stock(
        self, key: Key, split: SplitBody, chain: Chain, remembered: "_Remembered", holding: Holding | None
    ) -> Manifest:
        """The manifest of a body, which leans on a remembered one only if nothing was lost since."""
        self._forget_lost()
        known, shared, losses = remembered
        if losses != self._histories.losses:
            known, shared = None, 0
            holding = hold(split, holding.cap, ()) if holding is not None else None
        body, history = build_manifest(key[0], split, chain, known, shared, holding=holding)
        if history is not None:
            self._histories.remember(key, history, known)
        return body

    def _forget_lost(self) -> None:
        if self._lineage.forget_lost():
            self._histories.clear()  # manifests lean on what earlier ones brought to the log

    def _keep_apart(self, request: ClientRequest, caller: Credential, exchange: str) -> _Recognised:
        """A body that is not understood: whole, to the first upstream, in the session that its headers name."""
        upstream = self._choose("")
        session = make_session(caller.tenant, upstream.name, self._naming.read(request.headers), exchange)
        return _Recognised(session, upstream, "", partial(self._keep_whole, request.body))

    def _keep_whole(self, content: bytes) -> Manifest:
        return keep_to(content, self._policy.record_cap_bytes)

    def _choose(self, model: str) -> Upstream:
        if model:
            for route in self._routes:
                if route.claims(model):
                    return route.upstream
        for route in self._routes:
            if not route.models:
                return route.upstream
        return self._routes[0].upstream


def _note_riddle(error: Exception) -> None:
    _log.error("a request was not understood; it is carried and kept whole", exc_info=error)


def _is_plain(content: bytes, known: CachedBody | None, shared: int) -> bool:
    """Whether a body has no more tokens than bytes; what repeats was looked at before, and much at once is not."""
    if known is None or not shared:
        return len(content) <= _MOST_LOOKED_AT and has_token_bound(content)
    return known.chain.is_plain and has_token_bound(content[known.split.items[shared - 1].end :])


def _make_subject(
    request: ClientRequest,
    upstream: Upstream,
    form: Format,
    asked: LineageQuery,
    body: tuple[SplitBody, Chain, Holding | None],
    place: Placement,
) -> ManagedRequest:
    split, chain, holding = body
    return ManagedRequest(
        asked.exchange,
        place.session,
        form.name,
        form.items_key,
        asked.traits.model,
        asked.most_output,
        split,
        chain,
        place.step,
        request.headers,
        request.target,
        upstream,
        is_new=place.is_new and place.source is None,
        holding=holding,
        until=asked.until,
        is_certain=place.is_certain,
    )


def read_output_limit(split: SplitBody) -> int:
    """How many tokens the answer may have; 0 where the request does not say."""
    for name in _OUTPUT_LIMITS:
        raw = split.member(name)
        if raw.isdigit():
            return int(raw[:9])
    return 0
