"""Lists that grow at their end and share the elements they have in common.

Elements that are there stay as they are. Whoever extends a list at its end does so in place; a second one who extends
it from the same place gets a list of its own, so that neither sees what the other has added. What was not extended yet
may be any sequence: most of what is received is short, and is never extended.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")


def extend_shared(known: Sequence[T], count: int, more: Iterable[T]) -> "SharedList[T]":
    """Return the first `count` elements of a sequence, and `more`; from the second time on it costs what is new."""
    return known.extend(count, more) if isinstance(known, SharedList) else SharedList([*known[:count], *more])


def count_common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return how many first elements of two sequences are surely the same: those that they share; else none."""
    if one is other:
        return len(one)
    return one.count_common(other) if isinstance(one, SharedList) else 0


class SharedList(Sequence[T]):
    """The first `length` elements of a list that others may share."""

    __slots__ = ("_length", "_shared")

    def __init__(self, elements: list[T]) -> None:
        """Take a list over: whoever gave it must not change it from now on."""
        self._shared = elements
        self._length = len(elements)

    def extend(self, count: int, more: Iterable[T]) -> "SharedList[T]":
        """Return the first `count` elements (of those there are) and `more`; costs no more than what is new."""
        shared, fresh = self._shared, list(more)
        # What more than doubles is copied, which costs less than the rest: else whoever keeps a short beginning, and
        # reckons with that, would keep all that was ever put behind it.
        if count != len(shared) or len(fresh) > count:
            shared = shared[:count]
        shared.extend(fresh)
        return SharedList(shared)

    def count_common(self, other: Sequence[T]) -> int:
        """Return what the function of this name does."""
        is_shared = isinstance(other, SharedList) and other._shared is self._shared
        return min(self._length, len(other)) if is_shared else 0

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if not isinstance(at, slice):
            length = self._length
            if 0 <= at < length:
                return self._shared[at]
            if -length <= at < 0:
                return self._shared[at + length]
            raise IndexError(at)
        start, stop, step = at.indices(self._length)
        return self._shared[start:stop] if step == 1 else self._shared[: self._length][at]

    def __iter__(self) -> Iterator[T]:
        return islice(self._shared, self._length)

    def __reversed__(self) -> Iterator[T]:
        return islice(reversed(self._shared), len(self._shared) - self._length, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedList({self[:]!r})"
