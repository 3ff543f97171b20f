"""What the demonstration tells to do next."""

import sys
from pathlib import Path

import pytest

from proxy.demo.runner import name_program


def test_commands_are_named_as_a_shell_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, other = tmp_path / "some where" / "bin", tmp_path / "other"
    for folder in (there, other):
        folder.mkdir(parents=True)
        (folder / "palimpsest").write_text("#!/bin/sh\n")
        (folder / "palimpsest").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(there / "python"))
    monkeypatch.setenv("PATH", str(there))
    assert name_program() == "palimpsest"
    monkeypatch.setenv("PATH", str(other))
    assert name_program() == f"'{there / 'palimpsest'}'"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "some where")
    assert name_program() == "bin/palimpsest"
    (there / "palimpsest").unlink()
    assert name_program() == f"'{there / 'python'}' -m proxy"
