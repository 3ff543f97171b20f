"""The journal: records in a memory-mapped file that survives the process, in addition to SQLite's write-ahead log.

Pages of a shared mapping belong to the system's page cache, so bytes copied there survive kill -9 at once, without a
system call. They do not survive a power cut: with `durability: full` there is no journal. The next start, or the next
command that reads the log, writes the entries that only the journal has into the log (`recovery`). `engine/durability`
says what is durable when.

The log names its journal by a nonce. Each transaction stores the journal position up to which it has written entries.
So a file beside the wrong log, or an older one, is never used, and no entry is written twice.

The file's space is allocated before it is mapped, since a page without disk space would end the process (SIGBUS). Old
entries stay in the file until they are overwritten, or until `wipe` clears them, which erasing content does.
"""

import mmap
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from proxy.model.log import Record

_NONCE, _PLACE = "journal", "journal_place"
_NUMBER_SIZE = 8


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The nonce of a log's journal (0: it has none), and the place in it up to which all entries are in the log."""

    nonce: int = 0
    place: int = 0


def read_journal_position(connection: sqlite3.Connection) -> JournalPosition:
    """Return the log's journal and its position."""
    query = "SELECT key, value FROM meta WHERE key IN (?, ?)"
    found = {key: int.from_bytes(value, "little") for key, value in connection.execute(query, (_NONCE, _PLACE))}
    return JournalPosition(found.get(_NONCE, 0), found.get(_PLACE, 0))


def store_journal_position(connection: sqlite3.Connection, position: JournalPosition) -> None:
    """Store the log's journal and its position, in a separate transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for key, value in ((_NONCE, position.nonce), (_PLACE, position.place)):
            row = (key, value.to_bytes(_NUMBER_SIZE, "little"))
            connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", row
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def advance_journal_position(connection: sqlite3.Connection, place: int) -> None:
    """Store in the current transaction that all entries up to `place` are in the log."""
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (place.to_bytes(_NUMBER_SIZE, "little"), _PLACE))


# Nonce of the journal, end of the previous entry, size of the payload, CRC-32 of the payload with the lower 32 bits of
# that end as its initial value.
_HEADER = struct.Struct("<QQII")
_HEADER_SIZE = _HEADER.size
_ALIGNMENT = 8
_OVERHEAD = _HEADER_SIZE + _ALIGNMENT - 1


class RingBuffer:
    """A ring buffer in memory that a kill may interrupt at any moment; complete entries are read back in order.

    Entries are added at `end`, and freed from the front up to `freed`. The size of the area is a multiple of 8 bytes. A
    place is a count of bytes that never wraps; its offset in the area is the remainder. Each entry has the place where
    the previous one ended, so that entries form a chain. Remains of an earlier turn or journal do not continue it, and
    a half-written entry fails its checksum. Entries are not split: one that would not fit before the end of the area
    begins at its front. So does one that finds the buffer empty, so that a log that keeps up uses the same few pages.
    """

    def __init__(self, area: memoryview, nonce: int) -> None:
        self._area = area
        self._size = len(area)
        self._nonce = nonce
        self._top = 0  # the bytes of the area that may have been written
        self.freed = 0
        self.end = 0

    def add(self, payload: bytes) -> int:
        """Write an entry. Return the place where it ends, or 0 if there is no room for it."""
        area, length, whole = self._area, len(payload), self._size
        start = before = self.end
        freed = self.freed
        size = _measure(length)
        at = before % whole
        if at + size > whole or (at and before == freed):
            start, at = _next_front(before, whole), 0
        if before == freed:
            freed = start
        if start + size - freed > whole:
            return 0
        # The header is written last: after a kill in between, the old header does not match the payload.
        front = at + _HEADER_SIZE
        area[front : front + length] = payload
        _HEADER.pack_into(area, at, self._nonce, before, length, crc32(payload, before))
        self._top = max(self._top, at + size)
        self.freed = freed
        self.end = end = start + size
        return end

    def resume(self, place: int) -> None:
        """Continue after the existing entries that follow `place`, instead of starting empty."""
        self.freed = self.end = place
        self._top = self._size
        for payload, end in read_entries(self._area, self._nonce, place):
            if self.end == place:  # the first need not begin where the one before it ended
                self.freed = end - _measure(len(payload))
            self.end = end

    def free(self, place: int) -> None:
        """Free all entries that end at the place or before it."""
        self.freed = max(self.freed, place)

    def wipe(self) -> None:
        """Overwrite all freed entries with zeros."""
        begin, end, size = self.freed % self._size, self.end % self._size, self._size
        if self.freed == self.end:
            spans = [(0, size)]
        elif begin < end:
            spans = [(0, begin), (end, size)]
        else:
            spans = [(end, begin)]
        for start, stop in spans:
            last = min(stop, self._top)
            if start < last:
                self._area[start:last] = bytes(last - start)


def read_entries(area: memoryview, nonce: int, place: int) -> Iterator[tuple[bytes, int]]:
    """Yield the entries after `place`, where an entry ended (0: the beginning), each with its own end."""
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


def has_entry_behind(area: memoryview, nonce: int, place: int) -> bool:
    """Return True if the entry at the front of the area was written after `place`."""
    its_nonce, its_before, _, _ = _HEADER.unpack_from(area, 0)
    return bool(its_nonce == nonce and its_before > place)


def _read_entry(area: memoryview, nonce: int, before: int, at: int) -> bytes | None:
    if at + _HEADER_SIZE > len(area):
        return None
    its_nonce, its_before, length, its_sum = _HEADER.unpack_from(area, at)
    if (its_nonce, its_before) != (nonce, before) or at + _measure(length) > len(area):
        return None
    payload = bytes(area[at + _HEADER_SIZE : at + _HEADER_SIZE + length])
    return payload if crc32(payload, before) == its_sum else None


def _measure(length: int) -> int:
    return (_OVERHEAD + length) & -_ALIGNMENT


def _next_front(place: int, size: int) -> int:
    return -(-place // size) * size


# 4 MiB hold what arrives during a slow commit: 100 ms at 40 MB/s. All of it may count as resident memory.
JOURNAL_SIZE = 4 * 1024 * 1024
# One large record must neither take the room of a thousand small ones nor block the event loop: 0.1 ms to copy and sum.
_LARGEST_ENTRY = 256 * 1024
# The last byte is the version of the layout, records included.
_MAGIC = b"PALJRNL\x01"
_HEAD = struct.Struct("<8sQ48x")  # magic, nonce

Records = tuple[Record, ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Records)
# The encoder's errors for lone surrogates and for integers beyond 64 bits.
_NOT_ENCODED = (UnicodeEncodeError, OverflowError, msgspec.MsgspecError)


def journal_path(log: Path) -> Path:
    """Return the path of a log's journal, which is the same for every name of the log."""
    log = log.resolve()
    return log.with_name(log.name + ".journal")


