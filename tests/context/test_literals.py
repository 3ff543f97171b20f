"""The words that are kept to the letter."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.context.literals import MOST, find_literals

OUTPUT = """Running tests in /srv/app/tests
src/app/user_store.py:41: in load_user
E   KeyError: 'account_id'
src/app/user_store.py:44: in parseRecord
   took 1432 ms, 99.5 percent of 12
FAILED tests/test_store.py - KeyError
plain words only
ran app.core.main.
"""


def test_each_kind_of_word_is_found() -> None:
    assert find_literals(OUTPUT) == {
        "errors": ("E   KeyError: 'account_id'", "FAILED tests/test_store.py - KeyError"),
        "paths": ("/srv/app/tests", "src/app/user_store.py:41", "src/app/user_store.py:44", "tests/test_store.py"),
        "names": ("KeyError", "load_user", "account_id", "parseRecord", "app.core.main"),
        "numbers": ("1432", "99.5"),
    }


def test_a_kind_without_words_is_left_out() -> None:
    assert find_literals("nothing to see") == find_literals("") == {}


def test_of_many_errors_the_last_is_among_those_kept() -> None:
    lines = [f"error {i}" for i in range(10)]
    assert find_literals("\n".join([*lines, *lines]))["errors"] == ("error 0", "error 1", "error 2", "error 9")
    assert find_literals("error a\n" * 9)["errors"] == ("error a",)


def test_what_is_named_more_often_comes_first() -> None:
    names = [f"name_{i}" for i in range(20)]
    found = find_literals(" ".join([*names, "name_19", "name_19", "name_18"]))["names"]
    assert found[:3] == ("name_19", "name_18", "name_0")
    assert len(found) == MOST["names"]


def test_of_a_long_output_both_ends_are_looked_at() -> None:
    assert find_literals(f"first_name {'x ' * 500_000} last_name")["names"] == ("first_name", "last_name")


HOSTILE = [
    "a" * 1_000_000,
    "a/" * 500_000,
    "a." * 500_000,
    "/" * 1_000_000,
    "_" * 1_000_000,
    "1" * 1_000_000,
    "\0\ud800" * 9999,
]


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_any_text_has_few_words_always_the_same(text: str) -> None:
    found = find_literals(text)
    assert found == find_literals(text)
    assert all(0 < len(words) <= MOST[kind] for kind, words in found.items())
