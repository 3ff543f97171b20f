import hashlib
import sqlite3
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.sqlite.schema import (
    APPLICATION_ID,
    VERSION,
    bring_up_to_date,
    list_objects,
    make_schema,
    read_salt,
    read_version,
)
from tests.store.sqlite.old_forms import FORMS, make_old_log

MUTABLE = {"bill", "tally", "meta", "permit", "lease"}
# one row of each table; what it refers to need not exist, for foreign keys are off on a foreign connection
ROWS = {
    "tenant": (1, b"t"),
    "blob": (1, 1, b"d", 1),
    "payload": (1, 0, b"x"),
    "raw": (b"l", b"p", b"", 1),
    "session": (1, "s", 1, "openai", "f", 0, ""),
    "plan": (1, 1, "v", b"t", "observe", 0, 0, "{}"),
    "exchange": (1, b"", 1, 1, 1, "e", 1, "managed", "w", "observe", "m", "POST", "/", b"", b"", 0, b"", 0),
    "round": (1, b"", None, 1, 0, "openai", None, None, None, None),
    "outcome": (1, b"", 1, 1, 0, b"", 1, b"d", 1, b"", 200, "complete", 0.0, 0.0, 0.0, "", None),
    "trailer": (1, b"", 1, 0, 0, 1, b"d", 1),
    "reading": (1, b"", 1, 0, 1, b"d", None, None, None, None, None, None, None, "stop"),
    "erasure": (1, 0, "session s", 1, b"d"),
    "migration": ("m999_later", 0),
    "node": (1, 1, b"h", 0, b"p", 0, 1, b"s"),
    "step": (1, 1, 1, None, 1, 0, 0, 0, b"t"),
    "mark": (1, 1, 1, b"k", "call:a", b"f"),
    "adoption": (1, 1, 2, 1, 0),
    "epoch": (1, b"", 1, "p", "m", None, b"n", 1, "hard", None, 0, 2, 1, 1, b"d", "[]", "[]", b"d", b"t"),
    "original": (1, "r", 1, "w", 0, 0, "[]"),
    "summary": (1, b"", 1, 1, 2, "s", "w", 0, 1, b"n", "leaf", 1, 0, 1, 2, 0, None, "m", "[]", "[]", b"d"),
    "summary_edge": (2, "parent", 0, 1),
    "decision": (1, b"", 1, 1, 0, "m", "plan", None, "soft", "", None, None, 0, 0.0, *[None] * 7),
    "pin": (1, b"", 1, b"n", 1, 0),
    "recalled": (1, b"", 1, 1, "m", 1, b"n", 1, 9, 1, b"d"),
    "memory": (1, b"", 1, "report", "", 0, 0, 2, b"n", 1, b"d"),
    "held": (1, b"", 1, 1, "new", "k", b"d", b"t", 1, b""),
    "erased": (1, b"", 1, "person", 1, 1, 1, 1, 1, b"d", b"m"),
    "source": (1, b"", 1, 1, b"n", "tick"),
}
# a second row, new in the first column (its rowid or link), that takes the place of the first by another key
RIVALS = {
    "tenant": (2, b"t"),
    "blob": (2, 1, b"d", 1),
    "session": (2, "s", 1, "openai", "f", 0, ""),
    "plan": (2, 1, "v", b"t", "observe", 0, 0, "{}"),
    "exchange": (2, b"", 1, 1, 1, "other", 1, "managed", "w", "observe", "m", "POST", "/", b"", b"", 0, b"", 0),
    "round": (2, b"", None, 1, 0, "openai", None, None, None, None),
    "outcome": (2, b"", 1, 1, 0, b"", 1, b"d", 1, b"", 200, "complete", 0.0, 0.0, 0.0, "", None),
    "trailer": (2, b"", 1, 0, 0, 1, b"d", 1),
    "reading": (2, b"", 1, 0, 1, b"d", None, None, None, None, None, None, None, "stop"),
    "epoch": (2, b"", 1, "p", "m", None, b"n", 1, "hard", None, 0, 2, 1, 1, b"d", "[]", "[]", b"d", b"t"),
    "original": (2, "r", 1, "w", 0, 0, "[]"),
    "summary": (2, b"", 1, 1, 2, "s", "w", 0, 1, b"n", "leaf", 1, 0, 1, 2, 0, None, "m", "[]", "[]", b"d"),
    "decision": (2, b"", 1, 1, 0, "m", "plan", None, "soft", "", None, None, 0, 0.0, *[None] * 7),
    "recalled": (2, b"", 1, 1, "m", 1, b"n", 1, 9, 1, b"d"),
    "held": (2, b"", 1, 1, "new", "k", b"d", b"t", 1, b""),
    "source": (2, b"", 1, 1, b"n", "tick"),
}


