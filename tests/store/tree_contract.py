"""What every archive does with trees, and what it recalls of them."""

from collections.abc import Sequence
from typing import Protocol

import pytest
from msgspec.structs import replace

from proxy.engine.ports import MOST_BEARING, MOST_FINGERPRINTS, MOST_RECALLED, MOST_RECALLED_ROWS, Ancestry, Archive
from proxy.model.errors import NotFound
from proxy.model.exchange import SessionKey
from proxy.model.lineage import Adoption, CallFingerprint, StoredSession, compute_chain_root, name_fingerprint
from proxy.model.log import BranchRow, Call, Record
from tests.store.contract import count_dropped, is_stored
from tests.store.samples import (
    OPENED_MS,
    OTHER_TENANT,
    make_chain,
    make_fingerprint,
    make_key,
    make_node,
    make_opening,
    make_outcome,
    make_reading,
    make_reply,
    make_round,
    make_step,
)

CHAIN = make_chain("a", "!b", "c", "!d")
A, B, C, D = CHAIN
NODES = [row.node for row in CHAIN]
ROOT = compute_chain_root("openai")
NEW = make_key("new")
TURNS = (Call(1, "agent-71", 1), Call(2, "agent-72", 3))  # as `add_turns` makes them
NEW_OF_OTHER = make_key("new", OTHER_TENANT)


class TreeArchive(Archive, Ancestry, Protocol):
    """Both ports, and what events are told by."""

    async def number_calls(self, exchanges: Sequence[str]) -> dict[str, int]: ...


async def add_turns(archive: TreeArchive, name: str = "agent-7", tenant: bytes | None = None) -> str:
    """A session of two turns with all its fingerprints; its id."""
    key = make_key(name, tenant) if tenant else make_key(name)
    first, second = f"{name}1", f"{name}2"
    assert await is_stored(archive, make_opening(first, key=key), make_step(first, [A], relation="root"))
    assert await is_stored(archive, make_reply(first, [B], [make_fingerprint("call:1", B)]))
    assert await is_stored(archive, make_opening(second, key=key), make_step(second, [C], base=2))
    assert await is_stored(archive, make_reply(second, [D], [make_fingerprint("call:2", D)]))
    return key.id


async def recall_ids(
    archive: TreeArchive, *nodes: bytes, fingerprints: tuple[str, ...] = (), session: SessionKey = NEW
) -> list[str]:
    return [found.key.id for found in await archive.recall(nodes, fingerprints, session)]


