"""Whether log.db is still the file that was opened. Rule: asked by path, now and then, never by a descriptor.

What is written to a file that was deleted or replaced succeeds, and is nowhere. Closing a descriptor of log.db would
drop the locks that SQLite holds on it in this process.
"""

import time
from collections.abc import Callable
from pathlib import Path

from proxy.store.sqlite.problem import Misplaced


class Whereabouts:
    """The file at a path, which is open; made once it is."""

    def __init__(self, path: Path, every_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._every_s = every_ms / 1000
        self._now = now
        self._opened: tuple[int, int] | None = None
        self._opened = self._find()
        self._due = now() + self._every_s

    def check(self) -> None:
        """Raises Misplaced where there is no file any more, or another one; again and again until it is back."""
        if self._now() < self._due:
            return
        if self._find() != self._opened:
            raise Misplaced("another file or none is in its place")
        self._due = self._now() + self._every_s

    def _find(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # nobody can tell: what is wrong with the disk shows in the next commit
            return self._opened
        return found.st_dev, found.st_ino
