"""Tables, trees, plans and differences as plain text."""

from dataclasses import replace
from typing import get_args

import pytest

from proxy.cli.formatting import (
    CAUSES,
    WAYS,
    draw_branches,
    format_plan,
    format_saving,
    format_table,
    make_plain,
    order_children,
    shorten,
)
from proxy.cli.inspection.reports import format_difference
from proxy.model.epoch import EpochReason, Plan, Rung
from proxy.read.context import describe_plan
from proxy.read.diff import ChangeDocument, DifferenceDocument, MemberDocument, SentDocument, SideDocument
from proxy.read.sessions import BranchDocument
from tests.support.fake_log import SESSION


def test_control_characters_become_visible_and_line_breaks_stay() -> None:
    assert make_plain("a\x1b[1m\tb\nc\x85é") == "a\N{REPLACEMENT CHARACTER}[1m\tb\nc\N{REPLACEMENT CHARACTER}é"


def test_long_text_is_cut_to_its_width() -> None:
    assert shorten("a  b\nc", 5) == "a b c"
    assert shorten("abcdef", 4) == "abc…"


def test_columns_are_as_wide_as_they_need_and_numbers_stand_right() -> None:
    assert format_table(("A", "COUNT"), [("abc", 7), ("d", 1234567)]) == "A    COUNT\nabc        7\nd    1234567"


def test_a_cell_cannot_break_its_line() -> None:
    assert len(format_table(("A",), [("a\nb",)]).splitlines()) == 2


def test_fractions_stand_to_the_right_and_lines_as_they_are() -> None:
    assert format_table(("A", "SECONDS"), [("x", "1.5"), "a line\tof its own", ("y", "v1.5")]).splitlines() == [
        "A  SECONDS",
        "x      1.5",
        "a line of its own",
        "y  v1.5",
    ]


def fork(*own: int, after: int = 0) -> BranchDocument:
    return BranchDocument(f"t{own[-1]}", 1, "append", False, "", after, own, None)


def draw(*forks: BranchDocument, side: frozenset[int] = frozenset()) -> list[str]:
    return [line.partition(" end")[0] for line, _ in draw_branches(forks, side)]


def test_a_branch_stands_below_the_call_that_it_goes_on_from() -> None:
    assert draw(fork(1, 2, 5), fork(3, after=1), fork(4, 6, after=2), side=frozenset({3})) == [
        "● 1",
        "├─○ 3",
        "│ └",
        "● 2",
        "├─● 4",
        "│ ● 6",
        "│ └",
        "● 5",
        "└",
    ]


def test_a_branch_of_a_branch_is_one_level_deeper() -> None:
    assert draw(fork(1), fork(2, after=1), fork(3, after=2), fork(4, after=3)) == [
        *("● 1", "├─● 2", "│ ├─● 3", "│ │ ├─● 4", "│ │ │ └", "│ │ └", "│ └", "└"),
    ]


def test_every_line_knows_its_call() -> None:
    assert [n for _, n in draw_branches([fork(1, 3), fork(2)], frozenset())] == [1, 3, 0, 2, 0]


def test_thousands_of_levels_are_drawn_in_a_few_columns() -> None:
    lines = draw(fork(1), *(fork(n, after=n - 1) for n in range(2, 3000)))
    assert len(lines) == 2 * 2999
    assert max(map(len, lines)) < 30


def test_thousands_of_generations_of_sessions_are_put_in_order() -> None:
    rows = [replace(SESSION, id=f"s{i}", parent=f"s{i - 1}") for i in range(3000)]
    ordered = list(order_children(rows[::-1]))
    assert [row.id for row, _ in ordered] == [row.id for row in rows]
    assert max(level for _, level in ordered) == 8


PLAN = Plan("x1", 0, "m", "epoch", "e1", "soft", "why not", 900, 300, 1000, 4.5, -2.5)


def test_a_plan_is_told_as_far_as_it_is_known() -> None:
    assert list(format_plan(PLAN)) == [
        "sent      under the open epoch, e1; above the soft mark",
        "context   client 900, upstream 300, usable 1,000 tokens",
        "saved     -2 tokens of uncached input (estimated when it was sent)",
        "because   why not",
    ]
    assert list(format_plan(Plan("x1", 0, "m", "original"))) == ["sent      as its client sent it"]


def test_every_way_and_cause_has_words() -> None:
    assert ({*WAYS}, {*CAUSES}) == ({*get_args(Rung)}, {*get_args(EpochReason)})
    assert not {*WAYS.values(), *CAUSES.values()} & {*WAYS, *CAUSES}


@pytest.mark.parametrize(("saving", "told"), [(1234.6, "+1,235"), (-7.0, "-7"), (0.0, "+0")])
def test_a_saving_has_a_sign(saving: float, told: str) -> None:
    assert format_saving(saving) == f"{told} tokens of uncached input"


def test_what_stands_for_what_is_told() -> None:
    gone = [SideDocument("tool", 100 + place, f"output\nof {place} \x1b[2J", ()) for place in range(20)]
    ledger = SentDocument("user", 40, "[ledger]\nref:abcdefgh23", (), ["abcdefgh23"])
    changes = [
        ChangeDocument(1, 1, [], [ledger]),
        ChangeDocument(
            2, 3, [SideDocument("assistant", 5, "", ("run", "read"))], [SentDocument("assistant", 3, "short", (), [])]
        ),
        ChangeDocument(4, 24, gone, []),
    ]
    members = [MemberDocument("max_tokens", "900", "400"), MemberDocument("n", None, "2")]
    found = DifferenceDocument("abc1", 1, 0, True, describe_plan(PLAN), 30, 9, members, changes)
    told = format_difference(found)
    lines = told.splitlines()
    assert lines[0] == "exchange 1 of session abc1: 9 of 30 messages sent unchanged"
    for line in (
        "context   client 900, upstream 300, usable 1,000 tokens",
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
