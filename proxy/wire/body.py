"""Bodies: splitting a request into raw slices without changing a byte, and undoing content-encodings.

Slices and separators account for every byte of the body, or the body is not split at all. The spans
are found by msgspec (about 1 ms per 900 KB); legal JSON that it refuses (lone surrogates, `1e400`) goes through a plain
scanner. `split_after` does not look again at a part that repeats an earlier body. An array with more new elements than
any conversation has is not split, because millions of elements would block other requests. Content-encodings are
undone to read the record, and where calls of ours are taken out of a response; other bytes on the wire pass unchanged.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import IO, cast

import brotli
import msgspec
import zstandard

from proxy.model.shared_list import extend_shared

_MEMBER_GAP = re.compile(rb'[ \t\r\n]*[{,][ \t\r\n]*"(?:[^"\\]++|\\.)*+"[ \t\r\n]*:[ \t\r\n]*')
_OBJECT_END = re.compile(rb"[ \t\r\n]*}[ \t\r\n]*\Z")
_EMPTY_OBJECT = re.compile(rb"[ \t\r\n]*{[ \t\r\n]*}[ \t\r\n]*\Z")
_ELEMENT_GAP = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]|,|[^"{}\[\],\s]+')

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_REFUSED = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_BLOCK = 64 * 1024
_AFTER_VALUE = b",] \t\r\n"
_MOST_ITEMS = 20_000
# An array with more commas than this per allowed item is not even decoded. Text has commas too, but fewer.
_COMMAS_OF_AN_ITEM = 50


class ByteRange(msgspec.Struct, frozen=True, gc=False):
    """The bytes from `start` up to `end` of a body."""

    start: int
    end: int


class SplitBody(msgspec.Struct, frozen=True, gc=False):
    """A body and the positions of its parts.

    `members` are the values of the top-level object. `items` are the elements of the array member that holds the
    conversation, in order (empty if there is none). All bytes between these are separators.
    """

    content: bytes
    members: Mapping[str, ByteRange]
    items: Sequence[ByteRange]

    def member(self, name: str) -> bytes:
        """Return the raw JSON of a top-level member, empty if absent."""
        span = self.members.get(name)
        return self.content[span.start : span.end] if span else b""

    def gap_before(self, index: int) -> int:
        """Return where the separator before item `index` begins: after the bracket, or after the previous item."""
        return self.items[index - 1].end if index else self.content.rindex(b"[", 0, self.items[0].start) + 1


def split_body(content: bytes, items_key: str, most_items: int = _MOST_ITEMS) -> SplitBody | None:
    """Split a body whose conversation is the array under `items_key`. Return None unless every byte is accounted for.

    If the array has more than `most_items` elements, the result has no items.
    """
    try:
        members = _find_members(content)
        span = members.get(items_key)
        is_array = span is not None and content[span.start : span.start + 1] == b"["
        items = _find_elements(content, span, most_items) if span and is_array else []
    except _Unaccounted:
        return None
    return SplitBody(content, members, tuple(items))


def split_after(content: bytes, items_key: str, known: SplitBody, count: int) -> SplitBody | None:
    """Split a body whose bytes are the same as `known`'s up to the end of its first `count` (≥ 1) items.

    The known part is cut out and the rest is split as if the conversation began there, so the cost is that of what is
    new.
    """
    start, end = known.gap_before(0), known.items[count - 1].end
    rest = content[end:]
    comma = _ELEMENT_GAP.match(rest)
    skipped = comma.end() if comma else 0
    short = split_body(content[:start] + rest[skipped:], items_key)
    if short is None or (b"," in rest[:skipped]) != bool(short.items):
        return None
    offset = end - start + skipped
    moved = [ByteRange(s.start + offset, s.end + offset) for s in short.items]
    members = {
        name: ByteRange(s.start if s.start < start else s.start + offset, s.end if s.end <= start else s.end + offset)
        for name, s in short.members.items()
    }
    return SplitBody(content, members, extend_shared(known.items, count, moved))


def count_shared(content: bytes, known: SplitBody) -> int:
    """Return how many of `known`'s first items are in `content` at the same position, with the same bytes."""
    items, before = known.items, known.content
    if not items or items[0].end > len(content):
        return 0
    at, last = _pass_equal_blocks(content, before), items[-1].end
    # most bodies repeat all of the previous one; the search below finds where the others diverge
    if last <= at or content[at:last] == before[at:last]:
        return _count_ended(content, known, len(items))
    same = _find_parting(content, before, at)
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle].end <= same:
            low = middle + 1
        else:
            high = middle
    return _count_ended(content, known, low)


