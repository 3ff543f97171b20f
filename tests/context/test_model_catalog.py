import pytest

from proxy.context.model_catalog import (
    Family,
    ModelNames,
    SourcedOffer,
    count_media,
    count_tool_prompt,
    identify_family,
    is_believed,
    list_names,
    look_up_offer,
    make_card,
    merge_offers,
)
from proxy.model.card import UNPRICED, Card, Limit, Offer, Prices, Rates, Source
from proxy.model.messages import Medium


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
    assert identify_family(model) == Family(vendor, encoding, is_exact)  # type: ignore[arg-type]


PRICES, OTHERS = Prices(Rates(2.0, 10.0, 0.2, 2.5)), Prices(Rates(3.0, 10.0, 0.2, 2.5))
DAY = 24 * 3600.0


def test_the_nearest_source_wins_value_by_value() -> None:
    card = make_card(
        [("settings", Offer(window=50)), ("upstream", Offer(60, 6)), ("bundled", Offer(70, 7, PRICES))], None, 0.0
    )
    assert card == Card(50, 6, PRICES, "settings", "upstream", "bundled")


def test_what_nobody_said_is_unknown() -> None:
    assert make_card([("settings", Offer())], None, 0.0) == Card(None, None, UNPRICED)


def test_a_learned_window_takes_the_place_of_a_larger_one() -> None:
    card = make_card([("bundled", Offer(window=1000))], Limit(500, 900, 0.0), 1.0)
    assert (card.window, card.window_source) == (500, "learned")


def test_a_learned_window_that_is_not_believed_changes_nothing() -> None:
    card = make_card([("bundled", Offer(window=1000))], Limit(200, 900, 0.0), 1.0)
    assert (card.window, card.window_source) == (1000, "bundled")


@pytest.mark.parametrize(
    ("window", "sent", "stated", "now", "believed"),
    [
        (500, 900, 1000, 0.0, True),
        (250, 900, 1000, 0.0, True),
        (249, 900, 1000, 0.0, False),
        (1000, 1100, 1000, 0.0, True),
        (1001, 1100, 1000, 0.0, False),
        (900, 900, 1000, 0.0, False),  # not below what was sent
        (0, 900, None, 0.0, False),
        (10, 900, None, 0.0, True),
        (500, 900, 1000, DAY - 1, True),
        (500, 900, 1000, DAY, False),
    ],
)
def test_a_learned_window_is_believed_within_reason_and_for_a_day(
    window: int, sent: int, stated: int | None, now: float, believed: bool
) -> None:
    assert is_believed(Limit(window, sent, 0.0), stated, now) is believed


@pytest.mark.parametrize(
    ("source", "window", "card"),
    [
        ("bundled", 100, (100, "learned")),  # 10 % of what the catalog has
        ("upstream", 2000, (2000, "learned")),
        ("settings", 100, (100, "learned")),
        ("settings", 2000, (1000, "settings")),  # who sets less wants less
        ("bundled", 0, (1000, "bundled")),
    ],
)
def test_a_window_that_an_upstream_stated_is_kept_as_stated(source: Source, window: int, card: tuple[int, str]) -> None:
    limit = Limit(window, 90, 0.0, is_stated=True)
    found = make_card([(source, Offer(window=1000))], limit, 30 * DAY)
    assert (found.window, found.window_source) == card


def test_the_entry_of_the_whole_name_comes_before_others_of_its_kind() -> None:
    names = ModelNames(["azure/gpt-x", "gpt-x", "openai/gpt-x"])
    assert list(names.find("gpt-x")) == ["gpt-x"]
    assert list(names.find("Azure/GPT-X")) == ["azure/gpt-x"]
    assert list(names.find("elsewhere/gpt-x-2024-08-06")) == ["gpt-x"]


def test_entries_that_differ_in_the_provider_are_found_together() -> None:
    assert list(ModelNames(["a/m", "b/M", "c/n"]).find("M")) == ["a/m", "b/M"]
    assert list(ModelNames(["a/m"]).find("other")) == []


def test_several_providers_agree_on_the_least() -> None:
    assert merge_offers([Offer(100, 10, PRICES), Offer(90, None, PRICES)]) == Offer(90, 10, PRICES)
    assert merge_offers([Offer(100, 10, PRICES), Offer(None, 20, OTHERS)]) == Offer(100, 10, None)
    assert merge_offers([]) == Offer()


def test_a_listing_is_asked_by_name() -> None:
    assert look_up_offer(ModelNames(["org/m"]), {"org/m": Offer(window=5)}, "m:free") == Offer(window=5)


def test_a_retention_is_the_nearest_sources() -> None:
    said: tuple[SourcedOffer, ...] = (
        ("settings", Offer()),
        ("upstream", Offer(retention=5)),
        ("bundled", Offer(retention=6)),
    )
    assert make_card(said, None, 0).retention == 5


def count(model: str, *media: Medium) -> int:
    return count_media(media, identify_family(model), model)


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
        ("claude-sonnet-4-5", Medium("document", reference="file_1"), 2_000),
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
    assert [count_tool_prompt(identify_family(model)) for model in ("claude-x", "gpt-4o")] == [346, 0]


@pytest.mark.parametrize("unit", ["a/", "-latest", "/"])
def test_a_name_of_very_many_parts_has_few_names(unit: str) -> None:
    assert len(list_names(f"m{unit * 1000}x")) <= 18 and len(list_names(f"m{unit * 1000}")) < 300
