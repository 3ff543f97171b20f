"""A disk that fails or waits as a test says, in place of `sqlite3.connect`."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from typing import Any

LIMIT = 300.0

FULL = sqlite3.OperationalError("database or disk is full")
LOCKED = sqlite3.OperationalError("database is locked")


class Disk:
    """Notes every statement of the writer; can fail or hold those that begin with a word."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows: dict[str, int] = {}
        self.connection: sqlite3.Connection | None = None
        self._failures: dict[str, list[Exception]] = {}
        self._gates: dict[str, threading.Event] = {}
        self._arrivals: dict[str, threading.Semaphore] = {}

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """In place of `sqlite3.connect`."""
        disk = self

        class Recording(sqlite3.Connection):
            """A connection that asks the disk first."""

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                disk._visit(sql)
                return super().execute(sql, parameters)

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
                rows = list(parameters)
                disk._visit(sql)
                disk.rows[sql.split("(")[0]] = disk.rows.get(sql.split("(")[0], 0) + len(rows)
                return super().executemany(sql, rows)

        self.connection = sqlite3.connect(*arguments, factory=Recording, **options)
        return self.connection

    def fail(self, word: str, *errors: Exception) -> None:
        """Let the next statements that begin with the word fail, one error each."""
        self._failures.setdefault(word, []).extend(errors)

    def hold(self, word: str) -> threading.Event:
        """Hold statements that begin with the word until the event is set."""
        gate = self._gates[word] = threading.Event()
        self._arrivals[word] = threading.Semaphore(0)
        return gate

    def release(self) -> None:
        """Hold nothing any longer."""
        for gate in self._gates.values():
            gate.set()

    async def arrived(self, word: str) -> None:
        """Wait until a statement that is held has come."""
        arrived = await asyncio.to_thread(self._arrivals[word].acquire, timeout=LIMIT)
        assert arrived, f"no {word} came"

    def count(self, word: str) -> int:
        """How many statements began with the word."""
        return sum(statement.startswith(word) for statement in self.statements)

    @property
    def waiting_failures(self) -> Mapping[str, list[Exception]]:
        """Failures that have not happened yet."""
        return {word: errors for word, errors in self._failures.items() if errors}

    def _visit(self, sql: str) -> None:
        self.statements.append(sql)
        for word, gate in list(self._gates.items()):
            if sql.startswith(word):
                self._arrivals[word].release()
                assert gate.wait(LIMIT), f"{word} was held for ever"
        for word, errors in list(self._failures.items()):
            if sql.startswith(word) and errors:
                raise errors.pop(0)


def tables(connection: sqlite3.Connection) -> dict[str, int]:
    """Rows of every table that has any."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    return {name: count for name, count in counts.items() if count}
