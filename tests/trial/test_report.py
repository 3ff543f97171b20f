"""The report: its words, its table on the command line, its document, and its page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.try_ import format_trial
from proxy.context.pricing import Cost, format_money
from proxy.trial.estimate import Cut, EpochEstimate, SessionEstimate, Trial, describe_trial
from proxy.trial.page import STYLE_PATH, write_page
from proxy.trial.words import format_amount, format_share, format_short, tell_session, tell_trial
from tests.cli.commands import call_with, call_without_log

LONG = SessionEstimate(
    *("s1", "claude-code", "2.1", "claude-sonnet-4-5", "anthropic", "Fix <the> retry", "/a/s1.jsonl", 1795691347000),
    Cost(4000.0, 12.0),
    Cost(3000.0, 9.0),
    (1000, 2000, 3000),
    (1000, 2000, 900),
    300,
    (EpochEstimate(1, 3, "soft", 3000, 900),),
    Cut(2, 1, 0, 4),
    0,
    (),
)
LOSS = SessionEstimate(
    *("s2", "codex", "", "gpt-5", "openai", "\x1b[31mRed \u202eflow", "/a/s2.jsonl", 0),
    Cost(100.0, 1.0),
    Cost(110.0, 1.1),
    (50,),
    (50,),
    5,
    (),
    Cut(),
    1,
    ("its transcript is without its tools",),
)
UNPRICED = SessionEstimate(
    *("s3", "aider", "", "", "openai", "", "/a/s3", 0),
    Cost(100.0, None),
    Cost(100.0, None),
    (50,),
    (50,),
    5,
    (),
    Cut(),
    0,
    (),
)


def make_trial(*sessions: SessionEstimate, **more: Any) -> Trial:
    return Trial(sessions, 3, (), more.pop("broken", 0), more.pop("unknown", 0), "epochs", **more)


@pytest.mark.parametrize(
    ("sessions", "sentence"),
    [
        ((LONG,), "This session cost $12.00; managed, it would have cost $9.00, 25.0 % less."),
        ((LOSS,), "This session cost $1.00; managed, it would have cost $1.10, 10.0 % more."),
        ((LONG, LOSS), "These 2 sessions cost $13.00; managed, they would have cost $10.10, 22.3 % less."),
        ((UNPRICED,), "This session cost 100 tok; managed, it would have cost the same."),
    ],
)
def test_the_sentence_tells_losses_like_gains(sessions: tuple[SessionEstimate, ...], sentence: str) -> None:
    assert tell_trial(make_trial(*sessions)) == sentence


def test_figures_are_short_and_keep_their_sign() -> None:
    assert [format_money(x) for x in (0, 0.004, 1234.5, -2.0)] == [
        "$0.00",
        "$0.0040",
        "$1,234.50",
        "\N{MINUS SIGN}$2.00",
    ]
    assert [format_short(x) for x in (999, 12_345, 3_456_789)] == ["999", "12 k", "3.5 M"]
    assert [format_share(x) for x in (None, 0.0001, -0.25)] == ["-", "0 %", "\N{MINUS SIGN}25.0 %"]
    assert format_amount(Cost(5.0, None)) == "5 tok"


def test_the_table_marks_estimates_with_their_reasons_and_has_a_total() -> None:
    text = format_trial(make_trial(LONG, LOSS, UNPRICED, broken=2, unknown=1, notes=("A note.",)))
    rows = [re.split(r"  +", line) for line in text.split("\n")]
    assert rows[3] == [
        "Fix <the> retry",
        "claude-code",
        "claude-sonnet-4-5",
        "3",
        "6,000",
        "3,900",
        "$12.00",
        "$9.00",
        "25.0 %",
    ]
    assert rows[4][0].endswith("*") and rows[4][-1] == "\N{MINUS SIGN}10.0 %"
    assert rows[6][:2] == ["3 sessions", "5"] and rows[6][-3:] == ["$13.00", "$10.10", "22.3 %"]
    for remark in (
        "1 session would have cost more, $0.10 together.",
        "1 epoch: in the end the ledger would tell of 4 messages, and 3 texts would be shortened. All would be in",
        "Of 1 session no price is known; the totals are without.",
        "1 call could not be replayed; the figures are without.",
        "2 lines could not be read, 1 were not understood.",
        "A note.",
        "  its transcript is without its tools.",
    ):
        assert remark in text
    assert "No price of these models is known" in format_trial(make_trial(UNPRICED))
    assert "No session is so long" in format_trial(make_trial(LOSS))


def test_the_document_has_null_for_what_is_unknown() -> None:
    found = json.loads(json.dumps(describe_trial(make_trial(LONG, UNPRICED))))
    one, other = found["sessions"]
    assert one["saved"] == {"tokens": 1000.0, "money": 3.0, "share": 0.25} and one["epochs"][0]["call"] == 3
    assert other["before"]["money"] is None and other["began_ms"] is None
    assert found["total"] | {} == found["total"] and found["total"]["priced"] == 1
    assert found["total"]["saved"]["money"] == 3.0 and not one["is_estimate"]


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    page = write_page(make_trial(LONG, LOSS, UNPRICED))
    elements = Elements(page).found
    assert not {"script", "link", "img", "iframe", "form"} & {tag for tag, _ in elements}
    assert not any(
        name.startswith("on") or name in ("style", "src") for _, attributes in elements for name in attributes
    )
    assert not [each for _, each in elements if (each.get("href") or "#")[0] != "#"]
    assert "Fix &lt;the&gt; retry" in page and "<the>" not in page
    assert "\x1b" not in page and "\u202e" not in page
    policy = next(str(each["content"]) for _, each in elements if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    assert page.count(STYLE_PATH.read_text()) == 1
    ids = [each["id"] for _, each in elements if each.get("id")]
    assert len(ids) == len(set(ids)) and 'href="#session-0"' in page and 'id="session-0"' in page
    assert "url(" not in STYLE_PATH.read_text().replace("url(#hatch)", "")


def test_a_session_is_told_in_a_sentence() -> None:
    assert tell_session(LONG) == "1 epoch, the first at call 3 of 3; $9.00 in place of $12.00, 25.0 % less."
    assert tell_session(LOSS).startswith("Never long enough")


def test_the_command_writes_a_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def run_trial(*given: Any) -> Trial:
        asked.append(given)
        given[-1](1, 2)  # nothing is drawn, for this is no terminal
        return make_trial(LONG)

    def refuse(settings: Any) -> Any:
        raise AssertionError("no log is opened")

    page = tmp_path / "report.html"
    arguments = ["try", str(tmp_path), "--report", str(page), "--json", "--ceiling", "32000", "--limit", "3"]
    assert call_with(arguments, refuse, run_trial=run_trial) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["total"]["sessions"] == 1 and output.err == ""
    assert page.read_text().startswith("<!doctype html>")
    settings, paths, limit, keep, _ = asked[0]
    assert (settings.budget.ceiling_tokens, paths, limit, keep) == (32000, [tmp_path], 3, None)
    assert call_with(["try", "--report", str(page)], refuse, run_trial=run_trial) == 0
    assert f"The page: {page}" in capsys.readouterr().out
    assert call_without_log("try", "--limit", "0") == 2
