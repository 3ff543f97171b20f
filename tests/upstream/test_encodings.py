"""The encoders against tiktoken's own definitions, without its loader."""

import base64

import pytest
import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public as definitions
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.estimate import LONGEST_RUN, cut_stretches
from proxy.context.model_names import Encoding
from proxy.upstream.bundled import find_litellm, read_ranks
from proxy.upstream.encodings import PATTERNS, load_encoder, make_encoder

BOTH: list[Encoding] = ["o200k_base", "cl100k_base"]
EVERY_BYTE = b"".join(b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))
ENCODERS = {name: load_encoder(name) for name in BOTH}


def encoder(name: Encoding) -> tiktoken.Encoding:
    found = ENCODERS[name]
    assert found is not None
    return found


@pytest.mark.parametrize("name", BOTH)
def test_text_is_cut_as_tiktoken_itself_defines_it(name: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    assert definitions.ENCODING_CONSTRUCTORS[name]()["pat_str"] == PATTERNS[name]


@pytest.mark.parametrize("name", BOTH)
def test_ranks_are_what_tiktoken_itself_reads(name: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    content = read_ranks(find_litellm(), name)
    assert content is not None
    monkeypatch.setattr(tiktoken.load, "read_file_cached", lambda *args: content)
    ranks = tiktoken.load.load_tiktoken_bpe("a file")
    ours = encoder(name)
    assert all(ours.encode_single_token(token) == rank for token, rank in ranks.items())


@pytest.mark.parametrize(("name", "ids"), [("o200k_base", [24912, 2375]), ("cl100k_base", [15339, 1917])])
def test_well_known_words_have_their_well_known_ids(name: Encoding, ids: list[int]) -> None:
    assert encoder(name).encode_ordinary("hello world") == ids


@pytest.mark.parametrize("content", [b"", b"garbage", b"!!! x\n", b"YQ== 0\nYg== 1\n", EVERY_BYTE + b"YWE= 0\n"])
def test_garbled_ranks_make_no_encoder_and_raise_nothing(content: bytes) -> None:
    assert make_encoder("o200k_base", content) is None


@pytest.mark.parametrize("name", BOTH)
@given(st.text() | st.binary().map(lambda content: content.decode("latin-1")))
@settings(max_examples=50)
def test_tokens_are_never_more_than_bytes(name: Encoding, text: str) -> None:
    assert len(encoder(name).encode_ordinary(text)) <= len(text.encode())


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", ["a", "ab", "=", " ", "\n", "é", "中", "aé", "word", "-=", " \n"])
def test_cuts_are_off_by_two_tokens_each_or_two_percent(name: Encoding, kind: str) -> None:
    text = f"before {kind * (4 * LONGEST_RUN // len(kind) + 7)} after"
    stretches = list(cut_stretches(text))
    assert len(stretches) > 1
    whole = len(encoder(name).encode_ordinary(text))
    ours = sum(len(encoder(name).encode_ordinary(stretch)) for stretch in stretches)
    assert abs(ours - whole) <= max(2 * (len(stretches) - 1), 0.02 * whole)


def test_the_longest_token_is_as_long_as_the_bound_says() -> None:
    assert max(len(token) for token in encoder("o200k_base").token_byte_values()) == 128


@pytest.mark.parametrize("name", BOTH)
def test_the_table_an_encoder_was_made_of_is_let_go(name: Encoding) -> None:
    assert [len(held) for held in vars(encoder(name)).values() if isinstance(held, dict) and held] == []


def test_bytes_alone_make_an_encoder_that_counts_bytes() -> None:
    found = make_encoder("o200k_base", EVERY_BYTE)
    assert found is not None
    assert found.encode_ordinary("né") == list("né".encode())
