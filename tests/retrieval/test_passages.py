"""Passages: where a text is cut, and what each part is found by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.passages import cut_passages, cut_text
from proxy.retrieval.postings import (
    LENGTHS,
    MOST_PARTS,
    MOST_PASSAGES,
    PLACE_SHIFT,
    SESSION_SHIFT,
    IndexedText,
    Passage,
    get_kind,
    get_length_index,
    get_part,
    get_role,
    get_session,
    get_turn,
    make_place,
    read_place,
)

MAY_8 = 1_683_550_560_000


def say(text: str, **more: object) -> IndexedText:
    return IndexedText(**{"text": text, "role": "user", "kind": "message", "at_ms": MAY_8, **more})  # type: ignore[arg-type]


def list_lane(source: IndexedText, lane: str) -> list[Passage]:
    return [passage for passage in cut_passages(source) if passage.lane == lane]


@given(st.text(max_size=3000))
def test_passages_cover_the_text(text: str) -> None:
    spans = cut_text(text)
    assert [start for start, _ in spans[1:]] == [stop for _, stop in spans[:-1]]
    assert not spans or (spans[0][0] == 0 and not text[spans[-1][1] :].strip())


def test_passages_end_where_lines_end() -> None:
    text = "\n".join(f"line {i} of a listing" for i in range(200))
    spans = cut_text(text)
    assert len(spans) > 3
    assert all(text[stop - 1] == "\n" for _, stop in spans[:-1])
    assert all(stop - start <= 600 for start, stop in spans)


def test_a_long_line_ends_behind_a_sentence_or_anywhere() -> None:
    text = "This is a sentence. " * 100
    assert all(text[:stop].endswith(". ") for _, stop in cut_text(text)[:-1])
    assert len(cut_text("x" * 3000)) > 3
    assert len(cut_text("語" * 3000)) > len(cut_text("x" * 3000))


def test_a_huge_text_has_longer_passages() -> None:
    assert len(cut_text("word word word\n" * 200_000)) <= MOST_PASSAGES


def test_a_passage_has_its_date_and_speaker() -> None:
    (first,) = list_lane(say("Caroline: I adopted a puppy", sender="ann"), "text")
    assert {"@2023-05-08", "@2023-05", "carolin", "ann", "adopt", "puppi"} <= set(first.terms)
    assert not first.asks


def test_the_time_that_a_text_states_goes_before_that_of_its_call() -> None:
    stated = say("hello there", stated_ms=MAY_8 - 86_400_000 * 30)
    assert "@2023-04-08" in list_lane(stated, "text")[0].terms
    assert "@2022-01-02" in list_lane(say("[2022-01-02] hello there"), "text")[0].terms


def test_a_date_in_a_transcript_holds_from_its_line_on() -> None:
    lines = "".join(f"Ann: we talked about matter number {i}\n" for i in range(40))
    passages = list_lane(say(f"2 January 2022\n{lines}3 March 2022\n{lines}"), "text")
    assert "@2022-01-02" in passages[0].terms
    assert "@2022-03-03" in passages[-1].terms


def test_a_day_that_is_meant_is_found() -> None:
    assert "@2023-05-07" in list_lane(say("I went to the group yesterday"), "text")[0].terms
    output = say("modified yesterday", role="tool", kind="output")
    assert "@2023-05-07" not in list_lane(output, "text")[0].terms


def test_what_asks_is_marked() -> None:
    assert list_lane(say("How is the puppy?"), "text")[0].asks
    assert not list_lane(say("how? x", role="tool", kind="output"), "text")[0].asks


def test_users_rules_and_cards_have_lanes_of_their_own() -> None:
    source = say("Always use tabs. Thanks", rules=("Always use tabs.",))
    assert [passage.lane for passage in cut_passages(source)] == ["text", "user", "rule"]
    output = say("a.py b.py", role="tool", kind="output", card="List the modules\nls")
    assert [passage.lane for passage in cut_passages(output)] == ["text", "card"]
    assert "modul" in list_lane(output, "card")[0].terms


@pytest.mark.parametrize("text", ["", "  \n ", "-> the of"])
def test_a_text_without_words_has_no_passages(text: str) -> None:
    assert cut_passages(say(text)) == []


def test_a_passage_without_words_is_left_out() -> None:
    assert [each.number for each in list_lane(say("-" * 700 + "\nword\n" + "=" * 700), "text")] == [1]


def test_a_place_tells_what_it_was_made_of() -> None:
    source = say("x", role="assistant", kind="reasoning")
    passage = Passage("text", 17, get_length_index(100), ("x",), asks=True)
    place = make_place(70_000, 3, source, passage)
    assert place < 1 << 63
    entry = 5 << SESSION_SHIFT | place >> PLACE_SHIFT
    assert (get_session(entry), get_turn(entry), get_part(entry)) == (5, 70_000, 3)
    assert (get_kind(entry), get_role(entry)) == ("reasoning", "assistant")
    number, asks, length = read_place(place)
    assert (number, asks) == (17, True)
    assert abs(LENGTHS[length] - 100) < 20
    many = make_place(1, 99, source, passage) >> PLACE_SHIFT
    assert get_part(many) == MOST_PARTS - 1
