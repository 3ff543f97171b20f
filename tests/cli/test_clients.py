"""What each client needs: its row of the table gives exactly these arguments, variables and files, and no others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.client_settings import ClientProvider, UnknownUpstream, parse_json
from proxy.cli.clients import (
    CLIENTS,
    ClientPlan,
    ClientStart,
    find_client,
    list_files,
    plan_client,
    replace_own_address,
    start_client,
)

ORIGIN = "http://127.0.0.1:8484"
BASE = f"{ORIGIN}/v1"
OWN = "https://own.example/api/v1"
PLAN = "https://chatgpt.com/backend-api/codex"
CHATGPT = json.dumps({"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": {"access_token": "t"}})
CLINE = {"providers": {"openai-compatible": {"settings": {"apiKey": "k", "baseUrl": OWN}}, "other": {"a": 1}}}
CONTINUE = f"""
name: mine
models:
  - {{provider: openai, model: embedder, roles: [embed]}}
  - {{provider: openai, model: m, apiBase: "{OWN}", apiKey: "${{{{ secrets.KEY }}}}", roles: [chat, edit]}}
  - {{provider: anthropic, model: c}}
"""


def plan(
    *command: str, texts: Mapping[str, str] | None = None, is_named: bool = False, **environment: Any
) -> ClientPlan:
    return plan_client(command, environment, texts or {}, is_named=is_named)


def start(
    *command: str, texts: Mapping[str, str] | None = None, has_all: bool = False, **environment: Any
) -> ClientStart:
    return start_client(plan(*command, texts=texts, **environment), ORIGIN, folder="/scratch", has_all=has_all)


def opencode(text: str) -> Any:
    return json.loads(text)["provider"]


@pytest.mark.parametrize(
    ("command", "words", "variables"),
    [
        (("codex", "exec"), ("codex", "-c", f'openai_base_url="{BASE}"', "exec"), {}),
        (("claude", "-p"), ("claude", "-p"), {"ANTHROPIC_BASE_URL": ORIGIN}),
        (("aider", "a.py"), ("aider", "--openai-api-base", BASE, "a.py"), {}),
        (("qwen", "-p"), ("qwen", "--openai-base-url", BASE, "-p"), {"OPENAI_BASE_URL": BASE}),
        (("llm", "hi"), ("llm", "hi"), {"OPENAI_BASE_URL": BASE, "OPENAI_API_BASE": BASE}),
        (("python", "x.py"), ("python", "x.py"), {"OPENAI_BASE_URL": BASE, "OPENAI_API_BASE": BASE}),
        (("some/path/to/claude",), ("some/path/to/claude",), {"ANTHROPIC_BASE_URL": ORIGIN}),
        (
            ("npx", "@anthropic-ai/claude-code@2", "-p"),
            ("npx", "@anthropic-ai/claude-code@2", "-p"),
            {"ANTHROPIC_BASE_URL": ORIGIN},
        ),
        (
            ("/bin/npx", "-y", "-p", "@openai/codex", "codex", "exec"),
            ("/bin/npx", "-y", "-p", "@openai/codex", "codex", "-c", f'openai_base_url="{BASE}"', "exec"),
            {},
        ),
        (("uvx", "aider-chat==0.86.2", "a.py"), ("uvx", "aider-chat==0.86.2", "--openai-api-base", BASE, "a.py"), {}),
        (
            ("pnpm", "dlx", "@qwen-code/qwen-code"),
            ("pnpm", "dlx", "@qwen-code/qwen-code", "--openai-base-url", BASE),
            {"OPENAI_BASE_URL": BASE},
        ),
        (("pnpm", "qwen"), ("pnpm", "qwen"), {"OPENAI_BASE_URL": BASE, "OPENAI_API_BASE": BASE}),
        (("npx", "-y"), ("npx", "-y"), {"OPENAI_BASE_URL": BASE, "OPENAI_API_BASE": BASE}),
    ],
)
def test_a_client_gets_what_it_needs_and_keeps_the_rest(
    command: tuple[str, ...], words: tuple[str, ...], variables: Mapping[str, Any]
) -> None:
    found = start(*command, HOME="/h")
    assert found.command == words
    assert found.environment == {"HOME": "/h", **variables}
    assert found.files == {}


SETTINGS: Mapping[str, Mapping[str, str]] = {
    "cline": {"/h/providers.json": json.dumps(CLINE)},
    "cn": {"/h/config.yaml": CONTINUE},
}


def test_every_client_of_the_table_is_sent_here() -> None:
    for client in CLIENTS:
        name = client.names[0]
        found = start(name, texts=SETTINGS.get(name), COPILOT_PROVIDER_API_KEY="k")
        told = " ".join([*found.command, *found.environment.values(), *found.files.values()])
        assert ORIGIN in told, name


def test_codex_is_sent_here_by_the_provider_that_its_settings_choose() -> None:
    settings = f'model_provider = "mine"\n[model_providers.mine]\nbase_url = "{OWN}"\n'
    found = plan("codex", texts={"/h/config.toml": settings, "/h/auth.json": CHATGPT})
    assert found.provider == ClientProvider("openai", OWN, "mine")
    assert start_client(found, ORIGIN).command == ("codex", "-c", f'model_providers.mine.base_url="{BASE}"')
    assert plan("codex", texts={"/h/config.toml": f'openai_base_url = "{OWN}"'}).upstream == OWN
    default = plan("codex", texts={"/h/config.toml": "= nonsense"})
    assert default.provider.default_address == "https://api.openai.com/v1"
    with pytest.raises(UnknownUpstream, match="--upstream"):
        _ = plan("codex", texts={"/h/config.toml": 'model_provider = "unsaid"'}).provider.default_address


@pytest.mark.parametrize(
    ("login", "config", "variables", "upstream"),
    [
        (CHATGPT, "", {}, PLAN),
        ('{"tokens": {"access_token": "t"}}', "", {}, PLAN),  # of a version that named no mode
        (CHATGPT, f'openai_base_url = "{OWN}"', {}, OWN),
        (CHATGPT, 'model_provider = "p"\n[model_providers.p]\nrequires_openai_auth = true', {}, PLAN),
        (CHATGPT, 'model_provider = "p"\n[model_providers.p]\nname = "p"', {}, ""),
        (CHATGPT, "", {"CODEX_API_KEY": "sk-1"}, ""),
        ('{"auth_mode": "apikey", "OPENAI_API_KEY": "sk-1", "tokens": {"access_token": "old"}}', "", {}, ""),
        ('{"OPENAI_API_KEY": "sk-1"}', "", {}, ""),
        ("", 'cli_auth_credentials_store = "keyring"\nforced_login_method = "chatgpt"', {}, PLAN),
        ("", 'cli_auth_credentials_store = "keyring"\nforced_login_method = "api"', {}, ""),
        ("", "", {}, ""),
    ],
)
def test_the_login_of_codex_decides_its_upstream(
    login: str, config: str, variables: Mapping[str, Any], upstream: str
) -> None:
    texts = {"/h/auth.json": login, "/h/config.toml": config}
    assert plan("codex", texts=texts, **variables).upstream == upstream


def test_a_login_of_codex_that_is_not_to_be_seen_is_asked_for() -> None:
    texts = {"/h/config.toml": 'cli_auth_credentials_store = "keyring"'}
    with pytest.raises(UnknownUpstream, match="keyring"):
        plan("codex", texts=texts)
    assert plan("codex", texts=texts, is_named=True).upstream == ""


def test_claude_code_with_an_address_in_its_settings_is_sent_here_over_it() -> None:
    """Plans, keys and tokens have one address; a cloud's cannot be replaced."""
    texts = {"/h/.claude/settings.json": json.dumps({"env": {"ANTHROPIC_BASE_URL": "https://own.example"}})}
    found = start("claude", "-p", texts=texts, ANTHROPIC_BASE_URL="https://less.example")
    assert plan("claude", texts=texts).upstream == "https://own.example/v1"
    assert found.command == ("claude", "--settings", json.dumps({"env": {"ANTHROPIC_BASE_URL": ORIGIN}}), "-p")
    with pytest.raises(UnknownUpstream, match="--settings"):
        start("claude", "--settings", "mine.json", texts=texts)
    with pytest.raises(UnknownUpstream, match="BEDROCK"):
        plan("claude", CLAUDE_CODE_USE_BEDROCK="1")
    assert plan("claude", CLAUDE_CODE_USE_BEDROCK="0").upstream == ""
    with pytest.raises(UnknownUpstream, match="VERTEX"):
        plan("claude", texts={"/h/settings.json": '{"env": {"CLAUDE_CODE_USE_VERTEX": "1"}}'})


