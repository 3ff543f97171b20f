"""`palimpsest show`: a session, or one call of it."""

import json
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.cli.inspection.reports import format_difference
from proxy.cli.inspection.show import format_exchange, format_session
from proxy.cli.terminal import MINUS, UNKNOWN, Screen
from proxy.config import Settings
from proxy.context.budget import BudgetPolicy
from proxy.model.epoch import Epoch, Plan
from proxy.model.log import ExchangeRow
from proxy.read.cache import CacheCost, CacheReport, MissTotal
from proxy.read.diff import DifferenceDocument
from proxy.read.session_summary import AuxiliaryTotal
from proxy.read.sessions import OverviewDocument, load_overview
from proxy.read.timeline import Loop
from tests.cli.commands import call, load_savings_inputs
from tests.cli.test_sessions import SUMMARY
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

PLAN = Plan("x2", 0, "m", "plan", "e1", "soft", "", 1900, 300, 1000, 4.5, -2.5)
EPOCH = Epoch("e1", "abc1", "m", "", b"", 3, "soft", "x2", 0, 1900, 300, b"[]", (), ())


LITTLE_KNOWN = msgspec.structs.replace(SUMMARY, client_tokens=None, sent_tokens=None, saved=None)
BARE = OverviewDocument(LITTLE_KNOWN, [], [])


async def load_tree(log: FakeLog) -> OverviewDocument:
    return await load_overview(log, "abc1", await load_savings_inputs(Settings()))


def tell(*rows: ExchangeRow) -> list[str]:
    """The rows of a session whose calls have no place in a tree."""
    return format_session(BARE, rows).splitlines()[:-2]


async def test_a_session_is_told_with_its_tree() -> None:
    told = format_session(await load_tree(tree_log()), TREE)
    sentence, head, tree, legend = told.split("\n\n")
    assert sentence == "8 calls; none was shortened."
    assert "name      agent-7" in head
    assert [line[:18].rstrip() for line in tree.splitlines()] == [
        "CALL   TIME      S",
        "● 1    22:13:20  2",
        "├─● 4  22:13:20  2",
        "│ ● 5  22:13:20  2",
        "│ └ end 6669766500",
        "● 2    22:13:20  2",
        "● 6    22:13:20  2",
        "● 3    22:13:20  2",
        "└ end 7468726565,",
        "○ 7    22:13:20  2",
        "└ end 736576656e,",
        "- 8    22:13:20  2",
    ]
    assert "another branch" in tree.splitlines()[2]
    assert "↻ the same again" in tree.splitlines()[6]
    assert "side call" in tree.splitlines()[9]
    assert max(map(len, told.splitlines())) <= 80
    assert "↻" in legend


