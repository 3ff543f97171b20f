"""What nobody has read, in SQLite; what any store answers is in `unread_contract`."""

import sqlite3

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.exchange_queries import list_unread
from proxy.store.sqlite.reader import SqliteReader
from tests.store.sqlite.conftest import Opener
from tests.store.unread_contract import add_answers


def count_steps(connection: sqlite3.Connection, limit: int) -> int:
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
        counts.append(count_steps(connection, 5))
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


async def test_a_log_that_is_not_there_says_so(open_archive: Opener) -> None:
    with pytest.raises(StoreUnavailable, match="there is no log"):
        await SqliteReader(open_archive.path.with_name("none.db")).list_unread()
