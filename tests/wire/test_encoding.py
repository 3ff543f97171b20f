"""Content-encodings: undone for the reader of the record, and never beyond the cap."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.body import decode_content, decode_pieces, encode_content

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "gzip, br": lambda content: brotli.compress(gzip.compress(content)),
}


@given(st.binary(), st.sampled_from(sorted(ENCODERS)), st.integers(1, 200))
def test_what_was_encoded_comes_back_up_to_the_cap(content: bytes, encoding: str, cap: int) -> None:
    assert decode_content(ENCODERS[encoding](content), encoding, cap) == content[:cap]


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_plain_content_is_given_as_it_is_up_to_the_cap(encoding: str) -> None:
    assert decode_content(b"plain", encoding, 3) == b"pla"
    assert decode_content(b"plain", encoding, 100) == b"plain"


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_a_cap_of_nothing_gives_nothing(encoding: str) -> None:
    assert decode_content(ENCODERS[encoding](b"x" * 100), encoding, 0) == b""


def test_names_are_read_in_any_case_and_spacing() -> None:
    assert decode_content(gzip.compress(b"x"), " GZip ", 10) == b"x"


@given(st.binary(min_size=50, max_size=400), st.data())
def test_a_cut_stream_gives_the_beginning_of_the_content(content: bytes, data: st.DataObject) -> None:
    encoded = zlib.compress(content)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    assert content.startswith(decode_content(cut, "deflate", 1000))


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_a_bomb_is_decoded_to_the_cap_only(encoding: str) -> None:
    bomb = ENCODERS[encoding](b"\0" * 50_000_000)
    assert len(bomb) < 60_000
    assert decode_content(bomb, encoding, 1000) == b"\0" * 1000
    assert len(next(decode_pieces(bomb, encoding))) < 1_000_000


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_long_content_comes_back_whole_in_pieces(encoding: str) -> None:
    content = b"".join(b"%d " % i for i in range(400_000))
    pieces = list(decode_pieces(ENCODERS[encoding](content), encoding))
    assert b"".join(pieces) == content
    assert len(pieces) > 2


@given(st.binary(), st.sampled_from(["", "identity", *sorted(ENCODERS)]))
def test_what_is_encoded_here_is_decoded_here(content: bytes, encoding: str) -> None:
    assert decode_content(encode_content(content, encoding), encoding, 10_000) == content
    assert b"".join(decode_pieces(encode_content(content, encoding), encoding)) == content


def test_every_member_of_a_file_is_read_and_what_else_comes_is_not() -> None:
    assert decode_content(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", "gzip", 10) == b"ab"


def test_deflate_is_read_without_its_frame_too() -> None:
    assert decode_content(zlib.compress(b"abc" * 100)[2:-4], "deflate", 1000) == b"abc" * 100


@pytest.mark.parametrize("encoding", ["compress", "gzip, none", "none"])
def test_an_encoding_that_is_not_read_here_is_named_in_the_error(encoding: str) -> None:
    with pytest.raises(ValueError, match=encoding):
        decode_content(b"x", encoding, 10)


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_content_that_is_not_in_the_encoding_it_claims_is_an_error(encoding: str) -> None:
    with pytest.raises(ValueError, match=f"not {encoding}"):
        decode_content(b"this is plain text", encoding, 10)
