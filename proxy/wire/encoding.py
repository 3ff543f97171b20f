"""Undoing a content-encoding for the record's reader. Rule: never on the way through, and never beyond a cap."""

import zlib

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def decode_content(content: bytes, encoding: str, cap: int) -> bytes:
    """The content without its encoding, at most `cap` bytes; what a cut stream still gives.

    Raises ValueError for an encoding we do not read or bytes that are not in it.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity") or not cap:  # to zlib, a cap of 0 is none
        return content[:cap]
    if encoding not in _WINDOWS:
        raise ValueError(f"content-encoding {encoding!r} is not read here")
    try:
        return zlib.decompressobj(_WINDOWS[encoding]).decompress(content, cap)
    except zlib.error as error:
        raise ValueError(f"the content is not {encoding}") from error
