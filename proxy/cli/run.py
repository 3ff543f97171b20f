"""`palimpsest run`: start a client whose calls go through a proxy, and tell at its end what that did.

The proxy is a process of its own, shared by all runs on a data directory, and ends with the last of them
(`proxy/shutdown`). Where it cannot be used, the client is started as it is. A data directory has one set of upstreams:
a client with another upstream than the configured one gets a directory below, so that no key reaches a wrong provider.
"""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated

import typer

from proxy.cli.clients import ClientPlan, ClientStart, list_files, plan_client, replace_own_address, start_client
from proxy.cli.formatting import CAUSES, format_count, make_plain
from proxy.cli.inspection.costs import format_net
from proxy.cli.logs import Log
from proxy.cli.serve import (
    AdminTokenOption,
    CeilingOption,
    DrainOption,
    DurabilityOption,
    IdleTimeoutOption,
    ListenHostOption,
    ModeOption,
    name_upstream,
)
from proxy.cli.services import ConfigOption, DataOption, Invocation, Services
from proxy.config import ConfigError, Settings, load_settings, read_environment
from proxy.context.pricing import Cost
from proxy.engine.ports import LogReader
from proxy.engine.recorded.lookup import list_matching, read_pages
from proxy.model.epoch import Epoch
from proxy.model.errors import ProxyError
from proxy.read.savings import SavingsInputs, add_known, price_call, read_calls, remember_cards

_NOT_FOUND = 127  # as a shell says it
_SIGNALLED = 128
_START_SECONDS, _OTHER_START_SECONDS, _ENDING_SECONDS = 30.0, 2.0, 40.0
_LOOK_SECONDS = 0.03
_NOTICE_SECONDS, _WARNING_SECONDS = 1.0, 15
_SETTLE_SECONDS, _MOST_SETTLES = 0.2, 10
_MOST_SESSIONS = 1000
# Sent by a terminal to all that run in it, so also to the client.
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class CannotUseProxy(ProxyError):
    """No proxy runs that the client could use, and none can be started."""


