"""The scope of an epoch: the requests that it applies to, and the reasoning that was made under it.

It applies to requests that begin with its messages and have enough messages after them.
The rules about reasoning are in `context/verbatim`. Its origins are derived from what was sent: memory has
that, and after a restart the log (`LogReader.list_uses`).
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from proxy.context.epoch_decision import CacheCostAccount
from proxy.context.verbatim import (
    MIN_GROUPS,
    OWN,
    RECENT_GROUPS,
    RECENT_TURNS,
    find_unanswered,
    find_verbatim,
    iterate_groups,
    list_foreign,
    may_bind_reasoning,
)
from proxy.engine.conversations.bodies import PromptPrefix
from proxy.engine.request import ManagedRequest
from proxy.model import Value
from proxy.model.epoch import Epoch, EpochUse, HiddenRound, Kept, Recalled, Replaced, decode_edits
from proxy.wire import FORMATS
from proxy.wire.identity import Item
from proxy.wire.rendering import NO_CHANGES, change_items

_EPOCH_WEIGHT = 1000
_ORIGINAL_WEIGHT = 400
_NODE_WEIGHT = 60
_MOST_COVERED = 4
# Clients replace a cleared output by a short notice, such as "[Old tool result content cleared]".
_LITTLE = 200
_SAYS_SO = re.compile(
    r"clear|prun|truncat|omit|remov|elid|mask|hidden|collaps|compact|trim|drop|delet|discard|evict|snip|\.\.\.|…",
    re.IGNORECASE,
)

# Answers whose rendering is remembered, and messages whose removed reasoning was reported.
_MOST_MADE = 4096
_MADE_WEIGHT = 200


class EpochReaches:
    """The reaches of a session's epochs: how many messages the request had for which each was opened, if known."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def note(self, epoch: str, reach: int | None) -> None:
        """Set the reach of an epoch, given by its id. None means unknown."""
        if reach is not None:
            self._known[epoch] = reach

    def forget(self, epoch: str) -> None:
        """Drop the reach of an epoch."""
        self._known.pop(epoch, None)

    def choose(self, epochs: Sequence[Epoch], known: Sequence[Epoch], request: ManagedRequest) -> Epoch | None:
        """Return the newest epoch that applies to a request. `epochs` are on its history, `known` all of its session.

        If a newer epoch does not apply, an older one is skipped unless it replaces fewer messages: the newer one may
        have reverted it.
        """
        most = len(request.nodes) + 1
        for epoch in reversed(epochs):
            if epoch.depth < most:
                if epoch_applies(epoch, self._find(epoch, known), request):
                    return epoch
                most = epoch.depth
        return None

    def _find(self, epoch: Epoch, known: Sequence[Epoch]) -> int | None:
        """Return the reach of an epoch. A reversion has that of the epoch to which it returns."""
        if not epoch.is_reversion:
            return self._known.get(epoch.id)
        same = (each.id for each in known if (each.through, each.edits) == (epoch.through, epoch.edits))
        return next((self._known[id] for id in same if id in self._known), None)


def epoch_applies(epoch: Epoch, reach: int | None, request: ManagedRequest) -> bool:
    """Return whether an epoch may be sent for a request that has its messages.

    `reach` is the number of messages of the request for which it was opened, or None if unknown. A shorter history may
    have been sent before, under an earlier epoch or none, and stays so.
    """
    items = request.chain.items
    if not epoch.depth or (reach is not None and len(items) >= reach):
        return True
    if reach is None:
        return keeps_recent_turns(epoch, items, MIN_GROUPS, 0)
    is_retry = request.lineage is not None and request.lineage.relation == "retry"
    return not is_retry and keeps_recent_turns(epoch, items)


def keeps_recent_turns(
    epoch: Epoch, items: Sequence[Item], groups: int = RECENT_GROUPS, turns: int = RECENT_TURNS
) -> bool:
    """Return whether the messages that must stay verbatim (`context/verbatim`) are sent unchanged under an epoch.

    Pins are not considered: a pin takes effect in the next epoch.
    """
    kept = {edit.place for edit in decode_edits(epoch.edits) if isinstance(edit, Kept)}
    verbatim = find_verbatim(iterate_groups(items), find_unanswered(items), groups, turns)
    needed = chain(range(verbatim.tail, len(items)), *verbatim.list_earlier())
    return all(place >= epoch.depth or place in kept for place in needed)


def count_shortened(epoch: Epoch, items: Sequence[Item]) -> int:
    """Count the new messages that an epoch shortens because they do not fit: those that no model has answered."""
    unanswered = find_unanswered(items)
    edits = (edit for edit in decode_edits(epoch.edits) if isinstance(edit, Replaced))
    return sum(edit.place >= unanswered and items[edit.place].role != "assistant" for edit in edits)


class CountedRequest(Value):
    """A request whose response said how many tokens it had: the client's own and what was sent.

    `own` and `paid` are the provider's counts, `own_tokens` and `tokens` our own.
    """

    own: int
    own_tokens: int
    paid: int
    tokens: int


