"""The server as a whole: engine, routes, uvicorn, signals.

Rule: it stops when told to. The first signal drains for at most `server.drain_seconds`, then what is left is recorded
as aborted; a second one ends at once. Either way the exit code is 0 and the log is closed properly.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import uvicorn
import uvloop
from starlette.types import ASGIApp

from proxy import __version__
from proxy.assembly import Engine, build_engine, find_admin_token, note_address
from proxy.config import ConfigError, Settings
from proxy.context.budget import AUTO_CEILING, make_budget
from proxy.engine.managing.steward import MANAGED_WIRES
from proxy.engine.reports.savings import Yardstick
from proxy.engine.tasks import TaskRunner
from proxy.engine.writes import Writes
from proxy.heap import HeapTrimmer, find_slack, find_trim
from proxy.model.errors import ProxyError
from proxy.model.events import (
    AuxiliaryEnded,
    CeilingUnreachable,
    EpochOpened,
    ExchangeRecorded,
    Planned,
    ReadingFailed,
    RungFailed,
    SummaryAdded,
    SummaryWasted,
)
from proxy.server.contexts import ContextApi
from proxy.server.health import Health
from proxy.server.inspector import Inspector
from proxy.server.management import ManagementApi
from proxy.server.metrics import Metrics
from proxy.server.policy import ServerPolicy
from proxy.server.protocol import GuardedProtocol
from proxy.server.routes import Endpoints, build_routes

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_CUT_SECONDS = 3
# How the paths of the formats end that are read, for people.
_PATHS = {"chat_completions": "/chat/completions", "responses": "/responses", "anthropic_messages": "/v1/messages"}
_SETTLE_SECONDS = 1.0  # the map of models costs 50 ms of a processor, which would be missed while the server starts
# Nearly all that a call makes is freed by its count. With the collector's usual 700 objects it looks at the calls under
# way again and again: 3 % of a call at 64 at once.
_GC_THRESHOLD = 20_000

_log = logging.getLogger("palimpsest")


class CannotListen(ProxyError):
    """The address is taken, or none of this machine's."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server with our way of stopping: told by the loop, not re-raised at the end."""

    def __init__(self, config: uvicorn.Config, health: Health, tasks: TaskRunner, drain_seconds: float) -> None:
        super().__init__(config)
        self._health = health
        self._tasks = tasks
        self._drain_seconds = drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Part of uvicorn's Server. What is left when the time is up ends our way, before uvicorn would cut it."""
        cutting = asyncio.get_running_loop().call_later(self._drain_seconds, self._tasks.cancel)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Part of uvicorn's Server."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
            self._tasks.cancel()
        self.should_exit = self._health.is_draining = True


