"""How sessions are managed, in SQLite; what any store answers is in `context_contract`."""

import sqlite3

import pytest

from proxy.model.errors import Erased, NotFound, StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.context_queries import (
    load_context,
    load_epoch,
)
from tests.store.samples import (
    chain_body,
    make_epoch,
    make_key,
    make_memory_order,
    make_opening,
    make_original,
    make_plan,
    make_remembered,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil

SESSION = make_key().id
TURNS = make_turns(4)
RAW = [content for _, content in TURNS]


async def open_session(open_archive: Opener) -> SqliteArchive:
    archive = open_archive()
    assert await archive.append(make_opening(body=chain_body(TURNS)))
    return archive


def erase(policy: StorePolicy, payloads: str) -> None:
    """Delete payloads as an erasure does; `payloads` is a query of their numbers."""
    with sqlite3.connect(policy.path) as connection:
        connection.execute("INSERT INTO permit(token) VALUES ('t')")
        assert connection.execute(f"DELETE FROM payload WHERE id IN ({payloads})").rowcount
        connection.execute("DELETE FROM permit")
    connection.close()


def watch(connection: sqlite3.Connection) -> tuple[int, int]:
    """Statements that it takes to load the session, and the steps of SQLite's machine."""
    questions: list[str] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection.set_trace_callback(questions.append)
    connection.set_progress_handler(step, 1)
    load_context(connection, SESSION)
    connection.set_progress_handler(None, 1)
    connection.set_trace_callback(None)
    return len(questions), steps


async def test_an_epoch_of_which_a_message_was_erased_is_of_no_use(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    original = make_original("r1", RAW[1], RAW[2])
    first, second = make_epoch("p1", (RAW[1],), [original]), make_epoch("p2", (RAW[0],), [original], parent="p1")
    assert await archive.append(first, second)
    erase(policy, f"SELECT id FROM blob WHERE size = {len(RAW[1])} ORDER BY id LIMIT 1 OFFSET 1")
    assert (await archive.load_context(SESSION)).epochs == (second,)
    assert await archive.load_epoch(SESSION, 2) == second
    for question in (archive.load_epoch(SESSION, 1), archive.load_original("r1")):
        with pytest.raises(NotFound, match="erased"):
            await question
    with pytest.raises(Erased) as erased:
        await archive.load_original("r1")
    assert erased.value.session == SESSION
    assert [epoch.originals for epoch in await archive.list_epochs(SESSION)] == [(original,), (original,)]


async def test_of_memory_that_was_erased_only_the_orders_are_left(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    for record in (make_remembered(1), make_remembered(2), make_memory_order()):
        assert await archive.append(record)
    erase(policy, "SELECT content FROM memory WHERE seq = 1")
    found = await archive.load_memory(SESSION)
    assert [entry.number for _, entry in found.entries] == [2]
    assert [order for _, order in found.orders] == [make_memory_order()]
    await archive.close()


async def test_an_epoch_whose_edits_were_erased_is_listed_without_them(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = await open_session(open_archive)
    assert await archive.append(make_epoch("p1"), make_epoch("p2", edits=b"[]"))
    erase(policy, "SELECT edits FROM epoch WHERE id = 'p1'")
    assert [epoch.edits for epoch in await archive.list_epochs(SESSION)] == [b"", b"[]"]
    assert [epoch.id for epoch in (await archive.load_context(SESSION)).epochs] == ["p2"]
    with pytest.raises(NotFound, match="erased"):
        await archive.load_epoch(SESSION, 1)


async def test_content_that_epochs_share_is_read_once(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    for i in range(5):
        archive.append(make_epoch(f"p{i}", RAW * 3, [make_original("r1", RAW[1]), make_original(f"s{i}", RAW[2])]))
    await archive.close()
    connection = connect_reader(policy.path)
    epochs = load_context(connection, SESSION).epochs
    assert len({id(message) for epoch in epochs for message in epoch.rendered}) == len(RAW)
    assert len({id(epoch.originals[0]) for epoch in epochs}) == 1
    connection.close()


async def test_it_matters_not_how_many_calls_a_session_had(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    archive.append(make_epoch("p1", RAW))
    counts = []
    for first, last in ((0, 20), (20, 400)):
        for i in range(first, last):
            archive.append(make_opening(f"x{i}"), make_plan(f"x{i}", view=f"v{i % 3}", epoch="p1"))
        await archive.list_sessions(1)
        connection = connect_reader(policy.path)
        counts.append(watch(connection))
        connection.close()
    assert counts[0] == counts[1]


async def test_how_many_epochs_there_are_costs_no_statements(open_archive: Opener, policy: StorePolicy) -> None:
    archive = await open_session(open_archive)
    counts = []
    for first, last in ((0, 2), (2, 40)):
        for i in range(first, last):
            archive.append(make_epoch(f"p{i}", (RAW[0], b"%d" % i), [make_original(f"r{i}", RAW[1])]))
        await archive.list_sessions(1)
        connection = connect_reader(policy.path)
        counts.append(watch(connection)[0])
        connection.close()
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE epoch SET rendered = 'x'",
        "UPDATE original SET messages = '['",
        "DELETE FROM original",
        "DELETE FROM blob WHERE size = (SELECT max(size) FROM blob)",
        "UPDATE payload SET codec = 9",
    ],
)
async def test_damage_is_told_from_what_is_not_there(open_archive: Opener, policy: StorePolicy, damage: str) -> None:
    archive = await open_session(open_archive)
    long = b"a long message " * 20
    archive.append(make_opening("e2", chain_body([(b"", long)])), make_epoch("p1", (long,), [make_original("r", long)]))
    await archive.close()
    spoil(policy.path, damage)
    connection = connect_reader(policy.path)
    for question in (lambda: load_context(connection, SESSION), lambda: load_epoch(connection, SESSION, 1)):
        with pytest.raises(StoreUnavailable, match="run `palimpsest verify`"):
            question()
    connection.close()