class EpochAccount:
    """The account of one view of a session under one epoch, or under none.

    `before` has the nodes of the last request charged to `account`; `head` is the prefix before its messages. `counted`
    is the newest request with a usage, None before the first.
    """

    __slots__ = ("account", "before", "counted", "head")

    def __init__(self, account: CacheCostAccount) -> None:
        self.account = account
        self.counted: CountedRequest | None = None
        self.before: Sequence[bytes] | None = None
        self.head: PromptPrefix | None = None


class ClearedOutputDetector:
    """Recognises the messages that recent epochs replace after the client has cleared tool outputs in them."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[Item, ...]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def note(self, epoch: Epoch, items: Sequence[Item]) -> None:
        """Remember the messages that an epoch replaces: the first ones of `items`."""
        if epoch.id in self._items or not epoch.depth or epoch.is_reversion:
            return
        self._items[epoch.id] = tuple(items[: epoch.depth])
        if len(self._items) > _MOST_COVERED:
            self._items.popitem(last=False)

    def is_cleared(self, epoch: Epoch, request: ManagedRequest) -> bool:
        """Return whether a request begins with the messages of an epoch, except for outputs that the client cleared."""
        items = self._items.get(epoch.id)
        return items is not None and is_cleared(items, request)


def is_cleared(before: Sequence[Item], request: ManagedRequest) -> bool:
    """Return whether a request begins with these messages, except for tool outputs that became a short notice."""
    now = request.chain.items
    if len(now) < len(before):
        return False
    changed = [place for place, old in enumerate(before) if old.form != now[place].form]
    return all(_are_outputs(before[place], now[place]) for place in changed) and all(
        _says_so(request, place) for place in changed
    )


def _are_outputs(old: Item, new: Item) -> bool:
    """Return whether both are outputs of the same calls, and the newer one is short."""
    return old.role == new.role == "tool" and bool(old.results) and old.results == new.results and new.weight <= _LITTLE


def _says_so(request: ManagedRequest, place: int) -> bool:
    span = request.split.items[request.chain.preamble.count + place]
    text = FORMATS[request.wire].parse_message(request.split.content[span.start : span.end]).text
    return not text.strip() or _SAYS_SO.search(text) is not None


def weigh_epoch(epoch: Epoch) -> int:
    """Estimate the bytes of memory of an epoch."""
    originals = _ORIGINAL_WEIGHT * len(epoch.originals) + _NODE_WEIGHT * sum(
        len(each.digests) for each in epoch.originals
    )
    return _EPOCH_WEIGHT + sum(map(len, epoch.rendered)) + len(epoch.edits) + originals


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

    def binds_in(self, request: ManagedRequest) -> bool:
        """Return whether that holds for a request: models that bind their reasoning refuse a budget of thinking.

        So a model that takes one does not bind it, whatever its name, until its upstream says otherwise.
        """
        if not self.binds(request.view):
            return False
        return request.view in self._bound or not FORMATS[request.wire].needs_thinking(request.split)

    def bind(self, view: str) -> None:
        """Take signed reasoning of a view as bound from now on, since that may be why the upstream refused a call."""
        self._bound.add(view)

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
            self.bind(epoch.view)

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
        view = request.view
        if not (self._made or epoch is not None) or not self.binds_in(request):
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

    def strip_recalled(
        self, request: ManagedRequest, epoch: Epoch, recalled: Mapping[int, Recalled]
    ) -> Mapping[int, Recalled]:
        """Return what a model recalled without the reasoning that was made under another rendering than an epoch's."""
        if not recalled or not self.binds_in(request):
            return recalled
        rendering, strip = self.find_rendering(epoch), FORMATS[request.wire].strip_reasoning
        return {
            place: each if self._renderings.get(each.epoch, each.epoch) == rendering else _strip_rounds(each, strip)
            for place, each in recalled.items()
        }

    def _find_origin(self, view: str, node: bytes) -> str:
        """Return the rendering under which the history that ends with a node was sent, to this view if it was."""
        made = self._made.get((view, node))
        if made is not None:
            return made
        return next((self._made[other, node] for other in self._views if (other, node) in self._made), OWN)


def _strip_rounds(recalled: Recalled, strip: Callable[[bytes], bytes]) -> Recalled:
    rounds = [HiddenRound(tuple(map(strip, each.answer)), each.results) for each in recalled.rounds]
    return replace(recalled, rounds=tuple(rounds))


def make_own_body(request: ManagedRequest, changed: Mapping[int, bytes] = NO_CHANGES) -> bytes:
    """Return the client's body, with these messages changed, and with its notes."""
    changed = request.add_notes(0, changed)
    return change_items(request.split, request.chain.preamble.count, changed) if changed else request.split.content


def format_removed(messages: int) -> str:
    """Return what is told of reasoning that is not sent."""
    of = "1 message" if messages == 1 else f"{messages} messages"
    return f"removed the signed reasoning of {of}, which is bound to another beginning"
