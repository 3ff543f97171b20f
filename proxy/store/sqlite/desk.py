"""Where questions to the log are answered that take many statements. Rule: one at a time, in a thread of its own.

To go back to the event loop after each statement would take longer than most of them. The thread is nobody else's: in
one that is shared, whoever is waited for would wait behind whoever is not.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from proxy.model.errors import StoreUnavailable

T = TypeVar("T")


class ReaderThread:
    """One connection and its thread, both made with the first question."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palimpsest-desk")

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer, from one snapshot. Raises StoreUnavailable. Whoever goes away is not asked for any more."""
        self._expect_open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, question)

    async def close(self) -> None:
        """Let go of the file for good, once the question under way is answered."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._let_go)
            self._thread.shutdown(wait=False)

    def _expect_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the log is closed")

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        self._expect_open()  # it may have waited
        if self._connection is None:
            self._connection = self._connect(self._path)
        try:
            self._connection.execute("BEGIN")
            try:
                return question(self._connection)
            finally:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}; run `palimpsest verify`") from error

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
