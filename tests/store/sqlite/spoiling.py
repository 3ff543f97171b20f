"""Damage done on purpose, over a plain connection, without the triggers, while the log is closed."""

import sqlite3
from pathlib import Path


def spoil(path: Path, *statements: str) -> None:
    """Run statements on a log as somebody who wants to alter it, and puts the triggers back."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert connection.execute(statement).rowcount != 0, f"{statement} touched nothing"
    for _, trigger in triggers:
        connection.execute(trigger)
    connection.execute("COMMIT")
    connection.close()


def lose_index_entry(path: Path) -> None:
    """Insert a row while an index is out of sight."""
    connection = sqlite3.connect(path)
    index = connection.execute("SELECT * FROM sqlite_master WHERE name = 'erasure_payload'").fetchone()
    connection.close()
    for statement, row in (
        ("DELETE FROM sqlite_master WHERE name = 'erasure_payload'", ()),
        ("INSERT INTO erasure VALUES (1, 0, 's', 1, x'00')", ()),
        ("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index),
    ):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement, row)
        connection.close()


def garble_name(path: Path) -> None:
    """Make a name in the schema no text: SQLite quotes it in an error that Python cannot decode."""
    content = path.read_bytes()
    assert b"migration_keep" in content
    path.write_bytes(content.replace(b"migration_keep", b"\xedigration_keep", 1))
