"""Cards from several sources."""

import pytest

from proxy.context.catalogue import Names, Said, agree, find_offer, is_believed, make_card
from proxy.model.card import UNPRICED, Card, Limit, Offer, Prices, Rates

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


def test_the_entry_of_the_whole_name_comes_before_others_of_its_kind() -> None:
    names = Names(["azure/gpt-x", "gpt-x", "openai/gpt-x"])
    assert list(names.find("gpt-x")) == ["gpt-x"]
    assert list(names.find("Azure/GPT-X")) == ["azure/gpt-x"]
    assert list(names.find("elsewhere/gpt-x-2024-08-06")) == ["gpt-x"]


def test_entries_that_differ_in_the_provider_are_found_together() -> None:
    assert list(Names(["a/m", "b/M", "c/n"]).find("M")) == ["a/m", "b/M"]
    assert list(Names(["a/m"]).find("other")) == []


def test_several_providers_agree_on_the_least() -> None:
    assert agree([Offer(100, 10, PRICES), Offer(90, None, PRICES)]) == Offer(90, 10, PRICES)
    assert agree([Offer(100, 10, PRICES), Offer(None, 20, OTHERS)]) == Offer(100, 10, None)
    assert agree([]) == Offer()


def test_a_listing_is_asked_by_name() -> None:
    assert find_offer(Names(["org/m"]), {"org/m": Offer(window=5)}, "m:free") == Offer(window=5)


def test_a_retention_is_the_nearest_sources() -> None:
    said: tuple[Said, ...] = (("settings", Offer()), ("upstream", Offer(retention=5)), ("bundled", Offer(retention=6)))
    assert make_card(said, None, 0).retention == 5
