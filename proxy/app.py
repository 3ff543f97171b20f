"""The server's start: logging, wiring, and the banner that it prints. `proxy/shutdown` describes how it stops."""

import asyncio
import functools
import logging
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import uvicorn
import uvloop
from msgspec.structs import asdict
from starlette.types import ASGIApp

from proxy import __version__
from proxy.assembly import Engine, build_engine, open_index, open_log
from proxy.config import ConfigError, Settings
from proxy.config.errors import Problem
from proxy.context.budget import AUTO_CEILING, make_budget
from proxy.doctor.surroundings import examine_surroundings, list_upstreams
from proxy.engine.lineage.misplaced_keys import MisplacedKeys
from proxy.engine.mapping.running import OperatorEngine
from proxy.engine.recall.recall import Recall
from proxy.engine.runtime import SystemClock
from proxy.heap import HeapTrimmer, find_heap, tune_collector
from proxy.model.errors import ProxyError, StoreUnavailable, tell_install
from proxy.model.events import SessionsErased
from proxy.read.findings import Diagnosis, conclude, judge_misplaced
from proxy.read.savings import SavingsInputs
from proxy.running import find_admin_token, note_address
from proxy.server.access import AccessRules
from proxy.server.api.context import ContextApi
from proxy.server.api.doctor import DoctorApi
from proxy.server.api.erase import EraseApi
from proxy.server.api.events import EventsApi
from proxy.server.api.maps import MapsApi
from proxy.server.api.memory import MemoryApi
from proxy.server.api.messages import MessagesApi
from proxy.server.api.search import SearchApi
from proxy.server.api.sessions import SessionsApi
from proxy.server.api.turns import TurnsApi
from proxy.server.errors import Refused
from proxy.server.health import Health, UpstreamCircuits
from proxy.server.http11 import RESPONSE, Http11Protocol, close_idle
from proxy.server.mcp.endpoint import McpEndpoint, load_sdk
from proxy.server.mcp.tools import McpTools
from proxy.server.policy import ServerPolicy
from proxy.server.routes import build_routes
from proxy.shutdown import DrainingServer, call_when_unused, cancel_start_on_sigterm
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.log_lines import configure_logging
from proxy.telemetry.metrics import Metrics, measure_disk
from proxy.upstream.origin import leads_back, name_address
from proxy.upstream.policy import UpstreamPolicy
from proxy.upstream.tokenizer import has_encoder
from proxy.wire import FORMATS
from proxy.worker.outlines import has_grammars

if TYPE_CHECKING:
    from proxy.telemetry.tracing import Tracing

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_UVICORN_SECONDS = 3  # uvicorn's own limit is this much later than ours, so that it is never reached

_log = logging.getLogger("palimpsest")


class CannotListen(ProxyError):
    """The address is in use, or is not an address of this machine."""


Companion = Callable[[str, Callable[[], object]], object]
"""What runs beside a server, in a thread: it is given the server's address, and a function that stops the server."""


def serve(settings: Settings, *, until_unused: bool = False, companion: Companion | None = None) -> int:
    """Run the server until a signal stops it, or with `until_unused` until no `palimpsest run` needs it.

    With a companion it says nothing of itself at the start. Return 0, or 1 if it could not start or has lost records.
    """
    log = settings.log
    configure_logging(log if companion is None else replace(log, level="warning"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, until_unused=until_unused, companion=companion))
    except (ProxyError, ConfigError) as error:
        _log.error("%s", error)
        return 1
    except asyncio.CancelledError:
        _log.info("stopped before the server had started")
    return 0


def serve_mcp(settings: Settings) -> None:
    """Serve MCP on standard input and output, over the log and its index, until the input ends.

    Raises ConfigError if the extra is not installed, and what `open_log` and the methods of the log raise.
    """
    try:
        sdk = load_sdk()
    except Refused as error:
        raise ConfigError([Problem("mcp", str(error))]) from error

    async def serve() -> None:
        log, clock, policy = open_log(settings), SystemClock(), settings.recall
        index = open_index(settings)
        try:
            await log.list_sessions(1)  # says at once if there is no log
            await sdk.serve_stdio(McpTools(log, Recall(log, index, clock, policy), clock, policy))
        finally:
            await index.close()
            await log.close()

    asyncio.run(serve())


