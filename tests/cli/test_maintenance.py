"""`palimpsest verify`, `backup`, `export` and `config`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.config.reference import render_example
from proxy.model.log import LogFault
from tests.cli.commands import call
from tests.support.fake_log import ANSWER, EXCHANGE, REQUEST, ROUND, FakeLog, exchange, tree_log

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


def test_a_session_is_one_document_with_requests_as_they_came(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(FakeLog(), "export", "abc1") == 0
    written = capfdbinary.readouterr().out
    assert REQUEST.replace(b"\r\n", b"  ").replace(b"\n", b" ") in written
    assert ANSWER in written
    assert json.loads(written)["exchanges"][0]["request"]["messages"][0]["role"] == "user"


def test_json_lines_hold_one_exchange_each(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = FakeLog(exchanges=(EXCHANGE, exchange(2)), bodies={"x1": REQUEST, "x2": b""})
    call(log, "export", "abc1", "--jsonl")
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["request"] is None


def test_the_newest_conversation_is_what_its_client_would_send_next(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    newer = b'{"messages":[{"role":"user","content":"newer"}]}'
    log = FakeLog(
        exchanges=(EXCHANGE, exchange(2), exchange(3, wire="", kind="passthrough")), bodies={"x1": REQUEST, "x2": newer}
    )
    call(log, "export", "abc1", "--openai")
    message = b'{"role":"assistant","content":"hi \\ud83d"}'
    assert capfdbinary.readouterr().out == b'[{"role":"user","content":"newer"},' + message + b"]\n"


def test_two_forms_at_once_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "export", "abc1", "--json", "--openai") == 2
    assert "choose one" in capsys.readouterr().err


def test_a_directory_gets_the_document_and_all_raw_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "out"
    assert call(FakeLog(), "export", "abc1", "--jsonl", "-o", str(into)) == 0
    assert capsys.readouterr().out == f"wrote {into}\n"
    assert sorted(path.name for path in into.iterdir()) == [
        *("0001-0-received", "0001-0-sent", "0001-request", "exchanges.jsonl"),
    ]
    assert (into / "0001-request").read_bytes() == REQUEST
    assert (into / "0001-request").stat().st_mode & 0o777 == 0o600
    assert (into / "0001-0-received").read_bytes() == b"received 0 \xff\n"


def test_a_call_that_never_ended_has_no_answer_to_write(tmp_path: Path) -> None:
    cut = replace(EXCHANGE, rounds=(replace(ROUND, completeness=""),))
    assert call(FakeLog(exchanges=(cut,)), "export", "abc1", "-o", str(tmp_path)) == 0
    assert not (tmp_path / "0001-0-received").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "session.json").write_text("mine")
    assert call(FakeLog(), "export", "abc1", "-o", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"palimpsest: {tmp_path / 'session.json'}: File exists\n"
    assert (tmp_path / "session.json").read_text() == "mine"


def test_a_session_without_a_known_wire_has_no_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    log = FakeLog(exchanges=(replace(EXCHANGE, wire=""),))
    assert call(log, "export", "abc1", "--openai") == 1
    assert "--json" in capsys.readouterr().err


def test_a_branch_is_exported_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tip = b"five".hex()
    assert call(tree_log(), "export", "abc1", "--branch", tip, "--openai") == 0
    assert json.loads(capsys.readouterr().out)[0]["content"] == "5"
    assert call(tree_log(), "export", "abc1", "--branch", tip, "--jsonl", "-o", str(tmp_path)) == 0
    assert sorted(path.name for path in tmp_path.glob("*-request")) == ["0001-request", "0004-request", "0005-request"]
    assert len((tmp_path / "exchanges.jsonl").read_bytes().splitlines()) == 3


def test_a_branch_that_is_not_there_names_the_tips(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tree_log(), "export", "abc1", "--branch", "ff") == 1
    assert b"five".hex() in capsys.readouterr().err


def test_what_was_erased_leaves_the_rest_to_be_exported(tmp_path: Path) -> None:
    log = tree_log()
    del log.bodies["x1"]
    assert call(log, "export", "abc1", "-o", str(tmp_path)) == 0
    assert json.loads((tmp_path / "session.json").read_bytes())["exchanges"][0]["missing"] == "this content was erased"
    assert not (tmp_path / "0001-request").exists()
    assert (tmp_path / "0002-request").exists()


def test_right_settings_are_said_to_be_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("mode: observe")
    assert call(FakeLog(), "config", "check", str(file)) == 0
    assert "the settings are valid" in capsys.readouterr().out


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
        *("budget", "pruning", "files", "recall", "compaction", "memory", "pricing", "strategy", "models", "turns"),
        *("nudge", "snapshot", "log", "telemetry", "doom_loop", "events", "operators", "shadow"),
    }
    assert schema["additionalProperties"] is False


def test_init_writes_the_example_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    assert call(FakeLog(), "config", "init", str(file)) == 0
    assert file.read_text() == render_example()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("mine")
    assert call(FakeLog(), "config", "init", str(file)) == 1
    assert file.read_text() == "mine"
    assert capsys.readouterr().err == f"palimpsest: {file}: File exists\n"


def test_a_check_tells_what_a_start_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("server: {host: 0.0.0.0}\nupstreams: [{name: a, api_key: sk-own}]")
    assert call(FakeLog(), "config", "check", str(file)) == 1
    assert "server.open_to_network" in capsys.readouterr().err
