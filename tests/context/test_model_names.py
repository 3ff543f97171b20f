"""Names of models."""

import pytest

from proxy.context.model_names import Family, find_family, list_names, may_bind_reasoning


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("GPT-4o", ("gpt-4o",)),
        ("gpt-4o-2024-08-06", ("gpt-4o-2024-08-06", "gpt-4o")),
        ("gpt-4-0613", ("gpt-4-0613", "gpt-4")),
        ("claude-sonnet-4-5-20250929", ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5")),
        ("claude-3-5-sonnet@20240620", ("claude-3-5-sonnet@20240620", "claude-3-5-sonnet")),
        ("gemini-2.5-pro-preview-05-06", ("gemini-2.5-pro-preview-05-06", "gemini-2.5-pro-preview", "gemini-2.5-pro")),
        ("openrouter/openai/gpt-4o", ("openrouter/openai/gpt-4o", "openai/gpt-4o", "gpt-4o")),
        ("z-ai/glm:free", ("z-ai/glm:free", "glm:free", "z-ai/glm", "glm")),
        (
            "us.anthropic.claude-x-v1:0",
            (
                "us.anthropic.claude-x-v1:0",
                "claude-x-v1:0",
                "us.anthropic.claude-x-v1",
                "us.anthropic.claude-x",
                "claude-x-v1",
                "claude-x",
            ),
        ),
    ],
)
def test_a_name_is_looked_for_as_it_is_and_then_with_less_and_less(model: str, names: tuple[str, ...]) -> None:
    assert list_names(model) == names


@pytest.mark.parametrize("model", ["llama-3-8b", "claude-sonnet-4-5", "gpt-4.1", "qwen2.5-72b", ""])
def test_sizes_and_versions_of_a_name_are_no_dates(model: str) -> None:
    assert list_names(model) == (model,)


@pytest.mark.parametrize(
    ("model", "vendor", "encoding", "is_exact"),
    [
        ("gpt-4o", "openai", "o200k_base", True),
        ("openai/gpt-4.1-mini", "openai", "o200k_base", True),
        ("gpt-5", "openai", "o200k_base", True),
        ("gpt-oss-120b", "openai", "o200k_base", True),
        ("o3-mini", "openai", "o200k_base", True),
        ("chatgpt-4o-latest", "openai", "o200k_base", True),
        ("gpt-4", "openai", "cl100k_base", True),
        ("gpt-4-turbo", "openai", "cl100k_base", True),
        ("gpt-3.5-turbo", "openai", "cl100k_base", True),
        ("gpt-35-turbo", "openai", "cl100k_base", True),
        ("us.anthropic.claude-x-v1:0", "anthropic", "o200k_base", False),
        ("gemini-2.5-pro", "gemini", "o200k_base", False),
        ("olmo", "other", "o200k_base", False),
    ],
)
def test_the_family_is_told_by_the_name(model: str, vendor: str, encoding: str, is_exact: bool) -> None:
    assert find_family(model) == Family(vendor, encoding, is_exact)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("models", "may_bind"),
    [
        (("claude-fable-5-2", "anthropic/claude-opus-5.5", "claude-sonnet-5-5-20261001", "claude-haiku-5-5"), True),
        (("us.anthropic.claude-mythos-5-1-v1:0", "claude-fable-6", "claude-opus-10", "somebody/new-model"), True),
        (
            ("claude-opus-5", "claude-sonnet-5-20260301", "claude-fable-5", "claude-haiku-4-5", "claude-3-7-sonnet"),
            False,
        ),
        (("anthropic/claude-sonnet-4.5", "claude-opus-4-8", "claude-instant-1", "google/gemini-3-pro"), False),
        (("gpt-5.6", "openai/o4-mini", "deepseek/deepseek-v4", "qwen3-coder", "x-ai/grok-5"), False),
    ],
)
def test_reasoning_may_be_bound_unless_a_model_is_known_not_to_check_it(
    models: tuple[str, ...], *, may_bind: bool
) -> None:
    assert {model: may_bind_reasoning(model) for model in models} == dict.fromkeys(models, may_bind)
