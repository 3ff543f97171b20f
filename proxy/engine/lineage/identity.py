"""Who calls, and what a client calls its conversation (BEHAVIOUR B2; PROTOCOL §2, rules 0 and 1)."""

import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from proxy.engine.policy import Principal
from proxy.engine.ports import Clock
from proxy.model.exchange import Headers, SessionKey
from proxy.wire.body import SplitBody
from proxy.wire.credentials import read_claims
from proxy.wire.headers import find_credential, find_header, strip_scheme

_OWN = b"x-palimpsest-session"
_GENERIC = (b"x-session-id", b"x-dynamo-session-id", b"helicone-session-id", b"x-litellm-session-id")
_PARENTS = {b"x-session-id": b"x-parent-session-id"}
_THREAD, _PARENT_THREAD = b"thread-id", b"x-codex-parent-thread-id"
_SESSION, _AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_OF_CLIENTS = (_THREAD, _PARENT_THREAD, _SESSION, _AGENT)
_BODY_MEMBERS = ("litellm_session_id", "session_id")
_LONGEST = 200

_IDLE_SECONDS = 1800.0
_LATELY_SECONDS = 10.0
_MOST_TOKENS = 4096
_UNSAID = (b"", b"null", b'""')


class ClientId(msgspec.Struct, frozen=True, gc=False):
    """The id that a client gives its conversation, and that of the agent that started it; empty where it gives none.

    `is_weak`: it comes from headers that one client sends with all its requests; an id in the body goes before.
    """

    family: str = ""
    parent: str = ""
    is_weak: bool = False


_NO_ID = ClientId()


class ClientIdReader:
    """Reads the id of a conversation from headers. `session_headers` are further headers that hold one.

    An id names a family of sessions within its tenant and upstream, never more. Ids that several conversations of one
    client share (`user`, `safety_identifier`, `prompt_cache_key`) are not read.
    """

    def __init__(self, session_headers: tuple[str, ...] = ()) -> None:
        self._headers = tuple(name.lower().encode("latin-1") for name in session_headers) + _GENERIC
        self._names = frozenset((_OWN, *self._headers, *_PARENTS.values(), *_OF_CLIENTS))

    def read(self, headers: Headers) -> ClientId:
        """Return the id in the headers; of a header that is there twice, the first counts."""
        values: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in self._names:
                values.setdefault(name, value)
        if not values:
            return _NO_ID
        if own := values.get(_OWN):
            return ClientId(_shorten(own.decode("latin-1")))
        for name in self._headers:
            if given := values.get(name):
                prefix = name.decode("latin-1")
                parent = values.get(_PARENTS.get(name, b""), b"")
                return ClientId(_name(prefix, given), _name(prefix, parent) if parent not in (b"", given) else "")
        return _read_client_headers(values)


def read_body_id(found: ClientId, body: SplitBody) -> ClientId:
    """Return the id of a conversation whose headers have the one that was found, and which has this body."""
    if found.family and not found.is_weak:
        return found
    for name in _BODY_MEMBERS:
        if (raw := body.member(name)) and (value := parse_json_string(raw)):
            return ClientId(_shorten(f"{name}:{value}"))
    # Responses: `conversation`, an id or an object with one, names a history that the upstream holds.
    raw = body.member("conversation")
    if raw[:1] == b"{":
        try:
            raw = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("id", b""))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return found
    if raw and (value := parse_json_string(raw)):
        return ClientId(_shorten(f"conversation:{value}"))
    return found


def make_session(tenant: bytes, upstream: str, client_id: ClientId, exchange: str) -> SessionKey:
    """Return the session of a client's id, else of the exchange alone; its own id is the same in every process."""
    family = client_id.family
    seed = b"%s\0%s\0" % (tenant, upstream.encode())
    if not family:
        id = hashlib.sha256(b"%sexchange\0%s" % (seed, exchange.encode())).digest()[:10].hex()
        return SessionKey(id, tenant, upstream, "")
    parent = _derive(seed, client_id.parent) if client_id.parent else ""
    return SessionKey(_derive(seed, family), tenant, upstream, family, parent)


def _derive(seed: bytes, family: str) -> str:
    return hashlib.sha256(b"%sfamily\0%s" % (seed, family.encode("utf-8", "surrogatepass"))).digest()[:10].hex()


