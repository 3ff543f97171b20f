"""The benchmark's command: direct, nginx and palimpsest side by side in one run.

The rule: it measures and reports, and no figure makes it fail; it ends what it started, and itself after a limit.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from benchmarks.measure import Bench, report_progress
from benchmarks.processes import Nursery, read_memory
from benchmarks.report import describe_run, render_json, render_markdown
from benchmarks.scenarios import SCENARIOS, Extras
from benchmarks.targets import (
    HARNESS_CORE,
    LIFETIME,
    NAMES,
    OPTIONAL_NAMES,
    Setting,
    find_command,
    start_load,
    start_mock,
    start_target,
)

_RESULTS = Path(__file__).parent / "results"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="benchmark of direct, nginx and palimpsest")
    parser.add_argument("--targets", default=",".join(NAMES), help=f"any of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, help="default 5; 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer rounds, shorter cells")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="may be repeated")
    parser.add_argument("--out", default="latest", help="name of the files in benchmarks/results")
    parser.add_argument("--command", default=find_command(), help="the palimpsest to measure")
    parser.add_argument("--before", default="", help="the command of the target palimpsest-before, another version")
    parser.add_argument("--folder", help="where the run's files go; default: the system's temporary folder")
    parser.add_argument("serve_options", nargs="*", help="after --: more options of `palimpsest serve`")
    return parser.parse_args()


def measure_all(setting: Setting, names: list[str], arguments: argparse.Namespace) -> tuple[Bench, Extras]:
    """Start the targets and run the scenarios."""
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    targets = [start_target(setting, name) for name in names]
    bench = Bench(setting, start_load(setting.nursery), targets, rounds, arguments.quick)
    extras = Extras()
    for scenario, measure in SCENARIOS.items():
        if arguments.only and scenario not in arguments.only:
            continue
        begun = time.monotonic()
        measure(bench, extras)
        report_progress(f"{scenario}: {time.monotonic() - begun:.0f} s")
    for target in targets:
        if target.child is not None:
            extras.memory[target.name] = read_memory(target.child.pid)
    return bench, extras


def write_report(out: str, markdown: str, raw: bytes) -> None:
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / f"{out}.md").write_text(markdown)
    (_RESULTS / f"{out}.json").write_bytes(raw + b"\n")
    print(markdown)


def stop(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that the processes are ended on the way out."""
    raise SystemExit(f"stopped by signal {number}")


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = parse_arguments()
    names = arguments.targets.split(",")
    if unknown := set(names) - {*NAMES, *OPTIONAL_NAMES}:
        raise SystemExit(f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join(NAMES + OPTIONAL_NAMES)}")
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two cores are needed: one for what is measured, one for what measures")
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIFETIME)
    begun, load_before = time.monotonic(), os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-bench-", dir=arguments.folder))
    try:
        with Nursery(folder) as nursery:
            os.sched_setaffinity(0, {HARNESS_CORE})
            options = tuple(arguments.serve_options)
            mock = start_mock(nursery, HARNESS_CORE)
            setting = Setting(nursery, folder, *mock, arguments.command, arguments.before, options)
            bench, extras = measure_all(setting, names, arguments)
            meta = describe_run(bench, begun, load_before)
            write_report(arguments.out, render_markdown(meta, bench, extras), render_json(meta, bench, extras))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
