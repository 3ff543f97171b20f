"""The scenarios: which jobs make a run, and the measurements that are no closed loop (start, idle streams, store).

The rule: a scenario only measures; what a figure means and which target it has is the report's business.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from benchmarks.as_used import ColdStart, measure_cold
from benchmarks.jobs import Job, Mode, Result
from benchmarks.measure import Bench, Cell, measure_cells, report_progress
from benchmarks.processes import (
    get_status,
    measure_files,
    read_memory,
    read_shared_memory,
    wait_for_answer,
    wait_until_quiet,
)
from benchmarks.targets import Target, start_palimpsest

BODIES = (("1 KB", 1_000), ("100 KB", 100_000), ("800 KB", 800_000))
CONCURRENCIES = (1, 16, 64)
REPEATS = 1_000  # calls of one history: what grows with them does not show in fewer
KEPT = (*BODIES[1:], ("3,200 KB", 3_200_000))
PAUSES_MS = (0, 20)
AGENTS = ((1, 20), (8, 20), (8, 500))  # how many at once, and milliseconds between an answer and the next call
AGENT_TURNS = 43  # from 100 to 200 KB
HISTORIES = (10, 100, 500, 1_000, 2_000)
STREAM_CHUNKS = 200  # of an answer of some hundred tokens: with 30 two thirds of what a chunk costs was the call's
QUICK_CHUNKS = 30
BURST_CHUNKS = 100
PACE_MS = 15
IDLE_STREAMS = 300
_COUNTING = ("--ceiling", "16000")  # a call of 100 KB is above it


class StoreGrowth(msgspec.Struct, kw_only=True):
    """Growth of a data folder over `turns` turns, in bytes: while serving, after a clean end, and per file then."""

    history: str
    turns: int
    new_bytes: int
    serving: int
    at_rest: int
    files: dict[str, int]


class Start(msgspec.Struct, kw_only=True):
    """One start on an empty folder: seconds until `/-/live` answers 200 and until SIGTERM ended it.

    Bytes of all its processes, pages that they share counted once: when `/-/ready` has answered 200 (`memory`), and
    once a call has been counted and cut.
    """

    ready: float
    ended: float
    memory: int
    counted: int


class Idle(msgspec.Struct, kw_only=True):
    """`/-/live` while streams are open: seconds of the answers; resident bytes then."""

    streams: int
    errors: int
    median: float
    worst: float
    memory: int


@dataclass(slots=True)
class Extras:
    """What the scenarios outside the closed loop found, by target."""

    starts: dict[str, list[Start]] = field(default_factory=dict)
    idle: dict[str, Idle] = field(default_factory=dict)
    stores: dict[str, list[StoreGrowth]] = field(default_factory=dict)
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    cold: dict[str, list[ColdStart]] = field(default_factory=dict)


def list_body_cells(is_quick: bool) -> list[Cell]:
    """Every size at every concurrency: the same bytes again, and content that is new."""
    seconds = 0.12 if is_quick else 0.3
    cells: list[Cell] = []
    for label, size in BODIES:
        for connections in CONCURRENCIES:
            at_once, turns = str(connections), -(-REPEATS // connections)
            job = Job(port=0, mode="repeat", size=size, connections=connections, turns=turns, warm_turns=2)
            cells.append(Cell("bodies", (label, "repeat", at_once), job))
            if size <= 1_000:
                job = msgspec.structs.replace(job, mode="new", turns=0, seconds=seconds)
                cells.append(Cell("bodies", (label, "new", at_once), job))
            elif size * connections < 20_000_000:  # 64 sessions of 800 KB would only measure the first, unknown history
                turns = {1: 40, 16: 10, 64: 5}[connections]
                job = Job(port=0, mode="grow", size=size, connections=connections, turns=turns, warm_turns=2)
                cells.append(Cell("bodies", (label, "grow", at_once), job))
        if size > 1_000:
            job = Job(port=0, mode="grow", size=size, turns=1, warm_turns=0)
            cells.append(Cell("bodies", (label, "first", "1"), job))
    return cells


def list_equal_cells() -> list[Cell]:
    """One history again and again with another answer each time, with a session id and without one."""
    return [
        Cell(
            "equal",
            (label, named),
            Job(port=0, size=size, turns=REPEATS, warm_turns=20, differs=True, is_anonymous=named == "no id"),
        )
        for label, size in BODIES[1:]
        for named in ("an id", "no id")
    ]


def list_stream_cells(is_quick: bool) -> list[Cell]:
    """Streams at a model's pace, and all chunks at once."""
    cells: list[Cell] = []
    for connections in CONCURRENCIES:
        at_once = str(connections)
        paced = Job(
            port=0,
            size=1_000,
            connections=connections,
            chunks=QUICK_CHUNKS if is_quick else STREAM_CHUNKS,
            delay_ms=PACE_MS,
            turns=1,
            warm_turns=1,
        )
        cells.append(Cell("sse", (f"{PACE_MS} ms", at_once), paced))
        seconds = 0.12 if is_quick else 0.3
        burst = Job(
            port=0, size=1_000, connections=connections, chunks=BURST_CHUNKS, seconds=seconds, warm_turns=2, mode="new"
        )
        cells.append(Cell("sse", ("burst", at_once), burst))
    return cells


