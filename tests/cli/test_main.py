"""`python -m proxy`."""

import sys

import pytest

from proxy import __version__
from proxy.__main__ import main


def test_the_process_arguments_are_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["palimpsest", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"palimpsest {__version__}\n"
