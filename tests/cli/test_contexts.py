"""`expand`, `diff` and `handoff` on a made-up log."""

import json

import pytest

from proxy.model.epoch import Original, StoredOriginal
from tests.cli.calling import call
from tests.support.fake_log import FakeLog, tree_log


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
