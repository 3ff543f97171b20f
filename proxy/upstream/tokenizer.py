"""Counts tokens by OpenAI's encodings, or estimates them if there is no encoder.

splintr gives the same tokens as tiktoken (tests compare them) in a third of the time, and ships the vocabularies in its
wheel: nothing is downloaded. Counting never fails and takes time in proportion to the text. It blocks, and the first
count also loads the vocabulary, so call it in a thread.
"""

import importlib
import importlib.util
import logging
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from proxy.context.budget import cut_stretches, estimate_tokens
from proxy.context.model_catalog import Encoding

if TYPE_CHECKING:
    import splintr

_ID_BYTES = 4
_NO_TOKEN = "palimpsest"
# The beginning of every special token in these encodings. `encode_flat` would not treat such text as plain text.
_SPECIAL = "<|"
Estimate = Callable[..., int]
"""Takes a text and, by name, the `model` that reads it, None if that is not known. Returns its tokens."""

_log = logging.getLogger("palimpsest.models")

# Characters from which a text is counted without the GIL. A shorter text takes less time than reacquiring the GIL may.
_LONG = 32 * 1024


class Encoder(Protocol):
    """Counts the tokens of one encoding. Text that looks like a special token is plain text."""

    def warm(self) -> None:
        """Do the set-up that the first count would do, without blocking other threads."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...


class SplintrEncoder:
    """A splintr encoding, with JIT compilation of its patterns turned off.

    Compiled patterns are no faster, and would need memory that is writable and executable in a process that holds keys.
    """

    def __init__(self, tokens: "splintr.AnyTokenizer") -> None:
        self._tokens = tokens.jit(False)

    def warm(self) -> None:
        """Build the merge table, by encoding a word that is not a single token. Takes 0.1 s without the GIL."""
        self._tokens.encode_batch_flat([_NO_TOKEN])

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without the GIL if it is long."""
        try:
            return self._count(text)
        except UnicodeEncodeError:  # a lone surrogate counts as U+FFFD, the replacement character
            return self._count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _count(self, text: str) -> int:
        if _SPECIAL in text:
            return len(self._tokens.encode_ordinary(text))
        if len(text) < _LONG:
            return len(self._tokens.encode_flat(text)) // _ID_BYTES
        return len(self._tokens.encode_batch_flat([text])[0]) // _ID_BYTES


def has_encoder() -> bool:
    """Return whether splintr is installed. It has wheels for every platform that tiktoken has wheels for."""
    return importlib.util.find_spec("splintr") is not None


def load_encoder(encoding: Encoding) -> Encoder | None:
    """Return an encoder that is not warmed yet, or None without splintr. Takes 20 to 50 ms, holding the GIL."""
    try:
        import splintr  # noqa: PLC0415 - 37 MB that many runs do not need
    except ImportError:
        return None
    return SplintrEncoder(splintr.Tokenizer.from_pretrained(encoding))


def import_function(path: str) -> Callable[..., Any]:
    """Return the function of a dotted path. Raises ImportError, AttributeError, and TypeError if it is no function."""
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise TypeError(f"{path} is no function")
    return found


class CountingTokenizer:
    """Counts tokens. Each encoding is loaded once, when it is first needed.

    `is_by_model`: what it counts depends on the model, not only on the encoding.
    """

    is_by_model = False

    def __init__(self, load: Callable[[Encoding], Encoder | None] = load_encoder) -> None:
        self._load = load
        self._prepared: dict[Encoding, Encoder | None] = {}
        self._encoders: dict[Encoding, Encoder | None] = {}
        self._loading = threading.Lock()

    def prepare(self, encoding: Encoding) -> None:
        """Load an encoding without warming it. Call it at the start, when no other thread waits for the GIL."""
        with self._loading:
            if encoding not in self._encoders:
                self._prepared[encoding] = self._load(encoding)

    def warm(self, encoding: Encoding) -> None:
        """Make an encoding ready for counting. Blocks for 0.1 s."""
        self._find(encoding)

    def is_ready(self, encoding: Encoding) -> bool:
        """Return whether an encoding is ready, or known to be missing."""
        return encoding in self._encoders

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        """Return the number of tokens of a text, and whether it is an estimate."""
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


class EstimatingTokenizer(CountingTokenizer):
    """Counts tokens by a function of the user's. Where that fails it counts as without one, and logs the first time."""

    is_by_model = True

    def __init__(self, estimate: Estimate, load: Callable[[Encoding], Encoder | None] = load_encoder) -> None:
        super().__init__(load)
        self._estimate = estimate
        self._has_failed = False

    def prepare(self, encoding: Encoding) -> None:
        """Do nothing, since an encoding is needed only where the function fails."""

    def warm(self, encoding: Encoding) -> None:
        """Do nothing, like `prepare`."""

    def is_ready(self, encoding: Encoding) -> bool:
        """Return True: there is nothing to load."""
        return True

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        """Return the number of tokens of a text by the function, which is no estimate to us."""
        found = self.try_estimate(text, model)
        if isinstance(found, int):
            return found, False
        if not self._has_failed:
            self._has_failed = True
            _log.warning("budget.estimator failed, and tokens are counted as without it: %r", found)
        return super().count(text, encoding)

    def try_estimate(self, text: str, model: str = "") -> int | Exception:
        """Return what the function counts, or what is wrong with it."""
        try:
            tokens = operator.index(self._estimate(text, model=model or None))
            if tokens < 0:
                raise ValueError(f"it returned {tokens}")
        except Exception as error:  # noqa: BLE001 - the function is the user's, and counting never fails
            return error
        return tokens


def make_tokenizer(estimate: Estimate | None) -> CountingTokenizer:
    """Return a tokenizer that counts by a function of the user's, if there is one."""
    return CountingTokenizer() if estimate is None else EstimatingTokenizer(estimate)
