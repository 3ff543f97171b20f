"""Summaries: reports that stand for messages, as a graph. Rule: a summary is written once; a better one supersedes it.

A node of a conversation names all messages before it, so a summary that ends at one holds on every branch and for every
model whose history has that node (BEHAVIOUR B32a).
"""

from typing import Literal

import msgspec

Kind = Literal["leaf", "condensed"]
"""A leaf was made of messages, a condensed one of other summaries, its parents."""

Level = Literal[1, 2, 3]
"""1: a structured report. 2: a short one of five fields. 3: put together without a model, which never fails."""


class Summary(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What stands for the messages from place `start` up to `stop` behind the preamble, the last of which is `last`.

    `id` is that of a reference to those messages: unguessable, and the same for the same span, kind, level and text.
    `tokens` are the text's, `covered` those of the messages, both as we count them. A provisional one is to be made
    again: its level is not what was wanted. `parents` are the ids of those that a condensed one was made of, in order
    and without a gap; `supersedes` of those it stands in place of, which were of the same span or within it. `files`
    are the ids of all references and files that its messages, or its parents, name. `digests` are the SHA-256 of the
    raw messages of a leaf, each of which is content of the tenant in the log; those of a condensed one are its
    parents'. `exchange` is the client's call it was made behind, empty where a person asked; `calls` are the
    exchanges in which models were asked for it, those in vain too; `model` is who wrote it, empty for none. `reason`
    says why it is no better than it is.
    """

    id: str
    session: str
    wire: str
    start: int
    stop: int
    last: bytes
    kind: Kind
    level: Level
    is_provisional: bool
    text: str
    tokens: int
    covered: int
    made_ms: int
    exchange: str = ""
    model: str = ""
    reason: str = ""
    calls: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    digests: tuple[bytes, ...] = ()
