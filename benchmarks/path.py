"""How long the path of a call is in our own code: `python benchmarks/path.py`, ten seconds.

Counts the modules of `proxy` that one call enters, and the Python functions of `proxy` that it runs, in the event
loop's thread of a real server: from before the request is sent until the server has been idle for a moment, so that
what follows the response counts. A room is a module in which a function, other than a method of it, has the request as
an argument, as the client sent it, as it was resolved, or as a `Call`; the path returns when it enters a room that it
had left. `short`: a streamed call of 1 KB, of a session that is not managed, like those before it. `keep`: a streamed
call of a session with an epoch. `open`: the call that opens it. The response has 24 chunks. The counts do not depend on
the machine, but for a call more or less in what timers do.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own folder is searched for packages, in place of the one above
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.processes import Nursery
from benchmarks.targets import HARNESS_CORE, Setting, start_mock, start_palimpsest
from proxy.__main__ import main as run_palimpsest
from proxy.engine.stages.stage import Call
from proxy.model.exchange import ClientRequest

_PROBE_FILE = "BENCH_PATH_FILE"
_PACKAGE = str(Path(__file__).parents[1] / "proxy") + "/"
_SETTLE_SECONDS = 0.4
_WARM_CALLS, _COUNTED_CALLS = 8, 5
_SOFT_CEILING = 8_000
_STEPS, _STEP_BYTES = 30, 1600


class TracedCall(NamedTuple):
    """What one call ran: functions with how often, and the modules that its request entered, in order."""

    calls: list[tuple[str, str, int]]
    rooms: list[str]

    @property
    def returns(self) -> int:
        """How often the request comes back to a module that it had left."""
        entered = [room for i, room in enumerate(self.rooms) if not i or room != self.rooms[i - 1]]
        return len(entered) - len(set(entered))


class Probe:
    """Counts calls while it is on; a signal turns it on, the next one off, which writes the counts down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._calls: Counter[tuple[str, str]] | None = None
        self._rooms: list[str] = []

    def toggle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self._calls is None:
            self._calls, self._rooms = Counter(), []
            sys.setprofile(self._note)
            return
        sys.setprofile(None)
        counted, self._calls = self._calls, None
        rows = [(file.removeprefix(_PACKAGE), name, count) for (file, name), count in counted.items()]
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps([rows, self._rooms]))
        fresh.rename(self._path)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE) and self._calls is not None:
            self._calls[code.co_filename, code.co_qualname] += 1
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given = [frame.f_locals[name] for name in names if name != "self"]
            if any(isinstance(each, ClientRequest | Call) for each in given):
                self._rooms.append(code.co_filename.removeprefix(_PACKAGE))


def count(port: int, pid: int, probe: Path, body: bytes, session: str) -> TracedCall:
    """What one call runs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    time.sleep(_SETTLE_SECONDS)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.05)
    ask(connection, body, session)
    time.sleep(_SETTLE_SECONDS)
    os.kill(pid, signal.SIGUSR1)
    limit = time.monotonic() + 10
    while not probe.exists():
        if time.monotonic() > limit:
            raise RuntimeError("the server did not write its counts down")
        time.sleep(0.01)
    rows, rooms = json.loads(probe.read_text())
    probe.unlink()
    connection.close()
    return TracedCall([(file, name, times) for file, name, times in rows], rooms)


def ask(connection: http.client.HTTPConnection, body: bytes, session: str) -> None:
    """One call, to its end."""
    headers = {"authorization": "Bearer bench", "content-type": "application/json", "x-session-id": session}
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}")


def build_short() -> bytes:
    """A streamed call of about 1 KB."""
    return _spell([{"role": "system", "content": "You help."}, {"role": "user", "content": "word " * 180}])


def build_history(steps: int) -> bytes:
    """A streamed call of an agent's session with so many steps."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend the tests of the parser."}]
    for step in range(steps):
        call = {"name": "bash", "arguments": json.dumps({"command": f"cat src/module_{step}.py"})}
        calls = [{"id": f"call_{step:024x}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": f"Looking at part {step}.", "tool_calls": calls})
        text = f"def function_{step}(value):\n    return other_{step}.path\n"
        output = (text * (_STEP_BYTES // len(text) + 1))[:_STEP_BYTES]
        messages.append({"role": "tool", "tool_call_id": f"call_{step:024x}", "content": output})
    return _spell(messages)


def _spell(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "gpt-4o", "stream": True, "messages": messages}).encode()


def measure(setting: Setting, probe: Path, *, is_listed: bool) -> None:
    """Count the three calls, and print them."""
    os.environ[_PROBE_FILE] = str(probe)
    target = start_palimpsest(setting, "palimpsest")
    assert target.child is not None
    pid, body = target.child.pid, build_short()
    time.sleep(1.0)
    for _ in range(_WARM_CALLS):
        count(target.port, pid, probe, body, "short")
    _report(
        "short", [count(target.port, pid, probe, body, "short") for _ in range(_COUNTED_CALLS)], is_listed=is_listed
    )
    opened = kept = None
    for steps in range(4, _STEPS):
        rows = count(target.port, pid, probe, build_history(steps), "long")
        names = {name for _, name, _ in rows.calls}
        if opened is None and any("_make_epoch" in name for name in names):
            opened = rows
        elif opened is not None:
            kept = rows
    _report("open", [opened] if opened else [], is_listed=is_listed)
    _report("keep", [kept] if kept else [], is_listed=is_listed)


def _report(kind: str, runs: list[TracedCall], *, is_listed: bool) -> None:
    if not runs:
        print(f"{kind}: there was no such call")
        return
    calls = statistics.median(sum(times for _, _, times in run.calls) for run in runs)
    modules = statistics.median(len({file for file, _, _ in run.calls}) for run in runs)
    rooms, returns = len(set(runs[-1].rooms)), runs[-1].returns
    print(f"{kind}: {calls:g} own calls, {modules:g} own modules; {rooms} rooms, {returns} returns")
    if is_listed:
        print("       " + " > ".join(room for i, room in enumerate(runs[-1].rooms) if room != runs[-1].rooms[i - 1]))
    by_file: Counter[str] = Counter()
    for file, _, times in runs[-1].calls:
        by_file[file] += times
    for file, times in by_file.most_common() if is_listed else ():
        print(f"{times:6} {file}")
        inside = sorted(((t, name) for f, name, t in runs[-1].calls if f == file), reverse=True)
        print("       " + ", ".join(f"{name} {t}" if t > 1 else name for t, name in inside))


def main() -> None:
    """Run it; in the server's own process, serve with a probe."""
    if probe := os.environ.get(_PROBE_FILE):
        signal.signal(signal.SIGUSR1, Probe(Path(probe)).toggle)
        run_palimpsest()
        return
    parser = argparse.ArgumentParser(description="own modules and own Python calls of one call")
    parser.add_argument("--list", action="store_true", help="every function, by module")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-bench-"))
    launcher = folder / "palimpsest"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m benchmarks.path "$@"\n')
    launcher.chmod(0o755)
    try:
        with Nursery(folder) as nursery:
            mock, port = start_mock(nursery, HARNESS_CORE)
            options = ("--ceiling", str(_SOFT_CEILING))
            setting = Setting(nursery, folder, mock, port, str(launcher), serve_options=options)
            measure(setting, folder / "calls.json", is_listed=arguments.list)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
