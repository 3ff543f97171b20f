"""`savings` on a made-up log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from proxy.cli.reports import tell_savings
from proxy.context.pricing import Comparison
from proxy.engine.reports.savings import Arm, Savings
from proxy.model.exchange import Usage
from proxy.model.log import Bill
from tests.cli.calling import call
from tests.support.fake_log import FakeLog

BILL = Bill(
    1, "s1", "managed", 1_700_000_000_000, "openai", "m", Usage(input=8000), "original", "holdout", None, 10_000
)
FOUND = Savings(
    "tokens", Arm(42, 0.1312, 2), Arm(21, 0.2211, 3), Comparison(0.406, 0.301, 0.497), "", 120, 1, 1_700_000_000_000
)


@dataclass
class HeldOut(FakeLog):
    """One session that was only observed."""

    async def list_bills(self, after: int = 0, limit: int = 1000) -> Sequence[Bill]:
        return () if after else (BILL,)


def test_a_saving_is_told_with_how_sure_it_is() -> None:
    assert tell_savings(FOUND).splitlines() == [
        "Managing saves 40.6% of what long sessions cost; with a chance of 95 % it is between 30.1% and 49.7%.",
        "",
        "               SESSIONS  COST",
        "managed              42  0.1312",
        "only observed        21  0.2211",
        "Cost is in tokens of uncached input for a token of the client's requests.",
        "Sessions since 2023-11-14 22:13:20Z, without 120 that did not come up to the soft mark.",
        "1 were first the one, then the other: they are not counted.",
        "Of 5 nobody told what was read from a cache: all of it counts as new.",
    ]


def test_money_is_told_by_the_million() -> None:
    told = tell_savings(replace(FOUND, unit="money", managed=Arm(42, 1.5e-6, 0), held_out=Arm(21, 2e-6, 0), mixed=0))
    assert "managed              42  1.5000" in told
    assert "money for a million tokens" in told
    assert "first the one" not in told and "nobody told" not in told


def test_the_log_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(HeldOut(), "savings") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "Too few sessions to tell: it takes 20 of each that came up to the soft mark."
    assert told[3:5] == ["managed               0  -", "only observed         1  1.0000"]


def test_json_has_all_of_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(HeldOut(), "savings", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["saving"], told["held_out"]) == (None, {"sessions": 1, "cost": 1.0, "blind": 1})


def test_without_a_holdout_it_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "savings") == 0
    assert capsys.readouterr().out == (
        "No session was only observed so far; compaction.holdout_fraction says how many of them are.\n"
    )
