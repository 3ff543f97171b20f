"""`palimpsest sessions`, and how a session is named wherever one is asked for."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.cli.inspection.sessions import format_sessions, sum_saving, tell_saving
from proxy.cli.terminal import UNKNOWN, Screen
from proxy.context.pricing import Cost
from proxy.read.savings import Saving
from proxy.read.session_summary import (
    AuxiliaryTotal,
    SessionSummary,
    WindowTokens,
)
from tests.cli.commands import call
from tests.support.fake_log import EXCHANGE, SESSION, FakeLog

NOW = 1_700_000_300_000
SUMMARY = SessionSummary(
    id="5f3a9c0d1122",
    title="Find the leak",
    name="",
    client="claude-code 2.1",
    model="gpt-5",
    upstream="openai",
    strategy="epochs",
    mode="manage",
    status="idle",
    family="",
    parent="",
    adopted="",
    seq=1,
    erased_ms=None,
    created_ms=1_700_000_000_000,
    last_ms=1_700_000_000_000,
    calls=12,
    turns=3,
    side=0,
    branches=1,
    epochs=2,
    summaries=0,
    errors=0,
    client_tokens=355_327,
    sent_tokens=206_445,
    output_tokens=2160,
    window_tokens=WindowTokens(27_000, 10_000),
    cache_read_share=0.8,
    spent=Cost(100.0, 3.0),
    saved=Saving(50.0, 1.0, 0.25, False, ""),
    auxiliary=AuxiliaryTotal(0, 0, 0, 0.0, None),
)


def change(**changes: Any) -> SessionSummary:
    return msgspec.structs.replace(SUMMARY, **changes)


def list_titles(*found: SessionSummary) -> list[str]:
    heading, *lines = format_sessions(found, NOW, Screen(140)).split("\n\n")[1].splitlines()
    return [line[heading.index("TITLE") : heading.index("CLIENT")].rstrip() for line in lines]


def test_a_session_is_a_line_of_what_matters() -> None:
    told = format_sessions([SUMMARY, change(id="1" * 20, status="live", last_ms=NOW)], NOW, Screen(140))
    assert told.splitlines() == [
        "2 sessions, 1 live: clients sent 710,654 tokens, models got 412,890. Managing saved $2.00, 25.0% of what"
        " sending everything would have cost.",
        "",
        "SESSION   TITLE          CLIENT           STATUS       TOKENS  SPENT  SAVED  LAST CALL  CALLS  EPOCHS  MODEL",
        "5f3a9c0d  Find the leak  claude-code 2.1  idle    355k → 206k  $3.00  $1.00  5 min ago     12       2  gpt-5",
        "11111111  Find the leak  claude-code 2.1  ● live  355k → 206k  $3.00  $1.00  now           12       2  gpt-5",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_a_listing_fits_the_terminal(width: int) -> None:
    found = [change(title="日本語 " * 20, client="x" * 30, model="claude-sonnet-4-5-20250929")]
    told = format_sessions(found, NOW, Screen(width)).split("\n\n")[1]
    assert max(map(len, told.splitlines())) <= max(width, 72)
    assert "5f3a9c0d" in told


def test_what_is_unknown_or_has_no_price_is_said_so() -> None:
    found = [
        change(title="", client="", saved=None, client_tokens=None, sent_tokens=None, spent=Cost(0.0, None)),
        change(client_tokens=1000, sent_tokens=1000, spent=Cost(90.0, None), saved=Saving(5.0, None, 0.1, False, "")),
    ]
    found[1] = msgspec.structs.replace(found[1], id="other")
    first, second = format_sessions(found, NOW, Screen(140)).split("\n\n")[1].splitlines()[1:]
    assert "(no text of a user)" in first
    assert first.count(UNKNOWN) == 4
    assert "1.0k  no price  no price" in second


def test_a_session_stands_below_the_one_that_started_it() -> None:
    found = [
        change(id=name, parent=parent, title=name) for name, parent in (("c", "b"), ("x", ""), ("b", "a"), ("a", ""))
    ]
    assert list_titles(*found) == ["x", "a", "└ b", "  └ c"]


def test_sessions_that_name_each_other_as_parents_are_listed_once() -> None:
    found = [change(id=name, parent=parent, title=name) for name, parent in (("a", "b"), ("b", "a"), ("c", "c"))]
    assert list_titles(*found) == ["a", "└ b", "c"]


def test_a_client_cannot_move_the_cursor_or_turn_the_line() -> None:
    bad = "\x1b[2J\x9b\u202e"
    told = format_sessions([change(title=bad, client=bad, model=bad)], NOW, Screen(200))
    assert not [c for c in told if not c.isprintable() and c != "\n"]


def test_losses_are_told_like_gains() -> None:
    lost = Saving(-20.0, -0.04, -0.01, True, "no call came after its last epoch")
    assert tell_saving(lost) == (
        "Managing lost $0.04, 1.0% of what sending everything would have cost: no call came after its last epoch."
    )
    total = sum_saving([(lost, Cost(100.0, 3.0)), (Saving(50.0, 1.0, 0.25, False, ""), Cost(10.0, 1.0))])
    assert (total.tokens, total.is_loss) == (30.0, False)
    assert total.money == pytest.approx(0.96)
    assert total.share == pytest.approx(0.96 / 4.96)
    assert total.reason == "1 session of 2 cost more than without us"


def test_without_a_price_for_all_of_them_the_sum_is_in_tokens() -> None:
    total = sum_saving(
        [
            (Saving(50.0, 1.0, 0.25, False, ""), Cost(50.0, 1.0)),
            (Saving(50.0, None, 0.5, False, ""), Cost(50.0, None)),
        ]
    )
    assert tell_saving(total) == (
        "Managing saved 100 tokens of uncached input (no price is known), 50.0% of what sending everything would have"
        " cost."
    )


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
    [document] = json.loads(capsys.readouterr().out)
    assert set(document) == set(SessionSummary.__struct_fields__)
    assert (document["id"], document["title"], document["calls"], document["sent_tokens"]) == (
        *(SESSION.id, "12345678901234567890123 é", 1, 10),
    )


def test_a_limit_bounds_the_listing(capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(sessions=(SESSION, SESSION)), "sessions", "--limit", "1", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_the_log_is_the_one_in_the_data_directory_and_is_closed() -> None:
    log = FakeLog()
    call(log, "sessions", "--data", "/somewhere")
    assert str(log.opened[0].store_policy().path) == "/somewhere/log.db"
    assert log.is_closed


AGENT = ((b"user-agent", b"claude-cli/2.1.3 (external, cli)"),)
OF_CLIENT = FakeLog(
    sessions=[
        replace(SESSION, id="child", parent="abc1", family="claude-code:1:sub", seq=3),
        replace(SESSION, seq=2),
        replace(SESSION, id="older", seq=1),
    ],
    exchanges=[replace(EXCHANGE, headers=AGENT), replace(EXCHANGE, session="older", id="x2", headers=AGENT)],
)


@pytest.mark.parametrize("asked", ["claude-code", "Claude-Code", "claude-code 2.1"])
def test_a_client_stands_for_its_newest_session_that_none_other_started(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(OF_CLIENT, "show", asked, "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["session"]["id"] == "abc1"
    many = {"claude-code 2.1": "2 sessions"}.get(asked, "3 sessions")
    assert told.err == f"palimpsest: this is abc1, the newest of {many} of {asked}\n"


def test_a_client_with_one_session_needs_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    log = FakeLog(exchanges=[replace(EXCHANGE, headers=AGENT)])
    assert call(log, "cache", "claude-code", "--json") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["show", "cache", "summaries", "handoff", "export", "memory"])
def test_what_is_neither_id_nor_name_nor_client_is_said_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), command, "cursor") == 1
    assert capsys.readouterr().err == (
        "palimpsest: no session begins with 'cursor', or is called so; `palimpsest sessions` or GET /-/api/sessions"
        " lists them\n"
    )