async def _run(settings: Settings, *, until_unused: bool, companion: Companion | None) -> None:
    cancel_start_on_sigterm()
    policy = replace(settings.server_policy(), admin_token=find_admin_token(settings))
    listener = _listen(policy)
    with listener:
        _check_address(settings, *listener.getsockname()[:2])
        tracing = _open_tracing(settings)
        engine = await build_engine(settings, trace=tracing.add_headers if tracing is not None else None)
        seconds_left = math.inf
        try:
            policy = replace(policy, hop_id=engine.network.hop_id)
            app, health = build_app(engine, settings, policy)
            access = _log_access(app, engine, settings)
            if tracing is not None:
                tracing.subscribe(engine.bus)
            port = listener.getsockname()[1]
            if companion is None:
                _print_banner(settings, policy, port)
            trimmer = HeapTrimmer(engine.tasks.running, find_heap())
            trimmer.start(asyncio.get_running_loop())
            tune_collector()
            engine.prepare()
            engine.tasks.spawn(health.start(engine.warm()))
            retaining = asyncio.get_running_loop().create_task(engine.retention.run())  # a shutdown ends it at once
            served = configure(access or app, policy, engine)
            server = DrainingServer(served, health, engine.tasks, policy.drain_seconds)
            server.ended_with_drain.append(engine.events.close)
            engine.network.descriptors.add_releaser(lambda: close_idle(server.server_state.connections))
            stop = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, server.stop)
            if until_unused:
                call_when_unused(settings.data, stop)
            with note_address(settings, port):
                if companion is not None:
                    given = name_address(policy.host, port), stop
                    threading.Thread(target=companion, args=given, name="companion", daemon=True).start()
                await server.serve([listener])
            seconds_left = server.seconds_left
            trimmer.stop()
            retaining.cancel()
            await asyncio.wait((retaining,))
            if access is not None:
                access.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)
        finally:
            await engine.close(seconds_left)
        if lost := engine.archive.health.lost_at_stop:
            raise StoreUnavailable(
                f"{lost} records were lost, because the log could not be written; see the errors above"
            )


def _log_access(app: ASGIApp, engine: Engine, settings: Settings) -> AccessLog | None:
    """Return the application with a line for each request, or None if none is wanted: then it costs nothing."""
    if not settings.log.access:
        return None
    access = AccessLog(app, lambda scope: scope["extensions"][RESPONSE].status)
    access.subscribe(engine.bus)
    return access


def _open_tracing(settings: Settings) -> "Tracing | None":
    """Return what makes a span for each call if the settings name a collector. Raises ConfigError without the extra."""
    policy = settings.telemetry
    if not policy.endpoint:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        what = f"needs the extra telemetry: {tell_install('telemetry')}"
        raise ConfigError([Problem("telemetry.endpoint", what)])
    from proxy.telemetry.tracing import Tracing  # noqa: PLC0415 - its library takes 0.1 s, and few need it

    servers = {upstream.name: upstream.base_url for upstream in settings.upstream_policies()}
    return Tracing(policy, servers)


def build_app(engine: Engine, settings: Settings, policy: ServerPolicy) -> tuple[ASGIApp, Health]:
    """Return the ASGI application over an engine, and its health."""
    circuits = UpstreamCircuits((upstream.name for upstream in engine.network.upstreams), engine.bus)
    prices = engine.models.prices
    metrics = Metrics(
        lambda: engine.archive.health,
        lambda: len(engine.tasks),
        lambda: engine.network.descriptors.shortages,
        lambda: engine.index.health,
        disk=functools.partial(measure_disk, settings.store_policy().path, settings.store_policy().max_bytes),
        circuits=lambda: circuits.states,
    )
    metrics.subscribe(engine.bus)
    refuses = settings.store.on_failure == "refuse"
    health = Health(
        lambda: engine.relay.problem,
        metrics.render,
        refuses=refuses,
        upstreams=circuits.describe,
        index=lambda: asdict(engine.index.health),
    )
    contexts = ContextApi(
        engine.archive, engine.context.admin, engine.context.memory.manual, engine.models.counter.count_messages, prices
    )
    inputs = SavingsInputs(prices, settings.budget)
    erasing, turns = EraseApi(engine.erasing), TurnsApi(engine.conversations.recorder)
    sessions = SessionsApi(engine.archive, inputs, erasing, turns, settings.doom_loop.threshold)
    engine.bus.subscribe(SessionsErased, sessions.forget)
    find_tenant = functools.partial(engine.tenants.find_reader, is_open=policy.has_own_key)
    tools = McpTools(engine.archive, engine.recall, SystemClock(), settings.recall)
    app = build_routes(
        policy,
        engine.exchanges,
        health=health,
        facts=_describe_settings(settings),
        find_log_health=lambda: engine.archive.health,
        sessions=sessions,
        contexts=contexts,
        searches=SearchApi(engine.archive, engine.index, SystemClock().now_ms, engine.worker.rebuild_index),
        messages=MessagesApi(engine.archive),
        doctor=DoctorApi(functools.partial(_diagnose, settings, inputs, engine.exchanges.calls.misplaced)),
        memory=MemoryApi(engine.context.memory.memory, engine.context.memory, settings.snapshot, inputs),
        events=EventsApi(engine.archive, engine.events),
        maps=MapsApi(OperatorEngine(engine.conversations, settings.operators, engine.sandbox)),
        find_tenant=find_tenant,
        mcp=McpEndpoint(tools, AccessRules(policy), find_tenant, policy),
    )
    return app, health


