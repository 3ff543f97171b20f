"""Stretches of text, and ratios."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.estimate import LONGEST_RUN, Ratio, cut_stretches, estimate_tokens, guess_ratio
from proxy.context.model_names import find_family


@given(st.text())
def test_stretches_are_the_text(text: str) -> None:
    assert "".join(cut_stretches(text)) == text


@pytest.mark.parametrize("kind", ["a", "é", "=", " ", "\n", "中", "aé"])
def test_a_long_run_of_one_kind_is_cut(kind: str) -> None:
    text = "before " + kind * (3 * LONGEST_RUN) + " after."
    stretches = list(cut_stretches(text))
    assert "".join(stretches) == text
    assert 3 <= len(stretches) <= 3 * len(kind) + 1
    assert max(map(len, stretches)) <= 2 * LONGEST_RUN


@pytest.mark.parametrize("text", ["", "word " * 10_000, '{"a":1,"b":[2]}' * 5000, "a" * (LONGEST_RUN - 1)])
def test_text_without_long_runs_is_one_stretch(text: str) -> None:
    assert list(cut_stretches(text)) == [text]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 2), ("é", 1), ("\ud800", 1)])
def test_an_estimate_is_a_third_of_the_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_a_ratio_moves_a_fifth_of_the_way_to_what_usage_says() -> None:
    assert Ratio(1.0).learn(1000, 1500) == Ratio(1.1)


def test_a_ratio_that_is_told_the_same_again_and_again_comes_near_it() -> None:
    ratio = Ratio(1.0)
    for _ in range(40):
        ratio = ratio.learn(10_000, 13_000)
    assert ratio.apply(1000) == 1300


@pytest.mark.parametrize(("ours", "theirs"), [(499, 600), (1000, 0)])
def test_small_requests_and_missing_counts_teach_nothing(ours: int, theirs: int) -> None:
    assert Ratio(1.0).learn(ours, theirs) == Ratio(1.0)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**9))))
def test_a_ratio_stays_in_its_bounds_whatever_it_is_told(told: list[tuple[int, int]]) -> None:
    ratio = Ratio(1.0)
    for ours, theirs in told:
        ratio = ratio.learn(ours, theirs)
    assert 0.5 <= ratio.value <= 2.5


@pytest.mark.parametrize(
    ("model", "value"), [("gpt-4o", 1.0), ("claude-x", 1.15), ("gemini-2.0", 1.15), ("qwen3", 1.0)]
)
def test_a_family_is_guessed_at_first(model: str, value: float) -> None:
    assert guess_ratio(find_family(model)).value == value
