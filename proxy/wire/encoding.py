"""Undoing content-encodings for the record's reader, and doing them again. Rule: never on the way through, and never
beyond a cap: what is decoded comes in pieces, of which nobody need take the next one.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator

import brotli
import zstandard

_PIECE = 256 * 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_BEGINS = b"\x1f\x8b"
_ZSTD_WINDOW = 8 * 1024 * 1024  # the most that the web's decoders take (RFC 9659)
_MOST_STACKED = 16 * 1024 * 1024


def decode_content(content: bytes, encoding: str, cap: int) -> bytes:
    """The content without its encoding, at most `cap` bytes; what a cut stream still gives.

    Raises ValueError for an encoding we do not read or bytes that are not in it.
    """
    if not cap or not _list_codings(encoding):
        return content[:cap]
    return _take(decode_pieces(content, encoding), cap)


def decode_pieces(content: bytes, encoding: str) -> Iterator[bytes]:
    """The same piece by piece, of some 256 KiB each."""
    codings = _list_codings(encoding)
    for coding in codings:
        if coding not in _DECODERS:
            raise ValueError(f"content-encoding {encoding.strip().lower()!r} is not read here")
    try:
        for coding in codings[:0:-1]:
            content = _take(_DECODERS[coding](content), _MOST_STACKED)
        yield from _DECODERS[codings[0]](content) if codings else (content,)
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise ValueError(f"the content is not {encoding.strip().lower()}") from error


def encode_content(content: bytes, encoding: str) -> bytes:
    """The content in an encoding that is read here."""
    for coding in _list_codings(encoding):
        content = _ENCODERS[coding](content)
    return content


def _list_codings(encoding: str) -> list[str]:
    """The codings of a field, in the order in which they were applied."""
    return [coding for part in encoding.split(",") if (coding := part.strip().lower()) not in ("", "identity")]


def _take(pieces: Iterator[bytes], cap: int) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= cap:
            break
    return b"".join(taken)[:cap]


def _gunzip(content: bytes) -> Iterator[bytes]:
    """All members, one behind the other; what else comes behind them is passed over."""
    decoder = zlib.decompressobj(_GZIP)
    yield from _inflate(decoder, content)
    while decoder.unused_data.startswith(_GZIP_BEGINS):
        content, decoder = decoder.unused_data, zlib.decompressobj(_GZIP)
        yield from _inflate(decoder, content)


def _undeflate(content: bytes) -> Iterator[bytes]:
    """In zlib's format, as it should be, or bare, as some servers send it."""
    is_zlib = content[:1] and content[0] & 15 == zlib.DEFLATED and not int.from_bytes(content[:2]) % 31
    return _inflate(zlib.decompressobj(_ZLIB if is_zlib else _RAW), content)


def _inflate(decoder: "zlib._Decompress", content: bytes) -> Iterator[bytes]:
    while True:
        piece = decoder.decompress(content, _PIECE)
        yield piece
        content = decoder.unconsumed_tail
        if decoder.eof or (not content and len(piece) < _PIECE):
            return


def _unbrotli(content: bytes) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    piece = decoder.process(content, output_buffer_limit=_PIECE)
    while piece:
        yield piece
        piece = b"" if decoder.is_finished() else decoder.process(b"", output_buffer_limit=_PIECE)


def _unzstd(content: bytes) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with decoder.stream_reader(content, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE):
            yield piece


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": zlib.compress,
    "br": lambda content: brotli.compress(content, quality=5),
    "zstd": zstandard.compress,
}
