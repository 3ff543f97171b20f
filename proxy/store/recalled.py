"""Which of the sessions that were found are recalled. Rule: the same answer for every store, however large they are."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from proxy.engine.ports import MOST_RECALLED, MOST_RECALLED_ROWS

# The one that the request is taken to belong to, and the newest in which its deepest answer stands.
_OF_ANY_SIZE = 2

T = TypeVar("T")


def choose_recalled(found: Iterable[T], weigh: Callable[[T], int]) -> list[T]:
    """Those that are recalled of the sessions found, which are in the order in which they count (see `Ancestry`)."""
    each_once = list(dict.fromkeys(found))[:MOST_RECALLED]
    chosen, left = each_once[:_OF_ANY_SIZE], MOST_RECALLED_ROWS
    for session in each_once[_OF_ANY_SIZE:]:
        weight = weigh(session)
        if weight <= left:
            chosen.append(session)
            left -= weight
    return chosen
