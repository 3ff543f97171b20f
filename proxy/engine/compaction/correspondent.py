"""The client of a call of our own: takes what the relay carries, and knows while it comes what it will not be used for.

Rule: bytes are not kept here, the record has them. An answer that begins a call of a tool, says more than was asked
for, or has come to its end while its connection goes on, is waited for no longer.
"""

from collections.abc import Callable
from typing import Literal

from proxy.engine.response_stream import is_plain_stream
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.wire.asking import is_thinking_aloud, read_report
from proxy.wire.format import Format
from proxy.wire.streams import EVENT_END, read_events

Verdict = Literal["", "tool_call", "babble"]

# No event is longer, and no answer that is not one of events.
_MOST_HELD = 1024 * 1024
_BEGINNING = 64
# Where thoughts are spoken aloud they are part of the text, and there are more of them.
_THINKING_TIMES = 4


class Correspondent:
    """Takes one answer of at most `most_characters` of visible text. `stop` ends the call that brings it."""

    def __init__(self, form: Format, most_characters: int, stop: Callable[[], object]) -> None:
        self._form = form
        self._most = most_characters
        self._stop = stop
        self._rest = b""
        self._said = 0
        self._begun = ""
        self._is_stream = False
        self.status = 0
        self.headers: Headers = ()
        self.error: ProxyError | None = None
        self.is_whole = False
        self.verdict: Verdict = ""

    def label(self, fields: Headers) -> None:
        """Nobody is to be told."""

    def start(self, status: int, headers: Headers) -> None:
        """The answer's head."""
        self.status, self.headers = status, headers
        self._is_stream = is_plain_stream(headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Look at what came."""
        if self._is_stream and not self.verdict and not self.is_whole:
            self._look(content, is_last=is_last)
        self.is_whole = self.is_whole or is_last
        if self.verdict or (self.is_whole and not is_last):
            self._stop()
        return True

    async def drain(self) -> None:
        """There is always room."""

    def fail(self, error: ProxyError) -> None:
        """No answer came."""
        self.error = error

    def dismiss(self) -> None:
        """Whoever cancels a call of our own knows why."""

    def abort(self) -> None:
        """What broke off is not whole."""

    def _look(self, content: bytes, *, is_last: bool) -> None:
        """Read the events that are whole, each once; the end of the stream makes the answer so."""
        held = self._rest + content
        end = len(held) if is_last else max((match.end() for match in EVENT_END.finditer(held)), default=0)
        self._rest = held[end:]
        answer = self._form.read_events(read_events(held[:end]))
        report = read_report(answer)
        self._said += len(report.said)
        self._begun = (self._begun + report.said)[:_BEGINNING]
        self.is_whole = answer.is_ended
        if report.is_tool_call:
            self.verdict = "tool_call"
        elif self._said > self._find_bound() or len(self._rest) > _MOST_HELD:
            self.verdict = "babble"

    def _find_bound(self) -> int:
        return self._most * (_THINKING_TIMES if is_thinking_aloud(self._begun) else 1)
