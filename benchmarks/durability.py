"""What waiting for durable records costs, the journal against two ways without one: `python -m benchmarks.durability`.

Agents record exchanges in an archive of their own, one after another: an opening with so much new content, the
upstream's work (a pause), an outcome, and what was read of it. Three ways, in turns, in one process:

* *journal*: as with `durability: normal`: an append waits until its records are in the mapped file.
* *commit*: no journal; each append waits for the commit that has it (write-ahead log, synchronous NORMAL).
* *outcome*: no journal; the opening is committed beside the upstream's work, and only the outcome waits.

CPU is that of the process, both threads, until all is in the log and the write-ahead log is copied. Held up is the
time an exchange spends in its appends and waiting for them. Medians over the turns; ratios to *journal*, same turn.
"""

import argparse
import asyncio
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import describe_machine, render_number, render_table
from benchmarks.run import write_report
from proxy.model.exchange import Opening, Outcome, Reading, Round, SessionKey, Timings, Usage
from proxy.model.lineage import Lineage, NodeRow, Reply, compute_chain_root, extend_chain
from proxy.model.log import Record
from proxy.model.manifest import ChainPiece, Manifest, chain_slices, compute_root_link, encode_recipe
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite

WAYS = ("journal", "commit", "outcome")
_TENANT = b"t" * 16
_MESSAGE_BYTES = 1100
_HEADERS = ((b"content-type", b"application/json"), (b"user-agent", b"OpenAI/Python 1.51.0"), (b"x-request-id", b"7"))
_WORDS = [word.encode() for word in ("path", "line", "error", "return", "class", "import", "def", "self", "none")]
_HEAD = ("new content", "agents", "upstream", "way", "CPU, us", "to journal", "held up, us", "to journal", "commits")


class CountingConnection(sqlite3.Connection):
    """Counts commits; they do without the fsync that `durability: full` asks for, and a kill does not need."""

    commits = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.commits += 1
        return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), parameters)


@dataclass(frozen=True)
class Cell:
    """So many agents, each of so many exchanges with so much new content, whose upstream takes so long."""

    content: int
    agents: int
    upstream_s: float
    exchanges: int


@dataclass(frozen=True)
class Figures:
    """What one exchange took."""

    cpu_us: float
    held_us: float
    commits: float


