"""Counting by tiktoken, where there is no splintr. Rule: it gets ranks that were checked, never a path or an address.

Importing this file imports it; do it late.
"""

import base64
import binascii
from collections.abc import Mapping

import tiktoken

from proxy.context.model_names import Encoding
from proxy.upstream.encodings import PATTERNS, load_ranks


class TiktokenEncoder:
    """Knows no special tokens: what looks like one is text."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.encoding = encoding

    def warm(self) -> None:
        """There is nothing left to do."""

    def count(self, text: str) -> int:
        """The tokens of a text."""
        return len(self.encoding.encode_ordinary(text))


def load_encoder(encoding: Encoding) -> TiktokenEncoder | None:
    """The encoder, made in 0.5 s; None where its rank file is not there, or not whole."""
    ranks = load_ranks(encoding)
    return None if ranks is None else make_encoder(encoding, ranks)


def make_encoder(encoding: Encoding, ranks: bytes) -> TiktokenEncoder | None:
    """An encoder from the content of a rank file; None where that is garbled."""
    try:
        merges = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, ranks.splitlines())}
    except (ValueError, binascii.Error):
        return None
    if not _is_whole(merges):
        return None
    made = tiktoken.Encoding(encoding, pat_str=PATTERNS[encoding], mergeable_ranks=merges, special_tokens={})
    # tiktoken has copied the table, and holds on to it for what we do not ask: 26 MB beside the 43 that it counts with.
    merges.clear()
    return TiktokenEncoder(made)


def _is_whole(merges: Mapping[bytes, int]) -> bool:
    """Whether every byte has a rank, and every rank one token: tiktoken panics without."""
    return all(bytes([byte]) in merges for byte in range(256)) and len(set(merges.values())) == len(merges)
