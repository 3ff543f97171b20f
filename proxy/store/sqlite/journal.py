"""Records in a mapped file that outlives the process, beside SQLite's write-ahead log.

Pages of a shared mapping belong to the system's page cache, so a copy of some bytes is safe from kill -9 as soon as it
is made, without a system call. It is not safe from a power cut: `durability: full` has no journal. The next start, or
the next command that reads the log, writes what is only here into the log (`recovery`). `engine/durability` says what
is durable when.

The log names its journal by a nonce, and notes its position in the transaction that writes the entries before it: a
file that lies beside the wrong log, or is of another day, never fits, and no entry is written twice.

The file has room for every byte before it is mapped, for a page that found none would end the process (SIGBUS). Its
bytes stay in the file until they are written over: whatever erases content from the log must clear them too.
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
    """The journal that belongs to a log (0: none does), and the place in it up to which all entries are in the log."""

    nonce: int = 0
    place: int = 0


def read_journal_position(connection: sqlite3.Connection) -> JournalPosition:
    """Return the log's journal, and how far it is in the log."""
    query = "SELECT key, value FROM meta WHERE key IN (?, ?)"
    found = {key: int.from_bytes(value, "little") for key, value in connection.execute(query, (_NONCE, _PLACE))}
    return JournalPosition(found.get(_NONCE, 0), found.get(_PLACE, 0))


def store_journal_position(connection: sqlite3.Connection, position: JournalPosition) -> None:
    """Tie the log to a journal, in a transaction of its own."""
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
    """Note, in the transaction under way, that all entries up to the place are in the log."""
    connection.execute("UPDATE meta SET value = ? WHERE key = ?", (place.to_bytes(_NUMBER_SIZE, "little"), _PLACE))


# nonce of the journal, end of the entry before, size of the payload, CRC-32 of the payload that begins with that end's
# lower 32 bits
_HEADER = struct.Struct("<QQII")
_HEADER_SIZE = _HEADER.size
_ALIGNMENT = 8
_OVERHEAD = _HEADER_SIZE + _ALIGNMENT - 1


class RingBuffer:
    """Entries in an area of memory that may be left torn at any moment; what is read is what was added, in order.

    Entries are added at the `end`, and freed from the front up to `freed`. The size of the area is a multiple of 8
    bytes. Places are counted from the beginning and never start over: the byte of a place is its remainder. An entry
    says where the one before it ended, so that entries are one chain; what an earlier turn or an earlier journal left
    behind says something else, and half an entry does not have its checksum. Entries are not split: one that would not
    fit before the end of the area begins at its front. So does one that finds the buffer empty: a log that keeps up
    uses the same few pages over and over, and the rest of the area is never touched.
    """

    def __init__(self, area: memoryview, nonce: int) -> None:
        self._area = area
        self._size = len(area)
        self._nonce = nonce
        self.freed = 0
        self.end = 0

    def add(self, payload: bytes) -> int:
        """Write an entry; return the place where it ends, or 0 where there is no room for it."""
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
        # The header goes last. A kill in between leaves the payload behind a header of other days.
        front = at + _HEADER_SIZE
        area[front : front + length] = payload
        _HEADER.pack_into(area, at, self._nonce, before, length, crc32(payload, before))
        self.freed = freed
        self.end = end = start + size
        return end

    def resume(self, place: int) -> None:
        """Go on behind the entries that are there already and follow on the place, instead of beginning anew."""
        self.freed = self.end = place
        for payload, end in read_entries(self._area, self._nonce, place):
            if self.end == place:  # the first need not begin where the one before it ended
                self.freed = end - _measure(len(payload))
            self.end = end

    def free(self, place: int) -> None:
        """Free all entries that end at the place or before it."""
        self.freed = max(self.freed, place)


def read_entries(area: memoryview, nonce: int, place: int) -> Iterator[tuple[bytes, int]]:
    """Yield the entries that follow on the place where one ended (0: the beginning), each with its own end."""
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
    """Return True where the entry at the front was written after the place had been passed."""
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


