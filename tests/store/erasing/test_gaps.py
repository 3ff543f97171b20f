"""What SQLite leaves of deleted rows in the unused parts of pages."""

import random
import re
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from proxy.store.erasing.gaps import PageGaps
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.schema import migrate

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
    migrate(log)
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


def test_an_empty_table_has_nothing_to_overwrite(log: sqlite3.Connection, tmp_path: Path) -> None:
    log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    gaps = PageGaps(tmp_path / "log.db")
    assert gaps.overwrite(log, 0, 0.0) is None
    assert gaps.overwritten == 0


def test_the_writer_overwrites_what_it_deletes(log: sqlite3.Connection) -> None:
    assert log.execute("PRAGMA secure_delete").fetchone() == (1,)
