"""The messages that a request continues: which step each belongs to, and the calls with their outputs.

Steps have the numbers that the ledger has (`context/ledger`). Everything is computed when it is first asked for, since
most requests never recall.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from proxy.context.conversation import CountedMessage, list_groups
from proxy.context.message_features import extract_features_without_identifiers, find_outcome
from proxy.model.messages import Message, ToolCall
from proxy.wire import FORMATS

_RECENT_STEPS = 3
_MOST_RECENT_CHARACTERS = 2000


class AnsweredCall(msgspec.Struct, frozen=True, gc=False):
    """A call at a place, and its output with the place of that; without an output, both have their defaults."""

    call: ToolCall
    place: int
    output: str = ""
    answered: int = -1

    @property
    def has_failed(self) -> bool:
        """Whether the output says that the call failed."""
        return bool(find_outcome(self.output))


class History:
    """The messages of a request after its preamble, oldest first, as its client sent them.

    A place is an index of them. `raws` may be fewer than `nodes`: then the rest cannot be read.
    """

    def __init__(self, wire: str, nodes: Sequence[bytes], raws: Sequence[bytes]) -> None:
        self.wire = wire
        self.nodes = nodes
        self.raws = raws[: len(nodes)]
        self.memo: dict[tuple[str, object], Any] = {}  # what other modules have computed of it, by what that is

    @property
    def size(self) -> int:
        """Bytes of the messages."""
        return sum(map(len, self.raws))

    def __len__(self) -> int:
        return len(self.raws)

    @cached_property
    def messages(self) -> Sequence[Message]:
        """What each message says."""
        return [seen.message for seen in self._counted]

    @cached_property
    def places(self) -> Mapping[bytes, int]:
        """The place of each node. Of several items with one node it is the one that the node was made of."""
        found: dict[bytes, int] = {}
        for place, node in enumerate(self.nodes):
            found.setdefault(node, place)
        return found

    @cached_property
    def calls(self) -> Sequence[AnsweredCall]:
        """The calls with their outputs, in the order of the calls. Of one id, an output answers the newest call."""
        found: list[AnsweredCall] = []
        newest: dict[str, int] = {}
        for place, message in enumerate(self.messages):
            outputs = message.outputs if len(message.outputs) == len(message.results) else ()
            for i, id in enumerate(message.results):
                if (at := newest.get(id)) is not None:
                    output = outputs[i] if outputs else message.text
                    found[at] = AnsweredCall(found[at].call, found[at].place, output, place)
            for call in message.calls:
                newest[call.id] = len(found)
                found.append(AnsweredCall(call, place))
        return found

    @cached_property
    def forms(self) -> list[bytes]:
        """The normal form of each message, by which it is known however it is spelt."""
        return [read_form(self.wire, raw) for raw in self.raws]

    @cached_property
    def recent_words(self) -> str:
        """What was said and asked in the last three steps, the newest last."""
        start = self._starts[-_RECENT_STEPS:][0] if self._starts else 0
        said = []
        for message in self.messages[start:]:
            features = extract_features_without_identifiers(message)
            said += [features.said or (message.text[:200] if message.role == "user" else ""), *features.asked]
        return "\n".join(filter(None, said))[-_MOST_RECENT_CHARACTERS:]

    def prepare(self) -> None:
        """Compute what most answers need: for 200,000 tokens it takes 7 to 25 ms. Blocks."""
        for part in (self.calls, self._starts, self.places, self.forms, self.recent_words):
            len(part)

    def find_step(self, place: int) -> int:
        """Return the number of the step that the message at a place belongs to, counted from 1."""
        return bisect_right(self._starts, place)

    def list_places(self, step: int) -> range:
        """Return the places of a step; empty if there is no step of this number."""
        if not 1 <= step <= len(self._starts):
            return range(0)
        stop = self._starts[step] if step < len(self._starts) else len(self.raws)
        return range(self._starts[step - 1], stop)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self._starts)

    def find_call(self, place: int) -> AnsweredCall | None:
        """Return the first call that the message at a place answers; None if it answers none."""
        return next((each for each in self.calls if each.answered == place), None)

    def cut(self, stop: int) -> "History":
        """Return the history of the first `stop` messages."""
        return History(self.wire, self.nodes[:stop], self.raws[:stop])

    @cached_property
    def _counted(self) -> Sequence[CountedMessage]:
        form = FORMATS[self.wire]
        decoded = [form.decode_message(raw) for raw in self.raws]
        return [CountedMessage(each.message, each.structure, 0) for each in decoded]

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [group.start for group in list_groups(self._counted)]


def read_form(wire: str, raw: bytes) -> bytes:
    """Return the normal form of a raw message; of an item that does not participate in a chain, its bytes."""
    return FORMATS[wire].reader.read_item(raw).form or raw
