"""Phrases in quotes, and whole queries, are known where they stand in a text as a run of words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.phrases import Phrases, find_phrases, find_quoted, put_phrases_first
from proxy.retrieval.postings import Scored
from proxy.retrieval.query import make_question
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("query", "quoted", "whole"),
    [
        ('"keep the old name"', ("keep the old name",), ""),
        ("keep the old name", (), "keep the old name"),
        ('why "keep it" there?', ("keep it",), "why keep it there"),
        ("\u201ccaf\u00e9 cr\u00e8me\u201d \u00ab b \u00bb", ("cafe creme", "b"), "cafe creme b"),
        ('"one" "one" ""', ("one",), "one one"),
        ('an "open quote', (), "an open quote"),
        ("word", (), ""),
        ('" . "', (), ""),
        ("", (), ""),
    ],
)
def test_phrases_of_a_query(query: str, quoted: tuple[str, ...], whole: str) -> None:
    assert find_phrases(query) == Phrases(quoted, whole)


@pytest.mark.parametrize(
    ("query", "text", "count"),
    [
        ('"keep the name"', "Please KEEP\n  the name, ok?", 1),
        ('"keep the name"', "keep the old name", 0),
        ('"keep the name"', "upkeep the name", 0),
        ('"keep the name"', "keep the names", 0),
        ('"load_config failed"', "`load_config` failed", 1),
        ("keep the name", "we keep the name", 1),
        ('"keep it" and "drop that"', "drop that, keep it", 2),
        ('"keep it" and "drop that"', "keep it and drop that", 5),
        ('"creme brulee"', "Cr\u00e8me br\u00fbl\u00e9e!", 1),
        ('"\u914d\u7f6e\u6587\u4ef6"', "\u8bf7\u4fdd\u7559\u914d\u7f6e\u6587\u4ef6\u7684\u540d\u5b57", 1),
        ('"\u914d\u7f6e\u6587\u4ef6"', "\u914d\u7f6e\u7684\u6587\u4ef6", 0),
    ],
)
def test_phrases_that_stand_in_a_text_are_counted(query: str, text: str, count: int) -> None:
    assert find_phrases(query).count(text) == count


@given(st.text(max_size=80), st.text(max_size=80))
@examples(100)
def test_a_text_in_quotes_is_found_in_itself(before: str, text: str) -> None:
    phrases = find_phrases(f'"{text}"')
    if len(phrases.quoted) == 1 and len(find_quoted(f'"{text}"')[0]) == len(text):
        assert phrases.count(f"{before} {text} {before}") == 1


def test_all_words_of_a_phrase_count_together() -> None:
    clues = {clue.terms: clue for clue in make_question('"keep the old name" there').clues}
    assert clues["keep", "old", "name"].needs_all
    assert not any(clue.needs_all for clue in make_question('keep the old "name" there').clues)


def test_texts_that_time_leaves_unread_follow_in_their_order() -> None:
    found = iter([(Scored(n, 1.0), f"zebra {n}") for n in (3, 2, 1, 0)])
    is_over = iter([False, True]).__next__
    assert [scored.entry for scored, _ in put_phrases_first(found, find_phrases("zebra 2"), is_over)] == [2, 3, 1, 0]
