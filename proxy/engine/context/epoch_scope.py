"""The scope of an epoch: the requests that begin with its messages and have enough messages after them.

BEHAVIOUR B3, B6, B13, B14.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain

from proxy.context.verbatim import (
    MIN_GROUPS,
    RECENT_GROUPS,
    RECENT_TURNS,
    find_unanswered,
    find_verbatim,
    iterate_groups,
)
from proxy.engine.context.epoch_planner import read_plan
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Kept, Replaced, Written
from proxy.wire import FORMATS
from proxy.wire.identity import Item

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

_Key = tuple[bytes, str, str, bytes]


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
    have been sent before, under an earlier epoch or none, and stays so (B5).
    """
    items = request.chain.items
    if not epoch.depth or (reach is not None and len(items) >= reach):
        return True
    if reach is None:
        return keeps_recent_turns(epoch, items, MIN_GROUPS, 0)
    is_retry = request.step is not None and request.step.relation == "retry"
    return not is_retry and keeps_recent_turns(epoch, items)


def keeps_recent_turns(
    epoch: Epoch, items: Sequence[Item], groups: int = RECENT_GROUPS, turns: int = RECENT_TURNS
) -> bool:
    """Return whether the messages that must stay verbatim (`context/verbatim`) are sent unchanged under an epoch.

    Pins are not considered: a pin takes effect in the next epoch.
    """
    kept = {edit.place for edit in read_plan(epoch).edits if isinstance(edit, Kept)}
    verbatim = find_verbatim(iterate_groups(items), find_unanswered(items), groups, turns)
    needed = chain(range(verbatim.tail, len(items)), *verbatim.list_earlier())
    return all(place >= epoch.depth or place in kept for place in needed)


def count_shortened(epoch: Epoch, items: Sequence[Item]) -> int:
    """Count the new messages that an epoch shortens because they do not fit: those that no model has answered (B9)."""
    unanswered = find_unanswered(items)
    edits = (edit for edit in read_plan(epoch).edits if isinstance(edit, Replaced))
    return sum(edit.place >= unanswered and items[edit.place].role != "assistant" for edit in edits)


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


class AnonymousEpochCache:
    """The epochs that were opened last in unnamed sessions. The oldest are dropped above `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._weight = 0
        self._known: OrderedDict[_Key, tuple[Epoch, int]] = OrderedDict()

    def note(self, request: ManagedRequest, epoch: Epoch) -> None:
        """Add an epoch that was opened for a request, unless it has a summary, which belongs to its session."""
        edits = read_plan(epoch).edits
        if request.session.family or any(isinstance(edit, Written) and edit.report for edit in edits):
            return
        key = _key_of(request, epoch.through)
        known = self._known.pop(key, None)
        self._weight += weigh_epoch(epoch) - (weigh_epoch(known[0]) if known is not None else 0)
        self._known[key] = epoch, len(request.nodes)
        while self._weight > self._most:
            _, dropped = self._known.popitem(last=False)
            self._weight -= weigh_epoch(dropped[0])

    def find(self, request: ManagedRequest) -> Epoch | None:
        """Return the epoch of another unnamed session that applies to a request and replaces most of its history."""
        if request.session.family or not self._known:
            return None
        known = (self._known.get(_key_of(request, node)) for node in reversed(request.nodes))
        return next((each[0] for each in known if each is not None and epoch_applies(*each, request)), None)

    def clear(self) -> None:
        """Forget everything, because the log has lost a record."""
        self._known.clear()
        self._weight = 0


def _key_of(request: ManagedRequest, node: bytes) -> _Key:
    return request.session.tenant, request.session.upstream, request.model, node


def weigh_epoch(epoch: Epoch) -> int:
    """Estimate the bytes of memory of an epoch."""
    originals = _ORIGINAL_WEIGHT * len(epoch.originals) + _NODE_WEIGHT * sum(
        len(each.digests) for each in epoch.originals
    )
    return _EPOCH_WEIGHT + sum(map(len, epoch.rendered)) + len(epoch.edits) + originals
