"""What programs learn of a model by its name."""

import pytest

from proxy.config import load_settings
from proxy.sdk.models import ModelInfo


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-4o", ModelInfo("gpt-4o", "openai", 128_000, 16_384, "o200k_base")),
        ("openai/gpt-4", ModelInfo("gpt-4", "openai", 8192, 4096, "cl100k_base")),
        ("anthropic/claude-sonnet-4-5", ModelInfo("claude-sonnet-4-5", "anthropic", 200_000, 64_000, "o200k_base")),
        ("own/of-nobody", ModelInfo("of-nobody", "own", None, None, "o200k_base")),
        ("of-nobody", ModelInfo("of-nobody")),
    ],
)
def test_a_model_is_known_by_its_name(name: str, expected: ModelInfo) -> None:
    assert ModelInfo.from_model_string(name) == expected


def test_settings_come_before_the_map_and_what_is_given_by_hand_before_both() -> None:
    settings = load_settings(None, {"models": {"gpt-*": {"window": 50_000, "max_output": 2000}}})
    found = ModelInfo.from_model_string("gpt-4o", config=settings)
    assert (found.context_limit, found.max_output_tokens) == (50_000, 2000)
    found = ModelInfo.from_model_string(
        "gpt-4o", config=settings, context_limit=9000, encoding="cl100k_base", provider_id="azure"
    )
    assert found == ModelInfo("gpt-4o", "azure", 9000, 2000, "cl100k_base")


@pytest.mark.parametrize("name", ["", "  ", "openai/"])
def test_a_model_has_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="names no model"):
        ModelInfo.from_model_string(name)