def list_session_cells(is_quick: bool) -> list[Cell]:
    """One session at a time, growing from each length: bytes repeated as they were, and spelled differently."""
    turns = 8 if is_quick else 20
    modes: tuple[Mode, ...] = ("grow", "respell")
    return [
        Cell(
            "sessions",
            (mode, str(messages)),
            Job(port=0, mode=mode, messages=messages, turns=turns, warm_turns=3),
        )
        for mode in modes
        for messages in HISTORIES
    ]


def list_kept_cells(is_quick: bool) -> list[Cell]:
    """One session at a time that grows from each size: under a ceiling, what is sent stays as long as it is."""
    turns = 12 if is_quick else 40
    return [
        Cell(
            "kept",
            (label, f"{pause_ms} ms"),
            Job(port=0, mode="grow", size=size, turns=turns, warm_turns=4, pause_ms=pause_ms),
        )
        for label, size in KEPT
        for pause_ms in PAUSES_MS
    ]


def list_agent_cells(is_quick: bool) -> list[Cell]:
    """Agents that grow from 100 to 200 KB without a session id, and pause between an answer and the next call."""
    return [
        Cell(
            "agents",
            (str(count), f"{pause_ms} ms"),
            Job(
                port=0,
                mode="grow",
                size=100_000,
                connections=count,
                turns=AGENT_TURNS // 3 if is_quick or pause_ms > 100 else AGENT_TURNS,
                warm_turns=3,
                pause_ms=pause_ms,
                is_anonymous=True,
            ),
        )
        for count, pause_ms in AGENTS
    ]


def measure_bodies(bench: Bench, extras: Extras) -> None:
    """Bodies of 1, 100 and 800 KB."""
    measure_cells(bench, list_body_cells(bench.is_quick))


def measure_streams(bench: Bench, extras: Extras) -> None:
    """SSE."""
    measure_cells(bench, list_stream_cells(bench.is_quick))


def measure_sessions(bench: Bench, extras: Extras) -> None:
    """Growing sessions."""
    measure_cells(bench, list_session_cells(bench.is_quick))


def measure_agents(bench: Bench, extras: Extras) -> None:
    """Agents as they work; palimpsest-32k is above its soft mark with each of their calls, palimpsest-200k below it."""
    measure_cells(bench, list_agent_cells(bench.is_quick))


def measure_equals(bench: Bench, extras: Extras) -> None:
    """One history again and again (retries, best-of-n, evaluations), with a session id and without one."""
    measure_cells(bench, list_equal_cells())


def measure_cold_starts(bench: Bench, extras: Extras) -> None:
    """The first call of a long session to a process that was just started, on an idle core and on a busy one."""
    extras.cold["palimpsest"] = [measure_cold(bench.setting, "palimpsest", is_busy=each) for each in (False, True)]


def measure_kept(bench: Bench, extras: Extras) -> None:
    """Sessions in an epoch, beside the same ones that are only observed."""
    if any(target.name == "palimpsest-16k" for target in bench.targets):
        measure_cells(bench, list_kept_cells(bench.is_quick))


def measure_starts(bench: Bench, extras: Extras) -> None:
    """Start on an empty folder, several times, and send a call that has to be counted."""
    setting = replace(bench.setting, serve_options=(*bench.setting.serve_options, *_COUNTING))
    for target in _list_palimpsests(bench):
        starts = extras.starts.setdefault(target.name, [])
        for _ in range(2 if bench.is_quick else 5):
            fresh = start_palimpsest(setting, target.name)
            assert fresh.child is not None
            wait_for_answer(fresh.child, fresh.port, "/-/ready", 30)
            wait_until_quiet(fresh.child.pid, 2)
            used = read_shared_memory(fresh.child.pid)
            _run_job(bench, Job(port=fresh.port, mode="grow", size=100_000, turns=1, warm_turns=0))
            wait_until_quiet(fresh.child.pid, 2)
            counted = read_shared_memory(fresh.child.pid)
            ended = bench.setting.nursery.end(fresh.child)
            starts.append(Start(ready=fresh.start_seconds, ended=ended, memory=used, counted=counted))
        report_progress(f"start: {target.name}")


