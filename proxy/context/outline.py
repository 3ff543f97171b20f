"""The structure of a content in a few lines: what a reader must know to ask for the right part of it.

Rule: total and bounded. What is too large for its parser, or none of it, gets a preview; nothing raises, whatever the
content is. The type is taken from the path's ending, else guessed from the first characters.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import msgspec

from proxy.context.structure import outline_csv, outline_markdown, outline_python, outline_tsv
from proxy.context.values import outline_json, outline_json_lines, outline_toml, outline_yaml

MOST_LINES = 40
LONGEST_LINE = 160
_PREVIEW_HEAD, _PREVIEW_TAIL = 8, 4

_Outliner = Callable[[str], list[str]]
# The most characters that are parsed: each of these takes some 0.1 s at most.
_PARSERS: Mapping[str, tuple[int, _Outliner]] = {
    "python": (200_000, outline_python),
    "json": (4_000_000, outline_json),
    "json lines": (20_000_000, outline_json_lines),
    "yaml": (100_000, outline_yaml),
    "toml": (100_000, outline_toml),
    "markdown": (400_000, outline_markdown),
    "csv": (20_000_000, outline_csv),
    "tsv": (20_000_000, outline_tsv),
}
_ENDINGS = {
    "py": "python", "pyi": "python", "json": "json", "ipynb": "json", "jsonl": "json lines", "ndjson": "json lines",
    "yaml": "yaml", "yml": "yaml", "toml": "toml", "md": "markdown", "markdown": "markdown", "csv": "csv", "tsv": "tsv",
}  # fmt: skip
_ENDING = re.compile(r"\.(\w{1,10})\Z")
_GUESSES = [
    ("json", re.compile(r"\s*[{\[]\s*[\"{\[\d\]}]")),
    ("python", re.compile(r"(?:#!.{0,80}python|(?:from [\w.]+ )?import \w|def \w+\(|class \w+[(:]|\"\"\")")),
    ("yaml", re.compile(r"---\s*\n")),
    ("markdown", re.compile(r"#{1,3} \S")),
]


Parse = Callable[[str, str], list[str]]
"""The structure of a text of some kind (the ending of a path), in lines; empty where there is none to be had."""


class Outline(msgspec.Struct, frozen=True, gc=False):
    """What a content is (`unknown` where nobody can tell), how many lines it has, and its structure."""

    kind: str
    lines: int
    structure: tuple[str, ...]


def outline(text: str, path: str = "", parse: Parse | None = None) -> Outline:
    """The outline of a content. `parse` makes those of the kinds that have no parser here, of a text and its kind."""
    kind = name_kind(text, path)
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    if kind in _PARSERS:
        most, parse_here = _PARSERS[kind]
        found = parse_here(text) if len(text) <= most else []
    else:
        found = parse(text, kind) if parse is not None else []
    return Outline(kind, lines, tuple(_limit(found) if found else _limit(preview(text))))


def name_kind(text: str, path: str) -> str:
    """The type of a content."""
    ending = _ENDING.search(path[-200:])
    if ending:
        return _ENDINGS.get(ending[1].lower(), ending[1].lower())
    return next((kind for kind, guess in _GUESSES if guess.match(text)), "unknown")


def preview(text: str) -> list[str]:
    """The first lines and the last ones."""
    most = (_PREVIEW_HEAD + _PREVIEW_TAIL) * 1000
    if len(text) <= 2 * most and text.count("\n") <= _PREVIEW_HEAD + _PREVIEW_TAIL:
        return text.splitlines()
    head, tail = text[:most].splitlines()[:_PREVIEW_HEAD], text[-most:].splitlines()[-_PREVIEW_TAIL:]
    return [*head, "…", *(line[-LONGEST_LINE:] for line in tail)]


def _limit(lines: Iterable[str]) -> list[str]:
    kept = [
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…" for line in islice(lines, MOST_LINES + 1)
    ]
    return kept if len(kept) <= MOST_LINES else [*kept[: MOST_LINES - 1], "…"]
