import sqlite3
from collections.abc import Iterator

import pytest

from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.maintenance import Checkpoint


@pytest.fixture
def connection(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("INSERT INTO meta VALUES (hex(randomblob(8)), zeroblob(?))", (size,))


def wal_size(policy: StorePolicy) -> int:
    return policy.path.with_name("log.db-wal").stat().st_size


def test_with_nothing_written_there_is_nothing_to_do(connection: sqlite3.Connection) -> None:
    checkpoint = Checkpoint(connection)
    assert checkpoint.due_s is None
    assert not checkpoint.is_overdue


def test_a_little_waits_for_a_rest_and_much_for_a_pause(connection: sqlite3.Connection) -> None:
    checkpoint = Checkpoint(connection)
    checkpoint.count(rows=10, content=1000)
    rest = checkpoint.due_s
    checkpoint.count(rows=300, content=0)
    pause = checkpoint.due_s
    assert rest is not None and pause is not None and pause < rest


def test_too_much_is_overdue_whether_rows_or_content(connection: sqlite3.Connection) -> None:
    for rows, content in ((2048, 0), (0, 2048 * 4096)):
        checkpoint = Checkpoint(connection)
        checkpoint.count(rows - 1 if rows else 0, content - 4096 if content else 0)
        assert not checkpoint.is_overdue
        checkpoint.count(1 if rows else 0, 4096 if content else 0)
        assert checkpoint.is_overdue


def test_a_pause_copies_and_the_rest_after_it_empties_the_file(
    connection: sqlite3.Connection, policy: StorePolicy
) -> None:
    checkpoint = Checkpoint(connection)
    write(connection, 2_000_000)
    checkpoint.count(rows=1, content=2_000_000)
    checkpoint.run()
    assert policy.path.stat().st_size > 2_000_000
    assert wal_size(policy) > 2_000_000  # the file stays, to be written from its beginning
    assert checkpoint.due_s is not None
    checkpoint.run()
    assert wal_size(policy) == 0
    assert checkpoint.due_s is None


def test_a_reader_in_the_way_is_not_waited_for(connection: sqlite3.Connection, policy: StorePolicy) -> None:
    write(connection, 1000)
    reader = sqlite3.connect(policy.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM meta").fetchone()
    write(connection, 1000)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    Checkpoint(connection).finish()
    connection.set_trace_callback(None)
    assert statements.index("PRAGMA busy_timeout = 0") < statements.index("PRAGMA wal_checkpoint(TRUNCATE)")
    assert wal_size(policy) > 0
    reader.close()
    Checkpoint(connection).finish()
    assert wal_size(policy) == 0


def test_the_writers_patience_is_as_before(connection: sqlite3.Connection, policy: StorePolicy) -> None:
    Checkpoint(connection).finish()
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (policy.busy_ms,)
