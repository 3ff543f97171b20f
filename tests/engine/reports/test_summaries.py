"""Summaries as documents and as a tree."""

import pytest
from msgspec.structs import replace

from proxy.engine.reports.context import describe_summaries, load_summaries, load_summary, order_nodes
from proxy.model.errors import NotFound
from proxy.model.summary import Summary
from tests.store.samples import make_condensed, make_leaf
from tests.support.fake_log import FakeLog

POOR = make_leaf("poor", [b"a", b"b"], level=3)
ONE, TWO = make_leaf("one", [b"a", b"b"], supersedes=["poor"]), make_leaf("two", [b"c"], 2)
BOTH = make_condensed("both", [ONE, TWO])
LATER = make_leaf("later", [b"d"], 3)
ALL = (POOR, ONE, LATER, TWO, BOTH)


async def test_a_summary_is_told_with_all_that_people_ask_of_it() -> None:
    told = replace(ONE, files=("ref:a", "/b.py"), model="m", reason="too long", calls=("x2",), exchange="x1")
    (document,) = describe_summaries([told])
    assert document == {
        **{"id": "one", "session": told.session, "kind": "leaf", "level": 1, "is_provisional": False},
        **{"start": 0, "stop": 2, "tokens": 3, "covered": 900, "parents": (), "supersedes": ("poor",)},
        **{"files": ("ref:a", "/b.py"), "model": "m", "reason": "too long", "exchange": "x1", "calls": ("x2",)},
        **{"made_ms": told.made_ms, "text": "what was done", "is_live": True},
    }


async def test_all_are_listed_and_it_is_told_which_still_count() -> None:
    log = FakeLog(summaries=ALL)
    found = describe_summaries(await load_summaries(log, "abc"))
    assert [(each["id"], each["is_live"]) for each in found] == [
        *(("poor", False), ("one", False), ("later", True), ("two", False), ("both", True))
    ]
    with pytest.raises(NotFound, match="no session begins"):
        await load_summaries(log, "zzz")


@pytest.mark.parametrize("name", ["two", "ref:two", " REF:Two "])
async def test_one_is_found_by_its_id(name: str) -> None:
    document = await load_summary(FakeLog(summaries=ALL), "abc", name)
    assert (document["id"], document["is_live"]) == ("two", False)


@pytest.mark.parametrize(
    ("summaries", "what"),
    [
        ((), "it has none"),
        (ALL, "the newest are both, two, later, one, poor$"),
        ((*ALL, *ALL), "the newest are both, two, later, one, poor$"),
    ],
)
async def test_an_error_says_which_there_are(summaries: tuple[Summary, ...], what: str) -> None:
    with pytest.raises(NotFound, match=what):
        await load_summary(FakeLog(summaries=summaries), "abc", "no")


def test_each_stands_above_what_it_was_made_of() -> None:
    assert [(node.summary.id, node.depth, node.standing) for node in order_nodes(ALL)] == [
        ("both", 0, "live"),
        ("one", 1, "parent"),
        ("poor", 2, "superseded"),
        ("two", 1, "parent"),
        ("later", 0, "live"),
    ]


def test_each_is_told_once_and_what_is_elsewhere_is_not() -> None:
    again = replace(BOTH, id="again", supersedes=("both", "elsewhere"), parents=("one", "two"))
    assert [node.summary.id for node in order_nodes((*ALL, again))] == ["again", "one", "poor", "two", "both", "later"]
    assert [node.summary for node in order_nodes([BOTH])] == [BOTH]
    assert list(order_nodes([])) == []
