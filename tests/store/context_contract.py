"""What every archive does with epochs, plans and pins."""

import pytest
from msgspec.structs import replace

from proxy.engine.ports import MOST_EPOCHS, NEWEST_EPOCHS, Archive
from proxy.model.epoch import Epoch, EpochUse, Pin, Plan, StoredContext, StoredOriginal
from proxy.model.errors import NotFound
from proxy.model.lineage import Adoption
from proxy.model.log import Record
from tests.store.contract import count_dropped, is_stored
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_chain,
    make_epoch,
    make_key,
    make_opening,
    make_original,
    make_pin,
    make_plan,
    make_recalled,
    make_round,
    make_source,
    make_step,
    make_turns,
)

TURNS = make_turns(5)
RAW = [content for _, content in TURNS]
LEDGER = b'{"role":"user","content":"[what was done]"}'
SESSION, OTHER = make_key().id, make_key("other").id
STRANGER = make_key("stranger", OTHER_TENANT)
A, B, C, D = make_chain("a", "!b", "c", "!d")


async def open_session(archive: Archive, name: str = "agent-7", tenant: bytes | None = None) -> str:
    """A session of one call, `e-NAME`, with a chain of nodes and five messages in the log; its id."""
    key = make_key(name, tenant) if tenant else make_key(name)
    body = chain_body(TURNS, tenant=key.tenant)
    exchange = f"e-{name}"
    opening, step = make_opening(exchange, body, key=key), make_step(exchange, [A, B, C, D])
    assert await is_stored(archive, opening, step, make_round(exchange))
    return key.id