class Agent:
    """One conversation, whose every request adds some messages to the one before."""

    def __init__(self, number: int, content: int, source: random.Random) -> None:
        self._key = SessionKey(f"agent-{number}", _TENANT, "openai", f"agent-{number}")
        self._content = content
        self._source = source
        self._link = compute_root_link(_TENANT)
        self._node = compute_chain_root("openai")
        self._count = 0
        self._depth = 0

    def make_appends(self) -> tuple[tuple[Record, ...], tuple[Record, ...], tuple[Record, ...]]:
        """The records of the next exchange: its request, its response, and what was read of that."""
        self._count += 1
        exchange = f"{self._key.id}-{self._count}"
        contents = [self._write() for _ in range(max(1, self._content // _MESSAGE_BYTES))]
        slices = tuple(chain_slices(self._link, [(b",", content) for content in contents]))
        self._link = slices[-1].link
        body = Manifest(
            encode_recipe((b'{"model":"gpt-4o","messages":[', ChainPiece(self._link), b"]}")),
            slices,
            (),
            self._content,
        )
        opening = Opening(
            exchange, self._key, "managed", "chat_completions", "manage", "gpt-4o", "POST", "/v1", _HEADERS, body, 1
        )
        base = self._depth
        nodes = self._grow(contents)
        step = Lineage(exchange, "append", False, self._node, self._depth, base, nodes, ())
        received = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % self._write()[:900] * 3
        answer = b'{"choices":[{"message":{"content":"%b"}}]}' % self._write()
        outcome = Outcome(exchange, 0, 200, _HEADERS, "complete", received, len(received), b"", Timings(1.0, 2.0, 3.0))
        reading = Reading(exchange, 0, answer, Usage(1000, 100), "stop", "")
        return (
            (opening, step, Round(exchange, 0, "openai", None)),
            (outcome,),
            (reading, self._answer(exchange, answer)),
        )

    def _write(self) -> bytes:
        """Text that packs about as well as a tool's output does."""
        words = self._source.choices(_WORDS, k=_MESSAGE_BYTES // 8)
        return b" ".join(b"%b%x" % (word, self._source.getrandbits(12)) for word in words)

    def _grow(self, contents: Sequence[bytes]) -> tuple[NodeRow, ...]:
        chain = extend_chain(self._node, contents)
        before = [self._node, *chain[:-1]]
        self._node = chain[-1]
        self._depth += len(chain)
        return tuple(NodeRow(node, parent, False) for node, parent in zip(chain, before, strict=True))

    def _answer(self, exchange: str, answer: bytes) -> Reply:
        (row,) = self._grow((answer,))
        return Reply(exchange, 0, (NodeRow(row.node, row.parent, True),), ())


async def run_agent(archive: SqliteArchive, way: str, cell: Cell, appends: list[Any], held: list[float]) -> None:
    for request, response, reading in appends:
        begun = time.perf_counter()
        opened = archive.append(*request)
        if way != "outcome" and not opened.done():
            await opened
        held_s = time.perf_counter() - begun
        await asyncio.sleep(cell.upstream_s)
        begun = time.perf_counter()
        if not (ended := archive.append(*response)).done():
            await ended
        held.append(held_s + time.perf_counter() - begun)
        assert ended.result()
        archive.append(*reading, is_urgent=False)


async def measure_way(path: Path, way: str, cell: Cell, turn: int) -> Figures:
    source = random.Random(turn)
    agents = [Agent(number, cell.content, source) for number in range(cell.agents)]
    appends = [[agent.make_appends() for _ in range(cell.exchanges)] for agent in agents]
    made: list[CountingConnection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(sqlite3.connect(*arguments, factory=CountingConnection, **options))
        return made[-1]

    policy = StorePolicy(path, durability="normal" if way == "journal" else "full")
    archive = open_sqlite(policy, asyncio.get_running_loop(), connect)
    await archive.list_sessions()  # whatever a first use costs
    held: list[float] = []
    begun, commits = time.process_time(), made[0].commits
    await asyncio.gather(*(run_agent(archive, way, cell, each, held) for each in appends))
    await archive.close()
    cpu_s = time.process_time() - begun
    assert archive.health.dropped == 0
    count = cell.agents * cell.exchanges
    return Figures(cpu_s * 1e6 / count, statistics.median(held) * 1e6, (made[0].commits - commits) / count)


def measure_cell(cell: Cell, turns: int) -> dict[str, list[Figures]]:
    figures: dict[str, list[Figures]] = {way: [] for way in WAYS}
    for turn in range(turns + 1):
        for way in random.sample(WAYS, len(WAYS)):
            with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder:
                found = asyncio.run(measure_way(Path(folder) / "log.db", way, cell, turn))
            if turn:  # the first one warms up
                figures[way].append(found)
    return figures


def list_rows(cell: Cell, figures: dict[str, list[Figures]]) -> list[list[str]]:
    rows = []
    for way in WAYS:
        row = [f"{cell.content // 1000} KB", str(cell.agents), f"{cell.upstream_s * 1e3:.0f} ms", way]
        for name in ("cpu_us", "held_us", "commits"):
            mine, base = ([getattr(each, name) for each in figures[one]] for one in (way, "journal"))
            row.append(render_number(statistics.median(mine)))
            if name != "commits":
                row.append(f"{statistics.median(own / other for own, other in zip(mine, base, strict=True)):.2f}")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--content", type=int, nargs="+", default=[2_000, 100_000], help="new bytes a request")
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--upstream-ms", type=int, nargs="+", default=[0, 20, 250], help="between request and response")
    parser.add_argument("--exchanges", type=int, default=160, help="of a turn, of all agents together")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", default="latest.durability", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    cells = [
        Cell(content, agents, upstream / 1e3, max(4, options.exchanges // agents // (1 if upstream < 100 else 8)))
        for content in options.content
        for agents in options.agents
        for upstream in options.upstream_ms
    ]
    rows = [row for cell in cells for row in list_rows(cell, measure_cell(cell, options.turns))]
    machine = describe_machine(load)
    text = (
        f"# What durable records cost\n\n{machine} Medians of {options.turns} turns.\n\n{render_table(_HEAD, rows)}\n"
    )
    raw = {"machine": machine, "head": _HEAD, "rows": rows}
    write_report(options.out, text, msgspec.json.format(msgspec.json.encode(raw), indent=1))


if __name__ == "__main__":
    main()