def _count_ended(content: bytes, known: SplitBody, count: int) -> int:
    """Return the count, less one if the last shared item continues in `content`, as a number may: `1` in `12`."""
    end = known.items[count - 1].end if count else len(content)
    is_ended = end < len(content) and content[end] in _AFTER_VALUE
    return count if is_ended else max(0, count - 1)


def _pass_equal_blocks(a: bytes, b: bytes) -> int:
    """Return a lower bound of the common prefix: whole equal blocks, or all of the shorter content."""
    limit = min(len(a), len(b))
    at = 0
    while at < limit and a.startswith(b[at : at + _BLOCK], at):
        at += _BLOCK
    return min(at, limit)


def _find_parting(a: bytes, b: bytes, at: int) -> int:
    """Return the length of the common prefix, which ends in the block that begins at `at`, by binary search."""
    low, high = at, min(at + _BLOCK, len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def remove_member(body: SplitBody, name: str) -> SplitBody:
    """Return a body of several members without one of them, or as it is if it has no such member."""
    if name not in body.members:
        return body
    start, end = body.members[name].start, body.members[name].end
    before = max((span.end for span in body.members.values() if span.end <= start), default=-1)
    if before < 0:  # it is the first one: the separator behind it goes
        before = body.content.index(b"{") + 1
        end = cast(re.Match[bytes], _ELEMENT_GAP.match(body.content, end)).end()
    cut = end - before

    def move(span: ByteRange) -> ByteRange:
        return span if span.start < before else ByteRange(span.start - cut, span.end - cut)

    members = {each: move(span) for each, span in body.members.items() if each != name}
    is_before = bool(body.items) and before < body.items[0].start
    items = tuple(map(move, body.items)) if is_before else body.items
    return SplitBody(body.content[:before] + body.content[end:], members, items)


def replace_member(body: SplitBody, name: str, raw: bytes) -> SplitBody:
    """Return a body with another raw value of a member that it has, which is not the one with its items."""
    start, end = body.members[name].start, body.members[name].end
    by = len(raw) - (end - start)

    def move(span: ByteRange) -> ByteRange:
        return ByteRange(span.start + by * (span.start > start), span.end + by * (span.end > start))

    members = {each: move(span) for each, span in body.members.items()}
    content = b"%b%b%b" % (body.content[:start], raw, body.content[end:])
    return SplitBody(content, members, tuple(map(move, body.items)))


def append_item(body: SplitBody, raw: bytes) -> SplitBody:
    """Return a body with one more raw item behind its last one. It must have an item."""
    at = body.items[-1].end
    by = len(raw) + 1

    def move(span: ByteRange) -> ByteRange:
        return ByteRange(span.start + by * (span.start >= at), span.end + by * (span.end > at))

    members = {name: move(span) for name, span in body.members.items()}
    items = extend_shared(body.items, len(body.items), [ByteRange(at + 1, at + by)])
    return SplitBody(b"%b,%b%b" % (body.content[:at], raw, body.content[at:]), members, items)


class _Unaccounted(Exception):
    """The spans would not cover the body."""


def _find_members(content: bytes) -> dict[str, ByteRange]:
    try:
        values = _members.decode(content)
    except _REFUSED:
        return _scan_members(content)
    spans = {}
    at = 0
    for name, value in values.items():
        span = spans[name] = _locate(bytes(value), _MEMBER_GAP, content, at)
        at = span.end
    _pass(_OBJECT_END if spans else _EMPTY_OBJECT, content, at)
    return spans


def _find_elements(content: bytes, array: ByteRange, most: int) -> list[ByteRange]:
    if content.count(b",", array.start, array.end) > most * _COMMAS_OF_AN_ITEM:
        return []
    try:
        values = _elements.decode(content[array.start : array.end])
    except _REFUSED:
        spans = list(islice(_scan_values(content, array.start + 1), most + 1))
        return spans if len(spans) <= most else []
    if len(values) > most:
        return []
    spans = []
    at = array.start + 1
    for value in values:
        span = _locate(bytes(value), _ELEMENT_GAP, content, at)
        spans.append(span)
        at = span.end
    return spans


def _locate(value: bytes, separator: re.Pattern[bytes], content: bytes, at: int) -> ByteRange:
    """Return the span of a value. Raises _Unaccounted unless a separator begins at `at` and the value follows it."""
    match = separator.match(content, at)
    if match is None or not content.startswith(value, match.end()):
        raise _Unaccounted
    return ByteRange(match.end(), match.end() + len(value))


def _pass(separator: re.Pattern[bytes], content: bytes, at: int) -> int:
    """Return the end of the separator that begins at `at`. Raises _Unaccounted if there is none."""
    match = separator.match(content, at)
    if match is None:
        raise _Unaccounted
    return match.end()


def _scan_members(content: bytes) -> dict[str, ByteRange]:
    """Return the members of legal JSON that msgspec refuses, by counting brackets."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise _Unaccounted from None
    if not isinstance(value, dict):
        raise _Unaccounted
    spans = {}
    at = 0
    for name in value:
        start = _pass(_MEMBER_GAP, content, at)
        if json.loads(content[at:start].strip(b"{,: \t\r\n")) != name:
            raise _Unaccounted
        spans[name] = next(_scan_values(content, start))
        at = spans[name].end
    _pass(_OBJECT_END if spans else _EMPTY_OBJECT, content, at)
    return spans


def _scan_values(content: bytes, at: int) -> Iterator[ByteRange]:
    """Yield the comma-separated values from `at` up to the closing bracket of their array or object."""
    depth, start, end = 0, -1, at
    for token in _TOKEN.finditer(content, at):  # pragma: no branch - the JSON is whole, so it closes
        first = content[token.start()]
        if depth == 0 and first in b",}]":
            yield ByteRange(start, end)
            if first != ord(","):
                return
            start = -1
            continue
        if start < 0:
            start = token.start()
        end = token.end()
        depth += (first in b"{[") - (first in b"}]")


_PIECE = 256 * 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_BEGINS = b"\x1f\x8b"
_ZSTD_WINDOW = 8 * 1024 * 1024  # the most that the web's decoders take (RFC 9659)
_ZSTD_SLICE = 256  # of the encoded bytes, each of which may decode to 32 KiB
_ZLIB_HEAD = 2
_MOST_STACKED = 16 * 1024 * 1024


def decode_content(content: bytes, encoding: str, cap: int) -> bytes:
    """Return the decoded content, at most `cap` bytes. Of a truncated stream, return what can be decoded.

    Raises ValueError for an unsupported encoding, or bytes that are not in it.
    """
    if not (cap and encoding and _list_codings(encoding)):
        return content[:cap]
    return _take(decode_pieces(content, encoding), cap)


def decode_pieces(content: bytes, encoding: str) -> Iterator[bytes]:
    """Yield the decoded content in pieces of about 256 KiB. Raises ValueError like `decode_content`."""
    yield from ContentDecoder(encoding).decode(content)


class ContentDecoder:
    """Undoes the content-encoding of one body, whose bytes may come in pieces of any size.

    Raises ValueError for an unsupported encoding.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        codings = _list_codings(encoding)
        if not _DECODERS.keys() >= set(codings):
            raise ValueError(f"content-encoding {self._encoding!r} is not read here")
        self._decoders = [_DECODERS[coding]() for coding in reversed(codings)]
        self._stacked = 0

    def decode(self, content: bytes) -> Iterator[bytes]:
        """Yield all that can be decoded with the next piece, in pieces of at most 256 KiB.

        Raises ValueError for bytes that are not in the encoding.
        """
        pieces: Iterator[bytes] = iter((content,))
        for place, decode in enumerate(self._decoders):
            pieces = chain.from_iterable(map(decode, self._limit(pieces) if place else pieces))
        try:
            yield from pieces
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise ValueError(f"the content is not {self._encoding}") from error

    def _limit(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what is encoded still once more, up to a limit, since each coding may multiply the length."""
        for piece in pieces:
            self._stacked += len(piece)
            if self._stacked > _MOST_STACKED:
                return
            yield piece


def encode_content(content: bytes, encoding: str) -> bytes:
    """Return the content in an encoding that `decode_content` reads."""
    for coding in _list_codings(encoding):
        content = _ENCODERS[coding](content)
    return content


def _list_codings(encoding: str) -> list[str]:
    """Return the codings of a header's value, in the order in which they were applied."""
    return [coding for part in encoding.split(",") if (coding := part.strip().lower()) not in ("", "identity")]


def _take(pieces: Iterator[bytes], cap: int) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= cap:
            break
    return b"".join(taken)[:cap]


class _Gunzip:
    """Decodes all members of a gzip body in order, and ignores anything else after them."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP)
        self._after = b""  # what follows a member and is shorter than the sign of another one
        self._is_over = False

    def __call__(self, content: bytes) -> Iterator[bytes]:
        while content and not self._is_over:
            if self._decoder.eof:
                content = self._after + content
                self._after = content if len(content) < len(_GZIP_BEGINS) else b""
                if self._after:
                    return
                self._is_over = not content.startswith(_GZIP_BEGINS)
                self._decoder = zlib.decompressobj(_GZIP)
            else:
                yield from _inflate(self._decoder, content)
                content = self._decoder.unused_data


class _Undeflate:
    """Decodes zlib's format, as the standard demands, or the raw deflate stream that some servers send."""

    def __init__(self) -> None:
        self._begun = b""
        self._decoder: zlib._Decompress | None = None

    def __call__(self, content: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            self._begun += content
            if len(self._begun) < _ZLIB_HEAD:
                return
            is_zlib = self._begun[0] & 15 == zlib.DEFLATED and not int.from_bytes(self._begun[:_ZLIB_HEAD]) % 31
            self._decoder, content = zlib.decompressobj(_ZLIB if is_zlib else _RAW), self._begun
        yield from _inflate(self._decoder, content)


def _inflate(decoder: "zlib._Decompress", content: bytes) -> Iterator[bytes]:
    while True:
        piece = decoder.decompress(content, _PIECE)
        yield piece
        content = decoder.unconsumed_tail
        if decoder.eof or (not content and len(piece) < _PIECE):
            return


class _Unbrotli:
    """Decodes brotli, and ignores anything after it."""

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    def __call__(self, content: bytes) -> Iterator[bytes]:
        while not self._decoder.is_finished():
            piece = self._decoder.process(content, output_buffer_limit=_PIECE)
            if not piece:
                return
            yield piece
            content = b""


class _Unzstd:
    """Decodes all frames of a zstd body in order."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._writer = decoder.stream_writer(cast("IO[bytes]", self), write_size=_PIECE)

    def write(self, piece: bytes) -> int:
        """Take what the library has decoded."""
        self._written.append(bytes(piece))
        return len(piece)

    def __call__(self, content: bytes) -> Iterator[bytes]:
        for start in range(0, len(content), _ZSTD_SLICE):
            self._writer.write(content[start : start + _ZSTD_SLICE])
            written, self._written = self._written, []
            yield from written


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


_DECODERS: dict[str, Callable[[], Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _Gunzip,
    "x-gzip": _Gunzip,
    "deflate": _Undeflate,
    "br": _Unbrotli,
    "zstd": _Unzstd,
}
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": zlib.compress,
    "br": lambda content: brotli.compress(content, quality=5),
    "zstd": zstandard.compress,
}
