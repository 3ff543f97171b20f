"""Whose a request is (BEHAVIOUR B2): a principal of the settings, else a JWT's subject, else the credential itself.

Rule: tenants are told apart by keyed hashes; credentials are kept in memory only, as hashes, for half an hour of
idleness at most. What a JWT says is not checked here: a token that the upstream has not accepted has proven nothing.
"""

import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from proxy.engine.policy import Principal
from proxy.engine.ports import Clock
from proxy.model.exchange import Headers
from proxy.wire.credentials import read_claims
from proxy.wire.headers import bare_credential, find, find_credential

_IDLE_SECONDS = 1800.0
_LATELY_SECONDS = 10.0
_MOST = 4096
_UNSAID = (b"", b"null", b'""')


class Credential(msgspec.Struct, frozen=True, gc=False):
    """Who calls: 16 bytes for the tenant, 16 for the very credential.

    `is_claimed`: the tenant is what the request says, not what the credential is or what the settings say of it.
    """

    tenant: bytes
    token: bytes
    is_claimed: bool = False


class Tenants:
    """Tells tenants apart. `salt` is the installation's secret."""

    def __init__(self, salt: bytes, clock: Clock, principals: Mapping[str, Principal] | None = None) -> None:
        self._salt = salt
        self._clock = clock
        self._by_key = {
            self._hash(key.encode()): self._hash(name.encode(), b"principal")
            for name, principal in (principals or {}).items()
            for key in principal.keys
        }
        self._by_header = tuple(
            (principal.header.lower().encode("latin-1"), name.encode())
            for name, principal in (principals or {}).items()
            if principal.header
        )
        self._proven: OrderedDict[bytes, float] = OrderedDict()

    def find(self, headers: Headers) -> Credential:
        """Whose a request with these headers is."""
        presented = find_credential(headers)
        token = self._hash(presented)
        for field, name in self._by_header:
            if value := find(headers, field):
                return Credential(self._hash(b"%b\0%b" % (name, value), b"header"), token, is_claimed=True)
        if self._by_key and (tenant := self._by_key.get(self._hash(bare_credential(presented)))):
            return Credential(tenant, token)
        subject = self._find_subject(presented)
        return Credential(subject or token, token, is_claimed=bool(subject))

    def prove(self, token: bytes) -> None:
        """The upstream has answered 2xx to this very credential."""
        now = self._clock.monotonic()
        if now - self._proven.get(token, -math.inf) < _LATELY_SECONDS:
            return
        self._proven[token] = now
        self._proven.move_to_end(token)
        while self._proven and (len(self._proven) > _MOST or self._is_old(next(iter(self._proven.values())), now)):
            self._proven.popitem(last=False)

    def is_proven(self, token: bytes) -> bool:
        """Whether the upstream has accepted this very credential of late."""
        at = self._proven.get(token)
        return at is not None and not self._is_old(at, self._clock.monotonic())

    def trusts(self, caller: Credential) -> bool:
        """Whether what is known of the tenant may be used: what a caller claims, the upstream has to confirm first."""
        return not caller.is_claimed or self.is_proven(caller.token)

    def _is_old(self, at: float, now: float) -> bool:
        return now - at > _IDLE_SECONDS

    def _find_subject(self, presented: bytes) -> bytes:
        """HMAC of issuer, subject and audience, so that a token that is renewed stays the same tenant; else empty."""
        claims = read_claims(bare_credential(presented))
        if not claims or any(bytes(claims.get(name, b"")) in _UNSAID for name in ("iss", "sub")):
            return b""
        named = b"\0".join(bytes(claims.get(name, b"")) for name in ("iss", "sub", "aud"))
        return hmac.new(self._salt, b"jwt\0" + named, hashlib.sha256).digest()[:16]

    def _hash(self, content: bytes, kind: bytes = b"") -> bytes:
        """BLAKE2b keyed with the salt (RFC 7693), 16 bytes; each kind has its own, so no credential is a principal."""
        return hashlib.blake2b(content, key=self._salt, digest_size=16, person=kind).digest()
