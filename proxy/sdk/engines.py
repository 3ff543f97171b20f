"""The engines of a program: one for each log, shared by all sessions on it, and closed with the last of them.

Only one process writes a log. In one that a proxy, or another program, holds already no engine can be opened.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from proxy.assembly import Engine, build_engine
from proxy.config import ConfigError, Settings, load_settings, make_settings, read_environment
from proxy.config.errors import Problem, describe_error
from proxy.model.errors import StoreUnavailable, tell_install
from proxy.running import find_address
from proxy.sdk.errors import LogHeldError, StoreError
from proxy.upstream.litellm_library import is_installed
from proxy.upstream.policy import UpstreamPolicy

_LOG_FILE = "log.db"
_CLOSE_SECONDS = 10.0
# The variables in which the SDKs of providers look for a key, by host.
_VARIABLES = {
    "api.openai.com": ("OPENAI_API_KEY",),
    "api.anthropic.com": ("ANTHROPIC_API_KEY",),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
    "api.deepseek.com": ("DEEPSEEK_API_KEY",),
    "api.groq.com": ("GROQ_API_KEY",),
    "api.mistral.ai": ("MISTRAL_API_KEY",),
    "api.together.xyz": ("TOGETHER_API_KEY",),
    "api.fireworks.ai": ("FIREWORKS_API_KEY",),
    "api.x.ai": ("XAI_API_KEY",),
    "api.moonshot.ai": ("MOONSHOT_API_KEY",),
    "generativelanguage.googleapis.com": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_LITELLM = "litellm"


class DeferredUpstream(UpstreamPolicy):
    """An upstream whose client is loaded when it is needed first."""

    is_deferred = True


@dataclass(eq=False)
class SharedEngine:
    """An engine, the settings that it was opened with, and how many sessions and operators use it."""

    engine: Engine
    settings: Settings
    given: Settings | None
    loop: asyncio.AbstractEventLoop
    retaining: "asyncio.Task[None]"
    is_usual: bool  # no upstream is configured
    users: int = 0
    is_closed: bool = False
    # How what uses it is closed.
    closers: set[Callable[[], Awaitable[None]]] = field(default_factory=set)

    @property
    def path(self) -> Path:
        """Where its log is."""
        return self.settings.data

    def check_model(self, model: str, upstream_name: str = "") -> None:
        """Raise ConfigError if no upstream takes a model, or if a key for it is missing.

        With the name of an upstream, that of a session, this one is to take it.
        """
        place, upstream = _find_upstream(self.settings, model)
        if upstream_name:
            named = [each for each in enumerate(self.settings.upstreams) if each[1].name == upstream_name]
            if not named:
                raise ConfigError(
                    [Problem("upstreams", f"of this session: its upstream {upstream_name!r} is no longer there")]
                )
            ((place, upstream),) = named
        names = _VARIABLES.get(urlsplit(upstream.base_url).hostname or "", ())
        if upstream.kind == "openai" and names and not upstream.provider().has_own_key and upstream.auth != "none":
            what = f"no key for {upstream.base_url}: set {' or '.join(names)}, or this setting"
            raise ConfigError([Problem(f"upstreams[{place}].api_key", what)])
        if self.is_usual and "/" in model and upstream.kind == "openai":
            what = f"none takes {model!r}; name one, or install what litellm needs for it: {tell_install('providers')}"
            raise ConfigError([Problem("upstreams", what)])


class EngineRegistry:
    """The open engines of this process, by the directory of their log."""

    def __init__(self) -> None:
        self.open: dict[Path, SharedEngine] = {}
        self._closing = set[asyncio.Task[None]]()
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Lock]]()

    async def acquire(self, config: Settings | None, db_path: str | Path | None) -> SharedEngine:
        """Return the engine on a log, which `release` gives back. Raises ConfigError and StoreError."""
        given = config
        if not isinstance(config, Settings | None):
            raise TypeError(f"config is Settings(...), not {config!r:.100}")
        if config is None:
            config = load_settings()
        path = find_folder(config, db_path)
        async with self._lock(path):
            found = self.open.get(path)
            if found is not None:
                _check_shared(found, given)
            else:
                found = self.open[path] = await _open(config.model_copy(update={"data": path}), given)
            found.users += 1
            return found

    async def release(self, shared: SharedEngine) -> None:
        """Give an engine back. The last one who does so closes it."""
        shared.users -= 1
        if shared.users <= 0:
            await self.close(shared)

    async def close(self, shared: SharedEngine) -> None:
        """Close an engine that nobody uses, unless that was done; to the end, even if the caller is cancelled."""
        closing = asyncio.get_running_loop().create_task(self._close(shared))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def finish_closing(self) -> None:
        """Wait for the engines of this event loop whose closing others have begun."""
        loop = asyncio.get_running_loop()
        if closing := [each for each in self._closing if each.get_loop() is loop]:
            await asyncio.wait(closing)

    async def _close(self, shared: SharedEngine) -> None:
        async with self._lock(shared.path):
            if shared.is_closed or shared.users > 0:
                return
            shared.is_closed = True
            del self.open[shared.path]
            shared.retaining.cancel()
            await asyncio.wait((shared.retaining,))
            await shared.engine.close(_CLOSE_SECONDS)

    def _lock(self, path: Path) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), {}).setdefault(path, asyncio.Lock())


ENGINES = EngineRegistry()


async def close_all() -> None:
    """Close all sessions of this event loop, and the engines that they use: then their logs are free.

    Within a call of a session, its engine closes once that call has ended.
    """
    loop = asyncio.get_running_loop()
    for shared in [each for each in ENGINES.open.values() if each.loop is loop]:
        for close in [*shared.closers]:
            await close()
        if not shared.closers:
            shared.users = 0
            await ENGINES.close(shared)
    await ENGINES.finish_closing()


def find_folder(config: Settings, db_path: str | Path | None) -> Path:
    """Return the directory of a log: the settings' own, or the given one, of which `log.db` may be named, too.

    Raises StoreError for another file.
    """
    path = config.data if db_path is None else Path(db_path).expanduser()
    if path.name == _LOG_FILE:
        path = path.parent
    if path.is_file() or (path.suffix == ".db" and not path.is_dir()):
        raise StoreError(f"{path} names a file; db_path is the directory of a log, or the {_LOG_FILE} in it")
    return path.resolve()


async def _open(settings: Settings, given: Settings | None) -> SharedEngine:
    usual = settings.upstreams if "upstreams" not in settings.model_fields_set else ()
    settings = complete_settings(settings)
    is_usual = any(each.base_url == settings.upstreams[0].base_url for each in usual)
    try:
        engine = await build_engine(settings)
    except StoreUnavailable as error:
        if "another process" in str(error):
            raise LogHeldError(_name_holder(settings, str(error))) from error
        raise StoreError(str(error)) from error
    engine.prepare()
    engine.tasks.spawn(engine.warm())
    loop = asyncio.get_running_loop()
    return SharedEngine(engine, settings, given, loop, loop.create_task(engine.retention.run()), is_usual)


def _check_shared(found: SharedEngine, given: Settings | None) -> None:
    if found.loop is not asyncio.get_running_loop():
        raise StoreError(
            f"the log in {found.path} is open in another event loop of this process; close its sessions there, or"
            " `await close_all()` there before it ends, or choose another db_path"
        )
    if given is not None and given.model_copy(update={"data": found.path}) != (
        found.given or found.settings
    ).model_copy(update={"data": found.path}):
        raise StoreError(
            f"the log in {found.path} is open with other settings; give all sessions on it the same config, or none,"
            " or choose another db_path"
        )


def _name_holder(settings: Settings, problem: str) -> str:
    address = find_address(settings) if (settings.data / "address").exists() else ""
    where = f"; a proxy runs on it at {address}" if address else ""
    way = f"send calls to that proxy (base_url {address}/v1), or " if address else "end that process, or "
    return f"{problem.partition(';')[0]}{where}: {way}give another db_path"


def complete_settings(settings: Settings) -> Settings:
    """Return settings with the keys of the environment, and where no upstream is named with those of litellm."""
    variables = read_environment()
    upstreams = [_add_key(each, variables) for each in settings.upstreams]
    is_stated = "upstreams" in settings.model_fields_set
    if not is_stated and (address := variables.get("OPENAI_BASE_URL")):  # as OpenAI's own SDK takes both
        given = {"base_url": address, "api_key": variables.get("OPENAI_API_KEY", "")}
        try:
            upstreams = [*make_settings({"upstreams": [given]}).upstreams]
        except ValidationError as error:
            raise ConfigError([Problem("OPENAI_BASE_URL", describe_error(error.errors()[0], ()))]) from error
    if not is_stated and is_installed():
        upstreams.append(DeferredUpstream(_LITELLM, "litellm", "", auth="none", models=("*/*",)))
    return settings.model_copy(update={"upstreams": tuple(upstreams)})


def _add_key(upstream: UpstreamPolicy, variables: dict[str, str]) -> UpstreamPolicy:
    names = _VARIABLES.get(urlsplit(upstream.base_url).hostname or "", ())
    key = next((variables[name] for name in names if variables.get(name)), "")
    if not key or upstream.kind != "openai" or upstream.provider().has_own_key or upstream.auth == "none":
        return upstream
    return replace(upstream, api_key=key)


def _find_upstream(settings: Settings, model: str) -> tuple[int, UpstreamPolicy]:
    """Return the upstream that takes a model, as `engine/request_resolver` chooses it, and its place."""
    listed = list(enumerate(settings.upstreams))
    claiming = (each for each in listed if any(fnmatchcase(model, pattern) for pattern in each[1].models))
    return next(claiming, next((each for each in listed if not each[1].models), listed[0]))
