import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import Usage
from proxy.model.log import Selection
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.lineage_queries import has_sessions
from proxy.store.sqlite.reader import ReaderThread, SqliteReader
from tests.store.samples import (
    chain_body,
    join_body,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_trailer,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil
from tests.support.scripted import LIMIT

TURNS = make_turns(700)


class Counting:
    """Connects readers that note their statements, but for the limits of a snapshot."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = connect_reader(path)
        connection.set_trace_callback(self._note)
        return connection

    def _note(self, statement: str) -> None:
        if statement not in ("BEGIN", "COMMIT"):
            self.statements.append(statement)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
async def reader(open_archive: Opener, policy: StorePolicy, counting: Counting) -> AsyncIterator[SqliteReader]:
    """A reader of a log that a server is writing: 30 exchanges in three sessions, the last of 700 messages."""
    archive = open_archive()
    for i in range(30):
        exchange = f"e{i}"
        body = chain_body(TURNS if i == 29 else TURNS[: i + 1])
        archive.append(make_opening(exchange, body, key=make_key(f"agent-{i % 3}")), make_round(exchange))
        archive.append(make_outcome(exchange), make_reading(exchange, usage=Usage(input=i)))
    await archive.append(make_trailer(0, b"\n", "e29"))
    reader = SqliteReader(policy.path, counting.connect)
    await reader.list_ids("none", 1)
    counting.statements.clear()
    yield reader
    await reader.close()


async def test_a_listing_takes_as_many_statements_however_long_it_is(reader: SqliteReader, counting: Counting) -> None:
    assert len(await reader.list_sessions(limit=1)) == 1
    few = len(counting.statements)
    counting.statements.clear()
    assert len(await reader.list_sessions()) == 3
    assert len(counting.statements) == few
    counting.statements.clear()
    assert len(await reader.list_exchanges(make_key("agent-0").id)) == 10
    assert len(counting.statements) == 1


async def test_a_body_of_700_messages_takes_as_many_statements_as_one_of_one(
    reader: SqliteReader, counting: Counting
) -> None:
    assert await reader.load_request("e0") == join_body(TURNS[:1])
    few = len(counting.statements)
    counting.statements.clear()
    assert await reader.load_request("e29") == join_body(TURNS)
    assert len(counting.statements) == few


async def test_a_sum_up_of_sessions_looks_at_those_that_are_listed_only(reader: SqliteReader) -> None:
    (row,) = await reader.list_sessions(limit=1)
    assert (row.id, row.exchanges) == (make_key("agent-2").id, 10)


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_few_sessions_and_many_are_listed_alike(reader: SqliteReader, policy: StorePolicy, limit: int) -> None:
    many = SqliteReader(policy.path, few_sessions=0)
    assert await many.list_sessions(limit) == await reader.list_sessions(limit)
    await many.close()


async def test_the_newest_of_many_sessions_are_found_without_a_look_at_all(
    open_archive: Opener, policy: StorePolicy, counting: Counting
) -> None:
    archive = open_archive()
    for i in range(300):
        archive.append(make_opening(f"e{i}", key=make_key(f"unnamed-{i}")))
    await archive.close()
    reader = SqliteReader(policy.path, counting.connect, few_sessions=0)
    rows = await reader.list_sessions(limit=5)
    await reader.close()
    assert [row.family for row in rows] == [f"unnamed-{i}" for i in range(299, 294, -1)]
    connection = sqlite3.connect(policy.path)
    steps = [step for *_, step in connection.execute("EXPLAIN QUERY PLAN " + counting.statements[-1])]
    connection.close()
    newest = steps.index("SEARCH e USING INTEGER PRIMARY KEY (rowid<?)")
    assert not any("TEMP B-TREE" in step for step in steps[: newest + 2])


async def test_one_session_is_found_without_a_look_at_the_others(
    reader: SqliteReader, counting: Counting, policy: StorePolicy
) -> None:
    questions = (
        reader.find_session(make_key("agent-1").id),
        reader.list_ids("5f", 6),
        reader.list_exchanges(make_key("agent-1").id, 4, 1),
        reader.list_sessions(5, Selection(parent="p")),
        reader.list_sessions(5, Selection(family="agent-1")),
    )
    for question in questions:
        await question
    connection = connect_reader(policy.path)
    plans = [connection.execute("EXPLAIN QUERY PLAN " + asked).fetchall() for asked in list(counting.statements)]
    connection.close()
    scanned = {step.split()[1] for plan in plans for *_, step in plan if step.startswith("SCAN")}
    assert "latest" in scanned
    assert not scanned & {"s", "e", "x", "g", "d", "t", "session", "exchange", "reading"}


async def test_closing_is_for_good_so_that_no_late_question_leaves_a_thread(
    open_archive: Opener, policy: StorePolicy
) -> None:
    await open_archive().close()
    reader = SqliteReader(policy.path)
    await reader.close()
    await reader.close()
    with pytest.raises(StoreUnavailable, match="the log is closed"):
        await reader.list_sessions()


async def test_a_reader_without_a_server_leaves_the_log_as_it_was(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await archive.append(make_opening())
    await archive.close()
    before = policy.path.read_bytes()
    reader = SqliteReader(policy.path)
    assert len(await reader.list_exchanges(make_key().id)) == 1
    await reader.close()
    assert policy.path.read_bytes() == before


async def test_where_there_is_no_log_every_question_says_so(tmp_path: Path) -> None:
    reader = SqliteReader(tmp_path / "log.db")
    for question in (
        reader.list_sessions(),
        reader.list_exchanges("s"),
        reader.load_request("e"),
        reader.load_sent("e", 0),
        reader.load_received("e", 0),
        reader.verify(),
        reader.backup(tmp_path / "copy.db"),
    ):
        with pytest.raises(StoreUnavailable, match="there is no log"):
            await question


ERASE_ALL = ("INSERT INTO permit VALUES ('erase')", "DELETE FROM payload")


async def test_rows_are_listed_after_their_content_was_erased(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await archive.append(make_opening(), make_round(), make_outcome(), make_reading(error="said"))
    await archive.close()
    spoil(policy.path, *ERASE_ALL)
    reader = SqliteReader(policy.path)
    (row,) = await reader.list_exchanges(make_key().id)
    assert (row.id, row.headers, row.digest) == ("e1", (), b"")
    assert (row.rounds[0].status, row.rounds[0].headers, row.rounds[0].answer) == (200, (), b"")
    for question in (reader.load_request("e1"), reader.load_sent("e1", 0), reader.load_received("e1", 0)):
        with pytest.raises(NotFound, match="erased"):
            await question
    await reader.close()


async def test_damaged_content_is_told_from_missing_content(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    await archive.append(make_opening(), make_round(), make_outcome(received=b"x" * 5000))
    await archive.close()
    spoil(policy.path, "UPDATE payload SET bytes = x'ff' WHERE codec = 2")
    reader = SqliteReader(policy.path)
    with pytest.raises(StoreUnavailable, match=r"cannot be read.*palimpsest verify"):
        await reader.load_received("e1", 0)
    await reader.close()


class Gate:
    """Makes connections, once it is open."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.gate = threading.Event()

    def connect(self, path: Path) -> sqlite3.Connection:
        self.began.set()
        assert self.gate.wait(LIMIT)
        return connect_reader(path)


async def test_whoever_goes_away_leaves_the_connection_to_the_next(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    gate = Gate()
    asked: list[sqlite3.Connection] = []
    thread = ReaderThread(policy.path, gate.connect)
    loop = asyncio.get_running_loop()
    first = loop.create_task(thread.run(has_sessions))
    await asyncio.to_thread(gate.began.wait, 10)
    waiting = loop.create_task(thread.run(asked.append))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    second = loop.create_task(thread.run(has_sessions))
    await asyncio.sleep(0)
    gate.gate.set()
    assert await second
    assert asked == [], "whoever goes away before it is their turn is not answered at all"
    await thread.close()


async def test_who_still_waits_when_it_closes_is_told(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    gate = Gate()
    thread = ReaderThread(policy.path, gate.connect)
    loop = asyncio.get_running_loop()
    first, second = (loop.create_task(thread.run(has_sessions)) for _ in range(2))
    await asyncio.to_thread(gate.began.wait, 10)
    closing = loop.create_task(thread.close())
    await asyncio.sleep(0)
    gate.gate.set()
    assert await first
    await closing
    for question in (second, thread.run(has_sessions)):
        with pytest.raises(StoreUnavailable, match="closed"):
            await question
    await thread.close()


async def test_its_thread_ends_with_it(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    reader = ReaderThread(policy.path, connect_reader)
    thread = await reader.run(lambda connection: threading.current_thread())
    assert thread is await reader.run(lambda connection: threading.current_thread())
    await reader.close()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