def test_cline_gets_a_changed_copy_of_its_settings() -> None:
    found = start("cline", texts=SETTINGS["cline"])
    path = str(Path("/scratch/providers.json"))
    assert plan("cline", texts=SETTINGS["cline"]).upstream == OWN
    assert found.environment == {"CLINE_PROVIDER_SETTINGS_PATH": path, "CLINE_SESSION_BACKEND_MODE": "local"}
    changed = json.loads(found.files[path])
    assert changed["providers"]["openai-compatible"]["settings"] == {"apiKey": "k", "baseUrl": BASE}
    assert changed["providers"]["other"] == {"a": 1}


@pytest.mark.parametrize("settings", ["", "nonsense", "[]", '{"providers": {"anthropic": {}}}'])
def test_cline_without_a_provider_that_can_be_changed_is_not_sent_here(settings: str) -> None:
    with pytest.raises(UnknownUpstream, match="set one up"):
        plan("cline", texts={"/h/providers.json": settings})


def test_opencode_gets_the_address_of_the_provider_that_is_asked_for() -> None:
    found = start(
        "opencode", "run", "hi", OPENCODE_CONFIG_CONTENT='{"share": "disabled", "provider": {"openai": {"n": 1}}}'
    )
    config = json.loads(found.environment["OPENCODE_CONFIG_CONTENT"])
    assert config == {"share": "disabled", "provider": {"openai": {"n": 1, "options": {"baseURL": BASE}}}}
    for words in (("-m", "anthropic/x"), ("--model=anthropic/x",)):
        chosen = plan("opencode", *words, ANTHROPIC_BASE_URL=OWN)
        assert chosen.provider == ClientProvider("anthropic", OWN, "anthropic")
        content = start("opencode", *words, OPENCODE_CONFIG_CONTENT="nonsense").environment
        assert opencode(content["OPENCODE_CONFIG_CONTENT"]) == {"anthropic": {"options": {"baseURL": BASE}}}


