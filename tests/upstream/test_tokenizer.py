"""Counting text by encodings that are loaded when first needed."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.context.budget import LONGEST_RUN
from proxy.context.model_catalog import Encoding
from proxy.upstream.tokenizer import (
    CountingTokenizer,
    Encoder,
    EstimatingTokenizer,
    SplintrEncoder,
    has_encoder,
    load_encoder,
    make_tokenizer,
)
from tests.support.scripted import LIMIT


class Letters:
    """One token a character; keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_warm = False

    def warm(self) -> None:
        self.is_warm = True

    def count(self, text: str) -> int:
        self.seen.append(text)
        return len(text)


def test_an_encoding_is_loaded_once_when_it_is_first_needed() -> None:
    loaded: list[Encoding] = []

    def load(encoding: Encoding) -> Encoder:
        loaded.append(encoding)
        return Letters()

    tokenizer = CountingTokenizer(load)
    assert loaded == []
    assert not tokenizer.is_ready("o200k_base")
    assert [tokenizer.count("abc", "o200k_base"), tokenizer.count("ab", "o200k_base")] == [(3, False), (2, False)]
    assert tokenizer.is_ready("o200k_base")
    assert not tokenizer.is_ready("cl100k_base")
    tokenizer.count("a", "cl100k_base")
    assert loaded == ["o200k_base", "cl100k_base"]


def test_an_encoding_that_was_prepared_is_ready_once_it_is_warm() -> None:
    loaded: list[Letters] = []

    def load(encoding: Encoding) -> Encoder:
        loaded.append(Letters())
        return loaded[-1]

    tokenizer = CountingTokenizer(load)
    tokenizer.prepare("o200k_base")
    assert ([each.is_warm for each in loaded], tokenizer.is_ready("o200k_base")) == ([False], False)
    tokenizer.warm("o200k_base")
    assert ([each.is_warm for each in loaded], tokenizer.is_ready("o200k_base")) == ([True], True)
    tokenizer.prepare("o200k_base")
    assert tokenizer.count("abc", "o200k_base") == (3, False)
    assert len(loaded) == 1


def test_an_encoding_that_cannot_be_prepared_is_estimated() -> None:
    tokenizer = CountingTokenizer(lambda encoding: None)
    tokenizer.prepare("o200k_base")
    tokenizer.warm("o200k_base")
    assert tokenizer.is_ready("o200k_base")
    assert tokenizer.count("x" * 300, "o200k_base") == (100, True)


def test_threads_that_come_together_load_once() -> None:
    loaded: list[Encoding] = []
    both = threading.Barrier(2)

    def load(encoding: Encoding) -> Encoder:
        loaded.append(encoding)
        return Letters()

    def count(_: int) -> int:
        both.wait(LIMIT)
        return tokenizer.count("abc", "o200k_base")[0]

    tokenizer = CountingTokenizer(load)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(count, range(2))) == [3, 3]
    assert loaded == ["o200k_base"]


def test_without_an_encoder_it_estimates_and_says_so() -> None:
    loads: list[Encoding] = []
    tokenizer = CountingTokenizer(lambda encoding: loads.append(encoding))
    assert [tokenizer.count("x" * 300, "o200k_base") for _ in range(2)] == [(100, True)] * 2
    assert loads == ["o200k_base"]


def test_long_runs_reach_the_encoder_in_stretches() -> None:
    letters = Letters()
    assert CountingTokenizer(lambda _: letters).count("a" * (3 * LONGEST_RUN), "o200k_base") == (3 * LONGEST_RUN, False)
    assert [len(each) for each in letters.seen] == [LONGEST_RUN] * 3


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_both_encodings_are_counted_by_splintr(encoding: Encoding) -> None:
    assert has_encoder()
    assert isinstance(load_encoder(encoding), SplintrEncoder)
    assert CountingTokenizer().count("hello world", encoding) == (2, False)


def test_where_splintr_cannot_be_imported_tokens_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    assert load_encoder("cl100k_base") is None
    assert CountingTokenizer().count("x" * 300, "o200k_base") == (100, True)


def test_other_threads_run_while_an_encoder_is_warmed() -> None:
    """The merge table takes 0.1 s; with the interpreter's lock it would hold everybody up."""
    encoder = load_encoder("o200k_base")
    assert encoder is not None
    begun, steps = threading.Event(), 0

    def warm() -> None:
        begun.set()
        encoder.warm()

    warming = threading.Thread(target=warm)
    warming.start()
    assert begun.wait(LIMIT)
    while warming.is_alive():
        steps += 1
    assert steps > 10_000  # one turn of five milliseconds between two native calls is some 10,000 of these


def estimate(text: str, model: str | None = None) -> int:
    """Count as a person may: a letter is a token, and some model has more."""
    return len(text) * (2 if model == "wordy" else 1)


def test_a_function_of_the_users_counts_for_each_model() -> None:
    tokenizer = make_tokenizer(estimate)
    assert tokenizer.is_by_model
    tokenizer.prepare("o200k_base")
    tokenizer.warm("o200k_base")
    assert tokenizer.is_ready("o200k_base")
    assert tokenizer.count("abc", "o200k_base") == (3, False)
    assert tokenizer.count("abc", "o200k_base", "wordy") == (6, False)
    assert not make_tokenizer(None).is_by_model


@pytest.mark.parametrize("bad", [lambda text, model: 1 / 0, lambda text, model: -1, lambda text, model: "3"])
def test_where_that_function_fails_tokens_are_counted_as_without_it(bad: Any, caplog: Any) -> None:
    tokenizer = EstimatingTokenizer(bad, lambda encoding: Letters())
    assert [tokenizer.count("abcd", "o200k_base", "m") for _ in range(2)] == [(4, False)] * 2
    assert [each.getMessage()[:23] for each in caplog.records] == ["budget.estimator failed"]
