"""What a client calls its conversation (PROTOCOL §2, rules 0 and 1).

Rule: an id that the client sends names a family within its tenant and upstream, never more. Ids that several
conversations of one client share (`user`, `safety_identifier`, `prompt_cache_key`) name nothing.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from proxy.model.exchange import Headers, SessionKey
from proxy.wire.body import SplitBody

_OWN = b"x-palimpsest-session"
_GENERIC = (b"x-session-id", b"x-dynamo-session-id", b"helicone-session-id", b"x-litellm-session-id")
_PARENTS = {b"x-session-id": b"x-parent-session-id"}
_THREAD, _PARENT_THREAD = b"thread-id", b"x-codex-parent-thread-id"
_SESSION, _AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_OF_CLIENTS = (_THREAD, _PARENT_THREAD, _SESSION, _AGENT)
_BODY_MEMBERS = ("litellm_session_id", "session_id")
_LONGEST = 200


class Name(msgspec.Struct, frozen=True, gc=False):
    """A family, empty where the client names none, and the family of the agent that started it, if it says so.

    `is_weak`: taken from fields that one client sends with all its requests; a name in the body goes before.
    """

    family: str = ""
    parent: str = ""
    is_weak: bool = False


_NO_NAME = Name()


class Naming:
    """Reads names. `session_headers` are further fields that name a conversation."""

    def __init__(self, session_headers: tuple[str, ...] = ()) -> None:
        self._headers = tuple(name.lower().encode("latin-1") for name in session_headers) + _GENERIC
        self._fields = frozenset((_OWN, *self._headers, *_PARENTS.values(), *_OF_CLIENTS))

    def read(self, headers: Headers) -> Name:
        """What the header fields name the conversation; of a field that is there twice, the first counts."""
        fields = {name: value for name, value in reversed(headers) if name in self._fields}
        if not fields:
            return _NO_NAME
        if own := fields.get(_OWN):
            return Name(_shorten(_text(own)))
        for name in self._headers:
            if value := fields.get(name):
                parent = fields.get(_PARENTS.get(name, b""), b"")
                return Name(_name_field(name, value), _name_field(name, parent) if parent not in (b"", value) else "")
        return _name_by_client(fields)


def read_body(named: Name, body: SplitBody) -> Name:
    """The name of a conversation whose fields name it so, and which has this body."""
    if named.family and not named.is_weak:
        return named
    family = _name_in_body(body)
    return Name(_shorten(family)) if family else named


def make_session(tenant: bytes, upstream: str, name: Name, exchange: str) -> SessionKey:
    """The session of a family, else of the exchange alone; its id is derived, the same in every process."""
    if not name.family:
        return SessionKey(_derive(tenant, upstream, f"exchange\0{exchange}"), tenant, upstream, "")
    parent = _derive(tenant, upstream, f"family\0{name.parent}") if name.parent else ""
    return SessionKey(_derive(tenant, upstream, f"family\0{name.family}"), tenant, upstream, name.family, parent)


def _derive(tenant: bytes, upstream: str, name: str) -> str:
    seed = b"%s\0%s\0%s" % (tenant, upstream.encode(), name.encode("utf-8", "surrogatepass"))
    return hashlib.sha256(seed).digest()[:10].hex()


def _name_field(name: bytes, value: bytes) -> str:
    return _shorten(f"{_text(name)}:{_text(value)}")


def _name_in_body(body: SplitBody) -> str:
    for name in _BODY_MEMBERS:
        value = read_text(body.member(name))
        if value:
            return f"{name}:{value}"
    return _name_stored_conversation(body)


def _name_stored_conversation(body: SplitBody) -> str:
    """Responses: `conversation`, an id or an object with one, names a history that the upstream holds."""
    raw = body.member("conversation")
    if raw[:1] == b"{":
        try:
            raw = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("id", b""))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
    value = read_text(raw)
    return f"conversation:{value}" if value else ""


def _name_by_client(fields: Mapping[bytes, bytes]) -> Name:
    if thread := fields.get(_THREAD):
        parent = fields.get(_PARENT_THREAD, b"")
        return Name(
            _shorten(f"codex:{_text(thread)}"),
            _shorten(f"codex:{_text(parent)}") if parent not in (b"", thread) else "",
            is_weak=True,
        )
    if session := fields.get(_SESSION):
        main = f"claude-code:{_text(session)}"
        agent = fields.get(_AGENT)
        if agent and agent != b"main":
            return Name(_shorten(f"{main}:{_text(agent)}"), _shorten(f"{main}:main"), is_weak=True)
        return Name(_shorten(f"{main}:main"), is_weak=True)
    return Name()


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