def test_a_provider_of_opencode_whose_address_is_not_known_is_named_by_the_user() -> None:
    found = plan("opencode", "--model", "mine/x", OPENAI_BASE_URL=OWN)
    assert found.provider == ClientProvider("openai", "", "mine")
    with pytest.raises(UnknownUpstream, match="--upstream"):
        _ = found.provider.default_address


COMMENTED = """{
  // the usual way
  "model": "mine/m", /* of mine */
  "provider": {"mine": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{env:MINE}", "x": "//, }"},}},
}"""


@pytest.mark.parametrize("name", ["opencode", "kilo"])
@pytest.mark.parametrize(
    ("command", "texts", "provider"),
    [
        ((), {"/h/.config/NAME/NAME.json": COMMENTED}, ClientProvider("openai", OWN, "mine")),
        (("--model", "openai/x"), {"/h/.config/NAME/NAME.jsonc": COMMENTED}, ClientProvider("openai", "", "openai")),
        (
            (),
            {"/h/NAME.json": COMMENTED, "/w/NAME.json": '{"model": "anthropic/x"}'},
            ClientProvider("anthropic", "", "anthropic"),
        ),
        (
            (),
            {"/h/c/config.json": '{"model": "p/x", "provider": {"p": {"npm": "@ai-sdk/anthropic"}}}'},
            ClientProvider("anthropic", "", "p"),
        ),
        (
            (),
            {"/h/NAME/model.json": '{"recent": [{"providerID": "anthropic"}]}'},
            ClientProvider("anthropic", "", "anthropic"),
        ),
        (
            ("--agent", "plan"),
            {"/h/NAME.json": '{"model": "openai/x", "agent": {"plan": {"model": "anthropic/x"}}}'},
            ClientProvider("anthropic", "", "anthropic"),
        ),
        ((), {"/h/NAME/auth.json": '{"openai": {"type": "oauth"}}'}, ClientProvider("openai", PLAN, "openai")),
        ((), {"/h/NAME/auth.json": '{"openai": {"type": "api"}}'}, ClientProvider("openai", "", "openai")),
    ],
)
def test_the_model_of_opencode_and_kilo_stands_in_their_settings(
    name: str, command: Sequence[str], texts: Mapping[str, str], provider: ClientProvider
) -> None:
    named = {path.replace("NAME", name): text for path, text in texts.items()}
    assert plan(name, *command, texts=named, MINE=OWN).provider == provider
    own: dict[str, Any] = {f"{name.upper()}_CONFIG": "/c/mine.json"}
    assert plan(name, texts={"/c/mine.json": COMMENTED}, MINE=OWN, **own).provider == ClientProvider(
        "openai", OWN, "mine"
    )


