"""Logs as earlier versions wrote them.

`old_forms.sql` has the statements that made their tables, `old_logs` what a server of each version wrote into them: a
session of five calls with a tool, and of what that version knew an epoch, a pin, a summary, a call of our tool, memory,
a history of ours and an erased session. Frozen, like the tables.
"""

import sqlite3
from pathlib import Path

_STATED = Path(__file__).with_name("old_forms.sql").read_text("utf-8").split("\n-- m")[1:]
FORMS = {f"m{name}": statements for name, _, statements in (each.partition("\n") for each in _STATED)}
"""What each version added to the tables, by its name, in order."""

_LOGS = Path(__file__).with_name("old_logs")
_DERIVED = 8
"""The bytes of `meta.bills` that say how far figures were derived; the last one is the version that did it."""


def write_as(path: Path, form: str) -> Path:
    """Write what is in a log as the version with this form of the tables did, in its place; the log's path."""
    new = path.rename(path.with_name("new.db"))
    log = make_old_log(path, form)
    log.execute("ATTACH ? AS new", (str(new),))
    tables = [name for (name,) in log.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
    for table in tables:
        if table not in ("migration", "meta", "permit", "lease"):
            columns = ", ".join(name for _, name, *_ in log.execute(f"PRAGMA main.table_info({table})"))
            log.execute(f"INSERT INTO {table}({columns}) SELECT {columns} FROM new.{table}")
    left_out = ["bills"] if form < "m010_bills" else []
    left_out += ["tally:session", "tally:step", "tally:mark", "tally:adoption"] if form < "m005_tallies" else []
    for key, value in log.execute("SELECT key, value FROM new.meta").fetchall():
        if key not in left_out:
            log.execute("INSERT INTO meta VALUES (?, ?)", (key, value[:_DERIVED] + b"\1" if key == "bills" else value))
    log.close()
    return path


def make_old_log(path: Path | str, form: str) -> sqlite3.Connection:
    """Make the tables of a log of an earlier version; a connection to it."""
    log = sqlite3.connect(path, isolation_level=None)
    for name, statements in FORMS.items():
        if name <= form:
            log.executescript(statements)
            log.execute("INSERT INTO migration VALUES (?, 0)", (name,))
    return log


def write_old_log(path: Path, form: str) -> Path:
    """Write the log that is kept of a version; its path."""
    log = make_old_log(path, form)
    log.executescript("BEGIN;" + (_LOGS / f"{form}.sql").read_text("utf-8") + "COMMIT;")
    log.close()
    return path
