"""Tokens where no tokenizer tells them exactly. Rule: values only; a ratio is learned by making a new one.

Text goes to the tokenizer in stretches that it can take: cut where every tokenizer of ours cuts anyway, and inside a
run of one kind of characters only if that run is longer than `LONGEST_RUN`.
"""

import re
from collections.abc import Iterator

import msgspec

from proxy.context.model_names import Family

LONGEST_RUN = 4096
_BYTES_PER_TOKEN = 3

# A piece of o200k or cl100k is letters (with marks), signs, or white space, and a few characters around them; so it is
# long only where one of these runs is. What is not ASCII may be of any kind.
_RUN = re.compile(rf"[A-Za-z\u0080-\U0010ffff]{{{LONGEST_RUN},}}|[^A-Za-z0-9\s]{{{LONGEST_RUN},}}|\s{{{LONGEST_RUN},}}")

_LEAST_SAMPLE = 500
_WEIGHT_OF_NEW = 0.2
_LOWEST, _HIGHEST = 0.5, 2.5


def cut_stretches(text: str) -> Iterator[str]:
    """The text in stretches without long runs, whose tokens together are those of the text, or nearly.

    Exact where no run of `LONGEST_RUN` characters of one kind is cut: the text is then one stretch. In a run that is
    cut, the true number and ours are both at least bytes / 128 (o200k's longest token) and at most the bytes, so the
    bound of `budget.bound_tokens` holds; measured, they differ by two tokens a cut or 2 % of the run, not more.
    """
    start = 0
    for run in _RUN.finditer(text):
        for end in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
            yield text[start:end]
            start = end
    yield text[start:]


def estimate_tokens(text: str) -> int:
    """Tokens without a tokenizer: one for each three bytes (English has four a token, code three, Chinese less)."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


class Ratio(msgspec.Struct, frozen=True, gc=False):
    """How many tokens a model counts for each of ours: an exponential average of what its usage said.

    Before anything is learned it is what `guess_ratio` says.
    """

    value: float = 1.0

    def learn(self, ours: int, theirs: int) -> "Ratio":
        """The ratio after an answer whose input we counted as `ours` and the provider as `theirs`.

        Small requests say nothing, for what templates add weighs too much in them; odd ones count as far as the bounds.
        """
        if ours < _LEAST_SAMPLE or theirs <= 0:
            return self
        sample = min(_HIGHEST, max(_LOWEST, theirs / ours))
        return Ratio(self.value + _WEIGHT_OF_NEW * (sample - self.value))

    def apply(self, tokens: int) -> int:
        """The model's tokens for so many of ours."""
        return round(tokens * self.value)


EXACT = Ratio(1.0)
# Anthropic's and Gemini's tokenizers give more tokens than o200k on the whole; too high a guess only manages a little
# early. Most others of today have vocabularies of 100,000 and more, as cl100k and o200k, which differ by a few percent.
_GUESSED = {"anthropic": Ratio(1.15), "gemini": Ratio(1.15)}


def guess_ratio(family: Family) -> Ratio:
    """The ratio of a family before anything is learned of its model."""
    return EXACT if family.is_exact else _GUESSED.get(family.vendor, EXACT)
