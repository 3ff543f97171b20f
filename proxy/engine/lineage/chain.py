"""A request's messages as a chain of nodes. Repeated bytes are not read again."""

from collections.abc import Sequence
from hashlib import blake2b, sha256
from operator import attrgetter

import msgspec

from proxy.model.lineage import LAYER_SIZE, NODE_SIZE, extend_chain
from proxy.model.shared_list import extend_shared
from proxy.wire.body import SplitBody
from proxy.wire.format import CACHED_PARAMETERS, Format
from proxy.wire.identity import Item, count_preamble

_NOTHING = (b"", b"null", b'""', b"[]")
_get_form = attrgetter("form")


class Preamble(msgspec.Struct, frozen=True, gc=False):
    """The instructions to the model. They are outside the chain, since they contain dates and folders.

    The preamble is the first `count` messages, whose digest is `leading`, and, on wires that have it, the raw member
    `instructions`. `system` is the digest of both.
    """

    count: int
    leading: bytes
    instructions: bytes
    system: bytes


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a body, one for each message after the preamble.

    `root` is the parent of the first node. `tip` is the last node, or the root if there is none. `items` are the parsed
    messages. `is_plain`: the body is known to have no more tokens than bytes (`context/budget`).
    """

    root: bytes
    preamble: Preamble
    nodes: Sequence[bytes]
    items: Sequence[Item]
    tip: bytes
    is_plain: bool = False


class Messages(msgspec.Struct, frozen=True, gc=False):
    """The part of a conversation that had to be read: the messages from index `start` on, after the preamble."""

    start: int
    preamble: Preamble
    fresh: Sequence[Item]


def _digest(forms: Sequence[bytes]) -> bytes:
    return sha256(b"".join(forms)).digest()[:NODE_SIZE]


_NO_PREAMBLE = Preamble(0, _digest(()), b"", _digest(()))


def read_messages(form: Format, split: SplitBody, known: Chain | None, shared: int, root: bytes) -> Messages:
    """Read a body, except its first `shared` items if `known` is their chain and has the same root."""
    if known is not None and known.root == root and known.preamble.count < shared <= len(split.items):
        preamble, start = known.preamble, shared - known.preamble.count
        fresh = form.read_items(split.content, split.items[shared:])
    else:
        if split.items:
            items = form.read_items(split.content, split.items)
        else:
            items = form.read_input(split.member(form.items_key))
        count, preamble, start = count_preamble(items), _NO_PREAMBLE, 0
        if count:
            leading = _digest([item.form for item in items[:count]])
            preamble = Preamble(count, leading, b"", leading)
        fresh = items[count:]
    instructions = split.member(form.instructions_key) if form.instructions_key else b""
    if instructions in _NOTHING:
        instructions = b""
    if instructions != preamble.instructions:  # parsed only if they have changed
        leading = preamble.leading
        system = _digest([leading, form.read_instructions(instructions)]) if instructions else leading
        preamble = Preamble(preamble.count, leading, instructions, system)
    return Messages(start, preamble, fresh)


def digest_layers(split: SplitBody, preamble: Preamble) -> bytes:
    """Return what a `Lineage` has of the parts of a prompt beside its messages (`LAYERS`)."""
    tools = split.member("tools"), split.member("functions")
    parameters = []
    for name in CACHED_PARAMETERS:
        if name in split.members:
            parameters.append(name.encode() + b"\0" + split.member(name))
    layers = b""
    for part in (b"\0".join(tools), preamble.system, b"\0".join(parameters)):
        layers += blake2b(part, digest_size=LAYER_SIZE).digest()
    return layers


def make_chain(messages: Messages, known: Chain | None, root: bytes, *, is_plain: bool = False) -> Chain:
    """Return the chain of a body, whose first `messages.start` nodes are in `known`."""
    start, fresh = messages.start, messages.fresh
    forms = map(_get_form, fresh)
    if known is None or not start:
        new = extend_chain(root, forms)
        return Chain(root, messages.preamble, new, fresh, new[-1] if new else root, is_plain)
    last = known.nodes[start - 1]
    new = extend_chain(last, forms)
    nodes, items = extend_shared(known.nodes, start, new), extend_shared(known.items, start, fresh)
    return Chain(root, messages.preamble, nodes, items, new[-1] if new else last, is_plain)