def test_a_plans_login_in_opencode_gets_an_address_that_it_leaves_as_it_is() -> None:
    """It replaces every address whose path has `/v1/responses` by the plan's."""
    found = start("opencode", texts={"/h/auth.json": '{"openai": {"type": "oauth"}}'}).environment
    changed = opencode(found["OPENCODE_CONFIG_CONTENT"])
    assert changed == {"openai": {"options": {"baseURL": f"{ORIGIN}/backend-api/codex"}}}


THEIRS = ClientProvider("anthropic", "https://theirs.example/v1", "theirs")
PLAN_OF_PI = ClientProvider("openai", "https://chatgpt.com/backend-api", "openai-codex")
PI: Any = {
    "providers": {
        "mine": {"baseUrl": OWN, "api": "openai-completions", "models": [{"id": "m"}]},
        "theirs": {"baseUrl": "https://theirs.example", "api": "anthropic-messages"},
        "odd": {"baseUrl": OWN, "api": "google-generative-ai"},
    }
}


@pytest.mark.parametrize(
    ("command", "texts", "variables", "provider"),
    [
        (("--provider", "mine", "--model", "m"), {}, {}, ClientProvider("openai", OWN, "mine")),
        (("--model", "theirs/m"), {}, {}, THEIRS),
        ((), {"/h/settings.json": '{"defaultProvider": "theirs"}'}, {}, THEIRS),
        ((), {}, {}, ClientProvider("openai", OWN, "mine")),
        ((), {}, {"ANTHROPIC_API_KEY": "k"}, ClientProvider("anthropic", "", "anthropic")),
        ((), {"/h/auth.json": '{"openai-codex": {"type": "oauth"}}'}, {}, PLAN_OF_PI),
    ],
)  # fmt: skip
def test_pi_gets_a_folder_of_settings_in_which_its_provider_has_our_address(
    command: Sequence[str], texts: Mapping[str, str], variables: Mapping[str, Any], provider: ClientProvider
) -> None:
    texts = {"/h/.pi/agent/models.json": json.dumps(PI), **texts}
    assert plan("pi", *command, texts=texts, **variables).provider == provider
    found = start("pi", *command, texts=texts, HOME="/h", **variables)
    assert found.command == ("pi", *command)
    assert found.environment == {"HOME": "/h", **variables, "PI_CODING_AGENT_DIR": "/scratch"}
    assert found.mirrored == str(Path("/h/.pi/agent"))
    changed = json.loads(found.files[str(Path("/scratch/models.json"))])["providers"]
    address = ORIGIN if provider.api == "anthropic" else BASE
    expected = {**PI["providers"], provider.name: {**PI["providers"].get(provider.name, {}), "baseUrl": address}}
    assert changed == expected


def test_pi_with_an_api_that_is_not_spoken_here_is_not_sent_here() -> None:
    for name in ("odd", "google"):
        with pytest.raises(UnknownUpstream, match=name):
            plan("pi", "--provider", name, texts={"/h/models.json": json.dumps(PI)})
    with pytest.raises(UnknownUpstream, match="--upstream"):
        _ = plan("pi", "--provider", "groq").provider.default_address


def test_copilot_is_sent_here_by_its_own_provider() -> None:
    own: dict[str, Any] = {
        "COPILOT_PROVIDER_BASE_URL": "https://own.example",
        "COPILOT_PROVIDER_TYPE": "anthropic",
        "COPILOT_MODEL": "m",
    }
    assert plan("copilot", **own).provider == ClientProvider("anthropic", "https://own.example/v1")
    assert start("copilot", "-p", **own).environment == {**own, "COPILOT_PROVIDER_BASE_URL": ORIGIN}
    plain = start("copilot", COPILOT_PROVIDER_BASE_URL=OWN, OPENAI_API_KEY="k").environment
    assert plain == {"COPILOT_PROVIDER_BASE_URL": BASE, "COPILOT_PROVIDER_TYPE": "openai", "OPENAI_API_KEY": "k"}
    with pytest.raises(UnknownUpstream, match="azure"):
        plan("copilot", COPILOT_PROVIDER_BASE_URL=OWN, COPILOT_PROVIDER_TYPE="azure")


