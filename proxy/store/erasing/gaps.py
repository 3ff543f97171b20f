"""Overwrites what SQLite leaves of deleted content in the unused parts of pages.

`PRAGMA secure_delete` overwrites the cell of a deleted row. But when rows are deleted, SQLite moves others from page to
page, and the bytes of a moved row stay where they were, in the unused middle of its old page. If that row is deleted
later, they are still there. Measured: after ten thousand deletions 3 to 70 contents could be read from the file. No
setting prevents it, and VACUUM writes the whole file anew. So the unused middle of each leaf page of the table
`payload` is overwritten here. The format of the file is fixed for good (https://www.sqlite.org/fileformat2.html).

The bytes belong to no row, so that whoever reads the page meanwhile reads the same. The caller makes sure that nobody
writes, that the write-ahead log is empty, and that SQLite has no page in memory that it may write again.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LEAF, _INTERIOR = 0x0D, 0x05  # of a table's tree
_FILE_HEADER = 100  # bytes of the first page before its own header
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12
_LARGEST_PAGE = 65_536
_ROOT = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'payload'"
_WHOLE = 2**63 - 1


class _Leaf(NamedTuple):
    """A leaf page, and the largest row id that it may have."""

    number: int
    last: int


class PageGaps:
    """The unused parts of the leaf pages of `payload`, in the file of a log.

    Its descriptor stays open: closing one would release the locks that SQLite has on the file in this process.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.overwritten = 0  # pages

    def close(self) -> None:
        """Release the file. Every connection to it must be closed before."""
        os.close(self._file)

    def overwrite(self, connection: sqlite3.Connection, after: int, seconds: float) -> int | None:
        """Overwrite the gaps of pages with rows behind `after`, for about `seconds`.

        Return the last row id of the pages that are done, None if these are all.
        """
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute(_ROOT).fetchone()
        end, done = time.monotonic() + seconds, False
        for leaf in self._list_leaves(root, size, after, _WHOLE):
            done |= self._overwrite_page(leaf.number, size)
            if time.monotonic() >= end and leaf.last != _WHOLE:
                break
        else:
            leaf = _Leaf(0, _WHOLE)
        if done:
            os.fdatasync(self._file)
        return None if leaf.last == _WHOLE else leaf.last

    def _list_leaves(self, number: int, size: int, after: int, last: int) -> Iterator[_Leaf]:
        page = self._read(number, size)
        start = _FILE_HEADER if number == 1 else 0
        if page[start] == _LEAF:
            yield _Leaf(number, last)
        if page[start] != _INTERIOR:
            return
        count = int.from_bytes(page[start + 3 : start + 5])
        for i in range(count):
            place = start + _INTERIOR_HEADER + 2 * i
            cell = int.from_bytes(page[place : place + 2])
            key = _read_varint(page, cell + 4)
            if key > after:
                yield from self._list_leaves(int.from_bytes(page[cell : cell + 4]), size, after, key)
        yield from self._list_leaves(int.from_bytes(page[start + 8 : start + 12]), size, after, last)

    def _overwrite_page(self, number: int, size: int) -> bool:
        page = self._read(number, size)
        start = _FILE_HEADER if number == 1 else 0
        count = int.from_bytes(page[start + 3 : start + 5])
        begin = start + _LEAF_HEADER + 2 * count
        end = int.from_bytes(page[start + 5 : start + 7]) or _LARGEST_PAGE
        if page[start] != _LEAF or not begin <= end <= size or not page[begin:end].strip(b"\0"):
            return False
        os.pwrite(self._file, bytes(end - begin), (number - 1) * size + begin)
        self.overwritten += 1
        return True

    def _read(self, number: int, size: int) -> bytes:
        page = os.pread(self._file, size, (number - 1) * size)
        if len(page) != size:
            raise sqlite3.DatabaseError(f"page {number} is not in the file")
        return page


def _read_varint(page: bytes, at: int) -> int:
    """Read an integer of one to nine bytes, of which the first eight have seven bits each."""
    value = 0
    for byte in page[at : at + 8]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    return value << 8 | page[at + 8]
