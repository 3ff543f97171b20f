"""Running commands in this process: on a log that a test makes up, or on one on disk."""

from collections.abc import Sequence
from pathlib import Path

from proxy.assembly import open_log
from proxy.cli.main import run
from proxy.cli.services import Doors
from proxy.config import Settings
from proxy.engine.reports.savings import SavingsInputs
from proxy.model.card import Card
from proxy.model.errors import NotFound
from tests.support.fake_log import FakeLog


async def tally(model: str, raws: Sequence[bytes]) -> Sequence[int]:
    """A token for every four bytes."""
    return [len(raw) // 4 for raw in raws]


async def measure(settings: Settings) -> SavingsInputs:
    """Nobody states a price."""
    return SavingsInputs(lambda upstream, model: Card(), settings.budget_policy())


def refuse_to_ask(settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
    """No command that only reads asks a server."""
    raise AssertionError(f"{path} was asked for")


def find_link(settings: Settings) -> str:
    """A link that tells what was asked for."""
    server = settings.server_policy()
    return f"http://{server.host}:{server.port}/-/?token={server.admin_token or 'kept'}"


def call(log: FakeLog, *arguments: str) -> int:
    """Run a command on the log; the exit code."""

    def open_log(settings: Settings) -> FakeLog:
        log.opened.append(settings)
        return log

    def serve(settings: Settings) -> int:
        log.opened.append(settings)
        return 0

    try:
        run(Doors(serve, open_log, tally, measure, refuse_to_ask, find_link), arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")


def call_without_log(*arguments: str) -> int:
    """Run a command where there is no log to open."""

    def open_log(settings: Settings) -> FakeLog:
        raise NotFound("there is no log; choose --data")

    try:
        run(Doors(lambda settings: 3, open_log, tally, measure, refuse_to_ask, find_link), arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")


def call_on_disk(data: Path, *arguments: str) -> int:
    """Run a command on the log in a directory; the exit code."""
    try:
        run(
            Doors(lambda settings: 0, open_log, tally, measure, refuse_to_ask, find_link),
            [*arguments, "--data", str(data)],
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")
