"""Media by the examples that providers publish."""

import pytest

from proxy.context.media_tokens import count_media, count_tool_prompt
from proxy.context.model_names import find_family
from proxy.model.countable import Medium


def count(model: str, *media: Medium) -> int:
    return count_media(media, find_family(model), model)


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        ("gpt-4o", 1024, 1024, 765),  # OpenAI's own example
        ("gpt-4o", 2048, 4096, 1105),  # OpenAI's own example
        ("gpt-4o-2024-08-06", 512, 512, 255),
        ("openai/gpt-4o-mini", 512, 512, 8500),
        ("gpt-5", 512, 512, 210),
        ("o1", 512, 512, 225),
        ("gpt-4.1-mini", 1024, 1024, 1659),  # 1024 patches
        ("gpt-4.1-mini", 4096, 4096, 2489),  # 1536 at most
        ("o4-mini", 32, 33, 4),
        ("claude-sonnet-4-5", 1000, 1000, 1334),  # Anthropic's own example
        ("claude-sonnet-4-5", 200, 200, 54),
        ("claude-sonnet-4-5", 8000, 8000, 1600),
        ("gemini-2.5-pro", 384, 384, 258),
        ("gemini-2.5-pro", 960, 540, 516),
        ("llava", 200, 200, 54),
    ],
)
def test_an_image_costs_what_its_provider_says(model: str, width: int, height: int, tokens: int) -> None:
    assert count(model, Medium("image", width, height)) == tokens


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gpt-4o", 1445), ("gpt-4.1-mini", 2489), ("claude-sonnet-4-5", 1600), ("gemini-2.5-pro", 1548), ("llava", 1600)],
)
def test_an_image_of_unknown_size_counts_as_the_largest(model: str, tokens: int) -> None:
    assert count(model, Medium("image")) == tokens


def test_low_detail_costs_the_base_alone() -> None:
    assert count("gpt-4o", Medium("image", 4000, 4000, is_low=True)) == 85


@pytest.mark.parametrize(
    ("model", "medium", "tokens"),
    [
        ("claude-sonnet-4-5", Medium("document", pages=3), 9000),
        ("gpt-4o", Medium("document", pages=3), 6000),
        ("gemini-2.5-pro", Medium("document", pages=3), 774),
        ("claude-sonnet-4-5", Medium("document", size=50_001), 6000),
        ("claude-sonnet-4-5", Medium("document"), 300_000),
        ("gemini-2.5-pro", Medium("audio", seconds=2.5), 80),
        ("gpt-4o-audio-preview", Medium("audio", seconds=2.5), 25),
        ("gpt-4o-audio-preview", Medium("audio", size=16_000), 20),
        ("gpt-4o-audio-preview", Medium("audio"), 600),
    ],
)
def test_documents_cost_by_the_page_and_audio_by_the_second(model: str, medium: Medium, tokens: int) -> None:
    assert count(model, medium) == tokens


def test_media_add_up() -> None:
    assert count("gpt-4o", Medium("image", 512, 512), Medium("document", pages=1)) == 2255


def test_anthropic_adds_instructions_where_tools_are_offered() -> None:
    assert [count_tool_prompt(find_family(model)) for model in ("claude-x", "gpt-4o")] == [346, 0]
