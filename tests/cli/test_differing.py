"""Plans and differences as text."""

from dataclasses import replace

import pytest

from proxy.cli.formatting import tell_difference, tell_plan, write_saving
from proxy.engine.reports.diff import Change, Difference, Side
from proxy.model.plan import Plan
from tests.support.fake_log import EXCHANGE, ROUND

PLAN = Plan("x1", 0, "m", "epoch", "e1", "soft", "why not", 900, 300, 1000, 4.5, -2.5)


def test_a_plan_is_told_as_far_as_it_is_known() -> None:
    assert list(tell_plan(PLAN)) == [
        "sent as   epoch, epoch e1; pressure soft",
        "context   client 900, upstream 300, usable 1000 tokens",
        "saved     -2 tokens of uncached input (estimated when it was sent)",
        "because   why not",
    ]
    assert list(tell_plan(Plan("x1", 0, "m", "original"))) == ["sent as   original; pressure none"]


@pytest.mark.parametrize(("saving", "told"), [(1234.6, "+1235"), (-7.0, "-7"), (0.0, "+0")])
def test_a_saving_has_a_sign(saving: float, told: str) -> None:
    assert write_saving(saving) == f"{told} tokens of uncached input"


def test_an_unmodified_call_is_one_line() -> None:
    told = tell_difference(Difference(EXCHANGE, ROUND, is_equal=True))
    assert told == "exchange 1 of session abc1, round 0: sent as the client sent it, byte for byte\n"


def test_what_stands_for_what_is_told() -> None:
    gone = tuple(Side("tool", 100 + place, f"output\nof {place} \x1b[2J", ()) for place in range(20))
    changes = (
        Change(1, 1, (), (Side("user", 40, "[ledger]\nref:abcdefgh23", ()),)),
        Change(2, 3, (Side("assistant", 5, "", ("run", "read")),), (Side("assistant", 3, "short", ()),)),
        Change(4, 24, gone, ()),
    )
    found = Difference(
        EXCHANGE, replace(ROUND, plan=PLAN), False, 30, 9, (("max_tokens", b"900", b"400"), ("n", b"", b"2")), changes
    )
    told = tell_difference(found)
    lines = told.splitlines()
    assert lines[0] == "exchange 1 of session abc1, round 0: 9 of 30 messages sent as they came"
    for line in (
        "context   client 900, upstream 300, usable 1000 tokens",
        "@@ max_tokens",
        "- 900",
        "+ 400",
        "- (absent)",
        "@@ before message 1: 0 -> 40 tokens",
        "+ user (40 tokens):",
        "+   ref:abcdefgh23",
        "@@ message 2: 5 -> 3 tokens",
        "- 2 assistant (5 tokens, calls run, read):",
        "+   short",
        "@@ messages 4 to 23: 2190 -> 0 tokens",
        "- 4 tool (100 tokens): output of 0 \N{REPLACEMENT CHARACTER}[2J",
        "- ... and 8 more; --json has them all",
    ):
        assert line in lines
    assert max(map(len, lines)) <= 80
