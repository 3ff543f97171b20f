"""`palimpsest sessions` and `show`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.cli.sessions import format_exchange, format_session, format_sessions
from proxy.context.budget import BudgetPolicy
from proxy.context.cache_misses import CacheUse
from proxy.context.pricing import Cost
from proxy.engine.reports.cache import CacheReport, MissTotal
from proxy.engine.reports.savings import SavingEstimate
from proxy.engine.reports.session_summary import SessionSummary
from proxy.engine.reports.sessions import Overview, load_overview
from proxy.model.epoch import Plan
from proxy.model.log import ExchangeRow, SessionRow
from tests.cli.commands import call
from tests.support.fake_log import (
    ANSWER,
    EXCHANGE,
    REQUEST,
    ROUND,
    SESSION,
    TREE,
    FakeLog,
    exchange,
    make_use,
    stand,
    tip_of,
    tree_log,
)


def tell(*rows: ExchangeRow) -> list[str]:
    """The lines of a session whose calls have no place in a tree."""
    return format_session(Overview(SESSION, (), ()), rows).splitlines()


async def test_a_session_is_told_with_its_tree() -> None:
    told = format_session(await load_overview(tree_log(), "abc1"), TREE)
    head, _, tree = told.partition("\n\n")
    assert "name      agent-7" in head
    assert [line[:20].rstrip() for line in tree.splitlines()] == [
        "CALL   RELATION    T",
        "● 1    root        2",
        "├─● 4  branch      2",
        "│ ● 5  append      2",
        "│ └ tip 6669766500,",
        "● 2    append      2",
        "● 6    retry       2",
        "● 3    append      2",
        "└ tip 7468726565, 5",
        "○ 7    root, side  2",
        "└ tip 736576656e, 1",
        "- 8                2",
    ]
    assert max(map(len, told.splitlines())) <= 80


def test_what_is_special_about_a_session_is_told() -> None:
    child = replace(SESSION, id="child", family="agent-8")
    row = replace(SESSION, family="", parent="p1", adopted="a1", branches=1, side=2, model="")
    told = format_session(Overview(row, (), (child,)), ())
    for line in (
        "name      - (its client sends none)",
        "model     -, upstream openai",
        "calls     1, 1 branch, 2 side calls",
        "parent    p1",
        "goes on   from session a1, under another credential",
        "child     child  agent-8",
    ):
        assert f"{line}\n" in told


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "200"),
        ({"completeness": "truncated"}, "200 truncated"),
        ({"completeness": "failed", "status": 0}, "failed"),
        ({"completeness": "", "status": 0}, "open"),
        ({"status": 429}, "429"),
    ],
)
def test_the_status_says_how_a_call_ended(changes: dict[str, object], status: str) -> None:
    rounds = (replace(ROUND, usage=None, timings=None, **changes),)  # type: ignore[arg-type]
    assert tell(exchange(1, rounds=rounds))[-1].split("22:13:20  ")[1].rsplit(maxsplit=1)[0].strip() == status


def test_a_call_without_a_round_is_open() -> None:
    assert tell(exchange(1, rounds=(), model=""))[-1].split() == ["-", "1", "22:13:20", "open", "POST", "/v1/chat…"]


def test_times_on_several_days_have_the_day() -> None:
    lines = tell(exchange(1), exchange(2, opened_ms=EXCHANGE.opened_ms + 86_400_000))
    assert ["11-14 22:13" in lines[-2], "11-15 22:13" in lines[-1]] == [True, True]


async def test_no_line_is_longer_than_a_narrow_terminal() -> None:
    log = tree_log()
    wide = replace(ROUND, completeness="truncated")
    log.exchanges = [replace(row, model="claude-sonnet-4-5-20250929", rounds=(wide,)) for row in log.exchanges]
    log.sessions = [replace(SESSION, family="claude-code:" + "x" * 188, input_tokens=10**9, output_tokens=10**7)]
    assert max(map(len, format_sessions(log.sessions).splitlines())) <= 80
    tree = format_session(await load_overview(log, "abc1"), log.exchanges).partition("\n\n")[2]
    assert max(map(len, tree.splitlines())) <= 88  # the word for a broken answer is worth eight columns


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


def test_what_went_wrong_is_told() -> None:
    failed = replace(
        ROUND, status=0, completeness="failed", timings=None, usage=None, finish="", answer=b"", error="refused"
    )
    told = format_exchange(replace(EXCHANGE, rounds=(failed,), is_capped=True, model="", wire=""))
    assert "status -, failed" in told
    assert "error     refused" in told
    assert "kept to the cap only" in told
    assert "no known wire format" in told
    assert "response" not in told
    assert "place" not in told


def test_the_place_of_an_exchange_is_told() -> None:
    told = format_exchange(stand(4, "four", 3, "branch", is_side=True, base=2))
    assert f"place     branch, side; 2 of 3 messages known, tip {b'four'.hex()}" in told


def test_a_client_cannot_move_the_cursor() -> None:
    bad = "\x1b[2J\x9b"
    told = format_exchange(replace(EXCHANGE, target=f"/{bad}", model="\x07"))
    session = replace(SESSION, family=bad, model=bad, upstream=bad)
    told += format_sessions([session]) + format_session(Overview(session, (), (session,)), [exchange(1, model=bad)])
    assert not [c for c in told if not c.isprintable() and c != "\n"]


def test_what_was_decided_is_told_of_a_round_and_of_a_session() -> None:
    plan = Plan("x1", 0, "m", "epoch", "e1", "soft", "", 900, 300, 1000, 4.5, -2.5)
    told = format_exchange(exchange(1, rounds=(replace(ROUND, plan=plan),)))
    assert "\nsent as   epoch, epoch e1; pressure soft\n" in told
    row = replace(SESSION, counted=900, sent=300, saving=-2.5)
    estimate = SavingEstimate(Cost(-1.0, None), Cost(1.5, None), is_known=True, epochs=1, later=3)
    lines = format_session(Overview(row, (), ()), (), estimate=estimate).splitlines()
    assert "context   client 900, upstream 300 tokens, of the rounds that were counted" in lines
    assert "saved     -2 tokens of uncached input, by the usage that came back" in lines
    assert "a loss:   3 calls came after its last epoch, too few to pay for writing the cache anew" in lines
    assert format_sessions([row], {"abc1": estimate}).splitlines()[2].endswith("; lost 2")
    gain = replace(estimate, saved=Cost(90.0, 0.25), auxiliary=Cost())
    assert format_sessions([row], {"abc1": gain}).splitlines()[2].endswith("; saved 0.2500 in money")
    told = format_session(Overview(row, (), ()), (), estimate=gain)
    assert "\nsaved     +0.2500 in money, by the usage that came back\n" in told
    assert "a loss" not in told
    assert "saved" not in format_sessions([SESSION])


def test_what_was_missed_of_the_cache_is_told_in_a_line() -> None:
    report = CacheReport("abc1", [make_use(n=1), make_use(n=2, cause="epoch", why="soft", read=10)], {})
    totals: Any = {"epoch": MissTotal(1, 70, Cost(63.0, None))}
    told = format_session(Overview(SESSION, (), ()), (), found=replace(report, totals=totals))
    assert "\ncache     45.0% of the input read; missed epoch 70\n" in told
    clean = format_session(Overview(SESSION, (), ()), (), found=CacheReport("abc1", [make_use(n=1)], {}))
    assert "\ncache     80.0% of the input read; missed nothing\n" in clean
    unknown = replace(make_use(n=1), input=None)
    assert "cache" not in format_session(Overview(SESSION, (), ()), (), found=CacheReport("abc1", [unknown], {}))
    lines = [
        format_exchange(EXCHANGE, found=CacheReport("abc1", [call], {})).splitlines()[-1]
        for call in (*report.calls, replace(make_use(n=3), use=CacheUse("first", 0)))
    ]
    assert lines == [
        "cache     read 80 of 80 tokens expected",
        "cache     read 10 of 80 tokens expected; 70 missed, +63 tokens of uncached input: our epoch (soft)",
        "cache     nothing to be read",
    ]


def test_what_was_not_counted_has_a_bound() -> None:
    assert "context   at most 1034 tokens, by its bytes: nothing was counted\n" in format_exchange(EXCHANGE, 1034)
    assert "at most" not in format_exchange(EXCHANGE)


def test_calls_of_our_own_are_told_apart() -> None:
    row = replace(SESSION, auxiliary=2, auxiliary_input=70_000, auxiliary_output=1_000)
    told = format_session(Overview(row, (), ()), [exchange(1), exchange(2, kind="auxiliary")])
    assert "auxiliary 2 calls of our own beside these: input 70000, output 1000\n" in told
    assert "tokens    input 10, output 3\n" in told
    assert [line[:16].rstrip() for line in told.splitlines()[-2:]] == ["- 1", "- 2   auxiliary"]
    assert "2 auxiliary" in format_sessions([row])
    assert "auxiliary" not in format_session(Overview(SESSION, (), ()), ()) + format_sessions([SESSION])
    assert "(chat_completions; auxiliary, mode manage)" in format_exchange(exchange(2, kind="auxiliary"))


def test_from_where_on_calls_are_shortened_is_told() -> None:
    assert "shortened from 49664 tokens on, or fewer" in format_exchange(exchange(1))
    small = BudgetPolicy(ceiling_tokens=10_000)
    assert "shortened from 5820 tokens on, or fewer" in format_exchange(exchange(1), None, small)
    plan = Plan("x1", 0, "m", "original", "", "none", "", 900, 900, 1000, 0.0, None)
    planned = exchange(1, rounds=(replace(ROUND, plan=plan),))
    assert "shortened from 600 tokens on\n" in format_exchange(planned)
    assert "strategy  epochs\nshortened from 600 tokens on\n" in format_session(
        Overview(SESSION, (), ()), [exchange(1), planned]
    )
    turned = exchange(1, rounds=(replace(ROUND, plan=msgspec.structs.replace(plan, view="m (turns)")),))
    assert "strategy  turns: shortened with each prompt, from 1000 tokens on always\n" in format_exchange(turned)


def test_of_calls_that_are_not_managed_no_soft_mark_is_told() -> None:
    assert "shortened from 49664" in format_session(Overview(SESSION, (), ()), [exchange(1)])
    for untouched in (exchange(1, mode="observe"), exchange(1, kind="auxiliary"), exchange(1, kind="passthrough")):
        assert "shortened" not in format_exchange(untouched)


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
    assert f"response  {ANSWER.decode()}" in told


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
