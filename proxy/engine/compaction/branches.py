"""The branches of which reports are being made, or were asked for in vain of late.

Rule: two requests are of one branch where one goes on from the other; what a branch waits for is its own. Memory only,
and bounded: forgetting costs a look.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import msgspec

from proxy.engine.compaction.bounded import keep_newest
from proxy.engine.compaction.work import Latest
from proxy.engine.context.history_cache import count_shared

_MOST_SESSIONS = 4096
_MOST_VAIN = 8

Piece = tuple[int, bytes]
"""The first place of a span, and its last node."""


class Making:
    """What is being made behind a request of `nodes`, under a lease; it makes way for calls of `upstream`, if any."""

    __slots__ = ("lease", "nodes", "pieces", "task", "upstream")

    def __init__(self, nodes: Sequence[bytes], lease: str, upstream: str, task: "asyncio.Task[None]") -> None:
        self.nodes = nodes
        self.lease = lease
        self.upstream = upstream
        self.task = task
        self.pieces: set[Piece] = set()


class _Vain(msgspec.Struct, frozen=True, gc=False):
    """Nothing came of a request with so many messages, and is not to before the conversation has so many tokens."""

    tip: bytes
    depth: int
    tokens: int


class Branches:
    """Knows them, by their sessions."""

    def __init__(self) -> None:
        self._making: dict[str, list[Making]] = {}
        self._vain: OrderedDict[str, list[_Vain]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._making.values()))

    def find(self, session: str, nodes: Sequence[bytes]) -> Making | None:
        """What is being made of the branch of a request."""
        found = self._making.get(session, ())
        return next((each for each in found if is_one_branch(each.nodes, nodes)), None)

    def list_at(self, upstream: str) -> list[Making]:
        """What makes way for the calls of an upstream."""
        return [each for found in self._making.values() for each in found if each.upstream == upstream]

    def name(self, latest: Latest) -> str:
        """A lease's name: the branch by the first message that no report is of, or that others here do not share.

        Other processes call it the same, unless they are at a branch that leaves this one behind that message.
        """
        live = latest.case.context.list_summaries(latest.nodes)
        shared = [count_shared(each.nodes, latest.nodes) for each in self._making.get(latest.session, ())]
        place = min(max([live[-1].stop if live else 0, *shared]), len(latest.nodes) - 1)
        return f"summaries/{latest.session}/{latest.nodes[place].hex()}"

    def enter(self, latest: Latest, making: Making) -> None:
        """It is being made from now on, until its task has ended."""
        self._making.setdefault(latest.session, []).append(making)
        making.task.add_done_callback(partial(self._leave, latest.session, making))

    def _leave(self, session: str, making: Making, task: "asyncio.Task[None]") -> None:
        left = [each for each in self._making.get(session, ()) if each is not making]
        if left:
            self._making[session] = left
        else:
            self._making.pop(session, None)

    def claim(self, session: str, making: Making, piece: Piece) -> bool:
        """Report a span for a branch; False where another branch has it, and is at it."""
        if any(piece in each.pieces for each in self._making[session] if each is not making):
            return False
        making.pieces.add(piece)
        return True

    def note_vain(self, latest: Latest, tokens: int) -> None:
        """Nothing came of it: look again when the conversation has so many tokens."""
        others = [each for each in self._vain.get(latest.session, ()) if not _is_behind(each, latest)]
        noted = [*others, _Vain(latest.nodes[-1], len(latest.nodes), tokens)]
        keep_newest(self._vain, latest.session, noted[-_MOST_VAIN:], _MOST_SESSIONS)

    def is_in_vain(self, latest: Latest) -> bool:
        """Whether it is too early to look at its branch again."""
        noted = self._vain.get(latest.session, ())
        return any(_is_behind(each, latest) and latest.case.path.tokens < each.tokens for each in noted)


def is_one_branch(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """Whether one of two chains goes on from the other."""
    return count_shared(one, other) == min(len(one), len(other))


def _is_behind(vain: _Vain, latest: Latest) -> bool:
    return vain.depth <= len(latest.nodes) and latest.nodes[vain.depth - 1] == vain.tip
