"""The values that an index stores for search, and the Protocol by which the ranking reads them.

A text of a session is cut into passages, each with terms. The passages of a session are numbered as
they come, which keeps ids dense, and lists of ids short where they are stored as differences. Under each term of a
passage the index keeps its id (a posting). For each passage it keeps a place beside: one number that tells of which
entry it is and how long, so that the ranking loads no rows. Postings are kept by lane: a lane is a ranker of its own,
with its own document frequencies.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

from proxy.model.search import EntryKind

Lane = Literal["text", "card", "rule", "user"]
"""text: every text. card: what led to an output. rule: standing rules. user: what users say, once more."""

TextRole = Literal["user", "assistant", "tool", "other"]

_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
_ROLES: tuple[TextRole, ...] = get_args(TextRole)
# Bits of a place from the left: turn 24, part 4, kind 3, role 2, number 11, asks 1, length 4: together 49.
_LENGTH_BITS, _NUMBER_BITS, _ROLE_BITS, _KIND_BITS, _PART_BITS, _TURN_BITS = 4, 11, 2, 3, 4, 24
PLACE_SHIFT = _LENGTH_BITS + 1 + _NUMBER_BITS
"""A place, shifted right by this, is the key of its entry in the session."""
TURN_SHIFT = _ROLE_BITS + _KIND_BITS + _PART_BITS
"""The key of an entry, shifted right by this, is that of its turn: the keys of neighbours differ by one."""
SESSION_SHIFT = TURN_SHIFT + _TURN_BITS
"""The key of an entry, shifted right by this, is the number of its session."""
PASSAGE_BITS = 22
"""A passage id is the number of its session, shifted left by this, and the number of the passage in its session."""
MOST_TURNS, MOST_PARTS, MOST_IN_SESSION = 1 << _TURN_BITS, 1 << _PART_BITS, 1 << PASSAGE_BITS
MOST_PASSAGES = 1 << _NUMBER_BITS
"""Passages of one text in a lane; those of a longer text are longer instead."""
LENGTHS = tuple(round(8 * 1.3**i) for i in range(1 << _LENGTH_BITS))
"""The number of terms that each of the lengths in an id stands for."""


class IndexedText(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One text of a session as it is to be indexed.

    `sender` is the name of who says it, where it has one. `at_ms` is the time of the call that brought it; `stated_ms`
    the time that the session itself states for it, if any (`dates.find_stated_time` of this or an earlier text).
    `card`, of an output: the thought and the arguments of the call that it answers. `rules`, of what a user says: the
    sentences of it that are standing rules.
    """

    text: str
    role: TextRole
    kind: EntryKind
    sender: str = ""
    tool: str = ""
    at_ms: int = 0
    stated_ms: int | None = None
    card: str = ""
    rules: tuple[str, ...] = ()


class Passage(msgspec.Struct, frozen=True, gc=False):
    """A part of a text as it is stored in one lane. `terms` are distinct; they have no white space in them.

    `number` counts the passages of the text; passages of different lanes may have the same. `length` is an index of
    LENGTHS. `asks`: it is of a message, and something is asked in it.
    """

    lane: Lane
    number: int
    length: int
    terms: tuple[str, ...]
    asks: bool = False


class Scored(msgspec.Struct, frozen=True, gc=False):
    """An entry that was found, by its key, and the number of its best passage in the lane `text`.

    The key of an entry is the number of its session, shifted left by SESSION_SHIFT, and the key in its places. If it
    `is_narrow`, only that passage answers the question.
    """

    entry: int
    score: float
    number: int = 0
    is_narrow: bool = False


class LaneStatistics(msgspec.Struct, frozen=True, gc=False):
    """The number of passages of a lane in the sessions that are searched, and their mean number of terms."""

    passages: int
    mean_length: float


class Postings(Protocol):
    """What the ranking reads of an index, limited to the sessions that are searched.

    Document frequencies are those of these sessions, so that a search in one session has that session's.
    """

    def measure(self, lane: Lane) -> LaneStatistics:
        """Return the statistics of a lane."""
        ...

    def find(self, lane: Lane, term: str) -> Sequence[int]:
        """Return the ids of the passages that have the term, ascending. Of too many, an index may return the last."""
        ...

    def load_places(self, session: int) -> Sequence[int]:
        """Return the places of all passages of a session, by their number; an `array("q")` will do."""
        ...

    def find_words(self, gram: str) -> Sequence[str]:
        """Return terms of the lane `text` that have these three characters in them: words only, no other terms."""
        ...

    def select(self, entries: Sequence[int]) -> Sequence[int]:
        """Return those of the entries that may be in the answer, in the same order: filters, scope, what is in view."""
        ...


def make_place(turn: int, part: int, indexed: IndexedText, passage: Passage) -> int:
    """Return the place of a passage, below 2**63.

    `turn` is the number of the message in its session. `part` counts the texts of that message; the last number is
    shared by those that are too many.
    """
    key = turn << _PART_BITS | min(part, MOST_PARTS - 1)
    key = (key << _KIND_BITS | _KINDS.index(indexed.kind)) << _ROLE_BITS | _ROLES.index(indexed.role)
    return ((key << _NUMBER_BITS | passage.number) << 1 | passage.asks) << _LENGTH_BITS | passage.length


def read_place(place: int) -> tuple[int, bool, int]:
    """Return the number in a place, whether something is asked there, and the index of the length."""
    number = place >> _LENGTH_BITS + 1 & (1 << _NUMBER_BITS) - 1
    return number, bool(place >> _LENGTH_BITS & 1), place & (1 << _LENGTH_BITS) - 1


def get_kind(entry: int) -> EntryKind:
    """Return the kind in the key of an entry."""
    return _KINDS[entry >> _ROLE_BITS & (1 << _KIND_BITS) - 1]


def get_role(entry: int) -> TextRole:
    """Return the role in the key of an entry."""
    return _ROLES[entry & (1 << _ROLE_BITS) - 1]


def get_part(entry: int) -> int:
    """Return the part in the key of an entry."""
    return entry >> _ROLE_BITS + _KIND_BITS & MOST_PARTS - 1


def get_turn(entry: int) -> int:
    """Return the number of the turn in its session."""
    return entry >> TURN_SHIFT & MOST_TURNS - 1


def get_session(entry: int) -> int:
    """Return the number of the session."""
    return entry >> SESSION_SHIFT


def get_length_index(terms: int) -> int:
    """Return the index in LENGTHS of the length nearest to this number of terms."""
    return min(range(len(LENGTHS)), key=lambda i: abs(LENGTHS[i] - terms))
