"""What each client needs: its row of the table gives exactly these arguments, variables and files, and no others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.clients import (
    CLIENTS,
    ClientPlan,
    ClientStart,
    UnknownUpstream,
    find_client,
    plan_client,
    replace_own_address,
    start_client,
)

ORIGIN = "http://127.0.0.1:8484"
BASE = f"{ORIGIN}/v1"
OWN = "https://own.example/api/v1"
CLINE = {"providers": {"openai-compatible": {"settings": {"apiKey": "k", "baseUrl": OWN}}, "other": {"a": 1}}}


def start(*command: str, settings: str = "", has_all: bool = False, **environment: str) -> ClientStart:
    plan = plan_client(command, environment, settings)
    return start_client(plan, ORIGIN, environment, folder="/scratch", has_all=has_all)


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
    command: tuple[str, ...], words: tuple[str, ...], variables: Mapping[str, str]
) -> None:
    found = start(*command, HOME="/h")
    assert found.command == words
    assert found.environment == {"HOME": "/h", **variables}
    assert found.files == {}


def test_every_client_of_the_table_is_sent_here() -> None:
    for client in CLIENTS:
        settings = json.dumps(CLINE) if client.settings is not None and client.settings.change is not None else ""
        found = start(client.names[0], settings=settings)
        told = " ".join([*found.command, *found.environment.values(), *found.files.values()])
        assert ORIGIN in told, client.names


def test_codex_is_sent_here_by_the_provider_that_its_settings_choose() -> None:
    settings = f'model_provider = "mine"\n[model_providers.mine]\nbase_url = "{OWN}"\n'
    plan = plan_client(("codex",), {}, settings)
    assert (plan.provider, plan.upstream) == ("mine", OWN)
    assert start_client(plan, ORIGIN, {}).command == ("codex", "-c", f'model_providers.mine.base_url="{BASE}"')
    assert plan_client(("codex",), {}, f'openai_base_url = "{OWN}"').upstream == OWN
    assert plan_client(("codex",), {}, "= nonsense").default_upstream == "https://api.openai.com/v1"
    with pytest.raises(UnknownUpstream, match="--upstream"):
        _ = plan_client(("codex",), {}, 'model_provider = "unsaid"').default_upstream


def test_cline_gets_a_changed_copy_of_its_settings() -> None:
    plan = plan_client(("cline",), {}, json.dumps(CLINE))
    found = start_client(plan, ORIGIN, {}, folder="/scratch")
    path = str(Path("/scratch/providers.json"))
    assert plan.upstream == OWN
    assert found.environment == {"CLINE_PROVIDER_SETTINGS_PATH": path, "CLINE_SESSION_BACKEND_MODE": "local"}
    changed = json.loads(found.files[path])
    assert changed["providers"]["openai-compatible"]["settings"] == {"apiKey": "k", "baseUrl": BASE}
    assert changed["providers"]["other"] == {"a": 1}


@pytest.mark.parametrize("settings", ["", "nonsense", "[]", '{"providers": {"anthropic": {}}}'])
def test_cline_without_a_provider_that_can_be_changed_is_not_sent_here(settings: str) -> None:
    with pytest.raises(UnknownUpstream, match="set one up"):
        plan_client(("cline",), {}, settings)


def test_opencode_gets_the_address_of_the_provider_that_is_asked_for() -> None:
    found = start(
        "opencode", "run", "hi", OPENCODE_CONFIG_CONTENT='{"share": "disabled", "provider": {"openai": {"n": 1}}}'
    )
    config = json.loads(found.environment["OPENCODE_CONFIG_CONTENT"])
    assert config == {"share": "disabled", "provider": {"openai": {"n": 1, "options": {"baseURL": BASE}}}}
    for words in (("-m", "anthropic/x"), ("--model=anthropic/x",)):
        plan = plan_client(("opencode", *words), {"ANTHROPIC_BASE_URL": OWN})
        assert (plan.api, plan.upstream) == ("anthropic", OWN)
        content = start_client(plan, ORIGIN, {"OPENCODE_CONFIG_CONTENT": "nonsense"}).environment
        assert opencode(content["OPENCODE_CONFIG_CONTENT"]) == {"anthropic": {"options": {"baseURL": BASE}}}


def test_a_provider_of_opencode_whose_address_is_not_known_is_named_by_the_user() -> None:
    plan = plan_client(("opencode", "--model", "mine/x"), {"OPENAI_BASE_URL": OWN})
    assert (plan.provider, plan.upstream) == ("mine", "")
    with pytest.raises(UnknownUpstream, match="--upstream"):
        _ = plan.default_upstream


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
    plan = plan_client((program,), environment)
    assert (plan.api, plan.upstream) == (api, upstream)


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
    plan = plan_client(("python",), {"OPENAI_BASE_URL": BASE})
    assert replace_own_address(plan, (ORIGIN, OWN)).upstream == OWN
    assert replace_own_address(plan, (ORIGIN, OWN, "https://another.example")).upstream == ""
    assert replace_own_address(plan, ("http://127.0.0.1:84", OWN)) == plan
    assert replace_own_address(plan, ()) == plan


def test_an_unknown_program_owns_no_screen() -> None:
    assert not find_client(("python",)).owns_screen
    assert isinstance(plan_client(("x",), {}), ClientPlan)
