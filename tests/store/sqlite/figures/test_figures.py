"""Figures are what the record says, whatever of them is stored already and whenever the rest of a record comes."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.model.epoch import Epoch, Plan, Summary
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.figures import TIERS, Tally
from proxy.model.log import ExchangeRow, Record
from proxy.store.policy import StorePolicy
from proxy.store.sqlite import context_queries, exchange_queries
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.figures import queries
from proxy.store.sqlite.figures.bills import find_difference, read_filled
from proxy.store.sqlite.transaction import TransactionWriter
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OPENED_MS,
    make_epoch,
    make_key,
    make_node,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_step,
)
from tests.support.figures import DerivedFigures

DAY_MS = 86_400_000
SESSIONS = tuple(make_key(name).id for name in "abc")

tokens = st.none() | st.integers(0, 2000) | st.integers(0, 300_000)
usages = st.none() | st.builds(Usage, tokens, tokens, tokens, tokens)
plans = st.none() | st.builds(
    lambda rung, reason, saving, sizes, usable: Plan(
        "", 0, "m", rung, "", "none", reason, sizes[0], sizes[1], usable, 0.0, saving, sizes[2], sizes[3]
    ),
    st.sampled_from(("original", "epoch", "plan", "minimal")),
    st.sampled_from(("", "holdout")),
    st.none() | st.floats(-1e4, 1e4),
    st.tuples(tokens, tokens, tokens, tokens),
    st.integers(0, 5000),
)
calls = st.fixed_dictionaries(
    {
        "session": st.sampled_from("abc"),
        "kind": st.sampled_from(("managed", "managed", "auxiliary", "passthrough")),
        "mode": st.sampled_from(("manage", "manage", "observe")),
        "model": st.sampled_from(("m", "n")),
        "wire": st.sampled_from(("chat_completions", "responses", "")),
        "day": st.integers(0, 1),
        "is_side": st.booleans(),
        "has_step": st.booleans(),
        "rounds": st.lists(
            st.fixed_dictionaries(
                {
                    "plan": plans,
                    "usage": usages,
                    "status": st.sampled_from((200, 200, 429, 0)),
                    "completeness": st.sampled_from(("complete", "truncated", "failed")),
                    "finish": st.sampled_from(("stop", "tool_calls", "completed", "")),
                    "answer": st.sampled_from((b"{}", b'{"type":"function_call"}')),
                    "records": st.integers(1, 3),
                }
            ),
            max_size=2,
        ),
    }
)


class SlowLog(DerivedFigures):
    """Reads calls one by one, on the connection that writes them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def list_exchanges(self, session: str, after: int, limit: int) -> Sequence[ExchangeRow]:
        try:
            return exchange_queries.list_exchanges(self._connection, session, after, limit)
        except NotFound:
            return ()

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        return (
            context_queries.list_epochs(self._connection, session) if await self.list_exchanges(session, 0, 1) else ()
        )

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        return context_queries.list_summaries(self._connection, session)

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        return exchange_queries.list_ids(self._connection, prefix, limit)


def list_records(number: int, call: Any) -> Iterator[tuple[Record, ...]]:
    """The records of a call, in groups that may be written apart."""
    name = f"e{number}"
    opened_ms = OPENED_MS + call["day"] * DAY_MS + number
    opening = make_opening(
        name, key=make_key(call["session"]), model=call["model"], kind=call["kind"], opened_ms=opened_ms
    )
    yield (replace(opening, mode=call["mode"], wire=call["wire"]),)
    if call["has_step"]:
        yield (make_step(name, [make_node(name)], is_side=call["is_side"]),)
    for k, round_ in enumerate(call["rounds"]):
        yield (make_round(name, k),)
        if round_["plan"] is not None:
            yield (replace(round_["plan"], exchange=name, k=k),)
        if round_["records"] > 1:
            outcome = make_outcome(name, k, completeness=round_["completeness"])
            yield (replace(outcome, status=round_["status"]),)
        if round_["records"] > 2:
            yield (make_reading(name, k, usage=round_["usage"], finish=round_["finish"], answer=round_["answer"]),)


@contextmanager
def writing() -> Iterator[tuple[sqlite3.Connection, TransactionWriter]]:
    with tempfile.TemporaryDirectory() as folder:
        connection = connect_writer(StorePolicy(Path(folder) / "log.db", durability="full"))
        try:
            yield connection, TransactionWriter(connection)
        finally:
            connection.close()


