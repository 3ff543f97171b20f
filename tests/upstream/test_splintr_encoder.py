"""Counting by splintr, held against tiktoken."""

import threading
from pathlib import Path

import pytest
import splintr
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.model_names import Encoding
from proxy.upstream.splintr_encoder import load_encoder
from tests.support.encoders import BOTH, count_by_both

ROOT = Path(__file__).parents[2]
LONG_S = "\u017f"
# What is cut in some other way: white space of all kinds, contractions, numbers, scripts without spaces, signs.
CUTS = (" def", "self.", "  \n", "\n\n", "'s", "'LL", "12345", "//", "<|endoftext|>", "é", "文")
TEXTS = (
    st.text()
    | st.text(st.sampled_from(" \n\r\t\u3000/'abAB1.{}é中٣😀\u0301"))
    | st.lists(st.sampled_from(CUTS)).map("".join)
)


@pytest.mark.parametrize("name", BOTH)
@given(TEXTS.filter(lambda text: LONG_S not in text))
@settings(max_examples=500)
def test_it_counts_what_tiktoken_counts(name: Encoding, text: str) -> None:
    ours, theirs = count_by_both(name, text)
    assert ours == theirs <= len(text.encode())


@pytest.mark.parametrize("name", BOTH)
def test_they_agree_on_our_sources_whole_and_in_pieces(name: Encoding) -> None:
    paths = sorted((*ROOT.glob("proxy/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("*.md")))
    texts = [path.read_text() for path in paths]
    pieces = [text[at : at + 997] for text in texts[::7] for at in range(0, len(text), 997)]
    assert len(pieces) > 300
    assert [text for text in (*texts[::5], *pieces) if len(set(count_by_both(name, text))) > 1] == []


def test_behind_a_contraction_with_a_long_s_they_may_differ() -> None:
    """Both take U+017F for an S there; a million texts of all kinds differed in nothing else."""
    assert count_by_both("o200k_base", f"k'{LONG_S}'SBa") == [5, 6]


@pytest.mark.parametrize("name", BOTH)
def test_a_lone_surrogate_counts_as_a_character_that_cannot_be_shown(name: Encoding) -> None:
    shown = count_by_both(name, "a \ufffd b")
    assert count_by_both(name, "a \ud800 b") == shown
    assert shown[0] == shown[1] > 2


@pytest.mark.parametrize("name", BOTH)
def test_what_looks_like_a_special_token_is_text_in_long_texts_too(name: Encoding) -> None:
    text = "<|endoftext|> and <|im_start|> " * 3000
    ours, theirs = count_by_both(name, text)
    assert ours == theirs > 3000 * 5


@pytest.mark.parametrize("name", BOTH)
def test_every_special_token_begins_as_we_look_for_it(name: Encoding) -> None:
    special = splintr.Tokenizer.from_pretrained(name).special_tokens()
    assert len(special) > 3
    assert [each for each in special if not each.startswith("<|")] == []


def test_other_threads_run_while_an_encoder_is_warmed() -> None:
    """What is put off until some word is merged takes 0.1 s; with the interpreter's lock it would hold everybody up."""
    encoder = load_encoder("o200k_base")
    begun, steps = threading.Event(), 0

    def warm() -> None:
        begun.set()
        encoder.warm()

    warming = threading.Thread(target=warm)
    warming.start()
    assert begun.wait(10)
    while warming.is_alive():
        steps += 1
    assert steps > 10_000  # one turn of five milliseconds between two native calls is some 10,000 of these
