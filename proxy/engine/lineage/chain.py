"""A request's messages as a chain of nodes. Rule: what was read of the bytes that repeat is not read again."""

import hashlib
from collections.abc import Sequence

import msgspec

from proxy.model.growing import Growing
from proxy.model.lineage import NODE_SIZE, extend_chain
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.identity import Item, count_preamble


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a body, one for each message behind the preamble.

    `preamble` is the number of leading system messages, which are outside the chain, for they hold dates and folders;
    `system` is their digest. `root` is the parent of the first node. `items` are the messages as they were read.
    """

    root: bytes
    preamble: int
    system: bytes
    nodes: Growing[bytes]
    items: Growing[Item]


class Messages(msgspec.Struct, frozen=True, gc=False):
    """What of a conversation had to be read: the messages from `start` on, counted behind the preamble."""

    start: int
    preamble: int
    system: bytes
    fresh: Sequence[Item]


def read_messages(form: Format, split: SplitBody, known: Chain | None, shared: int, root: bytes) -> Messages:
    """Read a body, leaving out its first `shared` items where `known` is their chain, from the same root."""
    if known is not None and known.root == root and shared > known.preamble:
        fresh = form.read_items(split.content, split.items[shared:])
        return Messages(shared - known.preamble, known.preamble, known.system, fresh)
    if split.items:
        items = form.read_items(split.content, split.items)
    else:
        items = form.read_input(split.member(form.items_key))
    preamble = count_preamble(items)
    system = hashlib.sha256(b"".join(item.form for item in items[:preamble])).digest()[:NODE_SIZE]
    return Messages(0, preamble, system, items[preamble:])


def make_chain(messages: Messages, known: Chain | None, root: bytes) -> Chain:
    """The chain of a body, of which `known` has the first `messages.start` nodes."""
    start = messages.start
    forms = [item.form for item in messages.fresh]
    if known is None or not start:
        nodes, items = Growing(extend_chain(root, forms)), Growing(list(messages.fresh))
    else:
        nodes = known.nodes.extend(start, extend_chain(known.nodes[start - 1], forms))
        items = known.items.extend(start, messages.fresh)
    return Chain(root, messages.preamble, messages.system, nodes, items)
