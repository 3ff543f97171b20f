import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import pack
from proxy.store.sqlite.connection import connect_reader, connect_writer, prepare_file, refuse_foreign_wal
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.recovery import recover_log
from tests.store.sqlite.spoiling import garble_name, lose_index_entry


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    prepare_file(tmp_path / "log.db")
    os.umask(before)
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"SQLite format 3\0 and so on")
    prepare_file(tmp_path / "log.db")
    assert (tmp_path / "log.db").read_bytes() == b"SQLite format 3\0 and so on"


def test_a_file_that_begins_otherwise_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"SQL")
    with pytest.raises(StoreUnavailable, match=r"move it away, or choose another data directory"):
        prepare_file(tmp_path / "log.db")


@pytest.mark.parametrize("name", ["log.db.journal", "log.db-wal"])
def test_a_log_that_lost_its_content_is_no_new_one(policy: StorePolicy, name: str) -> None:
    policy.path.write_bytes(b"")
    other = policy.path.with_name(name)
    other.write_bytes(b"what a server left")
    for open_it in (prepare_file, lambda path: recover_log(replace(policy, path=path))):
        with pytest.raises(StoreUnavailable, match=r"log\.db is damaged: it is empty, .* put a backup in place"):
            open_it(policy.path)
    assert (policy.path.read_bytes(), other.read_bytes()) == (b"", b"what a server left")


def test_an_empty_file_alone_may_become_a_log(policy: StorePolicy) -> None:
    policy.path.write_bytes(b"")
    prepare_file(policy.path)
    connect_writer(policy).close()
    assert policy.path.stat().st_size


def restore(policy: StorePolicy, copy: Path) -> None:
    """Put a backup in place beside the write-ahead log that a killed server left."""
    connection = connect_writer(policy)
    copy_log(policy.path, copy)
    connection.execute("INSERT INTO meta VALUES ('later', x'00')")
    wal = policy.path.with_name("log.db-wal")
    content = wal.read_bytes()
    connection.close()
    wal.write_bytes(content)
    policy.path.write_bytes(copy.read_bytes())


def test_a_backup_beside_the_write_ahead_log_of_another_file_is_refused(policy: StorePolicy, tmp_path: Path) -> None:
    restore(policy, tmp_path / "copy.db")
    with pytest.raises(StoreUnavailable, match=r"log\.db is a backup, .* move log\.db-wal, .*log\.db\.journal aside"):
        prepare_file(policy.path)
    assert policy.path.read_bytes() == (tmp_path / "copy.db").read_bytes()


