import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store.sqlite.journal import (
    JournalPosition,
    advance_journal_position,
    read_journal_position,
    store_journal_position,
)
from proxy.store.sqlite.schema import migrate
from tests.store.sqlite.disk import FULL, Disk


@pytest.fixture
def log(tmp_path: Path, disk: Disk) -> Iterator[sqlite3.Connection]:
    connection = disk.connect(tmp_path / "log.db", isolation_level=None)
    migrate(connection)
    yield connection
    connection.close()


def test_a_new_log_has_no_journal(log: sqlite3.Connection) -> None:
    assert read_journal_position(log) == JournalPosition(0, 0)


def test_a_mark_is_what_was_set_last(log: sqlite3.Connection) -> None:
    store_journal_position(log, JournalPosition(2**64 - 1, 7))
    store_journal_position(log, JournalPosition(5))
    assert read_journal_position(log) == JournalPosition(5, 0)


def test_a_mark_moves_with_the_transaction(log: sqlite3.Connection) -> None:
    store_journal_position(log, JournalPosition(5))
    for end, place in (("ROLLBACK", 0), ("COMMIT", 2**40)):
        log.execute("BEGIN")
        advance_journal_position(log, 2**40)
        log.execute(end)
        assert read_journal_position(log) == JournalPosition(5, place)


@pytest.mark.parametrize("word", ["BEGIN", "INSERT INTO meta", "COMMIT"])
def test_a_mark_that_cannot_be_set_is_as_before(log: sqlite3.Connection, disk: Disk, word: str) -> None:
    store_journal_position(log, JournalPosition(5, 6))
    disk.fail(word, FULL)
    with pytest.raises(sqlite3.OperationalError):
        store_journal_position(log, JournalPosition(7))
    assert not log.in_transaction
    assert read_journal_position(log) == JournalPosition(5, 6)
