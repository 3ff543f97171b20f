"""What dialogues and chats are made of: reads `dialogue_topics.txt` and `chat_topics.txt`."""

from pathlib import Path

import msgspec

_PART = " => "


class Topic(msgspec.Struct, frozen=True):
    """A topic: the words behind its `=`, and its lines by their first letter, each divided into its parts."""

    head: tuple[str, ...]
    lines: dict[str, list[tuple[str, ...]]]


def read_topics(name: str) -> tuple[list[Topic], list[tuple[str, str]]]:
    """Return the topics in a file beside this one, and the pairs that stand in its lines with `&`."""
    topics: list[Topic] = []
    pairs: list[tuple[str, str]] = []
    for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "=":
            topics.append(Topic(tuple(part.strip() for part in rest.split("|")), {}))
        elif mark == "&":
            group, _, question = rest.partition(" | ")
            pairs.append((group, question))
        elif mark and mark != "#":
            topics[-1].lines.setdefault(mark, []).append(tuple(rest.split(_PART)))
    return topics, pairs
