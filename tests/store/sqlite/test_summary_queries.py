"""Summaries read back, in SQLite; what any store answers is in `summary_contract`."""

import sqlite3

import pytest
from msgspec.structs import replace

from proxy.model.errors import NotFound, StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.context_queries import list_summaries, load_context, load_original
from tests.store.samples import chain_body, make_condensed, make_key, make_leaf, make_opening, make_turns
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil
from tests.store.sqlite.test_context_queries import erase, watch

SESSION = make_key().id
TURNS = make_turns(40)
RAW = [content for _, content in TURNS]
ONE, TWO = make_leaf("one", RAW[:2], text="of one"), make_leaf("two", RAW[2:5], 2, text="of two")
BOTH = make_condensed("both", [ONE, TWO])


async def open_session(open_archive: Opener) -> SqliteArchive:
    archive = open_archive()
    assert await archive.append(make_opening(body=chain_body(TURNS)))
    return archive


async def test_one_whose_text_was_erased_is_listed_without_it_and_of_no_use(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = await open_session(open_archive)
    noted = replace(TWO, reason="no room", files=("a.py",))
    assert await archive.append(ONE, noted)
    erase(policy, "SELECT text FROM summary WHERE id = 'one' UNION SELECT notes FROM summary WHERE id = 'two'")
    assert list(await archive.list_summaries(SESSION)) == [replace(ONE, text=""), TWO]
    assert (await archive.load_context(SESSION)).summaries == (TWO,)
    assert (await archive.load_original("one")).messages == tuple(RAW[:2])


async def test_one_whose_messages_were_erased_gives_none_of_them(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    assert await archive.append(ONE, TWO, BOTH)
    erase(policy, "SELECT value FROM summary, json_each(messages) WHERE summary.id = 'two' LIMIT 1")
    assert (await archive.load_original("one")).messages == tuple(RAW[:2])
    for name in ("two", "both"):
        with pytest.raises(NotFound, match="erased"):
            await archive.load_original(name)


async def test_how_many_summaries_there_are_costs_no_statements(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    counts = []
    for first, last in ((0, 2), (2, 40)):
        leaves = [make_leaf(f"l{i}", RAW[i : i + 1], i, text=f"{i}") for i in range(first, last)]
        archive.append(*leaves)
        archive.append(make_condensed(f"c{last}", leaves))
        await archive.list_sessions(1)
        connection = connect_reader(policy.path)
        counts.append(watch(connection)[0])
        connection.close()
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE summary SET messages = 'x' WHERE id = 'one'",
        "UPDATE summary SET messages = '[]' WHERE id = 'one'",
        "UPDATE summary SET start = 1 WHERE id = 'one'",
        "UPDATE summary SET stop = 6 WHERE id = 'both'",
        "DELETE FROM summary_edge WHERE i = 1",
        "DELETE FROM summary WHERE id = 'two'",
        "UPDATE summary_edge SET other = 3",  # a ring
    ],
)
async def test_damage_is_told_from_what_is_not_there(open_archive: Opener, policy: StorePolicy, damage: str) -> None:
    archive = await open_session(open_archive)
    assert await archive.append(ONE, TWO, BOTH)
    await archive.close()
    spoil(policy.path, damage)
    connection = connect_reader(policy.path)
    with pytest.raises(StoreUnavailable, match="run `palimpsest verify`"):
        load_original(connection, "both")
    connection.close()


@pytest.mark.parametrize(
    "damage",
    ["UPDATE summary SET messages = '['", "UPDATE summary SET calls = ''", "UPDATE payload SET codec = 9"],
)
async def test_damage_is_told_in_a_listing(open_archive: Opener, policy: StorePolicy, damage: str) -> None:
    archive = await open_session(open_archive)
    assert await archive.append(ONE)
    await archive.close()
    spoil(policy.path, damage)
    connection: sqlite3.Connection = connect_reader(policy.path)
    for question in (load_context, list_summaries):
        with pytest.raises(StoreUnavailable, match="run `palimpsest verify`"):
            question(connection, SESSION)
    connection.close()
