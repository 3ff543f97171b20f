"""The processes of a run: started pinned, watched through the kernel, ended by their own id.

The rule: whatever is started here is ended here, in the order reversed, also when the run is interrupted.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_ENDING_SECONDS = 8.0


class Child:
    """One process and, if it has any, its worker processes."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def read_line(self) -> str:
        """One line of its stdout; raises with the end of its log if there is none."""
        line = _stream(self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"process {self.pid} ended early:\n{self.read_log()}")
        return line

    def write_line(self, line: str) -> None:
        stdin = _stream(self.process.stdin)
        stdin.write(line + "\n")
        stdin.flush()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")[-2_000:]

    def end(self) -> float:
        """Close stdin, ask it to end, and insist after a while; the seconds it took."""
        begun = time.monotonic()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if not self.has_ended():
            self.process.terminate()
            try:
                self.process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_ENDING_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return time.monotonic() - begun


class Nursery:
    """Starts processes on a core, and ends all of them when the block is left."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.end()

    def start(self, argv: Sequence[str], core: int, *, talks: bool = False) -> Child:
        """Start pinned to one core; `talks`: with stdin and stdout as pipes, else both go to its log."""
        log = self._logs / f"process-{len(self._children)}.log"
        with log.open("w") as sink, run_on(core):
            process = subprocess.Popen(
                [*_die_with_parent(), *argv],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else sink,
                stderr=sink,
                text=True,
                cwd=Path(__file__).parent.parent,
            )
        child = Child(process, log)
        self._children.append(child)
        return child

    def end(self, child: Child) -> float:
        """End one child before the others; the seconds it took."""
        self._children.remove(child)
        return child.end()


def _die_with_parent() -> list[str]:
    """A prefix that lets the kernel end a child should this process be killed; util-linux, absent on some systems."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process was started without pipes")
    return stream


@contextlib.contextmanager
def run_on(core: int) -> Iterator[None]:
    """Pin this process to a core for a moment: what it starts inherits the core, threads and workers included."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def find_free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get_status(port: int, path: str, timeout: float = 2.0) -> int:
    """The status of one GET; 0 if nobody answers."""
    request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(request.encode())
            line = connection.recv(4096).split(b"\r\n", 1)[0].split()
    except OSError:
        return 0
    return int(line[1]) if len(line) > 1 else 0


def wait_for_answer(child: Child, port: int, path: str, seconds: float) -> None:
    """Poll until the path answers 200.  Raises with the log if the process ends or stays mute."""
    begun = time.monotonic()
    while get_status(port, path) != 200:
        if child.has_ended() or time.monotonic() - begun > seconds:
            raise RuntimeError(f"no answer on {path} after {seconds:.0f} s at most:\n{child.read_log()}")
        time.sleep(0.004)


def list_family(pid: int) -> list[int]:
    """The process and its descendants."""
    family = [pid]
    for parent in family:
        with contextlib.suppress(OSError):
            family += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return family


def read_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, every thread included, ended ones too.

    Linux's clock id of a process (`man clock_getcpuclockid`) counts nanoseconds where /proc/PID/stat counts 10 ms.
    """
    total = 0.0
    for member in list_family(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~member << 3) | 2)
    return total


def read_memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process and its descendants: now, and at the peak."""
    now = peak = 0
    for member in list_family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    now += int(line.split()[1]) * 1024
                elif line.startswith("VmHWM:"):
                    peak += int(line.split()[1]) * 1024
    return now, peak


def read_shared_memory(pid: int) -> int:
    """Proportional set size of a process and its descendants, in bytes: a page that several have counts once."""
    total = 0
    for member in list_family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def wait_until_quiet(pid: int, limit: float, window: float = 0.04) -> bool:
    """Wait until the process uses less than a tenth of its core; false if it never did within `limit` seconds."""
    deadline = time.monotonic() + limit
    before = read_cpu_seconds(pid)
    while time.monotonic() < deadline:
        time.sleep(window)
        now = read_cpu_seconds(pid)
        if now - before < window / 10:
            return True
        before = now
    return False


def measure_files(folder: Path) -> dict[str, int]:
    """Size of every file below a folder, by its path from there."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            if path.is_file():
                sizes[str(path.relative_to(folder))] = path.stat().st_size
    return sizes
