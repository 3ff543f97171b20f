"""What SQLite leaves of deleted rows in the unused parts of pages."""

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from proxy.store.erasing.gaps import PageGaps
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.schema import bring_up_to_date

SESSIONS = 8
_MARK = re.compile(rb"<\d{8}:[0-9a-f]{16}>")


def make_content(number: int, size: int) -> bytes:
    """Bytes that begin with what no other content has."""
    mark = b"<%08d:%b>" % (number, sha256(b"%d" % number).hexdigest()[:16].encode())
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(StorePolicy(tmp_path / "log.db"))
    yield connection
    connection.close()


def fill(log: sqlite3.Connection, draw: random.Random, count: int, first: int) -> dict[int, bytes]:
    rows = {first + i: make_content(first + i, draw.randrange(30, draw.choice((900, 9000)))) for i in range(count)}
    log.execute("BEGIN")
    log.executemany("INSERT INTO payload VALUES (?, 0, ?)", rows.items())
    log.execute("COMMIT")
    return rows


def delete(log: sqlite3.Connection, payloads: list[int]) -> None:
    log.execute("BEGIN")
    log.execute("INSERT INTO permit VALUES ('p')")
    log.executemany("DELETE FROM payload WHERE id = ?", [(payload,) for payload in payloads])
    log.execute("DELETE FROM permit")
    log.execute("COMMIT")
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def find_left(path: Path, contents: dict[int, bytes]) -> list[int]:
    """The contents whose mark the file has."""
    marks = set(_MARK.findall(path.read_bytes()))
    return [number for number, content in contents.items() if content[:27] in marks]


def test_no_byte_of_a_deleted_row_is_left(log: sqlite3.Connection, tmp_path: Path) -> None:
    draw, path = random.Random(1), tmp_path / "log.db"
    kept: dict[int, bytes] = {}
    for _ in range(20):
        kept |= fill(log, draw, 400, len(kept) + 1)
    numbers = list(kept)
    draw.shuffle(numbers)
    gone: dict[int, bytes] = {}
    for session in range(SESSIONS):
        chosen = numbers[session :: SESSIONS + 1]
        delete(log, sorted(chosen))
        gone |= {number: kept.pop(number) for number in chosen}
        kept |= fill(log, draw, 400, max(*kept, *gone) + 1)
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert find_left(path, gone), "this SQLite moves no rows, and nothing needs to be overwritten"
    gaps = PageGaps(path)
    after: int | None = 0
    while after is not None:
        log.execute("PRAGMA shrink_memory")
        after = gaps.overwrite(log, after, 0.01)
    assert find_left(path, gone) == []
    kept |= fill(log, draw, 400, max(*kept, *gone) + 1)
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert find_left(path, gone) == []
    assert gaps.overwritten
    assert dict(log.execute("SELECT id, bytes FROM payload")) == kept
    assert log.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_pages_of_any_size(tmp_path: Path, page: int) -> None:
    path = tmp_path / "log.db"
    log = sqlite3.connect(path, isolation_level=None)
    log.execute(f"PRAGMA page_size = {page}")
    bring_up_to_date(log)
    log.execute("PRAGMA secure_delete = ON")
    rows = fill(log, random.Random(2), 600, 1)
    delete(log, [number for number in rows if number % 3])
    gaps = PageGaps(path)
    log.execute("PRAGMA shrink_memory")
    assert gaps.overwrite(log, 0, 60.0) is None
    assert find_left(path, {number: content for number, content in rows.items() if number % 3}) == []
    assert dict(log.execute("SELECT id, bytes FROM payload")) == {n: rows[n] for n in rows if not n % 3}
    assert log.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    log.close()
    gaps.close()


class Deleted:
    """A log with rows, and what SQLite left of others, deleted in several transactions."""

    def __init__(self, path: Path) -> None:
        draw, self.path = random.Random(3), path
        self.kept: dict[int, bytes] = {}
        self.gone: dict[int, bytes] = {}
        with closing(connect_writer(StorePolicy(path))) as log:
            for _ in range(10):
                self.kept |= fill(log, draw, 400, len(self.kept) + 1)
            numbers = list(self.kept)
            draw.shuffle(numbers)
            for n in range(8):
                chosen = numbers[n::9]
                delete(log, sorted(chosen))
                self.gone |= {number: self.kept.pop(number) for number in chosen}
                self.kept |= fill(log, draw, 100, max(*self.kept, *self.gone) + 1)

    def check(self, path: Path) -> None:
        """Each row is as it was, and SQLite finds no fault in the file, its list of free pages included."""
        with closing(connect_writer(StorePolicy(path))) as log:
            assert log.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert dict(log.execute("SELECT id, bytes FROM payload")) == self.kept

    def overwrite(self, path: Path) -> int | None:
        """Overwrite all gaps of a copy, as the first step after a start would."""
        with closing(connect_writer(StorePolicy(path))) as log:
            log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            log.execute("PRAGMA shrink_memory")
            gaps = PageGaps(path)
            after = gaps.overwrite(log, 0, 60.0)
        gaps.close()
        return after


@pytest.fixture(scope="module")
def deleted(tmp_path_factory: pytest.TempPathFactory) -> Deleted:
    return Deleted(tmp_path_factory.mktemp("deleted") / "log.db")


