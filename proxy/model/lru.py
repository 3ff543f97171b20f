"""A cache bounded by the total weight of its entries, which evicts the least recently used ones."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A mapping whose entries' weights add up to at most `limit`. Not thread-safe.

    `weigh` returns the weight of an entry when it is put; without it every entry weighs 1, so that `limit` is a count.
    Put an entry again when its weight has changed. `on_evict` is called with each evicted entry, but not for entries
    that were replaced, popped or cleared. An entry heavier than the limit is evicted at once. Values are never None.
    """

    __slots__ = ("_entries", "_on_evict", "_weigh", "_weights", "limit", "weight")

    def __init__(
        self,
        limit: int,
        *,
        weigh: Callable[[K, V], int] | None = None,
        on_evict: Callable[[K, V], object] | None = None,
    ) -> None:
        self.limit = limit
        self.weight = 0
        self._weigh = weigh
        self._on_evict = on_evict
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weights: dict[K, int] = {}  # stays empty where every entry weighs 1

    def get(self, key: K) -> V | None:
        """Return an entry and make it the most recently used one. Return None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Return an entry without making it the most recently used one."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry, make it the most recently used one, and evict others down to the limit."""
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        if self._weigh is None:
            self.weight = len(entries)
        else:
            weight = self._weigh(key, value)
            self.weight += weight - self._weights.get(key, 0)
            self._weights[key] = weight
        while self.weight > self.limit:
            evicted = self.pop_oldest()
            if self._on_evict is not None:
                self._on_evict(*evicted)

    def pop(self, key: K) -> V | None:
        """Remove and return an entry. Return None if there is none."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.weight -= self._weights.pop(key, 1)
        return value

    def pop_oldest(self) -> tuple[K, V]:
        """Remove and return the key and value of the least recently used entry. Raises KeyError if there is none."""
        key, value = self._entries.popitem(last=False)
        self.weight -= self._weights.pop(key, 1)
        return key, value

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._weights.clear()
        self.weight = 0

    def values(self) -> Iterator[V]:
        """Iterate over the values, the least recently used first."""
        return iter(self._entries.values())

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the least recently used first."""
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