class Journal:
    """The journal of a log that is being written. Raises OSError.

    It replaces an existing file. With a position, it continues that file after the entries which the log does not have.
    """

    # The benefit (`benchmarks/durability`, one to eight agents): an exchange of 2 KB spends 15 to 110 us in appends,
    # 0.5 to 6 ms if each waits for its commit, and 0.4 to 1.7 ms if only the outcome waits. One of 100 KB spends 0.1 to
    # 0.3 ms, 14 to 79 ms and 0.6 to 66 ms. The alternatives take 1.1 to 2.7 times the CPU with one to four agents whose
    # upstream responds within 20 ms; if it takes 250 ms, each exchange has its own commits in any case.

    def __init__(self, path: Path, size: int = JOURNAL_SIZE, position: JournalPosition | None = None) -> None:
        self._path = path
        self.nonce = position.nonce if position else int.from_bytes(os.urandom(8), "little") or 1
        self._map = _map_old(path) if position else _map_new(path, size)
        self._half = len(self._map) // 2
        self._area = memoryview(self._map)[_HEAD.size :]
        self._ring = RingBuffer(self._area, self.nonce)
        # Frees the entries up to and including the one with this place, which are in the log.
        self.free: Callable[[int], None] = self._ring.free
        self.wipe: Callable[[], None] = self._ring.wipe
        if position:
            self._ring.resume(position.place)
        else:
            _HEAD.pack_into(self._map, 0, _MAGIC, self.nonce)

    @property
    def end(self) -> int:
        """Return the place where the last entry ends."""
        return self._ring.end

    @property
    def is_filling(self) -> bool:
        """Return True if more than half is in use, so that entries should not wait for a common commit."""
        return self._ring.end - self._ring.freed > self._half

    def add(self, records: Records) -> int:
        """Write the records of one append. Return the place to `free` later, or 0 if there is no room for them."""
        try:
            payload = _encoder.encode(records)
        except _NOT_ENCODED:
            return 0
        return self._ring.add(payload) if len(payload) <= _LARGEST_ENTRY else 0

    def close(self) -> None:
        """Unmap the file and keep it. Nothing may be added afterwards."""
        self._area.release()
        self._map.close()

    def remove(self) -> None:
        """Delete the file. All its entries must be in the log."""
        self.close()
        self._path.unlink(missing_ok=True)


def _map_new(path: Path, size: int) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)


def _map_old(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        os.posix_fallocate(file, 0, size)  # a copy of a journal may have holes
        return mmap.mmap(file, size)
    finally:
        os.close(file)


class JournalContent:
    """The content of a journal's file. It is not trusted: everything is checked before use."""

    def __init__(self, content: bytes) -> None:
        self._area = memoryview(content)[_HEAD.size :]
        magic, nonce = _HEAD.unpack_from(content) if len(content) >= 2 * _HEAD.size else (b"", 0)
        self.nonce: int = nonce if magic == _MAGIC else 0

    @property
    def is_blank(self) -> bool:
        """Return True if nothing was ever added."""
        return not any(self._area[: _HEAD.size])

    def has_more(self, place: int) -> bool:
        """Return True if there is an entry after `place` that does not follow it, so that entries are missing."""
        return has_entry_behind(self._area, self.nonce, place)

    def read(self, place: int) -> Iterator[tuple[Records | None, int]]:
        """Yield the entries after `place` in order, with None in place of records that cannot be decoded."""
        for payload, end in read_entries(self._area, self.nonce, place):
            try:
                yield _decoder.decode(payload), end
            except msgspec.MsgspecError:
                yield None, end
