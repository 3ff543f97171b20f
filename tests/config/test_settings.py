"""The tree: defaults, checks, and the policies made of it."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from proxy.config.errors import ConfigError
from proxy.config.settings import Settings
from proxy.context.budget import ModelPolicy
from proxy.context.conversation import BuilderPolicy, SnapshotPolicy, TurnsPolicy
from proxy.engine.policy import CredentialPlace, DoomLoopSettings, EnginePolicy, Principal, Provider, ShadowPolicy
from proxy.model.card import Offer
from proxy.server.policy import ServerPolicy
from proxy.store.policy import StorePolicy
from proxy.upstream.policy import UpstreamPolicy

PROXY = "http://user:hidden@proxy.example:3128"


def problems_of(**values: Any) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    cause = caught.value.__cause__
    assert isinstance(cause, ValidationError)
    return [(error["loc"], error["msg"].removeprefix("Value error, ")) for error in cause.errors()]


def test_a_program_is_told_what_to_correct() -> None:
    with pytest.raises(ConfigError, match=r"upstream: unknown key; did you mean upstreams\?"):
        Settings(upstream=[])  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^upstreams\[0\].base_url: must be an address such as"):
        Settings(upstreams=[{"base_url": "x"}])


def test_without_any_source_the_defaults_are_those_of_the_rooms() -> None:
    settings = Settings()
    assert settings.server_policy() == ServerPolicy()
    assert settings.engine_policy() == EnginePolicy(places=(CredentialPlace("openai", "api.openai.com"),))
    assert settings.store_policy() == StorePolicy(Path.home() / ".palimpsest" / "log.db", durability="normal")
    assert settings.upstream_policies() == (UpstreamPolicy("openai", base_url="https://api.openai.com/v1"),)
    assert settings.providers() == {"openai": Provider("api.openai.com")}


def test_a_limit_for_the_log_erases_nothing_unless_that_is_said() -> None:
    limited = Settings(store={"max_bytes": "1GiB"})
    assert not limited.store.is_erasing and limited.store_policy().max_bytes == 2**30
    erasing = Settings(store={"max_bytes": "1GiB", "when_full": "erase", "retention_days": 9})
    assert (erasing.store.retention_days, erasing.store.erased_above, erasing.store.is_erasing) == (9, 2**30, True)
    assert not Settings(store={"when_full": "erase"}).store.is_erasing


def test_every_key_reaches_a_policy() -> None:
    settings = Settings(
        mode="observe",
        data="/somewhere",
        server={
            "host": "::1",
            "port": 1,
            "admin_token": "t",
            "metrics_token": "m",
            "allowed_hosts": ["Proxy.Example"],
            "allowed_origins": ["https://App.Example"],
            "require_tenant": True,
            "max_body_bytes": "1MiB",
            "max_buffered_bytes": "3MiB",
            "max_header_bytes": "2KiB",
            "header_timeout": 1,
            "body_timeout": 2,
            "body_min_rate": 8,
            "stall_timeout": 3,
            "drain_seconds": 0,
        },
        upstreams=[
            {
                "name": "a",
                "base_url": "http://[::1]:9000/v1/",
                "api_key": "sk-1",
                "models": ["gpt-*"],
                "auth": "x-api-key",
                "window": 9000,
                "cache": "breakpoints",
                "summary_role": "assistant",
                "strict_alternation": True,
                "connect_timeout": 4,
                "idle_timeout": 5,
                "proxy": PROXY,
            }
        ],
        strategy="turns",
        models={
            "m-*": {"strategy": "epochs", "window": 9000, "max_output": 2000},
            "n": {"compaction_ratio": 0.7, "safety_margin_tokens": 500},
        },
        snapshot={"raw_tail_turns": 2, "max_episodic_items": 4, "max_semantic_items": 5, "tail": "text"},
        turns={"user_turns": 3, "scan_messages": 30},
        doom_loop={"threshold": 4},
        shadow={"fraction": 0.01, "spend_per_day": 2, "bound_reasoning": True},
        sessions={"headers": ["X-Conversation"], "infer": False, "cache_bytes": 6},
        tenants={"team": ["sk-1", "sk-2"], "user": "X-User"},
        store={
            "durability": "full",
            "on_failure": "refuse",
            "commit_wait_ms": 7,
            "spool_bytes": "10 MB",
            "record_cap_bytes": 4096,
            "max_bytes": "1GiB",
        },
    )
    assert settings.server_policy() == ServerPolicy(
        *("::1", 1, ("proxy.example",), ("https://app.example",), True, False, 2**20, 3 * 2**20, 2048, 1, 2, 8, 3, 0),
        admin_token="t",
        has_own_key=True,
        tenant_keys=("sk-1", "sk-2"),
        metrics_token="m",
    )
    assert settings.engine_policy() == EnginePolicy(
        "observe",
        7,
        4096,
        "refuse",
        ("x-conversation",),
        infer=False,
        cache_bytes=6,
        principals={"team": Principal(keys=("sk-1", "sk-2")), "user": Principal(header="x-user")},
        own_keys=(b"sk-1",),
        strategy="turns",
        models={
            "m-*": ModelPolicy("epochs", 9000, 2000),
            "n": ModelPolicy(compaction_ratio=0.7, safety_margin_tokens=500),
        },
        places=(CredentialPlace("a", "::1", b"sk-1"),),
    )
    assert settings.stated_sizes() == {"m-*": Offer(9000, 2000), "n": Offer()}
    assert settings.builder_policy() == BuilderPolicy(
        turns=TurnsPolicy(3, 30), snapshot=SnapshotPolicy(2, 4, 5, "text")
    )
    assert settings.snapshot == SnapshotPolicy(2, 4, 5, "text")
    assert settings.doom_loop == DoomLoopSettings(4)
    assert settings.shadow == ShadowPolicy(0.01, 2, bound_reasoning=True)
    assert settings.store_policy() == StorePolicy(Path("/somewhere/log.db"), "full", 10**7, 2**30, must_write=True)
    expected = UpstreamPolicy(
        *("a", "openai", "http://[::1]:9000/v1", "sk-1", "", ("gpt-*",), "x-api-key", 4, 5, 9000, "breakpoints"),
        proxy=PROXY,
        summary_role="assistant",
        strict_alternation=True,
    )
    assert settings.upstream_policies() == (expected,)
    assert settings.providers() == {"a": Provider("::1", "breakpoints", "assistant", True, has_own_key=True)}
    assert settings.stated_windows() == {"a": Offer(window=9000)}


def test_a_key_that_goes_nowhere_is_nobodys() -> None:
    settings = Settings(upstreams=[{"name": "a", "api_key": "sk-1", "auth": "none"}, {"name": "b"}])
    assert [provider.has_own_key for provider in settings.providers().values()] == [False, False]


def test_the_environments_proxy_is_used_where_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    settings = Settings(upstreams=[{"name": "a", "proxy": "env"}, {"name": "b"}, {"name": "c", "proxy": "none"}])
    assert [policy.proxy for policy in settings.upstream_policies()] == [PROXY, "none", "none"]
    assert "hidden" not in f"{settings!r} {settings.upstream_policies()}"
    monkeypatch.setenv("HTTPS_PROXY", "socks5://user:hidden@proxy.example")
    ((_, problem),) = problems_of(upstreams=[{"name": "a", "proxy": "env"}])
    assert "the proxy that the environment names for this upstream cannot be used" in problem
    assert "hidden" not in problem


def test_one_idle_time_can_be_given_to_all_upstreams() -> None:
    settings = Settings(upstreams=[{"name": "a"}, {"name": "b", "idle_timeout": 1}]).with_idle_timeout(9)
    assert [policy.idle_timeout for policy in settings.upstream_policies()] == [9, 9]


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  hidden\n")
    settings = Settings(server={"admin_token_file": str(file)}, upstreams=[{"api_key_file": file}])
    assert settings.server_policy().admin_token == "hidden"
    assert settings.upstream_policies()[0].api_key == "hidden"
    assert "hidden" not in repr(settings)


def test_a_secret_in_a_file_and_in_place_are_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden")
    both = {"api_key": "k", "api_key_file": str(file)}
    assert problems_of(upstreams=[both]) == [
        (("upstreams", 0), "api_key and api_key_file are both set; keep one of them")
    ]
    both = {"admin_token": "k", "admin_token_file": str(file)}
    assert problems_of(server=both)[0][0] == ("server",)


def test_secrets_are_not_in_the_settings_text() -> None:
    settings = Settings(server={"admin_token": "hush"}, upstreams=[{"api_key": "hush"}])
    assert "hush" not in repr(settings) + str(settings)


def test_secrets_are_not_in_settings_that_are_written_as_json(tmp_path: Path) -> None:
    (file := tmp_path / "secret").write_text("hush")
    settings = Settings(
        server={"admin_token": "hush", "metrics_token_file": str(file)},
        upstreams=[{"api_key": "hush", "proxy": "http://u:hush@proxy.example:1"}],
        telemetry={"headers": {"x-key": "hush"}},
        tenants={"a": ["hush"]},
    )
    assert "hush" not in settings.model_dump_json()


def test_settings_may_be_part_of_a_programs_own() -> None:
    class Own(BaseModel):
        proxy: Settings

    settings = Settings(server={"port": 1})
    assert Own(proxy=settings).proxy is settings
    assert "server.port" in settings.model_fields_set


def test_upstream_names_are_unique() -> None:
    assert problems_of(upstreams=[{"name": "a"}, {"name": "a"}]) == [
        (("upstreams",), 'two are named "a"; names are unique')
    ]


def test_without_upstreams_there_is_nothing_to_serve() -> None:
    assert problems_of(upstreams=[])[0][0] == ("upstreams",)


def test_a_spool_that_could_not_take_a_large_record_is_refused() -> None:
    [(path, what)] = problems_of(store={"spool_bytes": "9MiB"})
    assert path == ("store",)
    assert "twice record_cap_bytes" in what


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("server", "port", 65536),
        ("server", "header_timeout", 0),
        ("server", "drain_seconds", "inf"),
        ("server", "max_body_bytes", 10),
        ("store", "durability", "perhaps"),
        ("store", "commit_wait_ms", -1),
        ("sessions", "headers", ["not a name"]),
        ("upstreams", 0, {"window": 10}),
        ("upstreams", 0, {"cache": "none"}),
        ("upstreams", 0, {"summary_role": "system"}),
        ("upstreams", 0, {"compaction": True, "strict_alternation": True}),
        ("upstreams", 0, {"compaction": True, "kind": "litellm"}),
        ("sessions", "cache_bytes", "lots"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_key(section: str, key: str | int, value: object) -> None:
    values = [value] if section == "upstreams" else {key: value}
    assert problems_of(**{section: values})[0][0][:2] == (section, key)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().mode = "bypass"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Settings().server.port = 1  # type: ignore[misc]


def test_a_key_belongs_to_one_tenant() -> None:
    ((location, message),) = problems_of(tenants={"a": ["sk-1", "sk-1"], "b": ["sk-1"]})
    assert location == ("tenants",)
    assert '"b"' in message
    assert "sk-1" not in message


@pytest.mark.parametrize("tenants", [{"a b": ["sk"]}, {"a": ["s k"]}, {"a": "no header"}, {"a": 7}])
def test_what_cannot_be_a_tenant_is_refused(tenants: object) -> None:
    assert problems_of(tenants=tenants)


KEYED = [{"name": "a", "api_key": "sk-1"}]


def test_a_key_is_not_offered_to_a_network_without_a_word() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(server={"host": "0.0.0.0"}, upstreams=KEYED).check_network("0.0.0.0")
    told = str(caught.value)
    for way in ("127.0.0.1", "server.require_tenant: true", "tenants", "api_key", "server.open_to_network: true"):
        assert way in told
    assert "sk-1" not in told


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_nobody_else_reaches_loopback(address: str) -> None:
    Settings(upstreams=KEYED).check_network(address)


@pytest.mark.parametrize("address", ["::", "", "192.168.1.5", "fd00::1", "box"])
def test_what_is_no_loopback_address_is_a_network(address: str) -> None:
    with pytest.raises(ConfigError):
        Settings(upstreams=KEYED).check_network(address)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"upstreams": [{"name": "a", "api_key": "sk-1", "auth": "none"}]},
        {"upstreams": KEYED, "server": {"open_to_network": True}},
        {"upstreams": KEYED, "server": {"require_tenant": True}, "tenants": {"team": ["k"]}},
    ],
)
def test_a_network_is_served_where_there_is_no_key_or_it_was_meant(values: dict[str, Any]) -> None:
    Settings(**values).check_network("0.0.0.0")


@pytest.mark.parametrize("tenants", [{}, {"user": "X-User"}])
def test_a_tenant_is_required_only_where_there_are_keys_to_know_one_by(tenants: dict[str, Any]) -> None:
    [(_, what)] = problems_of(server={"require_tenant": True}, tenants=tenants)
    assert "tenants has no keys" in what
    assert Settings(tenants={"team": ["k"]}).server_policy().tenant_keys is None


LITELLM = {"name": "a", "kind": "litellm"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"proxy": "http://proxy.example:3128"}, "litellm takes its proxy from HTTPS_PROXY and NO_PROXY"),
        ({"auth": "x-api-key"}, "set auth to bearer or none"),
        ({"auth": "none", "api_key": "k"}, "api_key would not be used"),
        ({"api_key": "k"}, "api_key is one provider's"),
        ({"api_key": "k", "models": ["*"]}, "api_key is one provider's"),
        ({"api_key": "k", "base_url": "http://x"}, "api_key is one provider's"),
        ({"api_key": "k", "models": ["azure/*", "groq/*"]}, "api_key is one provider's"),
        ({"api_key": "k", "models": ["azure/*", "gpt-*"]}, "api_key is one provider's"),
        ({"api_key": "k", "models": ["a*/gpt"]}, "api_key is one provider's"),
    ],
)
def test_what_litellm_does_by_itself_is_not_set_and_a_key_goes_to_one_provider(
    values: dict[str, object], problem: str
) -> None:
    ((_, told),) = problems_of(upstreams=[{**LITELLM, **values}])
    assert problem in told


@pytest.mark.parametrize("values", [{"api_key": "k", "models": ["azure/*", "azure/b"]}, {"base_url": "http://x"}, {}])
def test_an_upstream_of_litellm_has_an_address_only_if_one_is_set(values: dict[str, object]) -> None:
    settings = Settings(upstreams=[{**LITELLM, **values}])
    (policy,) = settings.upstream_policies()
    assert (policy.kind, policy.base_url, policy.address) == ("litellm", values.get("base_url", ""), "litellm:a")
    assert settings.providers()["a"].host == ("x" if "base_url" in values else "")
    assert settings.providers()["a"].has_own_key == ("api_key" in values)
    assert Settings(**json.loads(settings.dump_judging())).upstream_policies()[0].base_url == policy.base_url


def test_an_address_that_is_stated_for_litellm_counts_though_it_is_the_usual_one() -> None:
    usual = UpstreamPolicy().base_url
    settings = Settings(upstreams=[{**LITELLM, "base_url": usual}])
    assert settings.upstream_policies()[0].base_url == usual


def test_litellm_may_always_spend_what_is_the_servers() -> None:
    """It finds credentials in the environment."""
    assert Settings(upstreams=[LITELLM]).server_policy().has_own_key
    with pytest.raises(ConfigError, match="credentials of the environment"):
        Settings(upstreams=[LITELLM]).check_network("0.0.0.0")
    assert Settings(upstreams=[{**LITELLM, "auth": "none"}]).providers()["a"].has_own_key


@pytest.mark.parametrize(
    ("kind", "asked", "edits_context"),
    [
        ("openai", {}, True),
        ("litellm", {}, False),
        ("openai", {"context_editing": "proxy"}, False),
        ("litellm", {"context_editing": "upstream"}, True),
    ],
)
def test_who_clears_what_a_client_asks_for_depends_on_the_kind_unless_it_is_set(
    kind: str, asked: dict[str, str], *, edits_context: bool
) -> None:
    upstream = {"name": "u", "kind": kind, "base_url": "http://127.0.0.1:9/v1", **asked}
    assert Settings(upstreams=[upstream]).providers()["u"].edits_context == edits_context