def test_copilot_with_githubs_login_is_sent_here_only_for_an_upstream_that_the_user_names() -> None:
    with pytest.raises(UnknownUpstream, match="GitHub"):
        plan("copilot", OPENAI_API_KEY="k", COPILOT_MODEL="m")
    found = plan("copilot", is_named=True, ANTHROPIC_API_KEY="k", COPILOT_MODEL="m")
    assert start_client(found, ORIGIN).environment == {
        "ANTHROPIC_API_KEY": "k",
        "COPILOT_MODEL": "m",
        "COPILOT_PROVIDER_BASE_URL": ORIGIN,
        "COPILOT_PROVIDER_TYPE": "anthropic",
        "COPILOT_PROVIDER_API_KEY": "k",
    }


def test_continue_gets_a_copy_of_its_configuration() -> None:
    found = start("cn", "-p", "hi", texts=SETTINGS["cn"])
    path = str(Path("/scratch/config.yaml"))
    assert plan("cn", texts=SETTINGS["cn"]).provider == ClientProvider("openai", OWN, "openai")
    assert found.command == ("cn", "--config", path, "-p", "hi")
    embedder, chat, other = json.loads(found.files[path])["models"]
    assert chat["apiBase"] == BASE
    assert chat["apiKey"] == "${{ secrets.KEY }}"
    assert "apiBase" not in embedder
    assert "apiBase" not in other
    for words in (("--config", "mine.yaml"), ("--config=mine.yaml",)):
        chosen = start("cn", *words, "-p", texts={"/w/mine.yaml": "models: [{provider: anthropic, model: c}]"})
        assert chosen.command[-2:] == (words[-1].replace("mine.yaml", path), "-p")
        assert json.loads(chosen.files[path])["models"][0]["apiBase"] == BASE


@pytest.mark.parametrize(
    ("command", "text", "why"),
    [
        (("cn",), "", "set one up"),
        (("cn",), "models: [", "set one up"),
        (("cn",), "models: [{uses: theirs/model}]", "set one up"),
        (("cn", "--config", "theirs/config"), CONTINUE, "set one up"),
        (("cn",), "models: [{provider: gemini, model: g}]", "gemini"),
    ],
)
def test_continue_without_a_model_that_can_be_changed_is_not_sent_here(
    command: Sequence[str], text: str, why: str
) -> None:
    with pytest.raises(UnknownUpstream, match=why):
        plan(*command, texts={"/h/config.yaml": text})


@pytest.mark.parametrize(
    ("chosen", "variables", "variable", "upstream"),
    [
        ("", {}, "GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
        ("gemini-api-key", {"GOOGLE_GEMINI_BASE_URL": "https://g.example"}, "GOOGLE_GEMINI_BASE_URL", "https://g.example"),
        ("oauth-personal", {}, "CODE_ASSIST_ENDPOINT", "https://cloudcode-pa.googleapis.com"),
        ("", {"GOOGLE_GENAI_USE_GCA": "true"}, "CODE_ASSIST_ENDPOINT", "https://cloudcode-pa.googleapis.com"),
        ("vertex-ai", {"GOOGLE_VERTEX_BASE_URL": "https://v.example/"}, "GOOGLE_VERTEX_BASE_URL", "https://v.example/"),
    ],
)  # fmt: skip
def test_the_login_of_gemini_cli_decides_its_upstream(
    chosen: str, variables: Mapping[str, Any], variable: str, upstream: str
) -> None:
    texts = {"/h/.gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": chosen}}})}
    assert plan("gemini", texts=texts, **variables).provider == ClientProvider("google", upstream)
    assert start("gemini", texts=texts, **variables).environment == {**variables, variable: ORIGIN}


def test_gemini_cli_whose_address_is_not_known_or_has_a_path_is_not_sent_here() -> None:
    with pytest.raises(UnknownUpstream, match="region"):
        plan("gemini", GOOGLE_GENAI_USE_VERTEXAI="true")
    with pytest.raises(UnknownUpstream, match="path"):
        plan("gemini", GOOGLE_GEMINI_BASE_URL="https://g.example/x")


def test_qwen_code_with_another_login_than_a_key_is_not_sent_here() -> None:
    texts = {"/h/settings.json": '{"security": {"auth": {"selectedType": "qwen-oauth"}}}'}
    with pytest.raises(UnknownUpstream, match="qwen-oauth"):
        plan("qwen", texts=texts)
    assert plan("qwen", "--auth-type", "openai", texts=texts, OPENAI_BASE_URL=OWN).upstream == OWN


