"""Two versions cell by cell: whether a change has made any kind of call slower.

    python -m benchmarks.compare --before COMMAND [--only NAME] [-- --ceiling 16000]

The rule: the versions take turns, a hundred calls of each connection, so that whatever else the machine does meets
both; a cell has at least 1,000 calls of each. A figure is the ratio of both in the same round; the table has its median
and quartiles: a cell is slower if the lower quartile is above 1.
"""

import argparse
import os
import shutil
import signal
import statistics
import tempfile
from pathlib import Path

import msgspec

from benchmarks.jobs import Job
from benchmarks.measure import Bench, Cell, Metric, cpu_per_request, measure_cells, p50, report_progress
from benchmarks.processes import Nursery
from benchmarks.run import stop
from benchmarks.targets import HARNESS_CORE, LIFETIME, Setting, find_command, start_load, start_mock, start_target

_BEFORE, _AFTER = "palimpsest-before", "palimpsest"
_CALLS = 100
_ROUNDS = 11
_CELLS = {
    "1 KB new": Job(port=0, mode="new", size=1_000),
    "1 KB repeated": Job(port=0, size=1_000),
    "1 KB new, 16 at once": Job(port=0, mode="new", size=1_000, connections=16),
    "100 KB grows": Job(port=0, mode="grow", size=100_000),
    "100 KB grows, no id": Job(port=0, mode="grow", size=100_000, is_anonymous=True),
    "100 KB repeated": Job(port=0, size=100_000),
    "800 KB grows": Job(port=0, mode="grow", size=800_000),
    "10 messages grow": Job(port=0, mode="grow", messages=10),
    "1,000 messages grow": Job(port=0, mode="grow", messages=1_000),
    "100 messages, spelled anew": Job(port=0, mode="respell", messages=100),
    "stream, all at once": Job(port=0, mode="new", size=1_000, chunks=100),
    "stream, 16 at once": Job(port=0, mode="new", size=1_000, chunks=100, connections=16),
    "stream, 2 ms a chunk": Job(port=0, mode="new", size=1_000, chunks=10, delay_ms=2),
}


def list_cells(only: list[str]) -> list[Cell]:
    """The cells whose names hold one of some words; all, without words."""
    return [
        Cell(name, (), _with_turns(job))
        for name, job in _CELLS.items()
        if not only or any(word in name for word in only)
    ]


def _with_turns(job: Job) -> Job:
    return msgspec.structs.replace(job, turns=_CALLS, warm_turns=3)


def render_table(bench: Bench, cells: list[Cell]) -> str:
    """Markdown: of each cell the median times before and now, and the ratios of times and of processor time."""
    lines = [
        "| cell | calls of each | p50 before, ms | p50, ms | ratio: median (quartiles) "
        "| processor time per call before, ms | now, ms | ratio: median (quartiles) | errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        samples = bench.samples[cell.key][_AFTER]
        figures = [cell.key, f"{sum(sample.result.requests for sample in samples):,}"]
        for metric in (p50, cpu_per_request):
            before, after = (bench.median(cell.key, name, metric) or 0.0 for name in (_BEFORE, _AFTER))
            figures += [f"{before * 1e3:.3f}", f"{after * 1e3:.3f}", _render_ratios(bench, cell, metric)]
        errors = sum(sample.result.errors for name in (_BEFORE, _AFTER) for sample in bench.samples[cell.key][name])
        figures.append(str(errors))
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def _render_ratios(bench: Bench, cell: Cell, metric: Metric) -> str:
    pairs = zip(bench.values(cell.key, _AFTER, metric), bench.values(cell.key, _BEFORE, metric), strict=True)
    low, middle, high = statistics.quantiles([after / before for after, before in pairs if before], n=4)
    return f"**{middle:.3f}** ({low:.3f} to {high:.3f})"


def main() -> None:
    """Compare from the command line."""
    parser = argparse.ArgumentParser(description="two versions of palimpsest, cell by cell")
    parser.add_argument("--before", required=True, help="the command of the other version")
    parser.add_argument("--command", default=find_command(), help="the palimpsest to measure")
    parser.add_argument("--only", action="append", default=[], help="cells whose names hold this; may be repeated")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("serve_options", nargs="*", help="after --: more options of `palimpsest serve`, for both")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, stop)
    signal.alarm(LIFETIME)
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-bench-"))
    try:
        with Nursery(folder) as nursery:
            os.sched_setaffinity(0, {HARNESS_CORE})
            mock = start_mock(nursery, HARNESS_CORE)
            options = tuple(arguments.serve_options)
            setting = Setting(nursery, folder, *mock, arguments.command, arguments.before, options)
            targets = [start_target(setting, name) for name in (_BEFORE, _AFTER)]
            bench = Bench(setting, start_load(nursery), targets, arguments.rounds, is_quick=False)
            cells = list_cells(arguments.only)
            for cell in cells:
                measure_cells(bench, [cell])
                report_progress(render_table(bench, [cell]).splitlines()[-1])
            print(render_table(bench, cells))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
