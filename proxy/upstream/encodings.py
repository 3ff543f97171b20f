"""The encoders themselves, made by tiktoken from rank files that were checked before.

Rule: tiktoken never gets a path or an address, only ranks, so it can neither delete a file nor download one (its own
loader does both where a file's hash is wrong). Importing this file imports tiktoken; do it late.
"""

import base64
import binascii
from collections.abc import Mapping

import tiktoken

from proxy.context.model_names import Encoding
from proxy.upstream.bundled import find_litellm, read_ranks

_LETTER_MARKS, _CONTRACTION = r"\p{Lm}\p{Lo}\p{M}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

# How each encoding cuts text before it merges, as in tiktoken's own definitions (a test compares them).
PATTERNS: Mapping[Encoding, str] = {
    "o200k_base": "|".join(
        [
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTER_MARKS}]*[\p{{Ll}}{_LETTER_MARKS}]+{_CONTRACTION}",
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_LETTER_MARKS}]+[\p{{Ll}}{_LETTER_MARKS}]*{_CONTRACTION}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
}


def load_encoder(encoding: Encoding) -> tiktoken.Encoding | None:
    """The encoder, from the wheel's rank file (0.2 to 0.5 s); None where there is no such file, or it is not whole."""
    content = read_ranks(find_litellm(), encoding)
    return None if content is None else make_encoder(encoding, content)


def make_encoder(encoding: Encoding, ranks: bytes) -> tiktoken.Encoding | None:
    """An encoder from the content of a rank file; None where that is garbled."""
    try:
        merges = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, ranks.splitlines())}
    except (ValueError, binascii.Error):
        return None
    if not _is_whole(merges):
        return None
    encoder = tiktoken.Encoding(encoding, pat_str=PATTERNS[encoding], mergeable_ranks=merges, special_tokens={})
    # tiktoken has copied the table, and holds on to it for what we do not ask: 26 MB beside the 43 that it counts with.
    merges.clear()
    return encoder


def _is_whole(merges: Mapping[bytes, int]) -> bool:
    """Whether every byte has a rank, and every rank one token: tiktoken panics without."""
    return all(bytes([byte]) in merges for byte in range(256)) and len(set(merges.values())) == len(merges)
