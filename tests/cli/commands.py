"""Running commands in this process: on a log that a test makes up, or on one on disk."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from proxy.assembly import open_index, open_log, update_index
from proxy.cli.main import run
from proxy.cli.services import Services
from proxy.config import Settings
from proxy.engine.models import PriceList
from proxy.model.card import Card
from proxy.model.erasing import SessionErasure
from proxy.model.errors import NotFound
from proxy.model.search import IndexHealth
from proxy.read.findings import conclude
from proxy.read.savings import SavingsInputs
from proxy.reading import measure
from proxy.trial.estimate import Trial
from tests.support.fake_log import FakeLog
from tests.support.searching import FakeIndex

EMPTY_TRIAL = Trial((), 0, (), 0, 0, "epochs")


async def tally(model: str, raws: Sequence[bytes]) -> Sequence[int]:
    """A token for every four bytes."""
    return [len(raw) // 4 for raw in raws]


async def load_savings_inputs(settings: Settings) -> SavingsInputs:
    """Nobody states a price."""
    return SavingsInputs(PriceList(lambda upstream, model: Card()), settings.budget)


def refuse_to_ask(settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
    """No command that only reads asks a server."""
    raise AssertionError(f"{path} was asked for")


def refuse_to_follow(settings: Settings, query: Any, last_id: str, take: Any) -> tuple[int, bytes]:
    """Only `tail` follows events."""
    raise AssertionError("events were followed")


async def refuse_to_erase(settings: Settings, session: str, *, is_done: bool) -> SessionErasure:
    """Only `erase` erases."""
    raise AssertionError(f"{session} was erased")


def refuse_to_serve(settings: Settings) -> None:
    """Only `mcp` serves MCP."""
    raise AssertionError("MCP was served")


def find_link(settings: Settings) -> str:
    """A link that tells what was asked for."""
    server = settings.server_policy()
    return f"http://{server.host}:{server.port}/-/?token={server.admin_token or 'kept'}"


def call_with(arguments: Sequence[str], open_log: Callable[[Settings], Any], **changes: Any) -> int:
    """Run a command with these functions in place of the usual fakes; the exit code."""
    functions: dict[str, Any] = {
        "serve": lambda settings, until_unused=False: 0,
        "build_tally": lambda settings: tally,
        "load_savings_inputs": load_savings_inputs,
        "ask_server": refuse_to_ask,
        "follow_events": refuse_to_follow,
        "erase_session": refuse_to_erase,
        "find_link": find_link,
        "find_server": lambda settings: (),
        "open_index": lambda settings: FakeIndex(),
        "update_index": lambda settings, tell, is_rebuilt=False: IndexHealth(),
        "use_data": lambda folder, seconds: nullcontext(),
        "serve_mcp": refuse_to_serve,
        "diagnose": lambda settings, is_live: conclude("1", ()),
        "run_demo": lambda **options: 0,
        "run_trial": lambda settings, paths, limit, keep, tell: EMPTY_TRIAL,
    }
    try:
        run(Services(open_log=open_log, **functions | changes), arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")


def call(log: FakeLog, *arguments: str) -> int:
    """Run a command on the log; the exit code. The log notes the settings that it, or the server, was opened with."""

    def open_log(settings: Settings) -> FakeLog:
        log.opened.append(settings)
        return log

    def serve(settings: Settings, *, until_unused: bool = False) -> int:
        log.opened.append(settings)
        return 0

    return call_with(arguments, open_log, serve=serve)


def call_without_log(*arguments: str) -> int:
    """Run a command where there is no log to open."""

    def open_log(settings: Settings) -> FakeLog:
        raise NotFound("there is no log; choose --data")

    return call_with(arguments, open_log, serve=lambda settings, until_unused=False: 3)


def call_on_disk(data: Path, *arguments: str) -> int:
    """Run a command on the log in a directory; the exit code."""
    index = {"open_index": open_index, "update_index": update_index}
    return call_with([*arguments, "--data", str(data)], open_log, load_savings_inputs=measure, **index)
