"""The tape: everything up to the cap, beyond it a count and a digest of all."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.call.open_exchange import CappedBuffer


@given(st.lists(st.binary(max_size=8)), st.integers(0, 30))
def test_the_head_the_size_and_the_digest_of_what_passed_are_kept(pieces: list[bytes], cap: int) -> None:
    tape, passed = CappedBuffer(cap), b""
    for piece in pieces:
        tape.add(piece)
        passed += piece
        assert (tape.content, tape.size, tape.is_capped) == (passed[:cap], len(passed), len(passed) > cap)
        assert tape.whole_digest == (hashlib.sha256(passed).digest() if len(passed) > cap else b"")
