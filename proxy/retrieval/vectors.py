"""Vectors of passages, which a model for embeddings makes, kept as one bit for each number: whether it is above zero.

Two vectors are alike if most of their bits are the same. How many are by chance differs between models, so that a
passage is compared with all others that were looked at: it is similar if it stands out among these.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from math import isfinite, sqrt

import msgspec

LEAST_WIDTH, MOST_WIDTH = 64, 8_192
"""Numbers of a vector: with fewer their signs say nothing, more take too much room."""
_MOST_SIMILAR = 200
_LEAST_COMPARED = 8
# By how many standard deviations a passage is above the mean where its similarity begins, and where it counts fully.
_FROM, _FULLY = 1.0, 3.5


class PassageText(msgspec.Struct, frozen=True, gc=False):
    """A passage of a session without a vector yet, by its number in the session."""

    number: int
    text: str


class PassageBatch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The next passages of a session that need a vector.

    With them all passages from number `since` up to `until` have been looked at; `left` are behind these. `stamp` names
    the index and the model. `is_current`: nothing waits to be indexed.
    """

    stamp: str = ""
    passages: tuple[PassageText, ...] = ()
    since: int = 0
    until: int = 0
    left: int = 0
    is_current: bool = True


class VectorBatch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The vectors of a batch of passages, as codes of one length, by the number of the passage.

    The others of the batch get none. `stamp`, `since` and `until` are those of the batch.
    """

    stamp: str
    since: int
    until: int
    numbers: tuple[int, ...] = ()
    codes: tuple[bytes, ...] = ()


def pack_signs(vector: Sequence[float]) -> bytes:
    """Return the code of a vector. Raises ValueError for one that is no vector, or that says nothing."""
    if not LEAST_WIDTH <= len(vector) <= MOST_WIDTH:
        raise ValueError(f"a vector has {LEAST_WIDTH} to {MOST_WIDTH} numbers, not {len(vector)}")
    if not any(vector) or not all(map(isfinite, vector)):
        raise ValueError("a vector has numbers that are no numbers, or only zeros")
    bits = "".join(["1" if value > 0 else "0" for value in vector])
    return int(bits, 2).to_bytes((len(vector) + 7) // 8)


def find_similar(query: bytes, codes: Iterable[tuple[int, bytes]]) -> Mapping[int, float]:
    """Return how similar the passages that stand out are to the query: above 0, at most 1. `codes` have their ids."""
    asked = int.from_bytes(query)
    found = [((asked ^ int.from_bytes(code)).bit_count(), id) for id, code in codes]
    if len(found) < _LEAST_COMPARED:
        return {}
    distances = [distance for distance, _ in found]
    mean = sum(distances) / len(distances)
    deviation = sqrt(sum([distance * distance for distance in distances]) / len(distances) - mean * mean)
    if not deviation:
        return {}
    similar = {}
    for distance, id in nsmallest(_MOST_SIMILAR, found):
        share = ((mean - distance) / deviation - _FROM) / (_FULLY - _FROM)
        if share > 0:
            similar[id] = min(share, 1.0)
    return similar
