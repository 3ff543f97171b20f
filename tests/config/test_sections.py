"""Sections of settings: what they refuse, and the policies made of them."""

import base64
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from proxy.config import ConfigError, load_settings
from proxy.config.settings import Settings
from proxy.context.budget import BudgetPolicy
from proxy.context.conversation import BuilderPolicy, FilesPolicy, PruningPolicy
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.events.webhooks import WebhookPolicy
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.recall.policy import RecallPolicy
from proxy.model.card import Offer, Prices, Rates


def problems_of(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [problem.key for problem in caught.value.problems]


def test_without_any_source_the_defaults_are_those_of_the_rooms() -> None:
    settings = Settings()
    assert settings.budget == BudgetPolicy()
    assert settings.builder_policy() == BuilderPolicy()
    assert settings.recall == RecallPolicy()
    assert settings.nudge == NudgePolicy()
    assert (settings.stated_windows(), settings.stated_prices()) == ({}, {})


def test_every_key_reaches_a_policy() -> None:
    settings = Settings(
        budget={
            "ceiling_tokens": 64_000,
            "soft_fraction": 0.5,
            "low_fraction": 0.1,
            "output_reserve": 1,
            "compaction_reserve": 2,
        },
        pruning={"enabled": False, "protect_tokens": 3, "minimum_tokens": 4, "protected_tools": ["t"]},
        files={"inline_tokens": 5, "outline": False},
        recall={"inject": False, "max_hops": 6, "page_characters": 7_000, "scope": "tenant"},
        nudge={"enabled": True, "texts": ["on", "go"], "idle_seconds": 8, "wait_seconds": 9},
        upstreams=[{"name": "a", "strict_alternation": True}, {"name": "b"}],
    )
    assert settings.budget == BudgetPolicy(64_000, 0.5, 0.1, 1, 2)
    expected = BuilderPolicy(PruningPolicy(False, 3, 4, ("t",)), FilesPolicy(5, False))
    assert settings.builder_policy() == expected
    assert settings.recall == RecallPolicy(False, 6, 7_000, "tenant")
    assert settings.nudge == NudgePolicy(True, ("on", "go"), 8, 9)


def test_auto_is_what_the_defaults_are() -> None:
    automatic = Settings(budget=dict.fromkeys(("ceiling_tokens", "soft_fraction", "low_fraction"), "auto"))
    assert automatic.budget == BudgetPolicy()


def test_a_number_may_come_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_BUDGET__CEILING_TOKENS", "32000")
    assert load_settings().budget.ceiling_tokens == 32_000


def test_prices_are_of_a_million_tokens() -> None:
    price = {"input": 2, "output": 8, "cached": 0.5, "written": 2.5, "retention_seconds": 300}
    rates = Rates(input=2e-6, output=8e-6, cached=5e-7, written=2.5e-6)
    assert Settings(pricing={"m-*": price}).stated_prices() == {"m-*": Offer(prices=Prices(rates), retention=300)}


def test_unsaid_prices_follow_from_the_inputs() -> None:
    rates = Rates(input=1e-5, output=5e-5, cached=1e-6, written=1e-5)
    assert Settings(pricing={"m": {"input": 10}}).stated_prices() == {"m": Offer(prices=Prices(rates))}


def test_what_is_said_to_cost_nothing_costs_nothing() -> None:
    price = {"input": 0, "output": 0, "cached": 0, "written": 0}
    [offer] = Settings(pricing={"m": price}).stated_prices().values()
    assert offer.prices == Prices(Rates(0, 0, 0, 0))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("budget", "ceiling_tokens", 999),
        ("budget", "ceiling_tokens", "much"),
        ("budget", "soft_fraction", 0),
        ("budget", "low_fraction", 1.5),
        ("budget", "output_reserve", -1),
        ("pruning", "protect_tokens", -1),
        ("pruning", "enabled", "perhaps"),
        ("files", "inline_tokens", -1),
        ("recall", "max_hops", 0),
        ("recall", "page_characters", 999),
        ("recall", "scope", "all"),
        ("pricing", "m", {"output": 1}),
        ("pricing", "m", {"input": "inf"}),
        ("pricing", "m", {"input": 1, "retention_seconds": 0}),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_key(section: str, key: str, value: object) -> None:
    assert problems_of(**{section: {key: value}})[0].startswith(f"{section}.{key}")


def test_a_context_is_shortened_below_the_mark_at_which_it_is() -> None:
    assert problems_of(budget={"soft_fraction": 0.3, "low_fraction": 0.3}) == ["budget"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("budget.ceiling", "budget.ceiling_tokens"),
        ("pricing.m.inputs", "pricing.MODEL.input"),
        ("files.outlines", "files.outline"),
    ],
)
def test_a_mistyped_key_comes_with_a_hint(path: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key; did you mean {meant}\\?"):
        load_settings(None, {path: 1, "pricing.m.input": 1})


def problem_of(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings(compaction=values)
    [problem] = caught.value.problems
    return str(problem)


def test_without_any_source_the_defaults_are_those_of_the_room() -> None:
    assert Settings().compaction == CompactionPolicy()


def test_every_key_reaches_the_policy() -> None:
    values: dict[str, Any] = {
        "auto": False,
        "model": "m",
        "fallback_models": ["n", "o"],
        "prompt": "Report.",
        "prompt_hook": "package.prompts.adapt",
        "level2": False,
        "max_rounds": 3,
        "condensation": False,
        "hard_wait_seconds": 0,
        "protect_turns": 4,
        "input_fraction": 0.5,
        "spend_fraction": 0.1,
        "spend_per_day": 2.5,
        "holdout_fraction": 0.2,
        "subscription_calls": True,
        "may_receive": ["openai"],
        "time_limit_seconds": 9,
        "reasoning_tokens": 7,
    }
    assert set(values) == {each.name for each in fields(Settings().compaction)}
    told = CompactionPolicy(**{**values, "fallback_models": ("n", "o"), "may_receive": ("openai",)})
    assert Settings(compaction=values).compaction == told
    assert all(getattr(told, name) != getattr(CompactionPolicy(), name) for name in values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompt_hook", "adapt"),
        ("prompt_hook", "package:adapt"),
        ("max_rounds", -1),
        ("hard_wait_seconds", "inf"),
        ("protect_turns", 1),
        ("input_fraction", 0),
        ("input_fraction", 1.1),
        ("spend_fraction", -0.1),
        ("spend_per_day", -1),
        ("holdout_fraction", 1.1),
        ("time_limit_seconds", 0),
        ("reasoning_tokens", -1),
    ],
)
def test_what_makes_no_sense_of_summaries_is_refused_at_its_key(key: str, value: object) -> None:
    assert problem_of(**{key: value}).startswith(f"compaction.{key}: ")


def test_a_hook_is_named_as_python_names_it() -> None:
    assert "my_package.prompts.adapt" in problem_of(prompt_hook="adapt")


def test_only_an_upstream_may_receive_anything() -> None:
    assert 'names "nobody", which is none of the upstreams' in problem_of(may_receive=["nobody"])


# --- webhooks --------------------------------------------------------------------------------------------------------

GOOD_SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


def test_webhooks_have_what_the_settings_say(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(GOOD_SECRET + "\n")
    given = [
        {"url": "https://hooks.example/in?key=1", "secret": GOOD_SECRET},
        {"url": "http://localhost:1/", "secret_file": str(file), "events": ["SESSION_CREATED"], "timeout": 2},
    ]
    first, second = Settings(events={"webhooks": given}).events.webhooks
    assert first == WebhookPolicy("https://hooks.example/in?key=1", GOOD_SECRET)
    assert second == WebhookPolicy(
        "http://localhost:1/", secret_file=GOOD_SECRET, events=("SESSION_CREATED",), timeout=2.0
    )
    assert first.decode_secret() == second.decode_secret() == b"s" * 32
    assert first.host == "hooks.example"
    assert GOOD_SECRET not in repr((first, second))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs a secret, or secret_file: whsec_"),
        ({"secret": "whsec_short"}, "needs a secret"),
        ({"secret": GOOD_SECRET.removeprefix("whsec_")}, "needs a secret"),
        ({"secret": "whsec_" + base64.b64encode(b"s" * 65).decode()}, "needs a secret"),
        ({"secret": GOOD_SECRET, "events": ["STREAM_ENDED"]}, '"STREAM_ENDED" is no event; there are SESSION_CREATED'),
        ({"secret": GOOD_SECRET, "url": "hooks.example"}, "must be an address such as https://hooks.example"),
        ({"secret": GOOD_SECRET, "url": "https://h:x/"}, "must be an address such as"),
        ({"secret": GOOD_SECRET, "url": "https://hooks.example/#in"}, "must be an address such as"),
        ({"secret": GOOD_SECRET, "url": "https://u:p@hooks.example/"}, "must not hold a user or password"),
        ({"secret": GOOD_SECRET, "timeout": 0}, "greater than 0"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    webhook = {"url": "https://hooks.example/", **given}
    with pytest.raises(ConfigError, match=re.escape(says)):
        Settings(events={"webhooks": [webhook]})


@pytest.mark.parametrize(
    "token", ["change-me", "CHANGEME", "your-admin-token", "<token>", "placeholder", "xxxx", "***"]
)
@pytest.mark.parametrize("name", ["admin_token", "metrics_token"])
def test_the_placeholder_of_an_example_is_no_secret(name: str, token: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is the placeholder of an example"):
        Settings(server={name: token})
    Settings(server={name: f"{token}-7f3a"})
