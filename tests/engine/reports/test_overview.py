"""A session with its tree and its children."""

from dataclasses import replace

import pytest

from proxy.engine.reports.overview import find_forks, load_overview
from proxy.model.errors import NotFound
from tests.support.fake_log import BRANCHES, SESSION, FakeLog, branch, tree_log


def test_a_branch_goes_on_from_the_deepest_call_that_it_shares() -> None:
    assert [(fork.own, fork.after) for fork in find_forks(BRANCHES)] == [
        ((1, 2, 6, 3), 0),
        ((4, 5), 1),
        ((7,), 0),
    ]


def test_the_deepest_is_not_the_latest() -> None:
    """The client went back to the first turn before it went on from the second."""
    first = branch("c", 5, (1, 2, 3, 4), depths=(1, 3, 5, 1))
    forks = find_forks([first, branch("d", 5, (1, 2, 4, 5), depths=(1, 3, 1, 5))])
    assert [(fork.own, fork.after) for fork in forks] == [((1, 4, 2, 3), 0), ((5,), 2)]


async def test_children_are_the_sessions_that_name_it_as_their_parent() -> None:
    log = tree_log()
    log.sessions = [
        replace(SESSION, id=name, parent=parent) for name, parent in (("x", "abc1"), ("abc1", ""), ("y", "x"))
    ]
    overview = await load_overview(log, "ab")
    assert [row.id for row in overview.children] == ["x"]
    assert overview.session.id == "abc1"


async def test_a_session_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        await load_overview(FakeLog(), "x")
