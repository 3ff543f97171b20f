"""Receiving a request: whose it is, which conversation it belongs to, what of its body is new, where it goes.

Rule: recognising never fails a call. A body that cannot be read in parts is kept whole and goes to the first upstream.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from proxy.engine.histories import Histories, Key, split_known, take_stock
from proxy.engine.lineage import Lineage, read_text
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Archive, Clock, Ids, Upstream
from proxy.model.exchange import ClientRequest, Kind, Mode, Opening
from proxy.model.manifest import Manifest, digest_of, keep_head, keep_whole
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.headers import keep_for_log, keep_target

_NOTHING = keep_whole(b"")

_log = logging.getLogger("palimpsest.reception")


@dataclass(frozen=True, slots=True)
class Route:
    """An upstream and the shell patterns of the models that go to it; without patterns it takes what none claims."""

    upstream: Upstream
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    """A request as recognised. `is_stream`: the client asks for a streamed answer."""

    opening: Opening
    upstream: Upstream
    is_stream: bool = False


class _Caller(NamedTuple):
    """Who asks, in which conversation (empty: none named), and whom."""

    tenant: bytes
    family: str
    upstream: Upstream


class _Reading(NamedTuple):
    """What was read of a request."""

    kind: Kind
    wire: str
    model: str
    body: Manifest
    is_stream: bool = False


class Reception:
    """Turns requests into openings."""

    def __init__(
        self, policy: EnginePolicy, routes: Sequence[Route], archive: Archive, lineage: Lineage, clock: Clock, ids: Ids
    ) -> None:
        self._policy = policy
        self._routes = tuple(routes)
        self._archive = archive
        self._lineage = lineage
        self._histories = Histories(policy.cache_bytes)
        self._clock = clock
        self._ids = ids
        self._generation = 0

    def receive(self, request: ClientRequest, form: Format, mode: Mode) -> Received:
        """Recognise a request whose body is at hand."""
        tenant = self._lineage.find_tenant(request.headers)
        early = self._lineage.name_family(request.headers, None)
        try:
            split, manifest = self._take_stock((tenant, form.name, early), request.body, form)
            family = self._lineage.name_family(request.headers, split)
            model = read_text(split.member("model")) if split is not None else ""
            is_stream = split is not None and split.member("stream") == b"true"
        except Exception:  # noqa: BLE001 - a boundary: what we cannot make out must not fail the call
            _log.exception("a request was not understood; it is carried and kept whole")
            family, model, is_stream, manifest = early, "", False, self._keep_whole(request.body)
        caller = _Caller(tenant, family, self._choose(model))
        return self._open(request, mode, caller, _Reading("managed", form.name, model, manifest, is_stream))

    def receive_stream(self, request: ClientRequest, mode: Mode) -> Received:
        """Recognise a request whose body is still to come; whoever passes it on fills in the opening's body."""
        tenant = self._lineage.find_tenant(request.headers)
        family = self._lineage.name_family(request.headers, None)
        caller = _Caller(tenant, family, self._choose(""))
        return self._open(request, mode, caller, _Reading("passthrough", "", "", _NOTHING))

    def _open(self, request: ClientRequest, mode: Mode, caller: _Caller, reading: _Reading) -> Received:
        exchange = self._ids.next_exchange()
        opening = Opening(
            exchange=exchange,
            session=self._lineage.name_session(caller.tenant, caller.upstream.name, caller.family, exchange),
            kind=reading.kind,
            wire=reading.wire,
            mode=mode,
            model=reading.model,
            method=request.method,
            target=keep_target(request.target),
            headers=keep_for_log(request.headers),
            body=reading.body,
            opened_ms=self._clock.now_ms(),
        )
        return Received(opening, caller.upstream, reading.is_stream)

    def _take_stock(self, key: Key, content: bytes, form: Format) -> tuple[SplitBody | None, Manifest]:
        if len(content) > self._policy.record_cap_bytes:
            return split_body(content, form.items_key), self._keep_whole(content)
        self._forget_after_loss()
        known, shared = self._histories.find(key, content)
        split = split_known(content, form.items_key, known, shared)
        if split is None:
            return None, keep_whole(content)
        manifest, history = take_stock(key[0], split, known, shared)
        if history is not None:
            self._histories.remember(key, history, known)
        return split, manifest

    def _keep_whole(self, content: bytes) -> Manifest:
        cap = self._policy.record_cap_bytes
        if len(content) <= cap:
            return keep_whole(content)
        return keep_head(content[:cap], len(content), digest_of(content))

    def _forget_after_loss(self) -> None:
        """Manifests lean on what earlier ones brought to the log; after a loss they must bring everything again."""
        generation = self._archive.health.generation
        if generation != self._generation:
            self._generation = generation
            self._histories.clear()

    def _choose(self, model: str) -> Upstream:
        if model:
            for route in self._routes:
                if any(fnmatchcase(model, pattern) for pattern in route.models):
                    return route.upstream
        for route in self._routes:
            if not route.models:
                return route.upstream
        return self._routes[0].upstream
