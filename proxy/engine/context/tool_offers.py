"""The tool by which a model recalls what was removed from its context: which requests get it.

It enters the tools of a request with an epoch, the first one of a path if that can have it, and stays there, byte for
byte, under all epochs that follow, since a provider's cache begins with the tools. So an epoch has it, and the log has
the epoch. Where a request cannot have it, it is sent without.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from proxy.engine.request import ManagedRequest
from proxy.model import Value
from proxy.model.epoch import Epoch, HiddenRound, Recalled
from proxy.model.log import weigh_record
from proxy.model.messages import MessageStructure
from proxy.wire.rounds import append_tool

# What the tool counts as, whose description and schema together have at most so many tokens in any encoding.
TOOL_TOKENS = 250
NO_RECALLED: Mapping[int, Recalled] = {}

# Milliseconds after a refusal during which no epoch opens in the view, or none of the kind that was refused.
REFUSED_MS = 24 * 60 * 60 * 1000


class RestoredAnswer(Value):
    """What is sent in place of a client's messages from `start` up to `stop`: an answer with its hidden rounds.

    From `answered` on they are the client's results, which are sent, too, with the cache markers that they have.
    """

    start: int
    stop: int
    messages: tuple[bytes, ...]
    exchange: str
    answered: int


Restore = Callable[[str, Sequence[HiddenRound], Sequence[bytes]], Sequence[bytes]]
"""Returns the raw messages of rounds, given a wire, the rounds, and the client's raw messages that follow.

The last of these messages are the client's, with what has to stand beside its own results.
"""


class ToolOffers:
    """Decides about the tool, and what is sent of answers in which a model used it.

    `spell` returns it for a wire. `find_obstacle` says why a request cannot have it, empty if it can, given whether the
    epoch of the request offers it: then it stays, even where the request does not let the model call it.
    """

    def __init__(
        self,
        *,
        is_on: bool,
        spell: Callable[[str], bytes],
        find_obstacle: Callable[[ManagedRequest, bool], str],
        restore: Restore,
    ) -> None:
        self._is_on = is_on
        self._spell = spell
        self._find_obstacle = find_obstacle
        self._restore = restore
        self._unreadable: set[str] = set()

    def note_unreadable(self, upstream: str) -> bool:
        """Note that an upstream's responses cannot be read, so that epochs that open offer no tool to it.

        Return whether that is news.
        """
        is_known = upstream in self._unreadable
        self._unreadable.add(upstream)
        return not is_known

    def choose(
        self,
        request: ManagedRequest,
        epoch: Epoch | None,
        structures: Sequence[MessageStructure] = (),
        recalled: Mapping[int, Recalled] = NO_RECALLED,
        *,
        is_refused: bool = False,
    ) -> bytes:
        """Return the tool that an epoch offers if it opens for a request under `epoch`; empty if none.

        What an epoch offers is offered by those that follow. One that offers none may be followed by one that does: its
        plan is made anew, since what it would carry on says how originals can be read without the tool.
        `is_refused`: the upstream refused the tool within the last day.
        """
        if is_refused or request.upstream.name in self._unreadable:
            return b""
        if epoch is not None and epoch.depth and epoch.tool:
            return epoch.tool
        if not self._is_on or self._find_obstacle(request, False):
            return b""
        return self._spell(request.wire)

    def find(self, request: ManagedRequest, epoch: Epoch) -> bytes:
        """Return the tool that a request has under an epoch; empty if it has none."""
        return epoch.tool if epoch.tool and not self._find_obstacle(request, True) else b""

    def write(self, request: ManagedRequest, tool: bytes) -> bytes:
        """Return the raw tools of a request with ours."""
        return append_tool(request.split.member("tools"), tool)

    def count(self, request: ManagedRequest, tool: bytes) -> int:
        """Return the tokens by which the tools of a request grow with ours; 0 for none."""
        return TOOL_TOKENS if tool else 0

    def find_echo(self, request: ManagedRequest, epoch: Epoch) -> bytes:
        """Return the raw tools that the client gets where a response has those that were sent; empty: without ours."""
        return b""

    def answer(self, request: ManagedRequest, epoch: Epoch, arguments: str) -> str:
        """Return the result of a call of our tool about tools, given its raw arguments; empty if it is no such call."""
        return ""

    def list_restored(
        self, request: ManagedRequest, recalled: Mapping[int, Recalled], depth: int
    ) -> tuple[RestoredAnswer, ...]:
        """Return what is sent in place of answers behind the first `depth` messages, in their order.

        `recalled` has what a model recalled, by the last message of its answer.
        """
        raws = request.list_raws(depth) if recalled else []
        restored: list[RestoredAnswer] = []
        for place, each in sorted(recalled.items()):
            start, stop = place + 1 - each.count, place + 1
            if start < max([depth, *(other.stop for other in restored[-1:])]):
                continue
            # results of ours stand beside those of the client
            following = raws[stop - depth : stop - depth + 1] if each.rounds[-1].results else []
            messages = tuple(self._restore(request.wire, each.rounds, following))
            restored.append(RestoredAnswer(start, stop + len(following), messages, each.exchange, stop))
        return tuple(restored)


class RecalledAnswers:
    """What a model recalled within the answers of a session, and when an upstream refused the tool."""

    __slots__ = ("_found", "_refused")

    def __init__(self) -> None:
        self._found: dict[tuple[str, bytes], Recalled] = {}  # by view and last node of the answer
        self._refused: dict[str, int] = {}  # by view

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return sum(map(weigh_record, self._found.values()))

    def add(self, recalled: Recalled) -> None:
        """Add an answer. Of equal answers the first one counts, so that the same is sent each time."""
        self._found.setdefault((recalled.view, recalled.node), recalled)

    def absorb(self, stored: Iterable[Recalled]) -> None:
        """Merge what the log has with what happened before it was loaded."""
        later, self._found = self._found, {}
        for each in (*stored, *later.values()):
            self.add(each)

    def find(self, request: ManagedRequest) -> Mapping[int, Recalled]:
        """Return what was recalled within the answers that a request has, by the index of their last message."""
        if not self._found:
            return NO_RECALLED
        view, found = request.view, self._found
        return {place: found[view, node] for place, node in enumerate(request.nodes) if (view, node) in found}

    def note_refusal(self, view: str, at_ms: int) -> None:
        """Note that an upstream refused the tool."""
        self._refused[view] = at_ms

    def is_refused(self, view: str, now_ms: int) -> bool:
        """Return whether the upstream refused the tool within the last day."""
        refused_ms = self._refused.get(view)
        return refused_ms is not None and now_ms - refused_ms < REFUSED_MS


def _restore_nothing(wire: str, rounds: Sequence[HiddenRound], following: Sequence[bytes]) -> Sequence[bytes]:
    return following


NO_OFFERS = ToolOffers(is_on=False, spell=lambda _: b"", find_obstacle=lambda *_: "", restore=_restore_nothing)
