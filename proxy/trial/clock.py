"""The clock of a replay."""

import time


class ReplayClock:
    """A clock that is put forward to when a call was made; between calls it runs as time does."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._wall = time.time()
        self._began = time.monotonic()

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by the transcript."""
        return round(1000 * (self._wall + self.monotonic() - self._began))

    def monotonic(self) -> float:
        """Return seconds, never decreasing."""
        return time.monotonic() + self._ahead

    def begin(self, at_ms: int) -> None:
        """Begin a session at this time, which may lie before those of others."""
        if at_ms:
            self._wall = at_ms / 1000 - (self.monotonic() - self._began)

    def wait_until(self, at_ms: int) -> None:
        """Let the time pass until `at_ms`."""
        self._ahead += max(0.0, (at_ms - self.now_ms()) / 1000) if at_ms else 0.0
