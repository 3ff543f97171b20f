"""Overwrites what SQLite leaves of deleted content in the unused parts of pages.

`PRAGMA secure_delete` overwrites the cell of a deleted row, and each page that becomes free. But when rows are deleted,
SQLite moves others from page to page, and the bytes of a moved row stay where they were, in the unused middle of its
old page. If that row is deleted later, they are still there. Measured: after ten thousand deletions 3 to 70 contents
could be read from the file. No setting prevents it, `incremental_vacuum` moves whole pages with what they have, and
VACUUM writes the whole file anew while nothing can be recorded. So the unused middle of each leaf page of the table
`payload` is overwritten here. The format of the file is fixed for good (https://www.sqlite.org/fileformat2.html).

The bytes belong to no row, so that whoever reads the page meanwhile reads the same, and a kill between two writes, or
within one, leaves a sound file. That a power cut alters no byte beside those that are written, SQLite assumes as well.
Nobody may write a page that it has in memory from before: this process has one connection that writes, whose caller
empties its memory, and another process that writes is excluded by the lock for writing.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LEAF, _INTERIOR = 0x0D, 0x05  # of a table's tree
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12
_LARGEST_PAGE = 65_536
_ROOT = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'payload'"  # never the first page
_WHOLE = 2**63 - 1
_DAMAGED = "the tree of the table payload is damaged at page %d; `palimpsest verify` examines the log"


class _Leaf(NamedTuple):
    """A leaf page, and the largest row id that it may have."""

    number: int
    last: int


class PageGaps:
    """The unused parts of the leaf pages of `payload`, in the file of a log.

    Its descriptor stays open: closing one would release the locks that SQLite has on the file in this process.
    """

    def __init__(self, path: Path) -> None:
        self._wal = Path(f"{path.resolve()}-wal")
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.overwritten = 0  # pages

    def close(self) -> None:
        """Release the file. Every connection to it must be closed before."""
        os.close(self._file)

    def overwrite(self, connection: sqlite3.Connection, after: int, seconds: float) -> int | None:
        """Overwrite the gaps of pages with rows behind `after`, for about `seconds`.

        The connection is the one that writes, and has no page in memory. Return the last row id of the pages that are
        done, None if these are all, and `after` if pages may be written meanwhile: another process has the lock for
        writing, or has written since the write-ahead log was emptied. Raises sqlite3.DatabaseError if the file is
        damaged; what is done by then is right.
        """
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY"):
                return after
            raise
        try:
            return after if self._has_wal() else self._overwrite(connection, after, seconds)
        finally:
            connection.execute("ROLLBACK")

    def _overwrite(self, connection: sqlite3.Connection, after: int, seconds: float) -> int | None:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute(_ROOT).fetchone()
        end, done = time.monotonic() + seconds, False
        for leaf in self._list_leaves(root, size, after, _WHOLE, set()):
            done |= self._overwrite_page(leaf.number, size)
            if time.monotonic() >= end and leaf.last != _WHOLE:
                break
        else:
            leaf = _Leaf(0, _WHOLE)
        if done:
            os.fdatasync(self._file)
        return None if leaf.last == _WHOLE else leaf.last

    def _has_wal(self) -> bool:
        """Return whether the write-ahead log has anything: pages of it would come over what is written here."""
        with suppress(FileNotFoundError):
            return self._wal.stat().st_size > 0
        return False

    def _list_leaves(self, number: int, size: int, after: int, last: int, seen: set[int]) -> Iterator[_Leaf]:
        page = self._read(number, size)
        if page[0] == _LEAF:
            yield _Leaf(number, last)
            return
        if page[0] != _INTERIOR or number in seen:
            raise sqlite3.DatabaseError(_DAMAGED % number)
        seen.add(number)
        count = int.from_bytes(page[3:5])
        for i in range(count):
            place = _INTERIOR_HEADER + 2 * i
            cell = int.from_bytes(page[place : place + 2])
            key = _read_varint(page, cell + 4, number)
            if key > after:
                yield from self._list_leaves(int.from_bytes(page[cell : cell + 4]), size, after, key, seen)
        yield from self._list_leaves(int.from_bytes(page[8:12]), size, after, last, seen)

    def _overwrite_page(self, number: int, size: int) -> bool:
        page = self._read(number, size)
        begin = _LEAF_HEADER + 2 * int.from_bytes(page[3:5])
        end = int.from_bytes(page[5:7]) or _LARGEST_PAGE
        if not begin <= end <= size:
            raise sqlite3.DatabaseError(_DAMAGED % number)
        if not page[begin:end].strip(b"\0"):
            return False
        os.pwrite(self._file, bytes(end - begin), (number - 1) * size + begin)
        self.overwritten += 1
        return True

    def _read(self, number: int, size: int) -> bytes:
        page = os.pread(self._file, size, (number - 1) * size) if number > 1 else b""
        if len(page) != size:
            raise sqlite3.DatabaseError(_DAMAGED % number)
        return page


def _read_varint(page: bytes, at: int, number: int) -> int:
    """Read an integer of one to nine bytes, of which the first eight have seven bits each."""
    value = 0
    for i, byte in enumerate(page[at : at + 9]):
        if i == 8:
            return value << 8 | byte
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    raise sqlite3.DatabaseError(_DAMAGED % number)
