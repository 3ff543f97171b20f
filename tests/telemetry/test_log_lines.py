"""Log lines: equal ones are counted, each event is one line, as text or as JSON with stable names."""

import ast
import io
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from proxy.config import ConfigError, load_settings
from proxy.telemetry.log_lines import ACCESS, ATTRIBUTES, JsonLines, RepeatCountingStream, TextLines


class Lines:
    """What is written of what is logged, on a clock of the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        self.handler = RepeatCountingStream(self._stream, lambda: self.now)

    def log(self, text: str, *values: object, after: float = 0.0, error: Exception | None = None) -> None:
        """Log a line when some time has passed."""
        self.now += after
        kind = (type(error), error, None) if error is not None else None
        self.handler.handle(logging.LogRecord("palimpsest", logging.WARNING, "app.py", 1, text, values, kind))

    def read(self) -> list[str]:
        """The lines."""
        return self._stream.getvalue().splitlines()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """A log of its own."""
    made = Lines()
    yield made
    made.handler.close()


def test_equal_lines_are_counted_and_not_repeated(lines: Lines) -> None:
    for _ in range(14):
        lines.log("no room: %s", "disk full", after=0.5)
    assert lines.read() == ["no room: disk full"]
    lines.log("another", after=52.0)
    assert lines.read() == ["no room: disk full", "another"]
    lines.log("another", after=2.0)
    assert lines.read()[2:] == ["no room: disk full (repeated 13 times in 6 s)"]
    lines.log("no room: %s", "disk full")
    assert lines.read()[3:] == ["no room: disk full"]


def test_a_line_that_came_once_is_not_told_again(lines: Lines) -> None:
    lines.log("once")
    lines.log("later", after=61.0)
    lines.handler.close()
    assert lines.read() == ["once", "later"]


def test_lines_that_differ_are_all_written(lines: Lines) -> None:
    lines.log("no room: %s", "disk full")
    lines.log("no room: %s", "quota")
    lines.log("failed", error=ValueError("a"))
    lines.log("failed", error=ValueError("b"))
    assert lines.read() == [
        "no room: disk full",
        "no room: quota",
        "failed",
        "ValueError: a",
        "failed",
        "ValueError: b",
    ]


def test_what_was_counted_is_told_at_the_end(lines: Lines) -> None:
    lines.log("failed", error=ValueError("a"))
    lines.log("failed", after=3.0, error=ValueError("a"))
    lines.handler.close()
    assert lines.read() == ["failed", "ValueError: a", "failed (repeated 1 times in 3 s)"]


def test_what_was_counted_is_told_though_nothing_else_is_logged(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Callable[[], None]] = []

    class Timer:
        """A timer that the test lets go off."""

        daemon = False

        def __init__(self, seconds: float, call: Callable[[], None]) -> None:
            assert seconds == 60.0
            self._call = call

        def start(self) -> None:
            started.append(self._call)

        def cancel(self) -> None:
            started.clear()

    monkeypatch.setattr("threading.Timer", Timer)
    for _ in range(3):
        lines.log("again", after=1.0)
    (go_off,) = started
    go_off()
    assert lines.read() == ["again", "again (repeated 2 times in 2 s)"]
    lines.log("again")
    lines.log("again")
    assert len(started) == 2
    lines.handler.close()
    assert not started


# --- what a line looks like ------------------------------------------------------------------------------------------


def make_record(text: str, *values: object, error: BaseException | None = None, **about: object) -> logging.LogRecord:
    """A record as a call of `logging` makes it."""
    info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("palimpsest.context", logging.WARNING, "x.py", 1, text, values, info)
    record.__dict__.update(about)
    return record


def fail() -> ValueError:
    """An exception that has passed through a function."""
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        return error


def test_a_line_of_text_is_one_line_with_what_it_is_about_at_its_end() -> None:
    record = make_record("the upstream %s\r\nforged", "failed", session="s1", exchange="e1", seconds=0.25, model="a b")
    line = TextLines().format(record)
    assert line.endswith(
        r' WARNING palimpsest.context the upstream failed\r\nforged seconds=0.2500 session=s1 exchange=e1 model="a b"'
    )
    assert "\n" not in line


def test_an_error_is_told_on_the_same_line_and_its_trace_only_at_level_debug() -> None:
    record = make_record("it failed", error=fail())
    assert TextLines().format(record).endswith(r" it failed: ValueError: two\nlines")
    assert TextLines(has_traces=True).format(record).splitlines()[1] == "Traceback (most recent call last):"


def test_an_error_of_ours_names_the_places_that_it_passed_through() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"mode": "no such mode"})
    assert re.search(
        r" \(at loading\.py:\d+ load_settings.*\)$", TextLines().format(make_record("x", error=caught.value))
    )


def test_a_line_of_json_has_the_names_of_opentelemetry() -> None:
    line = msgspec.json.decode(JsonLines().format(make_record("no %s", "room", error=fail(), session="s1", model="m")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert (
        line.pop("attributes").items()
        >= {
            "gen_ai.conversation.id": "s1",
            "gen_ai.request.model": "m",
            "exception.type": "ValueError",
            "exception.message": "two\nlines",
        }.items()
    )
    assert line == {"severity_text": "WARN", "severity_number": 13, "scope": "palimpsest.context", "body": "no room"}


def test_lines_about_different_calls_are_equal_and_the_count_is_a_field() -> None:
    stream, now = io.StringIO(), [0.0]
    handler = RepeatCountingStream(stream, lambda: now[0])
    handler.setFormatter(JsonLines())
    for exchange in ("e1", "e2", "e3"):
        handler.handle(make_record("it failed", exchange=exchange))
    handler.close()
    first, last = (msgspec.json.decode(line) for line in stream.getvalue().splitlines())
    assert first["attributes"] == {"palimpsest.exchange.id": "e1"}
    assert last["attributes"] == {"palimpsest.repeated": 2}


def test_the_lines_of_requests_are_all_written() -> None:
    stream = io.StringIO()
    handler = RepeatCountingStream(stream)
    for _ in range(3):
        handler.handle(logging.LogRecord(ACCESS, logging.INFO, "x.py", 1, "request served", (), None))
    assert stream.getvalue().count("request served") == 3


def test_what_is_remembered_of_lines_is_bounded(lines: Lines) -> None:
    for number in range(1500):
        lines.log("line %d", number)
    lines.log("line %d", 0)
    assert len(lines.read()) == 1501, "the first was forgotten, and is written again"


def list_log_calls() -> Iterator[tuple[str, ast.Call]]:
    """All calls of a logger in the package."""
    root = Path(__file__).parents[2] / "proxy"
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if isinstance(node.func.value, ast.Name) and re.fullmatch(r"_(?:\w+_)?log", node.func.value.id):
                yield f"{path.relative_to(root)}:{node.lineno}", node


def test_log_calls_name_ids_beside_the_message_by_known_names() -> None:
    calls = list(list_log_calls())
    assert len(calls) > 50
    wrong = []
    for place, call in calls:
        text = str(call.args[0].value) if isinstance(call.args[0], ast.Constant) else ""
        if re.search(r"\b(?:exchange|session) %s", text) or text.endswith("."):
            wrong.append(f"{place}: {text}")
        for keyword in call.keywords:
            if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
                names = {key.value for key in keyword.value.keys if isinstance(key, ast.Constant)}
                wrong += [f"{place}: {name!r}" for name in names - set(ATTRIBUTES)]
    assert wrong == []
