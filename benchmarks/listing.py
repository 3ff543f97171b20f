"""How long the reports of a large log take: `python -m benchmarks.listing [--log DIR]`.

A log of 100,000 calls: 300 sessions of 300 calls, and one of 10,000. Calls have a plan, usage, timings and a place in
their session's tree; every 60th opens an epoch. All figures are of processor time. `--log` keeps the log in a
directory, or measures one that is there.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.report import render_number, render_table
from proxy.assembly import measure
from proxy.config import load_settings
from proxy.engine.recorded.documents import write_json
from proxy.model.epoch import Epoch, Kept, Plan, Rung, Written
from proxy.model.exchange import Opening, Outcome, Reading, Round, SessionKey, Timings, Usage
from proxy.model.lineage import Lineage, NodeRow, Reply, compute_chain_root, extend_chain
from proxy.model.log import Record
from proxy.model.manifest import ChainPiece, Manifest, Slice, chain_slices, compute_root_link, encode_recipe
from proxy.model.messages import LEDGER_HEAD
from proxy.read.savings import load_savings
from proxy.read.session_reports import SessionReports
from proxy.read.session_summary import TitleCache, summarize_sessions
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.transaction import TransactionWriter
from proxy.wire import FORMATS

SESSIONS, CALLS, LONG = 300, 300, 10_000

_TENANT = b"t" * 16
_STARTED_MS = 1_760_000_000_000
_MODEL, _VIEW = "claude-sonnet-4-5", "claude-sonnet-4-5"
_HEADERS = ((b"content-type", b"application/json"), (b"user-agent", b"claude-cli/2.1.34 (external, cli)"))
_EACH_EPOCH, _KEPT, _FILES = 60, 40, 200
_REPEATED = 11
_READER = FORMATS["anthropic_messages"].reader


class Conversation:
    """The messages of a session, as the client sends them: after a task, calls of tools and their results."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.node = compute_chain_root("anthropic")

    def ask(self, n: int) -> bytes:
        """Return the message with which call n ends."""
        if n == 1:
            return self._add(b'{"role":"user","content":"Task of session %d: %s"}' % (self._number, b"x" * 200))
        result = b'{"type":"tool_result","tool_use_id":"%b","content":"line %d\\n%b"}' % (
            self._name(n - 1),
            n,
            b"x" * 200,
        )
        return self._add(b'{"role":"user","content":[%b]}' % result)

    def answer(self, n: int) -> bytes:
        """Return the content of the response to call n."""
        tool = b"Edit" if n % 7 == 0 else b"Read"
        return (
            b'[{"type":"text","text":"Step %d"},{"type":"tool_use","id":"%b","name":"%b","input":'
            b'{"file_path":"src/f%d.py","old_string":"a","new_string":"b"}}]' % (n, self._name(n), tool, n % _FILES)
        )

    def say(self, content: bytes) -> bytes:
        """Return the message that has this content of a response."""
        return self._add(b'{"role":"assistant","content":%b}' % content)

    def _name(self, n: int) -> bytes:
        return b"toolu_%d_%d" % (self._number, n)

    def _add(self, message: bytes) -> bytes:
        (self.node,) = extend_chain(self.node, [_READER.read_item(message).form])
        return message


class Body:
    """A body that grows: the manifests of requests whose messages are added one after the other."""

    def __init__(self, messages: Sequence[bytes] = ()) -> None:
        self._link = compute_root_link(_TENANT)
        self._is_begun = False
        self._size = 15
        self._slices = list(self._chain(messages))

    def add(self, messages: Sequence[bytes]) -> Manifest:
        """Return the manifest of all messages so far and of these."""
        slices, self._slices = (*self._slices, *self._chain(messages)), []
        return Manifest(encode_recipe((b'{"messages":[', ChainPiece(self._link), b"]}")), slices, (), self._size)

    def _chain(self, messages: Sequence[bytes]) -> Iterator[Slice]:
        for message in messages:
            (found,) = chain_slices(self._link, [(b"," if self._is_begun else b"", message)])
            self._link, self._is_begun = found.link, True
            self._size += len(found.gap) + len(message)
            yield found


