"""A provider that answers as a transcript says; nothing leaves the process."""

import time
from collections.abc import Awaitable, Callable

from proxy.engine.ports import RequestBody
from proxy.engine.response_stream import WholeResponse
from proxy.model.exchange import Headers
from proxy.trial.requests import CALL
from proxy.wire.headers import find_header

_STATUS_OK, _STATUS_MISSING = 200, 404
_REFUSAL = b'{"error":{"type":"not_found","message":"a transcript answers its own calls only"}}'


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


Answer = Callable[[bytes], Awaitable[bytes]]
"""Returns the body of the response to a request with this body."""


class ReplayUpstream:
    """Answers the call that is expected. It refuses all others, among them our own: no model is there to be asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.refused = 0
        self._number = -1
        self._answer: Answer | None = None

    def expect(self, number: int, answer: Answer) -> None:
        """Answer the call with this number."""
        self._number, self._answer = number, answer

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> WholeResponse:
        """Return the answer to the expected call."""
        is_expected = find_header(headers, CALL) == b"%d" % self._number
        if self._answer is None or not is_expected or not isinstance(body, bytes):
            self.refused += method == "POST"
            return WholeResponse(_STATUS_MISSING, (), _REFUSAL)
        return WholeResponse(_STATUS_OK, (), await self._answer(body))

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""
