"""Settings of summaries."""

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config.settings import Settings
from proxy.engine.compaction.policy import CompactionPolicy


def problem_of(**values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings(compaction=values)
    [error] = caught.value.errors()
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def test_without_any_source_the_defaults_are_those_of_the_room() -> None:
    assert Settings().compaction_policy() == CompactionPolicy()


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
    assert set(values) == set(type(Settings().compaction).model_fields)
    told = CompactionPolicy(**{**values, "fallback_models": ("n", "o"), "may_receive": ("openai",)})
    assert Settings(compaction=values).compaction_policy() == told
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
def test_what_makes_no_sense_is_refused_at_its_key(key: str, value: object) -> None:
    assert problem_of(**{key: value}).startswith(f"compaction.{key}: ")


def test_a_hook_is_named_as_python_names_it() -> None:
    assert "my_package.prompts.adapt" in problem_of(prompt_hook="adapt")


def test_only_an_upstream_may_receive_anything() -> None:
    assert 'names "nobody", which is none of the upstreams' in problem_of(may_receive=["nobody"])
