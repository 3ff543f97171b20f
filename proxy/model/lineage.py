"""Lineage: a conversation as a chain of nodes, and the records of where an exchange stands in it.

A node is `H(previous node, normal form of the message)`, so it identifies all messages from the root of its chain. Each
upstream has its own root. Nodes are the same for all tenants, but a node is only ever looked up within a session, and a
session belongs to one tenant. An id that the client sends is a hint; the chain is the proof.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from proxy.model.exchange import SessionKey

NODE_SIZE = 16
LONGEST_MARK = 200
LONGEST_TAIL = 16
"""The most messages at the end of a request that its client may rewrite in the next one without making a branch."""

Layer = Literal["tools", "system", "parameters"]
LAYERS: tuple[Layer, ...] = ("tools", "system", "parameters")
"""The parts of a prompt beside its messages, in the order in which providers put them before these."""
LAYER_SIZE = 8

Relation = Literal["root", "append", "retry", "branch", "compaction", "volatile"]
"""How an exchange continues its session.

`root`: no earlier message is known. `append`: it is the first to continue a known history. `retry`: it has the same
history as an earlier exchange. `branch`: it shares a beginning with known messages, then differs (an edit, another
response, a rewind). `compaction`: the client has replaced its history with a shorter one. `volatile`: it goes on with
the newest exchange, but has other messages in place of the last ones of that, as had the two before it: the client
rewrites the end of its request each time. `Lineage.base` tells where the stable part ends.
"""


class NodeRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A node that is new in its session. `is_answer`: it was recorded from a response, not only from a request."""

    node: bytes
    parent: bytes
    is_answer: bool


class CallFingerprint(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A name by which a message can be recognised: `call:ID`, `item:ID`, `response:ID`, or `form:HEX` of a response.

    `hidden:ID` names a response that began the answer, and that the client is not to continue.

    Names are made with `name_fingerprint`, to store and to look them up. `form` is the normal form of the named
    message: a name is a hint, and counts only for a message of the same form.
    """

    name: str
    node: bytes
    form: bytes


class Lineage(msgspec.Struct, frozen=True, gc=False, tag="Step", array_like=True):
    """Where a request stands in its session; recorded with its opening.

    `tip` is its last node, `depth` the number of its messages, `base` how many of them its session knew already.
    `is_side`: it looks like a call beside the conversation (a title, a summary, a commit message).
    `layers` has a digest of 8 bytes of each part of the prompt beside its messages that a provider's cache depends on,
    in the order of `LAYERS`; empty if unknown.
    """

    exchange: str
    relation: Relation
    is_side: bool
    tip: bytes
    depth: int
    base: int
    nodes: tuple[NodeRow, ...]
    fingerprints: tuple[CallFingerprint, ...]
    layers: bytes = b""


class Reply(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The nodes of a round's response, a chain for each alternative; recorded with the reading."""

    exchange: str
    k: int
    nodes: tuple[NodeRow, ...]
    fingerprints: tuple[CallFingerprint, ...]


class Adoption(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A session continues another one, `origin`, at `node`, under a different credential."""

    session: str
    origin: str
    node: bytes
    at_ms: int


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """A session as the log has it.

    `tips` are the distinct nodes at which its requests ended. `nodes` lists parents first; a node that was seen in a
    request before it was recorded as a response is listed twice. `volatile` is the tip of the newest request that is no
    side call if that has a volatile tail, else empty.
    """

    key: SessionKey
    tips: tuple[bytes, ...]
    nodes: tuple[NodeRow, ...]
    fingerprints: tuple[CallFingerprint, ...]
    volatile: bytes = b""


def compute_chain_root(upstream: str) -> bytes:
    """Return the root of all chains of an upstream: the parent of their first nodes."""
    return sha256(b"lineage\0" + upstream.encode()).digest()[:NODE_SIZE]


def extend_chain(parent: bytes, forms: Iterable[bytes]) -> list[bytes]:
    """Return the node of each message: 16 bytes of the SHA-256 of the previous node and the message's normal form.

    A message without a form gets the previous node.
    """
    nodes = []
    for form in forms:
        if form:
            parent = sha256(parent + form).digest()[:NODE_SIZE]
        nodes.append(parent)
    return nodes


def count_shared_nodes(known: Sequence[bytes], nodes: Sequence[bytes]) -> int:
    """Count the nodes that two chains share. A node identifies all before it, so none is shared after a difference."""
    low, high = 0, min(len(known), len(nodes))
    if high and known[high - 1] == nodes[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if known[middle] == nodes[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def name_fingerprint(name: str) -> str:
    """Return the name under which a fingerprint is stored and looked up.

    A digest replaces a name of more than 200 characters, and one with lone surrogates. Applying it twice changes
    nothing.
    """
    if len(name) <= LONGEST_MARK and (name.isascii() or _is_text(name)):
        return name
    kind = name.partition(":")[0]
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{kind}:sha256:{digest}" if len(kind) <= LONGEST_MARK // 2 and _is_text(kind) else f"sha256:{digest}"


def _is_text(name: str) -> bool:
    """Return whether the name can be encoded, that is, has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
