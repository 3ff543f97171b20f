"""Records in a mapped file that outlives the process. Rule: what was added is found after a kill; no system calls.

Pages of a shared mapping belong to the system's page cache, so a copy of some bytes is safe from kill -9 as soon as it
is made. It is not safe from a power cut: `durability: full` has no journal.
The file has room for every byte before it is mapped, for a page that found none would end the process (SIGBUS).

Its bytes stay in the file until they are written over: whatever erases content from the log must clear them too.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proxy.model.record import Record
from proxy.store.sqlite.mark import JournalPosition
from proxy.store.sqlite.ring import Ring, is_front_behind, read_ring

# 4 MiB hold what comes in during a commit that takes its time: 100 ms at 40 MB/s. All of it may count as our memory.
JOURNAL_SIZE = 4 * 1024 * 1024
# One large record must not take the room of a thousand small ones, nor hold up the event loop: 0.1 ms to copy and sum.
_LARGEST = 256 * 1024
# The last byte is the version of the layout, records included.
_MAGIC = b"PALJRNL\x01"
_HEAD = struct.Struct("<8sQ48x")  # magic, nonce

Records = tuple[Record, ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Records)
# What the encoder makes of lone surrogates, and of integers beyond 64 bits.
_NOT_ENCODED = (UnicodeEncodeError, OverflowError, msgspec.MsgspecError)


def name_journal(log: Path) -> Path:
    """Where the journal of a log is; the same for every name of the log."""
    log = log.resolve()
    return log.with_name(log.name + ".journal")


class Journal:
    """The journal of a log that is being written. Raises OSError.

    It takes the place of one that was there; with a mark it goes on behind what that one holds and the log does not.
    """

    def __init__(self, path: Path, size: int = JOURNAL_SIZE, mark: JournalPosition | None = None) -> None:
        self._path = path
        self.nonce = mark.nonce if mark else int.from_bytes(os.urandom(8), "little") or 1
        self._map = _map_old(path) if mark else _map_new(path, size)
        self._half = len(self._map) // 2
        self._area = memoryview(self._map)[_HEAD.size :]
        self._ring = Ring(self._area, self.nonce)
        if mark:
            self._ring.resume(mark.place)
        else:
            _HEAD.pack_into(self._map, 0, _MAGIC, self.nonce)

    @property
    def end(self) -> int:
        """The place where the last entry ends."""
        return self._ring.end

    @property
    def is_filling(self) -> bool:
        """True where more than half is in use: entries had better not wait for company."""
        return self._ring.used > self._half

    def add(self, records: Records) -> int:
        """Keep the records of one append; the place to `free` later, or 0 where they must go another way."""
        try:
            payload = _encoder.encode(records)
        except _NOT_ENCODED:
            return 0
        return self._ring.add(payload) if len(payload) <= _LARGEST else 0

    def free(self, place: int) -> None:
        """Give up what is in the log by now, up to and including the entry with this place."""
        self._ring.free(place)

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


class Leftover:
    """The content of a journal's file, whoever left it. Nothing in it is believed before it has been checked."""

    def __init__(self, content: bytes) -> None:
        self._area = memoryview(content)[_HEAD.size :]
        magic, nonce = _HEAD.unpack_from(content) if len(content) >= 2 * _HEAD.size else (b"", 0)
        self.nonce: int = nonce if magic == _MAGIC else 0

    @property
    def is_blank(self) -> bool:
        """True where nothing was ever added."""
        return not any(self._area[: _HEAD.size])

    def has_more(self, place: int) -> bool:
        """True where an entry begins behind the place that does not follow on it: what lay between is gone."""
        return is_front_behind(self._area, self.nonce, place)

    def read(self, place: int) -> Iterator[tuple[Records | None, int]]:
        """What was added behind the place, in order; None in place of records that cannot be understood."""
        for payload, end in read_ring(self._area, self.nonce, place):
            try:
                yield _decoder.decode(payload), end
            except msgspec.MsgspecError:
                yield None, end
