"""Reading the log."""

import pytest

from tests.cli.calling import call, call_without_log
from tests.support.fake_log import FakeLog


def test_a_log_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_without_log("sessions") == 1
    assert capsys.readouterr().err == "palimpsest: there is no log; choose --data\n"


def test_the_log_is_closed_even_when_the_question_fails() -> None:
    log = FakeLog()
    assert call(log, "show", "x") == 1
    assert log.is_closed
