"""Entries in a stretch of bytes that may be left torn at any moment. Rule: what is read is what was added, in order.

Places are counted from the ring's beginning and never start over: the byte of a place is its remainder. An entry says
where the one before it ended, so that entries are one chain; what an earlier turn or an earlier ring left behind says
something else, and half an entry does not have its checksum. Entries are not split: one that would not fit before the
end of the stretch begins at its front. So does one that finds the ring empty: a log that keeps up uses the same few
pages over and over, and the rest of the stretch is never touched.
"""

import struct
from collections.abc import Iterator
from zlib import crc32

# nonce of the ring, end of the entry before, size of the payload, CRC-32 of that end and the payload
_HEADER = struct.Struct("<QQII")
_HEADER_SIZE = _HEADER.size
_ALIGNMENT = 8
_OVERHEAD = _HEADER_SIZE + _ALIGNMENT - 1
_LOW_BITS = 0xFFFF_FFFF


class Ring:
    """Adds entries at the `end`, frees them from the front. `area` is kept; its size is a multiple of 8 bytes."""

    def __init__(self, area: memoryview, nonce: int) -> None:
        self._area = area
        self._size = len(area)
        self._nonce = nonce
        self._freed = 0
        self.end = 0

    @property
    def used(self) -> int:
        """Bytes between the oldest entry that is not freed and the end."""
        return self.end - self._freed

    def add(self, payload: bytes) -> int:
        """Lay down an entry; the place where it ends, or 0 where there is no room for it."""
        area, length, whole = self._area, len(payload), self._size
        start = before = self.end
        freed = self._freed
        size = _measure(length)
        at = before % whole
        if at + size > whole or (at and before == freed):
            start, at = _next_front(before, whole), 0
        if before == freed:
            freed = start
        if start + size - freed > whole:
            return 0
        # The header goes last. A kill in between leaves the payload behind a header of other days.
        front = at + _HEADER_SIZE
        area[front : front + length] = payload
        _HEADER.pack_into(area, at, self._nonce, before, length, _sum(before, payload))
        self._freed = freed
        self.end = end = start + size
        return end

    def resume(self, place: int) -> None:
        """Go on behind the entries that are there already and follow on the place; instead of beginning anew."""
        self._freed = self.end = place
        for payload, end in read_ring(self._area, self._nonce, place):
            if self.end == place:  # the first need not begin where the one before it ended
                self._freed = end - _measure(len(payload))
            self.end = end

    def free(self, place: int) -> None:
        """Give up all entries that end at the place or before it."""
        self._freed = max(self._freed, place)


def read_ring(area: memoryview, nonce: int, place: int) -> Iterator[tuple[bytes, int]]:
    """Entries that follow on the place where one ended (0: the beginning), each with the place where it ends."""
    size = len(area)
    while True:
        for start in (place, _next_front(place, size)):
            payload = _read_entry(area, nonce, place, start % size)
            if payload is not None:
                place = start + _measure(len(payload))
                yield payload, place
                break
        else:
            return


def is_front_behind(area: memoryview, nonce: int, place: int) -> bool:
    """True where the entry at the front was laid down after the place had been passed."""
    its_nonce, its_before, _, _ = _HEADER.unpack_from(area, 0)
    return bool(its_nonce == nonce and its_before > place)


def _read_entry(area: memoryview, nonce: int, before: int, at: int) -> bytes | None:
    if at + _HEADER_SIZE > len(area):
        return None
    its_nonce, its_before, length, its_sum = _HEADER.unpack_from(area, at)
    if (its_nonce, its_before) != (nonce, before) or at + _measure(length) > len(area):
        return None
    payload = bytes(area[at + _HEADER_SIZE : at + _HEADER_SIZE + length])
    return payload if _sum(before, payload) == its_sum else None


def _measure(length: int) -> int:
    return (_OVERHEAD + length) & -_ALIGNMENT


def _next_front(place: int, size: int) -> int:
    return -(-place // size) * size


def _sum(before: int, payload: bytes) -> int:
    return crc32(payload, before & _LOW_BITS)
