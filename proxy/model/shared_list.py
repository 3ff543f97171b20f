"""Append-only lists that share their common elements.

Existing elements never change. The first extension at the end of a list is done in place; a second extension from the
same place makes a copy, so that neither sees what the other has added. A sequence that was not extended yet may be of
any type: most received conversations are short and never extended.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")


def extend_shared(known: Sequence[T], count: int, more: Iterable[T]) -> "SharedList[T]":
    """Return the first `count` elements of a sequence, then `more`. Extending a SharedList costs only what is new."""
    return known.extend(count, more) if isinstance(known, SharedList) else SharedList([*known[:count], *more])


def count_common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return how many leading elements two sequences share in memory, without comparing any; 0 if they do not share."""
    if one is other:
        return len(one)
    return one.count_common(other) if isinstance(one, SharedList) else 0


class SharedList(Sequence[T]):
    """The first `length` elements of a list that others may share."""

    __slots__ = ("_length", "_shared")

    def __init__(self, elements: list[T]) -> None:
        """Take over a list, which the caller must not change afterwards."""
        self._shared = elements
        self._length = len(elements)

    def extend(self, count: int, more: Iterable[T]) -> "SharedList[T]":
        """Return the first `count` (at most `len(self)`) elements, then `more`. The cost is that of what is new."""
        shared, fresh = self._shared, list(more)
        # An extension to more than twice the length makes a copy, which costs less than the extension itself.
        # Otherwise the holder of a short beginning would keep alive all that was ever appended to it.
        if count != len(shared) or len(fresh) > count:
            shared = shared[:count]
        shared.extend(fresh)
        return SharedList(shared)

    def count_common(self, other: Sequence[T]) -> int:
        """Return the number of leading elements shared with another sequence."""
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
