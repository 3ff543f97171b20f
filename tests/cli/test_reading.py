"""`sessions` and `show`."""

import json
from dataclasses import replace

import pytest

from tests.cli.calling import call
from tests.support.fake_log import ANSWER, REQUEST, SESSION, FakeLog, tip_of, tree_log


def test_sessions_are_listed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "sessions") == 0
    heading, row, name = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "SESSION"
    assert row.split() == ["abc1", "2023-11-14", "22:13", "1", "0", "0", "10", "3"]
    assert name == "  agent-7; gpt-5 at openai"


FAMILY = (
    replace(SESSION, id="child", family="agent-7/x", parent="abc1"),
    SESSION,
    replace(SESSION, id="other", family="b", parent="gone"),
)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["child", "abc1", "other"]),
        (("--family", "agent-7"), ["child", "abc1"]),
        (("--family", "agent-7", "--limit", "1"), ["child"]),
        (("--parent", "abc"), ["child"]),
        (("--parent", "go", "--family", "b"), ["other"]),
        (("--parent", "go", "--family", "c"), []),
    ],
)
def test_sessions_are_found_by_family_and_parent(
    options: tuple[str, ...], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(FakeLog(sessions=FAMILY), "sessions", "--json", *options) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == found


def test_no_match_is_not_an_empty_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "sessions", "--family", "x") == 0
    assert capsys.readouterr().out == "No session matches; without --family and --parent all are listed.\n"


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
    assert lines[0] == "session   abc1"
    assert lines[-1].split() == ["-", "1", "22:13:20", "200", "10", "3", "1.2", "gpt-5"]


def test_a_session_as_json_has_its_tree_and_no_bodies(capsys: pytest.CaptureFixture[str]) -> None:
    log = tree_log()
    log.sessions = (SESSION, replace(SESSION, id="child", parent="abc1"), replace(SESSION, id="x", parent="child"))
    call(log, "show", "abc1", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"session", "branches", "children", "exchanges"}
    assert (shown["session"]["id"], [child["id"] for child in shown["children"]]) == ("abc1", ["child"])
    assert shown["branches"][1] == {
        "tip": tip_of("five").hex(),
        "depth": 5,
        "relation": "branch",
        "is_side": False,
        "left": tip_of("answer").hex(),
        "after": 1,
        "own": [4, 5],
        "exchanges": [1, 4, 5],
    }
    assert [branch["after"] for branch in shown["branches"]] == [0, 1, 0]
    row = shown["exchanges"][5]
    assert (row["n"], row["relation"], row["tip"], row["depth"]) == (6, "retry", tip_of("two").hex(), 3)
    assert not {"request", "headers", "answer"} & (set(row) | set(row["rounds"][0]))
    assert (row["rounds"][0]["status"], row["rounds"][0]["finish"]) == (200, "stop")


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
    assert REQUEST.replace(b"\r\n", b"  ").replace(b"\n", b" ") in written


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


@pytest.mark.parametrize("n", ["0", str(2**63)])
def test_a_number_that_no_exchange_can_have_is_a_wrong_argument(n: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", n) == 2
    assert "Invalid value for" in capsys.readouterr().err
