"""`palimpsest expand`, `diff`, `handoff`, `summaries`, `cache`, `savings` and `statusline`."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from proxy.cli.reports import describe_net, format_cache, format_net, format_savings, format_status, format_summaries
from proxy.context.pricing import Comparison, Cost
from proxy.engine.ports import ALL_SESSIONS
from proxy.engine.reports.cache import CacheReport, MissTotal
from proxy.engine.reports.savings import Arm, SavingEstimate, Savings, TotalEstimate
from proxy.model.epoch import Original, Plan, StoredOriginal
from proxy.model.exchange import Usage
from proxy.model.figures import Tally
from proxy.model.log import Bill, Selection, SessionRow
from tests.cli.commands import call, call_without_log
from tests.store.samples import make_condensed, make_leaf
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog, make_use, tree_log
from tests.support.figures import tally_bills


class OriginalLog(FakeLog):
    """Every reference stands for one long message."""

    async def load_original(self, reference: str) -> StoredOriginal:
        raw = json.dumps({"role": "user", "content": "\x1b[2J" + "x" * 13_000}).encode()
        return StoredOriginal("abc1", Original(reference, (), "chat_completions", 0), (raw,))


def test_an_original_is_written_page_by_page(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    pages = []
    for options in ((), ("--page", "2"), ("--all",)):
        assert call(OriginalLog(), "expand", "ref:abcdefgh23", *options) == 0
        pages.append(capfdbinary.readouterr().out.decode())
    assert pages[0].startswith("--- user\n\N{REPLACEMENT CHARACTER}[2Jxx")
    assert "palimpsest expand abcdefgh23 --page 2" in pages[0]
    assert pages[0][:12_000] + pages[1] == pages[2]


def test_what_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(OriginalLog(), "expand", "ref:abcdefgh23", "--page", "3") == 1
    assert capsys.readouterr().err == "palimpsest: ref:abcdefgh23 has 2 pages, counted from 1, and no page 3\n"
    assert call(FakeLog(), "expand", "abcdefgh23") == 1
    assert "there is no reference abcdefgh23" in capsys.readouterr().err
    assert call(FakeLog(), "expand", "abcdefgh23", "--page", "0") == 2


def test_a_difference_is_told_as_text_and_as_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = FakeLog(bodies={"x1": b'{"messages":[]}'})

    async def load_sent(exchange: str, k: int) -> bytes:
        return b'{"messages":[],"n":1}' if k == 0 else b""

    log.load_sent = load_sent  # type: ignore[method-assign]
    assert call(log, "diff", "abc", "1") == 0
    assert capfdbinary.readouterr().out.decode().splitlines()[-3:] == ["@@ n", "- (absent)", "+ 1"]
    assert call(log, "diff", "abc", "1", "--round", "0", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["is_modified"], told["members"][0]["name"]) == (True, "n")
    assert call(log, "diff", "abc", "1", "--round", "1") == 1


def test_a_conversation_is_handed_on(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(tree_log(), "handoff", "abc1") == 0
    newest = capfdbinary.readouterr().out.decode()
    assert newest.startswith("# Handoff of session abc1\n")
    assert call(tree_log(), "handoff", "abc1", "--branch", "zz") == 1
    assert b"no branch begins with 'zz'" in capfdbinary.readouterr().err
    tip = "66697665"  # the branch that ends with the fifth call
    assert call(tree_log(), "handoff", "abc1", "--branch", tip) == 0
    assert "Up to exchange 5" in capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize("n", ["0", str(2**63)])
def test_a_number_that_no_exchange_can_have_is_a_wrong_argument(n: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "diff", "abc1", n) == 2
    assert "Invalid value for" in capsys.readouterr().err


POOR = structs.replace(make_leaf("poor", [b"a", b"b"], level=3), reason="no \x1b[2J answer")
ONE = structs.replace(make_leaf("one", [b"a", b"b"], supersedes=["poor"]), model="gpt-4o-mini")
TWO = structs.replace(make_leaf("two", [b"c"], 2, text="a report\n" * 40), is_provisional=True)
BOTH = make_condensed("both", [ONE, TWO])
LOG = FakeLog(summaries=(POOR, ONE, TWO, BOTH, make_leaf("gone", [b"d"], 3, text="")))


def test_the_tree_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(LOG, "summaries", "abc") == 0
    told = capsys.readouterr().out
    assert told.splitlines() == [
        "SUMMARY     LEVEL  MESSAGES  COVERED  TOKENS  MODEL",
        "● both          1  0 to 2       1800       5  -",
        "  what was done, in short",
        "  └ one         1  0 to 1        900       3  gpt-4o-mini",
        "    what was done",
        "    ○ poor      3  0 to 1        900       3  -",
        "      provisional (no \N{REPLACEMENT CHARACTER}[2J answer): what was done",
        "  └ two         1  2 to 2        900       3  -",
        "    provisional: a report a report a report a report a report a report a report…",
        "● gone          1  3 to 3        900       3  -",
        "  (its text was erased)",
    ]
    assert max(map(len, told.splitlines())) <= 80


def test_summaries_as_json_have_all_fields(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(LOG, "summaries", "abc", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert [each["id"] for each in told] == ["poor", "one", "two", "both", "gone"]
    assert told[3]["parents"] == ["one", "two"]


def test_a_session_without_summaries_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "summaries", "abc") == 0
    assert capsys.readouterr().out == "This session has no summaries.\n"
    assert call(FakeLog(), "summaries", "zzz") == 1
    assert "no session begins with 'zzz'" in capsys.readouterr().err


def test_a_deep_line_stays_within_the_page() -> None:
    line = [make_leaf("s0", [b"a"], text="x" * 200)]
    for i in range(1, 30):
        line.append(structs.replace(make_condensed(f"s{i}", [line[-1]]), text="x" * 200))
    told = format_summaries(line).splitlines()
    assert len(told) == 61
    assert max(map(len, told)) <= 80


BILL = Bill(
    1, "s1", "managed", 1_700_000_000_000, "openai", "m", Usage(input=8000), "original", "holdout", None, 10_000
)
FOUND = Savings(
    "tokens", Arm(42, 0.1312, 2), Arm(21, 0.2211, 3), Comparison(0.406, 0.301, 0.497), "", 120, 1, 1_700_000_000_000
)


@dataclass
class HeldOut(FakeLog):
    """One session that was only observed."""

    async def list_bills(self, after: int = 0, limit: int = 1000, session: str = "") -> Sequence[Bill]:
        return () if after else (BILL,)

    async def load_tallies(self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = ()) -> Sequence[Tally]:
        return tally_bills((BILL,))


def test_a_saving_is_told_with_how_sure_it_is() -> None:
    assert format_savings(FOUND).splitlines() == [
        "Managing saves 40.6% of the cost of long sessions (95 % confidence interval: 30.1% to 49.7%).",
        "",
        "               SESSIONS  COST",
        "managed              42  0.1312",
        "only observed        21  0.2211",
        "Cost is in tokens of uncached input for a token of the client's requests.",
        "Sessions since 2023-11-14 22:13:20Z, without 120 that did not reach the soft mark.",
        "Not counted: 1 that were managed for a part of their calls only.",
        "Of 5 no response reported cached tokens: all their input counts as uncached.",
    ]


def test_money_is_told_by_the_million() -> None:
    told = format_savings(replace(FOUND, unit="money", managed=Arm(42, 1.5e-6, 0), held_out=Arm(21, 2e-6, 0), mixed=0))
    assert "managed              42  1.5000" in told
    assert "money for a million tokens" in told
    assert "Not counted" not in told and "no response" not in told


def test_the_log_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(HeldOut(), "savings") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "Too few sessions to tell: it takes 20 of each that came up to the soft mark."
    assert told[3:5] == ["managed               0  -", "only observed         1  1.0000"]


def test_savings_as_json_have_all_fields(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(HeldOut(), "savings", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["saving"], told["held_out"]) == (None, {"sessions": 1, "cost": 1.0, "blind": 1})


def test_what_calls_read_of_the_cache_is_told_call_by_call() -> None:
    calls = [
        make_use(1),
        make_use(2, cause="message", read=10, place=7),
        make_use(3, cause="epoch", read=0, why="hard"),
    ]
    totals: Any = {"epoch": MissTotal(1, 80, Cost(72.0, None)), "message": MissTotal(1, 70, Cost(63.0, None))}
    told = format_cache(CacheReport("abc1", calls, totals), SavingEstimate(Cost(-40.0, None), epochs=1, later=2))
    assert told.splitlines() == [
        "CALL  TIME      INPUT  READ  WRITTEN  EXPECTED  MISSED  COST",
        "   1  22:13:20    100    80                 80",
        "   2  22:13:20    100    10                 80      70    63",
        "      the client changed message 7",
        "   3  22:13:20    100     0                 80      80    72",
        "      our epoch (hard)",
        "",
        "CAUSE    CALLS  MISSED  COST",
        "epoch        1      80    72",
        "message      1      70    63",
        "",
        "30.0% of the input was read from the cache. COST is what was missed, in tokens of uncached input.",
        "Managing lost 40 tokens of uncached input by the usage that came back:"
        " 2 calls came after its last epoch, too few to pay for writing the cache anew.",
    ]


def test_a_miss_is_told_in_money_where_all_prices_are_known() -> None:
    call_ = replace(make_use(1, cause="provider", read=0), cost=Cost(72.0, 0.25))
    told = format_cache(CacheReport("abc1", [call_], {"provider": MissTotal(1, 80, call_.cost)}))
    assert "      80  0.2500" in told
    assert told.endswith("COST is what was missed, in money.")


def test_a_gain_is_told_as_one() -> None:
    assert describe_net(SavingEstimate(Cost(90.0, 0.5), Cost(40.0, 0.25))) == (
        "Managing saved 0.2500 in money (50 tokens of uncached input) by the usage that came back."
    )
    lost = SavingEstimate(Cost(10.0, 0.1), Cost(40.0, 0.35))
    assert describe_net(lost) == (
        "Managing lost 0.2500 in money (30 tokens of uncached input) by the usage that came back:"
        " its summaries cost more than was saved."
    )


def test_the_cache_of_a_session_is_told_and_written_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(100, 3, 0)
    log = FakeLog(exchanges=[replace(EXCHANGE, rounds=(replace(ROUND, usage=usage),))])
    assert call(log, "cache", "abc1") == 0
    assert "      nothing to be read\n" in capsys.readouterr().out
    assert call(log, "cache", "abc1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["session"], told["totals"], told["saved"]) == ("abc1", {}, None)
    assert [(each["n"], each["input"], each["read"], each["use"]) for each in told["calls"]] == [(1, 100, 0, "first")]
    unread = FakeLog(exchanges=[replace(EXCHANGE, rounds=(replace(ROUND, usage=None),))])
    assert call(unread, "cache", "abc1") == 0
    assert capsys.readouterr().out == "No call of this session has a usage that the provider reported.\n"


def test_a_saving_of_all_sessions_is_told_with_its_losses() -> None:
    total = TotalEstimate(12, Cost(9000.0, None), 0.41, 2, Cost(-300.0, None))
    told = format_savings(replace(FOUND, estimate=total)).splitlines()
    assert told[:5] == [
        "Managing saved 9000 tokens of uncached input, 41.0% of what sending everything would have cost:",
        "an estimate over 12 sessions, by the usage that came back.",
        "2 sessions of them lost 300 tokens of uncached input.",
        "",
        "Managing saves 40.6% of the cost of long sessions (95 % confidence interval: 30.1% to 49.7%).",
    ]
    lost = TotalEstimate(1, Cost(-9.0, -0.5), None, 1, Cost(-9.0, -0.5))
    assert format_savings(replace(FOUND, estimate=lost)).splitlines()[:3] == [
        "Managing lost 0.5000 in money (9 tokens of uncached input):",
        "an estimate over 1 session, by the usage that came back.",
        "1 session of them lost 0.5000 in money (9 tokens of uncached input).",
    ]


def test_without_a_holdout_it_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "savings") == 0
    assert capsys.readouterr().out == (
        "No session was only observed so far; compaction.holdout_fraction says how many of them are.\n"
    )


PLAN = Plan("x1", 0, "m", "epoch", tokens_client=90_000, tokens_upstream=30_000, usable=100_000)


@pytest.mark.parametrize(
    ("given", "family"),
    [
        ('{"session_id": "s-1", "cwd": "/"}', "claude-code:s-1:main"),
        ("", ""),
        ("nonsense", ""),
        ("[1]", ""),
        ('{"session_id": null}', ""),
    ],
)
def test_a_status_line_is_of_the_session_that_the_client_names(
    given: str, family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Selection] = []

    class Log(FakeLog):
        async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
            asked.append(selection)
            return await super().list_sessions(limit)

    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert call(Log(), "statusline") == 0
    assert capsys.readouterr().out == "palimpsest: 10 tokens\n"
    assert asked == [Selection(family=family)]


def test_a_status_line_tells_the_newest_call_of_the_conversation() -> None:
    short = replace(EXCHANGE, rounds=(replace(ROUND, plan=PLAN, usage=Usage(input=30_500, output=3)),))
    later = (replace(EXCHANGE, is_side=True), replace(EXCHANGE, kind="auxiliary"), replace(EXCHANGE, rounds=()))
    saved = SavingEstimate(saved=Cost(1234.0, None), is_known=True)
    assert format_status((EXCHANGE, short, *later), saved) == "30,500 tokens, 60,000 held back, saved 1,234 tokens"
    assert format_status((short, EXCHANGE), None) == "10 tokens"
    assert format_status((), None) == "no call yet"


def test_a_status_line_without_a_log_says_so_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert call_without_log("statusline") == 0
    assert capsys.readouterr().out == "palimpsest: there is no log; choose --data\n"


def test_a_saving_in_few_words_is_in_money_where_prices_are_known() -> None:
    assert format_net(SavingEstimate(saved=Cost(5.0, 0.25), is_known=True)) == "saved 0.2500 in money"
    assert format_net(SavingEstimate(saved=Cost(-5.0, -0.25), is_known=True)) == "lost 0.2500 in money"