def test_what_is_special_about_a_session_is_told() -> None:
    child = msgspec.structs.replace(LITTLE_KNOWN, id="child", family="agent-8", title="")
    session = msgspec.structs.replace(LITTLE_KNOWN, family="", parent="p1", adopted="a1", calls=1, side=2, model="")
    told = format_session(OverviewDocument(session, [], [child]), ())
    for line in (
        f"name      {UNKNOWN} (its client sends none)",
        f"model     {UNKNOWN} at openai",
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
    assert tell(exchange(1, rounds=rounds))[-1].split("22:13:20  ")[1].startswith(f"{status}  ")


def test_an_error_is_told_with_its_reason() -> None:
    refused = replace(ROUND, status=429, error="rate limited, try later")
    assert "✕ rate limited, try later" in tell(exchange(1, rounds=(refused,)))[-1]
    assert "✕ refused by the upstream" in tell(exchange(1, rounds=(replace(refused, error=""),)))[-1]


def test_a_call_without_a_round_is_open() -> None:
    assert tell(exchange(1, rounds=(), model=""))[-1].split()[:5] == ["-", "1", "22:13:20", "open", UNKNOWN]


def test_times_on_several_days_have_the_day() -> None:
    lines = tell(exchange(1), exchange(2, opened_ms=EXCHANGE.opened_ms + 86_400_000))
    assert ["11-14 22:13" in lines[-2], "11-15 22:13" in lines[-1]] == [True, True]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
async def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    log, wide = tree_log(), replace(ROUND, completeness="truncated", plan=PLAN, error="e" * 200)
    log.exchanges = [replace(row, model="claude-sonnet-4-5-20250929", rounds=(wide,)) for row in log.exchanges]
    told = format_session(await load_tree(log), log.exchanges, epochs=[EPOCH], screen=Screen(width))
    tree = told.split("\n\n")[2].splitlines()
    assert max(map(len, tree)) <= max(width, 56)  # what must be told takes 56
    assert (width < 100) == ("MODEL" not in tree[0])


def test_what_was_shortened_is_told_of_each_call_and_of_all() -> None:
    use = make_use(2, cause="epoch", epoch_why="soft", read=10, saved=CacheCost(-40.0, -0.0009))
    report = CacheReport("abc1", [use, make_use(3, saved=CacheCost(90.0, 1.5))], {}, None)
    rows = (exchange(1), exchange(2, rounds=(replace(ROUND, plan=PLAN),)), exchange(3))
    told = format_session(BARE, rows, found=report, epochs=[EPOCH], screen=Screen(90))
    assert told.startswith("3 calls, 1 of them shortened: the client sent 1,900 tokens, the model got 300.\n")
    first, second, third = told.split("\n\n")[2].splitlines()[1:]
    assert first.split()[4:] == ["10", "3", UNKNOWN, "1.2", "gpt-5"]
    assert f"1,900 → 300       3  {MINUS}$0.0009  ▲ epoch 1, it pays" in second
    assert "$1.50" in third


def test_without_a_price_a_saving_is_in_tokens() -> None:
    report = CacheReport("abc1", [make_use(1, saved=CacheCost(1234.0, None))], {}, None)
    assert "1,234 tok" in format_session(BARE, [exchange(1)], found=report)


def test_what_else_happened_is_told_of_a_call() -> None:
    plan = msgspec.structs.replace(PLAN, rung="minimal")
    rounds = (ROUND, replace(ROUND, k=1, plan=plan))
    report = CacheReport("abc1", [make_use(1, cause="system", read=10)], {}, None)
    wide = Screen(300)
    row = format_session(
        BARE, [exchange(1, rounds=rounds, relation="volatile")], found=report, screen=wide
    ).splitlines()[-3]
    assert (
        "⚡ the client changed its system prompt; ↻ its end rewritten; only a digest and the last turn; 2 rounds" in row
    )


def test_a_loop_is_marked_at_its_call() -> None:
    loops = [Loop(2, 5, "bash", 6, has_same_output=True)]
    told = format_session(BARE, [exchange(1), exchange(2)], screen=Screen(120), loops=loops)
    first, second = told.split("\n\n")[2].splitlines()[1:]
    assert "\N{INFINITY}" not in first
    assert "\N{INFINITY} loop: bash, 6 times in a row" in second
    assert "\N{INFINITY} loop" in told.splitlines()[-1]


def test_a_call_in_which_the_model_recalled_has_the_tokens_of_its_client() -> None:
    first, more = (
        msgspec.structs.replace(PLAN, tokens_client=client, tokens_upstream=sent)
        for client, sent in ((9000, 3000), (0, 3500))
    )
    row = exchange(1, rounds=(replace(ROUND, plan=first), replace(ROUND, k=1, plan=more)))
    assert "9,000 → 3,500" in format_session(BARE, [row])


def test_what_went_wrong_is_told() -> None:
    failed = replace(
        ROUND, status=0, completeness="failed", timings=None, usage=None, finish="", answer=b"", error="refused"
    )
    told = format_exchange(replace(EXCHANGE, rounds=(failed,), is_capped=True, model="", wire=""))
    assert f"status {UNKNOWN}, failed" in told
    assert "error     refused" in told
    assert "kept to the cap only" in told
    assert "no known wire format" in told
    assert "place" not in told


def test_the_place_of_an_exchange_is_told() -> None:
    told = format_exchange(stand(4, "four", 3, "branch", is_side=True, base=2))
    assert f"place     branch, side; 2 of 3 messages known, on branch {b'four'.hex()}" in told


def test_a_client_cannot_move_the_cursor() -> None:
    bad = "\x1b[2J\x9b"
    told = format_exchange(replace(EXCHANGE, target=f"/{bad}", model="\x07"))
    session = msgspec.structs.replace(SUMMARY, family=bad, model=bad, upstream=bad, title=bad, client=bad)
    told += format_session(OverviewDocument(session, [], [session]), [exchange(1, model=bad)])
    assert not [c for c in told if not c.isprintable() and c != "\n"]


def test_what_was_decided_is_told_of_a_call() -> None:
    told = format_exchange(exchange(2, rounds=(replace(ROUND, plan=PLAN),)))
    assert told.startswith("Call 2 sent 300 of its client's 1,900 tokens.\n")
    assert "\nsent      under a new epoch, e1; above the soft mark\n" in told
    own = msgspec.structs.replace(PLAN, rung="original", tokens_upstream=1900)
    assert format_exchange(exchange(2, rounds=(replace(ROUND, plan=own),))).startswith(
        "Call 2 was sent as its client sent it, 1,900 tokens.\n"
    )
    rewritten = msgspec.structs.replace(PLAN, rung="epoch", tokens_client=None)
    assert format_exchange(exchange(2, rounds=(replace(ROUND, plan=rewritten),))).startswith(
        "Call 2 was sent in a rewritten form.\n"
    )


def test_rounds_are_counted_from_one_and_only_named_where_there_are_several() -> None:
    told = format_exchange(EXCHANGE)
    assert "\nupstream  openai: status 200, complete, " in told and "round" not in told
    several = format_exchange(replace(EXCHANGE, rounds=(ROUND, replace(ROUND, k=1, status=500))))
    assert re.findall(r"(?m)^round (\d)   openai: status (\d+)", several) == [("1", "200"), ("2", "500")]
    found = DifferenceDocument("abc1", 1, 1, False, None, 0, 0, [], [])
    assert format_difference(found, 2).startswith("exchange 1 of session abc1, round 2 of 2: ")


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (CacheCost(90.0, 0.25), "That saved $0.25."),
        (CacheCost(90.0, None), "That saved 90 tokens of uncached input."),
        (CacheCost(-90.0, -0.25), "That cost $0.25 more."),
    ],
)
def test_what_a_call_saved_or_cost_is_told(saved: CacheCost, words: str) -> None:
    report = CacheReport("abc1", [make_use(1, saved=saved)], {}, None)
    assert format_exchange(exchange(1), found=report).splitlines()[0].endswith(words)


