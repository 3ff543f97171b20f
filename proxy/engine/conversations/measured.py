"""Measured histories: the structure of each message of a conversation, its tokens, and its faults. Pure."""

from collections.abc import Sequence

from proxy.model import Value
from proxy.model.lineage import count_shared_nodes
from proxy.model.messages import Medium, MessageStructure
from proxy.model.shared_list import count_common
from proxy.wire.body import ByteRange
from proxy.wire.validity import MessageRuns


class PromptPrefix(Value):
    """The part of a prompt before the messages: the digest of its instructions, its raw tools, and its tokens.

    The digest leaves out what changes with each request, and is no part of what providers cache
    (`Format.read_instructions`).
    """

    leading: bytes
    tools: bytes
    tokens: int


class MeasuredHistory(Value, eq=False):
    """The messages of a request after its preamble, with their structures and token counts."""

    nodes: Sequence[bytes]
    structures: Sequence[MessageStructure]
    sums: Sequence[int]  # tokens up to the end of each message, without the head's
    runs: MessageRuns
    head: PromptPrefix
    items: Sequence[ByteRange]  # of all items in the body that they were read from
    first: int  # index of the first message in `items`
    marked: tuple[int, ...] = ()  # indexes of messages with cache markers
    signed: tuple[int, ...] = ()  # indexes of messages with signed reasoning
    answers: int = 0  # messages of the assistant
    first_acting: int = 0  # index of the first message with a call or a result, or their number if there is none
    guessed: tuple[tuple[int, Medium], ...] = ()  # media whose sizes were not known, with the indexes of their messages

    def count(self, start: int, stop: int) -> int:
        """Return the tokens of the messages from `start` up to `stop`."""
        return self.count_to(stop) - self.count_to(start)

    def count_to(self, stop: int) -> int:
        """Return the tokens of the first `stop` messages."""
        return self.sums[stop - 1] if stop else 0

    def list_markers(self, stop: int | None = None) -> list[str]:
        """Return the retentions of the cache markers in the first `stop` messages, or in all."""
        places = self.marked if stop is None else [place for place in self.marked if place < stop]
        return [marker for place in places for marker in self.structures[place].markers]

    @property
    def tokens(self) -> int:
        """Tokens of the whole request."""
        return self.head.tokens + self.count_to(len(self.sums))

    def count_alike(self, nodes: Sequence[bytes], items: Sequence[ByteRange], first: int) -> int:
        """Count the first messages of a body that are the same in this history, with the same lengths in bytes.

        The messages, whose nodes these are, begin at the index `first` of the body's items.
        """
        shared = count_shared_nodes(self.nodes, nodes)
        same = count_common(self.items, items) - first if first == self.first else 0
        at = max(0, same)
        known = self.items[self.first + at : self.first + shared]
        for place, (old, new) in enumerate(zip(known, items[first + at : first + shared], strict=True), at):
            if old.end - old.start != new.end - new.start:
                return place
        return shared


Measures = dict[tuple[str, str], MeasuredHistory]
"""What was measured of a body's messages, by upstream and model."""
