"""Sums over the log in SQLite; what every store answers is in `listing_contract`."""

import sqlite3

from proxy.engine.ports import ALL_SESSIONS
from proxy.model.log import Selection
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.exchange_queries import select_session, select_sessions, sum_auxiliary
from tests.store.samples import make_key, make_opening, make_outcome, make_round
from tests.store.sqlite.conftest import Opener


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
