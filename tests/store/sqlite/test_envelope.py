import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.manifest import BlobPiece, ChainPiece, Piece, digest_of, encode_recipe
from proxy.store.sqlite.envelope import Envelopes, join_recipe, split_recipe

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


literals = st.one_of(st.binary(max_size=4), st.just(encode_recipe((ChainPiece(b"a" * 16),))), st.just(b"\2\0\0\0\x10"))
links = st.sampled_from([b"a" * 16, b"b" * 16, b"\2\0\0\0\x10" + b"c" * 11])
likely = st.lists(st.one_of(literals, st.just(BlobPiece(b"d" * 32)), links.map(ChainPiece)), max_size=4)


@given(st.lists(likely, min_size=1, max_size=12))
def test_what_is_known_of_earlier_recipes_changes_nothing(recipes: list[list[Piece]]) -> None:
    known = Envelopes(8)
    for parts in recipes * 2:
        recipe = encode_recipe(parts)
        envelope, tip, links = known.split(recipe)
        assert (envelope.content, tip) == split_recipe(recipe)[:2]
        assert envelope.digest == digest_of(envelope.content)
        assert list(envelope.blobs) == [part.digest for part in parts if isinstance(part, BlobPiece)]
        assert list(links) == [part.link for part in parts if isinstance(part, ChainPiece)]


def test_a_call_with_the_parameters_of_another_has_the_same_envelope_at_once() -> None:
    known = Envelopes(8)
    first, again = [
        known.split(encode_recipe((b"{", BlobPiece(b"d" * 32), ChainPiece(link * 16), b"}")))[0]
        for link in (b"a", b"b")
    ]
    assert first is again


def test_a_recipe_with_long_literals_is_not_kept() -> None:
    known = Envelopes(8)
    first, again = [known.split(encode_recipe((bytes(5000), ChainPiece(b"a" * 16))))[0] for _ in range(2)]
    assert first is not again


def test_a_damaged_recipe_is_a_value_error_whatever_is_known() -> None:
    known = Envelopes(8)
    known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}")))
    with pytest.raises(ValueError):
        known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}"))[:-1])
