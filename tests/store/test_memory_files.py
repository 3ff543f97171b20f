"""Files of memory, each of which is replaced as a whole."""

import os
from pathlib import Path

import pytest

from proxy.store.memory_files import write_memory


def test_files_are_written_for_their_owner_alone(tmp_path: Path) -> None:
    own = write_memory(tmp_path / "m", "abc", {"a.jsonl": b"1\n", "b.jsonl": b""})
    assert own == tmp_path / "m" / "agents" / "abc"
    assert {path.name: path.read_bytes() for path in own.iterdir()} == {"a.jsonl": b"1\n", "b.jsonl": b""}
    assert [path.stat().st_mode & 0o077 for path in (own, own / "a.jsonl")] == [0, 0]


def test_only_what_has_changed_is_replaced_and_never_in_place(tmp_path: Path) -> None:
    own = write_memory(tmp_path, "abc", {"a": b"1", "b": b"2", "c": b"3"})
    before = {name: (own / name).stat().st_ino for name in "abc"}
    with (own / "b").open("rb") as reader:
        write_memory(tmp_path, "abc", {"a": b"1", "b": b"4", "c": b"longer"})
        assert reader.read() == b"2"
    after = {name: (own / name).stat().st_ino for name in "abc"}
    assert [name for name in "abc" if before[name] != after[name]] == ["b", "c"]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write_memory(tmp_path, "abc", {"a": b"1"})

    def fail(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_memory(tmp_path, "abc", {"a": b"2"})
    assert [(path.name, path.read_bytes()) for path in own.iterdir()] == [("a", b"1")]


@pytest.mark.parametrize(("session", "name"), [("../x", "_x"), ("..", "_"), ("a/b", "a_b"), ("", "_")])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, session: str, name: str) -> None:
    assert write_memory(tmp_path, session, {"a": b"1"}) == tmp_path / "agents" / name
