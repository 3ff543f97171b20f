"""The tape: everything up to the cap, beyond it a count and a digest of all."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.open_exchange import CappedBuffer


@given(st.lists(st.binary(max_size=8)), st.integers(0, 30))
def test_the_head_the_size_and_the_digest_of_what_passed_are_kept(pieces: list[bytes], cap: int) -> None:
    tape, passed = CappedBuffer(cap), b""
    for piece in pieces:
        tape.add(piece)
        passed += piece
        assert (tape.content, tape.size, tape.is_capped) == (passed[:cap], len(passed), len(passed) > cap)
        assert tape.whole_digest == (hashlib.sha256(passed).digest() if len(passed) > cap else b"")


def test_an_unused_tape_is_empty() -> None:
    tape = CappedBuffer(10)
    assert (tape.cap, tape.content, tape.size, tape.is_capped, tape.whole_digest) == (10, b"", 0, False, b"")


def test_a_body_of_exactly_the_cap_is_kept_whole() -> None:
    tape = CappedBuffer(4)
    tape.add(b"ab")
    tape.add(b"cd")
    assert (tape.content, tape.is_capped, tape.whole_digest) == (b"abcd", False, b"")


@given(st.lists(st.binary(max_size=8)), st.integers(0, 30))
def test_reading_only_at_the_end_gives_the_same(pieces: list[bytes], cap: int) -> None:
    tape = CappedBuffer(cap)
    for piece in pieces:
        tape.add(piece)
    assert tape.content == b"".join(pieces)[:cap]