def insert(log: sqlite3.Connection, table: str, row: tuple[object, ...], verb: str = "INSERT") -> None:
    log.execute(f"{verb} INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def list_tables(log: sqlite3.Connection) -> set[str]:
    return {name for (name,) in log.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_every_table_is_either_append_only_or_known_to_be_mutable(log: sqlite3.Connection) -> None:
    assert list_tables(log) == set(ROWS) | MUTABLE


def test_every_table_is_strict(log: sqlite3.Connection) -> None:
    strict = {name for _, name, *_, is_strict in log.execute("PRAGMA table_list") if is_strict}
    assert strict == list_tables(log)


@pytest.mark.parametrize("table", ROWS)
def test_a_row_is_neither_changed_nor_deleted(log: sqlite3.Connection, table: str) -> None:
    insert(log, table, ROWS[table])
    columns = [name for _, name, *_ in log.execute(f"PRAGMA table_info({table})")]
    for column in columns:
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
            log.execute(f"UPDATE {table} SET {column} = {column}")
    with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
        log.execute(f"DELETE FROM {table}")


def test_what_remains_of_an_erasure_is_emptied_and_nothing_else_of_it_ever_changes(log: sqlite3.Connection) -> None:
    insert(log, "erased", ROWS["erased"])
    log.execute("UPDATE erased SET remains = x''")
    for column, value in zip(
        ["seq", "seal", "session", "cause", "at_ms", "through", "until", "payloads", "bytes", "digest", "remains"],
        [9, b"9", 9, "age", 9, 9, 9, 9, 9, b"9", b"9"],
        strict=True,
    ):
        with pytest.raises(sqlite3.IntegrityError, match="erased is append-only"):
            log.execute(f"UPDATE erased SET {column} = ?", (value,))
    assert log.execute("SELECT * FROM erased").fetchall() == [(*ROWS["erased"][:-1], b"")]


@pytest.mark.parametrize("table", ROWS)
def test_a_row_is_not_replaced_by_one_with_its_key(log: sqlite3.Connection, table: str) -> None:
    insert(log, table, ROWS[table])
    for verb in ("INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT"):
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
            insert(log, table, ROWS[table], verb)


@pytest.mark.parametrize("table", RIVALS)
def test_a_row_is_not_replaced_by_one_with_another_of_its_keys(log: sqlite3.Connection, table: str) -> None:
    insert(log, table, ROWS[table])
    with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
        insert(log, table, RIVALS[table], "INSERT OR REPLACE")
    assert log.execute(f"SELECT count(*) FROM {table} WHERE rowid = 1").fetchone() == (1,)


def test_an_exchange_is_not_replaced_by_one_with_its_text_id(log: sqlite3.Connection) -> None:
    insert(log, "exchange", ROWS["exchange"])
    rival = list(RIVALS["exchange"])
    rival[5], rival[6] = "e", 2
    with pytest.raises(sqlite3.IntegrityError, match="exchange is append-only"):
        insert(log, "exchange", tuple(rival), "INSERT OR REPLACE")


def test_a_payload_is_deleted_under_a_permit_only(log: sqlite3.Connection) -> None:
    insert(log, "payload", ROWS["payload"])
    log.execute("INSERT INTO permit VALUES ('erase')")
    log.execute("DELETE FROM payload")
    insert(log, "payload", ROWS["payload"])
    log.execute("DELETE FROM permit")
    with pytest.raises(sqlite3.IntegrityError, match="payload is append-only"):
        log.execute("DELETE FROM payload")


def test_a_permit_allows_no_change_of_a_payload(log: sqlite3.Connection) -> None:
    insert(log, "payload", ROWS["payload"])
    log.execute("INSERT INTO permit VALUES ('erase')")
    with pytest.raises(sqlite3.IntegrityError):
        log.execute("UPDATE payload SET bytes = x'00'")
    with pytest.raises(sqlite3.IntegrityError):
        insert(log, "payload", (1, 0, b"other"), "REPLACE")


def test_a_version_of_the_schema_is_fixed_for_good() -> None:
    # A change of the tables is a later version, and logs of this one become the next earlier form (`old_forms.sql`).
    text = "\n".join(statement for _, statement in sorted(list_objects(make_schema()).items()))
    found = (VERSION, hashlib.sha256(text.encode()).hexdigest())
    assert found == ("m014_own_sizes", "e1a496a01cf6439a41d2d48b0202dd968aad760bfd8bf3394af6c4c7b7607b41")


def test_what_is_up_to_date_is_left_alone(log: sqlite3.Connection) -> None:
    before = list(log.iterdump())
    bring_up_to_date(log)
    assert list(log.iterdump()) == before
    assert read_version(log) == VERSION


@pytest.mark.parametrize("form", FORMS)
def test_an_earlier_form_gets_what_a_new_log_has(form: str) -> None:
    log = make_old_log(":memory:", form)
    salt = b"s" * 32
    log.execute("INSERT INTO meta VALUES ('salt', ?)", (salt,))
    bring_up_to_date(log)
    assert list_objects(log) == list_objects(make_schema())
    assert (read_version(log), read_salt(log)) == (VERSION, salt)
    log.close()


def test_the_salt_is_made_with_the_log_and_is_its_own(log: sqlite3.Connection, tmp_path: Path) -> None:
    salt = read_salt(log)
    bring_up_to_date(log)
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    bring_up_to_date(other)
    assert len(salt) == 32
    assert read_salt(log) == salt != read_salt(other)
    other.close()


def test_a_log_from_the_future_is_refused_and_named(log: sqlite3.Connection) -> None:
    insert(log, "migration", ("m999_later", 0))
    with pytest.raises(StoreUnavailable, match=r"newer version.*m999_later.*upgrade"):
        bring_up_to_date(log)
    assert not log.in_transaction


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    for number, statement in enumerate(("CREATE TABLE t(x)", "PRAGMA application_id = 7")):
        connection = sqlite3.connect(tmp_path / f"{number}.db", isolation_level=None)
        connection.execute(statement)
        with pytest.raises(StoreUnavailable, match="another program"):
            bring_up_to_date(connection)
        connection.close()


def test_a_file_that_cannot_be_finished_is_left_as_it_was(tmp_path: Path) -> None:
    def refuse(action: int, name: str | None, *_: str | None) -> int:
        is_last = action == sqlite3.SQLITE_CREATE_TRIGGER and name == "erased_once"
        return sqlite3.SQLITE_DENY if is_last else sqlite3.SQLITE_OK

    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    connection.set_authorizer(refuse)
    with pytest.raises(sqlite3.DatabaseError):
        bring_up_to_date(connection)
    connection.set_authorizer(None)
    assert list_tables(connection) == set()
    assert connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,)
    connection.close()
