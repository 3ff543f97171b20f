"""`palimpsest demo`: the real proxy between an agent and an upstream of ours, and what it did with the session.

The proxy is the one of `palimpsest serve`, with default settings and a log of its own. Agent and upstream are threads
of this process on the loopback. Figures are measured where the upstream is, once for what arrived there, and once for
the requests that the agent made, as if they had arrived.
"""

import asyncio
import json
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import httpx

from proxy.app import serve
from proxy.assembly import measure, open_log
from proxy.config import Settings, make_settings
from proxy.context.pricing import format_money
from proxy.demo.story import list_turns, make_tools, write_system
from proxy.demo.upstream import MODEL, DemoUpstream, Meter
from proxy.demo.workspace import Workspace
from proxy.lab.session import Message, ScriptedAgent
from proxy.lab.upstream import ScriptedUpstream, serve_upstream
from proxy.model.epoch import Epoch, Replaced, Summary
from proxy.model.errors import Conflict, ProxyError
from proxy.model.exchange import Usage
from proxy.read.cache import CacheReport, load_cache
from proxy.read.savings import SavingsInputs
from proxy.running import ask_server, find_link
from proxy.upstream.tokenizer import CountingTokenizer
from proxy.wire import OWN_FORMAT

NAME = "demo"
_SECONDS = httpx.Timeout(120.0)
_END_SECONDS = 30.0
_LINE_EACH = 25
_TRACKER_FROM = 88  # the step from which the agent has one tool more
_HEADERS = {
    "authorization": "Bearer sk-demo-no-key-is-needed",
    "content-type": "application/json",
    "user-agent": "demo-agent/1.0",
    "x-palimpsest-session": NAME,
}
_RULES = (
    "migrations/, those files were released",
    "use Decimal for money",
    "with `make test`",
    "rename public functions",
)


def run_demo(*, steps: int, port: int | None, data: Path | None, is_served: bool, output: TextIO = sys.stdout) -> int:
    """Run the demonstration, and then serve its page unless `is_served` is false. Return the exit code.

    Its log is in `data`, which must have none yet, else in a directory that is deleted at the end. Raises Conflict.
    """
    with ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-demo-")))
        if (folder / "log.db").exists():
            raise Conflict(f"{folder} has a log already; --data names a directory for the log of the demo alone")
        tokenizer = CountingTokenizer()
        upstream = DemoUpstream(Meter(cache(lambda text: tokenizer.count(text, "o200k_base")[0])))
        base_url = stack.enter_context(serve_upstream(ScriptedUpstream(NAME, upstream.answer, MODEL)))
        provider = {"name": NAME, "base_url": base_url, "cache": "prefix"}
        settings = make_settings({"data": folder, "server.port": port or 0, "upstreams": [provider]})
        demo = _Demo(settings, upstream, steps=steps, screen=_Screen(output), is_served=is_served)
        code = serve(settings, companion=demo.play)
        demo.ended.wait(_END_SECONDS)
        return code or demo.code


class _Screen:
    """Writes the progress: on a terminal one line that is written over, elsewhere a line from time to time."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._is_terminal = output.isatty()

    def tell(self, text: str = "") -> None:
        """Write a line that stays."""
        self._output.write(f"\r\x1b[K{text}\n" if self._is_terminal else f"{text}\n")
        self._output.flush()

    def tell_progress(self, text: str, *, is_due: bool) -> None:
        """Write how far it is. Where lines stay, only if it is due."""
        if self._is_terminal:
            self._output.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
            self._output.flush()
        elif is_due:
            self.tell(text)


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a meter counted, and its price."""

    input: int
    cached: int
    money: float


