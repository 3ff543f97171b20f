"""`summaries` on a made-up log."""

import json

import pytest
from msgspec.structs import replace

from proxy.cli.reports import tell_summaries
from tests.cli.calling import call
from tests.store.samples import make_condensed, make_leaf
from tests.support.fake_log import FakeLog

POOR = replace(make_leaf("poor", [b"a", b"b"], level=3), reason="no \x1b[2J answer")
ONE = replace(make_leaf("one", [b"a", b"b"], supersedes=["poor"]), model="gpt-4o-mini")
TWO = replace(make_leaf("two", [b"c"], 2, text="a report\n" * 40), is_provisional=True)
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


def test_json_has_all_of_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call(LOG, "summaries", "abc", "--json") == 0
    told = json.loads(capfdbinary.readouterr().out)
    assert [each["id"] for each in told] == ["poor", "one", "two", "both", "gone"]
    assert told[3]["parents"] == ["one", "two"]


def test_a_session_without_summaries_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "summaries", "abc") == 0
    assert capsys.readouterr().out == "This session has no summaries: none was made of it.\n"
    assert call(FakeLog(), "summaries", "zzz") == 1
    assert "no session begins with 'zzz'" in capsys.readouterr().err


def test_a_deep_line_stays_within_the_page() -> None:
    line = [make_leaf("s0", [b"a"], text="x" * 200)]
    for i in range(1, 30):
        line.append(replace(make_condensed(f"s{i}", [line[-1]]), text="x" * 200))
    told = tell_summaries(line).splitlines()
    assert len(told) == 61
    assert max(map(len, told)) <= 80
