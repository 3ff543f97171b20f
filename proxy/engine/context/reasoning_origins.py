"""Under which rendering the answers of a session were made, and what of their reasoning a request has (BEHAVIOUR B37).

The rules are in `context/bound_reasoning`. Origins are derived from what was sent: memory has them, and the log's plans
after a restart (`LogReader.list_uses`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from proxy.context.bound_reasoning import OWN, list_foreign, may_bind_reasoning
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, EpochUse
from proxy.wire import FORMATS
from proxy.wire.rendering import change_items

# Answers whose rendering is remembered, and messages whose removed reasoning was reported.
_MOST_MADE = 4096
_MADE_WEIGHT = 200
_NODE_WEIGHT = 60


class ReasoningOrigins:
    """The renderings of a session's epochs, and those under which its histories were sent.

    A history that was sent as the client's own needs no entry. An entry that was dropped, or could not be loaded, costs
    reasoning: it is then not sent under an epoch.
    """

    __slots__ = ("_bound", "_first", "_made", "_renderings", "_told", "_views")

    def __init__(self) -> None:
        self._views: set[str] = set()  # those of the epochs
        self._bound: set[str] = set()  # views whose upstream refused signed reasoning behind another beginning
        self._renderings: dict[str, str] = {}  # by the id of the epoch
        self._first: dict[tuple[bytes, int], str] = {}  # the first epoch with the same messages and edits
        self._made: OrderedDict[tuple[str, bytes], str] = OrderedDict()  # by view and last node
        self._told: set[bytes] = set()  # nodes of the messages whose reasoning was reported as removed

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return _MADE_WEIGHT * (len(self._made) + len(self._renderings)) + _NODE_WEIGHT * len(self._told)

    @property
    def may_bind(self) -> bool:
        """Whether there is an epoch of a view that may bind its reasoning."""
        return any(map(self.binds, self._views))

    def binds(self, view: str) -> bool:
        """Return whether signed reasoning of a view is valid only under the rendering that it was made under."""
        return view in self._bound or may_bind_reasoning(view)

    def add(self, epoch: Epoch) -> None:
        """Add an epoch. A reversion has the rendering of the epoch to which it returns."""
        key = epoch.through, hash(epoch.edits)
        if epoch.is_reversion and epoch.depth:
            self._renderings[epoch.id] = self._first.get(key, epoch.id)
        elif epoch.depth:
            self._renderings[epoch.id] = epoch.id
            self._first.setdefault(key, epoch.id)
        else:
            self._renderings[epoch.id] = OWN
        self._views.add(epoch.view)
        if epoch.why == "unsigned":
            self._bound.add(epoch.view)

    def find_rendering(self, epoch: Epoch | None) -> str:
        """Return the rendering of an epoch, or of none."""
        return OWN if epoch is None else self._renderings.get(epoch.id, epoch.id if epoch.depth else OWN)

    def note(self, use: EpochUse) -> None:
        """Note under which epoch a history is sent. An empty id stands for none."""
        rendering = self._renderings.get(use.epoch, use.epoch) if self.binds(use.view) else OWN
        self._made.pop((use.view, use.node), None)
        if rendering != OWN:
            self._made[use.view, use.node] = rendering
            if len(self._made) > _MOST_MADE:
                self._made.popitem(last=False)

    def absorb(self, uses: Iterable[EpochUse]) -> None:
        """Merge what the log has with what happened before it was loaded."""
        later, self._made = self._made, OrderedDict()
        for use in uses:
            self.note(use)
        self._made.update(later)

    def note_removed(self, nodes: Iterable[bytes]) -> int:
        """Note messages whose reasoning is not sent. Return how many of them were not noted before."""
        fresh = set(nodes) - self._told
        if fresh and len(self._told) >= _MOST_MADE:
            self._told.clear()
        self._told |= fresh
        return len(fresh)

    def find_changed(self, request: ManagedRequest, epoch: Epoch | None) -> Mapping[int, bytes]:
        """Return the messages behind an epoch that are sent without their signed reasoning, by index.

        It was made under another rendering than that of the epoch, or for None than that of the client's own messages.
        """
        view = request.model
        if not self.binds(view) or not (self._made or epoch is not None):
            return {}
        nodes, root = request.nodes, request.chain.root

        def find_origin(count: int) -> str:
            return self._find_origin(view, nodes[count - 1] if count else root)

        strip, first, content = (
            FORMATS[request.wire].strip_reasoning,
            request.chain.preamble.count,
            request.split.content,
        )
        start = 0 if epoch is None else epoch.depth
        found: dict[int, bytes] = {}
        for place in list_foreign(request.chain.items, start, self.find_rendering(epoch), find_origin):
            span = request.split.items[first + place]
            raw = content[span.start : span.end]
            if (stripped := strip(raw)) is not raw:
                found[place] = stripped
        return found

    def _find_origin(self, view: str, node: bytes) -> str:
        """Return the rendering under which the history that ends with a node was sent, to this view if it was."""
        made = self._made.get((view, node))
        if made is not None:
            return made
        return next((self._made[other, node] for other in self._views if (other, node) in self._made), OWN)


def make_own_body(request: ManagedRequest, changed: Mapping[int, bytes]) -> bytes:
    """Return the client's body, with these messages changed."""
    return change_items(request.split, request.chain.preamble.count, changed) if changed else request.split.content


def format_removed(messages: int) -> str:
    """Return what is told of reasoning that is not sent."""
    of = "1 message" if messages == 1 else f"{messages} messages"
    return f"removed the signed reasoning of {of}, which is bound to another beginning"
