"""What is done when the process has hardly any file descriptors left.

A few are kept in reserve, for calls under way and for the log. The kernel gives the lowest number that is free, so that
the number of a new one tells how many are taken; the event loop would close new connections without a word.
"""

import logging
import resource
from collections.abc import Callable

_RESERVE = 64
_RESERVE_FRACTION = 8

_log = logging.getLogger("palimpsest.descriptors")


def read_descriptor_limit() -> int:
    """How many the process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Descriptors:
    """Knows when they are scarce, and who can let go of some. `shortages` counts how often that was needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most = limit - min(_RESERVE, limit // _RESERVE_FRACTION)
        self._holders: list[Callable[[], int]] = []
        self.shortages = 0

    def add_holder(self, let_go: Callable[[], int]) -> None:
        """Have this called when they are scarce; it says how many connections it has closed."""
        self._holders.append(let_go)

    def is_scarce(self, newest: int) -> bool:
        """Whether only the reserve is left, now that this one was opened."""
        return newest >= self._most

    def relieve(self) -> int:
        """Have connections closed that carry nothing; how many there were."""
        self.shortages += 1
        count = sum([let_go() for let_go in self._holders])
        _log.warning(
            "nearly all of the %d file descriptors are taken (ulimit -n): %s",
            self._limit,
            "idle connections are closed" if count else "no connection is idle, so new ones are refused",
        )
        return count
