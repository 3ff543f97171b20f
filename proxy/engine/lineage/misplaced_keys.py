"""Tells once of credentials that go to a provider whose they are not. Nothing is held back for it."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from proxy.engine.policy import CredentialPlace
from proxy.wire.credentials import find_owner, find_provider

_log = logging.getLogger("palimpsest.requests")


class MisplacedKey(NamedTuple):
    """An upstream, the provider that it belongs to, and the provider whose form a credential has that goes there."""

    upstream: str
    receiver: str
    owner: str


class MisplacedKeys:
    """Compares the forms of credentials with the hosts that they go to; `found` is each pair that was seen once."""

    def __init__(self, places: Iterable[CredentialPlace]) -> None:
        self.found: set[MisplacedKey] = set()
        self._receivers: dict[str, str] = {}  # by the upstreams that clients' credentials go to
        for place in places:
            if not (receiver := find_provider(place.host)):
                continue
            if place.key:
                self._compare(place.upstream, receiver, place.key)
            else:
                self._receivers[place.upstream] = receiver

    def note(self, upstream: str, credentials: Iterable[bytes]) -> None:
        """Note the credentials with which a client calls an upstream. Takes two microseconds."""
        if receiver := self._receivers.get(upstream):
            for credential in credentials:
                self._compare(upstream, receiver, credential)

    def _compare(self, upstream: str, receiver: str, credential: bytes) -> None:
        owner = find_owner(credential)
        if owner in ("", receiver) or (found := MisplacedKey(upstream, receiver, owner)) in self.found:
            return
        self.found.add(found)
        _log.warning(
            "a credential in the form of %s goes to %s, which is %s's; see upstreams[].models and api_key",
            *(owner, upstream, receiver),
            extra={"upstream": upstream},
        )
