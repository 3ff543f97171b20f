"""Memory of the newest. Rule: whatever has no natural end is bounded, and what was kept longest ago goes first."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_newest(known: OrderedDict[K, V], key: K, value: V, most: int) -> V:
    """Keep a value as the newest, of `most` altogether; the value."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
    return value
