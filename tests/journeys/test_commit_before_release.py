"""Durable before release, seen from both sides at once: what is on record, and what the client gets.

With full durability a record is durable once its commit has returned, with normal durability once it is in the file of
the journal, which is read here as a recovery would read it.
"""

import asyncio
import functools
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from proxy.engine.call.calls import Calls
from proxy.engine.call.relay import Relay
from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.exchange import ExchangeService
from proxy.engine.policy import EnginePolicy
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.stages.order import order_stages
from proxy.model.exchange import ClientRequest, Headers
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.journal import JournalContent, journal_path
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import (
    JSON,
    STREAM,
    CountingIds,
    FixedClock,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    make_lineage,
)
from tests.support.managing import make_controller
from tests.support.scripted import LIMIT

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


class RecordingConnection(sqlite3.Connection):
    """Notes each commit that has returned, with the tables that it made durable."""

    journal: list[str]
    pragmas: list[str]
    _tables: set[str]

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *parameters)
        if sql.startswith("PRAGMA synchronous"):
            self.pragmas.append(sql)
        if sql == "COMMIT":
            self.journal.extend(f"commit {table}" for table in sorted(self._tables & {"exchange", "outcome"}))
            self._tables.clear()
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        self._tables.add(sql.split("INSERT INTO ")[1].split("(")[0].strip())
        return super().executemany(sql, parameters)


class JournalingClient(RecordingClient):
    """Notes what is released to the client, in the same journal as the commits."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__()
        self._journal = journal

    def start(self, status: int, headers: Headers) -> None:
        if not self.started.is_set():
            self.look()
            self._journal.append("head")
        super().start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        self.look()
        self._journal.append(f"last {content.decode()!r}" if is_last else f"bytes {content.decode()!r}")
        return super().write(content, is_last=is_last)

    def look(self) -> None:
        """Something is about to be released."""


class RecoveringClient(JournalingClient):
    """Before anything is released, notes what a recovery would find that was not there before."""

    def __init__(self, journal: list[str], log: Path) -> None:
        super().__init__(journal)
        self._log = log
        self._found = 0

    def look(self) -> None:
        leftover = JournalContent(journal_path(self._log).read_bytes())
        records = [type(record).__name__ for entry, _ in leftover.read(0) for record in entry or ()]
        self._journal.extend(f"journal {name}" for name in records[self._found :])
        self._found = len(records)


def open_recording(
    path: Path, durability: Literal["full", "normal"], journal: list[str], pragmas: list[str]
) -> SqliteArchive:
    class Connection(RecordingConnection):
        pass

    Connection.journal, Connection.pragmas, Connection._tables = journal, pragmas, set()
    connect = functools.partial(sqlite3.connect, factory=Connection)
    return open_sqlite(StorePolicy(path / "log.db", durability=durability), asyncio.get_running_loop(), connect)


async def carry(archive: SqliteArchive, response: ScriptedResponse, client: RecordingClient) -> None:
    """One call, and the end of the log."""
    policy, tasks = EnginePolicy(commit_wait_ms=10_000), TaskRunner()
    bus, clock = EngineBus(tasks), FixedClock()
    lineage = make_lineage(archive, clock, policy)
    readings = ResponseReader(archive, bus, tasks, lineage, policy.record_cap_bytes)
    relay = Relay(archive, DurabilityWaiter(archive, policy.commit_wait_ms), readings, bus, clock)
    routes = [Route(ScriptedUpstream(answer=response))]
    reception = RequestResolver(policy, routes, reader=readings, clock=clock, ids=CountingIds())
    form = ChatCompletions()
    controller = make_controller(archive, bus, clock, tasks)
    calls = Calls(policy, relay, tasks)
    exchanges = ExchangeService(calls, {form.name: form}, reception, controller, order_stages(controller, calls))
    request = ClientRequest("POST", b"/v1/chat/completions", (), BODY)
    try:
        await exchanges.carry(request, form.name, client)
        await tasks.finish(LIMIT)
    finally:
        await archive.close()


def stream() -> ScriptedResponse:
    return ScriptedResponse(b"data: {}\n\n", b"data: 1\n\ndata: [DONE]\n\n", headers=STREAM, ending="eof")


async def test_a_stream_begins_after_the_question_and_ends_after_the_answer_is_committed(tmp_path: Path) -> None:
    journal, pragmas = list[str](), list[str]()
    archive = open_recording(tmp_path, "full", journal, pragmas)
    client = JournalingClient(journal)
    await carry(archive, stream(), client)
    assert journal == [
        "commit exchange",
        "head",
        "bytes 'data: {}\\n\\n'",
        "bytes 'data: 1\\n\\n'",
        "commit outcome",
        "last 'data: [DONE]\\n\\n'",
    ]
    assert pragmas == ["PRAGMA synchronous = FULL"]


async def test_a_stream_begins_after_the_question_and_ends_after_the_answer_is_in_the_journal(tmp_path: Path) -> None:
    journal, pragmas = list[str](), list[str]()
    archive = open_recording(tmp_path, "normal", [], pragmas)
    client = RecoveringClient(journal, tmp_path / "log.db")
    await carry(archive, stream(), client)
    assert journal == [
        "journal Opening",
        "journal Round",
        "journal Lineage",
        "head",
        "bytes 'data: {}\\n\\n'",
        "bytes 'data: 1\\n\\n'",
        "journal Outcome",
        "last 'data: [DONE]\\n\\n'",
    ]
    assert pragmas == ["PRAGMA synchronous = NORMAL"]


async def test_a_whole_answer_is_released_after_both_are_committed(tmp_path: Path) -> None:
    journal = list[str]()
    archive = open_recording(tmp_path, "full", journal, [])
    client = JournalingClient(journal)
    await carry(archive, ScriptedResponse(b'{"id":1}', headers=JSON, ending="whole"), client)
    assert journal == ["commit exchange", "commit outcome", "head", "last '{\"id\":1}'"]


async def test_the_last_bytes_of_a_known_length_wait_for_the_commit(tmp_path: Path) -> None:
    journal = list[str]()
    archive = open_recording(tmp_path, "full", journal, [])
    client = JournalingClient(journal)
    try:
        await carry(archive, ScriptedResponse(b'{"id"', b":1}", headers=JSON, ending="last"), client)
    finally:
        await archive.close()
    assert journal == ["commit exchange", "head", "bytes '{\"id\"'", "commit outcome", "last ':1}'"]