@pytest.mark.parametrize(
    ("command", "variables", "found"),
    [
        (("codex",), {"CODEX_HOME": "/c"}, ["/c/config.toml", "/c/auth.json"]),
        (("npx", "@openai/codex"), {}, ["/h/.codex/config.toml", "/h/.codex/auth.json"]),
        (("cn", "--config", "~/x.yaml"), {}, ["/h/.continue/config.yaml", "/h/x.yaml"]),
        (("cn", "--config=x.yaml"), {"CONTINUE_GLOBAL_DIR": "/g"}, ["/g/config.yaml", "/w/p/x.yaml"]),
        (("pi",), {}, [f"/h/.pi/agent/{name}.json" for name in ("models", "settings", "auth")]),
        (("python",), {}, []),
    ],
)
def test_the_files_that_say_where_a_client_calls(
    command: Sequence[str], variables: Mapping[str, Any], found: Sequence[str]
) -> None:
    listed = list_files(command, {"HOME": "/h", **variables}, Path("/w/p"))
    assert listed == [Path(path) for path in found]


def test_settings_of_a_project_take_precedence_over_those_of_the_user() -> None:
    listed = [
        str(path) for path in list_files(("opencode",), {"HOME": "/h", "OPENCODE_CONFIG": "o.json"}, Path("/w/p"))
    ]
    order = ["/h/.config/opencode/opencode.json", "/w/p/o.json", "/w/opencode.json", "/w/p/opencode.json"]
    assert [path for path in listed if path in order] == order


@pytest.mark.parametrize(
    ("text", "tree"), [("[1]", {}), ("{", {}), ("", {}), ('{"a": "b // \\"c", /* d */ }', {"a": 'b // "c'})]
)
def test_json_may_have_comments(text: str, tree: Mapping[str, str]) -> None:
    assert parse_json(text) == tree


@pytest.mark.parametrize(
    ("program", "environment", "api", "upstream"),
    [
        ("claude", {}, "anthropic", ""),
        ("claude", {"ANTHROPIC_BASE_URL": "https://own.example"}, "anthropic", "https://own.example/v1"),
        ("aider", {"OPENAI_API_BASE": OWN}, "openai", OWN),
        ("python", {"OPENAI_BASE_URL": OWN, "ANTHROPIC_BASE_URL": "https://x"}, "openai", OWN),
        ("python", {"ANTHROPIC_BASE_URL": "https://x/v1/"}, "anthropic", "https://x/v1/"),
        ("python", {"ANTHROPIC_API_KEY": "k"}, "anthropic", ""),
        ("python", {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "openai", ""),
        ("python", {}, "openai", ""),
    ],
)
def test_the_upstream_is_the_one_that_the_client_would_have_used(
    program: str, environment: Mapping[str, str], api: str, upstream: str
) -> None:
    found = plan_client((program,), environment)
    assert (found.provider.api, found.upstream) == (api, upstream)


def test_a_key_goes_to_no_other_provider() -> None:
    """Only a person who names the upstream may mean it for every API."""
    assert "ANTHROPIC_BASE_URL" not in start("python").environment
    assert "OPENAI_BASE_URL" not in start("python", ANTHROPIC_API_KEY="k").environment
    assert {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"} <= start("python", has_all=True).environment.keys()


def test_a_proxy_of_the_network_is_not_used_for_this_machine() -> None:
    assert start("claude", https_proxy="http://p", NO_PROXY="a, localhost").environment["NO_PROXY"] == (
        "a,localhost,127.0.0.1"
    )
    assert start("claude", HTTP_PROXY="http://p").environment["no_proxy"] == "127.0.0.1,localhost"
    assert "NO_PROXY" not in start("claude").environment


def test_a_client_that_calls_our_server_already_is_sent_where_that_sends_it() -> None:
    found = plan_client(("python",), {"OPENAI_BASE_URL": BASE})
    assert replace_own_address(found, (ORIGIN, OWN)).upstream == OWN
    assert replace_own_address(found, (ORIGIN, OWN, "https://another.example")).upstream == ""
    assert replace_own_address(found, ("http://127.0.0.1:84", OWN)) == found
    assert replace_own_address(found, ()) == found


def test_an_unknown_program_owns_no_screen() -> None:
    assert not find_client(("python",)).owns_screen
    assert isinstance(plan_client(("x",), {}), ClientPlan)