def test_a_session_is_told_with_its_title_client_and_saving() -> None:
    child = msgspec.structs.replace(SUMMARY, id="child", title="look for callers")
    rows = [exchange(2, rounds=(replace(ROUND, plan=PLAN),))]
    told = format_session(OverviewDocument(SUMMARY, [], [child]), rows, screen=Screen(400))
    assert told.startswith(
        "1 call, 1 of them shortened: the client sent 355,327 tokens, the model got 206,445."
        " Managing saved $1.00, 25.0% of what sending everything would have cost.\n"
    )
    assert "\ntitle     Find the leak\nclient    claude-code 2.1, idle\n" in told
    assert "\nchild     child  look for callers\n" in told


def test_what_was_missed_of_the_cache_is_told_in_a_line() -> None:
    report = CacheReport("abc1", [make_use(n=1), make_use(n=2, cause="epoch", epoch_why="soft", read=10)], {}, None)
    totals: Any = {"epoch": MissTotal(1, 70, 63.0, None)}
    told = format_session(BARE, (), found=msgspec.structs.replace(report, totals=totals))
    assert "\ncache     45.0% of the input read; missed epoch 70\n" in told
    clean = format_session(BARE, (), found=CacheReport("abc1", [make_use(n=1)], {}, None))
    assert "\ncache     80.0% of the input read; missed nothing\n" in clean
    bare = CacheReport("abc1", [make_use(n=1, input=None)], {}, None)
    assert "cache  " not in format_session(BARE, (), found=bare)
    lines = [
        format_exchange(EXCHANGE, found=CacheReport("abc1", [call], {}, None)).splitlines()[-1]
        for call in (*report.calls, make_use(n=3, read=0, use="first", expected=0))
    ]
    assert lines == [
        "cache     read 80 of 80 tokens expected",
        "cache     read 10 of 80 tokens expected; 70 missed, which cost 63 tokens of uncached input: our epoch (soft)",
        "cache     nothing to be read",
    ]


def test_what_was_not_counted_has_a_bound() -> None:
    assert "context   at most 1,034 tokens, by its bytes: nothing was counted\n" in format_exchange(EXCHANGE, 1034)
    assert "at most" not in format_exchange(EXCHANGE)


