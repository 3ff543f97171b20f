"""How long people wait for pages and commands in a long session: `python -m benchmarks.reach`, two minutes.

A log of a session of 10,000 calls and a few short ones. Tells of each path of the API that the pages ask for the median
time of a request to a running server and the processor time that the server takes for it, and of each command how long
it takes on a small log, beside an interpreter that does nothing. A request is asked for once before it is measured: how
long that took is told, too. `--log` keeps the log in a directory, or measures one that is there.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.listing import write_log
from benchmarks.processes import (
    Nursery,
    find_free_port,
    read_cpu_seconds,
    read_memory,
    wait_for_answer,
    wait_until_quiet,
)
from benchmarks.report import describe_machine, render_number, render_table
from benchmarks.targets import MEASURED_CORE, find_command

SESSIONS, CALLS, LONG = 3, 300, 10_000
_LONG_ID, _SHORT_ID = f"{SESSIONS:020x}", f"{0:020x}"

PATHS = (
    "sessions",
    "sessions/{id}",
    "sessions/{id}/timeline",
    "sessions/{id}/epochs",
    "sessions/{id}/context?messages=false",
    "sessions/{id}/cache",
    "sessions/{id}/exchanges",
    "sessions/{id}/exchanges/{n}",
    "sessions/{id}/exchanges/{n}/diff",
    "sessions/{id}/epochs/{epoch}",
    "sessions/{id}/epochs/next",
    "sessions/{id}/messages",
    "sessions/{id}/files",
    "sessions/{id}/pins",
    "sessions/{id}/summaries",
    "savings",
    "health",
)
READING = (
    ("sessions",),
    ("show", _SHORT_ID),
    ("show", _SHORT_ID, "300"),
    ("epochs", _SHORT_ID),
    ("context", _SHORT_ID),
    ("cache", _SHORT_ID),
    ("savings",),
    ("summaries", _SHORT_ID),
    ("diff", _SHORT_ID, "300"),
    ("search", "task"),
    ("handoff", _SHORT_ID),
    ("config", "check"),
)
ASKING = (
    ("pin", _SHORT_ID),
    ("revert", _SHORT_ID, "--dry-run"),
    ("compact", _SHORT_ID, "--dry-run"),
)


def start_server(nursery: Nursery, data: Path) -> tuple[int, int]:
    """Start a server on a data folder. Return its port and the id of its process."""
    port = find_free_port()
    argv = [find_command(), "serve", "--upstream", "http://127.0.0.1:9/v1", "--host", "127.0.0.1", "--port", str(port)]
    child = nursery.start([*argv, "--data", str(data)], MEASURED_CORE)
    wait_for_answer(child, port, "/-/ready", 60)
    wait_until_quiet(child.pid, 120.0, 1.0)
    return port, child.pid


def measure_path(port: int, pid: int, path: str, token: str, repeated: int) -> tuple[str, ...]:
    """Measure a path: its status, its first time, its median, the server's processor time, and the answer's size."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    target = "/-/api/" + path.format(id=_LONG_ID, n=LONG, epoch=LONG // 60)
    took: list[float] = []
    used, size, status = 0.0, 0, 0
    for n in range(repeated + 1):
        if n == 1:
            used = read_cpu_seconds(pid)
        began = time.perf_counter()
        connection.request("GET", target, headers={"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        size, status = len(response.read()), response.status
        took.append((time.perf_counter() - began) * 1000)
    used = (read_cpu_seconds(pid) - used) * 1000 / repeated
    connection.close()
    times = (took[0], statistics.median(took[1:]), used)
    return path, str(status), *map(render_number, times), f"{size / 1024:.0f}"


def measure_command(arguments: Sequence[str], repeated: int) -> tuple[float, float, int]:
    """Return the median time of a command in ms, its processor time, and its exit code."""
    took: list[float] = []
    used: list[float] = []
    code = 0
    for _ in range(repeated):
        before, began = os.times(), time.perf_counter()
        code = subprocess.run(arguments, check=False, capture_output=True).returncode
        after = os.times()
        took.append((time.perf_counter() - began) * 1000)
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        used.append(spent * 1000)
    return statistics.median(took), statistics.median(used), code


def measure_commands(data: Path, commands: Sequence[Sequence[str]], repeated: int) -> list[tuple[str, ...]]:
    """Measure commands on a data folder."""
    rows: list[tuple[str, ...]] = []
    for command in commands:
        where = () if command[0] == "config" else ("--data", str(data))
        took, used, code = measure_command([find_command(), *command, *where], repeated)
        name = " ".join(word for word in command if len(word) < 20)
        rows.append((name, str(code), render_number(took), render_number(used)))
    return rows


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--only", choices=("api", "commands"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Nursery(Path(folder)) as nursery:
        data = given.log or Path(folder, "long")
        data.mkdir(parents=True, exist_ok=True)
        if not (data / "log.db").exists():
            write_log(data / "log.db", SESSIONS, CALLS, LONG)
        print(describe_machine(os.getloadavg()[0]), "\n")
        if given.only != "commands":
            port, pid = start_server(nursery, data)
            token = (data / "admin-token").read_text().strip()
            rows = [measure_path(port, pid, path, token, given.repeat) for path in PATHS]
            head = ("GET /-/api/", "status", "first, ms", "median, ms", "processor, ms", "answer, KB")
            print(render_table(head, rows))
            print(f"\nThe server's memory: {read_memory(pid)[0] / 2**20:.0f} MB.\n")
        if given.only != "api":
            small = Path(folder, "small")
            small.mkdir()
            write_log(small / "log.db", 1, CALLS, CALLS)
            took, used, _ = measure_command([sys.executable, "-c", "pass"], given.repeat)
            found: list[tuple[str, ...]] = [("(an interpreter)", "0", render_number(took), render_number(used))]
            found += measure_commands(small, READING, given.repeat)
            start_server(nursery, small)
            found += measure_commands(small, ASKING, given.repeat)
            print(render_table(("palimpsest", "exit", "median, ms", "processor, ms"), found))


if __name__ == "__main__":
    main()
