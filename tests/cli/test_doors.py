"""Reading the log, and finding a session in it."""

from dataclasses import replace

import pytest

from proxy.cli.doors import find_session
from proxy.model.errors import NotFound
from tests.cli.fake_log import SESSION, FakeLog, call, call_without_log


def log_of(*ids: str) -> FakeLog:
    return FakeLog(sessions=[replace(SESSION, id=id_) for id_ in ids])


async def test_a_unique_beginning_is_enough() -> None:
    assert await find_session(log_of("abc", "abd", "x"), "x") == "x"
    assert await find_session(log_of("abc", "abd"), "abc") == "abc"


async def test_a_whole_id_wins_over_longer_ones() -> None:
    assert await find_session(log_of("abcd", "abc"), "abc") == "abc"


async def test_several_candidates_are_named() -> None:
    with pytest.raises(NotFound, match=r"2 sessions begin with 'ab' \(abc, abd\)"):
        await find_session(log_of("abc", "abd"), "ab")
    with pytest.raises(NotFound, match=r"a1, a2, a3, a4, a5, …"):
        await find_session(log_of("a1", "a2", "a3", "a4", "a5", "a6"), "a")


async def test_no_candidate_says_where_to_look() -> None:
    with pytest.raises(NotFound, match="palimpsest sessions"):
        await find_session(log_of("abc"), "x")


def test_a_log_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_without_log("sessions") == 1
    assert capsys.readouterr().err == "palimpsest: there is no log; choose --data\n"


def test_the_log_is_closed_even_when_the_question_fails() -> None:
    log = log_of("abc")
    assert call(log, "show", "x") == 1
    assert log.is_closed