class ContextContract:
    """Behaviour of epochs, plans and pins, of `load_context`, `load_original`, `list_epochs` and `load_epoch`."""

    async def test_an_epoch_comes_back_with_all_that_it_has(self, archive: Archive) -> None:
        session = await open_session(archive)
        originals = (make_original("r1", RAW[1], RAW[2]), make_original("r2", RAW[2], place=2, offset=400))
        first = make_epoch("p1", (RAW[0], LEDGER, RAW[3]), originals, exchange="e-agent-7")
        second = replace(make_epoch("p2", (), parent="p1", view="mini"), why="revert", depth=0, tokens_after=90_000)
        assert await is_stored(archive, first)
        assert await is_stored(archive, second)
        assert await archive.load_context(session) == StoredContext((first, second))
        assert list(await archive.list_epochs(session)) == [replace(first, rendered=()), second]
        assert [await archive.load_epoch(session, n) for n in (1, 2)] == [first, second]
        assert (await archive.verify()).faults == ()

    async def test_an_epoch_may_offer_a_tool_and_an_answer_under_it_has_the_rounds_that_recalled(
        self, archive: Archive
    ) -> None:
        session = await open_session(archive)
        await open_session(archive, "other")
        epoch = replace(make_epoch("p1", (LEDGER,)), tool=b'{"name":"\xff"}')
        recalled = make_recalled("e-agent-7", node=C.node, view="\ud800")
        assert await is_stored(archive, epoch, recalled)
        fitted = replace(recalled, view="?")
        assert await archive.load_context(session) == StoredContext((epoch,), recalled=(fitted,))
        assert (await archive.list_epochs(session))[0].tool == epoch.tool
        assert await archive.load_context(OTHER) == StoredContext()
        assert await is_stored(archive, Adoption(OTHER, session, B.node, 1))
        assert (await archive.load_context(OTHER)).recalled == (fitted,)
        for refused in (
            recalled,
            replace(recalled, exchange="e-other", epoch="p9"),
            replace(recalled, exchange="e-other", epoch=""),
            replace(recalled, exchange="e-nobody"),
            replace(recalled, exchange="e-other", session="nobody"),
        ):
            assert await count_dropped(archive, refused) == 1
        later = make_recalled("e-other", session=OTHER, node=D.node)
        assert await is_stored(archive, later)
        assert (await archive.load_context(OTHER)).recalled == (fitted, later)
        assert (await archive.verify()).faults == ()

    async def test_what_requests_told_of_their_newest_message_comes_back(self, archive: Archive) -> None:
        session = await open_session(archive)
        await open_session(archive, "other")
        first = make_source("e-agent-7", "broadcast:\ud800", node=D.node)
        assert await is_stored(archive, first)
        fitted = replace(first, kind="broadcast:?")
        assert await archive.load_context(session) == StoredContext(sources=(fitted,))
        assert await archive.load_context(OTHER) == StoredContext()
        assert await is_stored(archive, Adoption(OTHER, session, B.node, 1))
        assert await is_stored(archive, later := make_source("e-other", session=OTHER, node=B.node))
        assert (await archive.load_context(OTHER)).sources == (fitted, later)
        for refused in (first, make_source("e-nobody"), make_source("e-other", session="nobody")):
            assert await count_dropped(archive, refused) == 1
        assert (await archive.verify()).faults == ()

    async def test_where_nothing_is_known_nothing_is_found(self, archive: Archive) -> None:
        session = await open_session(archive)
        await is_stored(archive, make_epoch(originals=[make_original("r1", RAW[0])]))
        for name in (OTHER, "", "\udcff"):
            assert await archive.load_context(name) == StoredContext()
            for question in (archive.list_epochs(name), archive.load_epoch(name, 1)):
                with pytest.raises(NotFound):
                    await question
        for n in (-1, 0, 2):
            with pytest.raises(NotFound):
                await archive.load_epoch(session, n)
        for reference in ("r", "r2", "", "\udcff"):
            with pytest.raises(NotFound):
                await archive.load_original(reference)

    async def test_a_session_may_refer_to_what_another_refers_to(self, archive: Archive) -> None:
        session, other = await open_session(archive), await open_session(archive, "other")
        original = make_original("r1", RAW[1])
        first = make_epoch("p1", (RAW[0], LEDGER), originals=[original])
        taken = replace(first, id="p2", session=other, exchange="e-other")
        for epoch in (first, taken):
            assert await is_stored(archive, epoch)
        assert (await archive.load_context(other)).epochs == (taken,)
        assert await archive.load_original("r1") == StoredOriginal(session, original, (RAW[1],))
        assert (await archive.verify()).faults == ()

    async def test_a_reference_never_stands_for_something_else(self, archive: Archive) -> None:
        session = await open_session(archive)
        original = make_original("r1", RAW[1])
        await is_stored(archive, make_epoch(originals=[original]))
        others = (
            make_original("r1", RAW[2]),
            make_original("r1", RAW[1], RAW[2]),
            make_original("r1", RAW[1], place=2),
            make_original("r1", RAW[1], offset=1),
            replace(original, wire="responses"),
        )
        for other in others:
            assert await count_dropped(archive, make_epoch("p2", originals=[other])) == 1
            twice = [make_original("r2", RAW[1]), replace(other, id="r2")]
            assert await count_dropped(archive, make_epoch("p2", originals=twice)) == 1
        assert (await archive.load_original("r1")).original == original
        assert len(await archive.list_epochs(session)) == 1
        with pytest.raises(NotFound):
            await archive.load_original("r2")

    async def test_a_session_that_goes_on_from_another_has_its_state(self, archive: Archive) -> None:
        first = await open_session(archive, "a")
        second = await open_session(archive, "b", OTHER_TENANT)
        third = await open_session(archive, "c")
        original = make_original("r1", RAW[1])
        epochs = [
            make_epoch("p1", (LEDGER,), [original], session=first),
            make_epoch("p2", (LEDGER, RAW[3]), [original], session=second, parent="p1"),
            make_epoch("p3", (LEDGER, RAW[4]), session=third, parent="p2"),
        ]
        pins = [make_pin(A.node, session=first), make_pin(A.node, session=second, is_on=False)]
        await is_stored(archive, *epochs, *pins)
        assert (await archive.load_context(third)).epochs == (epochs[2],)
        await is_stored(archive, Adoption(second, first, B.node, 1), Adoption(third, second, D.node, 2))
        assert await archive.load_context(first) == StoredContext((epochs[0],), (pins[0],))
        assert await archive.load_context(second) == StoredContext(tuple(epochs[:2]), tuple(pins))
        assert await archive.load_context(third) == StoredContext(tuple(epochs), tuple(pins))
        await is_stored(archive, Adoption(first, third, B.node, 3))
        assert (await archive.load_context(first)).epochs == tuple(epochs)
        assert (await archive.load_original("r1")).session == first
        assert [epoch.id for epoch in await archive.list_epochs(third)] == ["p3"]
        assert (await archive.verify()).faults == ()

    async def test_of_each_view_the_newest_epochs_count_and_those_that_none_follows(self, archive: Archive) -> None:
        session = await open_session(archive)
        old = [make_epoch("o1", view="mini"), make_epoch("o2", view="mini", parent="o1")]
        branch = [make_epoch("b1"), make_epoch("b2", parent="b1")]
        count = NEWEST_EPOCHS + 3
        line = [make_epoch(f"p{i}", (LEDGER, b"%d" % i), parent=f"p{i - 1}" if i else "b1") for i in range(count)]
        for epoch in (*old, *branch, *line):
            archive.append(epoch)
        assert (await archive.load_context(session)).epochs == (*old, branch[1], *line[-NEWEST_EPOCHS:])
        assert len(await archive.list_epochs(session)) == count + 4
        assert await archive.load_epoch(session, 5) == line[0]

    async def test_of_many_branches_the_newest_count(self, archive: Archive) -> None:
        session = await open_session(archive)
        other = make_epoch("other", view="mini")
        tips = [make_epoch(f"p{i}") for i in range(MOST_EPOCHS + 2)]
        for epoch in (other, *tips):
            archive.append(epoch)
        assert (await archive.load_context(session)).epochs == (other, *tips[2:])

    async def test_of_each_view_the_newest_plan_says_what_is_owed(self, archive: Archive) -> None:
        session = await open_session(archive)
        await open_session(archive, "other")
        for k, (view, owed) in enumerate((("b", 1.0), ("a", 0.1), ("b", 3), ("é\ud800", 7.25), ("a", 0))):
            assert await is_stored(archive, make_plan("e-agent-7", k, view=view, owed=owed))
        assert await is_stored(archive, make_plan("e-other", view="a", owed=99.0))
        assert sorted((await archive.load_context(session)).owed) == [("a", 0.0), ("b", 3.0), ("é?", 7.25)]
        await is_stored(archive, Adoption(OTHER, session, B.node, 1))
        assert sorted((await archive.load_context(OTHER)).owed) == [("a", 99.0), ("b", 3.0), ("é?", 7.25)]
        assert (await archive.verify()).faults == ()

    async def test_a_view_that_went_on_without_a_compaction_is_known_however_old_its_epoch(
        self, archive: Archive
    ) -> None:
        session = await open_session(archive)
        for n, why in enumerate(("hard", "uncompacted", *(["soft"] * (NEWEST_EPOCHS + 2)))):
            parent = f"g{n - 1}" if n else ""
            epoch = replace(make_epoch(f"g{n}", parent=parent), why=why)
            assert await is_stored(archive, epoch)
        loaded = await archive.load_context(session)
        assert "g1" not in [each.id for each in loaded.epochs]
        assert loaded.given_up == (epoch.view,)

    async def test_what_a_person_asked_for_is_unsent_until_a_plan_names_it_or_another_follows(
        self, archive: Archive
    ) -> None:
        session = await open_session(archive)
        for name, parent, why in (("p1", "", "hard"), ("p2", "p1", "manual"), ("p3", "", "manual")):
            await is_stored(archive, replace(make_epoch(name, parent=parent), why=why))
        assert (await archive.load_context(session)).unsent == ("p2", "p3")
        await is_stored(archive, make_plan("e-agent-7", epoch="p2"))
        assert (await archive.load_context(session)).unsent == ("p3",)
        await is_stored(archive, replace(make_epoch("p4", parent="p3"), why="revert"))
        assert (await archive.load_context(session)).unsent == ()

    async def test_uses_of_epochs_are_those_of_the_last_rounds(self, archive: Archive) -> None:
        session = await open_session(archive)
        other = await open_session(archive, "b", OTHER_TENANT)
        await is_stored(archive, make_epoch("p1", session=session), make_epoch("p4", session=other))
        await is_stored(archive, replace(make_epoch("p2", (), parent="p1"), why="revert", depth=0))
        for i, tip in enumerate((B, C, A, D), 2):
            step = make_step(f"e{i}", tip=tip.node, depth=i, base=i)
            await is_stored(archive, make_opening(f"e{i}", chain_body(TURNS)), step, make_round(f"e{i}"))
            await is_stored(archive, make_round(f"e{i}", 1))
        await is_stored(archive, make_plan("e-agent-7", epoch="p1"), make_plan("e2", epoch="p1", view="mini"))
        await is_stored(archive, make_plan("e3", epoch="p1"), make_plan("e3", 1))  # it was refused under p1
        await is_stored(archive, make_plan("e4"), make_plan("e4", 1, epoch="p1"), make_plan("e5", epoch="p2"))
        await is_stored(archive, make_plan("e-b", epoch="p4"))
        own = [EpochUse("gpt-4o", D.node, "p1"), EpochUse("mini", B.node, "p1"), EpochUse("gpt-4o", A.node, "p1")]
        assert list(await archive.list_uses(session)) == own
        assert list(await archive.list_uses("nobody")) == []
        await is_stored(archive, Adoption(session, other, D.node, 1))
        assert list(await archive.list_uses(session)) == [*own, EpochUse("gpt-4o", D.node, "p4")]

    async def test_of_each_node_the_newest_pin_counts(self, archive: Archive) -> None:
        session = await open_session(archive)
        off, on, later = make_pin(A.node, is_on=False), make_pin(B.node, at_ms=3), make_pin(A.node, at_ms=5)
        for pin in (make_pin(A.node), make_pin(C.node), off, on):
            assert await is_stored(archive, pin)
        assert (await archive.load_context(session)).pins == (make_pin(C.node), off, on)
        await is_stored(archive, later)
        assert (await archive.load_context(session)).pins == (make_pin(C.node), on, later)

    async def test_a_round_is_listed_with_its_plan(self, archive: Archive) -> None:
        session = await open_session(archive)
        await is_stored(archive, make_round("e-agent-7", 1), make_round("e-agent-7", 2), make_epoch("p1"))
        plain = Plan("e-agent-7", 2, "gpt-4o", "original")
        managed = make_plan("e-agent-7", 1, epoch="p1", owed=12.5)
        assert await is_stored(archive, managed, plain)
        for rows in (await archive.list_exchanges(session), await archive.list_calls(session)):
            assert [each.plan for each in rows[0].rounds] == [None, managed, plain]

    @pytest.mark.parametrize("again", [make_epoch("p1"), make_plan("e-agent-7")], ids=["epoch", "plan"])
    async def test_what_comes_twice_is_refused_and_counted(self, archive: Archive, again: Epoch | Plan) -> None:
        session = await open_session(archive)
        await is_stored(archive, make_epoch("p1"), make_plan("e-agent-7"))
        generation = archive.health.generation
        assert await count_dropped(archive, again) == 1
        assert archive.health.generation != generation
        context = await archive.load_context(session)
        assert (len(context.epochs), len(context.owed)) == (1, 1)

    @pytest.mark.parametrize(
        "orphan",
        [
            make_epoch(session="nobody"),
            make_epoch(exchange="e9"),
            make_epoch(parent="p0"),
            make_epoch(originals=[make_original("r1", b"never sent")]),
            make_plan("e9"),
            make_plan("e-agent-7", epoch="p0"),
            make_pin(A.node, session="nobody"),
        ],
        ids=["epoch", "its exchange", "its parent", "its original", "plan", "its epoch", "pin"],
    )
    async def test_what_refers_to_nothing_costs_nothing_that_it_came_with(
        self, archive: Archive, orphan: Epoch | Plan | Pin
    ) -> None:
        session = await open_session(archive)
        records: tuple[Record, ...] = (make_opening("e2"), make_round("e2"), orphan)
        before = archive.health.dropped
        await archive.append(*records)
        assert len(await archive.list_exchanges(session)) == 2
        assert archive.health.dropped == before + 1
        assert await archive.load_context(session) == StoredContext()
        assert (await archive.verify()).faults == ()

    async def test_messages_of_another_tenant_are_not_there(self, archive: Archive) -> None:
        await is_stored(archive, make_opening(key=STRANGER))
        await open_session(archive)
        spy = make_epoch(originals=[make_original("r1", RAW[1])], session=STRANGER.id)
        assert await count_dropped(archive, spy) == 1
        await open_session(archive, "theirs", OTHER_TENANT)
        assert await is_stored(archive, spy)
