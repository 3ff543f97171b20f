"""Counting by tiktoken."""

import base64

import pytest
import tiktoken

from proxy.context.model_names import Encoding
from proxy.upstream.tiktoken_encoder import load_encoder, make_encoder
from tests.support.encoders import BOTH, BY_TIKTOKEN

EVERY_BYTE = b"".join(b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))


def encoding_of(name: Encoding) -> tiktoken.Encoding:
    found = BY_TIKTOKEN[name]
    assert found is not None
    return found.encoding


@pytest.mark.parametrize(("name", "ids"), [("o200k_base", [24912, 2375]), ("cl100k_base", [15339, 1917])])
def test_well_known_words_have_their_well_known_ids(name: Encoding, ids: list[int]) -> None:
    assert encoding_of(name).encode_ordinary("hello world") == ids


@pytest.mark.parametrize("content", [b"", b"garbage", b"!!! x\n", b"YQ== 0\nYg== 1\n", EVERY_BYTE + b"YWE= 0\n"])
def test_garbled_ranks_make_no_encoder_and_raise_nothing(content: bytes) -> None:
    assert make_encoder("o200k_base", content) is None


def test_without_ranks_there_is_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.upstream.tiktoken_encoder.load_ranks", lambda _: None)
    assert load_encoder("o200k_base") is None


@pytest.mark.parametrize("name", BOTH)
def test_the_table_an_encoder_was_made_of_is_let_go(name: Encoding) -> None:
    assert [len(held) for held in vars(encoding_of(name)).values() if isinstance(held, dict) and held] == []


def test_bytes_alone_make_an_encoder_that_counts_bytes() -> None:
    found = make_encoder("o200k_base", EVERY_BYTE)
    assert found is not None
    assert found.count("né") == 3
