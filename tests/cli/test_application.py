"""The command line as a whole."""

from pathlib import Path

import pytest

from proxy import __version__
from tests.cli.calling import call
from tests.support.fake_log import FakeLog


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "--version") == 0
    assert capsys.readouterr().out == f"palimpsest {__version__}\n"


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "--help") == 0
    told = capsys.readouterr().out
    for command in ("serve", "open", "sessions", "show", "export", "verify", "backup", "config"):
        assert f"\n  {command} " in told
    assert "Exit codes: 0 fine; 1 found a fault" in told
    assert "..." not in told.split("Commands:")[1]


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
