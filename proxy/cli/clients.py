"""What each client needs to make its calls here: a table, and pure functions over it. `run` starts the processes.

A client is known by the name of its program, also behind npx and the like; every other program gets the variables that
the SDKs read. An API is one of `openai` (chat completions and responses, base URL with `/v1`) and `anthropic`
(messages, base URL without it). A client is sent here only for the API of its upstream: a key must not go to another
provider.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from string import Template
from types import MappingProxyType

from proxy.cli import client_settings as settings
from proxy.cli.client_settings import KEYS, Api, Changes, ClientProvider, Find, Place, Send, Setup, complete_base

_NETWORK_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Way:
    """How a client is sent here for one API.

    `variables` may name the client's own upstream; the first one that is set counts. `arguments` go between the program
    and its own. In all texts `$base` is our base URL with `/v1` and `$origin` without.
    """

    variables: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client by the names of its program. `owns_screen`: in a terminal, nothing may be written while it runs.

    It has a way for each API; or, where its settings or its login decide which it calls and where, `find` and `send`
    read `files`, and say how it is sent here.
    """

    names: tuple[str, ...]
    ways: Mapping[Api, Way] = field(default_factory=dict)
    owns_screen: bool = False
    files: tuple[Place, ...] = ()
    find: Find | None = None
    send: Send | None = None


@dataclass(frozen=True, slots=True)
class ClientStart:
    """How a client is started: its whole command, its whole environment, and the files that it needs, by path.

    `mirrored`, if there is one, is a folder whose files the folder of these has too, by links.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    mirrored: str = ""


_OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_OPENAI = Way(_OPENAI_VARIABLES, dict.fromkeys(_OPENAI_VARIABLES, "$base"))
_ANTHROPIC = Way(("ANTHROPIC_BASE_URL",), {"ANTHROPIC_BASE_URL": "$origin"})


def _set_up(name: str, files: tuple[Place, ...], find: Find, send: Send) -> KnownClient:
    """Return a client whose settings or login decide where it calls; all of these fill a terminal."""
    return KnownClient((name,), owns_screen=True, files=files, find=find, send=send)


CLIENTS = (
    _set_up("codex", settings.CODEX_FILES, settings.find_codex, settings.send_codex),
    _set_up("claude", settings.CLAUDE_FILES, settings.find_claude, settings.send_claude),
    *(
        _set_up(
            name,
            settings.list_opencode_files(name),
            partial(settings.find_opencode, name=name),
            partial(settings.send_opencode, name=name),
        )
        for name in ("opencode", "kilo")
    ),
    KnownClient(
        ("aider",),
        {
            "openai": Way(("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE"), arguments=("--openai-api-base", "$base")),
            "anthropic": Way(("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), {"ANTHROPIC_API_BASE": "$origin"}),
        },
    ),
    _set_up("qwen", settings.QWEN_FILES, settings.find_qwen, settings.send_qwen),
    _set_up("cline", settings.CLINE_FILES, settings.find_cline, settings.send_cline),
    _set_up("pi", settings.PI_FILES, settings.find_pi, settings.send_pi),
    _set_up("copilot", (), settings.find_copilot, settings.send_copilot),
    _set_up("cn", settings.CONTINUE_FILES, settings.find_continue, settings.send_continue),
    _set_up("gemini", settings.GEMINI_FILES, settings.find_gemini, settings.send_gemini),
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
    "@kilocode/cli": "kilo",
    "@continuedev/cli": "cn",
    "@google/gemini-cli": "gemini",
    "@github/copilot": "copilot",
    "@earendil-works/pi-coding-agent": "pi",
    "@qwen-code/qwen-code": "qwen",
    "aider-chat": "aider",
}
_VERSION = re.compile(r"(?<=.)@[^/]*$|[\[=<>~].*$")


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """What is known of a client before it is started, and of the provider that it would call."""

    client: KnownClient
    setup: Setup
    provider: ClientProvider

    @property
    def upstream(self) -> str:
        """The address that the client itself names, empty where it names none."""
        return self.provider.address


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


def list_files(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> list[Path]:
    """Return the files that say where a client will call, in the order in which they are to be read."""
    words = command[find_place(command) + 1 :]
    found = [path for place in find_client(command).files for path in place.list_files(words, environment, folder)]
    return list(dict.fromkeys(found))


def plan_client(
    command: Sequence[str],
    environment: Mapping[str, str],
    texts: Mapping[str, str] = MappingProxyType({}),
    *,
    is_named: bool = False,
) -> ClientPlan:
    """Find which API a client will call, and where.

    `texts` are those of its files, by path; `is_named` says that the user has named the upstream. Raises
    UnknownUpstream if the client cannot be sent here.
    """
    client = find_client(command)
    setup = Setup(tuple(command), environment, texts, is_named)
    if client.find is not None:
        return ClientPlan(client, setup, client.find(setup))
    api = _find_api(client, environment)
    address = next((environment[name] for name in client.ways[api].variables if environment.get(name)), "")
    return ClientPlan(client, setup, ClientProvider(api, complete_base(address) if api == "anthropic" else address))


def start_client(plan: ClientPlan, origin: str, *, folder: str = "", has_all: bool = False) -> ClientStart:
    """Return how to start a client so that it calls the server at `origin`, and so that nothing else is changed.

    Its files are to be written into `folder`. With `has_all` the server's upstreams take every API that it may call.
    """
    command, environment = plan.setup.command, plan.setup.environment
    if plan.client.send is not None:
        changes = plan.client.send(plan.setup, plan.provider, origin, folder)
    else:
        changes = _send(plan, origin, has_all)
    own = find_place(command) + 1
    words = (*command[:own], *changes.arguments, *(changes.replaced.get(word, word) for word in command[own:]))
    everything = {**environment, **_bypass_network_proxy(environment), **changes.environment}
    return ClientStart(words, everything, changes.files, changes.mirrored)


def _send(plan: ClientPlan, origin: str, has_all: bool) -> Changes:
    """Return the changes by a client's ways: that of the API that it will call, or all."""
    places, variables, arguments = {"base": f"{origin}/v1", "origin": origin}, dict[str, str](), list[str]()
    for api, way in plan.client.ways.items():
        if has_all or api == plan.provider.api:
            variables |= {name: Template(text).substitute(places) for name, text in way.environment.items()}
            arguments += [Template(text).substitute(places) for text in way.arguments]
    return Changes(variables, tuple(arguments))


def replace_own_address(plan: ClientPlan, server: Sequence[str]) -> ClientPlan:
    """Return the same plan, but for a client that calls our server already with the upstream behind that.

    `server` is the server's address and those of its upstreams. Where it has several, the client has none of its own.
    """
    if not server or not f"{plan.upstream}/".startswith(f"{server[0]}/"):
        return plan
    upstreams = server[1:]
    address = upstreams[0] if len(upstreams) == 1 else ""
    return replace(plan, provider=replace(plan.provider, address=address))


def _find_api(client: KnownClient, environment: Mapping[str, str]) -> Api:
    """Return the first API for which the client has an address of its own, or else a key; the first without both."""
    for api, way in client.ways.items():
        if any(environment.get(name) for name in way.variables):
            return api
    return next((api for api in client.ways if environment.get(KEYS[api])), next(iter(client.ways)))


def _bypass_network_proxy(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables that keep calls to this machine from a proxy of the network, where one is set."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in _NETWORK_PROXIES):
        return {}
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = [host.strip() for host in known.split(",") if host.strip()]
    text = ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])
    return {"NO_PROXY": text, "no_proxy": text}
