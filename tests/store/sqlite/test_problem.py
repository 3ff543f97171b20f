import sqlite3
from pathlib import Path

import pytest

from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import advise, describe_problem, is_store_failing


def raise_full(path: Path, pages: int) -> sqlite3.Error:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        connection.execute("CREATE TABLE t(x)")
        connection.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    except sqlite3.Error as error:
        return error
    finally:
        connection.close()
    raise AssertionError("it fitted")


@pytest.mark.parametrize(
    "error",
    [sqlite3.OperationalError("disk I/O error"), sqlite3.DatabaseError("malformed"), sqlite3.InternalError("x")],
    ids=repr,
)
def test_a_failure_of_the_file_may_pass(error: Exception) -> None:
    assert is_store_failing(error)


@pytest.mark.parametrize(
    "error",
    [sqlite3.IntegrityError("UNIQUE"), sqlite3.DataError("too big"), sqlite3.ProgrammingError("type"), ValueError("x")],
    ids=repr,
)
def test_a_failure_of_the_record_does_not(error: Exception) -> None:
    assert not is_store_failing(error)


def test_a_full_store_names_its_setting_if_that_is_the_cause(tmp_path: Path) -> None:
    error = raise_full(tmp_path / "log.db", 10)
    capped = describe_problem(error, StorePolicy(tmp_path / "log.db", max_bytes=40_960))
    assert "store is full" in capped and "store.max_bytes" in capped
    assert "erase" not in capped and capped.endswith("."), "what there is no command for is not advised"
    uncapped = describe_problem(error, StorePolicy(tmp_path / "log.db"))
    assert "the disk is full; free some space" in uncapped


def test_a_lock_of_another_is_named(tmp_path: Path) -> None:
    one, other = (sqlite3.connect(tmp_path / "log.db", isolation_level=None, timeout=0) for _ in range(2))
    one.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("BEGIN IMMEDIATE")
    one.close()
    other.close()
    text = describe_problem(caught.value, StorePolicy(tmp_path / "log.db"))
    assert "another process holds a lock" in text
    assert "cannot be written" in text and str(tmp_path / "log.db") in text


@pytest.mark.parametrize(
    "error", [sqlite3.DatabaseError("x"), UnicodeDecodeError("utf-8", b"\xed", 0, 1, "x")], ids=repr
)
def test_restoring_a_backup_is_told_whole(error: Exception) -> None:
    if isinstance(error, sqlite3.Error):
        error.sqlite_errorname = "SQLITE_CORRUPT"
    told = advise(error)
    for name in ("stop the server", "log.db, log.db-wal, log.db-shm and log.db.journal aside", "`palimpsest verify`"):
        assert name in told


def test_an_error_without_a_name_is_quoted() -> None:
    text = describe_problem(sqlite3.OperationalError("strange"), StorePolicy(Path("log.db")))
    assert "log.db cannot be written (strange)" in text
    assert advise(sqlite3.OperationalError("strange")) == "strange"
