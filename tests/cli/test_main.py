"""The command line as a whole: help, exit codes, shared options, errors."""

import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from proxy import __version__
from proxy.__main__ import main
from proxy.cli.main import COMMANDS, build
from tests.cli.commands import call, call_without_log
from tests.support.fake_log import FakeLog


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "--version") == 0
    assert capsys.readouterr().out == f"palimpsest {__version__}\n"


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "--help") == 0
    told = capsys.readouterr().out
    for command in ("serve", "open", "sessions", "show", "cache", "export", "mcp", "verify", "backup", "config"):
        assert f"\n  {command} " in told
    assert "Exit codes: 0 no error; 1 a fault was found" in told
    assert "..." not in told.split("Commands:")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_has_the_help_of_each(name: str) -> None:
    group = get_command(build())
    assert isinstance(group, TyperGroup)
    _, command, _ = group.resolve_command(Context(group), [name])
    assert command is not None
    assert command.name == name
    assert str(command.help).split("\n\n")[0] == COMMANDS[name][1]


def test_a_command_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """Together these are a third of what a server imports."""
    program = "import sys, proxy.__main__ as p\ntry: p.main()\nfinally: print(*sorted(sys.modules))"
    told = subprocess.run(
        [sys.executable, "-c", program, "sessions", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--data" in told.stderr
    loaded = set(told.stdout.split())
    assert loaded & {"proxy.cli.inspection.sessions", "proxy.reading"}
    assert not loaded & {"proxy.assembly", "proxy.engine.exchange", "proxy.indexing", "snowballstemmer", "httpx"}


def test_nothing_asked_is_answered_with_help_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog()) == 2
    assert "Commands:" in capsys.readouterr().out


def test_a_mistyped_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "session") == 2
    assert "sessions" in capsys.readouterr().err


def test_wrong_settings_exit_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "sessions", "--config", str(tmp_path / "none.yaml")) == 2
    assert capsys.readouterr().err.startswith("palimpsest: ")


def test_no_output_has_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    call(FakeLog(), "--help")
    call(FakeLog(), "nothing")
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err


def test_the_process_arguments_are_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["palimpsest", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"palimpsest {__version__}\n"


@pytest.mark.parametrize("command", ["sessions", "show", "export", "verify", "backup"])
def test_every_command_that_reads_the_log_can_be_told_where_it_is(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call(FakeLog(), command, "--help")
    told = capsys.readouterr().out
    assert "--data DIR" in told
    assert "--config FILE" in told


@pytest.mark.parametrize("command", ["sessions", "show", "export", "verify"])
def test_every_listing_can_be_had_as_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(), command, "--help")
    assert "--json" in capsys.readouterr().out


def test_a_log_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_without_log("sessions") == 1
    assert capsys.readouterr().err == "palimpsest: there is no log; choose --data\n"


def test_the_log_is_closed_even_when_the_question_fails() -> None:
    log = FakeLog()
    assert call(log, "show", "x") == 1
    assert log.is_closed


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_character_that_the_output_cannot_show_is_replaced(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = TextIOWrapper(BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, stream, written)
    call(FakeLog(), "show", "\u6f22\ud83d")
    written.write("\u25cf")
    written.seek(0)
    assert written.read().endswith("?")


@pytest.mark.parametrize(
    ("typed", "found"),
    [("se", {"serve", "search"}), ("revert --d", {"--dry-run", "--data"}), ("config ", {"check", "schema", "init"})],
)
def test_a_shell_completes_commands_and_options(typed: str, found: set[str]) -> None:
    words = f"palimpsest {typed}"
    environment = {
        "PATH": "/usr/bin:/bin",
        "_PALIMPSEST_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    told = subprocess.run([sys.executable, "-m", "proxy"], env=environment, capture_output=True, text=True, check=False)
    assert found <= set(told.stdout.split())


def test_the_collector_runs_again_once_a_command_is_there() -> None:
    program = "import gc, proxy.__main__ as p\ntry: p.main()\nfinally: print(gc.isenabled())"
    for arguments, is_on in ((["sessions", "--data", "/nowhere"], "True"), (["--version"], "False")):
        told = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        assert told.stdout.split()[-1] == is_on
