"""`palimpsest context`."""

import json

import pytest
from msgspec import structs

from proxy.cli.inspection.window import format_window
from proxy.cli.terminal import Screen
from proxy.read.window import NextEpoch, Window, WindowPart
from tests.cli.commands import call
from tests.support.fake_log import TREE, FakeLog, tree_log


class SentLog(FakeLog):
    """What was sent is what the client sent."""

    async def load_sent(self, exchange: str, k: int) -> bytes:
        return await self.load_request(exchange)


PARTS = [WindowPart("user", 2000, 3, 0, "Word for word"), WindowPart("output", 6000, 7, 4000, "Outputs of tools")]
FOUND = Window(
    *(24, 272_000, 15_520, 15_520, 9312, 3104, 8192, 8000, 264_000, "gpt-5", "epochs"),
    *(NextEpoch("high mark", 15_520, 7520), PARTS),
)


def test_what_fills_the_context_is_told_solid_is_sent_hatched_is_held_back() -> None:
    assert format_window(FOUND, Screen(400)).splitlines() == [
        "Call 24 has 8,000 of 15,520 tokens in use; 4,000 are held back. The model's window has 272,000; 8,192 are kept"
        " for the response. It is shortened from 9,312 tokens on where that pays, at 15,520 always. The high mark is"
        " 7,520 tokens away.",
        "",
        "KIND     TOKENS  SHARE  MESSAGES  HELD BACK                            NOTE",
        "user      2,000  25.0%         3             █████                     Word for word",
        "output    6,000  75.0%         7      4,000  ██████████████▒▒▒▒▒▒▒▒▒▒  Outputs of tools",
        "free    264,000                              ························",
        "",
        "█ sent   ▒ held back, still in the log   · free",
    ]


def test_what_is_not_known_or_due_is_told() -> None:
    found = structs.replace(FOUND, window=None, kinds=PARTS[:1], next_epoch=NextEpoch("due", 8000, 0))
    told = format_window(found, Screen(400)).splitlines()[0]
    assert "nothing is held back. It is shortened" in told
    assert told.endswith(" An epoch is due.")


def test_the_context_of_a_session_is_told_and_written_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    log = SentLog(exchanges=TREE, bodies=tree_log().bodies)
    assert call(log, "context", "agent-7") == 0
    assert "KIND" in capsys.readouterr().out
    assert call(log, "context", "abc1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["used"] == 10
    assert [each["kind"] for each in document["kinds"]] == ["user"]


def test_a_session_that_cannot_be_read_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(exchanges=()), "context", "abc1") == 1
    assert "no call of this session can be read" in capsys.readouterr().err
