"""Words that are typed to the letter."""

import pytest

from proxy.context.words import find_family, is_name, is_opaque, list_words, name_word


def test_words_stand_once_in_the_order_of_their_first_places() -> None:
    text = "see proxy/engine/relay.py, then read_shape and proxy/engine/relay.py; plain words, 12, camelCase 4096."
    assert list_words(text) == ("proxy/engine/relay.py", "read_shape", "camelCase", "4096")


@pytest.mark.parametrize("found", ["plain", "./ab", "12", "x_" * 100, "Word"])
def test_plain_language_is_no_word(found: str) -> None:
    assert name_word(found) == ""


@pytest.mark.parametrize("found", ["a.b.c", "v1beta", "#1234", "user@host", "isValid", "12345"])
def test_what_must_be_spelt_exactly_is_one(found: str) -> None:
    assert name_word(found) == found


def test_a_word_loses_the_signs_around_it() -> None:
    assert name_word("./src/main.rs.") == "src/main.rs"


def test_of_a_long_text_both_ends_are_read() -> None:
    assert list_words(f"first_word {'x ' * 300_000} last_word") == ("first_word", "last_word")


def test_hashes_times_and_numbers_say_nothing_by_themselves() -> None:
    assert all(map(is_opaque, ["deadbeef01", "2026-11-22T07:00", "12345"]))
    assert not any(map(is_opaque, ["feedback", "read_shape", "a1/b.py"]))
    assert is_name("read_shape") and not is_name("isValid") and not is_name("12.345")


def test_a_family_is_a_folder_or_the_first_part_of_a_dotted_name() -> None:
    assert [find_family(word) for word in ("a/b/c.py", "np.nan", "read_shape")] == ["a/b", "np.", ""]
