"""References in the model's context: what stands in place of content that was taken out.

Rule (BEHAVIOUR B9, B15, B22): a marker says what it stands for, how it ended and how to get it back, so that it can be
understood without a tool of ours; it never looks like a call. The same content in the same session has the same words.
"""

import hmac
from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.context.plain import clean

_ID_LENGTH = 10
_LONGEST_NAME = 80
_LONGEST_LINE = 200


class FileReference(msgspec.Struct, frozen=True, gc=False):
    """A large content: its id, where it is from (a path, or what it was called), what it is and how much.

    `way` says how to obtain it again, in words; empty where only the reference does.
    """

    reference: str
    path: str
    kind: str
    tokens: int
    lines: int
    digest: bytes
    outline: Sequence[str]
    way: str = ""


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    """A tool's output: its id, the tool, what was asked of it and how it ended.

    `literals` are words of the output by kind (`literals.find_literals`). `has_effects`: it changed something.
    """

    reference: str
    tool: str
    asked: str
    outcome: str
    lines: int
    characters: int
    literals: Mapping[str, Sequence[str]]
    way: str = ""
    has_effects: bool = False


def make_reference(secret: bytes, session: str, digest: bytes) -> str:
    """The id of a content in a session: ten of `[a-z2-7]`, foreseen by nobody who has not the secret."""
    tag = hmac.digest(secret, b"reference\0" + session.encode("utf-8", "surrogatepass") + b"\0" + digest, "sha256")
    return b32encode(tag).decode()[:_ID_LENGTH].lower()


def render_file(file: FileReference) -> str:
    """The block of a large content."""
    head = (
        f"ref:{file.reference} · {clean(file.kind, _LONGEST_NAME)} · {file.tokens:,} tokens · {file.lines:,} lines"
        f" · sha256 {file.digest.hex()[:12]}"
    )
    outline = (f"  {clean(line, _LONGEST_LINE)}" for line in file.outline)
    return "\n".join((f"[FILE: {clean(file.path, _LONGEST_LINE)}]", head, *outline, _tell_way(file.way), "[/FILE]"))


def render_tombstone(stone: Tombstone) -> str:
    """The marker of a tool's output."""
    return "\n".join(_write_tombstone(stone))


def _write_tombstone(stone: Tombstone) -> Iterator[str]:
    ended = f"completed, {clean(stone.outcome, _LONGEST_LINE)}" if stone.outcome else "completed"
    yield (
        f"[tool: {clean(stone.tool, _LONGEST_NAME)} — output pruned; {ended}; {stone.lines:,} lines, "
        f"{stone.characters:,} characters; shown in full earlier; ref:{stone.reference}]"
    )
    if stone.asked:
        yield f"asked: {clean(stone.asked, _LONGEST_LINE)}"
    for kind, words in stone.literals.items():
        yield f"{kind}: {_separator(kind).join(clean(word, _LONGEST_LINE) for word in words)}"
    if stone.has_effects:
        yield "It had effects: do not repeat it."
    yield _tell_way(stone.way)


def _separator(kind: str) -> str:
    return " | " if kind == "errors" else ", "


def _tell_way(way: str) -> str:
    told = f" To see it again: {clean(way, _LONGEST_LINE)}." if way else ""
    return f"The original is intact under its reference.{told}"
