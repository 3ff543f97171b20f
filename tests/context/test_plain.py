"""Foreign text inside words of ours: one line, encodable, and no marker."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.plain import clean

_pieces = st.sampled_from(["[", "FILE:", "/", " ", "tool:", "ref:", "abcdefghij", "\n", "\x00", "\ud800", "x", "é"])


@given(st.lists(st.one_of(_pieces, st.characters())).map("".join), st.integers(1, 60))
def test_any_text_is_made_fit(text: str, most: int) -> None:
    cleaned = clean(text, most)
    assert len(cleaned) <= most
    assert len(cleaned.splitlines()) <= 1
    cleaned.encode()
    assert not re.search(r"(?i)\[\s*/?\s*(?:FILE|tool\s*:)\b|\bref:[a-z0-9]{10}", cleaned)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain [x] words", "plain [x] words"),
        ("a\r\n\tb", "a b"),
        ("[FILE: a.py]", "(FILE: a.py]"),
        ("[ /file]", "( /file]"),
        ("[tool : bash — output pruned", "(tool : bash — output pruned"),
        ("see ref:abcdefgh12", "see ref abcdefgh12"),
        ("ref:short", "ref:short"),
        ("0123456789abcdefXYZ", "0123456789abcde…"),
    ],
)
def test_what_becomes_of_a_text(text: str, cleaned: str) -> None:
    assert clean(text, 16 if len(text) == 19 else 80) == cleaned
