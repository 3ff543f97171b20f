"""How fast the log is indexed and searched: `python -m benchmarks.search_speed`.

A log of 100,000 messages of made-up agents: thoughts, calls and outputs, in words whose frequencies fall as those of a
language do, with identifiers and paths. It is indexed by an `Indexer`, then asked through `SearchIndex`: sentences
that were said, three rare words, identifiers, and single words with a letter wrong; in one session, and in all. With
`--log FILE` a log that exists is copied and used instead. At last a worker process indexes the log anew beside this
one, which is what a server does, and the processor time of this one is counted.
"""

import argparse
import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.jobs import measure_spread
from benchmarks.report import describe_machine, render_number, render_table
from benchmarks.run import write_report
from proxy.context.conversation import BuilderPolicy
from proxy.model.search import SearchQuery
from proxy.retrieval.postings import get_session
from proxy.store.search.entries import load_text
from proxy.store.search.indexer import Indexer
from proxy.store.search.reader import SearchIndex, connect_index
from proxy.store.search.schema import find_index, remove
from proxy.worker.process import WorkerProcess
from proxy.worker.program import WorkerSettings
from tests.support.indexing import LogBuilder, ask_tool, read_message, return_output, say

_VOCABULARY, _NAMES = 20_000, 4_000
_STEPS_OF_SESSION, _CALLS_OF_SESSION = 200, 5
_LIMIT, _TOKENS = 20, 4_000
_MOST_P50_MS, _MOST_P99_MS, _LEAST_RATE = 20, 100, 200
_SLICE_SECONDS = 0.1
_HEAD = (
    *("query", "where", "asked", "median, ms", "p99, ms", "worst, ms"),
    *("processor: median, ms", "p99, ms", "incomplete"),
)
_PARTS = [
    "ba",
    "be",
    "bo",
    "da",
    "de",
    "do",
    "fa",
    "fi",
    "ga",
    "go",
    "ka",
    "ke",
    "ki",
    "la",
    "le",
    "lo",
    "ma",
    "me",
    "mi",
    "na",
    "ne",
    "no",
    "pa",
    "pe",
    "ra",
    "re",
    "ri",
    "sa",
    "se",
    "so",
    "ta",
    "te",
    "ti",
    "va",
    "ve",
    "zo",
]


class Language:
    """Words, identifiers and paths, drawn with falling frequencies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        made: set[str] = set()
        while len(made) < _VOCABULARY:
            made.add("".join(self.random.choices(_PARTS, k=self.random.randint(2, 5))))
        self.words = sorted(made)
        self.random.shuffle(self.words)
        self._weights = list(accumulate(1 / (rank + 60) for rank in range(_VOCABULARY)))
        self.names = ["_".join(self.random.choices(self.words[50:4000], k=2)) for _ in range(_NAMES)]
        self._name_weights = list(accumulate(1 / (rank + 10) for rank in range(_NAMES)))

    def speak(self, count: int) -> str:
        """A sentence with so many words."""
        return " ".join(self.random.choices(self.words, cum_weights=self._weights, k=count))

    def name(self) -> str:
        """An identifier."""
        return self.random.choices(self.names, cum_weights=self._name_weights)[0]

    def path(self) -> str:
        """A path."""
        return f"src/{self.random.choice(self.words[50:90])}/{self.name()}.py"

    def print_lines(self, count: int) -> str:
        """An output with so many lines."""
        return "\n".join(f"{self.path()}:{i}: def {self.name()}({self.name()}): {self.speak(6)}" for i in range(count))


def build(path: Path, messages: int) -> None:
    """Write a log with so many messages."""
    language, log = Language(1), LogBuilder(path)
    steps = min(_STEPS_OF_SESSION, messages // 2)
    for number in range(max(1, messages // (2 * steps))):
        history: list[Any] = [say(f"Please repair {language.name()}: {language.speak(30)}")]
        for i in range(steps):
            call, command = f"call_{number}_{i}", f"grep -rn {language.name()} {language.path()}"
            answer = ask_tool("bash", {"command": command}, call, f"{language.speak(25)} {language.name()}")
            lines = language.random.choice((1, 3, 8, 20, 60))
            history += [read_message(answer), return_output(language.print_lines(lines), call)]
            if (i + 1) % max(1, steps // _CALLS_OF_SESSION) == 0:
                log.call(history, session=f"s{number:05}")
    log.close()


def index(path: Path) -> dict[str, float]:
    """Index a log from its beginning; how long that took, and what came of it."""
    indexer, begun, used = Indexer(path), time.perf_counter(), time.process_time()
    while indexer.run(_SLICE_SECONDS):
        pass
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    time.sleep(2.5)
    while indexer.run(_SLICE_SECONDS):  # merges what was written, since nothing is new
        pass
    indexer.close()
    counts = LogBuilder(path)
    (nodes,) = counts.connection.execute("SELECT count(*) FROM node").fetchone()
    counts.close()
    return {"seconds": seconds, "cpu": cpu, "messages": nodes, "size": find_index(path).stat().st_size}


def measure_text(path: Path) -> int:
    """The bytes of all texts that are indexed."""
    connection, total = connect_index(path), 0
    for where in connection.execute("SELECT address, holder, exchange FROM idx.entry").fetchall():
        text = load_text(connection, *where)
        total += len(text.text.encode("utf-8", "replace")) if text is not None else 0
    connection.close()
    return total


def list_said(path: Path, count: int) -> list[tuple[str, str]]:
    """Sessions, and words that were said in them: queries are made of these."""
    connection = connect_index(path)
    rows = connection.execute("SELECT id, address, holder, exchange FROM idx.entry").fetchall()
    keys = dict(connection.execute("SELECT id, key FROM session").fetchall())
    found = []
    for id, *where in random.Random(7).sample(rows, min(len(rows), 4 * count)):
        text = load_text(connection, *where)
        if text is not None and len(text.text.split()) > 8:
            found.append((keys[get_session(id)], text.text))
    connection.close()
    return found[:count]


def make_queries(said: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Queries by their kind, each with a session in which it has an answer."""
    choose = random.Random(8)
    kinds: dict[str, list[tuple[str, str]]] = {"sentence": [], "three words": [], "identifier": [], "misspelt": []}
    for session, text in said:
        words = text.split()
        start = choose.randrange(max(1, len(words) - 14))
        kinds["sentence"].append((session, " ".join(words[start : start + 14])))
        kinds["three words"].append((session, " ".join(choose.sample(words, 3))))
        kinds["identifier"].append((session, max(words, key=len)[:80]))
        word = max((each for each in words if each.isalpha()), key=len, default="words")
        kinds["misspelt"].append((session, word[:-2] + word[-1:]))
    return kinds


