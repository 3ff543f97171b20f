"""`palimpsest epochs`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from proxy.cli.terminal import UNKNOWN, Screen
from proxy.cli.views.epochs import format_epochs
from proxy.engine.reports.context import EpochDocument, ReferenceDocument
from proxy.model.epoch import Epoch, Original
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


def test_epochs_are_told_with_their_reason_and_what_they_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(Rewritten(), "epochs", "abc1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 epochs; with the newest a request had 1,920 tokens in place of 320.",
        "",
        "EPOCH  CALL       TOKENS  WHY                  OPENED",
        "    1     1  1,900 → 300  the budget was full  2023-11-14 22:13:20 UTC",
        f"    2     {UNKNOWN}  320 → 1,920  a person went back   2023-11-14 22:13:20 UTC",
        "",
        "`palimpsest diff SESSION CALL` shows what went, `palimpsest revert SESSION`",
        "undoes the newest.",
    ]


def test_a_wide_terminal_has_references_and_the_model_too() -> None:
    references = [ReferenceDocument(f"abcdefgh2{n}", n, n + 1, 0) for n in range(2)]
    epoch = EpochDocument(1, "e1", "gpt-5 (turns)", "", "soft", "x1", 1_700_000_000_000, 3, 1900, 300, references)
    row = format_epochs([epoch], {"x1": 24}, Screen(160)).splitlines()[3]
    assert row.endswith("it pays, above the soft mark  2023-11-14 22:13:20 UTC           2  gpt-5")


def test_a_session_without_an_epoch_is_said_to_be_sent_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "epochs", "agent-7") == 0
    assert capsys.readouterr().out.startswith("This session has no epoch: everything is sent as its client sends it.")


def test_epochs_as_json_are_those_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    log = Rewritten(exchanges=(replace(EXCHANGE, n=1),))
    assert call(log, "epochs", "abc1", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["n"], first["why"], second["why"]) == (1, "hard", "revert")
