"""A bounded memory of what was seen last. Rule: nothing is forgotten between two calls of `age`."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of two generations: a look-up is one or two dictionary reads, where an exact LRU would reorder.

    Entries stay until `age`, so that a batch under way finds all it added itself, whatever the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, or None."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self._young[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Remember the value."""
        self._young[key] = value

    def age(self) -> None:
        """Make room: where the young generation has reached the limit, the old one is let go."""
        if len(self._young) >= self._limit:
            self._old = self._young
            self._young = {}

    def clear(self) -> None:
        """Forget everything."""
        self._young = {}
        self._old = {}
