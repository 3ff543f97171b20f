"""A session with its tree and its children."""

from dataclasses import replace

import pytest

from proxy.engine.reports.overview import find_forks, load_overview
from proxy.model.errors import NotFound
from tests.support.fake_log import BRANCHES, SESSION, TREE, FakeLog, branch, stand, tree_log


def test_a_branch_goes_on_from_the_deepest_call_that_it_shares() -> None:
    assert [(fork.own, fork.after) for fork in find_forks(BRANCHES, TREE)] == [
        ((1, 2, 6, 3), 0),
        ((4, 5), 1),
        ((7,), 0),
    ]


def test_the_deepest_is_not_the_latest() -> None:
    """The client went back to the first turn before it went on from the second."""
    rows = [stand(1, "a", 1), stand(2, "b", 3), stand(3, "c", 5), stand(4, "a", 1), stand(5, "d", 5)]
    forks = find_forks([branch("c", 5, (1, 2, 3, 4)), branch("d", 5, (1, 2, 4, 5))], rows)
    assert [(fork.own, fork.after) for fork in forks] == [((1, 4, 2, 3), 0), ((5,), 2)]


def test_a_call_that_came_while_the_tree_was_read_does_no_harm() -> None:
    assert find_forks([branch("c", 5, (1, 2))], [stand(1, "a", 1)])[0].own == (2, 1)


async def test_children_are_the_sessions_that_name_it_as_their_parent() -> None:
    log = tree_log()
    log.sessions = [
        replace(SESSION, id=name, parent=parent) for name, parent in (("x", "abc1"), ("abc1", ""), ("y", "x"))
    ]
    overview = await load_overview(log, "ab")
    assert [row.id for row in overview.children] == ["x"]
    assert list(overview.exchanges) == list(TREE)


async def test_a_session_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        await load_overview(FakeLog(), "x")
