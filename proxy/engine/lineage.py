"""Which conversation a request belongs to (PROTOCOL §2, rules 0 and 1).

Rule: an id that the client sends names a family within its tenant and upstream; a call without one is a session of its
own. Tenants are told apart by a salted fingerprint of the credential, which is never kept itself.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from proxy.model.exchange import Headers, SessionKey
from proxy.wire.body import SplitBody
from proxy.wire.headers import find_credential

_OWN = b"x-palimpsest-session"
_GENERIC = (b"x-session-id", b"x-dynamo-session-id", b"helicone-session-id", b"x-litellm-session-id")
_BODY_MEMBERS = ("litellm_session_id", "session_id")
_LONGEST = 200


class Lineage:
    """Names sessions. `salt` is the installation's secret; `session_headers` are further fields that name one."""

    def __init__(self, salt: bytes, session_headers: tuple[str, ...] = ()) -> None:
        self._salt = salt
        self._headers = tuple(name.lower().encode("latin-1") for name in session_headers) + _GENERIC

    def find_tenant(self, headers: Headers) -> bytes:
        """The fingerprint of whoever calls, 16 bytes: BLAKE2b keyed with the salt (RFC 7693)."""
        return hashlib.blake2b(find_credential(headers), key=self._salt, digest_size=16).digest()

    def name_family(self, headers: Headers, body: SplitBody | None) -> str:
        """The client's own name for the conversation, empty if it gives none."""
        fields = dict(reversed(headers))  # of a field that is there twice, the first counts
        if own := fields.get(_OWN):
            return _shorten(_text(own))
        for name in self._headers:
            if value := fields.get(name):
                return _shorten(f"{_text(name)}:{_text(value)}")
        return _shorten(_name_in_body(body) or _name_by_client(fields))

    def name_session(self, tenant: bytes, upstream: str, family: str, exchange: str) -> SessionKey:
        """The session of a family, else of the exchange alone.

        Its id is derived, so the same family has the same id in every process.
        """
        name = f"family\0{family}" if family else f"exchange\0{exchange}"
        seed = hashlib.sha256(b"%s\0%s\0%s" % (tenant, upstream.encode(), name.encode())).digest()
        return SessionKey(seed[:10].hex(), tenant, upstream, family)


def _name_in_body(body: SplitBody | None) -> str:
    if body is None:
        return ""
    for name in _BODY_MEMBERS:
        value = read_text(body.member(name))
        if value:
            return f"{name}:{value}"
    return ""


def _name_by_client(fields: Mapping[bytes, bytes]) -> str:
    if thread := fields.get(b"thread-id"):
        return f"codex:{_text(thread)}"
    if session := fields.get(b"x-claude-code-session-id"):
        agent = fields.get(b"x-claude-code-agent-id") or b"main"
        return f"claude-code:{_text(session)}:{_text(agent)}"
    return ""


def read_text(raw: bytes) -> str:
    """A JSON string's value; empty for anything else."""
    if raw[:1] != b'"':
        return ""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _shorten(family: str) -> str:
    """Long names are known by their digest: ids of any length and alphabet are accepted."""
    if len(family) <= _LONGEST:
        return family
    return "sha256:" + hashlib.sha256(family.encode("utf-8", "surrogatepass")).hexdigest()
