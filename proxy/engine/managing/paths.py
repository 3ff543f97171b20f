"""The messages of a conversation as managing has seen them: their shapes, their tokens, what is wrong with them.

Rule: a node names all messages before it, so what was found out of the path to it holds for every request that shows
it. Memory only: forgetting costs time.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from proxy.engine.counting import Counting, Piece
from proxy.engine.managing.subject import Subject
from proxy.model.growing import extend
from proxy.model.manifest import digest_of
from proxy.model.shapes import Shape
from proxy.wire.shaping import read_shape
from proxy.wire.validity import History, extend_history, judge_history

_PATHS_OF_A_VIEW = 4
_MESSAGE_WEIGHT = 600
_NOTHING = (b"", b"[]", b"null")

Key = tuple[str, str]


class Head(msgspec.Struct, frozen=True, gc=False):
    """What goes before the messages, its tokens, and the raw members it was counted from."""

    leading: bytes
    members: tuple[bytes, ...]
    tokens: int


class Path(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The messages up to a node, behind the preamble. `sums` are tokens up to the end of each, without the head's.

    `marked` are the places of messages with cache markers.
    """

    nodes: Sequence[bytes]
    shapes: Sequence[Shape]
    sums: Sequence[int]
    history: History
    head: Head
    marked: tuple[int, ...] = ()

    def count(self, start: int, stop: int) -> int:
        """Tokens of the messages from `start` up to `stop`."""
        return self.count_to(stop) - self.count_to(start)

    def count_to(self, stop: int) -> int:
        """Tokens of the first messages."""
        return self.sums[stop - 1] if stop else 0

    def list_markers(self, stop: int | None = None) -> list[str]:
        """The retentions of the cache markers in the first messages, or in all of them."""
        places = self.marked if stop is None else [place for place in self.marked if place < stop]
        return [marker for place in places for marker in self.shapes[place].markers]

    @property
    def tokens(self) -> int:
        """Tokens of the whole request."""
        return self.head.tokens + self.count_to(len(self.sums))


class Paths:
    """The paths seen last, the least recently used dropped above `most_bytes`."""

    def __init__(self, counting: Counting, most_bytes: int) -> None:
        self._counting = counting
        self._most = most_bytes // _MESSAGE_WEIGHT
        self._seen: OrderedDict[Key, list[Path]] = OrderedDict()
        self._messages = 0

    def find(self, subject: Subject) -> tuple[Path | None, int]:
        """The path seen before that shares most messages with a request's, and how many; (None, 0) if none does."""
        best, most = None, 0
        for path in reversed(self._seen.get((subject.session.id, subject.model), ())):
            shared = count_shared(path.nodes, subject.nodes)
            if shared > most:
                best, most = path, shared
            if shared == len(path.nodes):
                break
        return best, most

    async def follow(self, subject: Subject) -> Path:
        """The path of a request; only messages that are new are read and counted, in a thread."""
        key = (subject.session.id, subject.model)
        known, shared = self.find(subject)
        head = await self._count_head(subject, known)
        if known is not None and shared == len(subject.nodes) == len(known.nodes):
            return known if known.head is head else msgspec.structs.replace(known, head=head)
        raws = subject.list_raws(shared)
        shapes = [read_shape(subject.wire, raw) for raw in raws]
        tokens = await self._count(subject, [Piece(digest_of(raw), raw) for raw in raws])
        path = _go_on(known, shared, subject, shapes, tokens, head)
        self._remember(key, path, known)
        return path

    def forget(self, session: str) -> None:
        """Nothing of this session is to be relied on any more."""
        for key in [key for key in self._seen if key[0] == session]:
            self._messages -= sum(len(path.nodes) for path in self._seen.pop(key))

    async def count_messages(self, subject: Subject, raws: Sequence[bytes]) -> int:
        """The tokens of messages that are sent in place of others."""
        return sum(await self._count(subject, [Piece(digest_of(raw), raw) for raw in raws]))

    async def _count_head(self, subject: Subject, known: Path | None) -> Head:
        leading, members = subject.chain.preamble.system, list_members(subject)
        if known is not None and known.head.leading == leading and known.head.members == members:
            return known.head
        tools, orders = members
        pieces = [Piece(digest_of(raw), raw) for raw in subject.list_leading()]
        if orders:
            pieces.append(Piece(digest_of(orders), orders))
        if tools:
            pieces.append(Piece(digest_of(tools), tools, is_tools=True))
        return Head(leading, members, sum(await self._count(subject, pieces)))

    async def _count(self, subject: Subject, pieces: Sequence[Piece]) -> tuple[int, ...]:
        if not pieces:
            return ()
        return (await self._counting.count(subject.model, pieces)).tokens

    def _remember(self, key: Key, path: Path, known: Path | None) -> None:
        entries = self._seen.setdefault(key, [])
        self._seen.move_to_end(key)
        if known is not None and known in entries and count_shared(known.nodes, path.nodes) == len(known.nodes):
            entries.remove(known)
            self._messages -= len(known.nodes)
        entries.append(path)
        self._messages += len(path.nodes)
        if len(entries) > _PATHS_OF_A_VIEW:
            self._messages -= len(entries.pop(0).nodes)
        while self._messages > self._most and len(self._seen) > 1:
            _, dropped = self._seen.popitem(last=False)
            self._messages -= sum(len(each.nodes) for each in dropped)


def count_shared(known: Sequence[bytes], nodes: Sequence[bytes]) -> int:
    """How many nodes two chains share: each names all before it, so they part once and for all."""
    low, high = 0, min(len(known), len(nodes))
    if high and known[high - 1] == nodes[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if known[middle] == nodes[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def list_members(subject: Subject) -> tuple[bytes, bytes]:
    """The raw members that go before the messages: tools, and orders on wires that have them; empty for none."""
    tools = subject.split.member("tools")
    return (b"" if tools in _NOTHING else tools), subject.chain.preamble.orders


def _go_on(
    known: Path | None, shared: int, subject: Subject, shapes: list[Shape], tokens: Sequence[int], head: Head
) -> Path:
    before = known.count_to(shared) if known is not None else 0
    sums = []
    for each in tokens:
        before += each
        sums.append(before)
    fresh = tuple(place for place, shape in enumerate(shapes, shared) if shape.markers)
    if known is None or not shared:
        history = judge_history(shapes, is_itemised=subject.wire == "responses")
        return Path(subject.nodes, shapes, sums, history, head, fresh)
    return Path(
        subject.nodes,
        extend(known.shapes, shared, shapes),
        extend(known.sums, shared, sums),
        extend_history(known.history, shared, shapes),
        head,
        (*(place for place in known.marked if place < shared), *fresh),
    )
