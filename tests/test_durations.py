"""The slowest tests are kept in a file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import Durations


def test_the_slowest_phases_are_written_the_slowest_first(tmp_path: Path) -> None:
    durations = Durations(tmp_path / "build" / "durations.txt", 2)
    for seconds, name in ((0.1, "a"), (30.0, "b"), (2.5, "c")):
        report: Any = SimpleNamespace(duration=seconds, when="call", nodeid=name)
        durations.pytest_runtest_logreport(report)
    durations.pytest_sessionfinish()
    assert [line.split() for line in (tmp_path / "build" / "durations.txt").read_text().splitlines()] == [
        ["30.00s", "call", "b"],
        ["2.50s", "call", "c"],
    ]