async def _diagnose(settings: Settings, inputs: SavingsInputs, misplaced: MisplacedKeys) -> Diagnosis:
    found = await examine_surroundings(settings, inputs, is_quick=True)
    found += [finding for each in sorted(misplaced.found) if (finding := judge_misplaced(each)) not in found]
    return conclude(__version__, found, list_upstreams(settings))


def configure(app: ASGIApp, policy: ServerPolicy, engine: Engine) -> uvicorn.Config:
    """Return how the application is served."""
    return uvicorn.Config(
        app,
        http=functools.partial(Http11Protocol, policy, engine.network.descriptors),  # type: ignore[arg-type]
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(policy.drain_seconds) + _UVICORN_SECONDS,
    )


def _listen(policy: ServerPolicy) -> socket.socket:
    family = socket.AF_INET6 if ":" in policy.host else socket.AF_INET
    try:
        return socket.create_server((policy.host, policy.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        address = f"{policy.host}:{policy.port}"
        raise CannotListen(f"cannot listen on {address}: {error.strerror}; choose --host or --port") from error


def _check_address(settings: Settings, address: str, port: int) -> None:
    """Raise ConfigError if listening here would expose a key, or if an upstream leads back to this server."""
    settings.check_network(address)
    what = "is where this server itself listens; name the provider's address, or choose another --port"
    problems = [
        Problem(f"upstreams[{i}].base_url", what)
        for i, policy in enumerate(settings.upstream_policies())
        if policy.base_url and leads_back(policy.base_url, address, port)
    ]
    if problems:
        raise ConfigError(problems)


def _describe_settings(settings: Settings) -> tuple[tuple[str, str], ...]:
    store = settings.store_policy()
    return (
        ("version", __version__),
        ("mode", settings.mode),
        ("ceiling", _describe_ceiling(settings.budget.ceiling_tokens)),
        *_describe_shortening(settings),
        *_describe_missing(settings),
        *(("upstream", _describe_upstream(policy, settings)) for policy in settings.upstream_policies()),
        ("log", f"{store.path} (durability: {store.durability})"),
    )


def _describe_upstream(policy: UpstreamPolicy, settings: Settings) -> str:
    """Return an upstream's name and address, that of its proxy without user and password, and the marks of its window.

    The marks are told where the settings state the window of its models.
    """
    proxy = urlsplit(policy.proxy).netloc.rpartition("@")[2]
    route = f" (through the proxy {proxy})" if proxy else ""
    place = " ".join(filter(None, (policy.kind if policy.kind == "litellm" else "", policy.base_url)))
    stated = settings.stated_windows().get(policy.name)
    if stated is None or settings.mode != "manage":
        return f"{policy.name}: {place}{route}"
    budget = make_budget(stated.window, None, None, settings.budget)
    marks = f"shortened from {budget.soft:,} tokens on where it pays, from {budget.high:,} on always"
    return f"{policy.name}: {place}{route}, {marks}"


def _describe_shortening(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield which calls are shortened, from how many tokens on, or that they are only recorded."""
    paths = ", ".join(form.path_ending for form in FORMATS.values())
    if settings.mode == "manage":
        budget = make_budget(None, None, None, settings.budget)
        marks = f"from {budget.soft:,} tokens on where it pays, from {budget.high:,} on always"
        yield "shortened", f"{paths}, {marks} (fewer for models with a small window)"
    elif settings.mode == "observe":
        yield "recorded", f"{paths}: kept in the log, not shortened"


def _describe_missing(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what works differently because an optional package is not installed."""
    if settings.mode == "manage" and settings.files.outline and not has_grammars():
        yield "outlines", "of Python, JSON and the like; those of other source code need the extra outlines (README.md)"
    if settings.mode != "bypass" and not settings.budget.estimator and not has_encoder():
        yield "tokens", "estimated, for this machine has no splintr"


def _describe_ceiling(tokens: int | None) -> str:
    if tokens is not None:
        return f"{tokens:,} tokens"
    return f"auto = {AUTO_CEILING:,} tokens, or fewer where a model's long-context prices begin earlier"


def _print_banner(settings: Settings, policy: ServerPolicy, port: int) -> None:
    host = f"[{policy.host}]" if ":" in policy.host else policy.host
    address = f"http://{host}:{port}"
    # Only a terminal is shown the token: anything else (a file, a container's log, a journal) is stored. Both streams
    # have to be one: whoever keeps standard output will often keep standard error, too.
    is_seen = sys.stderr.isatty() and sys.stdout.isatty()
    page = f"{address}/-/?token={quote(policy.admin_token, safe='')}" if is_seen else f"{address}/-/"
    facts = [
        *_describe_settings(settings),
        ("base URL", f"{address}/v1"),
        ("page", page if is_seen else f"{page} (`palimpsest open --print` writes the link with the token)"),
    ]
    if settings.log.format == "json":
        told = "; ".join(f"{label}: {text}" for label, text in facts if label != "version")
        _log.info("started. %s", told, extra={"version": __version__})
        return
    sys.stderr.write("".join(f"{label:>10}  {text}\n" for label, text in facts))
    sys.stderr.flush()
