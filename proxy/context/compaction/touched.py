"""Files that an agent edited or read in a stretch of its work.

Rule: only what its calls name, in their first words, counts, not what outputs mention; the newest comes first.
"""

import re

import msgspec

from proxy.context.compaction.spans import MessageRange
from proxy.context.survey import Survey
from proxy.context.words import is_opaque, list_words

_FILE = re.compile(
    r"(?![sy]/).*/.*"  # but what is told to sed
    r"|[\w.@#-]+\.(?:py|pyi|js|jsx|ts|tsx|mjs|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|scala|sh|sql|md|rst|txt|json"
    r"|ya?ml|toml|cfg|ini|xml|html|css|lock|csv|env|proto|tex|ipynb)"
)


class Touched(msgspec.Struct, frozen=True, gc=False):
    """A file, and whether it was edited rather than only read."""

    path: str
    is_edited: bool


def find_touched(survey: Survey, span: MessageRange) -> tuple[Touched, ...]:
    """The files that calls of a span name, the newest first."""
    edited: dict[str, bool] = {}
    for place in range(span.stop - 1, span.start - 1, -1):
        found = survey.found[place]
        for asked in reversed(found.asked):
            for path in filter(_is_file, list_words(asked)):
                is_writing = found.effects and (path in found.written or not found.written)
                edited[path] = edited.get(path, False) or is_writing
    return tuple(Touched(path, is_edited) for path, is_edited in edited.items())


def _is_file(word: str) -> bool:
    return _FILE.fullmatch(word) is not None and not is_opaque(word)
