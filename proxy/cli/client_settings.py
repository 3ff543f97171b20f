"""What the settings and logins of clients say: which provider a client will call, at which address, how to change it.

For each client whose settings or login decide that, a function finds the `ClientProvider`, and another returns the
`Changes` with which the client calls here. All are pure: `run` reads the files and writes what is to be written.
Where a client cannot be sent here, or a key would go to an address that is not its own, they raise UnknownUpstream.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

import yaml

from proxy.model.errors import ProxyError

Api = Literal["openai", "anthropic", "google"]

DEFAULT_UPSTREAMS: Mapping[Api, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "google": "https://generativelanguage.googleapis.com",
}
KEYS: Mapping[Api, str] = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}

# With a ChatGPT plan's login codex, and what does as codex does, has this provider.
_CHATGPT = "https://chatgpt.com/backend-api"
_CODEX_PLAN = f"{_CHATGPT}/codex"
_PLAN_LOGINS = ("chatgpt", "agentidentity", "personalaccesstoken")
_CODE_ASSIST = "https://cloudcode-pa.googleapis.com"  # gemini-cli with a Google account
_CLINE_PROVIDER = "openai-compatible"  # the only one whose address can be set
_CLINE_ADDRESS = ("providers", _CLINE_PROVIDER, "settings", "baseUrl")
_OTHER_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
# Providers of continue that it calls by OpenAI's API at their `apiBase`.
_CONTINUE_OPENAI = ("openai", "openrouter", "vllm", "lmstudio", "groq", "deepseek", "together", "xAI", "mistral")
_PI_APIS: Mapping[str, Api] = {
    "openai-completions": "openai",
    "openai-responses": "openai",
    "openai-codex-responses": "openai",
    "anthropic-messages": "anthropic",
}
_COPILOT_KEYS = ("BASE_URL", "API_KEY", "API_KEY_COMMAND", "BEARER_TOKEN", "HEADERS")
_PI_ORDER = ("anthropic", "openai", "openai-codex", "google")
# What stands in JSON with comments beside JSON: strings are kept, comments and commas before an end are not.
_JSONC = re.compile(r'("(?:[^"\\]|\\.)*+"?)|//[^\n]*|/\*.*?(?:\*/|\Z)|,(?=\s*[}\]])', re.DOTALL)
_FROM_ENVIRONMENT = re.compile(r"\{env:(\w+)\}")


class UnknownUpstream(ProxyError):
    """Which provider the client would call is not known, or its address cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client has a file of settings: `path` below the folder that `variable` names, else below `home`.

    Without a path, the variable or the client's `option` names the file itself; with `is_above` it is in the folder of
    the run, or in those above.
    """

    path: str = ""
    variable: str = ""
    home: str = ""
    option: str = ""
    is_above: bool = False

    def find_folder(self, environment: Mapping[str, str]) -> Path:
        """Return the folder that the path is below."""
        return Path(environment.get(self.variable) or Path(environment.get("HOME", ""), self.home))

    def list_files(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> list[Path]:
        """Return where the file may be; what comes later takes precedence."""
        if self.is_above:
            return [above / self.path for above in reversed((folder, *folder.parents))]
        if self.path:
            return [self.find_folder(environment) / self.path]
        named = find_option(command, self.option) if self.option else environment.get(self.variable)
        return [folder / Path(named.replace("~", environment.get("HOME", "~"), 1))] if named else []


@dataclass(frozen=True, slots=True)
class Setup:
    """What a client is started with: command, environment, and the texts of its files by path, in their order.

    `is_named`: the user names the upstream, so that it need not be found.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    is_named: bool = False

    def read(self, *names: str) -> Iterator[str]:
        """Yield the texts of files with one of these names."""
        return (text for path, text in self.texts.items() if PurePath(path).name in names)

    def load(self, *names: str) -> dict[str, Any]:
        """Return the JSON objects in files with one of these names, merged: later ones take precedence."""
        merged: dict[str, Any] = {}
        for text in self.read(*names):
            merged = _merge(merged, parse_json(text))
        return merged


@dataclass(frozen=True, slots=True)
class ClientProvider:
    """The provider that a client will call.

    `address` is empty where the client itself names none; `name` is the client's own name of it, empty if it has none.
    """

    api: Api
    address: str = ""
    name: str = ""

    @property
    def default_address(self) -> str:
        """The provider's own address. Raises UnknownUpstream."""
        if self.name not in ("", *DEFAULT_UPSTREAMS):
            raise UnknownUpstream(f"the address of the provider {self.name} is not known; name it by --upstream")
        return DEFAULT_UPSTREAMS[self.api]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is changed for a client that calls here.

    `arguments` go between the program and its own; `replaced` are words of its command that others stand for; `file` is
    the changed text of one of its files, to be written at the path that the changes name. With `mirrored` that file
    lies in a folder which has all else of this one, by links.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    mirrored: str = ""


