"""What every archive does with summaries."""

import itertools

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.context.compaction.spans import list_live_summaries
from proxy.engine.ports import MOST_SUMMARIES, Archive
from proxy.model.epoch import StoredContext, StoredOriginal, Summary
from proxy.model.errors import NotFound
from proxy.model.lineage import Adoption
from proxy.model.log import Record
from tests.store.context_contract import RAW, TURNS, B, D, open_session
from tests.store.contract import count_dropped, is_stored
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_condensed,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_round,
    make_turns,
)
from tests.support.examples import examples

STRANGER = make_key("stranger", OTHER_TENANT)
_numbers = itertools.count()

ONE, TWO = make_leaf("one", RAW[:2]), make_leaf("two", RAW[2:5], 2)
BOTH = make_condensed("both", [ONE, TWO])


def make_next(summary: Summary, id: str) -> Summary:
    """One that was made of this alone."""
    return replace(make_condensed(id, [summary]), text=id[-1])


class SummaryContract:
    """Behaviour of summaries: `list_summaries`, and what `load_context` and `load_original` say of them."""

    async def test_a_summary_comes_back_with_all_that_it_has(self, archive: Archive) -> None:
        session = await open_session(archive)
        first = replace(ONE, exchange="e-agent-7", model="gpt-4o-mini", reason="too long", calls=("e2", "e3"), level=3)
        first = replace(first, is_provisional=True, files=("ref:abc", "/src/a.py"))
        second = replace(
            make_leaf("again", RAW[:2], supersedes=["one"]), start=0, text="é\n\U0001f600", block='{"a":"é"}'
        )
        for summary in (first, TWO, BOTH, second):
            assert await is_stored(archive, summary)
        assert list(await archive.list_summaries(session)) == [first, TWO, BOTH, second]
        assert (await archive.verify()).faults == ()

    async def test_where_nothing_is_known_there_are_no_summaries(self, archive: Archive) -> None:
        session = await open_session(archive)
        other = await open_session(archive, "other")
        await is_stored(archive, ONE)
        assert (await archive.load_context(other)).summaries == ()
        assert list(await archive.list_summaries(other)) == []
        assert [each.id for each in await archive.list_summaries(session)] == ["one"]
        for name in ("nobody", "", "\udcff"):
            with pytest.raises(NotFound):
                await archive.list_summaries(name)
            with pytest.raises(NotFound):
                await archive.load_original(name)

    async def test_those_count_that_nothing_stands_in_place_of(self, archive: Archive) -> None:
        session = await open_session(archive)
        poor, better = replace(ONE, id="poor", level=3), replace(ONE, supersedes=("poor",))
        found = []
        for summary in (poor, TWO, better, BOTH, replace(BOTH, id="anew", text="shorter", supersedes=("both",))):
            assert await is_stored(archive, summary)
            found.append([each.id for each in (await archive.load_context(session)).summaries])
        assert found == [["poor"], ["poor", "two"], ["two", "one"], ["one", "both"], ["one", "anew"]]

    async def test_of_many_the_newest_count(self, archive: Archive) -> None:
        session = await open_session(archive)
        many = [replace(ONE, id=f"s{i}", text=f"{i}") for i in range(MOST_SUMMARIES + 3)]
        for summary in many:
            archive.append(summary)
        assert (await archive.load_context(session)).summaries == tuple(many[3:])
        assert len(await archive.list_summaries(session)) == len(many)

    async def test_what_was_merged_is_there_for_branches_that_leave_the_merged_ones_messages(
        self, archive: Archive
    ) -> None:
        session = await open_session(archive)
        aside = make_leaf("aside", RAW[2:4], 2)  # on a branch that has the first four messages
        for summary in (ONE, TWO, aside, BOTH):
            assert await is_stored(archive, summary)
        loaded = (await archive.load_context(session)).summaries
        assert loaded == (ONE, aside, BOTH)
        assert list_live_summaries([each for each in loaded if each.stop <= 4]) == [ONE, aside]
        assert list_live_summaries([each for each in loaded if each is not aside]) == [BOTH]

    async def test_what_stands_goes_before_what_was_merged_where_there_are_too_many(self, archive: Archive) -> None:
        session = await open_session(archive)
        pairs = [
            (replace(ONE, id=f"l{i}", text=f"{i}"), replace(TWO, id=f"r{i}", text=f"{i}"))
            for i in range(MOST_SUMMARIES // 2 + 8)
        ]
        merged = [make_condensed(f"m{i}", pair) for i, pair in enumerate(pairs)]
        archive.append(TWO)
        for each in (*(summary for pair in pairs for summary in pair), *merged):
            archive.append(each)
        loaded = (await archive.load_context(session)).summaries
        left = [left for left, _ in pairs]
        assert loaded == (TWO, *left[-(MOST_SUMMARIES - len(merged) - 1) :], *merged)

    async def test_a_session_that_goes_on_from_another_has_its_summaries(self, archive: Archive) -> None:
        first, second = await open_session(archive, "a"), await open_session(archive, "b", OTHER_TENANT)
        one, two = replace(ONE, session=first), replace(TWO, session=second)
        both = replace(BOTH, session=second)
        await is_stored(archive, one)
        assert (await archive.load_context(second)).summaries == ()
        await is_stored(archive, Adoption(second, first, B.node, 1), two)
        assert (await archive.load_context(second)).summaries == (one, two)
        assert await is_stored(archive, both)
        assert (await archive.load_context(second)).summaries == (one, both)
        # nothing that the first knows of stands in its place
        assert await archive.load_context(first) == StoredContext(summaries=(one,))
        assert list(await archive.list_summaries(second)) == [two, both]
        assert (await archive.load_original("both")).messages == tuple(RAW)
        await is_stored(archive, Adoption(first, second, D.node, 2))
        assert (await archive.load_context(first)).summaries == (one, both)
        assert (await archive.verify()).faults == ()

    async def test_an_id_gives_the_messages_that_a_summary_covers(self, archive: Archive) -> None:
        session = await open_session(archive)
        await is_stored(archive, ONE, TWO, BOTH)
        original = make_original("two", *RAW[2:5], place=2)
        assert await archive.load_original("two") == StoredOriginal(session, original, tuple(RAW[2:5]))
        original = make_original("both", *RAW, place=0)
        assert await archive.load_original("both") == StoredOriginal(session, original, tuple(RAW))
        # a reference of an epoch may have the same name, for it means the same
        assert await is_stored(archive, make_epoch(originals=[original]))
        assert await archive.load_original("both") == StoredOriginal(session, original, tuple(RAW))

    @examples(
        25,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(st.data())
    async def test_any_one_gives_exactly_what_it_covers_through_any_number_of_rounds(
        self, archive: Archive, data: st.DataObject
    ) -> None:
        number = next(_numbers)
        turns = make_turns(data.draw(st.integers(1, 24)), size=40 + number)
        raw = [content for _, content in turns]
        key = make_key(f"x{number}")
        archive.append(make_opening(f"x{number}", chain_body(turns), key=key))
        cuts = data.draw(st.sets(st.integers(1, len(raw) - 1))) if len(raw) > 1 else set()
        bounds = [0, *sorted(cuts), len(raw)]
        line = [
            make_leaf(f"x{number}-{begin}", raw[begin:end], begin, session=key.id)
            for begin, end in itertools.pairwise(bounds)
        ]
        made = list(line)
        for turn in range(data.draw(st.integers(0, 12))):
            start = data.draw(st.integers(0, len(line) - 1))
            parents = line[start : data.draw(st.integers(start + 1, len(line)))]
            condensed = make_condensed(f"x{number}-c{turn}", parents)
            line[start : start + len(parents)] = [condensed]
            made.append(condensed)
        for summary in made:
            archive.append(summary)
        for summary in made:
            found = await archive.load_original(summary.id)
            original = make_original(summary.id, *raw[summary.start : summary.stop], place=summary.start)
            assert found == StoredOriginal(key.id, original, tuple(raw[summary.start : summary.stop]))
        loaded = (await archive.load_context(key.id)).summaries
        assert list_live_summaries(loaded) == line
        assert archive.health.dropped == 0

    async def test_a_long_line_of_summaries_is_followed_to_its_end(self, archive: Archive) -> None:
        await open_session(archive)
        summary = ONE
        archive.append(summary)
        for i in range(15):  # together more than a recursion bears; so many at a time as are written while one reads
            line = [summary := make_next(summary, f"c{i}-{k}") for k in range(100)]
            assert await is_stored(archive, *line)
        assert (await archive.load_original(summary.id)).messages == tuple(RAW[:2])

    async def test_the_same_summary_is_taken_once(self, archive: Archive) -> None:
        session = await open_session(archive)
        assert await is_stored(archive, ONE)
        assert await is_stored(archive, replace(ONE, made_ms=1, exchange="e-agent-7"), make_round("e-agent-7", 1))
        assert await is_stored(archive, TWO, TWO)
        assert list(await archive.list_summaries(session)) == [ONE, TWO]
        assert (await archive.verify()).faults == ()

    @pytest.mark.parametrize(
        "change",
        [{"text": "other"}, {"level": 2}, {"start": 1, "stop": 3}, {"last": b"m" * 16}, {"wire": "responses"}],
        ids=lambda change: next(iter(change)),
    )
    async def test_an_id_never_means_another_summary(self, archive: Archive, change: dict[str, object]) -> None:
        session = await open_session(archive)
        await is_stored(archive, ONE)
        assert await count_dropped(archive, replace(ONE, **change)) == 1
        assert list(await archive.list_summaries(session)) == [ONE]

    @pytest.mark.parametrize(
        "orphan",
        [
            replace(TWO, session="nobody"),
            replace(TWO, exchange="e9"),
            make_leaf("x", [RAW[0], b"never sent"]),
            make_condensed("x", [ONE, TWO]),
            replace(ONE, id="x", supersedes=("two",)),
            # what it says of itself is not so
            make_leaf("x", []),
            replace(ONE, id="x", stop=3),
            replace(ONE, id="x", start=-1, stop=1),
            replace(ONE, id="x", parents=("one",)),
            replace(make_condensed("x", [ONE]), parents=()),
            replace(make_condensed("x", [ONE]), digests=ONE.digests),
            replace(make_condensed("x", [ONE]), stop=3),
            replace(make_condensed("x", [ONE]), wire="responses"),
            make_condensed("x", [ONE, ONE]),
            replace(make_leaf("x", RAW[1:3], 1), supersedes=("one",)),
        ],
        ids=[
            *("session", "exchange", "message", "parent", "superseded", "empty", "short", "below nothing"),
            *("leaf with parents", "no parents", "condensed messages", "too wide", "wire", "twice", "not within"),
        ],
    )
    async def test_one_that_is_not_whole_costs_nothing_that_it_came_with(
        self, archive: Archive, orphan: Summary
    ) -> None:
        session = await open_session(archive)
        assert await is_stored(archive, ONE)
        records: tuple[Record, ...] = (make_opening("e2"), make_round("e2"), orphan)
        assert await count_dropped(archive, *records) == 1
        assert len(await archive.list_exchanges(session)) == 2
        assert list(await archive.list_summaries(session)) == [ONE]
        assert (await archive.verify()).faults == ()

    async def test_messages_of_another_tenant_are_no_leaf(self, archive: Archive) -> None:
        await open_session(archive)
        await is_stored(archive, make_opening("spied", key=STRANGER))
        spy = make_leaf("spy", RAW[:2], session=STRANGER.id)
        assert await count_dropped(archive, spy) == 1
        await is_stored(archive, make_opening("theirs", chain_body(TURNS, tenant=OTHER_TENANT), key=STRANGER))
        assert await is_stored(archive, spy)