class _Demo:
    """The agent, and what is told of its session."""

    def __init__(
        self, settings: Settings, upstream: DemoUpstream, *, steps: int, screen: _Screen, is_served: bool
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._unmanaged = Meter(upstream.meter.count)
        self._steps = steps
        self._screen = screen
        self._is_served = is_served
        workspace = Workspace()
        self._agent = ScriptedAgent(OWN_FORMAT, MODEL, workspace.run, write_system(workspace.files))
        self._session = ""
        self._calls = 0
        self.code = 1
        self.ended = threading.Event()

    def play(self, address: str, stop: Any) -> None:
        """Run the session, tell what came of it, and stop the server if it is not to go on."""
        try:
            inputs = asyncio.run(measure(self._settings))
            self._screen.tell(_BEGINNING.format(address=address, data=self._settings.data, steps=self._steps))
            with httpx.Client(base_url=address, headers=_HEADERS, timeout=_SECONDS, trust_env=False) as client:
                self._work(client, inputs)
            self._conclude(inputs)
            self.code = 0
        except httpx.TransportError:
            self._screen.tell("The demo was stopped.")
        except (ProxyError, httpx.HTTPError) as error:
            self._screen.tell(f"The demo ended: {error}")
        finally:
            if self.code or not self._is_served:
                stop()
            self.ended.set()

    def _work(self, client: httpx.Client, inputs: SavingsInputs) -> None:
        """Be the agent: ask, run the tool that is called, ask again."""
        for turn in list_turns():
            self._agent.ask(turn.asked)
            for _ in turn.steps:
                if self._calls == self._steps:
                    return
                self._calls += 1
                self._agent.take(self._ask(client, inputs))

    def _ask(self, client: httpx.Client, inputs: SavingsInputs) -> Message:
        body = self._agent.write(make_tools(has_tracker=self._calls >= _TRACKER_FROM))
        response = client.post(f"/v1{OWN_FORMAT.path_ending}", content=body)
        response.raise_for_status()
        message: Message = response.json()["choices"][0]["message"]
        self._unmanaged.add(json.loads(body), json.dumps(message))
        self._session = response.headers["x-palimpsest-session"]
        if notice := response.headers.get("x-palimpsest-notice"):
            before, _, after = notice.removeprefix("compacted ").partition("->")
            self._screen.tell(f"  call {self._calls}: an epoch opened, {int(before):,} → {int(after):,} tokens")
        client_tokens, sent = self._unmanaged.usages[-1].input or 0, self._upstream.newest.input or 0
        spent, alone = self._price(self._upstream.meter, inputs), self._price(self._unmanaged, inputs)
        self._screen.tell_progress(
            f"  call {self._calls:>3}/{self._steps}  client {client_tokens:>7,} → upstream {sent:>7,} tokens"
            f"  {format_money(spent.money)} instead of {format_money(alone.money)}",
            is_due=self._calls % _LINE_EACH == 0,
        )
        return message

    def _price(self, meter: Meter, inputs: SavingsInputs) -> _Bill:
        usages: Sequence[Usage] = tuple(meter.usages)
        money = sum(inputs.prices.price(NAME, MODEL, usage).money or 0.0 for usage in usages)
        return _Bill(sum(usage.input or 0 for usage in usages), sum(usage.cached or 0 for usage in usages), money)

    def _conclude(self, inputs: SavingsInputs) -> None:
        # the server first writes what is recorded so far
        ask_server(self._settings, f"/sessions/{self._session}", method="GET")
        epochs, summaries, cache = asyncio.run(self._read_log(inputs))
        before, after = self._price(self._unmanaged, inputs), self._price(self._upstream.meter, inputs)
        tell = self._screen.tell
        tell()
        tell(f"{'What the upstream billed':<28}{'sent as it was':>17}{'by palimpsest':>16}{'difference':>13}")
        tell(_format_row("tokens of input", before.input, after.input))
        tell(_format_row("  of these not cached", before.input - before.cached, after.input - after.cached))
        tell(_format_row(f"money ({MODEL}, US dollars)", before.money, after.money))
        tell()
        tell("What happened in between")
        for line in self._list_events(epochs, summaries, cache):
            tell(f"  - {line}")
        tell()
        for line in self._list_next():
            tell(line)

    async def _read_log(self, inputs: SavingsInputs) -> tuple[Sequence[Epoch], Sequence[Summary], CacheReport]:
        log = open_log(self._settings)
        try:
            epochs, summaries = await log.list_epochs(self._session), await log.list_summaries(self._session)
            loaded = [await log.load_epoch(self._session, n) for n in range(1, len(epochs) + 1)]
            return loaded, summaries, await load_cache(log, self._session, inputs)
        finally:
            await log.close()

    def _list_events(self, epochs: Sequence[Epoch], summaries: Sequence[Summary], cache: CacheReport) -> list[str]:
        """Return what happened, a sentence each; what did not happen is left out."""
        lines = []
        if epochs:
            replaced = sum(isinstance(edit, Replaced) for edit in epochs[-1].list_edits())
            lines.append(
                f"{_count(len(epochs), 'epoch')} opened; {self._upstream.extended} of {self._calls} requests began with"
                " the whole history of the one before, byte for byte"
            )
            lines.append(
                f"the newest epoch has a ledger of the steps, {_count(replaced, 'tombstone')}, and"
                f" {_count(len(epochs[-1].originals), 'reference')}: each leads to its original"
            )
            kept = sum(rule in self._upstream.newest_text for rule in _RULES)
            lines.append(f"{kept} of the user's {len(_RULES)} rules were in the last request, word for word")
        else:
            lines.append("no epoch: the session stayed short, and every request went on as it came")
        if summaries:
            lines.append(
                f"the model wrote {_count(len(summaries), 'summary', 'summaries')}; the bill has what they cost"
            )
        if recalls := self._upstream.recalls:
            times = "once" if recalls == 1 else f"{recalls} times"
            lines.append(f"the model recalled {times} what had been replaced; the agent saw one answer as always")
        for cause, total in cache.totals.items():
            price = "" if total.money is None else f", which cost {format_money(total.money)}"
            why = _CAUSES.get(cause, cause)
            lines.append(f"{_count(total.calls, 'cache miss', 'cache misses')}: {why} ({total.missed:,} tokens{price})")
        return lines

    def _list_next(self) -> list[str]:
        options = f"--data {self._settings.data}"
        program = name_program()
        commands = [f"{program} {words.format(session=self._session[:12])} {options}" for words in _COMMANDS]
        if not self._is_served:
            return [f"Look closer with `{program} demo` without --no-serve, or keep its log by --data DIR."]
        link = (
            find_link(self._settings) if sys.stdout.isatty() else f"`{program} open --print {options}` writes its link"
        )
        return [
            f"The page: {link}",
            "In another terminal:",
            *(f"  {each}" for each in commands),
            "Ctrl-C ends the demo.",
        ]


def name_program() -> str:
    """Return what a shell in this directory starts us by: the command's name if it is on PATH, else where it is."""
    script, found = Path(sys.executable).with_name("palimpsest"), shutil.which("palimpsest")
    if found is not None and (not script.exists() or script.samefile(found)):
        return "palimpsest"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m proxy"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


_BEGINNING = (
    "A coding agent looks for a bug, {steps} calls of a scripted model. No key is used, and no network.\n"
    "The proxy is at {address}, its log in {data}."
)
_CAUSES = {"epoch": "an epoch opened", "tools": "the client changed its tools, when the user connected the tracker"}
_COMMANDS = (
    *("sessions", "show {session}", "savings", "epochs {session}", "cache {session}", "summaries {session}"),
    "revert {session} --dry-run",
)


def _format_row(label: str, before: float, after: float) -> str:
    share = f"{100 * (after - before) / before:+.0f} %".replace("-", "\u2212") if before else "\u2013"
    whole = isinstance(before, int)
    shown = [f"{value:,}" if whole else format_money(value) for value in (before, after)]
    return f"{label:<28}{shown[0]:>17}{shown[1]:>16}{share:>13}"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or f'{one}s'}"