# 4 MiB hold what comes in during a commit that takes its time: 100 ms at 40 MB/s. All of it may count as our memory.
JOURNAL_SIZE = 4 * 1024 * 1024
# One large record must not take the room of a thousand small ones, nor hold up the event loop: 0.1 ms to copy and sum.
_LARGEST_ENTRY = 256 * 1024
# The last byte is the version of the layout, records included.
_MAGIC = b"PALJRNL\x01"
_HEAD = struct.Struct("<8sQ48x")  # magic, nonce

Records = tuple[Record, ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Records)
# What the encoder makes of lone surrogates, and of integers beyond 64 bits.
_NOT_ENCODED = (UnicodeEncodeError, OverflowError, msgspec.MsgspecError)


def journal_path(log: Path) -> Path:
    """Return where the journal of a log is; the same for every name of the log."""
    log = log.resolve()
    return log.with_name(log.name + ".journal")


class Journal:
    """The journal of a log that is being written. Raises OSError.

    Replaces the file of one that was there; with a position it goes on behind what that one holds and the log does not.
    """

    # What it is for (`benchmarks/durability`, one to eight agents): an exchange of 2 KB spends 15 to 110 us in its
    # appends, against 0.5 to 6 ms where each waits for its commit, and 0.4 to 1.7 ms where only the outcome waits; of
    # 100 KB 0.1 to 0.3 ms, against 14 to 79 and 0.6 to 66. The others take 1.1 to 2.7 times the CPU with one to four
    # agents whose upstream responds within 20 ms; with 250 ms each exchange has commits of its own in any case.

    def __init__(self, path: Path, size: int = JOURNAL_SIZE, position: JournalPosition | None = None) -> None:
        self._path = path
        self.nonce = position.nonce if position else int.from_bytes(os.urandom(8), "little") or 1
        self._map = _map_old(path) if position else _map_new(path, size)
        self._half = len(self._map) // 2
        self._area = memoryview(self._map)[_HEAD.size :]
        self._ring = RingBuffer(self._area, self.nonce)
        # Frees what is in the log by now, up to and including the entry with this place.
        self.free: Callable[[int], None] = self._ring.free
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
        """Return True where more than half is in use: then entries should not wait for others to be committed with."""
        return self._ring.end - self._ring.freed > self._half

    def add(self, records: Records) -> int:
        """Write the records of one append; return the place to `free` later, or 0 where it cannot take them."""
        try:
            payload = _encoder.encode(records)
        except _NOT_ENCODED:
            return 0
        return self._ring.add(payload) if len(payload) <= _LARGEST_ENTRY else 0

    def close(self) -> None:
        """Let go of the file, which stays. Nothing may be added afterwards."""
        self._area.release()
        self._map.close()

    def remove(self) -> None:
        """Delete the file, all of which is in the log."""
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
    """What is in a journal's file, whoever left it. Nothing in it is believed before it has been checked."""

    def __init__(self, content: bytes) -> None:
        self._area = memoryview(content)[_HEAD.size :]
        magic, nonce = _HEAD.unpack_from(content) if len(content) >= 2 * _HEAD.size else (b"", 0)
        self.nonce: int = nonce if magic == _MAGIC else 0

    @property
    def is_blank(self) -> bool:
        """Return True where nothing was ever added."""
        return not any(self._area[: _HEAD.size])

    def has_more(self, place: int) -> bool:
        """Return True where an entry is behind the place that does not follow on it: what was between is gone."""
        return has_entry_behind(self._area, self.nonce, place)

    def read(self, place: int) -> Iterator[tuple[Records | None, int]]:
        """Yield what was added behind the place, in order; None in place of records that cannot be decoded."""
        for payload, end in read_entries(self._area, self.nonce, place):
            try:
                yield _decoder.decode(payload), end
            except msgspec.MsgspecError:
                yield None, end
