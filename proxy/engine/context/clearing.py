"""Histories of which the client has cleared outputs: what an epoch stands for, known again.

Rule (BEHAVIOUR B6): with some outputs cleared, it is the same beginning of the same conversation; with anything else
changed it is another, for new words would neither be sent nor have a reference. Memory only, of a few epochs.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence

from proxy.engine.context.subject import Subject
from proxy.model.epoch import Epoch
from proxy.wire.identity import Item
from proxy.wire.telling import read_told

_MOST_COVERED = 4
# What clients leave of an output is a line that says so, as in "[Old tool result content cleared]".
_LITTLE = 200
_SAYS_SO = re.compile(
    r"clear|prun|truncat|omit|remov|elid|mask|hidden|collaps|compact|trim|drop|delet|discard|evict|snip|\.\.\.|…",
    re.IGNORECASE,
)


class Covers:
    """The messages that the epochs stand for under which something went out last."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[Item, ...]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def note(self, epoch: Epoch, items: Sequence[Item]) -> None:
        """Remember what an epoch stands for; `items` begin with that."""
        if epoch.id in self._items or not epoch.depth or epoch.is_reversion:
            return
        self._items[epoch.id] = tuple(items[: epoch.depth])
        if len(self._items) > _MOST_COVERED:
            self._items.popitem(last=False)

    def is_cleared(self, epoch: Epoch, subject: Subject) -> bool:
        """Whether a request begins with what an epoch stands for, but for outputs that the client has cleared since."""
        items = self._items.get(epoch.id)
        return items is not None and is_cleared(items, subject)


def is_cleared(before: Sequence[Item], subject: Subject) -> bool:
    """Whether a request begins with these messages, of some of whose tools' outputs little is left, that says so."""
    now = subject.chain.items
    if len(now) < len(before):
        return False
    changed = [place for place, old in enumerate(before) if old.form != now[place].form]
    return all(_are_outputs(before[place], now[place]) for place in changed) and all(
        _says_so(subject, place) for place in changed
    )


def _are_outputs(old: Item, new: Item) -> bool:
    """Whether these are outputs for the same calls, of the newer of which little is left."""
    return old.role == new.role == "tool" and bool(old.results) and old.results == new.results and new.weight <= _LITTLE


def _says_so(subject: Subject, place: int) -> bool:
    span = subject.split.items[subject.chain.preamble.count + place]
    text = read_told(subject.wire, subject.split.content[span.start : span.end]).text
    return not text.strip() or _SAYS_SO.search(text) is not None
