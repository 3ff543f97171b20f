import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import pack
from proxy.store.sqlite.connection import (
    FileIdentity,
    LogReplaced,
    WriterLock,
    advise,
    connect_reader,
    connect_writer,
    describe_problem,
    is_store_failing,
    prepare_file,
)
from proxy.store.sqlite.journal import journal_path
from proxy.store.sqlite.maintenance import copy_log
from proxy.store.sqlite.recovery import recover_log
from tests.store.samples import make_opening, make_round
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.crashing import read_ids
from tests.store.sqlite.disk import LIMIT, Disk
from tests.store.sqlite.spoiling import garble_name, lose_index_entry


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


def test_a_backup_beside_no_or_an_empty_write_ahead_log_is_prepared(policy: StorePolicy, tmp_path: Path) -> None:
    restore(policy, tmp_path / "copy.db")
    policy.path.with_name("log.db-wal").write_bytes(b"")
    prepare_file(policy.path)
    policy.path.with_name("log.db-wal").unlink()
    prepare_file(policy.path)


def test_a_cap_that_leaves_no_room_for_a_log_is_named(policy: StorePolicy) -> None:
    with pytest.raises(StoreUnavailable, match=r"store is full: .*log\.db has reached store\.max_bytes"):
        connect_writer(replace(policy, max_bytes=8192))


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


ROOT = Path(__file__).parents[3]


def test_who_holds_it_for_a_moment_is_waited_out(tmp_path: Path) -> None:
    held, pauses = WriterLock(tmp_path / "log.db"), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.release()

    WriterLock(tmp_path / "log.db", 3000, pause).release()
    assert len(pauses) == 3


def test_who_keeps_it_is_waited_for_so_long_and_then_named(tmp_path: Path) -> None:
    held, pauses = WriterLock(tmp_path / "log.db"), list[float]()
    with pytest.raises(StoreUnavailable, match=rf"\(id {os.getpid()}\); stop it"):
        WriterLock(tmp_path / "log.db", 3000, pauses.append)
    assert sum(pauses) == pytest.approx(3.0)
    held.release()


def test_releasing_twice_takes_the_lock_from_nobody(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / "log.db")
    lock.release()
    other = WriterLock(tmp_path / "log.db")
    lock.release()
    with pytest.raises(StoreUnavailable):
        WriterLock(tmp_path / "log.db")
    other.release()


def test_the_lock_of_a_process_that_ended_is_free(tmp_path: Path) -> None:
    take = (
        "import pathlib, sys; from proxy.store.sqlite.connection import WriterLock as W; W(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", take, str(tmp_path / "log.db")], check=True, cwd=ROOT)
    WriterLock(tmp_path / "log.db").release()


def test_a_longer_id_left_in_the_file_does_not_show_through(tmp_path: Path) -> None:
    (tmp_path / "log.db.lock").write_text("99999999999999\n")
    lock = WriterLock(tmp_path / "log.db")
    assert (tmp_path / "log.db.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Ear(logging.Handler):
    """Hears what a thread logs."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the event loop."""
        self._loop.call_soon_threadsafe(self.heard.set)


@pytest.fixture
def now() -> Now:
    return Now()


def test_where_nobody_can_tell_the_commits_do(tmp_path: Path, now: Now) -> None:
    path = tmp_path / ("x" * 300)  # too long a name for any file
    whereabouts = FileIdentity(path, 1000, now)
    now.seconds = 2.0
    whereabouts.check()


def test_a_file_that_is_gone_is_noticed_within_a_second_and_so_is_its_return(tmp_path: Path, now: Now) -> None:
    path = tmp_path / "log.db"
    path.touch()
    whereabouts = FileIdentity(path, 1000, now)
    path.rename(tmp_path / "moved")
    now.seconds = 0.9
    whereabouts.check()  # nobody asks before each record
    now.seconds = 1.0
    for _ in range(2):
        with pytest.raises(LogReplaced):
            whereabouts.check()
    (tmp_path / "moved").rename(path)
    whereabouts.check()


async def test_records_wait_while_the_log_is_gone_and_are_written_once_it_is_back(
    open_archive: Opener, policy: StorePolicy, disk: Disk
) -> None:
    ear, log = Ear(), logging.getLogger("palimpsest.store")
    log.addHandler(ear)
    archive = open_archive(look_ms=0)
    assert await archive.append(make_opening("e1"))
    policy.path.rename(policy.path.with_name("moved"))
    begun = disk.count("BEGIN")
    waiting = archive.append(make_opening("e2"))
    async with asyncio.timeout(LIMIT):
        await ear.heard.wait()
    log.removeHandler(ear)
    assert "was deleted or replaced while the server runs; put it back, or restart the server" in archive.health.problem
    assert not waiting.done() and disk.count("BEGIN") == begun
    policy.path.with_name("moved").rename(policy.path)
    assert await waiting
    assert archive.health.problem == ""


async def test_records_that_wait_for_a_log_that_is_gone_for_good_are_counted_as_lost(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = open_archive(look_ms=0, close_ms=1)
    policy.path.unlink()
    waiting = archive.append(make_opening("e2"), make_round("e2"))
    await archive.close()
    assert await waiting is False
    assert archive.health.dropped == 2


@pytest.mark.parametrize("is_journal_gone", [False, True])
async def test_what_is_in_the_journal_alone_is_kept_or_told_to_be_lost(
    open_archive: Opener, policy: StorePolicy, is_journal_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    archive = open_archive(durability="normal", look_ms=0, close_ms=1)
    policy.path.rename(policy.path.with_name("moved"))
    assert archive.append(make_opening("e2"), make_round("e2")).result()
    if is_journal_gone:
        journal_path(policy.path).unlink()
    await archive.close()
    policy.path.with_name("moved").rename(policy.path)
    recover_log(policy)
    assert read_ids(policy.path) == ([] if is_journal_gone else ["e2"])
    assert ("2 records are lost" in caplog.text) == is_journal_gone


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
