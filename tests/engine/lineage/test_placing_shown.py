"""Answers that a request shows elsewhere than in its own chain: whose they tell it is, and which tell nothing."""

import pytest

from proxy.engine.lineage.placing import name_answer, name_unknown
from proxy.model.exchange import SessionKey
from proxy.wire.identity import Item
from tests.engine.lineage.desk import HI, MORE, ONE, STRONG, Desk, bot, user


@pytest.mark.parametrize("item", [bot("a", STRONG), bot("text", weight=40)])
def test_an_answer_that_is_kept_elsewhere_tells_whose_request_it_is(desk: Desk, item: Item) -> None:
    first = desk.place(HI, answer=item)
    after = desk.place(user("sum", 600), item, MORE)
    assert (after.session, after.step.base) == (first.session, 0)
    assert desk.place(user("sum", 600), item, MORE).session == first.session  # nothing was answered yet


@pytest.mark.parametrize(
    "item",
    [
        bot("short", weight=39),
        *[bot("a", call) for call in ("call_1", "read:0", "functions.read:3", "12", "call7", "read_file_2")],
    ],
)
def test_short_texts_and_ids_that_are_counted_up_tell_nothing(desk: Desk, item: Item) -> None:
    first = desk.place(HI, answer=item)
    assert desk.place(user("sum", 600), item, MORE).session.id != first.session.id
    assert not name_answer(item, "", first.session) and not name_unknown(desk.ask(item))


@pytest.mark.parametrize(
    "call", [STRONG, "D681PevKs", "365174485", "call_s1_1", "toolu_01A09q90qw90lq917835lq9", "DkQpXWvsR"]
)
def test_ids_that_are_drawn_are_names(call: str) -> None:
    assert name_answer(bot("a", call), "own", SessionKey("s", ONE, "main", "")) == [f"call:{call}", "item:own"]


def test_a_kept_answer_counts_only_with_the_same_form(desk: Desk) -> None:
    first = desk.place(HI, answer=bot("a", STRONG))
    assert desk.place(user("sum"), bot("b", STRONG), MORE).session.id != first.session.id


def test_a_kept_answer_that_two_sessions_gave_tells_nothing(desk: Desk) -> None:
    for text in ("q", "r"):
        desk.place(user(text), answer=bot("a", STRONG))
    assert desk.place(user("sum"), bot("a", STRONG), MORE).session.id == "x3"


def test_kept_answers_of_two_sessions_tell_nothing(desk: Desk) -> None:
    desk.place(HI, answer=bot("a", STRONG))
    desk.place(HI, answer=bot("b", STRONG + "x"))
    assert desk.place(user("sum"), bot("a", STRONG), bot("b", STRONG + "x")).session.id == "x3"


def test_what_a_client_brought_along_was_never_an_answer(desk: Desk) -> None:
    desk.place(user("q"), bot("a", STRONG), MORE)
    assert desk.place(user("r"), bot("a", STRONG), MORE).session.id == "x2"


def test_what_a_client_brought_along_makes_an_answer_ambiguous(desk: Desk) -> None:
    desk.place(HI, answer=bot("a", STRONG))
    desk.place(user("r"), bot("a", STRONG), MORE, name="n")
    assert desk.place(user("t"), bot("a", STRONG), MORE).session.id == "x3"


def test_of_what_a_request_shows_the_newest_names_are_asked_for(desk: Desk) -> None:
    asked = desk.ask(*[bot("a", f"{STRONG}{i}") for i in range(100)], user("u"))
    assert name_unknown(asked) == [f"call:{STRONG}{i}" for i in range(68, 100)]


def test_what_was_said_in_a_session_that_its_client_names_is_found_by_the_name_alone(desk: Desk) -> None:
    text, call = bot("text", weight=40), bot("a", STRONG)
    named = desk.place(HI, name="n", answer=text)
    assert (name_answer(text, "", named.session), list(desk.known(named).marks)) == ((), [])
    assert desk.place(user("sum", 600), text, MORE).session != named.session
    assert desk.place(user("sum", 600), text, MORE, name="n").session == named.session
    assert name_answer(call, "", named.session) == [f"call:{STRONG}"]