async def ask(path: Path, queries: dict[str, list[tuple[str, str]]]) -> list[tuple[str, ...]]:
    """Ask all queries; the rows of the table."""
    searched, rows = SearchIndex(path), []
    for kind, asked in queries.items():
        for where in ("session", "all", "all, 4,000 tokens"):
            durations, used, incomplete = [], [], 0
            for session, text in asked:
                sessions = (session,) if where == "session" else None
                tokens = _TOKENS if "tokens" in where else None
                query = SearchQuery(text=text, sessions=sessions, limit=_LIMIT, tokens=tokens)
                begun, before = time.perf_counter(), time.process_time()
                answer = await searched.search(query)
                durations.append(time.perf_counter() - begun)
                used.append(time.process_time() - before)
                incomplete += not answer.is_complete
            spread, own = measure_spread(durations), measure_spread(used)
            figures = (spread.p50, spread.p99, spread.worst, own.p50, own.p99)
            times = [render_number(1000 * each) for each in figures]
            rows.append((kind, where, str(spread.count), *times, str(incomplete)))
    await searched.close()
    return rows


async def index_beside(path: Path) -> tuple[float, float]:
    """Have a worker process index a log; how long that took, and the processor time of this process meanwhile."""
    remove(find_index(path))
    worker = WorkerProcess(WorkerSettings(BuilderPolicy(), 1 << 20, str(path)))
    await worker.start()
    begun, used = time.perf_counter(), time.process_time()
    while worker.index_health.behind or worker.index_health.is_rebuilding or not worker.index_health.size:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    await worker.close()
    return seconds, cpu


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200, help="of each kind")
    parser.add_argument("--log", type=Path, help="a log to use instead of a made-up one")
    parser.add_argument("--told", default="", help="what this log is, for the results")
    parser.add_argument("--out", default="search-speed")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        if options.log:
            shutil.copy(options.log, path)
        else:
            build(path, options.messages)
        built, text = index(path), measure_text(path)
        rows = asyncio.run(ask(path, make_queries(list_said(path, options.queries))))
        beside, own = asyncio.run(index_beside(path))
    rate = built["messages"] / built["seconds"]
    told = options.told or "made-up agents"
    facts = (
        f"{describe_machine(load)} {built['messages']:,.0f} messages ({told}), {text / 1e6:.1f} MB of text. Indexed at"
        f" {rate:,.0f} messages/s (at least {_LEAST_RATE}), {1000 * built['cpu'] / built['messages']:.2f} ms of the"
        f" processor each. It has {built['size'] / 1e6:.1f} MB, {built['size'] / text:.2f} of the text (at most 0.5)."
        f" A worker process indexed it in {beside:.0f} s, while this one used {100 * own / beside:.2f} % of a core"
        f" (at most 2 %). A query is to take {_MOST_P50_MS} ms at the median, {_MOST_P99_MS} ms at p99."
    )
    markdown = f"# How fast the log is indexed and searched\n\n{facts}\n\n{render_table(_HEAD, rows)}\n"
    write_report(
        options.out, markdown, msgspec.json.format(msgspec.json.encode({"facts": facts, "rows": rows}), indent=1)
    )


if __name__ == "__main__":
    main()
