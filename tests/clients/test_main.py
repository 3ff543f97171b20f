"""The command `python -m tests.clients`: which clients it runs, what it prints, how it ends."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients import __main__ as command
from tests.clients.agents import AGENTS
from tests.clients.client import Client, Long
from tests.clients.environment import Broken, Missing
from tests.clients.long_journey import Figures
from tests.clients.long_tasks import LONG_TASKS
from tests.clients.sdks import SDKS


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Journeys are not made; of some clients they fail. The folders that they were given."""
    given: list[Path] = []

    def prepare(client: Client) -> list[Path]:
        if client.name == "openai-node":
            raise Missing("npm is not installed")
        if client.name == "llm":
            raise Broken("cannot install: no network")
        return []

    def run_journey(client: Client, programs: Sequence[Path], root: Path, *, by_run: bool) -> list[str]:
        given.append(root)
        return [f"fault {n}" for n in range(20)] if client.name == "codex" else []

    def run_long_journey(
        client: Client, long: Long, programs: Sequence[Path], root: Path
    ) -> tuple[list[str], list[Figures]]:
        assert long is LONG_TASKS[client.name]
        faults = ["a fault"] if client.name == "codex" else []
        return faults, [Figures("direct", 1, (0,), 62, 60, 1_000, 90, 500)]

    monkeypatch.setattr(command, "run_long_journey", run_long_journey)
    monkeypatch.setattr(command, "prepare", prepare)
    monkeypatch.setattr(command, "run_journey", run_journey)
    return given


def test_a_missing_tool_is_a_printed_skip(roots: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["openai-node"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"openai-node +skipped +\d+ s +npm is not installed", lines[0])
    assert "0 ok, 0 FAILED, 1 skipped" in lines[1]


def test_failures_are_shown_and_counted(roots: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["codex", "llm", "litellm"]) == 1
    out = capsys.readouterr().out
    assert "fault 11" in out
    assert "fault 12" not in out
    assert "and 8 more" in out
    assert "cannot install: no network" in out
    assert "journeys: 1 ok, 1 FAILED, 1 skipped" in out


def test_long_tasks_tell_what_they_came_to(roots: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--long", "codex", "gemini-cli"]) == 1
    first, fault, skipped, _ = capsys.readouterr().out.splitlines()
    assert "FAILED" in first
    assert first.endswith("60 tool calls in 62 calls, 1,000 tokens received, 50% from its cache, 90 at most")
    assert fault.split() == ["a", "fault"]
    assert re.fullmatch(r"gemini-cli +skipped +0 s +its calls are not shortened", skipped)


@pytest.mark.parametrize(("arguments", "clients"), [([], SDKS), (["--all"], (*SDKS, *AGENTS))])
def test_the_sdks_run_unless_all_are_wished(
    arguments: list[str], clients: Sequence[Client], roots: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line[0] != " "]
    assert named == [*(client.name for client in clients), "journeys:"]
