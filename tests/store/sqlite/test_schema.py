import hashlib
import sqlite3
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, migrate, read_applied, read_salt

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
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT"])
def test_a_row_is_not_replaced_by_one_with_its_key(log: sqlite3.Connection, table: str, verb: str) -> None:
    insert(log, table, ROWS[table])
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


def test_small_state_is_mutable(log: sqlite3.Connection) -> None:
    log.execute("DELETE FROM meta")
    log.execute("INSERT INTO meta VALUES ('a', x'00')")
    log.execute("INSERT INTO lease VALUES ('a', 'me', 1)")
    for table, change in (("meta", "value = x'01'"), ("lease", "owner = 'you', until_ms = 2")):
        assert log.execute(f"UPDATE {table} SET {change}").rowcount == 1
        assert log.execute(f"DELETE FROM {table}").rowcount == 1


# Before the first release: change the digest along with the tables.
DIGESTS = {
    "m001_record": "86027a6c0c1582a1b75940e239170db87be46c9427583d6d7553d929aa2681e4",
    "m002_lineage": "e1e23682d9e900e1eb58cc44d51a627ead674852bc1732127e350902f8c1a429",
    "m003_managed": "6d7015f2b8a24ed8102f3e130b7b2a262cec8bf1af0479d69d96226242f9c455",
    "m004_summaries": "40295a94597efc3acec229788d07c18dd7655d1be0dd6f4685ee96811b8338c3",
    "m005_tallies": "40295a94597efc3acec229788d07c18dd7655d1be0dd6f4685ee96811b8338c3",  # no table of its own
    "m006_cache_usage": "a44b6fe6b851d4d220de570ad4297097512b127d46daa5bf4aa6172ad87afae0",
    "m007_recalled": "3b566f0ada1ac561e2f91f2f1c14b1781ebc942be4ba4c90d1545658754db03a",
    "m008_memory": "6bf8ed9452aea2212b579f7f917297f8e9bf80786c670e70bec5bb1c540510b2",
    "m009_held": "ad1f6fbaf2042760d5dca95bc11edc831df89eef49625af323bc5f2db1348688",
    "m010_bills": "6479cef9bd665ea2949bf61d2c1415c914a446c91bc6a8dde2d3e62c718e40d8",
    "m011_erased": "978045fa2f50aa72a802b65666c08f0341ce722fd3b86bc961a15fb627d86f08",
    "m012_overhead": "177057cc5a96a4c30236efa5eb1aaf0ede052494b49703054e460609b7a660b6",
    "m013_remains": "1a8ecf34362ceb9c3f1be4b96541b6a7da1631699b6cacbcdb7aaf845e5b1ab6",
    "m014_own_sizes": "dd9e2cb4847dc0754c19adc165fb6cf3523ffb9555e1b07a4dede87ac343940f",
}


@pytest.mark.parametrize("count", range(1, len(MIGRATIONS) + 1), ids=list(DIGESTS))
def test_a_released_migration_is_fixed_for_good(count: int) -> None:
    log = sqlite3.connect(":memory:", isolation_level=None)
    migrate(log, MIGRATIONS[:count])
    text = "\n".join(sql for (sql,) in log.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name"))
    log.close()
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[MIGRATIONS[count - 1].__name__]


def test_migrating_twice_changes_nothing(log: sqlite3.Connection) -> None:
    before = list(log.iterdump())
    migrate(log)
    assert list(log.iterdump()) == before
    assert read_applied(log) == [migration.__name__ for migration in MIGRATIONS]


def test_the_salt_is_made_with_the_log_and_is_its_own(log: sqlite3.Connection, tmp_path: Path) -> None:
    salt = read_salt(log)
    migrate(log)
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    migrate(other)
    assert len(salt) == 32
    assert read_salt(log) == salt != read_salt(other)
    other.close()


def test_a_log_from_the_future_is_refused_and_named(log: sqlite3.Connection) -> None:
    insert(log, "migration", ("m999_later", 0))
    with pytest.raises(StoreUnavailable, match=r"newer version.*m999_later.*upgrade"):
        migrate(log)
    assert not log.in_transaction


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    for number, statement in enumerate(("CREATE TABLE t(x)", "PRAGMA application_id = 7")):
        connection = sqlite3.connect(tmp_path / f"{number}.db", isolation_level=None)
        connection.execute(statement)
        with pytest.raises(StoreUnavailable, match="another program"):
            migrate(connection)
        connection.close()


def test_an_empty_file_has_had_no_migration(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    assert read_applied(connection) == []
    connection.close()


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def m999_broken(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE fine(x)")
        connection.execute("CREATE TABLE broken(")

    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*MIGRATIONS, m999_broken))
    assert list_tables(connection) == set()
    assert connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,)
    connection.close()
