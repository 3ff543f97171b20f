"""Counting by splintr. Rule: it counts as tiktoken does (tests hold them together), in a third of the time.

Importing this file imports it; do it late.
"""

import splintr

from proxy.context.model_names import Encoding
from proxy.upstream.encodings import PATTERNS, load_ranks

_ID_BYTES = 4
_NO_TOKEN = "palimpsest"
# What these keep from trying again makes no difference here, and splintr's patterns never do.
_POSSESSIVE = {"++": "+", "*+": "*", "?+": "?", "{1,3}+": "{1,3}"}


class SplintrEncoder:
    """Knows no special tokens: what looks like one is text."""

    def __init__(self, ranks: bytes, pattern: str) -> None:
        """From the content of a rank file that is whole. Blocks for 0.3 s, other threads too."""
        for marked, plain in _POSSESSIVE.items():
            pattern = pattern.replace(marked, plain)
        encoder = splintr.Tokenizer.from_bytes(ranks, pattern, {})
        # Patterns compiled to machine code are no faster, and memory that is written and run would be the only such in
        # a process that holds keys.
        self._encode = encoder.jit(False).encode_flat
        # Half of the work is put off until some word is no token by itself; nobody waits for it here.
        self.count(_NO_TOKEN)

    def count(self, text: str) -> int:
        """The tokens of a text."""
        try:
            return len(self._encode(text)) // _ID_BYTES
        except UnicodeEncodeError:  # a lone surrogate counts as the character that stands for what cannot be shown
            return len(self._encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))) // _ID_BYTES


def load_encoder(encoding: Encoding) -> SplintrEncoder | None:
    """The encoder, made in 0.3 s; None where its rank file is not there, or not whole."""
    ranks = load_ranks(encoding)
    return None if ranks is None else SplintrEncoder(ranks, PATTERNS[encoding])
