"""`config check`, `schema` and `init`."""

import json
from pathlib import Path

import pytest

from proxy.config.example import render_example
from tests.cli.calling import call
from tests.support.fake_log import FakeLog


def test_right_settings_are_said_to_be_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("mode: observe")
    assert call(FakeLog(), "config", "check", str(file)) == 0
    assert "right" in capsys.readouterr().out


def test_every_wrong_setting_is_one_line_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("mode: a\nport: 1")
    assert call(FakeLog(), "config", "check", str(file)) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_schema_knows_every_section_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "config", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {
        *("mode", "data", "server", "upstreams", "sessions", "store", "tenants"),
        *("budget", "pruning", "files", "compaction", "pricing"),
    }
    assert schema["additionalProperties"] is False


def test_init_writes_the_example_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    assert call(FakeLog(), "config", "init", str(file)) == 0
    assert file.read_text() == render_example()
    file.write_text("mine")
    assert call(FakeLog(), "config", "init", str(file)) == 1
    assert file.read_text() == "mine"
    assert capsys.readouterr().err == f"palimpsest: {file}: File exists\n"


def test_a_check_tells_what_a_start_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("server: {host: 0.0.0.0}\nupstreams: [{name: a, api_key: sk-own}]")
    assert call(FakeLog(), "config", "check", str(file)) == 1
    assert "server.open_to_network" in capsys.readouterr().err