def in_order(tallies: Sequence[Tally]) -> list[Tally]:
    """Without what only grows, and may be that of a round which is in another sum by now."""
    rounded = [
        replace(
            each, saving=None if each.saving is None else round(each.saving, 6), ended_ms=0, largest=0, largest_own=0
        )
        for each in tallies
    ]
    return sorted(rounded, key=repr)


def find_most(tallies: Sequence[Tally]) -> dict[str, tuple[int, int]]:
    """When the last call of each session ended, and how large the largest was."""
    found: dict[str, tuple[int, int]] = {}
    for each in tallies:
        ended_ms, largest = found.get(each.session, (0, 0))
        found[each.session] = max(ended_ms, each.ended_ms), max(largest, each.largest)
    return found


def check(connection: sqlite3.Connection) -> None:
    """Compare all figures with those that are worked out call by call."""

    async def work_out() -> None:
        slow = SlowLog(connection)
        for session in SESSIONS:
            try:
                rounds = queries.load_rounds(connection, session)
            except NotFound:
                rounds = []
            assert rounds == await slow.load_rounds(session)
        found = sorted(queries.load_newest(connection, SESSIONS), key=lambda each: each.session)
        assert found == await slow.load_newest(SESSIONS)
        for tiers in (TIERS, (100, 1000)):
            worked = await slow.load_tallies(SESSIONS, tiers)
            tallies = queries.load_tallies(connection, SESSIONS, tiers)
            assert in_order(tallies) == in_order(worked)
            assert find_most(tallies) == find_most(worked)
        assert in_order(queries.load_tallies(connection, None)) == in_order(await slow.load_tallies(None))
        for session in SESSIONS:
            assert queries.count_later(connection, session) == await slow.count_later(session)
        heads = sorted(queries.load_heads(connection, SESSIONS), key=lambda each: each.session)
        assert heads == await slow.load_heads(SESSIONS)

    asyncio.run(work_out())
    assert find_difference(connection) == ""


@settings(max_examples=25, deadline=None)
@given(st.lists(calls, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_figures_are_what_the_record_says(drawn: list[Any], random: Any) -> None:
    pending = [list(list_records(number, call)) for number, call in enumerate(drawn)]
    with writing() as (connection, writer):
        while pending:
            writer.commit([random.choice(pending).pop(0)])
            pending = [each for each in pending if each]
            if random.random() < 0.3:
                writer.fill()
                assert writer.unfilled == 0
        check(connection)
        writer.fill()
        check(connection)


def test_the_epochs_of_a_session_are_counted_and_numbered() -> None:
    with writing() as (connection, writer):
        writer.commit([[make_opening("e1", key=make_key("a")), make_round("e1")]])
        for name, parent in (("p1", ""), ("p2", "p1")):
            writer.commit([[make_epoch(name, session=SESSIONS[0], parent=parent)]])
        writer.commit([[Plan("e1", 0, "m", "plan", "p2", tokens_client=9, tokens_upstream=5)]])
        check(connection)
        (row,) = queries.load_rounds(connection, SESSIONS[0])
        assert row.epoch == 2
        assert [each.epochs for each in queries.load_newest(connection, SESSIONS)] == [2]


def test_rows_of_another_version_are_derived_anew() -> None:
    with writing() as (connection, writer):
        writer.commit([[make_opening("e1", key=make_key("a")), make_round("e1")]])
        writer.fill()
        assert read_filled(connection) == 1
        connection.execute("UPDATE bill SET model = 'other'")
        assert find_difference(connection) == "session 1, call 1, round 1"
        connection.execute("UPDATE bill SET model = 'gpt-4o'")
        connection.execute("UPDATE tally SET rounds = 7")
        assert find_difference(connection).startswith("session 1, the sum over calls of day")
        connection.execute("UPDATE meta SET value = x'000000000000000100' WHERE key = 'bills'")
        assert read_filled(connection) == 0
        check(connection)
        writer.forget()
        writer.commit([[make_opening("e2", key=make_key("a"))]])
        writer.fill()
        check(connection)
        assert read_filled(connection) == 2


def test_verify_finds_figures_that_differ_from_the_record(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    connection = connect_writer(StorePolicy(path, durability="full"))
    writer = TransactionWriter(connection)
    writer.commit([[make_opening("e1", key=make_key("a")), make_round("e1")]])
    writer.fill()
    assert verify_log(path).faults == ()
    connection.execute("UPDATE bill SET input = 7")
    connection.close()
    (fault,) = verify_log(path).faults
    assert (fault.where, fault.what) == (
        "figures of session 1, call 1, round 1",
        "differ from the record; they are only read by reports",
    )
