"""The proxy as users run it: a process of its own, started by the command line. Rule: ended by its id, always."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_ADDRESS = re.compile(r"base URL\s+http://127\.0\.0\.1:(\d+)/v1")
_SECONDS = 300.0  # after which a process hangs, on whatever machine
TOKEN = "journey-admin-token"


@dataclass(slots=True)
class Running:
    """A proxy process."""

    process: "subprocess.Popen[str]"
    data: Path
    port: int
    output: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self._finish(_SECONDS)

    def stop(self) -> int:
        """End it as an operator would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._finish(_SECONDS)

    def _finish(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        assert self.reader is not None and self.process.stderr is not None
        self.reader.join(seconds)
        self.process.stderr.close()
        return code


def start_proxy(data: Path, upstream: str, *options: str, module: str = "proxy", **settings: str) -> Running:
    """Start a proxy on a free port and wait for its address; `settings` are names of the environment without prefix.

    An empty `upstream` leaves it to the settings. `module` is what is run. A request waits for its plan, however busy
    the machine is.
    """
    settings = {"COMPACTION__HARD_WAIT_SECONDS": "60", **settings}
    command = [sys.executable, "-m", module, "serve", "--port", "0", "--data", str(data)]
    command += ["--upstream", upstream] if upstream else []
    process = subprocess.Popen(
        [*command, "--admin-token", TOKEN, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **{f"PALIMPSEST_{name}": value for name, value in settings.items()}},
    )
    running = Running(process, data, 0)
    assert process.stderr is not None
    for line in process.stderr:
        running.output.append(line)
        if found := _ADDRESS.search(line):
            running.port = int(found.group(1))
        if "page" in line:
            break
    assert running.port, "the proxy did not start:\n" + "".join(running.output)
    running.reader = threading.Thread(target=_drain, args=(running,), daemon=True)
    running.reader.start()
    return running


def _drain(running: Running) -> None:
    assert running.process.stderr is not None
    running.output.extend(running.process.stderr)


@contextlib.contextmanager
def run_proxy(data: Path, upstream: str, *options: str, **settings: str) -> Iterator[Running]:
    """A proxy for the length of a `with` block; its output is in `output` afterwards."""
    running = start_proxy(data, upstream, *options, **settings)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def run_command(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a palimpsest command to its end."""
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
