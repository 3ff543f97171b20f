"""`palimpsest cache`, `savings` and `statusline`."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from proxy.cli.inspection.costs import format_cache, format_net, format_savings, format_status
from proxy.cli.terminal import MINUS, UNKNOWN, Screen
from proxy.engine.ports import ALL_SESSIONS
from proxy.model.epoch import Plan
from proxy.model.exchange import Usage
from proxy.model.figures import RoundFigures, Tally
from proxy.model.log import Selection, SessionRow, ShadowRow
from proxy.read.cache import CacheReport, MissTotal
from proxy.read.savings import Arm, LosingSession, PartSaving, Saving, SavingsReport, SavingsTotal
from proxy.read.shadow import Agreement, ShadowReport, compute_share
from tests.cli.commands import call, call_without_log
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog, make_use
from tests.support.figures import Bill, tally_bills, work_out_bills

WIDE = Screen(400)

BILL = Bill(
    1, "s1", "managed", 1_700_000_000_000, "openai", "m", Usage(input=8000), "original", "holdout", None, 10_000
)
FOUND = SavingsReport(
    *(None, [], [], [], 0.406, 0.301, 0.497),
    *("tokens", Arm(42, 0.1312, 2), Arm(21, 0.2211, 3), "", 120, 1, 1_700_000_000_000),
)


@dataclass
class HeldOut(FakeLog):
    """One session that was only observed."""

    async def load_rounds(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[RoundFigures]:
        return work_out_bills((BILL,), session, after, limit)

    async def load_tallies(self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = ()) -> Sequence[Tally]:
        return tally_bills((BILL,))


def test_a_saving_is_told_with_how_sure_it_is() -> None:
    assert format_savings(FOUND, WIDE).splitlines() == [
        "Compared with sessions that are only observed, managing saves 40.6% of the cost of long sessions"
        " (95 % confidence interval: 30.1% to 49.7%).",
        "",
        "               SESSIONS    COST",
        "managed              42  0.1312",
        "only observed        21  0.2211",
        "",
        "Cost is in tokens of uncached input for a token of the client's requests.",
        "Sessions since 2023-11-14 22:13:20 UTC, without 120 that did not reach the soft mark.",
        "Not counted: 1 that were managed for a part of their calls only.",
        "Of 5 no response reported cached tokens: all their input counts as uncached.",
    ]


def test_that_managing_costs_more_is_told_alike() -> None:
    told = format_savings(structs.replace(FOUND, saving=-0.1, low=-0.2, high=0.01), WIDE)
    assert "managing costs 10.0% more of the cost of long sessions" in told
    assert f"interval: {MINUS}20.0% to 1.0%)" in told


def test_money_is_told_by_the_million() -> None:
    told = format_savings(
        structs.replace(FOUND, unit="money", managed=Arm(42, 1.5e-6, 0), held_out=Arm(21, 2e-6, 0), mixed=0)
    )
    assert "managed              42  $1.50" in told
    assert "money for a million tokens" in told
    assert "Not counted" not in told and "no response" not in told


def test_what_checks_of_shortened_calls_found_is_told_with_how_sure_it_is() -> None:
    total = Agreement("", 60, 20, 5, 15, 2, compute_share(60, 100), compute_share(85, 100), 1e6, 2.5)
    sessions = [structs.replace(total, name="0123456789abcdef"), structs.replace(total, name="f" * 20, agreement=None)]
    models = [structs.replace(total, name="m at openai")]
    ages = [structs.replace(total, name="0 to 10 messages"), structs.replace(total, name="unknown")]
    told = format_savings(
        structs.replace(FOUND, shadow=ShadowReport(total, sessions, models, ages, ["claude-x"])), WIDE
    )
    lines = told.splitlines()
    assert (
        "The client's own request had the same answer in 60.0% (50.2% to 69.1%) of the calls that were checked, and"
        " called no other tool in 85.0% (76.7% to 90.7%). Sending 102 own requests cost $2.50."
    ) in lines
    assert "m at openai  60.0% (50.2% to 69.1%)    60               20           5          15             2" in lines
    assert any(line.startswith("0 to 10 messages") for line in lines)
    assert any(line.startswith("ffffffff ") and UNKNOWN in line for line in lines)
    assert lines[-1] == (
        "claude-x may bind signed reasoning to the prompt: requests with such reasoning are checked only with"
        " shadow.bound_reasoning."
    )


def test_where_no_answer_could_be_compared_that_is_told() -> None:
    total = Agreement("", 0, 0, 0, 0, 3, None, None, 10.0, None)
    told = format_savings(structs.replace(FOUND, shadow=ShadowReport(total, [], [], [], [])), WIDE)
    assert "Nothing could be compared. Sending 3 own requests cost" in told


@dataclass
class CheckedLog(FakeLog):
    """A log with one checked call."""

    async def list_shadows(self, since_ms: int, limit: int = 0) -> Sequence[ShadowRow]:
        answer = b'{"choices":[{"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}'
        named = ("x1", "s", 7, "chat_completions", "openai", "m", 200)
        return [ShadowRow(*named, Usage(90, 5), Usage(80, 5), 12, ("stop", "stop"), (answer, answer))]


def test_checks_are_in_the_json_only_where_there_are_some(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(FakeLog(), "savings", "--json") == 0
    assert "shadow" not in json.loads(capfdbinary.readouterr().out)
    assert call(CheckedLog(), "savings", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)["shadow"]
    assert (told["total"]["same"], told["total"]["agreement"]["share"], told["bound"], told["most"]) == (
        1,
        1.0,
        ["m"],
        1000,
    )
    assert [(each["name"], each["same"]) for each in told["ages"]] == [("11 to 30 messages", 1)]


def test_the_log_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(HeldOut(), "savings") == 0
    told = capsys.readouterr().out.splitlines()
    assert (
        "Not compared with sessions that are only observed: too few sessions to tell: it takes 20 of each"
        in " ".join(told)
    )
    assert f"managed               0       {UNKNOWN}" in told
    assert "only observed         1  1.0000" in told


def test_savings_as_json_have_all_fields(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(HeldOut(), "savings", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["saving"], told["held_out"]) == (None, {"sessions": 1, "cost": 1.0, "blind": 1})


def test_what_calls_missed_of_the_cache_is_told_by_cause_and_by_call() -> None:
    calls = [
        make_use(1),
        make_use(2, cause="message", read=10, place=7),
        make_use(3, cause="epoch", read=0, epoch_why="hard"),
    ]
    totals: Any = {"epoch": MissTotal(1, 80, 72.0, None), "message": MissTotal(1, 70, 63.0, None)}
    loss = Saving(-40.0, None, None, True, "2 calls came after its last epoch")
    told = format_cache(CacheReport("abc1", calls, totals, loss), WIDE)
    assert told.splitlines() == [
        "30.0% of the input was read from the cache; 2 calls missed 150 tokens that were expected there, which cost 135"
        " tokens of uncached input. Managing lost 40 tokens of uncached input (no price is known): 2 calls came after"
        " its last epoch.",
        "",
        "CAUSE    CALLS  MISSED    COST",
        "epoch        1      80  72 tok",
        "message      1      70  63 tok",
        "",
        "CALL  TIME      INPUT  READ  WRITTEN  EXPECTED  MISSED    COST  WHY",
        f"   2  22:13:20    100    10        {UNKNOWN}        80      70  63 tok  the client changed message 7",
        f"   3  22:13:20    100     0        {UNKNOWN}        80      80  72 tok  our epoch (hard)",
        "",
        "1 call missed nothing, or not enough to count; --all lists them.",
    ]


def test_a_miss_is_told_in_money_where_all_prices_are_known() -> None:
    call_ = make_use(1, cause="provider", read=0, money=0.25)
    told = format_cache(CacheReport("abc1", [call_], {"provider": MissTotal(1, 80, 72.0, 0.25)}, None), screen=WIDE)
    assert "which cost $0.25.\n" in told
    assert "80  $0.25  the provider: nothing that was sent explains it" in told


def test_what_a_provider_does_not_say_is_not_made_up() -> None:
    silent = make_use(1, None, use="unreported")
    told = format_cache(CacheReport("abc1", [silent], {}, None), screen=WIDE)
    assert told.startswith("The provider does not say what it read from its cache; nothing was missed.")


def test_the_cache_of_a_session_is_told_and_written_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(100, 3, 0)
    log = FakeLog(exchanges=[replace(EXCHANGE, rounds=(replace(ROUND, usage=usage),))])
    assert call(log, "cache", "abc1") == 0
    told = capsys.readouterr().out
    assert told.startswith("0.0% of the input was read from the cache; nothing was missed.\n")
    assert told.endswith("\n1 call missed nothing; --all lists them.\n")
    assert call(log, "cache", "abc1", "--all") == 0
    assert capsys.readouterr().out.endswith("  nothing to be read\n")
    assert call(log, "cache", "abc1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["session"], document["totals"], document["saved"]) == ("abc1", {}, None)
    assert [(each["n"], each["input"], each["read"], each["use"]) for each in document["calls"]] == [
        (1, 100, 0, "first")
    ]
    unread = FakeLog(exchanges=[replace(EXCHANGE, rounds=(replace(ROUND, usage=None),))])
    assert call(unread, "cache", "abc1") == 0
    assert capsys.readouterr().out == "No call of this session has a usage that the provider reported.\n"


def test_a_saving_of_all_sessions_is_told_with_its_losses() -> None:
    total = SavingsTotal(12, 9000.0, None, 0.41, 2, -300.0, None)
    assert format_savings(structs.replace(FOUND, estimate=total), WIDE).splitlines()[0] == (
        "Managing saved 9,000 tokens of uncached input, 41.0% of what sending everything would have cost: an estimate"
        " over 12 sessions, by the usage that came back. 2 sessions of them lost 300 tokens of uncached input."
    )
    lost = SavingsTotal(1, -9.0, -0.5, None, 1, -9.0, -0.5)
    assert format_savings(structs.replace(FOUND, estimate=lost), WIDE).splitlines()[0] == (
        "Managing lost $0.50: an estimate over 1 session, by the usage that came back. 1 session of them lost $0.50."
    )


def test_a_saving_is_told_by_model_and_day_and_losses_with_their_reason() -> None:
    models = [PartSaving(90.0, 0.25, 0.4, 100.0, 0.5, 14, 12, model="m", upstream="openai")]
    models.append(PartSaving(None, None, None, 5.0, None, 1, 1, model="local", upstream="home"))
    days = [PartSaving(-9.0, -0.04, -0.01, 100.0, 0.5, 15, 13, date="2026-11-25")]
    losses = [LosingSession("5f3a9c0d1122", -9.0, -0.04, "no call came after its last epoch")]
    told = format_savings(structs.replace(FOUND, models=models, days=days, losses=losses), WIDE)
    assert told.splitlines()[:11] == [
        "MODEL          SAVED  SHARE     SPENT  CALLS",
        "m at openai    $0.25  40.0%     $0.50     12",
        f"local at home      {UNKNOWN}      {UNKNOWN}  no price      1",
        "",
        "DAY (UTC)    SAVED  SHARE  SPENT  CALLS",
        f"2026-11-25  {MINUS}$0.04  {MINUS}1.0%  $0.50     13",
        "",
        "SESSION     LOST  WHY",
        f"5f3a9c0d  {MINUS}$0.04  no call came after its last epoch",
        "",
        "Compared with sessions that are only observed, managing saves 40.6% of the cost of long sessions"
        " (95 % confidence interval: 30.1% to 49.7%).",
    ]


def test_without_a_holdout_it_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "savings") == 0
    assert " ".join(capsys.readouterr().out.split()).endswith(
        "Not compared with sessions that are only observed: no session was only observed so far;"
        " compaction.holdout_fraction says how many of them are."
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
    saved = Saving(1234.0, None, None, is_loss=False, reason="")
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
    assert format_net(5.0, 0.25) == "saved $0.25"
    assert format_net(-5.0, -0.25) == "lost $0.25"
