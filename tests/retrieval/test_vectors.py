"""Vectors as the signs of their numbers, and which passages stand out by them."""

import math

import pytest

from proxy.retrieval.vectors import LEAST_WIDTH, MOST_WIDTH, find_similar, pack_signs
from tests.support.embedding import encode

OTHERS = [f"text number {i} tells of thing {i * 7}" for i in range(40)]


def test_a_code_has_a_bit_for_each_number() -> None:
    assert pack_signs([1.0, -1.0] * 32) == b"\xaa" * 8
    assert len(pack_signs([0.5] * 65)) == 9
    assert pack_signs([0.0, 2.0] * 32) == b"\x55" * 8


@pytest.mark.parametrize(
    "vector",
    [
        [],
        [1.0] * (LEAST_WIDTH - 1),
        [1.0] * (MOST_WIDTH + 1),
        [0.0] * LEAST_WIDTH,
        [1.0] * LEAST_WIDTH + [math.nan],
        [1.0] * LEAST_WIDTH + [math.inf],
    ],
)
def test_what_is_no_vector_is_refused(vector: list[float]) -> None:
    with pytest.raises(ValueError, match="a vector has"):
        pack_signs(vector)


def test_what_says_the_same_stands_out() -> None:
    codes = [(i, encode(text)) for i, text in enumerate(OTHERS)]
    codes.append((99, encode("they have bought a dog for the children")))
    found = find_similar(encode("has the family purchased a puppy for the children"), codes)
    assert max(found, key=found.__getitem__) == 99
    assert found[99] == 1.0
    assert all(0 < share < 1 for id, share in found.items() if id != 99)


def test_few_passages_are_compared_by_nothing() -> None:
    codes = [encode("a dog"), *map(encode, OTHERS)]
    assert find_similar(codes[0], list(enumerate(codes[:7]))) == {}
    assert find_similar(codes[0], list(enumerate(codes[:8])))[0] > 0


def test_where_all_are_alike_none_stands_out() -> None:
    code = encode("a dog")
    assert find_similar(code, [(i, code) for i in range(20)]) == {}