def make_calls(number: int, count: int) -> Iterator[list[tuple[Record, ...]]]:
    """Yield the calls of a session, each as the groups in which its records come."""
    key = SessionKey(f"{number:020x}", _TENANT, "anthropic", f"agent-{number}")
    talk, body, newest = Conversation(number), Body(), deque[bytes](maxlen=_KEPT)
    sent_body: Body | None = None
    epoch, new = "", list[bytes]()
    for n in range(1, count + 1):
        name, at_ms = f"e{number}-{n}", _STARTED_MS + number * 60_000 + n * 30_000
        before = talk.node
        new.append(talk.ask(n))
        newest.append(new[-1])
        asked, depth, client = talk.node, 2 * n - 1, 20_000 + 900 * n
        if n % _EACH_EPOCH == 0:
            parent, epoch = epoch, f"p{number}-{n}"
            rendered, edits = _render(newest, depth)
            sent_body = Body(rendered)
            opened = Epoch(
                epoch, key.id, _VIEW, parent, asked, depth, "soft", "", at_ms, client, 30_000, edits, rendered
            )
            yield [(opened,)]
        sent = client if not epoch else 30_000 + 900 * (n % _EACH_EPOCH)
        rung: Rung = "original" if not epoch else "plan" if n % _EACH_EPOCH == 0 else "epoch"
        plan = Plan(name, 0, _VIEW, rung, epoch, "none", "", client, sent, 150_000, 0.0, 9.0, client - 900, sent - 900)
        usage = Usage(sent, 200, sent - 900, 900)
        managed = None if sent_body is None else sent_body.add(() if rung == "plan" else new)
        content = talk.answer(n)
        yield [
            (
                Opening(name, key, "managed", "anthropic_messages", "manage", _MODEL, "POST", "/v1/messages", _HEADERS,
                        body.add(new), at_ms),
                Lineage(name, "append", False, asked, depth, depth - 1, (NodeRow(asked, before, False),), ()),
                Round(name, 0, "anthropic", managed),
                plan,
            ),
            (Outcome(name, 0, 200, (), "complete", b"{}", 2, b"", Timings(300.0, 310.0, 4000.0)),),
        ]  # fmt: skip
        new = [talk.say(content)]
        newest.append(new[0])
        read = Reading(name, 0, b'{"role":"assistant","content":%b}' % content, usage, "tool_use", "")
        yield [(read, Reply(name, 0, (NodeRow(talk.node, asked, True),), ()))]


def _render(newest: Sequence[bytes], depth: int) -> tuple[tuple[bytes, ...], bytes]:
    """Return the messages that an epoch sends, and its edits: a ledger, then the newest messages as they are."""
    text = f"{LEDGER_HEAD} {depth} messages"
    ledger = msgspec.json.encode({"role": "user", "content": text})
    kept = [Kept(place) for place in range(depth - len(newest), depth)]
    return (ledger, *newest), msgspec.json.encode([Written(text, 0, depth - len(newest)), *kept])


def write_log(path: Path, sessions: int, calls: int, long: int) -> None:
    """Write such a log, and tell what that took of the processor, with and without what reports sum up."""
    connection = connect_writer(StorePolicy(path, durability="normal"))
    writer = TransactionWriter(connection)
    wrote = filled = 0.0
    total = 0
    for number in range(sessions + 1):
        batch: list[tuple[Record, ...]] = []
        for groups in make_calls(number, long if number == sessions else calls):
            batch += groups
            total += isinstance(groups[0][0], Opening)
            if len(batch) < 30:
                continue
            began = time.thread_time()
            writer.commit(batch)
            wrote += time.thread_time() - began
            batch = []
            began = time.thread_time()
            while writer.unfilled >= 256:
                writer.fill()
            filled += time.thread_time() - began
        writer.commit(batch)
    connection.close()
    share = f"{filled / wrote:.1%}"
    print(f"{total} calls: {wrote / total * 1e6:.0f} µs each to write, {filled / total * 1e6:.0f} µs behind ({share})")


@contextmanager
def timing(samples: list[float]) -> Iterator[None]:
    began = time.process_time()
    yield
    samples.append((time.process_time() - began) * 1000)


async def measure_reports(data: Path) -> list[tuple[str, str, str]]:
    """Measure each report; what a request of the API does, but for HTTP."""
    settings = load_settings(None, {"data": data})
    inputs, reader = await measure(settings), SqliteReader(settings.store_policy().path)
    titles = TitleCache()
    long = f"{SESSIONS:020x}"

    async def list_some() -> object:
        return await summarize_sessions(reader, await reader.list_sessions(50), inputs, titles)

    async def show_one() -> object:
        return await summarize_sessions(reader, [await reader.find_session(long)], inputs, titles)

    kept = SessionReports(reader, inputs)
    reports: dict[str, Callable[[], Awaitable[object]]] = {
        "50 sessions": list_some,
        "session of 10,000 calls": show_one,
        "its timeline": lambda: kept.load_timeline(long),
        "its epochs": lambda: kept.load_epochs(long),
        "savings of all": lambda: load_savings(reader, inputs),
    }
    rows = []
    for name, report in reports.items():
        samples: list[float] = []
        for _ in range(_REPEATED):
            with timing(samples):
                write_json(await report())
        rows.append((name, render_number(samples[0]), render_number(statistics.median(samples))))
    await reader.close()
    return rows


def measure_command(data: Path, *arguments: str) -> tuple[str, str, str]:
    """Measure a command: processor time of its process."""
    samples = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "proxy", *arguments, "--data", str(data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return "palimpsest " + " ".join(arguments), render_number(samples[0]), render_number(statistics.median(samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = options.log or Path(folder)
        data.mkdir(parents=True, exist_ok=True)
        path = data / "log.db"
        if not path.exists():
            write_log(path, SESSIONS, CALLS, LONG)
        rows = asyncio.run(measure_reports(data))
        rows += [measure_command(data, "sessions", "--json"), measure_command(data, "savings", "--json")]
        print(render_table(("report", "first, ms", "median, ms"), rows))


if __name__ == "__main__":
    main()
