"""What each client needs to make its calls here: a table, and pure functions over it. `run` starts the processes.

A client is known by the name of its program, also behind npx and the like; every other program gets the variables that
the SDKs read. An API is one of `openai` (chat completions and responses, base URL with `/v1`) and `anthropic`
(messages, base URL without it). A client is sent here only for the API of its upstream: a key must not go to another
provider.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from string import Template
from typing import Any, Literal

from proxy.model.errors import ProxyError

Api = Literal["openai", "anthropic"]

DEFAULT_UPSTREAMS: Mapping[Api, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
}

_KEYS: Mapping[Api, str] = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_NETWORK_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_LOOPBACK = ("127.0.0.1", "localhost")
_OPENCODE_CONFIG = "OPENCODE_CONFIG_CONTENT"
_CLINE_PROVIDER = "openai-compatible"  # the only one whose address can be set
_CLINE_ADDRESS = ("providers", _CLINE_PROVIDER, "settings", "baseUrl")


class UnknownUpstream(ProxyError):
    """Which provider the client would call is not known."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a client is sent here for one API.

    `variables` may name the client's own upstream; the first one that is set counts. `arguments` go between the program
    and its own. In all texts `$base` is our base URL with `/v1` and `$origin` without; `$key` is codex's setting.
    """

    variables: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file of a client that names its provider: `path` below the folder that a variable names, else below home.

    `find` returns the provider's name and address from the text. With `change` the client gets a changed copy of the
    text, whose path is in `variable`.
    """

    path: str
    home: tuple[str, str]
    find: Callable[[str], tuple[str, str]]
    change: Callable[[str, str], str] | None = None
    variable: str = ""


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client by the names of its program. `owns_screen`: in a terminal, nothing may be written while it runs."""

    names: tuple[str, ...]
    ways: Mapping[Api, Way]
    owns_screen: bool = False
    settings: SettingsFile | None = None


@dataclass(frozen=True, slots=True)
class ClientStart:
    """How a client is started: its whole command, its whole environment, and the files that it needs, by path."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]


def _find_codex_provider(text: str) -> tuple[str, str]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return "openai", ""
    name = str(tree.get("model_provider") or "openai")
    found = _descend(tree, "model_providers", name, "base_url")
    return name, str(found or (tree.get("openai_base_url") if name == "openai" else "") or "")


def _find_cline_provider(text: str) -> tuple[str, str]:
    return _CLINE_PROVIDER, str(_descend(_parse(text), *_CLINE_ADDRESS) or "")


def _change_cline_provider(text: str, base: str) -> str:
    tree = _parse(text)
    _descend(tree, *_CLINE_ADDRESS[:-1])[_CLINE_ADDRESS[-1]] = base
    return json.dumps(tree)


def _descend(tree: Any, *names: str) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


_OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_OPENAI = Way(_OPENAI_VARIABLES, dict.fromkeys(_OPENAI_VARIABLES, "$base"))
_ANTHROPIC = Way(("ANTHROPIC_BASE_URL",), {"ANTHROPIC_BASE_URL": "$origin"})

