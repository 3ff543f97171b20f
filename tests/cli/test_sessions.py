"""`palimpsest sessions`."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from proxy.cli.sessions import format_sessions
from proxy.model.log import SessionRow
from tests.cli.commands import call
from tests.support.fake_log import SESSION, FakeLog


def list_ids(*rows: SessionRow) -> Sequence[str]:
    return [line.partition("  20")[0].rstrip() for line in format_sessions(rows).splitlines()[1::2]]


def test_a_session_stands_below_the_one_that_started_it() -> None:
    rows = [replace(SESSION, id=name, parent=parent) for name, parent in (("c", "b"), ("x", ""), ("b", "a"), ("a", ""))]
    assert list_ids(*rows) == ["x", "a", "└ b", "  └ c"]


def test_a_child_whose_parent_is_not_listed_names_it() -> None:
    told = format_sessions([replace(SESSION, parent="p" * 20, adopted="a" * 20, model="")])
    assert "  child of pppppppppppp; goes on from aaaaaaaaaaaa; agent-7; no model at openai" in told.splitlines()


def test_sessions_that_name_each_other_as_parents_are_listed_once() -> None:
    rows = [replace(SESSION, id=name, parent=parent) for name, parent in (("a", "b"), ("b", "a"), ("c", "c"))]
    assert list_ids(*rows) == ["a", "└ b", "c"]


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
    document = {name: getattr(SESSION, name) for name in SESSION.__slots__}
    assert json.loads(capsys.readouterr().out) == [document | {"saved": None}]


def test_a_limit_bounds_the_listing(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(sessions=(SESSION, SESSION)), "sessions", "--limit", "1", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_the_log_is_the_one_in_the_data_directory_and_is_closed() -> None:
    log = FakeLog()
    call(log, "sessions", "--data", "/somewhere")
    assert str(log.opened[0].store_policy().path) == "/somewhere/log.db"
    assert log.is_closed