def parse_json_string(raw: bytes) -> str:
    """Return the value of a JSON string; empty for anything else."""
    if raw[:1] != b'"':
        return ""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _read_client_headers(values: Mapping[bytes, bytes]) -> ClientId:
    """Return the id in the headers of Codex, or of Claude Code."""
    if thread := values.get(_THREAD):
        parent = values.get(_PARENT_THREAD, b"")
        is_child = parent not in (b"", thread)
        return ClientId(_name("codex", thread), _name("codex", parent) if is_child else "", is_weak=True)
    if session := values.get(_SESSION):
        conversation = f"claude-code:{session.decode('latin-1')}"
        main, agent = _shorten(f"{conversation}:main"), values.get(_AGENT)
        if agent and agent != b"main":
            return ClientId(_name(conversation, agent), main, is_weak=True)
        return ClientId(main, is_weak=True)
    return _NO_ID


def _name(prefix: str, value: bytes) -> str:
    return _shorten(f"{prefix}:{value.decode('latin-1')}")


def _shorten(family: str) -> str:
    """Return an id, or its digest where it is long: ids of any length and alphabet are accepted."""
    if len(family) <= _LONGEST:
        return family
    return "sha256:" + hashlib.sha256(family.encode("utf-8", "surrogatepass")).hexdigest()


class Credential(msgspec.Struct, frozen=True, gc=False):
    """Who calls: 16 bytes for the tenant, 16 for the very credential.

    `is_claimed`: the tenant is what the request says, not what the credential is or what the settings say of it.
    """

    tenant: bytes
    token: bytes
    is_claimed: bool = False


class Tenants:
    """Tells tenants apart: a principal of the settings, else a JWT's subject, else the credential itself.

    Tenants are known by keyed hashes, `salt` being the installation's secret; credentials are kept in memory only, as
    hashes, until they have been idle for half an hour. A JWT is not verified here: a token that the upstream has not
    accepted has proven nothing.
    """

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

    def identify(self, headers: Headers) -> Credential:
        """Return whose a request with these headers is."""
        presented = find_credential(headers)
        token = self._hash(presented)
        for header, name in self._by_header:
            if value := find_header(headers, header):
                return Credential(self._hash(b"%b\0%b" % (name, value), b"header"), token, is_claimed=True)
        if self._by_key and (tenant := self._by_key.get(self._hash(strip_scheme(presented)))):
            return Credential(tenant, token)
        subject = self._hash_subject(presented) if b"." in presented else b""  # a JWT has two dots
        return Credential(subject or token, token, is_claimed=bool(subject))

    def prove(self, token: bytes) -> None:
        """Record that the upstream has answered 2xx to this very credential."""
        now = self._clock.monotonic()
        if now - self._proven.get(token, -math.inf) < _LATELY_SECONDS:
            return
        self._proven[token] = now
        self._proven.move_to_end(token)
        while len(self._proven) > _MOST_TOKENS or now - next(iter(self._proven.values())) > _IDLE_SECONDS:
            self._proven.popitem(last=False)

    def is_proven(self, token: bytes) -> bool:
        """Return whether the upstream has accepted this very credential of late."""
        at = self._proven.get(token)
        return at is not None and self._clock.monotonic() - at <= _IDLE_SECONDS

    def trusts(self, caller: Credential) -> bool:
        """Return whether what is known of the tenant may be used: a claim has to be confirmed by the upstream first."""
        return not caller.is_claimed or self.is_proven(caller.token)

    def _hash_subject(self, presented: bytes) -> bytes:
        """Return the HMAC of issuer, subject and audience, the same for a renewed token; empty for what is no JWT."""
        claims = read_claims(strip_scheme(presented))
        if not claims or any(bytes(claims.get(name, b"")) in _UNSAID for name in ("iss", "sub")):
            return b""
        named = b"\0".join(bytes(claims.get(name, b"")) for name in ("iss", "sub", "aud"))
        return hmac.new(self._salt, b"jwt\0" + named, hashlib.sha256).digest()[:16]

    def _hash(self, content: bytes, kind: bytes = b"") -> bytes:
        """Return BLAKE2b keyed with the salt (RFC 7693), 16 bytes; by kind, so that no credential is a principal."""
        return hashlib.blake2b(content, key=self._salt, digest_size=16, person=kind).digest()