def measure_idle(bench: Bench, extras: Extras) -> None:
    """Hold streams open and ask whether the process lives."""
    job = Job(port=0, connections=IDLE_STREAMS, size=1_000, chunks=60, delay_ms=1_000, hold=True)
    for target in _list_palimpsests(bench):
        assert target.child is not None
        bench.load.write_line(msgspec.json.encode(msgspec.structs.replace(job, port=target.port)).decode())
        bench.load.read_line()
        bench.load.write_line("")
        bench.load.read_line()  # every stream has its first chunk
        seconds: list[float] = []
        failures = 0
        for _ in range(20 if bench.is_quick else 100):
            begun = time.perf_counter()
            failures += get_status(target.port, "/-/live", timeout=5.0) != 200
            seconds.append(time.perf_counter() - begun)
            time.sleep(0.01)
        used = read_memory(target.child.pid)[0]
        bench.load.write_line("")
        result = msgspec.json.decode(bench.load.read_line(), type=Result)
        extras.idle[target.name] = Idle(
            streams=IDLE_STREAMS,
            errors=failures + result.errors,
            median=statistics.median(seconds),
            worst=max(seconds),
            memory=used,
        )
        wait_until_quiet(target.child.pid, 3)
        report_progress(f"idle: {target.name}")


def list_store_jobs(is_quick: bool) -> list[tuple[str, Job]]:
    """Sessions to weigh: short and long histories, JSON and streamed answers."""
    turns = 20 if is_quick else 100
    common = {"mode": "grow", "connections": 8, "turns": turns, "warm_turns": 1}
    variants = {
        "from 10 messages": {"messages": 10},
        "from 1,000 messages": {"messages": 1_000},
        "from 10 messages, streamed": {"messages": 10, "chunks": 100},
    }
    return [(label, msgspec.convert({"port": 0, **common, **extra}, Job)) for label, extra in variants.items()]


def measure_store(bench: Bench, extras: Extras) -> None:
    """Weigh the data folder of a fresh process before and after a number of turns.

    A second, identical process serves only the warm-up: its folder at rest is what the histories weigh before the
    measured turns, free of a write-ahead log.
    """
    for target in _list_palimpsests(bench):
        for label, job in list_store_jobs(bench.is_quick):
            before = _weigh(bench, target.name, msgspec.structs.replace(job, turns=1))
            after = _weigh(bench, target.name, msgspec.structs.replace(job, turns=job.turns + 1))
            growth = StoreGrowth(
                history=label,
                turns=job.turns * job.connections,
                new_bytes=after.new_bytes - before.new_bytes,
                serving=after.serving - before.serving,
                at_rest=after.at_rest - before.at_rest,
                files={name: size - before.files.get(name, 0) for name, size in after.files.items()},
            )
            extras.stores.setdefault(target.name, []).append(growth)
        report_progress(f"store: {target.name}")


def _weigh(bench: Bench, name: str, job: Job) -> StoreGrowth:
    """A fresh process serves the job and ends; what its folder weighs."""
    fresh = start_palimpsest(bench.setting, name)
    assert fresh.child is not None and fresh.data is not None
    result = _run_job(bench, msgspec.structs.replace(job, port=fresh.port))
    wait_until_quiet(fresh.child.pid, 5, 0.2)
    serving = sum(measure_files(fresh.data).values())
    bench.setting.nursery.end(fresh.child)
    files = measure_files(fresh.data)
    new_bytes = result.new_bytes + result.received_bytes
    return StoreGrowth(
        history="", turns=job.turns, new_bytes=new_bytes, serving=serving, at_rest=sum(files.values()), files=files
    )


def _run_job(bench: Bench, job: Job) -> Result:
    """Have the load generator do a job, from its first call on."""
    bench.load.write_line(msgspec.json.encode(job).decode())
    bench.load.read_line()
    bench.load.write_line("")
    return msgspec.json.decode(bench.load.read_line(), type=Result)


def _list_palimpsests(bench: Bench) -> list[Target]:
    return [target for target in bench.targets if target.is_palimpsest]


SCENARIOS: dict[str, Callable[[Bench, Extras], None]] = {
    "start": measure_starts,
    "bodies": measure_bodies,
    "sse": measure_streams,
    "sessions": measure_sessions,
    "kept": measure_kept,
    "agents": measure_agents,
    "equal": measure_equals,
    "cold": measure_cold_starts,
    "idle": measure_idle,
    "store": measure_store,
}