def test_a_log_beside_its_own_write_ahead_log_is_prepared(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    assert policy.path.with_name("log.db-wal").stat().st_size
    refuse_foreign_wal(policy.path)
    connection.close()
    prepare_file(policy.path)


def test_a_backup_beside_no_or_an_empty_write_ahead_log_is_prepared(policy: StorePolicy, tmp_path: Path) -> None:
    restore(policy, tmp_path / "copy.db")
    policy.path.with_name("log.db-wal").write_bytes(b"")
    prepare_file(policy.path)
    policy.path.with_name("log.db-wal").unlink()
    prepare_file(policy.path)


def test_the_cap_is_told_to_sqlite_in_pages(policy: StorePolicy) -> None:
    connection = connect_writer(replace(policy, max_bytes=1_000_000))
    assert connection.execute("PRAGMA max_page_count").fetchone() == (244,)
    connection.close()


def test_a_cap_that_leaves_no_room_for_a_log_is_named(policy: StorePolicy) -> None:
    with pytest.raises(StoreUnavailable, match=r"store is full: .*log\.db has reached store\.max_bytes"):
        connect_writer(replace(policy, max_bytes=8192))


def test_without_a_cap_there_is_none(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    assert connection.execute("PRAGMA max_page_count").fetchone()[0] > 10**9
    connection.close()


def test_the_writer_may_be_used_by_its_thread_and_checks_foreign_keys(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (policy.busy_ms,)
    connection.close()


def test_bytes_and_none_are_written_without_asking_around_what_they_might_become(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    assert sqlite3.adapt(b"\x00\xff", sqlite3.PrepareProtocol) == b"\x00\xff"  # raises where nobody has said
    assert sqlite3.adapt(None, sqlite3.PrepareProtocol) is None
    row = connection.execute("SELECT ?1, typeof(?1), ?2, typeof(?2)", (b"\x00\xff", None)).fetchone()
    assert row == (b"\x00\xff", "blob", None, "null")
    connection.close()


def test_a_file_sqlite_cannot_open_is_refused(policy: StorePolicy, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot be used \(unable to open database file: .* owner and mode"):
        connect_writer(replace(policy, path=tmp_path))


def test_an_old_sqlite_is_refused(policy: StorePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreUnavailable, match=r"needs 3\.37"):
        connect_writer(policy)


def test_a_file_system_without_write_ahead_log_is_refused(policy: StorePolicy) -> None:
    prepare_file(policy.path)
    with pytest.raises(StoreUnavailable, match="journal mode is memory"):
        connect_writer(policy, lambda path, **options: sqlite3.connect(":memory:", **options))


def test_damage_that_reading_would_not_meet_is_met_at_the_start(policy: StorePolicy) -> None:
    connect_writer(policy).close()
    lose_index_entry(policy.path)
    damaged = r"log\.db: the file is damaged \(row 1 missing from index.*move log\.db, log\.db-wal, log\.db-shm and"
    with pytest.raises(StoreUnavailable, match=damaged):
        connect_writer(policy)


def test_a_schema_with_a_name_that_is_no_text_is_a_damaged_file(policy: StorePolicy) -> None:
    connect_writer(policy).close()
    garble_name(policy.path)
    with pytest.raises(StoreUnavailable, match=r"log\.db cannot be used \(a name in it is no text: it is damaged"):
        connect_writer(policy)
    with pytest.raises(StoreUnavailable, match=r"log\.db cannot be read: a name in it is no text: it is damaged"):
        connect_reader(policy.path)


def test_a_large_log_is_not_read_through_at_the_start(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    connection.execute("INSERT INTO meta VALUES ('much', zeroblob(70000000))")
    connection.close()
    lose_index_entry(policy.path)  # would be met by reading it all
    connect_writer(policy).close()


def test_a_reader_cannot_write(policy: StorePolicy) -> None:
    connect_writer(policy).close()
    connection = connect_reader(policy.path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("INSERT INTO meta VALUES ('a', x'00')")
    connection.execute("PRAGMA query_only = OFF")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("INSERT INTO meta VALUES ('a', x'00')")
    connection.close()


def test_a_reader_unpacks_in_sql_and_an_erased_payload_is_null(policy: StorePolicy) -> None:
    connect_writer(policy).close()
    connection = connect_reader(policy.path)
    content = b"palimpsest " * 200
    assert connection.execute("SELECT unpack(?, ?)", pack(content)).fetchone() == (content,)
    assert connection.execute("SELECT unpack(NULL, NULL)").fetchone() == (None,)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT unpack(1, x'ff')").fetchone()
    connection.close()


def test_a_path_with_signs_that_mean_something_in_an_address_is_opened(policy: StorePolicy, tmp_path: Path) -> None:
    odd = replace(policy, path=tmp_path / "100% log?mode=rw#1.db")
    connect_writer(odd).close()
    connect_reader(odd.path).close()


def test_a_log_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no log at .*data directory"):
        connect_reader(tmp_path / "log.db")
    assert list(tmp_path.iterdir()) == []


def test_a_log_of_another_user_is_refused_in_words(policy: StorePolicy, tmp_path: Path) -> None:
    connect_writer(policy).close()
    tmp_path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreUnavailable, match=r"cannot be opened: .*[Pp]ermission denied"):
            connect_reader(policy.path)
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("content", [b"", b"no database" * 500])
def test_what_is_no_log_is_refused_to_readers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.db").write_bytes(content)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        connect_reader(tmp_path / "log.db")


def test_a_reader_refuses_a_log_from_the_future(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    connection.execute("INSERT INTO migration VALUES ('m999_later', 0)")
    connection.close()
    with pytest.raises(StoreUnavailable, match="newer version"):
        connect_reader(policy.path)
    with pytest.raises(StoreUnavailable, match=r"log\.db: .*newer version"):
        connect_writer(policy)
