"""What is read of a journey's log: branches in words; a whole log, by a journey of our own, in `test_journey`."""

from dataclasses import replace

import pytest

from proxy.model.log import ExchangeRow
from tests.clients.logs import draw_branch
from tests.support.fake_log import BRANCHES, TREE, branch

ROWS = {row.id: row for row in TREE}


@pytest.mark.parametrize(
    ("numbers", "rows", "drawn"),
    [
        ((1, 2, 3), ROWS, "root append*2"),
        ((1, 4, 5), ROWS, "root branch append"),
        ((1, 2, 6, 3), ROWS, "root append*2 retry"),
        ((7,), ROWS, "(root)"),
        ((1, 2, 3), {**ROWS, "x2": replace(ROWS["x2"], is_side=True)}, "root (append) append"),
    ],
)
def test_a_branch_is_drawn_in_words(numbers: tuple[int, ...], rows: dict[str, ExchangeRow], drawn: str) -> None:
    assert draw_branch(branch("three", 5, numbers), rows) == drawn


def test_the_branches_of_a_tree() -> None:
    assert [draw_branch(each, ROWS) for each in BRANCHES] == ["root append*2 retry", "root branch append", "(root)"]