Find = Callable[[Setup], ClientProvider]
# With the provider, our address without `/v1`, and a folder of the run for files.
Send = Callable[[Setup, ClientProvider, str, str], Changes]

CODEX_FILES = (Place("config.toml", "CODEX_HOME", ".codex"), Place("auth.json", "CODEX_HOME", ".codex"))
CLAUDE_FILES = (
    Place("settings.json", "CLAUDE_CONFIG_DIR", ".claude"),
    Place(".claude/settings.json", is_above=True),
    Place(".claude/settings.local.json", is_above=True),
)
CLINE_FILES = (Place("data/settings/providers.json", "CLINE_DIR", ".cline"),)
PI_FILES = tuple(
    Place(name, "PI_CODING_AGENT_DIR", ".pi/agent") for name in ("models.json", "settings.json", "auth.json")
)
CONTINUE_FILES = (Place("config.yaml", "CONTINUE_GLOBAL_DIR", ".continue"), Place(option="--config"))
GEMINI_FILES = (
    Place(".gemini/settings.json", "GEMINI_CLI_HOME"),
    Place(".gemini/settings.json", is_above=True),
)
QWEN_FILES = (Place(".qwen/settings.json"), Place(".qwen/settings.json", is_above=True))


def list_opencode_files(name: str) -> tuple[Place, ...]:
    """Return where opencode, or what is made of it, has its configuration, its login, and its newest model."""
    own, upper = (
        [f"{stem}.{end}" for stem in dict.fromkeys(("opencode", name)) for end in ("json", "jsonc")],
        name.upper(),
    )
    return (
        *(Place(f"{name}/{file}", "XDG_CONFIG_HOME", ".config") for file in ("config.json", *own)),
        Place(variable=f"{upper}_CONFIG"),
        *(Place(file, is_above=True) for file in own),
        *(Place(f".{name}/{file}", is_above=True) for file in own),
        Place(f"{name}/auth.json", "XDG_DATA_HOME", ".local/share"),
        Place(f"{name}/model.json", "XDG_STATE_HOME", ".local/state"),
    )


def find_codex(setup: Setup) -> ClientProvider:
    """Find codex's provider: that of its settings; with a ChatGPT login, and no address of its own, the plan's."""
    try:
        tree = tomllib.loads("".join(setup.read("config.toml")))
    except tomllib.TOMLDecodeError:
        tree = {}
    name = str(tree.get("model_provider") or "openai")
    own = _descend(tree, "model_providers", name)
    address = _descend(own, "base_url") or (tree.get("openai_base_url") if name == "openai" else "")
    by_login = name == "openai" or bool(_descend(own, "requires_openai_auth"))
    if not address and by_login and not setup.environment.get("CODEX_API_KEY"):
        address = _find_codex_login(setup, tree)
    return ClientProvider("openai", str(address or ""), name)


def _find_codex_login(setup: Setup, tree: Mapping[str, Any]) -> str:
    """Return the address that codex's login decides, empty for an API key's."""
    login = setup.load("auth.json")
    mode = str(login.get("auth_mode") or "").lower()
    if not mode and login.get("tokens") and not login.get("OPENAI_API_KEY"):
        mode = "chatgpt"
    if not login and tree.get("cli_auth_credentials_store") in ("keyring", "auto") and not setup.is_named:
        forced = str(tree.get("forced_login_method") or "")
        if not forced:
            raise UnknownUpstream(
                f"codex keeps its login in a keyring; --upstream {_CODEX_PLAN} names a plan's address"
            )
        mode = forced
    return _CODEX_PLAN if mode.startswith(_PLAN_LOGINS) else ""