def serve(settings: Settings) -> int:
    """Run the server until it is told to stop; the exit code: 0, or 1 if it could not start."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    _log.setLevel(logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except (ProxyError, ConfigError) as error:
        _log.error("%s", error)
        return 1
    return 0


async def _run(settings: Settings) -> None:
    policy = replace(settings.server_policy(), admin_token=find_admin_token(settings))
    listener = _listen(policy)
    with listener:
        engine = await build_engine(settings)
        try:
            app, health = build_app(engine, settings, policy)
            port = listener.getsockname()[1]
            _announce(settings, policy, port)
            trimmer = HeapTrimmer(lambda: not engine.tasks, find_trim(), find_slack())
            trimmer.start(asyncio.get_running_loop())
            gc.set_threshold(_GC_THRESHOLD)
            gc.freeze()  # what the start has made stays: the collector need not look at it again
            opening = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, engine.models.open)
            server = DrainingServer(_configure(app, policy, engine.tasks), health, engine.tasks, policy.drain_seconds)
            with note_address(settings, port):
                await server.serve([listener])
            trimmer.stop()
            opening.cancel()
        finally:
            await engine.close()


def build_app(engine: Engine, settings: Settings, policy: ServerPolicy) -> tuple[ASGIApp, Health]:
    """The ASGI application over an engine, and its health."""
    metrics = Metrics(lambda: engine.archive.health, lambda: len(engine.tasks))
    engine.bus.subscribe(ExchangeRecorded, metrics.count_exchange)
    engine.bus.subscribe(ReadingFailed, metrics.count_unread)
    engine.bus.subscribe(Planned, metrics.count_plan)
    engine.bus.subscribe(EpochOpened, metrics.count_epoch)
    engine.bus.subscribe(RungFailed, metrics.count_failed_rung)
    engine.bus.subscribe(CeilingUnreachable, metrics.count_unreachable)
    engine.bus.subscribe(AuxiliaryEnded, metrics.count_auxiliary)
    engine.bus.subscribe(SummaryAdded, metrics.count_summary)
    engine.bus.subscribe(SummaryWasted, metrics.count_waste)
    engine.bus.subscribe(ExchangeRecorded, _log_failure)
    health = Health(lambda: engine.relay.problem, metrics, refuses=settings.store.on_failure == "refuse")
    inspector = Inspector(_list_facts(settings))
    has_own_key = any(upstream.api_key for upstream in settings.upstream_policies())
    contexts = ContextApi(engine.archive, engine.caretaker, engine.compactor, engine.models.count.tally)
    management = ManagementApi(engine.archive, Yardstick(engine.models.card, settings.budget_policy()))
    endpoints = Endpoints(engine.exchanges, health, inspector, management, contexts)
    return build_routes(endpoints, policy, has_own_key=has_own_key), health


def _configure(app: ASGIApp, policy: ServerPolicy, tasks: TaskRunner) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(GuardedProtocol, policy, Writes(tasks.__len__)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(policy.drain_seconds) + _CUT_SECONDS,
    )


def _listen(policy: ServerPolicy) -> socket.socket:
    family = socket.AF_INET6 if ":" in policy.host else socket.AF_INET
    try:
        return socket.create_server((policy.host, policy.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        address = f"{policy.host}:{policy.port}"
        raise CannotListen(f"cannot listen on {address}: {error.strerror}; choose --host or --port") from error


def _list_facts(settings: Settings) -> tuple[tuple[str, str], ...]:
    store = settings.store_policy()
    return (
        ("version", __version__),
        ("mode", settings.mode),
        ("ceiling", _describe_ceiling(settings.budget.ceiling_tokens)),
        *_describe_shortening(settings),
        *(("upstream", f"{upstream.name}: {upstream.base_url}") for upstream in settings.upstreams),
        ("log", f"{store.path} (durability: {store.durability})"),
    )


def _describe_shortening(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what is shortened of which formats and from where on, and which formats are only recorded."""
    if settings.mode == "manage":
        soft = make_budget(None, None, None, settings.budget_policy()).soft
        paths = ", ".join(path for wire, path in _PATHS.items() if wire in MANAGED_WIRES)
        yield "shortened", f"{paths}, from {soft:,} tokens on (fewer for models with a small window)"
    others = [path for wire, path in _PATHS.items() if settings.mode != "manage" or wire not in MANAGED_WIRES]
    if others and settings.mode != "bypass":
        yield "recorded", f"{', '.join(others)}: kept in the log, not shortened"


def _describe_ceiling(tokens: int | None) -> str:
    return f"auto = {AUTO_CEILING:,} tokens" if tokens is None else f"{tokens:,} tokens"


def _announce(settings: Settings, policy: ServerPolicy, port: int) -> None:
    host = f"[{policy.host}]" if ":" in policy.host else policy.host
    address = f"http://{host}:{port}"
    # What is no terminal is kept by somebody: a file, a container's log, a journal.
    page = f"{address}/-/?token={quote(policy.admin_token, safe='')}" if sys.stderr.isatty() else f"{address}/-/"
    facts = [
        *_list_facts(settings),
        ("base URL", f"{address}/v1"),
        ("page", page if sys.stderr.isatty() else f"{page} (`palimpsest open --print` writes the link with the token)"),
    ]
    sys.stderr.write("".join(f"{label:>10}  {text}\n" for label, text in facts))
    sys.stderr.flush()


def _log_failure(event: ExchangeRecorded) -> None:
    """One line for a call that did not end well; neither bodies nor query values nor credentials are in it."""
    if event.completeness not in ("complete", "aborted"):
        _log.warning(
            "exchange %s (%s): %s, status %d", event.exchange, event.upstream, event.completeness, event.status
        )