class TreeContract:
    """Behaviour of lineage records, of `Ancestry` and of the branches in `LogReader`."""

    async def test_a_session_is_recalled_with_all_that_it_has(self, archive: TreeArchive) -> None:
        await add_turns(archive)
        stored = StoredSession(
            make_key(), (A.node, C.node), CHAIN, (make_fingerprint("call:1", B), make_fingerprint("call:2", D))
        )
        assert list(await archive.recall((), (), make_key())) == [stored]
        assert list(await archive.recall(NODES, (), NEW)) == [stored]
        assert list(await archive.recall((), ("call:2",), NEW)) == [stored]
        assert list(await archive.recall(NODES, ("call:1", "call:2"), make_key())) == [stored]
        assert (await archive.verify()).faults == ()

    async def test_what_is_not_known_recalls_nothing(self, archive: TreeArchive) -> None:
        assert not await archive.has_sessions()
        assert await recall_ids(archive, *NODES, fingerprints=("call:1",), session=make_key()) == []
        await add_turns(archive)
        assert await archive.has_sessions()
        other = make_chain("x", "!y", "z")
        assert (
            await recall_ids(
                archive, *[row.node for row in other], fingerprints=("call:3", "call:"), session=make_key("s")
            )
            == []
        )
        assert await recall_ids(archive, A.node) == []  # no answer stands at a beginning that anybody may share

    async def test_the_deepest_answer_of_a_chain_leads_to_its_sessions(self, archive: TreeArchive) -> None:
        first = await add_turns(archive, "a")
        assert await is_stored(archive, make_opening("e9", key=make_key("b")), make_step("e9", [A]))
        assert await is_stored(archive, make_reply("e9", [B]))
        unseen = make_chain("e", "!f", parent=D.node)
        assert await recall_ids(archive, A.node, B.node) == [first, make_key("b").id]
        assert await recall_ids(archive, *NODES, *[row.node for row in unseen]) == [first]
        assert await recall_ids(archive, A.node, B.node, C.node) == [first, make_key("b").id]

    async def test_an_answer_that_is_known_as_a_request_alone_leads_nowhere(self, archive: TreeArchive) -> None:
        seen = [replace(row, is_answer=False) for row in CHAIN]
        assert await is_stored(archive, make_opening(), make_step("e1", seen))
        assert await recall_ids(archive, *NODES) == []
        assert await is_stored(archive, make_reply("e1", [B]))
        (stored,) = await archive.recall(NODES, (), NEW)
        assert stored.nodes == (*seen, B)
        assert (await archive.verify()).faults == ()

    async def test_another_tenants_answers_count_where_there_are_none_of_ones_own(self, archive: TreeArchive) -> None:
        first = await add_turns(archive, "a")
        second = await add_turns(archive, "b")
        found = await archive.recall(NODES, (), NEW_OF_OTHER)
        assert [each.key for each in found] == [make_key("a"), make_key("b")]
        assert [first, second] == [each.key.id for each in found]
        assert await recall_ids(archive, *NODES, session=make_key("x", b"nobody's")) == [first, second]

    async def test_ones_own_answers_are_not_hidden_by_deeper_ones_of_another(self, archive: TreeArchive) -> None:
        key = make_key("mine", OTHER_TENANT)
        assert await is_stored(archive, make_opening("m1", key=key), make_step("m1", [A]), make_reply("m1", [B]))
        for i in range(MOST_RECALLED + 3):
            await add_turns(archive, f"n{i}")
        for nodes in (NODES, NODES[:2], NODES[:3]):
            assert await recall_ids(archive, *nodes, session=NEW_OF_OTHER) == [key.id]
            assert await recall_ids(archive, *nodes, session=key) == [key.id]

    async def test_marks_and_ids_lead_to_ones_own_sessions(self, archive: TreeArchive) -> None:
        theirs = await add_turns(archive, "theirs")
        mine = await add_turns(archive, "mine", OTHER_TENANT)
        await add_turns(archive, "theirs too")
        assert await recall_ids(archive, fingerprints=("call:1",), session=NEW_OF_OTHER) == [mine]
        stolen = replace(NEW_OF_OTHER, id=theirs)
        assert await recall_ids(archive, fingerprints=("call:2",), session=stolen) == [mine]

    async def test_of_many_the_newest_are_recalled_and_the_one_with_the_id(self, archive: TreeArchive) -> None:
        count = MOST_RECALLED + 3
        for i in range(count):
            x = f"e{i}"
            archive.append(make_opening(x, key=make_key(f"n{i}")), make_step(x, [A]), make_reply(x, [B]))
        keys = [make_key(f"n{i}") for i in range(count)]
        expected = [key.id for key in keys]
        assert await recall_ids(archive, A.node, B.node) == expected[3:]
        assert await recall_ids(archive, A.node, B.node, session=keys[0]) == [expected[0], *expected[4:]]
        assert await recall_ids(archive, A.node, B.node, session=keys[9]) == expected[3:]

    async def test_of_many_what_an_answer_proves_counts_before_marks_and_others(self, archive: TreeArchive) -> None:
        proven = await add_turns(archive, "a")
        for i in range(MOST_RECALLED):
            x = f"e{i}"
            step = make_step(x, [A], fingerprints=[make_fingerprint("call:9", A)])
            archive.append(make_opening(x, key=make_key(f"n{i}")), step)
        bearing = [make_key(f"n{i}").id for i in range(MOST_RECALLED)]
        assert await recall_ids(archive, *NODES, fingerprints=("call:9",)) == [proven]
        other = await add_turns(archive, "b", OTHER_TENANT)
        assert await recall_ids(archive, *NODES, fingerprints=("call:9",), session=NEW_OF_OTHER) == [other]
        unseen = make_chain("x", "!y")
        await archive.append(make_opening("e99", key=make_key("c", OTHER_TENANT)), make_step("e99", unseen))
        shown, expected = (unseen[0].node, unseen[1].node), [*bearing[-MOST_BEARING:], make_key("c", OTHER_TENANT).id]
        assert await recall_ids(archive, *shown, fingerprints=("call:9",)) == expected

    async def test_of_large_ones_there_are_two_and_what_fits_beside_them(self, archive: TreeArchive) -> None:
        node = make_chain("a", "!b", *map(str, range(MOST_RECALLED_ROWS - 3)))
        for i, rows in enumerate((CHAIN, node, node[:-1], CHAIN, node, node)):
            x = f"e{i}"  # its nodes, a mark and a request
            step = make_step(x, rows, fingerprints=[make_fingerprint("call:1", B)])
            assert await is_stored(archive, make_opening(x, key=make_key(f"n{i}")), step)
        ids = [make_key(f"n{i}").id for i in range(6)]
        assert await recall_ids(archive, A.node, B.node) == [ids[0], *ids[3:]]
        assert await recall_ids(archive, A.node, B.node, session=make_key("n1")) == [ids[0], ids[1], ids[3], ids[5]]

    async def test_of_many_marks_the_last_are_looked_up(self, archive: TreeArchive) -> None:
        session = await add_turns(archive)
        unknown = [f"call:x{i}" for i in range(MOST_FINGERPRINTS)]
        assert await recall_ids(archive, fingerprints=("call:1", *unknown)) == []
        assert await recall_ids(archive, fingerprints=("call:1", *unknown[1:])) == [session]

    async def test_what_the_log_has_already_is_passed_over(self, archive: TreeArchive) -> None:
        await add_turns(archive)
        before = await archive.recall((), (), make_key())
        mark = make_fingerprint("call:1", D, b"another form")
        assert await is_stored(archive, make_reply("agent-71", CHAIN, [mark]), make_reply("agent-71", CHAIN[1:]))
        assert await is_stored(archive, make_reply("agent-71", [replace(row, is_answer=False) for row in CHAIN]))
        assert await archive.recall((), (), make_key()) == before
        again = make_step("e3", CHAIN, fingerprints=[mark], tip=C.node, relation="retry")
        assert await is_stored(archive, make_opening("e3"), again)
        (after,) = await archive.recall((), (), make_key())
        assert [after] == list(before)
        assert archive.health.dropped == 0
        assert (await archive.verify()).faults == ()

    async def test_the_first_mark_of_a_name_counts_in_each_session(self, archive: TreeArchive) -> None:
        for name in ("x", "y"):
            form = name.encode()
            step = make_step(
                name, CHAIN, fingerprints=[make_fingerprint("item:1", A, form), make_fingerprint("item:1", B, b"later")]
            )
            assert await is_stored(archive, make_opening(name, key=make_key(name)), step)
        found = await archive.recall((), ("item:1",), NEW)
        assert [each.fingerprints for each in found] == [
            (CallFingerprint("item:1", A.node, b"x"),),
            (CallFingerprint("item:1", A.node, b"y"),),
        ]

    @pytest.mark.parametrize("name", ["call:" + "x" * 5000, "call:\ud800", "form:" + "é" * 199, "call:naïve", ""])
    async def test_a_mark_of_any_name_is_found_again(self, archive: TreeArchive, name: str) -> None:
        await archive.append(make_opening(), make_step("e1", [A], fingerprints=[make_fingerprint(name, A)]))
        (stored,) = await archive.recall((), (name,), NEW)
        assert stored.fingerprints == (make_fingerprint(name_fingerprint(name), A),)
        assert await recall_ids(archive, fingerprints=(name + "!",)) == []

    async def test_a_chain_may_begin_behind_a_node_of_another_session(self, archive: TreeArchive) -> None:
        await add_turns(archive, "a")
        late = make_chain("later", "!still", parent=D.node)
        key = make_key("b", OTHER_TENANT)
        assert await is_stored(archive, make_opening("e9", key=key), make_step("e9", late[:1]), make_reply("e9", late))
        assert await is_stored(archive, make_opening("e10", key=key), make_step("e10", tip=D.node, relation="branch"))
        (stored,) = await archive.recall((), (), key)
        assert (stored.nodes, stored.tips) == (late, (late[0].node, D.node))
        assert (await archive.verify()).faults == ()

    @pytest.mark.parametrize(
        "orphan",
        [
            make_step("e7", [A]),
            make_reply("e7", [A]),
            make_step("e1", [C]),
            make_reply("e1", [D]),
            make_step("e1", [A], tip=B.node),
            make_step("e1", [A], fingerprints=[make_fingerprint("call:1", B)]),
            Adoption("nobody", make_key().id, A.node, OPENED_MS),
            Adoption(make_key().id, "nobody", A.node, OPENED_MS),
            Adoption(make_key().id, make_key().id, A.node, OPENED_MS),
        ],
        ids=["step", "reply", "parent", "answer's parent", "tip", "mark", "adopter", "source", "adopted node"],
    )
    async def test_lineage_of_what_is_not_there_is_refused(self, archive: TreeArchive, orphan: Record) -> None:
        assert await is_stored(archive, make_opening())
        assert not await is_stored(archive, orphan)
        assert archive.health.dropped == 1
        assert await is_stored(archive, make_step("e1", [A]))
        (stored,) = await archive.recall((), (), make_key())
        assert (stored.nodes, stored.fingerprints) == ((A,), ())
        assert (await archive.verify()).faults == ()

    async def test_what_is_refused_leaves_nothing_of_its_append(self, archive: TreeArchive) -> None:
        assert not await is_stored(
            archive, make_opening(), make_step("e1", [A], fingerprints=[make_fingerprint("c:1", A)]), make_round("e7")
        )
        assert not await archive.has_sessions()

    async def test_a_step_that_is_refused_costs_nothing_but_itself(self, archive: TreeArchive) -> None:
        assert await is_stored(archive, make_opening(), make_step("e1", [A]))
        generation = archive.health.generation
        step = make_step("e2", [B, C], fingerprints=[make_fingerprint("c:1", D)])
        assert await count_dropped(archive, make_opening("e2"), make_round("e2"), step) == 1
        assert archive.health.generation != generation
        (stored,) = await archive.recall((), ("c:1",), make_key())
        assert (stored.nodes, stored.fingerprints) == ((A,), ())
        assert [row.id for row in await archive.list_exchanges(make_key().id)] == ["e1", "e2"]
        assert await is_stored(archive, make_step("e2", [B, C], fingerprints=[make_fingerprint("c:1", C)]))
        assert await recall_ids(archive, fingerprints=("c:1",)) == [make_key().id]

    async def test_where_a_call_stands_is_listed_with_it(self, archive: TreeArchive) -> None:
        await archive.append(make_opening("e1"), make_round("e1"), make_outcome("e1"), make_reading("e1"))
        step = make_step("e2", [A, B, C], depth=5, base=2, relation="compaction", is_side=True)
        await archive.append(make_opening("e2"), make_round("e2"), make_round("e2", 1), step)
        await archive.append(make_opening("e3"), make_step("e3"))
        old, placed, rootless = await archive.list_exchanges(make_key().id)
        assert (old.relation, old.is_side, old.tip, old.depth, old.base) == ("", False, b"", 0, 0)
        assert (placed.relation, placed.is_side, placed.tip) == ("compaction", True, C.node)
        assert (placed.depth, placed.base, len(placed.rounds)) == (5, 2, 2)
        assert (rootless.relation, rootless.tip, rootless.depth) == ("append", ROOT, 0)

    async def test_a_session_says_whose_it_is_and_how_it_went(self, archive: TreeArchive) -> None:
        await add_turns(archive, "a")
        child = replace(make_key("b", OTHER_TENANT), parent=make_key("a").id)
        await archive.append(make_opening("b1", key=child), make_step("b1", CHAIN))
        await archive.append(make_opening("b2", key=child), make_step("b2", [make_node("x")], is_side=True))
        await archive.append(make_opening("b3", key=child), make_step("b3", [make_node("y", D.node)]))
        for source in ("a", "a"):
            assert await is_stored(archive, Adoption(child.id, make_key(source).id, B.node, OPENED_MS))
        b, a = await archive.list_sessions()
        assert (a.parent, a.branches, a.side, a.adopted) == ("", 1, 0, "")
        assert (b.parent, b.branches, b.side, b.adopted) == (make_key("a").id, 2, 1, make_key("a").id)
        assert (await archive.verify()).faults == ()

    async def test_a_session_has_its_nodes_parents_first(self, archive: TreeArchive) -> None:
        with pytest.raises(NotFound):
            await archive.list_nodes(make_key().id)
        chain = make_chain("a", "!b", "c")
        await archive.append(make_opening("e1"), make_step("e1", chain))
        await archive.append(make_opening("x1", key=make_key("other")), make_step("x1", chain[:1]))
        assert tuple(await archive.list_nodes(make_key().id)) == chain

    async def test_calls_have_the_numbers_that_their_session_lists(self, archive: TreeArchive) -> None:
        await archive.append(make_opening("a1"))
        await archive.append(make_opening("b1", key=make_key("other")))
        await archive.append(make_opening("a2"))
        assert await archive.number_calls(("a2", "a1", "nobody", "b1")) == {"a1": 1, "a2": 2, "b1": 1}
        assert [row.n for row in await archive.list_exchanges(make_key().id)] == [1, 2]

    async def test_an_edit_begins_a_branch_where_it_left(self, archive: TreeArchive) -> None:
        session = await add_turns(archive)
        edit, last = make_node("c, but better", B.node), make_node("e", D.node)
        await archive.append(make_opening("e3"), make_step("e3", [edit], base=2, relation="branch"))
        await archive.append(make_opening("e4"), make_step("e4", [last], base=4))
        await archive.append(make_opening("e5"), make_step("e5", tip=edit.node, depth=3, base=3, relation="retry"))
        first, second = branches = await archive.list_branches(session)
        assert list(branches) == [
            BranchRow(last.node, 5, (*TURNS, Call(4, "e4", 5)), "root", b"", False),
            BranchRow(edit.node, 3, (Call(3, "e3", 3), Call(5, "e5", 3)), "branch", B.node, False, first, 1),
        ]
        assert (first.trunk, second.trunk) == (None, first)
        assert second.exchanges == (TURNS[0], Call(3, "e3", 3), Call(5, "e5", 3))

    async def test_side_calls_and_new_beginnings_are_branches_of_their_own(self, archive: TreeArchive) -> None:
        title, summary = make_node("a title, please"), make_node("what we did so far")
        session = await add_turns(archive)
        await archive.append(make_opening("e3"), make_step("e3", [title], is_side=True, relation="root"))
        await archive.append(make_opening("e4"), make_step("e4", [summary], relation="compaction"))
        found = await archive.list_branches(session)
        assert [(row.relation, row.left, row.is_side) for row in found] == [
            ("root", b"", False),
            ("root", b"", True),
            ("compaction", b"", False),
        ]
        (row,) = await archive.list_sessions()
        assert (row.branches, row.side) == (3, 1)
