"""Where an exchange stands: its conversation as a chain of nodes, and what is recorded of it.

A node is `H(node before, normal form of the message)`, so that it names everything from the root of its chain; the root
is that of an upstream. Nodes are the same for all tenants, sessions are not: what is known is always a node *of a
session*, and a session has one tenant. An id is a hint, the chain is the proof (BEHAVIOUR B1).
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

import msgspec

from proxy.model.exchange import SessionKey

NODE_SIZE = 16
LONGEST_MARK = 200

Relation = Literal["root", "append", "retry", "branch", "compaction"]
"""How an exchange continues its session.

`root`: nothing before it is known. `append`: it goes on where nothing went on before. `retry`: the same history as an
earlier exchange. `branch`: it shares a beginning with what is known, then differs (an edit, another answer, a rewind).
`compaction`: the client has replaced its history by a shorter one.
"""


class NodeRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A node that a session has not had before. `is_answer`: a response recorded here, not only what a client sent."""

    node: bytes
    parent: bytes
    is_answer: bool


class CallFingerprint(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A name by which a message may be known again: `call:ID`, `item:ID`, `response:ID`, or `form:HEX` of a response.

    Whoever makes a name, or asks for one, makes it with `name_mark`. `form` is the normal form of the message that
    bears it: a name is a hint, and it counts only with the same form.
    """

    name: str
    node: bytes
    form: bytes


class Step(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Where a request stands; recorded with its opening.

    `tip` is its last node, `depth` the number of its messages, `base` how many of them its session knew. `is_side`: it
    bears the signs of a call beside the conversation (a title, a summary, a commit message; PROTOCOL §2).
    """

    exchange: str
    relation: Relation
    is_side: bool
    tip: bytes
    depth: int
    base: int
    nodes: tuple[NodeRow, ...]
    marks: tuple[CallFingerprint, ...]


class Reply(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Where the answers of a round stand, one chain for each alternative; recorded with its reading."""

    exchange: str
    k: int
    nodes: tuple[NodeRow, ...]
    marks: tuple[CallFingerprint, ...]


class Adoption(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A session goes on, under another credential, where another one of the same history stood (BEHAVIOUR B2)."""

    session: str
    source: str
    node: bytes
    at_ms: int


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """A session as the log has it.

    `tips` are the nodes at which its requests ended, each once. `nodes` come parents first; one that was seen in a
    request before it was recorded as a response is there twice.
    """

    key: SessionKey
    tips: tuple[bytes, ...]
    nodes: tuple[NodeRow, ...]
    marks: tuple[CallFingerprint, ...]


def compute_chain_root(upstream: str) -> bytes:
    """Return the parent of the first nodes of an upstream's conversations."""
    return sha256(b"lineage\0" + upstream.encode()).digest()[:NODE_SIZE]


def extend_chain(parent: bytes, forms: Iterable[bytes]) -> list[bytes]:
    """Return the nodes of messages in order, 16 bytes of SHA-256 of the node before and the normal form.

    A message without a form adds nothing, so its node is the one before.
    """
    nodes = []
    for form in forms:
        if form:
            parent = sha256(parent + form).digest()[:NODE_SIZE]
        nodes.append(parent)
    return nodes


def name_mark(name: str) -> str:
    """Return the name under which a mark is kept and looked up: the name itself, a digest where it is long or no text.

    Long is more than 200 characters; an id of any length and alphabet is accepted. What was named so stays as it is.
    """
    if len(name) <= LONGEST_MARK and (name.isascii() or _is_text(name)):
        return name
    kind = name.partition(":")[0]
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{kind}:sha256:{digest}" if len(kind) <= LONGEST_MARK // 2 and _is_text(kind) else f"sha256:{digest}"


def _is_text(name: str) -> bool:
    """Return whether it has an encoding: a lone surrogate has none."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
