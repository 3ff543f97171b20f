"""How each encoding cuts text before it merges, and the ranks that it merges by.

Rule: what counts tokens is made of these, without a path or an address. So nothing is deleted or downloaded, which
tiktoken's own loader does where a file's hash is wrong.
"""

from collections.abc import Mapping

from proxy.context.model_names import Encoding
from proxy.upstream.bundled import find_litellm, read_ranks

_LETTER_MARKS, _CONTRACTION = r"\p{Lm}\p{Lo}\p{M}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

# As in tiktoken's own definitions (a test compares them).
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


def load_ranks(encoding: Encoding) -> bytes | None:
    """The rank file in litellm's wheel; None where there is none, or one with another hash."""
    return read_ranks(find_litellm(), encoding)
