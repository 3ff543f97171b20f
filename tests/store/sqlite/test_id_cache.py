import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.manifest import BlobPiece, ChainPiece, Piece, compute_digest, encode_recipe
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import split_recipe
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.id_cache import (
    EnvelopeCache,
    GenerationCache,
)
from proxy.store.sqlite.transaction import TransactionWriter
from tests.store.samples import (
    chain_body,
    make_epoch,
    make_leaf,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_plan,
    make_reading,
    make_recalled,
    make_remembered,
    make_round,
    make_trailer,
    make_turns,
)

BODY = chain_body(make_turns(3))
ORIGINAL = make_original("r1", make_turns(3)[1][1])


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    """A log with one whole exchange in it, and its writer's connection."""
    connection = connect_writer(policy)
    exchange = (make_opening("e1", BODY), make_round("e1"), make_outcome("e1"), make_trailer(0, b"\n", "e1"))
    reading = make_reading("e1", answer=b"{}", error="overloaded")
    context = (
        make_epoch("p1", originals=[ORIGINAL]),
        make_plan("e1", epoch="p1"),
        make_pin(b"n" * 16),
        make_recalled(),
        make_remembered(),
    )
    TransactionWriter(connection).commit([exchange, (reading,), context, (make_leaf("a", [make_turns(3)[0][1]]),)])
    yield connection
    connection.close()


def test_what_was_put_in_is_found_until_it_ages() -> None:
    recent: GenerationCache[int, str] = GenerationCache(10)
    for key in range(1000):
        recent.put(key, str(key))
    # far beyond the limit: a transaction must find all it added itself
    assert all(recent.get(key) == str(key) for key in range(1000))
    assert recent.get(1000) is None


def test_what_is_not_asked_for_is_let_go_after_two_generations() -> None:
    recent: GenerationCache[int, str] = GenerationCache(2)
    recent.put(1, "a")
    recent.put(2, "b")
    recent.age()
    recent.put(3, "c")
    assert recent.get(1) == "a"  # asked for: it is young again
    recent.age()
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("a", None, "c")


def test_the_memory_is_bounded_by_two_limits() -> None:
    recent: GenerationCache[int, str] = GenerationCache(5)
    for key in range(100):
        recent.put(key, "x")
        recent.age()
    assert sum(recent.get(key) is not None for key in range(100)) <= 10


literals = st.one_of(st.binary(max_size=4), st.just(encode_recipe((ChainPiece(b"a" * 16),))), st.just(b"\2\0\0\0\x10"))
links = st.sampled_from([b"a" * 16, b"b" * 16, b"\2\0\0\0\x10" + b"c" * 11])
likely = st.lists(st.one_of(literals, st.just(BlobPiece(b"d" * 32)), links.map(ChainPiece)), max_size=4)


@given(st.lists(likely, min_size=1, max_size=12))
def test_what_is_known_of_earlier_recipes_changes_nothing(recipes: list[list[Piece]]) -> None:
    known = EnvelopeCache(8)
    for parts in recipes * 2:
        recipe = encode_recipe(parts)
        envelope, tip, links = known.split(recipe)
        assert (envelope.content, tip) == split_recipe(recipe)[:2]
        assert envelope.digest == compute_digest(envelope.content)
        assert list(envelope.blobs) == [part.digest for part in parts if isinstance(part, BlobPiece)]
        assert list(links) == [part.link for part in parts if isinstance(part, ChainPiece)]


def test_a_call_with_the_parameters_of_another_has_the_same_envelope_at_once() -> None:
    known = EnvelopeCache(8)
    first, again = [
        known.split(encode_recipe((b"{", BlobPiece(b"d" * 32), ChainPiece(link * 16), b"}")))[0]
        for link in (b"a", b"b")
    ]
    assert first is again


def test_a_recipe_with_long_literals_is_not_kept() -> None:
    known = EnvelopeCache(8)
    first, again = [known.split(encode_recipe((bytes(5000), ChainPiece(b"a" * 16))))[0] for _ in range(2)]
    assert first is not again


def test_a_damaged_recipe_is_a_value_error_whatever_is_known() -> None:
    known = EnvelopeCache(8)
    known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}")))
    with pytest.raises(ValueError):
        known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}"))[:-1])