CLIENTS = (
    # It ignores OPENAI_BASE_URL.
    KnownClient(
        ("codex",),
        {"openai": Way(arguments=("-c", '$key="$base"'))},
        owns_screen=True,
        settings=SettingsFile("config.toml", ("CODEX_HOME", ".codex"), _find_codex_provider),
    ),
    KnownClient(("claude",), {"anthropic": _ANTHROPIC}, owns_screen=True),
    KnownClient(
        ("opencode",),
        {"openai": Way(("OPENAI_BASE_URL",)), "anthropic": Way(("ANTHROPIC_BASE_URL",))},
        owns_screen=True,
    ),
    KnownClient(
        ("aider",),
        {
            "openai": Way(("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE"), arguments=("--openai-api-base", "$base")),
            "anthropic": Way(("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), {"ANTHROPIC_API_BASE": "$origin"}),
        },
    ),
    KnownClient(
        ("qwen",),
        {"openai": Way(("OPENAI_BASE_URL",), {"OPENAI_BASE_URL": "$base"}, ("--openai-base-url", "$base"))},
        owns_screen=True,
    ),
    # Its background process would keep these settings, and serve later runs of cline with them.
    KnownClient(
        ("cline",),
        {"openai": Way(environment={"CLINE_SESSION_BACKEND_MODE": "local"})},
        owns_screen=True,
        settings=SettingsFile(
            "data/settings/providers.json",
            ("CLINE_DIR", ".cline"),
            _find_cline_provider,
            _change_cline_provider,
            "CLINE_PROVIDER_SETTINGS_PATH",
        ),
    ),
    KnownClient(("llm",), {"openai": _OPENAI}),
)
_ANY_OTHER = KnownClient((), {"openai": _OPENAI, "anthropic": _ANTHROPIC})

# What follows is a package or program, and then its own arguments.
_LAUNCHERS = (
    *(("npx",), ("bunx",), ("bun", "x"), ("pnpm", "dlx"), ("yarn", "dlx")),
    *(("uvx",), ("uv", "tool", "run"), ("pipx", "run")),
)
_LAUNCHER_VALUES = frozenset({"-p", "--package", "--python", "--from", "--with", "--spec"})
_PACKAGES: Mapping[str, str] = {
    "@openai/codex": "codex",
    "@anthropic-ai/claude-code": "claude",
    "opencode-ai": "opencode",
    "@qwen-code/qwen-code": "qwen",
    "aider-chat": "aider",
}
_VERSION = re.compile(r"(?<=.)@[^/]*$|[\[=<>~].*$")


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """What is known of a client before it is started. `upstream` is empty where the client itself names none.

    `provider` is the name that the client has for its provider, empty if it has none; `settings` is the text of its
    settings file.
    """

    client: KnownClient
    command: tuple[str, ...]
    api: Api
    upstream: str = ""
    provider: str = ""
    settings: str = ""

    @property
    def default_upstream(self) -> str:
        """The provider's own address. Raises UnknownUpstream."""
        if self.provider not in ("", *DEFAULT_UPSTREAMS):
            raise UnknownUpstream(f"the address of the provider {self.provider} is not known; name it by --upstream")
        return DEFAULT_UPSTREAMS[self.api]


def find_client(command: Sequence[str]) -> KnownClient:
    """Return what is known of a command's client, by the name of its file or package."""
    name = PurePath(command[0]).name.lower()
    if place := find_place(command):
        package = _VERSION.sub("", command[place].lower())
        name = _PACKAGES.get(package, package)
    return next((client for client in CLIENTS if name in client.names), _ANY_OTHER)


def find_place(command: Sequence[str]) -> int:
    """Return where in a command its client stands: at 0, or behind a program such as npx that fetches and starts it."""
    names = [PurePath(command[0]).name.lower(), *command[1:]]
    size = next((len(words) for words in _LAUNCHERS if tuple(names[: len(words)]) == words), 0)
    place = size
    while size and place < len(command) and command[place].startswith("-"):
        place += 2 if command[place] in _LAUNCHER_VALUES else 1
    return place if place < len(command) else 0


def plan_client(command: Sequence[str], environment: Mapping[str, str], settings: str = "") -> ClientPlan:
    """Find which API a client will call, and where. `settings` is the text of its settings file, empty without one.

    Raises UnknownUpstream if the client cannot be sent here.
    """
    client = find_client(command)
    plan = ClientPlan(client, tuple(command), _find_api(client, environment), settings=settings)
    if client.settings is not None:
        provider, upstream = client.settings.find(settings)
        if client.settings.change is not None and not upstream:
            raise UnknownUpstream(
                f"it has no provider {provider} with an address; docs/clients/ says how to set one up"
            )
        return replace(plan, provider=provider, upstream=upstream)
    if "opencode" in client.names:
        provider = _find_provider(command)
        plan = replace(plan, provider=provider, api="anthropic" if provider == "anthropic" else "openai")
        if provider not in DEFAULT_UPSTREAMS:
            return plan
    upstream = next((environment[name] for name in client.ways[plan.api].variables if environment.get(name)), "")
    if upstream and plan.api == "anthropic" and not upstream.rstrip("/").endswith("/v1"):
        upstream = upstream.rstrip("/") + "/v1"
    return replace(plan, upstream=upstream)


def start_client(
    plan: ClientPlan, origin: str, environment: Mapping[str, str], *, folder: str = "", has_all: bool = False
) -> ClientStart:
    """Return how to start a client so that it calls the server at `origin`, and so that nothing else is changed.

    Its files are to be written into `folder`. With `has_all` the server's upstreams take every API that it may call.
    """
    client, base = plan.client, f"{origin}/v1"
    key = "openai_base_url" if plan.provider in ("", "openai") else f"model_providers.{plan.provider}.base_url"
    changes, arguments, files = dict(_bypass_network_proxy(environment)), list[str](), dict[str, str]()
    for api, way in client.ways.items():
        if has_all or api == plan.api:
            places = {"base": base, "origin": origin, "key": key}
            changes |= {name: Template(text).substitute(places) for name, text in way.environment.items()}
            arguments += [Template(text).substitute(places) for text in way.arguments]
    if "opencode" in client.names:
        changes[_OPENCODE_CONFIG] = _set_provider(environment.get(_OPENCODE_CONFIG, ""), plan.provider, base)
    if client.settings is not None and client.settings.change is not None:
        path = str(PurePath(folder, PurePath(client.settings.path).name))
        files[path] = client.settings.change(plan.settings, base)
        changes[client.settings.variable] = path
    own = find_place(plan.command) + 1
    words = (*plan.command[:own], *arguments, *plan.command[own:])
    return ClientStart(words, {**environment, **changes}, files)


def replace_own_address(plan: ClientPlan, server: Sequence[str]) -> ClientPlan:
    """Return the same plan, but for a client that calls our server already with the upstream behind that.

    `server` is the server's address and those of its upstreams. Where it has several, the client has none of its own.
    """
    if not server or not f"{plan.upstream}/".startswith(f"{server[0]}/"):
        return plan
    upstreams = server[1:]
    return replace(plan, upstream=upstreams[0] if len(upstreams) == 1 else "")


def _find_api(client: KnownClient, environment: Mapping[str, str]) -> Api:
    """Return the first API for which the client has an address of its own, or else a key; the first without both."""
    for api, way in client.ways.items():
        if any(environment.get(name) for name in way.variables):
            return api
    return next((api for api in client.ways if environment.get(_KEYS[api])), next(iter(client.ways)))


def _find_provider(command: Sequence[str]) -> str:
    """Return opencode's name of the provider, as in `--model openai/gpt-5`."""
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in ("-m", "--model"):
            return (value or after).partition("/")[0] or "openai"
    return "openai"


def _set_provider(config: str, provider: str, base: str) -> str:
    """Return opencode's configuration with another address for a provider. Others in it stay."""
    tree = _parse(config)
    tree = tree if isinstance(tree, dict) else {}
    providers = tree.get("provider") or {}
    known = providers.get(provider) or {}
    changed = known | {"options": (known.get("options") or {}) | {"baseURL": base}}
    return json.dumps(tree | {"provider": providers | {provider: changed}})


def _bypass_network_proxy(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables that keep calls to this machine from a proxy of the network, where one is set."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in _NETWORK_PROXIES):
        return {}
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = [host.strip() for host in known.split(",") if host.strip()]
    text = ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])
    return {"NO_PROXY": text, "no_proxy": text}


def _parse(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
