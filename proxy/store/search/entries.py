"""Where the log has the text of an entry, and reading it there.

An address is a number: the kind of holder (3 bits), the number of the text in its message (4 bits), and the item of the
holder that is the message. The holder is a row id in the log: a `payload` with a raw message or a response, an
`exchange` whose body has the message, an `epoch` or a `summary`.
"""

import sqlite3
from base64 import b32decode, b32encode
from typing import NamedTuple

from proxy.model.epoch import Edit, Replaced, Written, decode_edits
from proxy.model.errors import ProxyError
from proxy.store.search.texts import LONGEST_TEXT, MessageText, list_texts
from proxy.store.sqlite.codec import unpack
from proxy.store.sqlite.exchange_queries import load_request
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.json_values import JSON_ERRORS

MESSAGE, ANSWER, REQUEST, EPOCH, SUMMARY = range(5)
"""The kinds of holders."""

_HOLDER_BITS, _NUMBER_BITS = 3, 4
_NAME_LENGTH = 10
_NAME_BYTES = 7

_PAYLOAD = "SELECT codec, bytes FROM payload WHERE id = ?"
_WIRE = "SELECT wire, id FROM exchange WHERE seq = ?"
_EDITS = "SELECT p.codec, p.bytes FROM epoch x JOIN payload p ON p.id = x.edits WHERE x.seq = ?"
_SUMMARY_TEXT = "SELECT p.codec, p.bytes FROM summary x JOIN payload p ON p.id = x.text WHERE x.seq = ?"


class Address(NamedTuple):
    """Where the log has a text: the kind of its holder, the text's number in its message, the message in the holder."""

    kind: int
    number: int
    item: int

    def pack(self) -> int:
        """Return the address as one number."""
        return (self.item << _NUMBER_BITS | self.number) << _HOLDER_BITS | self.kind


def unpack_address(packed: int) -> Address:
    """Reverse `Address.pack`."""
    number = packed >> _HOLDER_BITS & (1 << _NUMBER_BITS) - 1
    return Address(packed & (1 << _HOLDER_BITS) - 1, number, packed >> _HOLDER_BITS + _NUMBER_BITS)


def pack_name(name: str) -> int:
    """Return a reference, ten of `[a-z2-7]`, as a number. Raises ValueError for any other text."""
    if len(name) != _NAME_LENGTH:
        raise ValueError("a reference has ten characters")
    return int.from_bytes(b32decode(name.upper() + "AAAAAA")) >> 30


def unpack_name(packed: int) -> str:
    """Reverse `pack_name`."""
    return b32encode((packed << 30).to_bytes(_NAME_BYTES + 3)).decode()[:_NAME_LENGTH].lower()


def load_payload(log: sqlite3.Connection, payload: int) -> bytes | None:
    """Return content by its row id, or None if it was erased."""
    row = log.execute(_PAYLOAD, (payload,)).fetchone()
    return None if row is None else unpack(*row)


def load_text(log: sqlite3.Connection, address: int, holder: int, exchange: int) -> MessageText | None:
    """Return the text of an entry, or None if it was erased. `exchange` is the call that brought it."""
    where = unpack_address(address)
    try:
        if where.kind == SUMMARY:
            return _load_summary(log, holder)
        if where.kind == EPOCH:
            return _load_edit(log, holder, where.item)
        return _load_message_text(log, where, holder, exchange)
    except (ValueError, IndexError, ProxyError, *JSON_ERRORS):  # damaged, or not as it was when it was indexed
        return None


def read_edit(edit: Edit) -> MessageText | None:
    """Return the text of an edit that is searched: a ledger, or the outline that stands for a large output."""
    if isinstance(edit, Written) and not edit.report and edit.text:
        return MessageText("ledger", "other", edit.text[:LONGEST_TEXT])
    if isinstance(edit, Replaced) and edit.kind == "file" and edit.text:
        return MessageText("outline", "other", edit.text[:LONGEST_TEXT])
    return None


def list_body_items(form: Format, body: bytes) -> list[bytes]:
    """Return the raw elements of the conversation in a body, also where it is a single text; empty if unreadable."""
    split = split_body(body, form.items_key, most_items=len(body))
    if split is None:
        return []
    if split.items:
        return [split.content[span.start : span.end] for span in split.items]
    member = split.member(form.items_key)
    return [b'{"role":"user","content":%b}' % member] if member[:1] == b'"' else []


def _load_summary(log: sqlite3.Connection, seq: int) -> MessageText | None:
    row = log.execute(_SUMMARY_TEXT, (seq,)).fetchone()
    return None if row is None else MessageText("summary", "other", unpack(*row).decode(errors="replace"))


def _load_edit(log: sqlite3.Connection, seq: int, item: int) -> MessageText | None:
    row = log.execute(_EDITS, (seq,)).fetchone()
    return None if row is None else read_edit(decode_edits(unpack(*row))[item])


def _load_message_text(log: sqlite3.Connection, where: Address, holder: int, exchange: int) -> MessageText | None:
    wire, name = log.execute(_WIRE, (exchange,)).fetchone() or ("", "")
    form = FORMATS.get(wire)
    content = load_request(log, name) if where.kind == REQUEST else load_payload(log, holder)
    if form is None or content is None:
        return None
    if where.kind == ANSWER:
        content = form.list_echoes(content)[where.item]
    elif where.kind == REQUEST:
        content = list_body_items(form, content)[where.item]
    return list_texts(form, content)[where.number]
