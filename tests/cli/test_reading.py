"""`sessions` and `show`."""

import json

import pytest

from tests.cli.fake_log import ANSWER, REQUEST, SESSION, FakeLog, call, exchange


def test_sessions_are_listed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "sessions") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "SESSION"
    assert row.split() == ["abc1", "2023-11-14", "22:13:21Z", "1", "gpt-5", "10", "3", "openai", "agent-7"]


def test_no_sessions_yet_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(sessions=()), "sessions") == 0
    assert "palimpsest serve" in capsys.readouterr().out


def test_sessions_as_json_hold_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(), "sessions", "--json", "--limit", "1")
    assert json.loads(capsys.readouterr().out) == [{name: getattr(SESSION, name) for name in SESSION.__slots__}]


def test_a_limit_bounds_the_listing(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(sessions=(SESSION, SESSION)), "sessions", "--limit", "1", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_the_log_is_the_one_in_the_data_directory_and_is_closed() -> None:
    log = FakeLog()
    call(log, "sessions", "--data", "/somewhere")
    assert str(log.opened[0].store_policy().path) == "/somewhere/log.db"
    assert log.is_closed


def test_a_session_is_found_by_how_its_id_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "ab") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "session abc1"
    assert lines[2].split() == [
        *("1", "2023-11-14", "22:13:20Z", "chat_completions", "gpt-5", "200", "complete", "10", "3", "1.2"),
    ]


def test_a_call_that_is_still_open_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(exchanges=(exchange(1, rounds=()), exchange(2, wire="", rounds=()))), "show", "abc1")
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert "open, or cut by a crash" in first
    assert "POST /v1/chat/completions" in second


def test_a_timeline_as_json_leaves_out_request_bodies(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(), "show", "abc1", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["session"] == "abc1"
    assert [row["n"] for row in shown["exchanges"]] == [1]
    assert "request" not in shown["exchanges"][0]


def test_one_exchange_is_told_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(), "show", "abc1", "1")
    told = capsys.readouterr().out
    assert "exchange  x1, number 1 of session abc1" in told
    assert "tokens    input 10, output 3" in told
    assert "finish    stop" in told
    assert ANSWER.decode() in told


def test_one_exchange_as_json_has_the_answer_as_it_came(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    call(FakeLog(), "show", "abc1", "1", "--json")
    written = capfdbinary.readouterr().out
    assert b'"answer":' + ANSWER in written
    assert b'"digest":"0102"' in written


@pytest.mark.parametrize(
    ("part", "content"),
    [("request", REQUEST), ("sent", b"sent 0: " + REQUEST), ("received", b"received 0 \xff\n")],
)
def test_raw_bodies_are_written_byte_for_byte(
    part: str, content: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call(FakeLog(), "show", "abc1", "1", "--raw", part) == 0
    assert capfdbinary.readouterr().out == content


def test_a_raw_body_needs_the_number_of_its_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", "--raw", "sent") == 2
    assert "SESSION N" in capsys.readouterr().err


def test_an_exchange_that_is_not_there_is_not_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", "7") == 1
    assert capsys.readouterr().err == "palimpsest: this session has no exchange 7; it has 1, counted from 1\n"
