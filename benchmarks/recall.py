"""How long the log takes to say where a request belongs: `python -m benchmarks.recall`.

A log of 100,000 sessions of 8 messages, which share their first message, one of 690 and one of 20,000 messages. Every
tenth session, and the long ones, are another tenant's than the others. A question is asked through
`SqliteReader.recall`; 32 marks are the most that are looked up. Warm: one
connection, again and again. Cold: for each question the file is dropped from the system's page cache, and the
connection is new; opening it is not counted.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.jobs import Spread, measure_spread
from benchmarks.report import describe_machine, render_number, render_table
from benchmarks.run import write_report
from proxy.engine.ports import MOST_FINGERPRINTS
from proxy.model.exchange import Opening, SessionKey
from proxy.model.lineage import CallFingerprint, Lineage, NodeRow, compute_chain_root, extend_chain
from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.transaction import TransactionWriter

_MESSAGES, _LONG, _HUGE = 8, 690, 20_000
_IN_A_TRANSACTION = 500
_ROOT = compute_chain_root("openai")
_BODY = make_manifest(b"{}")

_OURS, _THEIRS = b"t" * 16, b"u" * 16
_MOST_MS = 10
_MARKS = MOST_FINGERPRINTS
_HEAD = ("question", "cache", "asked", "median, ms", "p99, ms", "worst, ms")

Question = tuple[Sequence[bytes], Sequence[str], SessionKey]


def name_session(number: int) -> str:
    return f"{number:020x}"


def name_call(number: int, at: int) -> str:
    return f"call:call_{number:012d}{at:012d}"


def make_key(session: str = "", tenant: bytes = _OURS) -> SessionKey:
    return SessionKey(session, tenant, "openai", "")


def make_nodes(number: int, count: int) -> list[NodeRow]:
    """A chain in which every second message is an answer; all sessions share the first message."""
    rows, parent = [], _ROOT
    for at in range(count):
        (node,) = extend_chain(parent, [b"%d:%d" % (number if at else -1, at)])
        rows.append(NodeRow(node, parent, bool(at % 2)))
        parent = node
    return rows


def make_session(number: int, count: int) -> tuple[Opening, Lineage]:
    rows = make_nodes(number, count)
    key = make_key(name_session(number), _THEIRS if count != _MESSAGES or number % 10 == 0 else _OURS)
    exchange = f"x{number}"
    opening = Opening(exchange, key, "managed", "chat_completions", "manage", "m", "POST", "/", (), _BODY, 0)
    marks = tuple(
        CallFingerprint(name_call(number, at), row.node, row.node) for at, row in enumerate(rows) if row.is_answer
    )
    return opening, Lineage(exchange, "root", False, rows[-1].node, count, 0, tuple(rows), marks)


def build(path: Path, sessions: int) -> None:
    """Write the log through the writer's own code."""
    connection = connect_writer(StorePolicy(path))
    writer = TransactionWriter(connection)
    lengths = [_LONG, *[_MESSAGES] * sessions, _HUGE]
    for start in range(0, len(lengths), _IN_A_TRANSACTION):
        counts = enumerate(lengths[start : start + _IN_A_TRANSACTION], start)
        writer.commit(make_session(number, count) for number, count in counts)
    connection.close()


def ask_short(number: int, tenant: bytes = _OURS) -> Question:
    nodes = [row.node for row in make_nodes(number, _MESSAGES)]
    return [*nodes, os.urandom(16)], (name_call(number, _MESSAGES - 1),), make_key(tenant=tenant)


def ask_long(marks: int, tenant: bytes = _THEIRS) -> Question:
    nodes = [row.node for row in make_nodes(0, _LONG)]
    return [*nodes, os.urandom(16)], [name_call(0, at) for at in range(1, 2 * marks, 2)], make_key(tenant=tenant)


def ask_unknown(marks: int) -> Question:
    first = make_nodes(0, 1)[0].node
    return (
        [first, *[os.urandom(16) for _ in range(_LONG - 1)]],
        [f"call:{os.urandom(12).hex()}" for _ in range(marks)],
        make_key(),
    )


def list_questions(sessions: int, rounds: int) -> Iterator[tuple[str, list[Question]]]:
    numbers = [random.randrange(1, sessions // 10) * 10 + 1 for _ in range(rounds)]
    named = [make_key(name_session(number)) for number in numbers]
    huge = make_key(name_session(sessions + 1), _THEIRS)
    yield "miss: 690 nodes", [ask_unknown(0) for _ in numbers]
    yield "miss: 690 nodes, 32 marks", [ask_unknown(_MARKS) for _ in numbers]
    yield "hit: 9 nodes, 1 mark", [ask_short(number) for number in numbers]
    yield "hit: 9 nodes, 1 mark, of another tenant", [ask_short(number, _THEIRS) for number in numbers]
    yield "hit: by id", [((), (), key) for key in named]
    yield "hit: 691 nodes", [ask_long(0)] * rounds
    yield "hit: 691 nodes, 32 marks", [ask_long(_MARKS)] * rounds
    yield "hit: 691 nodes, of another tenant", [ask_long(0, _OURS)] * rounds
    yield "hit: 20,000 nodes, by id", [((), (), huge)] * max(5, rounds // 20)


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
    return time.perf_counter() - start


def measure(path: Path, sessions: int, rounds: int) -> list[tuple[str, str, Spread]]:
    """What was asked, how, and how long it took."""
    results = []
    for name, questions in list_questions(sessions, rounds):
        cold = questions[: max(5, rounds // 4)]
        results.append((name, "warm", measure_spread(asyncio.run(time_warm(path, questions)))))
        results.append((name, "cold", measure_spread(asyncio.run(time_cold(path, cold)))))
    return results


def render_results(machine: str, log: str, results: Sequence[tuple[str, str, Spread]]) -> str:
    rows = [
        [name, how, str(spread.count), *(render_number(each * 1e3) for each in (spread.p50, spread.p99, spread.worst))]
        for name, how, spread in results
    ]
    misses = [spread for name, _, spread in results if name.startswith("miss")]
    median, worst = (render_number(max(each) * 1e3) for each in zip(*((m.p50, m.worst) for m in misses), strict=True))
    return (
        f"# Where a request belongs, asked of the log\n\n{machine} {log} Warm: one connection, again and again. Cold: "
        "the file is dropped from the system's page cache before each question, and the connection is new. A miss is "
        f"to take {_MOST_MS} ms at most: the slowest median is {median} ms, the slowest single one {worst} ms.\n\n"
        f"{render_table(_HEAD, rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", default="recall", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder:
        path = Path(folder) / "log.db"
        build(path, options.sessions)
        size = path.stat().st_size >> 20
        results = measure(path, options.sessions, options.rounds)
    machine = describe_machine(load)
    log = f"{options.sessions:,} sessions of {_MESSAGES} messages, one of {_LONG}, one of {_HUGE:,}; {size} MiB."
    raw = {"machine": machine, "log": log, "results": results}
    write_report(
        options.out, render_results(machine, log, results), msgspec.json.format(msgspec.json.encode(raw), indent=1)
    )


if __name__ == "__main__":
    main()
