"""Trees and branches read from SQLite; what every store returns is in `tree_contract`."""

import asyncio
import itertools
import os
import sqlite3
import threading
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from proxy.engine.ports import MOST_FINGERPRINTS, MOST_RECALLED_ROWS
from proxy.model.errors import StoreUnavailable
from proxy.model.lineage import LONGEST_TAIL, CallFingerprint, NodeRow, Relation, compute_chain_root, extend_chain
from proxy.model.log import BranchRow, Call
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.lineage_queries import (
    ExchangePosition,
    choose_recalled,
    find_branches,
    recall_sessions,
)
from proxy.store.sqlite.reader import SqliteReader
from tests.store.samples import (
    OTHER_TENANT,
    TENANT,
    make_chain,
    make_key,
    make_opening,
    make_reply,
    make_step,
)
from tests.store.sqlite.conftest import Opener
from tests.support.ancestry import Trees
from tests.support.examples import examples
from tests.support.scripted import LIMIT

RELATIONS: tuple[Relation, ...] = get_args(Relation)
KEYS = (make_key("s0"), make_key("s1"), make_key("s2", OTHER_TENANT))
_names = (f"t{i}" for i in itertools.count())


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, list[int], bool, int]]:
    """Calls of some sessions: session, path of forms from the root, whether it is a side call, what is answered."""
    path = st.lists(st.integers(0, 2), min_size=0, max_size=5)
    return draw(st.lists(st.tuples(st.integers(0, 2), path, st.booleans(), st.integers(0, 3)), max_size=12))


def make_path(forms: list[int], answer: int) -> tuple[list[NodeRow], NodeRow]:
    rows, parent = [], compute_chain_root("openai")
    for form in forms:
        rows.append(NodeRow(extend_chain(parent, [b"%d" % form])[0], parent, False))
        parent = rows[-1].node
    return rows, NodeRow(extend_chain(parent, [b"%d" % answer])[0], parent, True)


@pytest.mark.no_cover
@examples(30, suppress_health_check=list(HealthCheck))
@given(calls(), st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 5), max_size=2))
async def test_what_is_recalled_is_what_the_records_say(
    open_archive: Opener, drawn: list[tuple[int, list[int], bool, int]], asked: list[int], named: list[int]
) -> None:
    trees, name = Trees(), next(_names)
    archive = open_archive(path=open_archive.path.with_name(f"{name}.db"), durability="normal")
    for number, (session, forms, is_side, answer) in enumerate(drawn):
        x, key = f"e{number}", KEYS[session]
        rows, reply = make_path(forms, answer)
        marks = [CallFingerprint(f"call:{answer}", reply.node, b"%d" % number)]
        relation = RELATIONS[number % len(RELATIONS)]
        for records in (
            (make_opening(x, key=key), make_step(x, rows, relation=relation, is_side=is_side)),
            (make_reply(x, [reply], marks),),
        ):
            archive.append(*records)
            for record in records:
                trees.take(record)
    nodes = [row.node for row in make_path(asked, 0)[0]]
    for marks_asked, id_asked in (((), make_key("new")), ([f"call:{i}" for i in named], KEYS[1]), ((), KEYS[2])):
        assert list(await archive.recall(nodes, marks_asked, id_asked)) == trees.recall(nodes, marks_asked, id_asked)
    assert archive.health.dropped == 0
    assert (await archive.verify()).faults == ()
    await archive.close()


