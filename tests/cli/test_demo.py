"""`palimpsest demo`: its options."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import call_with
from tests.support.fake_log import FakeLog


def run_demo(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []

    def note(**options: Any) -> int:
        told.append(options)
        return 3

    return call_with(["demo", *arguments], lambda settings: FakeLog(), run_demo=note), told


def test_it_runs_whole_and_serves_by_default() -> None:
    assert run_demo() == (3, [{"steps": 150, "port": None, "data": None, "is_served": True}])


def test_its_options_are_passed_on(tmp_path: Path) -> None:
    code, told = run_demo("--no-serve", "--steps", "7", "--port", "9999", "--data", str(tmp_path))
    assert (code, told) == (3, [{"steps": 7, "port": 9999, "data": tmp_path, "is_served": False}])


@pytest.mark.parametrize("steps", ["0", "151"])
def test_there_are_150_steps(steps: str) -> None:
    assert run_demo("--steps", steps) == (2, [])
