"""Bodies, listings and unread responses in SQLite; what every store returns is in the contracts."""

import sqlite3
from collections.abc import AsyncIterator

import pytest

from proxy.engine.ports import ALL_SESSIONS
from proxy.model.errors import NotFound, ProxyError, StoreUnavailable
from proxy.model.log import Selection
from proxy.model.manifest import Blob, BlobPiece, Manifest, compute_digest, encode_recipe
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.exchange_queries import list_unread, select_session, select_sessions, sum_auxiliary
from proxy.store.sqlite.reader import SqliteReader
from tests.store.samples import chain_body, make_key, make_opening, make_outcome, make_round, make_turns
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil
from tests.store.unread_contract import add_answers

TURNS = make_turns(5)
LINKS = [piece.link for piece in chain_body(TURNS).slices]
TOOLS = Blob(compute_digest(b"the tools"), b"the tools")


@pytest.fixture
async def reader(open_archive: Opener, policy: StorePolicy) -> AsyncIterator[SqliteReader]:
    """A log with a body in a chain (e1) and one in a blob (e2), no server writing it, nothing read yet."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)))
    await archive.append(make_opening("e2", Manifest(encode_recipe((BlobPiece(TOOLS.digest),)), (), (TOOLS,), 9)))
    await archive.close()
    reader = SqliteReader(policy.path)
    yield reader
    await reader.close()


def payload_of(content: bytes) -> str:
    return f"(SELECT id FROM blob WHERE digest = x'{compute_digest(content).hex()}')"


@pytest.mark.parametrize(
    ("damage", "exchange", "error", "text"),
    [
        (f"DELETE FROM payload WHERE id = {payload_of(TURNS[2][1])}", "e1", NotFound, "part of this body was erased"),
        (f"DELETE FROM payload WHERE id = {payload_of(TOOLS.content)}", "e2", NotFound, "content was erased"),
        (f"DELETE FROM blob WHERE digest = x'{TOOLS.digest.hex()}'", "e2", NotFound, "content was erased"),
        ("DELETE FROM payload WHERE id = (SELECT envelope FROM exchange)", "e1", NotFound, "content was erased"),
        (f"DELETE FROM raw WHERE link = x'{LINKS[4].hex()}'", "e1", StoreUnavailable, "does not reach its root"),
        (f"DELETE FROM raw WHERE link = x'{LINKS[1].hex()}'", "e1", StoreUnavailable, "does not reach its root"),
        ("UPDATE tenant SET fingerprint = x'00'", "e1", StoreUnavailable, "does not reach its root"),
        ("UPDATE payload SET bytes = x'0a07'", "e2", StoreUnavailable, "recipe in the log is damaged"),
    ],
)
async def test_a_body_that_cannot_be_had_whole_is_an_error_that_says_why(
    reader: SqliteReader, policy: StorePolicy, damage: str, exchange: str, error: type[ProxyError], text: str
) -> None:
    spoil(policy.path, damage)
    with pytest.raises(error, match=text):
        await reader.load_request(exchange)


def explain(connection: sqlite3.Connection, query: tuple[str, dict[str, object]]) -> str:
    return "\n".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + query[0], query[1]))


def count_steps(connection: sqlite3.Connection) -> int:
    """The steps of SQLite's machine that it takes to sum what was spent."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection.set_progress_handler(step, 1)
    sum_auxiliary(connection, 0)
    connection.set_progress_handler(None, 1)
    return steps


async def test_what_was_spent_is_found_without_looking_at_the_clients_calls(
    open_archive: Opener, policy: StorePolicy
) -> None:
    archive = open_archive()
    archive.append(make_opening("a1", kind="auxiliary"), make_round("a1"), make_outcome("a1"))
    counts = []
    for first, last in ((0, 10), (10, 300)):
        for i in range(first, last):
            archive.append(make_opening(f"e{i}"), make_round(f"e{i}"))
        await archive.list_sessions(1)
        connection = connect_reader(policy.path)
        counts.append(count_steps(connection))
        connection.close()
    assert counts[0] == counts[1]


async def test_no_way_to_a_session_reads_all_exchanges(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await archive.append(make_opening("e1"))
    await archive.close()
    connection = connect_reader(policy.path)
    for query in (
        select_session(make_key().id),
        select_sessions(ALL_SESSIONS, 9, is_many=False),
        select_sessions(Selection(family="a"), 9, is_many=True),
    ):
        plan = explain(connection, query)
        assert "SCAN e\n" not in plan and "SCAN x" not in plan and "SCAN own" not in plan, plan
        assert "exchange_auxiliary" in plan
    connection.close()


def test_a_choice_is_never_made_among_many() -> None:
    few, many = (select_sessions(ALL_SESSIONS, 9, is_many=is_many) for is_many in (False, True))
    assert few[0] != many[0] and few[1] == many[1] == {"before": ALL_SESSIONS.before, "limit": 9}
    chosen = Selection(parent="p")
    assert select_sessions(chosen, 9, is_many=False) == select_sessions(chosen, 9, is_many=True)


def count_unread_steps(connection: sqlite3.Connection, limit: int) -> int:
    """What SQLite does to find them, in steps of its machine."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection.set_progress_handler(step, 1)
    assert len(list_unread(connection, limit, 10_000)) == limit
    connection.set_progress_handler(None, 1)
    return steps


async def test_a_long_log_takes_no_more_looking_than_a_short_one(open_archive: Opener, policy: StorePolicy) -> None:
    counts = []
    for name, size in (("short.db", 20), ("long.db", 400)):
        path = open_archive.path.with_name(name)
        archive = open_archive(path=path, durability="normal")
        await add_answers(archive, size)
        await archive.close()
        connection = connect_reader(path)
        counts.append(count_unread_steps(connection, 5))
        connection.close()
    assert counts[0] == counts[1]


async def test_an_answer_that_was_erased_is_left_out(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await add_answers(archive, 3)
    assert len(await archive.list_unread()) == 3
    with sqlite3.connect(open_archive.path) as connection:
        connection.execute("INSERT INTO permit(token) VALUES ('t')")
        connection.execute("DELETE FROM payload WHERE id = (SELECT received FROM outcome WHERE seq = 2)")
        connection.execute("DELETE FROM permit")
    connection.close()
    assert [row.received for row in await archive.list_unread()] == [b"2", b"0"]
    await archive.close()
