"""`palimpsest expand`, `diff`, `handoff`, `summaries`, `cache`, `savings` and `statusline`."""

import json

import pytest
from msgspec import structs

from proxy.model.epoch import Original, StoredOriginal
from tests.cli.commands import call
from tests.store.samples import make_condensed, make_leaf
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
    assert call(log, "diff", "abc", "1", "--round", "1", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["is_modified"], told["members"][0]["name"]) == (True, "n")
    assert call(log, "diff", "abc", "1", "--round", "2") == 1


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


def test_a_deep_line_stays_within_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    line = [make_leaf("s0", [b"a"], text="x" * 200)]
    for i in range(1, 30):
        line.append(structs.replace(make_condensed(f"s{i}", [line[-1]]), text="x" * 200))
    assert call(FakeLog(summaries=tuple(line)), "summaries", "abc") == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 61
    assert max(map(len, told)) <= 80
