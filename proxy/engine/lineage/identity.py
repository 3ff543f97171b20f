"""The identity of the caller, and the client's name for its conversation."""

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
from proxy.wire.json_values import read_object

_OWN = b"x-palimpsest-session"
_GENERIC = (b"x-session-id", b"x-dynamo-session-id", b"helicone-session-id", b"x-litellm-session-id")
_PARENTS = {b"x-session-id": b"x-parent-session-id"}
_THREAD, _PARENT_THREAD = b"thread-id", b"x-codex-parent-thread-id"
_SESSION, _AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_TURN = b"x-codex-turn-metadata"
_OF_CLIENTS = (_THREAD, _PARENT_THREAD, _SESSION, _AGENT)
_BODY_MEMBERS = ("litellm_session_id", "session_id")
_LONGEST = 200

_IDLE_SECONDS = 1800.0
_LATELY_SECONDS = 10.0
_MOST_TOKENS = 4096
_UNSAID = (b"", b"null", b'""')


class ClientId(msgspec.Struct, frozen=True, gc=False):
    """The id that a client gives its conversation, and that of the agent that started it. Empty if it gives none.

    `is_weak`: it comes from headers that one client sends with all its requests, so an id in the body takes precedence.
    """

    family: str = ""
    parent: str = ""
    is_weak: bool = False


_NO_ID = ClientId()


class ClientIdReader:
    """Reads the id of a conversation from headers. `session_headers` are further headers that contain one.

    An id names a family of sessions only within its tenant and upstream. Ids that several conversations of one client
    share (`user`, `safety_identifier`, `prompt_cache_key`) are not read.
    """

    def __init__(self, session_headers: tuple[str, ...] = ()) -> None:
        self._headers = tuple(name.lower().encode("latin-1") for name in session_headers) + _GENERIC
        self._names = frozenset((_OWN, *self._headers, *_PARENTS.values(), *_OF_CLIENTS))

    def read(self, headers: Headers) -> ClientId:
        """Return the id in the headers. If a header is repeated, the first one counts."""
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
    """Return the id in the body if `found`, the id in the headers, is empty or weak. Otherwise return `found`."""
    if found.family and not found.is_weak:
        return found
    for name in _BODY_MEMBERS:
        if (raw := body.member(name)) and (value := parse_json_string(raw)):
            return ClientId(_shorten(f"{name}:{value}"))
    # Responses API: `conversation`, an id or an object with one, names a history that the upstream stores.
    raw = body.member("conversation")
    if raw[:1] == b"{":
        try:
            raw = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("id", b""))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return found
    if raw and (value := parse_json_string(raw)):
        return ClientId(_shorten(f"conversation:{value}"))
    return found


def is_said_aside(headers: Headers) -> bool:
    """Return whether codex says that a call is beside its conversation: it compacts that, by a prompt of its own."""
    said = find_header(headers, _TURN)
    turn = read_object(said.decode("latin-1")) if b"compaction" in said else None
    return turn is not None and turn.get("request_kind") == "compaction"


def make_session(tenant: bytes, upstream: str, client_id: ClientId, exchange: str) -> SessionKey:
    """Return the session of a client's id, or of the exchange alone. Every process derives the same session id."""
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
    """Return the value of a JSON string, or an empty string for anything else."""
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
    """Return an id, or its digest if it is long, since ids of any length and alphabet are accepted."""
    if len(family) <= _LONGEST:
        return family
    return "sha256:" + hashlib.sha256(family.encode("utf-8", "surrogatepass")).hexdigest()


class Credential(msgspec.Struct, frozen=True, gc=False):
    """The caller: hashes of 16 bytes of the tenant and of the credential itself.

    `is_claimed`: the tenant is what the request claims, and follows neither from the credential nor from the settings.
    """

    tenant: bytes
    token: bytes
    is_claimed: bool = False


class Tenants:
    """Identifies tenants: by a principal of the settings, else by a JWT's subject, else by the credential itself.

    Tenants are known by keyed hashes, whose key `salt` is the installation's secret. Credentials are kept in memory
    only, as hashes, until they have been idle for half an hour. A JWT is not verified here: it proves nothing until the
    upstream has accepted it.
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
        """Return the caller of a request with these headers."""
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
        """Record that the upstream responded with 2xx to this credential."""
        now = self._clock.monotonic()
        if now - self._proven.get(token, -math.inf) < _LATELY_SECONDS:
            return
        self._proven[token] = now
        self._proven.move_to_end(token)
        while len(self._proven) > _MOST_TOKENS or now - next(iter(self._proven.values())) > _IDLE_SECONDS:
            self._proven.popitem(last=False)

    def is_proven(self, token: bytes) -> bool:
        """Return whether the upstream has accepted this credential recently."""
        at = self._proven.get(token)
        return at is not None and self._clock.monotonic() - at <= _IDLE_SECONDS

    def trusts(self, caller: Credential) -> bool:
        """Return whether data of the tenant may be used: the upstream must confirm a claimed tenant first."""
        return not caller.is_claimed or self.is_proven(caller.token)

    def find_reader(self, headers: Headers, *, is_open: bool = False) -> bytes | None:
        """Return the tenant whose sessions a caller may read, or None.

        A key of the settings proves its principal; any other credential does once the upstream has accepted it lately,
        unless `is_open`: calls then use a key of ours, so that callers may send any credential.
        """
        presented = find_credential(headers)
        if not presented:
            return None
        caller = self.identify(headers)
        is_known = not caller.is_claimed and self._hash(strip_scheme(presented)) in self._by_key
        return caller.tenant if is_known or (not is_open and self.is_proven(caller.token)) else None

    def _hash_subject(self, presented: bytes) -> bytes:
        """Return the HMAC of issuer, subject and audience, which a renewed token shares, or b"" if this is no JWT."""
        claims = read_claims(strip_scheme(presented))
        if not claims or any(bytes(claims.get(name, b"")) in _UNSAID for name in ("iss", "sub")):
            return b""
        named = b"\0".join(bytes(claims.get(name, b"")) for name in ("iss", "sub", "aud"))
        return hmac.new(self._salt, b"jwt\0" + named, hashlib.sha256).digest()[:16]

    def _hash(self, content: bytes, kind: bytes = b"") -> bytes:
        """Return 16 bytes of BLAKE2b keyed with the salt (RFC 7693). `kind` separates credentials from principals."""
        return hashlib.blake2b(content, key=self._salt, digest_size=16, person=kind).digest()
