"""Counting by splintr. Rule: it counts as tiktoken does (tests hold them together), in a third of the time.

Importing this file imports it; do it late.
"""

import splintr

from proxy.context.model_names import Encoding

_ID_BYTES = 4
_NO_TOKEN = "palimpsest"
# How every special token of these encodings begins; splintr's quick call would take one that is spelt out for itself.
_SPECIAL = "<|"
# Longer texts are counted without the interpreter's lock; a short one takes less time than getting the lock back may.
_LONG = 32 * 1024


class SplintrEncoder:
    """Knows no special tokens: what looks like one is text."""

    def __init__(self, name: Encoding) -> None:
        """From the tables that splintr brings along. Takes 20 to 50 ms, in which no other thread runs."""
        # Patterns compiled to machine code are no faster, and memory that is written and run would be the only such in
        # a process that holds keys.
        self._tokens = splintr.Tokenizer.from_pretrained(name).jit(False)

    def warm(self) -> None:
        """Have done what is put off until some word is no token by itself: 0.1 s, in which other threads do run."""
        self._tokens.encode_batch_flat([_NO_TOKEN])

    def count(self, text: str) -> int:
        """The tokens of a text."""
        try:
            return self._count(text)
        except UnicodeEncodeError:  # a lone surrogate counts as the character that stands for what cannot be shown
            return self._count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _count(self, text: str) -> int:
        if _SPECIAL in text:
            return len(self._tokens.encode_ordinary(text))
        if len(text) < _LONG:
            return len(self._tokens.encode_flat(text)) // _ID_BYTES
        return len(self._tokens.encode_batch_flat([text])[0]) // _ID_BYTES


def load_encoder(encoding: Encoding) -> SplintrEncoder:
    """The encoder, which is still to be warmed."""
    return SplintrEncoder(encoding)
