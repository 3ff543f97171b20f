"""The lines of the server's log: one for each event, as text or as JSON, and equal ones only once a minute.

A message says what happened, why, and what to do. The ids that it is about are not in it but beside it (`extra`), so
that lines about the same fault in different calls are equal. They are the attributes of a line in JSON.
"""

import contextlib
import logging
import math
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import orjson

from proxy.telemetry.policy import LogPolicy

ACCESS = "palimpsest.access"
"""The logger of requests. Each of its lines is written, however often an equal one was."""

ATTRIBUTES: Mapping[str, str] = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "seconds": "palimpsest.duration_seconds",
    "client": "client.address",
    "session": "gen_ai.conversation.id",
    "exchange": "palimpsest.exchange.id",
    "upstream": "palimpsest.upstream",
    "model": "gen_ai.request.model",
    "completeness": "palimpsest.completeness",
    "client_tokens": "palimpsest.client_tokens",
    "sent_tokens": "palimpsest.sent_tokens",
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "version": "service.version",
    "repeated": "palimpsest.repeated",
}
"""The names that log calls give to what a line is about (`extra`), and those of the attributes in JSON.

The latter are OpenTelemetry's, where it has one. A name is never given another meaning.
"""

_REPEATS_SECONDS = 60.0
_MOST_LINES = 1000
_SEVERITIES = {"DEBUG": 5, "INFO": 9, "WARNING": 13, "ERROR": 17, "CRITICAL": 21}  # OpenTelemetry's SeverityNumber
_LEVEL_WORDS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_PACKAGE = "proxy"


def configure_logging(policy: LogPolicy, stream: TextIO | None = None) -> None:
    """Write the log of this process to standard error, or to `stream`. What libraries say counts from warnings on."""
    handler = RepeatCountingStream(stream or sys.stderr)
    handler.setFormatter(JsonLines() if policy.format == "json" else TextLines(has_traces=policy.level == "debug"))
    root = logging.getLogger()
    for other in tuple(root.handlers):
        if isinstance(other, RepeatCountingStream):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("palimpsest").setLevel(policy.level.upper())
    logging.getLogger(ACCESS).setLevel(logging.INFO if policy.access else logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # server/http11 logs bad requests itself


class TextLines(logging.Formatter):
    """Formats a line as text: time, level, logger, message, then `name=value` for each id.

    An exception is added as its message and the places in our code that it passed through; with `has_traces` its
    whole traceback follows, on further lines.
    """

    def __init__(self, *, has_traces: bool = False) -> None:
        super().__init__()
        self._has_traces = has_traces

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = record.getMessage()
        if error := _find_error(record):
            text = f"{text}: {type(error).__name__}: {error}{_describe_places(error)}"
        named = "".join(f" {name}={_spell(value)}" for name, value in _list_extra(record))
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {escape(text)}{escape(named)}"
        if error and self._has_traces:
            line = f"{line}\n{_format_trace(error)}"
        return line


class JsonLines(logging.Formatter):
    """Formats a line as one JSON object, with the field names of OpenTelemetry's log data model."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        attributes: dict[str, object] = {ATTRIBUTES[name]: value for name, value in _list_extra(record)}
        if error := _find_error(record):
            attributes["exception.type"] = type(error).__name__
            attributes["exception.message"] = str(error)
            attributes["exception.stacktrace"] = _format_trace(error)
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "severity_text": _LEVEL_WORDS.get(record.levelname, record.levelname),
            "severity_number": _SEVERITIES.get(record.levelname, 0),
            "scope": record.name,
            "body": record.getMessage(),
            "attributes": attributes,
        }
        return orjson.dumps(line, default=str).decode("utf-8", "replace")


class RepeatCountingStream(logging.StreamHandler[TextIO]):
    """Writes the first of equal log lines and counts the others. A minute later or at exit one line gives the count.

    Lines are equal if their level, message and error are; the ids beside the message do not count. The lines of
    requests (`ACCESS`) are all written.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._now = now
        self._written: dict[tuple[str, int, str, str], _Line] = {}  # the oldest first
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it if it has been written before. Called with the handler's lock held."""
        if record.name == ACCESS:
            super().emit(record)
            return
        now = self._now()
        self._write_counts_before(now - _REPEATS_SECONDS)
        problem = repr(record.exc_info[1]) if record.exc_info else ""
        key = (record.name, record.levelno, record.getMessage(), problem)
        line = self._written.get(key)
        if line is None:
            if len(self._written) >= _MOST_LINES:
                self._write_counts_before(next(iter(self._written.values())).first)
            self._written[key] = _Line(record, now)
            super().emit(record)
            return
        line.count, line.last = line.count + 1, now
        if self._timer is None:
            self._timer = threading.Timer(_REPEATS_SECONDS, self._write_counts)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Write the counts that are still due. `logging` calls this when the process ends."""
        with self.lock or contextlib.nullcontext():
            if self._timer is not None:
                self._timer.cancel()
            self._write_counts_before(math.inf)
        super().close()

    def _write_counts(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._timer = None
            self._write_counts_before(math.inf)

    def _write_counts_before(self, time: float) -> None:
        """Forget the lines first written before `time`, and write how often each of them was repeated."""
        while self._written and (line := next(iter(self._written.values()))).first <= time:
            del self._written[next(iter(self._written))]
            if line.count:
                super().emit(line.sum_up())


@dataclass
class _Line:
    """A line that was written, and how often it has been repeated since."""

    record: logging.LogRecord
    first: float
    last: float = 0.0
    count: int = 0

    def sum_up(self) -> logging.LogRecord:
        record, took = self.record, self.last - self.first
        text = f"{record.getMessage()} (repeated {self.count} times in {took:.0f} s)"
        summed = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
        summed.__dict__["repeated"] = self.count
        return summed


def escape(text: str) -> str:
    """Return text on one line: control characters and the like are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _list_extra(record: logging.LogRecord) -> list[tuple[str, object]]:
    """Return what a line is about, in the order of ATTRIBUTES, without what is unknown."""
    values = record.__dict__
    return [(name, values[name]) for name in ATTRIBUTES if values.get(name) not in (None, "")]


def _spell(value: object) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return orjson.dumps(text).decode() if re.search(r'[\s"=]', text) else text


def _find_error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _format_trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _describe_places(error: BaseException) -> str:
    """Return where in our code an exception passed through, the outermost place first."""
    places = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _PACKAGE in Path(frame.filename).parts
    ]
    return f" (at {' > '.join(places)})" if places else ""
