"""Counting the tokens of text.

Rule: counting never fails, never downloads, and takes time in proportion to the text; without an encoder it estimates,
and says so. It blocks, the first count by loading ranks: call it in a thread.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from proxy.context.estimate import cut_stretches, estimate_tokens
from proxy.context.model_names import Encoding


class Encoder(Protocol):
    """Knows the tokens of one encoding."""

    def warm(self) -> None:
        """Do what the first count would do beside counting; other threads run meanwhile."""
        ...

    def count(self, text: str) -> int:
        """How many a text has; what looks like a special token is text."""
        ...


class CountingTokenizer:
    """Counts by encodings that are loaded when first needed, once each."""

    def __init__(self, load: Callable[[Encoding], Encoder | None]) -> None:
        self._load = load
        self._prepared: dict[Encoding, Encoder | None] = {}
        self._encoders: dict[Encoding, Encoder | None] = {}
        self._loading = threading.Lock()

    def prepare(self, encoding: Encoding) -> None:
        """Load an encoding as far as no other thread could run meanwhile: before there is any that must not wait."""
        with self._loading:
            if encoding not in self._encoders:
                self._prepared[encoding] = self._load(encoding)

    def warm(self, encoding: Encoding) -> None:
        """Have an encoding ready. Blocks."""
        self._find(encoding)

    def is_ready(self, encoding: Encoding) -> bool:
        """Whether an encoding is loaded, or known to be missing."""
        return encoding in self._encoders

    def count(self, text: str, encoding: Encoding) -> tuple[int, bool]:
        """The tokens of a text, and whether they are but an estimate."""
        encoder = self._find(encoding)
        if encoder is None:
            return estimate_tokens(text), True
        return sum([encoder.count(stretch) for stretch in cut_stretches(text)]), False

    def _find(self, encoding: Encoding) -> Encoder | None:
        with self._loading:
            if encoding not in self._encoders:
                is_prepared = encoding in self._prepared
                encoder = self._prepared.pop(encoding) if is_prepared else self._load(encoding)
                if encoder is not None:
                    encoder.warm()
                self._encoders[encoding] = encoder
            return self._encoders[encoding]