KILLED = """
import os, signal, sys
from pathlib import Path
from proxy.store.erasing.gaps import PageGaps
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer

path, left, write = Path(sys.argv[1]), int(sys.argv[2]), os.pwrite

def stop(file, content, place):
    global left
    if left == 0:
        write(file, content[: len(content) // 2], place)
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return write(file, content, place)

log = connect_writer(StorePolicy(path))
log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
log.execute("PRAGMA shrink_memory")
gaps = PageGaps(path)
os.pwrite = stop
gaps.overwrite(log, 0, 60.0)
print(gaps.overwritten)
"""


def run_and_kill(path: Path, at: int) -> subprocess.CompletedProcess[str]:
    """Overwrite the gaps in another process, which is killed within its write `at`."""
    command = [sys.executable, "-c", KILLED, str(path), str(at)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.no_cover
def test_a_kill_within_any_write_leaves_a_sound_file_which_the_next_start_finishes(
    deleted: Deleted, tmp_path: Path
) -> None:
    def copy(name: str) -> Path:
        (tmp_path / name).mkdir()
        return Path(shutil.copy(deleted.path, tmp_path / name / "log.db"))

    writes = int(run_and_kill(copy("whole"), -1).stdout)
    assert writes > 20 and find_left(deleted.path, deleted.gone)
    for at in [*range(4), *range(4, writes, writes // 6), writes - 1]:
        path = copy(f"at{at}")
        assert run_and_kill(path, at).returncode == -signal.SIGKILL
        deleted.check(path)
        assert deleted.overwrite(path) is None
        assert find_left(path, deleted.gone) == []
        deleted.check(path)


READING = """
import sqlite3, sys
from hashlib import sha256

log = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
print("reading", flush=True)
rounds, found = 0, set()
while rounds < 30:
    digest = sha256()
    for number, content in log.execute("SELECT id, bytes FROM payload ORDER BY id"):
        digest.update(b"%d" % number + content)
    found.add(digest.hexdigest())
    rounds += 1
print(*found)
"""


@pytest.mark.no_cover
def test_another_process_reads_the_same_meanwhile(deleted: Deleted, tmp_path: Path) -> None:
    path = Path(shutil.copy(deleted.path, tmp_path / "log.db"))
    log = connect_writer(StorePolicy(path))
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    reading = subprocess.Popen([sys.executable, "-c", READING, str(path)], stdout=subprocess.PIPE, text=True)
    assert reading.stdout is not None
    reading.stdout.readline()
    gaps = PageGaps(path)
    after: int | None = 0
    while after is not None:
        log.execute("PRAGMA shrink_memory")
        after = gaps.overwrite(log, after, 0.0)
    (found,) = reading.communicate(timeout=60)[0].splitlines()
    digest = sha256()
    for number, content in sorted(deleted.kept.items()):
        digest.update(b"%d" % number + content)
    assert found == digest.hexdigest() and gaps.overwritten > 20
    log.close()
    gaps.close()
    assert find_left(path, deleted.gone) == []


def test_nothing_is_overwritten_while_another_connection_writes_or_has_written(
    deleted: Deleted, tmp_path: Path
) -> None:
    path = Path(shutil.copy(deleted.path, tmp_path / "log.db"))
    log, other = connect_writer(StorePolicy(path, busy_ms=0)), connect_writer(StorePolicy(path, busy_ms=0))
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    gaps, before = PageGaps(path), path.read_bytes()
    other.execute("BEGIN IMMEDIATE")
    assert gaps.overwrite(log, 0, 60.0) == 0
    other.execute("INSERT INTO meta(key, value) VALUES ('a', x'00')")
    other.execute("COMMIT")
    assert gaps.overwrite(log, 0, 60.0) == 0
    assert path.read_bytes() == before and not log.in_transaction
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert gaps.overwrite(log, 0, 60.0) is None and gaps.overwritten
    other.close()
    log.close()
    gaps.close()


@pytest.mark.parametrize("damage", ["cycle", "kind", "number", "key", "begin"])
def test_a_damaged_tree_is_told_and_nothing_beside_gaps_is_written(
    deleted: Deleted, tmp_path: Path, damage: str
) -> None:
    path = Path(shutil.copy(deleted.path, tmp_path / "log.db"))
    with closing(sqlite3.connect(path)) as log:
        (root,) = log.execute("SELECT rootpage FROM sqlite_master WHERE name = 'payload'").fetchone()
    start = (root - 1) * 4096
    file = os.open(path, os.O_RDWR)
    cell = int.from_bytes(os.pread(file, 2, start + 12))
    leaf = start
    while os.pread(file, 1, leaf) == b"\x05":
        first = int.from_bytes(os.pread(file, 2, leaf + 12))
        leaf = (int.from_bytes(os.pread(file, 4, leaf + first)) - 1) * 4096
    place, content = {
        "cycle": (start + cell, root.to_bytes(4)),
        "kind": (leaf, b"\x02"),
        "number": (start + cell, b"\0\0\0\0"),
        "key": (start + 12, b"\x0f\xff"),
        "begin": (leaf + 5, b"\0\x01"),
    }[damage]
    os.pwrite(file, content, place)
    os.close(file)
    log = sqlite3.connect(path, isolation_level=None)
    gaps = PageGaps(path)
    with pytest.raises(sqlite3.DatabaseError, match="the tree of the table payload is damaged at page"):
        gaps.overwrite(log, 0, 60.0)
    assert not log.in_transaction
    log.close()
    gaps.close()
