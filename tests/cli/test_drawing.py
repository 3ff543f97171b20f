"""Trees as text."""

from dataclasses import replace

from proxy.cli.formatting import draw_forks, order_children
from proxy.engine.reports.sessions import Fork
from tests.support.fake_log import SESSION, branch


def fork(*own: int, after: int = 0) -> Fork:
    return Fork(branch(f"t{own[-1]}", 1, own), own, after)


def draw(*forks: Fork, side: frozenset[int] = frozenset()) -> list[str]:
    return [line.partition(" tip")[0] for line, _ in draw_forks(forks, side)]


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
    assert [n for _, n in draw_forks([fork(1, 3), fork(2)], frozenset())] == [1, 3, 0, 2, 0]


def test_thousands_of_levels_are_drawn_in_a_few_columns() -> None:
    lines = draw(fork(1), *(fork(n, after=n - 1) for n in range(2, 3000)))
    assert len(lines) == 2 * 2999
    assert max(map(len, lines)) < 30


def test_thousands_of_generations_of_sessions_are_put_in_order() -> None:
    rows = [replace(SESSION, id=f"s{i}", parent=f"s{i - 1}") for i in range(3000)]
    ordered = list(order_children(rows[::-1]))
    assert [row.id for row, _ in ordered] == [row.id for row in rows]
    assert max(level for _, level in ordered) == 8
