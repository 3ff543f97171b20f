"""Histories of which the client has cleared outputs: what an epoch stands for, known again.

Rule (BEHAVIOUR B6): with some outputs cleared, it is the same beginning of the same conversation; with anything else
changed it is another. Memory only, of a few epochs.
"""

from collections import OrderedDict
from collections.abc import Sequence

from proxy.model.epoch import Epoch
from proxy.wire.identity import Item

_MOST_COVERED = 4


class Covers:
    """The messages that the epochs stand for under which something went out last."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[Item, ...]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def note(self, epoch: Epoch, items: Sequence[Item]) -> None:
        """Remember what an epoch stands for; `items` begin with that."""
        if epoch.id in self._items or not epoch.depth or epoch.why == "revert":
            return
        self._items[epoch.id] = tuple(items[: epoch.depth])
        if len(self._items) > _MOST_COVERED:
            self._items.popitem(last=False)

    def is_cleared(self, epoch: Epoch, now: Sequence[Item]) -> bool:
        """Whether a history begins with what an epoch stands for, but for outputs that the client has cleared since."""
        items = self._items.get(epoch.id)
        return items is not None and is_cleared(items, now)


def is_cleared(before: Sequence[Item], now: Sequence[Item]) -> bool:
    """Whether a history begins with these messages, some of whose tools' outputs have become shorter, no more."""
    if len(now) < len(before):
        return False
    return all(old.form == new.form or _is_cleared(old, new) for old, new in zip(before, now, strict=False))


def _is_cleared(old: Item, new: Item) -> bool:
    are_outputs = old.role == new.role == "tool" and bool(old.results)
    return are_outputs and old.results == new.results and new.weight < old.weight
