"""One client's journey: direct and through the proxy, each in fresh folders, then both held against each other.

Rule: the folders have the same paths both times, so that no path has to be masked; a client ends within its time, with
all that it started; nothing it sends can leave this machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from proxy.cli.client_settings import UnknownUpstream
from proxy.cli.clients import ClientStart, plan_client, start_client
from proxy.cli.run import furnish, read_client_files
from tests.clients.client import Client, fill
from tests.clients.comparing import Run, check_run, compare_log, compare_runs, drop_listings
from tests.clients.counting import Meter
from tests.clients.logs import has_call, read_log
from tests.clients.script import CONTENT, NOTE, Json, Turn
from tests.clients.trees import check_sessions
from tests.clients.upstream import Model, Trial, Upstream, run_upstream
from tests.journeys.running import Running, run_command, start_proxy

PROGRAMS = Path(__file__).parent / "programs"

# A port that nothing listens on: a client that wants to reach the world beside its upstream fails at once.
_NOWHERE = "http://127.0.0.1:9"
_PALIMPSEST = (sys.executable, "-P", "-m", "proxy")
_TOOK_TOO_LONG = 124  # as `timeout` says it
_QUIET_LOOKS = 3
_LOOK_SECONDS = 0.02
_CACHE = ".cache"
_PROXY_SECONDS = 600.0
_SETTINGS = {
    "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1", "CI": "1", "DO_NOT_TRACK": "1", "OPENAI_API_KEY": "sk-dummy",
    "HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "NO_PROXY": "127.0.0.1,localhost",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Sets have an order of their own in every process otherwise, and aider sends them.
    "PYTHONHASHSEED": "0",
}  # fmt: skip


def run_journey(client: Client, programs: Sequence[Path], root: Path, *, by_run: bool = False) -> list[str]:
    """Everything that is wrong with a client's journey; `programs` are folders of its programs, `root` is scratch.

    With `by_run` the client is started by `palimpsest run`, else in front of a proxy that runs already. It is made
    twice through the proxy, with a restart between: what begins anew is another conversation.
    """
    direct = travel(client, programs, root, "direct", Way())
    if faults := list(check_run(client, direct)):
        return [f"direct: {fault}" for fault in faults]
    way = Way(root / "data", by_run)
    through = travel(client, programs, root, "through", way)
    again = travel(_repeat(client), programs, root, "again", way)
    through, again = drop_listings(direct, through), drop_listings(direct, again)
    faults = [f"through the proxy: {fault}" for fault in check_run(client, through)]
    faults += compare_runs(client, direct, through)
    faults += [f"through the proxy again: {fault}" for fault in check_run(client, again)]
    log = read_log(root / "data")
    faults += [*compare_log(through.recording + again.recording, log.exchanges)]
    faults += check_sessions(client.expected, log, runs=2)
    verified = run_command("verify", "--data", str(root / "data"))
    return faults + ([f"palimpsest verify: {verified.stdout.decode()}"] if verified.returncode else [])


def _repeat(client: Client) -> Client:
    return replace(client, script=replace(client.script, run=client.script.run + 1))


@dataclass(frozen=True, slots=True)
class Way:
    """How a client reaches the scripted provider: with `data`, through a proxy with options that keeps its log there;
    `by_run`: `palimpsest run` starts one for each command. `model` answers (by default the client's script), `rescued`
    what is sent in place of what was refused, and `meter` counts. The client is killed in the call that first shows the
    part `kills_client`, the proxy in that with `kills_proxy`; from `narrows` on, a part, the meter's window is another.
    """

    data: Path | None = None
    by_run: bool = False
    options: tuple[str, ...] = ()
    model: Model | None = None
    meter: Meter | None = None
    rescued: Callable[[Json], Turn] | None = None
    kills_client: int = 0
    kills_proxy: int = 0
    narrows: tuple[int, int] = (0, 0)


def travel(client: Client, programs: Sequence[Path], root: Path, name: str, way: Way) -> Run:
    """One run."""
    work, data = root / "work", way.data
    with contextlib.ExitStack() as stack:
        model = way.model or replace(client.script, folder=str(work))
        upstream = stack.enter_context(run_upstream(model, way.meter, way.rescued))
        mark = f"HOME={root / 'home'}".encode()
        origin, starter = upstream.origin, tuple[str, ...]()
        if data is not None and way.by_run:
            starter = (*_PALIMPSEST, "run", "--upstream", f"{origin}/v1", *way.options, "--data", str(data), "--")
        elif data is not None:
            proxy = stack.enter_context(_run_proxy(data, f"{upstream.origin}/v1", way.options))
            origin = proxy.running.origin
            upstream.trials[way.kills_proxy] = Trial(lambda: proxy.crash(upstream.recording[-1].body, mark), cuts=True)
            upstream.trials[way.kills_client] = Trial(
                lambda: proxy.desert(upstream.recording[-1].body, mark), cuts=True
            )
        if way.meter is not None:
            upstream.trials[way.narrows[0]] = Trial(partial(setattr, way.meter, "window", way.narrows[1]))
        upstream.trials.pop(0, None)  # what waits for no part
        places = {"origin": origin, "home": str(root / "home"), "work": str(work), "programs": str(PROGRAMS)}
        places["packages"] = str(programs[-1].parent)
        _furnish(client, root, places)
        run = _drive(client, programs, places, upstream, starter)
    (root / f"output-{name}").write_bytes(run.output)
    return run


@dataclass(slots=True)
class _Proxy:
    """A proxy that may be killed, and is started again at its port."""

    data: Path
    upstream: str
    options: tuple[str, ...]
    running: Running

    def crash(self, body: bytes, mark: bytes) -> None:
        """End it as a crash does, while it waits for the answer to this body, and start it again.

        Its clients, known by a mark, stand still meanwhile: what calls again finds it, however slow the machine is.
        """
        self._wait_for_call(body)
        _signal_marked(mark, signal.SIGSTOP)
        try:
            self.running.kill()
            port = str(self.running.port)
            self.running = start_proxy(self.data, self.upstream, *self.options, "--port", port)
        finally:
            _signal_marked(mark, signal.SIGCONT)

    def desert(self, body: bytes, mark: bytes) -> None:
        """Kill its clients while it waits for the answer to this body, until it has given the call up.

        An answer before that would be an end of the call, too: which of them comes first would be up to chance.
        """
        _signal_marked(mark, signal.SIGKILL)
        self._wait_for_call(body, is_ended=True)

    def _wait_for_call(self, body: bytes, *, is_ended: bool = False) -> None:
        until = time.monotonic() + _PROXY_SECONDS
        while not has_call(self.data, body, is_ended=is_ended):
            assert time.monotonic() < until, "the call is not in the log"
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _run_proxy(data: Path, upstream: str, options: tuple[str, ...]) -> Iterator[_Proxy]:
    proxy = _Proxy(data, upstream, options, start_proxy(data, upstream, *options))
    try:
        yield proxy
    finally:
        if proxy.running.process.poll() is None:
            proxy.running.stop()


def _furnish(client: Client, root: Path, places: Mapping[str, str]) -> None:
    for name in ("home", "work"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    (root / "work" / NOTE).write_text(CONTENT)
    for name, text in client.files.items():
        path = Path(fill(name, places))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text, places))


def _drive(
    client: Client,
    programs: Sequence[Path],
    places: Mapping[str, str],
    upstream: Upstream,
    starter: Sequence[str] = (),
) -> Run:
    """Run the commands of a client; `starter` is a command that starts them and sends them where they are to go."""
    path = os.pathsep.join([*map(str, programs), os.defpath])
    settings = _SETTINGS | {"HOME": places["home"]} | dict(client.settings)
    environment = {"PATH": path} | {name: fill(value, places) for name, value in settings.items()}
    codes, output = [], b""
    origin = "" if starter else places["origin"]
    try:
        for command, given in zip_longest(client.commands, client.inputs, fillvalue=""):
            words = tuple(fill(word, places) for word in command)
            with _prepare(origin, words, environment, Path(places["work"])) as start:
                first = shutil.which(start.command[0], path=path) or start.command[0]
                program = [*starter, first, *start.command[1:]]
                code, said = _run(program, start.environment, places["work"], client.seconds, given)
            if starter:
                _wait_for_proxy(starter[starter.index("--data") + 1])
            codes.append(code)
            output += said
    finally:
        _end_what_is_left(places["home"])
    files = tuple(_read_files(Path(places["work"])))
    kept = tuple(_read_kept(Path(places["home"]), Path(places["work"])))
    return Run(tuple(codes), output, tuple(upstream.recording), files, kept)


@contextlib.contextmanager
def _prepare(origin: str, words: tuple[str, ...], environment: Mapping[str, str], work: Path) -> Iterator[ClientStart]:
    """A command and its environment as `palimpsest run` starts it with a proxy at this address, if there is one.

    What each client needs for that stands in the product's table only. What sets a client up is started as it is.
    """
    start, folder = ClientStart(words, environment, {}), work.with_name("start")
    folder.mkdir()
    try:
        if origin:
            plan = plan_client(words, environment, read_client_files(words, environment, work))
            start = start_client(plan, origin, folder=str(folder))
    except UnknownUpstream:
        pass
    with furnish(start, folder):
        yield start
    shutil.rmtree(folder)


def _run(
    words: Sequence[str], environment: Mapping[str, str], folder: str, seconds: float, given: str = ""
) -> tuple[int, bytes]:
    """Exit code and standard output of a program; what it says beside that is shown where it fails."""
    # Files and not pipes: a daemon that it leaves may hold them open.
    with tempfile.TemporaryFile() as input_, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as trouble:
        input_.write(given.encode())
        input_.seek(0)
        source = input_ if given else subprocess.DEVNULL
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=source, stdout=output, stderr=trouble)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = _TOOK_TOO_LONG
        for file in (output, trouble):
            file.seek(0)
        return code, output.read() + (trouble.read() if code else b"")


def _wait_for_proxy(data: str) -> None:
    """Wait until the proxy that `palimpsest run` started on a data directory has ended by itself."""
    until = time.monotonic() + _PROXY_SECONDS
    while any(f"--data={data}".encode() in words for words in _list_commands()):
        assert time.monotonic() < until, "the proxy did not end with its client"
        time.sleep(_LOOK_SECONDS)


def _list_commands() -> Iterator[list[bytes]]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_bytes().split(b"\0")


def _end_what_is_left(home: str) -> None:
    """End the daemons that a client left: they are known by their home, which is of this run alone.

    Looked for until none was found some times in a row: one that has just been started shows no environment yet.
    """
    mark, quiet = f"HOME={home}".encode(), 0
    while quiet < _QUIET_LOOKS:
        quiet = 0 if _signal_marked(mark, signal.SIGKILL) else quiet + 1
        time.sleep(_LOOK_SECONDS)


def _signal_marked(mark: bytes, number: signal.Signals) -> int:
    """Send a signal to all processes with this in their environment; how many there were."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        # Others' processes cannot be looked at, and any may end meanwhile.
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), number)
                count += 1
    return count


def _read_files(work: Path) -> Iterator[tuple[str, bytes]]:
    """The files that a client left in its folder, but its own and git's."""
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), path.read_bytes()


def _read_kept(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """All files in the folders of a client but those that it may make again, as the programs that it unpacks."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and _CACHE not in path.relative_to(folder).parts:
                yield path.relative_to(folder.parent).as_posix(), path.read_bytes()
