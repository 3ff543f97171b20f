"""`palimpsest epochs`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from proxy.cli.inspection.epochs import format_epochs
from proxy.cli.terminal import MINUS, UNKNOWN, Screen
from proxy.context.pricing import Cost
from proxy.model.epoch import Epoch, Original
from proxy.read.timeline import EpochSummary, PaidBack
from tests.cli.commands import call
from tests.support.fake_log import EXCHANGE, FakeLog

EPOCH = Epoch(
    *("e1", "abc1", "gpt-5 (turns)", "", b"", 3, "hard", "x1"),
    *(1_700_000_000_000, 1900, 300, b"[]", (), (Original("abcdefgh23", (b"d",), "chat_completions", 1),)),
)
REVERT = structs.replace(EPOCH, id="e2", why="revert", exchange="", tokens_before=320, tokens_after=1920, originals=())


@dataclass
class Rewritten(FakeLog):
    """A session with an epoch, which was then reverted."""

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        return (EPOCH, REVERT)


SUMMARY = EpochSummary(
    *(1, "e1", 1_700_000_000_000, "gpt-5 (turns)", "turns", "hard", "The context reached the high mark.", 24, "x1", ""),
    *(3, 1900, 300, Cost(90.0, 0.03), PaidBack(-5.0, -0.01, 2), "active", []),
)


def test_epochs_are_told_with_their_price_and_what_they_paid_back() -> None:
    unknown = structs.replace(SUMMARY, n=2, call=None, cost=None, paid_back=PaidBack(0.0, None, 0), state="past")
    assert format_epochs([SUMMARY, unknown]).splitlines() == [
        "2 epochs; with the newest a request had 300 tokens in place of 1,900.",
        "",
        "EPOCH  CALL       TOKENS   COST  PAID BACK  STATE   OPENED",
        f"    1    24  1,900 → 300  $0.03     {MINUS}$0.01  active  2023-11-14 22:13:20 UTC",
        "       The context reached the high mark.",
        f"    2     {UNKNOWN}  1,900 → 300      {UNKNOWN}   no price  past    2023-11-14 22:13:20 UTC",
        "       The context reached the high mark.",
        "",
        "`palimpsest diff SESSION CALL` shows what went, `palimpsest revert SESSION`",
        "undoes the newest.",
    ]


def test_a_wide_terminal_has_references_and_the_model_too() -> None:
    row = format_epochs([SUMMARY], Screen(160)).splitlines()[3]
    assert row.endswith("active  2023-11-14 22:13:20 UTC           0  gpt-5")


def test_a_session_without_an_epoch_is_said_to_be_sent_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "epochs", "agent-7") == 0
    assert capsys.readouterr().out.startswith("This session has no epoch: everything is sent as its client sends it.")


def test_epochs_as_json_are_those_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    log = Rewritten(exchanges=(replace(EXCHANGE, n=1),))
    assert call(log, "epochs", "abc1", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["n"], first["why"], second["why"]) == (1, "hard", "revert")
