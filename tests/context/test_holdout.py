"""Which sessions are only observed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.holdout import Holdout

SESSIONS = [f"session-{number}" for number in range(4000)]
fractions = st.floats(0, 1)


def choose(fraction: float, secret: bytes = b"secret") -> set[str]:
    holdout = Holdout(fraction, secret)
    return {session for session in SESSIONS if holdout.has(session)}


def test_without_a_share_there_are_none_and_with_all_of_it_every_session_is_one() -> None:
    assert not any(map(Holdout().has, SESSIONS))
    assert choose(0.0) == set()
    assert choose(1.0) == set(SESSIONS)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_so_many_are_as_were_asked_for(fraction: float) -> None:
    assert len(choose(fraction)) / len(SESSIONS) == pytest.approx(fraction, abs=0.03)


@given(st.text(), st.binary(), fractions, fractions)
def test_who_is_one_stays_one_when_there_are_to_be_more(session: str, secret: bytes, one: float, other: float) -> None:
    few, many = sorted((one, other))
    assert Holdout(many, secret).has(session) or not Holdout(few, secret).has(session)


def test_it_is_the_same_wherever_it_is_asked_and_another_under_another_key() -> None:
    assert choose(0.2) == choose(0.2)
    odd = [name for name in map(chr, range(0xD800, 0xD840)) if Holdout(0.5, b"secret").has(name)]
    assert 0 < len(odd) < 64
    both = choose(0.2) & choose(0.2, b"other")
    assert len(both) / len(SESSIONS) == pytest.approx(0.04, abs=0.02)


def test_who_is_one_does_not_hang_on_the_release() -> None:
    found = [int(session[8:]) for session in SESSIONS[:40] if Holdout(0.1, b"secret").has(session)]
    assert found == [3, 12, 19, 27, 29]
