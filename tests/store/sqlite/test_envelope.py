import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.manifest import BlobPiece, ChainPiece, Piece, encode_recipe
from proxy.store.sqlite.envelope import join_recipe, split_recipe

pieces = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.binary(min_size=32, max_size=32).map(BlobPiece),
        st.binary(min_size=16, max_size=16).map(ChainPiece),
    ),
    max_size=6,
)


@given(pieces)
def test_any_recipe_comes_back_from_envelope_and_tip(parts: list[Piece]) -> None:
    envelope, tip, seen = split_recipe(encode_recipe(parts))
    assert list(seen) == parts
    assert list(join_recipe(envelope, tip)) == parts


def test_calls_that_differ_in_their_history_alone_have_one_envelope() -> None:
    one = encode_recipe((b'{"model":"m","messages":[', ChainPiece(b"a" * 16), b"]}"))
    other = encode_recipe((b'{"model":"m","messages":[', ChainPiece(b"b" * 16), b"]}"))
    assert split_recipe(one)[0] == split_recipe(other)[0]
    assert (split_recipe(one)[1], split_recipe(other)[1]) == (b"a" * 16, b"b" * 16)


def test_a_literal_that_looks_like_the_link_is_left_alone() -> None:
    link = b"a" * 16
    parts = (link, encode_recipe((ChainPiece(link),)), ChainPiece(link), link)
    envelope, tip, _ = split_recipe(encode_recipe(parts))
    assert join_recipe(envelope, tip) == parts


def test_without_a_chain_of_its_own_a_recipe_has_no_tip() -> None:
    two = encode_recipe((ChainPiece(b"a" * 16), ChainPiece(b"b" * 16)))
    assert split_recipe(two)[:2] == (b"\n" + two, b"")
    assert split_recipe(b"")[:2] == (b"\n", b"")


@pytest.mark.parametrize("damaged", [b"\x05\x00\x00\x00\x00", b"\x00\x00\x00\x00\x09abc"])
def test_what_is_no_recipe_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        split_recipe(damaged)
    with pytest.raises(ValueError):
        join_recipe(b"\n" + damaged, b"")


def test_an_envelope_without_its_position_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        join_recipe(b"x\n", b"a" * 16)
