"""A request's messages as a chain of nodes. Rule: what was read of the bytes that repeat is not read again."""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from proxy.model.lineage import NODE_SIZE, extend_chain
from proxy.model.shared_list import extend_shared
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.identity import Item, count_preamble

_NOTHING = (b"", b"null", b'""', b"[]")


class Preamble(msgspec.Struct, frozen=True, gc=False):
    """What tells the model who it is, and is outside the chain, for it holds dates and folders.

    It is the first `count` messages, of which `leading` is the digest, and the raw member `orders` on wires that have
    one. `system` is the digest of both.
    """

    count: int
    leading: bytes
    orders: bytes
    system: bytes


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The nodes of a body, one for each message behind the preamble.

    `root` is the parent of the first node. `items` are the messages as they were read. `is_plain`: it is
    known that the body has no more tokens than bytes (`context/budget`).
    """

    root: bytes
    preamble: Preamble
    nodes: Sequence[bytes]
    items: Sequence[Item]
    is_plain: bool = False


class Messages(msgspec.Struct, frozen=True, gc=False):
    """What of a conversation had to be read: the messages from `start` on, counted behind the preamble."""

    start: int
    preamble: Preamble
    fresh: Sequence[Item]


def read_messages(form: Format, split: SplitBody, known: Chain | None, shared: int, root: bytes) -> Messages:
    """Read a body, leaving out its first `shared` items where `known` is their chain, from the same root."""
    orders = split.member(form.instructions_key) if form.instructions_key else b""
    if known is not None and known.root == root and known.preamble.count < shared <= len(split.items):
        fresh = form.read_items(split.content, split.items[shared:])
        return Messages(shared - known.preamble.count, _settle_orders(form, orders, known.preamble), fresh)
    if split.items:
        items = form.read_items(split.content, split.items)
    else:
        items = form.read_input(split.member(form.items_key))
    count = count_preamble(items)
    leading = _digest([item.form for item in items[:count]])
    return Messages(0, _settle_orders(form, orders, Preamble(count, leading, b"", leading)), items[count:])


def make_chain(messages: Messages, known: Chain | None, root: bytes, *, is_plain: bool = False) -> Chain:
    """The chain of a body, of which `known` has the first `messages.start` nodes."""
    start = messages.start
    forms = [item.form for item in messages.fresh]
    if known is None or not start:
        return Chain(root, messages.preamble, extend_chain(root, forms), messages.fresh, is_plain)
    nodes = extend_shared(known.nodes, start, extend_chain(known.nodes[start - 1], forms))
    return Chain(root, messages.preamble, nodes, extend_shared(known.items, start, messages.fresh), is_plain)


def _settle_orders(form: Format, orders: bytes, known: Preamble) -> Preamble:
    """The preamble with these orders; they are read only if they are not the ones that are known."""
    if orders in _NOTHING:
        orders = b""
    if orders == known.orders:
        return known
    if not orders:
        return Preamble(known.count, known.leading, b"", known.leading)
    return Preamble(known.count, known.leading, orders, _digest([known.leading, form.read_instructions(orders)]))


def _digest(forms: Sequence[bytes]) -> bytes:
    return sha256(b"".join(forms)).digest()[:NODE_SIZE]
