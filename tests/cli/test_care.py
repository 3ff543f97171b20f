"""`verify` and `backup`."""

import json
from pathlib import Path

import pytest

from proxy.model.log import LogFault
from tests.cli.calling import call
from tests.support.fake_log import FakeLog

BROKEN = (LogFault("exchange 7", "digest \x1bdiffers"),)


def test_a_sound_log_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "verify") == 0
    assert capsys.readouterr().out == "1 exchanges, 2 rounds, 3 blobs, 4 slices: no faults\n"


def test_a_fault_is_named_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(faults=BROKEN), "verify") == 1
    told = capsys.readouterr().out
    assert told.startswith("exchange 7: digest \N{REPLACEMENT CHARACTER}differs\n")
    assert told.endswith(": 1 faults\n")


def test_faults_as_json_exit_with_1_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(faults=BROKEN), "verify", "--json") == 1
    assert json.loads(capsys.readouterr().out)["faults"][0]["where"] == "exchange 7"


def test_a_backup_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "copy.db"
    assert call(FakeLog(), "backup", str(file)) == 0
    assert capsys.readouterr().out == f"wrote {file} (6 bytes)\n"


def test_a_backup_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "copy.db"
    file.write_text("mine")
    assert call(FakeLog(), "backup", str(file)) == 1
    assert "name another one" in capsys.readouterr().err
    assert file.read_text() == "mine"