@dataclass(frozen=True, slots=True)
class Target:
    """The proxy that a client needs: its settings, and the options of a server with these, if one must be started.

    `has_all`: its upstreams are meant for every API, since a person chose them.
    """

    settings: Settings
    options: tuple[str, ...]
    has_all: bool

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The addresses of its upstreams."""
        return tuple(policy.address for policy in self.settings.upstream_policies())


@dataclass(slots=True)
class Totals:
    """What the calls since a time came to."""

    calls: int = 0
    open: int = 0
    input: int = 0
    output: int = 0
    epochs: int = 0
    saved: Cost | None = None
    auxiliary: Cost = field(default_factory=Cost)


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="CLIENT ARGS", help="The client's command.")],
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="Base URL of the upstream. [default: what the client would call]")
    ] = None,
    host: ListenHostOption = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [default: any free one]")] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    ceiling: CeilingOption = None,
    mode: ModeOption = None,
    admin_token: AdminTokenOption = None,
    idle_timeout: IdleTimeoutOption = None,
    drain: DrainOption = None,
    durability: DurabilityOption = None,
) -> None:
    """Start a client whose calls go through a proxy."""
    environment = read_environment()
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        _say(f"{command[0]} is not installed, or not on your PATH")
        raise typer.Exit(_NOT_FOUND)
    options = {
        "--upstream": upstream,
        "--host": host,
        "--data": data,
        "--config": config,
        "--ceiling": ceiling,
        "--mode": mode,
        "--admin-token": admin_token,
        "--idle-timeout": idle_timeout,
        "--drain": drain,
        "--durability": durability,
    }
    flags = {
        "upstreams": None if upstream is None else name_upstream(upstream),
        "server.host": host,
        "server.port": port or 0,
        "server.admin_token": admin_token,
        "server.drain_seconds": drain,
        "store.durability": durability,
        "budget.ceiling_tokens": ceiling,
        "data": data,
        "mode": mode,
    }
    load_settings(config, flags)  # what is wrong with them is an error of the command, and no reason to go without
    chooser = _Chooser(config, flags, {name: str(value) for name, value in options.items() if value is not None})
    raise typer.Exit(_Run(context.obj, chooser, environment).run(program, command))


@dataclass(frozen=True, slots=True)
class _Chooser:
    """Chooses the proxy for a client by the options of the command: flags as settings, and as written."""

    config: Path | None
    flags: Mapping[str, object]
    options: Mapping[str, str]

    def list_targets(self, plan: ClientPlan, server: Sequence[str]) -> Iterator[Target]:
        """Yield the proxies that will do for a client. Only the last may be started; the others if they run.

        `server` is the one on the configured data directory: its address and those of its upstreams, if there is one.
        """
        configured = self.load()
        is_chosen = "--upstream" in self.options
        address = plan.upstream if not is_chosen else ""
        if not address and "upstreams" not in configured.model_fields_set:
            address = plan.provider.default_address
        known = [each.address for each in configured.upstream_policies()]
        if not address or known == [address.rstrip("/")]:
            yield self._make(configured, {}, has_all=is_chosen or "upstreams" in configured.model_fields_set)
            return
        changes = {"upstreams": name_upstream(address)}
        there = self.load(changes)
        yield self._make(there, {"--upstream": address}, has_all=False)
        if "--data" not in self.options:
            root = _find_root(there.data, server)
            if root != there.data:
                yield self._make(self.load(changes | {"data": root}), {"--upstream": address}, has_all=False)
            place = root / _name_place(there.upstreams[0].base_url)
            yield self._make(self.load(changes | {"data": place}), {"--upstream": address}, has_all=False)

    def load(self, changes: Mapping[str, object] = MappingProxyType({})) -> Settings:
        """Return the settings of the command, with changes. Raises ConfigError."""
        return load_settings(self.config, {**self.flags, **changes})

    @property
    def has_server_options(self) -> bool:
        """Whether an option was given that only matters to a proxy that is started."""
        return bool(self.options.keys() - {"--upstream", "--data", "--config", "--admin-token"})

    def _make(self, settings: Settings, options: Mapping[str, str], *, has_all: bool) -> Target:
        port = settings.server.port
        given = {**self.options, **options, "--data": str(settings.data.absolute()), "--port": str(port)}
        # From here on the port is the one that the server has noted.
        server = replace(settings.server, port=0)
        words = tuple(f"{name}={value}" for name, value in given.items())
        return Target(settings.model_copy(update={"server": server}), words, has_all)


def _find_root(data: Path, server: Sequence[str]) -> Path:
    """Return the directory below which a client with another upstream has its log.

    Within a `run`, the configured directory may itself be one for an upstream: then it is the one above.
    """
    return data.parent if len(server) == 2 and data.name == _name_place(server[1]) else data


def _name_place(address: str) -> str:
    """Return the name of the directory for an upstream: its host, with port and path where these are not usual."""
    text = re.sub(r"^https?://|/v1/?$", "", address)
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a client."""

    services: Services
    chooser: _Chooser
    environment: Mapping[str, str]

    def run(self, program: str, command: Sequence[str]) -> int:
        """Run the client to its end, through a proxy if there can be one. Return the exit code."""
        with contextlib.ExitStack() as stack:
            try:
                server = self.services.find_server(self.chooser.load())
                plan = replace_own_address(self._plan(command), server)
                target, address = self._join(self.chooser.list_targets(plan, server), stack)
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-"))
                start = start_client(plan, address, folder=folder, has_all=target.has_all)
                stack.enter_context(furnish(start, Path(folder)))
            except (ProxyError, ConfigError, OSError) as error:
                _say(f"{command[0]} runs without the proxy, directly: {' '.join(str(error).split())}")
                return end_like(run_client(program, command, self.environment))
            data = target.settings.data.absolute()
            where = f"{self._find_page(target, address)}, with its log in {data}"
            _say(f"the proxy for {command[0]} is {where}")
            # What the client starts of ours, such as `palimpsest statusline`, reads this log.
            environment = {**start.environment, "PALIMPSEST_DATA": str(data)}
            since_ms = int(time.time() * 1000)
            is_quiet = plan.client.owns_screen and sys.stdout.isatty()
            notices = Notices(command[0], where)
            with contextlib.nullcontext() if is_quiet else self._tell(notices, target, since_ms):
                code = run_client(program, start.command, environment)
            self._tell_end(target, since_ms)
        return end_like(code)

    def _plan(self, command: Sequence[str]) -> ClientPlan:
        texts = read_client_files(command, self.environment, Path.cwd())
        return plan_client(command, self.environment, texts, is_named="--upstream" in self.chooser.options)

    def _join(self, targets: Iterable[Target], stack: contextlib.ExitStack) -> tuple[Target, str]:
        """Return the proxy that the client is to use, and its address. It stays until the stack is closed."""
        *others, last = targets
        for target in others:
            with contextlib.ExitStack() as using:
                using.enter_context(self.services.use_data(target.settings.data, _ENDING_SECONDS))
                found = self.services.find_server(target.settings)
                if found and found[1:] == target.upstreams:
                    stack.enter_context(using.pop_all())
                    return target, self._share(found)
        stack.enter_context(self.services.use_data(last.settings.data, _ENDING_SECONDS))
        if found := self.services.find_server(last.settings):
            if found[1:] != last.upstreams:
                what = f"the proxy on {last.settings.data} has another upstream: {', '.join(found[1:])}"
                raise CannotUseProxy(f"{what}; choose another directory by --data")
            return last, self._share(found)
        return last, start_server(last, self.environment, lambda: self.services.find_server(last.settings))

    def _share(self, found: Sequence[str]) -> str:
        """Return the address of a server that runs already."""
        if self.chooser.has_server_options:
            _say("a proxy runs already, and keeps the options with which it was started")
        return found[0]

    def _find_page(self, target: Target, address: str) -> str:
        """Return the page's address. Only a terminal is shown the token: all else may be stored."""
        return self.services.find_link(target.settings) if sys.stderr.isatty() else f"{address}/-/"

    @contextlib.contextmanager
    def _tell(self, notices: "Notices", target: Target, since_ms: int) -> Iterator[None]:
        """Tell in the `with` block whether calls come, and of each epoch that is opened."""
        ending, start = threading.Event(), time.monotonic()

        async def query(log: Log, settings: Settings) -> tuple[bool, list[Epoch]]:
            return notices.has_told or await has_call(since_ms, log), await list_epochs(since_ms, log)

        def look() -> None:
            with contextlib.suppress(ProxyError, OSError):
                has_calls, epochs = Invocation(self.services, target.settings.data).read(query)
                for line in notices.tell(has_calls, epochs, time.monotonic() - start):
                    _say(line)

        def watch() -> None:
            while not ending.wait(_NOTICE_SECONDS):
                look()

        watcher = threading.Thread(target=watch, name="notices", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ending.set()
            watcher.join()
            if not notices.has_told:
                look()

    def _tell_end(self, target: Target, since_ms: int) -> None:
        """Tell in a line what the run came to, once its records are complete."""
        try:
            _say(format_totals(self._read_totals(target, since_ms)))
        except (ProxyError, OSError) as error:
            _say(f"what this run came to cannot be read: {error}")

    def _read_totals(self, target: Target, since_ms: int) -> Totals:
        async def query(log: Log, settings: Settings) -> Totals:
            inputs = await self.services.load_savings_inputs(target.settings)
            totals = await sum_up(log, inputs, since_ms)
            for _ in range(_MOST_SETTLES):
                before = totals
                await asyncio.sleep(_SETTLE_SECONDS)
                totals = await sum_up(log, inputs, since_ms)
                if totals == before and not totals.open:
                    break
            return totals

        return Invocation(self.services, target.settings.data).read(query)


@dataclass(slots=True)
class Notices:
    """What is told while a client runs. Only calls that came show that it runs through the proxy."""

    name: str
    where: str
    has_told: bool = False
    has_warned: bool = False
    told: set[str] = field(default_factory=set)

    def tell(self, has_calls: bool, epochs: Iterable[Epoch], seconds: float) -> Iterator[str]:
        """Yield the lines that are new, so many seconds after the client was started."""
        if has_calls and not self.has_told:
            self.has_told = True
            yield f"{self.name} runs through {self.where}"
        if not (has_calls or self.has_warned) and seconds >= _WARNING_SECONDS:
            self.has_warned = True
            yield (
                f"no call of {self.name} has come in {_WARNING_SECONDS} s, or its provider refused all."
                " If it is at work, its calls go elsewhere: docs/clients/ says what it needs"
            )
        for epoch in epochs:
            if epoch.id not in self.told:
                self.told.add(epoch.id)
                yield f"compacted {epoch.tokens_before:,} to {epoch.tokens_after:,} tokens: {CAUSES[epoch.why]}"


def read_client_files(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the texts of the files that say where a client will call, by path, of those that can be read."""
    texts = dict[str, str]()
    for path in list_files(command, environment, folder):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts[str(path)] = path.read_text("utf-8")
    return texts


@contextlib.contextmanager
def furnish(start: ClientStart, folder: Path) -> Iterator[None]:
    """Write the files with which a client is started; at the end what it made beside them goes to its own folder."""
    own = Path(start.mirrored)
    if start.mirrored:
        own.mkdir(parents=True, exist_ok=True)
        for path in own.iterdir():
            if str(folder / path.name) not in start.files:
                (folder / path.name).symlink_to(path.absolute())
    for name, text in start.files.items():
        Path(name).touch(0o600)
        Path(name).write_text(text)
    try:
        yield
    finally:
        for path in folder.iterdir() if start.mirrored else ():
            if not path.is_symlink() and str(path) not in start.files:
                with contextlib.suppress(OSError):
                    shutil.move(path, own / path.name)


async def has_call(since_ms: int, log: LogReader) -> bool:
    """Return whether a client has called since then."""
    for row in await list_matching(log, _MOST_SESSIONS):
        if row.last_ms < since_ms:
            break
        async for page in read_pages(log, row.id):
            if any(call.opened_ms >= since_ms and call.kind != "auxiliary" for call in page):
                return True
    return False


async def list_epochs(since_ms: int, log: LogReader) -> list[Epoch]:
    """Return the epochs that were opened since then, without those that go back."""
    return [
        epoch
        for row in await list_matching(log, _MOST_SESSIONS)
        if row.last_ms >= since_ms
        for epoch in await log.list_epochs(row.id)
        if epoch.opened_ms >= since_ms and not epoch.is_reversion
    ]


async def sum_up(log: LogReader, inputs: SavingsInputs, since_ms: int) -> Totals:
    """Sum up the calls of all clients since then."""
    totals, prices = Totals(epochs=len(await list_epochs(since_ms, log))), remember_cards(inputs).prices
    for session in await list_matching(log, _MOST_SESSIONS):
        if session.last_ms < since_ms:
            break
        async for call in read_calls(log, session.id):
            if call[0].at_ms < since_ms:
                continue
            cost, saved = price_call(call, prices)
            totals.saved = add_known(totals.saved, saved)
            if call[0].kind == "auxiliary":
                totals.auxiliary += cost or Cost()
                continue
            totals.calls += 1
            totals.open += not call[-1].completeness
            for row in call:
                totals.input += row.input or 0
                totals.output += row.output or 0
    return totals


def format_totals(totals: Totals) -> str:
    """Format what a run came to as a line."""
    if not totals.calls:
        return "no call came through the proxy, or its provider refused all; docs/clients/ says what each client needs"
    parts = [
        format_count(totals.calls, "call"),
        f"{totals.input:,} tokens sent, {totals.output:,} received",
        format_count(totals.epochs, "epoch"),
    ]
    if totals.saved is not None:
        net = totals.saved - totals.auxiliary
        parts.append(format_net(net.tokens, net.money))
    return "; ".join(parts)


def start_server(target: Target, environment: Mapping[str, str], find: Callable[[], tuple[str, ...]]) -> str:
    """Start a server, wait until `find` finds it, and return its address. Raises CannotUseProxy.

    It belongs to no terminal, so that no key reaches it. What it logs goes to a file without a name.
    """
    # With -P, a folder `proxy` in the client's directory is not taken for this package.
    command = (sys.executable, "-P", "-m", "proxy", "serve", "--until-unused", *target.options)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if found := find():
                return found[0]
            if process.poll() is not None:  # another run may be starting the server at the same time
                until = min(until, time.monotonic() + _OTHER_START_SECONDS)
            time.sleep(_LOOK_SECONDS)
        process.kill()
        process.wait()
        output.seek(0)
        raise CannotUseProxy(_find_reason(output.read().decode("utf-8", "replace")))


def _find_reason(output: str) -> str:
    """Return why a server did not start: the last line of what it wrote, without the time and the logger."""
    lines = [line for line in output.splitlines() if line.strip()]
    if not lines:
        return f"it did not start in {_START_SECONDS:.0f} s"
    if lines[-1].startswith("{"):  # log.format: json
        with contextlib.suppress(ValueError, LookupError):
            return str(json.loads(lines[-1])["body"])
    return re.sub(r"^(?:[\d-]+ [\d:,]+ \w+ palimpsest[\w.]*|palimpsest:) ?", "", lines[-1])


def run_client(program: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a client in our place: signals to us reach it, once. Return its exit code, negative for a signal.

    In a terminal it runs in our process group, so that job control works, and gets what the terminal sends to the
    group; elsewhere it has a group of its own, so that a signal to ours comes by way of us only.
    """
    is_in_terminal = _has_terminal()
    passed = [signal.SIGTERM] if is_in_terminal else [*_OF_TERMINALS, signal.SIGTERM]
    clients: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if number in passed and clients:
            clients[0].send_signal(number)
        elif number in passed:
            early.append(number)

    # A signal that we ignore, such as SIGHUP under nohup, stays ignored for the client too.
    watched = [n for n in (*_OF_TERMINALS, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in watched}
    try:
        group = None if is_in_terminal else 0
        clients.append(subprocess.Popen(command, executable=program, env=environment, process_group=group))
        for number in early:
            clients[0].send_signal(number)
        return clients[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    try:
        Path("/dev/tty").open("rb").close()
    except OSError:
        return False
    return True


def end_like(code: int) -> int:
    """Return the exit code for a client's. Where SIGINT ended it, it ends us too, so that a shell's loop stops."""
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return code if code >= 0 else _SIGNALLED - code


def _say(text: str) -> None:
    typer.echo(make_plain(f"palimpsest: {text}"), err=True)