def test_calls_of_our_own_are_told_apart() -> None:
    summary = msgspec.structs.replace(SUMMARY, saved=None, auxiliary=AuxiliaryTotal(2, 70_000, 1_000, 0.0, None))
    calls = [exchange(1), exchange(2, kind="auxiliary")]
    told = format_session(OverviewDocument(summary, [], []), calls)
    assert told.startswith("1 call; none was shortened.")
    assert "auxiliary 2 calls of our own beside these: input 70,000, output 1,000\n" in told
    assert "tokens    input 206,445, output 2,160\n" in told
    assert "our own call" in told.splitlines()[-3]
    assert "auxiliary" not in format_session(BARE, ())
    assert "(chat_completions; auxiliary, mode manage)" in format_exchange(exchange(2, kind="auxiliary"))


def test_from_where_on_calls_are_shortened_is_told() -> None:
    assert "strategy  epochs: shortened from 49,664 tokens on, or fewer" in format_exchange(exchange(1))
    small = BudgetPolicy(ceiling_tokens=10_000)
    assert "shortened from 5,820 tokens on, or fewer" in format_exchange(exchange(1), None, small)
    plan = Plan("x1", 0, "m", "original", "", "none", "", 900, 900, 1000, 0.0, None)
    planned = exchange(1, rounds=(replace(ROUND, plan=plan),))
    assert "shortened from 600 tokens on\n" in format_exchange(planned)
    assert "strategy  epochs: shortened from 600 tokens on\n" in format_session(BARE, [exchange(1), planned])
    turned = exchange(1, rounds=(replace(ROUND, plan=msgspec.structs.replace(plan, view="m (turns)")),))
    assert "strategy  turns: shortened with each prompt, from 1,000 tokens on always\n" in format_exchange(turned)


def test_of_calls_that_are_not_managed_no_soft_mark_is_told() -> None:
    assert "shortened from 49,664" in format_session(BARE, [exchange(1)])
    for untouched in (exchange(1, mode="observe"), exchange(1, kind="auxiliary"), exchange(1, kind="passthrough")):
        assert "shortened from" not in format_exchange(untouched)


@pytest.mark.parametrize("asked", ["ab", "abc1", "agent-7"])
def test_a_session_is_found_by_how_its_id_begins_or_by_its_name(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", asked) == 0
    told = capsys.readouterr().out
    assert "\nsession   abc1\n" in told
    assert told.splitlines()[-3].split() == ["-", "1", "22:13:20", "200", "10", "3", UNKNOWN, "1.2", "gpt-5"]


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
        "words": "5",
    }
    assert [branch["after"] for branch in shown["branches"]] == [0, 1, 0]
    row = shown["exchanges"][5]
    assert (row["n"], row["relation"], row["tip"], row["depth"]) == (6, "retry", tip_of("two").hex(), 3)
    assert not {"request", "headers", "answer"} & (set(row) | set(row["rounds"][0]))
    assert (row["rounds"][0]["status"], row["rounds"][0]["finish"]) == (200, "stop")


def test_one_call_is_told_with_its_request_and_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", "1") == 0
    told = capsys.readouterr().out
    assert "exchange  x1, number 1 of session abc1" in told
    assert "tokens    input 10, output 3" in told
    assert "finish    stop" in told
    assert "\n\nuser\n    12345678901234567890123 é\n\nanswer\n    hi \ufffd\n" in told


def test_a_call_whose_request_was_erased_still_has_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(bodies={}), "show", "abc1", "1") == 0
    told = capsys.readouterr().out
    assert "The request cannot be shown: this content was erased.\n" in told
    assert "\nanswer\n    hi" in told


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


@pytest.mark.parametrize("option", [("--raw", "sent"), ("--all",)])
def test_what_is_for_one_call_needs_its_number(option: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", *option) == 2
    assert "SESSION N" in capsys.readouterr().err


def test_an_exchange_that_is_not_there_is_not_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", "7") == 1
    assert capsys.readouterr().err == "palimpsest: this session has no exchange 7; it has 1, counted from 1\n"


@pytest.mark.parametrize("n", ["0", str(2**63)])
def test_a_number_that_no_exchange_can_have_is_a_wrong_argument(n: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "show", "abc1", n) == 2
    assert "Invalid value for" in capsys.readouterr().err
