"""Options that several commands share."""

import pytest

from tests.cli.calling import call
from tests.support.fake_log import FakeLog


@pytest.mark.parametrize("command", ["sessions", "show", "export", "verify", "backup"])
def test_every_command_that_reads_the_log_can_be_told_where_it_is(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call(FakeLog(), command, "--help")
    told = capsys.readouterr().out
    assert "--data DIR" in told
    assert "--config FILE" in told


@pytest.mark.parametrize("command", ["sessions", "show", "export", "verify"])
def test_every_listing_can_be_had_as_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    call(FakeLog(), command, "--help")
    assert "--json" in capsys.readouterr().out