async def test_the_end_of_what_is_stored_is_found_by_halving(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    chain = make_chain(*(f"{'!' if i % 2 else ''}{i}" for i in range(690)))
    assert await archive.append(make_opening(), make_step("e1", chain))
    await archive.close()
    connection = connect_reader(policy.path)
    questions: list[str] = []
    connection.set_trace_callback(questions.append)
    (found,) = recall_sessions(connection, [row.node for row in chain] + [os.urandom(16)] * 500, (), make_key("new"))
    assert found.nodes == chain
    assert sum("FROM node" in question for question in questions) <= 16
    questions.clear()
    assert recall_sessions(connection, [os.urandom(16)] * 690, (), make_key("new")) == []
    assert len(questions) <= 12
    connection.close()


async def test_the_many_sessions_of_others_are_skipped(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    chain = make_chain("a", "!b")
    mine = make_key("mine", OTHER_TENANT)
    for i, key in enumerate([mine, *(make_key(f"n{i}") for i in range(300))]):
        archive.append(make_opening(f"e{i}", key=key), make_step(f"e{i}", chain))
    await archive.close()
    connection = connect_reader(policy.path)
    questions: list[str] = []
    connection.set_trace_callback(questions.append)
    (found,) = recall_sessions(connection, [row.node for row in chain], (), make_key("new", OTHER_TENANT))
    assert found.key == mine
    assert len(questions) <= 20
    connection.close()


NAMES = [f"call:{i}" for i in range(MOST_FINGERPRINTS)]


async def take_turns(archive: SqliteArchive, count: int) -> None:
    """Sessions of two tenants by turns, of which one's hold what the other's do not."""
    chain, other = make_chain("a", "!b"), make_chain("c", "d")
    marks = [CallFingerprint(name, chain[1].node, b"f" * 16) for name in NAMES]
    for i in range(count):
        key, key_of_other = make_key(f"n{i}"), make_key(f"o{i}", OTHER_TENANT)
        archive.append(make_opening(f"e{i}", key=key), make_step(f"e{i}", chain, fingerprints=marks), is_urgent=False)
        archive.append(make_opening(f"o{i}", key=key_of_other), make_step(f"o{i}", other), is_urgent=False)


async def test_sessions_that_take_turns_without_end_are_given_up_whatever_is_asked_at_once(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = open_archive(durability="normal")
    mine, clean = make_key("mine", OTHER_TENANT), make_chain("x", "!y")
    marks = [CallFingerprint("call:mine", clean[1].node, b"f" * 16)]
    archive.append(make_opening("m1", key=mine), make_step("m1", clean, fingerprints=marks))
    await take_turns(archive, 400)
    await archive.close()
    connection = connect_reader(policy.path)
    questions: list[str] = []
    connection.set_trace_callback(questions.append)
    nodes, new = [row.node for row in make_chain("a", "!b")], make_key("new", OTHER_TENANT)
    assert {each.key.tenant for each in recall_sessions(connection, nodes, (), new)} == {TENANT}
    assert sum("session_tenant" in question for question in questions) < 400
    questions.clear()
    found = recall_sessions(connection, [os.urandom(16)], ["call:mine", *NAMES[1:]], new)
    assert [each.key for each in found] == [mine], "however many marks go on without end beside the one that does not"
    assert recall_sessions(connection, [os.urandom(16)], [*NAMES[1:], "call:mine"], new) == found
    assert sum("session_tenant" in question for question in questions) <= 2 * 384
    connection.close()


async def test_of_others_only_the_last_messages_are_looked_at(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    chain = make_chain("!a", *map(str, range(256)))
    assert await archive.append(make_opening(), make_step("e1", chain))
    await archive.close()
    connection = connect_reader(policy.path)
    questions: list[str] = []
    connection.set_trace_callback(questions.append)
    nodes, new = [row.node for row in chain], make_key("new", OTHER_TENANT)
    assert recall_sessions(connection, nodes, (), new) == []
    assert sum("DISTINCT session" in question for question in questions) == 256
    assert len(recall_sessions(connection, nodes[:-1], (), new)) == 1
    connection.close()


async def test_no_listing_holds_up_a_call(open_archive: Opener, policy: StorePolicy) -> None:
    """However many listings there are: a thread for each would take all threads there are."""
    assert await open_archive().append(make_opening(), make_step("e1", make_chain("a")))
    began, gate = threading.Event(), threading.Event()
    connections = itertools.count()

    def connect(path: Path) -> sqlite3.Connection:
        if not next(connections):
            began.set()
            assert gate.wait(LIMIT)
        return connect_reader(path)

    reader = SqliteReader(policy.path, connect)
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        listings = [group.create_task(reader.list_branches(make_key().id)) for _ in range(50)]
        await asyncio.to_thread(began.wait, 10)
        try:
            async with asyncio.timeout(LIMIT):
                assert [each.key for each in await reader.recall((), (), make_key())] == [make_key()]
                assert await reader.has_sessions()
        finally:
            gate.set()
    assert [len(await listing) for listing in listings] == [1] * 50
    await reader.close()


async def test_branches_are_found_where_neither_the_event_loop_nor_a_listing_waits(
    open_archive: Opener, policy: StorePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = open_archive()
    assert await archive.append(make_opening(), make_step("e1", make_chain("a")))
    began, gate = threading.Event(), threading.Event()

    def find(parents: dict[bytes, bytes], stands: list[ExchangePosition]) -> list[BranchRow]:
        began.set()
        assert gate.wait(LIMIT)
        return find_branches(parents, stands)

    monkeypatch.setattr("proxy.store.sqlite.lineage_queries.find_branches", find)
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        listing = group.create_task(archive.list_branches(make_key().id))
        await asyncio.to_thread(began.wait, 10)
        assert await archive.list_unread() == []
        gate.set()
    assert len(listing.result()) == 1


async def test_a_closed_log_and_a_missing_one_are_said_to_be(policy: StorePolicy) -> None:
    reader = SqliteReader(policy.path)
    with pytest.raises(StoreUnavailable, match="there is no log"):
        await reader.has_sessions()
    await reader.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await reader.recall((), (), make_key())


async def test_a_damaged_log_says_what_to_do(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    assert await archive.append(make_opening(), make_step("e1", make_chain("a")))
    await archive.close()
    connection = sqlite3.connect(policy.path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'node'").fetchone()
    connection.close()
    with policy.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    reader = SqliteReader(policy.path)
    with pytest.raises(StoreUnavailable, match="palimpsest verify"):
        await reader.list_branches(make_key().id)
    await reader.close()


def stand(n: int, tip: bytes, *, is_side: bool = False) -> ExchangePosition:
    return ExchangePosition(n, f"e{n}", tip, n, "branch" if n > 1 else "root", is_side)


def test_where_a_path_forks_the_branch_goes_on_where_a_request_went_first() -> None:
    # 1 - 2 - 4        a node of 3 was there before that of 2, but was asked behind later
    #   \ 3
    parents = {b"1": b"", b"3": b"1", b"2": b"1", b"4": b"2"}
    branches = find_branches(parents, [stand(1, b"1"), stand(2, b"2"), stand(3, b"3"), stand(4, b"4")])
    assert [(branch.tip, branch.left, branch.exchanges) for branch in branches] == [
        (b"4", b"", (Call(1, "e1", 1), Call(2, "e2", 2), Call(4, "e4", 4))),
        (b"3", b"1", (Call(1, "e1", 1), Call(3, "e3", 3))),
    ]


def test_a_branch_is_beside_the_conversation_if_all_that_is_its_own_is() -> None:
    parents = {b"1": b"", b"2": b"1", b"3": b"1", b"4": b"3"}
    stands = [stand(1, b"1"), stand(2, b"2"), stand(3, b"3", is_side=True), stand(4, b"4")]
    assert [branch.is_side for branch in find_branches(parents, stands)] == [False, False]
    stands[3] = stand(4, b"4", is_side=True)
    assert [branch.is_side for branch in find_branches(parents, stands)] == [False, True]


def rewrite(n: int, tip: bytes, *, is_side: bool = False) -> ExchangePosition:
    return ExchangePosition(n, f"e{n}", tip, n, "volatile", is_side)


def test_a_tail_that_the_next_request_rewrote_is_no_branch() -> None:
    # 0 - a1    each call has its own tail; the third is a side call, the fourth a retry of the second
    #   \ 1 - a2
    #       \ 2 - a5
    parents = {b"0": b"", b"a1": b"0", b"1": b"0", b"a2": b"1", b"s": b"", b"2": b"1", b"a5": b"2"}
    side, retry = stand(3, b"s", is_side=True), stand(4, b"a2")._replace(relation="retry")
    positions = [stand(1, b"a1"), rewrite(2, b"a2"), side, retry, rewrite(5, b"a5")]
    main, other = find_branches(parents, positions)
    assert (main.tip, main.relation, [call.n for call in main.exchanges]) == (b"a5", "root", [1, 2, 4, 5])
    assert (other.tip, other.is_side) == (b"s", True)


def test_a_long_tail_or_another_chain_is_a_branch() -> None:
    nodes = [b"%d" % i for i in range(LONGEST_TAIL + 2)]
    parents = dict(zip(nodes, (b"", *nodes), strict=False)) | {b"new": b"0"}
    assert len(find_branches(parents, [stand(1, nodes[-1]), rewrite(2, b"new")])) == 2
    assert len(find_branches(parents | {b"new": b"1"}, [stand(1, nodes[-1]), rewrite(2, b"new")])) == 1
    assert len(find_branches({b"1": b"", b"2": b""}, [stand(1, b"1"), rewrite(2, b"2")])) == 2
    assert len(find_branches({b"1": b""}, [rewrite(1, b"1")])) == 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=30))
def test_every_tip_is_on_a_branch_and_branches_share_only_what_is_before_they_left(
    shape: list[int], ends: list[int]
) -> None:
    names = [b"%d" % i for i in range(len(shape))]
    parents = {name: names[at] if at < i else b"" for i, (name, at) in enumerate(zip(names, shape, strict=True))}
    stands = [stand(n, names[end % len(names)]) for n, end in enumerate(ends, 1)]
    branches = find_branches(parents, stands)
    for branch in branches:
        above = {branch.tip, *_list_above(parents, branch.tip)}
        assert [call.n for call in branch.exchanges] == [each.n for each in stands if each.tip in above]
        assert branch.relation == stands[min(call.n for call in branch.own) - 1].relation
    assert sorted(call.n for branch in branches for call in branch.own) == [each.n for each in stands]
    tips = [branch.tip for branch in branches]
    assert len(set(tips)) == len(tips)
    assert sum(not branch.left for branch in branches) == len({_root(parents, tip) for tip in tips})
    inner = {up for tip in {each.tip for each in stands} for up in _list_above(parents, tip)}
    assert set(tips) == {each.tip for each in stands} - inner


class Counted(dict[bytes, bytes]):
    """Counts how often something is looked up."""

    count = 0

    def __getitem__(self, key: bytes) -> bytes:
        self.count += 1
        return super().__getitem__(key)


def test_it_takes_as_many_steps_as_there_are_nodes_and_edits() -> None:
    turns, edits = 300, 600
    names = [b"%d" % i for i in range(turns)]
    parents = Counted(zip(names, [b"", *names[:-1]], strict=True))
    parents.update({b"e%d" % i: names[-1 - i % 2] for i in range(edits)})
    stands = [stand(n, name) for n, name in enumerate(parents, 1)]
    branches = find_branches(parents, stands)
    assert parents.count < 10 * len(parents)
    assert (len(branches), sum(len(branch.own) for branch in branches)) == (edits, len(stands))
    assert len(branches[-1].exchanges) == turns


def _list_above(parents: dict[bytes, bytes], node: bytes) -> list[bytes]:
    above = []
    while parents[node]:
        node = parents[node]
        above.append(node)
    return above


def _root(parents: dict[bytes, bytes], node: bytes) -> bytes:
    return [node, *_list_above(parents, node)][-1]


def test_the_first_two_are_chosen_whatever_their_size_and_others_as_far_as_they_fit() -> None:
    sizes = {"named": 10**6, "proven": 10**6, "half": MOST_RECALLED_ROWS // 2, "most": MOST_RECALLED_ROWS - 1, "1": 1}
    assert choose_recalled(sizes, sizes.__getitem__) == ["named", "proven", "half", "1"]
    sizes = {"named": 1, "proven": 1, "whole": MOST_RECALLED_ROWS, "more": 1}
    assert choose_recalled(sizes, sizes.__getitem__) == ["named", "proven", "whole"]
