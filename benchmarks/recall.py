"""How long the log takes to say where a request belongs: `python -m benchmarks.recall`. Rule: reports, never fails.

A log of 100,000 sessions of 8 messages, which share their first message, one of 690 and one of 20,000 messages. A
question is asked through `SqliteReader.recall`. Warm: one connection, again and again. Cold: for each question the file
is dropped from the system's page cache, and the connection is new; opening it is not counted.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.model.exchange import Opening, SessionKey
from proxy.model.lineage import Mark, NodeRow, Step, node_after, root_of_chain
from proxy.model.manifest import keep_whole
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.known import Known
from proxy.store.sqlite.reader import SqliteReader

_MESSAGES, _LONG, _HUGE = 8, 690, 20_000
_IN_A_BATCH = 500
_ROOT = root_of_chain("openai")
_BODY = keep_whole(b"{}")

Question = tuple[Sequence[bytes], Sequence[str], str]


def name_session(number: int) -> str:
    return f"{number:020x}"


def name_call(number: int, at: int) -> str:
    return f"call:call_{number:012d}{at:012d}"


def make_nodes(number: int, count: int) -> list[NodeRow]:
    """A chain in which every second message is an answer; all sessions share the first message."""
    rows, parent = [], _ROOT
    for at in range(count):
        node = node_after(parent, b"%d:%d" % (number if at else -1, at))
        rows.append(NodeRow(node, parent, bool(at % 2)))
        parent = node
    return rows


def make_session(number: int, count: int) -> tuple[Opening, Step]:
    rows = make_nodes(number, count)
    key = SessionKey(name_session(number), b"t" * 16, "openai", "")
    exchange = f"x{number}"
    opening = Opening(exchange, key, "managed", "chat_completions", "manage", "m", "POST", "/", (), _BODY, 0)
    marks = tuple(Mark(name_call(number, at), row.node, row.node) for at, row in enumerate(rows) if row.is_answer)
    return opening, Step(exchange, "root", False, rows[-1].node, count, 0, tuple(rows), marks)


def build(path: Path, sessions: int) -> None:
    """Write the log through the writer's own code."""
    connection = connect_writer(StorePolicy(path))
    known = Known(connection)
    lengths = [_LONG, *[_MESSAGES] * sessions, _HUGE]
    for start in range(0, len(lengths), _IN_A_BATCH):
        connection.execute("BEGIN")
        known.load()
        batch = Batch(known)
        for number, count in enumerate(lengths[start : start + _IN_A_BATCH], start):
            for record in make_session(number, count):
                batch.add(record)
        batch.write(connection)
        connection.execute("COMMIT")
        known.age()
    connection.close()


def ask_short(number: int) -> Question:
    nodes = [row.node for row in make_nodes(number, _MESSAGES)]
    return [*nodes, os.urandom(16)], (name_call(number, _MESSAGES - 1),), ""


def ask_long(marks: int) -> Question:
    nodes = [row.node for row in make_nodes(0, _LONG)]
    return [*nodes, os.urandom(16)], [name_call(0, at) for at in range(1, 2 * marks, 2)], ""


def ask_unknown(marks: int) -> Question:
    first = make_nodes(0, 1)[0].node
    return (
        [first, *[os.urandom(16) for _ in range(_LONG - 1)]],
        [f"call:{os.urandom(12).hex()}" for _ in range(marks)],
        "",
    )


def list_questions(sessions: int, rounds: int) -> Iterator[tuple[str, list[Question]]]:
    numbers = [random.randrange(1, sessions) for _ in range(rounds)]
    yield "hit: 9 nodes, 1 mark", [ask_short(number) for number in numbers]
    yield "hit: by id", [((), (), name_session(number)) for number in numbers]
    yield "hit: 691 nodes", [ask_long(0)] * rounds
    yield "hit: 691 nodes, 345 marks", [ask_long(_LONG // 2)] * rounds
    yield "miss: 690 nodes", [ask_unknown(0) for _ in numbers]
    yield "miss: 690 nodes, 345 marks", [ask_unknown(_LONG // 2) for _ in numbers]
    yield "hit: 20,000 nodes, by id", [((), (), name_session(sessions + 1))] * max(5, rounds // 20)


async def time_warm(path: Path, questions: Sequence[Question]) -> list[float]:
    reader = SqliteReader(path)
    await reader.recall(*questions[0])
    taken = [await _time(reader, question) for question in questions]
    await reader.close()
    return taken


async def time_cold(path: Path, questions: Sequence[Question]) -> list[float]:
    taken = []
    for question in questions:
        reader = SqliteReader(path)
        await reader.has_sessions()
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        taken.append(await _time(reader, question))
        await reader.close()
    return taken


async def _time(reader: SqliteReader, question: Question) -> float:
    start = time.perf_counter()
    await reader.recall(*question)
    return (time.perf_counter() - start) * 1000


def report(name: str, how: str, taken: Sequence[float]) -> None:
    print(f"| {name} | {how} | {statistics.median(taken):.2f} | {max(taken):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        start = time.perf_counter()
        build(path, options.sessions)
        print(f"{options.sessions} sessions, {path.stat().st_size >> 20} MiB, {time.perf_counter() - start:.0f} s\n")
        print("| question | cache | median ms | worst ms |\n|---|---|---|---|")
        for name, questions in list_questions(options.sessions, options.rounds):
            report(name, "warm", asyncio.run(time_warm(path, questions)))
            report(name, "cold", asyncio.run(time_cold(path, questions[: max(5, options.rounds // 4)])))


if __name__ == "__main__":
    main()