def send_codex(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give codex our address as that of its provider."""
    key = "openai_base_url" if provider.name == "openai" else f"model_providers.{provider.name}.base_url"
    return Changes(arguments=("-c", f'{key}="{origin}/v1"'))


def find_claude(setup: Setup) -> ClientProvider:
    """Find Claude Code's provider. Plans and API keys have the same address; those of clouds have others."""
    environment = {**setup.environment, **_read_claude_environment(setup)}
    for name in _OTHER_CLOUDS:
        if environment.get(name, "").lower() not in ("", "0", "false"):
            raise UnknownUpstream(f"{name} is set: the address of that cloud cannot be replaced")
    return ClientProvider("anthropic", complete_base(environment.get("ANTHROPIC_BASE_URL", "")))


def send_claude(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give Claude Code our address; also over the one in its settings, which takes precedence over the environment."""
    changed = {"ANTHROPIC_BASE_URL": origin}
    if "ANTHROPIC_BASE_URL" not in _read_claude_environment(setup):
        return Changes(changed)
    if find_option(setup.command, "--settings"):
        raise UnknownUpstream("ANTHROPIC_BASE_URL stands in its settings; remove it there, or leave --settings out")
    return Changes(changed, ("--settings", json.dumps({"env": changed})))


def _read_claude_environment(setup: Setup) -> Mapping[str, str]:
    found = setup.load("settings.json", "settings.local.json").get("env")
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def find_cline(setup: Setup) -> ClientProvider:
    """Find the one provider of cline that has an address."""
    address = _descend(setup.load("providers.json"), *_CLINE_ADDRESS)
    if not address:
        raise _needs_setup(f"it has no provider {_CLINE_PROVIDER} with an address")
    return ClientProvider("openai", str(address), _CLINE_PROVIDER)


def send_cline(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give cline a copy of its settings with our address.

    The background process that it would start keeps its settings, and would serve later runs of cline with them.
    """
    tree, path = setup.load("providers.json"), str(PurePath(folder, "providers.json"))
    _descend(tree, *_CLINE_ADDRESS[:-1])[_CLINE_ADDRESS[-1]] = f"{origin}/v1"
    environment = {"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_PROVIDER_SETTINGS_PATH": path}
    return Changes(environment, files={path: json.dumps(tree)})


def find_opencode(setup: Setup, *, name: str) -> ClientProvider:
    """Find the provider of opencode's model: of `--model`, else of the agent, the configuration, the newest choice.

    `name` is that of the program: what is made of opencode has the same settings, under its own name.
    """
    config = _load_opencode(setup, name)
    recent = setup.load("model.json").get("recent")
    newest = recent[0].get("providerID") if isinstance(recent, list) and recent and isinstance(recent[0], dict) else ""
    agent = find_option(setup.command, "--agent") or str(config.get("default_agent") or "build")
    model = (
        find_option(setup.command, "-m", "--model")
        or _descend(config, "agent", agent, "model")
        or config.get("model")
        or f"{newest or 'openai'}/"
    )
    provider = str(model).partition("/")[0]
    own = _descend(config, "provider", provider)
    address = str(_descend(own, "options", "baseURL") or "")
    address = _FROM_ENVIRONMENT.sub(lambda found: setup.environment.get(found[1], ""), address)
    is_anthropic = provider == "anthropic" or str(_descend(own, "npm") or "") == "@ai-sdk/anthropic"
    if provider == "openai" and _has_chatgpt_login(setup):
        address = _CODEX_PLAN
    elif provider in DEFAULT_UPSTREAMS and not address:
        address = complete_base(setup.environment.get("ANTHROPIC_BASE_URL" if is_anthropic else "OPENAI_BASE_URL", ""))
    return ClientProvider("anthropic" if is_anthropic else "openai", address, provider)


def _has_chatgpt_login(setup: Setup) -> bool:
    return bool(_descend(setup.load("auth.json"), "openai", "type") == "oauth")


def _load_opencode(setup: Setup, name: str) -> dict[str, Any]:
    known = {"opencode.json", "opencode.jsonc", f"{name}.json", f"{name}.jsonc", "config.json"}
    chosen = PurePath(setup.environment.get(f"{name.upper()}_CONFIG", "")).name
    content = parse_json(setup.environment.get(f"{name.upper()}_CONFIG_CONTENT", ""))
    return _merge(setup.load(*known, *([chosen] if chosen else [])), content)


def send_opencode(
    setup: Setup, provider: ClientProvider, origin: str, folder: str, *, name: str = "opencode"
) -> Changes:
    """Give opencode our address as that of its provider, in what it adds to its configuration."""
    variable = f"{name.upper()}_CONFIG_CONTENT"
    # With a ChatGPT login it calls the plan's address in place of every one whose path has /v1/responses.
    place = "/backend-api/codex" if provider.name == "openai" and _has_chatgpt_login(setup) else "/v1"
    changed = {"provider": {provider.name: {"options": {"baseURL": f"{origin}{place}"}}}}
    return Changes({variable: json.dumps(_merge(parse_json(setup.environment.get(variable, "")), changed))})


def find_pi(setup: Setup) -> ClientProvider:
    """Find pi's provider: of its command, else of its settings, else the first that it has a login for, as pi does."""
    providers = setup.load("models.json").get("providers")
    providers = providers if isinstance(providers, dict) else {}
    model = find_option(setup.command, "--model") or ""
    name = find_option(setup.command, "--provider") or (model.partition("/")[0] if "/" in model else "")
    name = name or str(setup.load("settings.json").get("defaultProvider") or "")
    logins = {*setup.load("auth.json"), *(api for api, key in KEYS.items() if setup.environment.get(key))}
    named = [*(each for each in _PI_ORDER if each in logins), *providers, "openai"]
    name = name or named[0]
    own = providers.get(name)
    kind = _descend(own, "api") or ("anthropic-messages" if name == "anthropic" else "openai-responses")
    if (api := _PI_APIS.get(str(kind))) is None or name == "google":
        raise UnknownUpstream(f"its provider {name} has an API of its own")
    address = str(_descend(own, "baseUrl") or (_CHATGPT if name == "openai-codex" else ""))
    return ClientProvider(api, complete_base(address) if api == "anthropic" else address, name)


def send_pi(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give pi a folder of settings that has its own, but for our address in `models.json`."""
    address = origin if provider.api == "anthropic" else f"{origin}/v1"
    changed = {"providers": {provider.name: {"baseUrl": address}}}
    text = json.dumps(_merge(setup.load("models.json"), changed))
    return Changes(
        {PI_FILES[0].variable: folder},
        files={str(PurePath(folder, "models.json")): text},
        mirrored=str(PI_FILES[0].find_folder(setup.environment)),
    )


def find_continue(setup: Setup) -> ClientProvider:
    """Find the provider of continue's first model for chats."""
    model = next((each for each in _list_models(setup) if "chat" in (each.get("roles") or ("chat",))), {})
    name = str(model.get("provider") or "")
    if not name:
        raise _needs_setup("it has no config.yaml with a model of its own")
    if name != "anthropic" and name not in _CONTINUE_OPENAI:
        raise UnknownUpstream(f"its provider {name} is not called by the API of OpenAI or Anthropic")
    return ClientProvider(
        "anthropic" if name == "anthropic" else "openai", str(model.get("apiBase") or "").rstrip("/"), name
    )


def send_continue(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give continue a copy of its configuration in which the models of this provider have our address."""
    path = str(PurePath(folder, "config.yaml"))
    models = [
        {**model, "apiBase": f"{origin}/v1"}
        if model.get("provider") == provider.name and str(model.get("apiBase") or "").rstrip("/") == provider.address
        else model
        for model in _list_models(setup)
    ]
    text = json.dumps({**_load_yaml(setup), "models": models})  # which is YAML too
    if own := find_option(setup.command, "--config"):
        return Changes(replaced={own: path, f"--config={own}": f"--config={path}"}, files={path: text})
    return Changes(arguments=("--config", path), files={path: text})


def _load_yaml(setup: Setup) -> dict[str, Any]:
    texts = [text for path, text in setup.texts.items() if PurePath(path).suffix in (".yaml", ".yml")]
    named = find_option(setup.command, "--config")
    if named and not any(PurePath(path).name == PurePath(named).name for path in setup.texts):
        return {}  # the name of a configuration on its maker's server
    try:
        tree = yaml.safe_load(texts[-1]) if texts else None
    except yaml.YAMLError:
        tree = None
    return tree if isinstance(tree, dict) else {}


def _list_models(setup: Setup) -> list[dict[str, Any]]:
    models = _load_yaml(setup).get("models")
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def find_gemini(setup: Setup) -> ClientProvider:
    """Find where gemini-cli's login sends it: a key, a Google account and Vertex AI have an address each."""
    variable, default = _find_gemini_login(setup)
    address = setup.environment.get(variable) or default
    if not address:
        raise UnknownUpstream(f"the address of Vertex AI depends on its region; name it by {variable}")
    if re.search(r"://[^/]+/.", address):
        raise UnknownUpstream(f"{variable} has a path, which cannot be replaced")
    return ClientProvider("google", address)


def send_gemini(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give gemini-cli our address in the variable that its login reads."""
    return Changes({_find_gemini_login(setup)[0]: origin})


def _find_gemini_login(setup: Setup) -> tuple[str, str]:
    """Return the variable that has the address for its login, and the address without it."""
    chosen = str(_descend(setup.load("settings.json"), "security", "auth", "selectedType") or "")
    environment = setup.environment
    if not chosen and environment.get("GOOGLE_GENAI_USE_GCA") == "true":
        chosen = "oauth-personal"
    if not chosen and environment.get("GOOGLE_GENAI_USE_VERTEXAI") == "true":
        chosen = "vertex-ai"
    if chosen in ("oauth-personal", "compute-default-credentials", "cloud-shell"):
        return "CODE_ASSIST_ENDPOINT", _CODE_ASSIST
    if chosen == "vertex-ai":
        return "GOOGLE_VERTEX_BASE_URL", ""
    return "GOOGLE_GEMINI_BASE_URL", DEFAULT_UPSTREAMS["google"]


def find_copilot(setup: Setup) -> ClientProvider:
    """Find Copilot CLI's own provider. With a login at GitHub, and none of its own, its address cannot be replaced."""
    environment = setup.environment
    address = environment.get("COPILOT_PROVIDER_BASE_URL", "")
    if not (address or environment.get("COPILOT_PROVIDER_API_KEY") or setup.is_named):
        raise _needs_setup("with GitHub's login it calls GitHub; set COPILOT_PROVIDER_BASE_URL for a provider of yours")
    kind = environment.get("COPILOT_PROVIDER_TYPE") or _choose_copilot_type(environment)
    if kind not in ("openai", "anthropic"):
        raise UnknownUpstream(f"COPILOT_PROVIDER_TYPE is {kind}, which has paths of its own")
    return (
        ClientProvider("openai", address) if kind == "openai" else ClientProvider("anthropic", complete_base(address))
    )


def send_copilot(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give Copilot CLI our address; beside it the type, and the provider's usual key, where the user has set none."""
    environment = {
        "COPILOT_PROVIDER_BASE_URL": f"{origin}/v1" if provider.api == "openai" else origin,
        "COPILOT_PROVIDER_TYPE": provider.api,
    }
    has_key = any(setup.environment.get(f"COPILOT_PROVIDER_{name}") for name in _COPILOT_KEYS)
    key = "" if has_key else setup.environment.get(KEYS[provider.api], "")
    return Changes(environment | ({"COPILOT_PROVIDER_API_KEY": key} if key else {}))


def _choose_copilot_type(environment: Mapping[str, str]) -> str:
    is_anthropic = environment.get(KEYS["anthropic"]) and not environment.get(KEYS["openai"])
    return "anthropic" if is_anthropic and not environment.get("COPILOT_PROVIDER_BASE_URL") else "openai"


def find_qwen(setup: Setup) -> ClientProvider:
    """Find qwen-code's provider. Only with a key of OpenAI's API it has an address that can be replaced."""
    chosen = find_option(setup.command, "--auth-type") or str(
        _descend(setup.load("settings.json"), "security", "auth", "selectedType") or ""
    )
    if chosen not in ("", "openai"):
        raise UnknownUpstream(f"its login is {chosen}; --auth-type openai is the one whose address can be replaced")
    return ClientProvider("openai", setup.environment.get("OPENAI_BASE_URL", ""))


def send_qwen(setup: Setup, provider: ClientProvider, origin: str, folder: str) -> Changes:
    """Give qwen-code our address."""
    return Changes({"OPENAI_BASE_URL": f"{origin}/v1"}, ("--openai-base-url", f"{origin}/v1"))


def find_option(command: Sequence[str], *names: str) -> str:
    """Return the value of an option on a command line, as in `--model x` or `--model=x`; empty without it."""
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        if name in names:
            return value if sign else after
    return ""


def complete_base(address: str) -> str:
    """Return an address for Anthropic's clients, which end it before `/v1`, as a base URL."""
    return address if not address or address.rstrip("/").endswith("/v1") else address.rstrip("/") + "/v1"


def parse_json(text: str) -> dict[str, Any]:
    """Return the object of a JSON text, which may have comments; empty for what is none."""
    try:
        for _ in range(2):  # a comma may stand before a comment
            text = _JSONC.sub(lambda found: found[1] or "", text)
        tree = json.loads(text)
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def _merge(tree: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(tree)
    for name, value in other.items():
        mine = merged.get(name)
        merged[name] = _merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def _descend(tree: Any, *names: str) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _needs_setup(what: str) -> UnknownUpstream:
    return UnknownUpstream(f"{what}; docs/clients/ says how to set one up")
