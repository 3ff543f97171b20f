import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.sqlite.connection import WriterLock

ROOT = Path(__file__).parents[3]


def test_one_holds_the_lock_and_the_other_is_told_who(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / "log.db")
    with pytest.raises(StoreUnavailable, match=rf"\(id {os.getpid()}\); stop it, or choose another data directory"):
        WriterLock(tmp_path / "log.db")
    lock.release()
    WriterLock(tmp_path / "log.db").release()


def test_who_holds_it_for_a_moment_is_waited_out(tmp_path: Path) -> None:
    held, pauses = WriterLock(tmp_path / "log.db"), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.release()

    WriterLock(tmp_path / "log.db", 3000, pause).release()
    assert len(pauses) == 3


def test_who_keeps_it_is_waited_for_so_long_and_then_named(tmp_path: Path) -> None:
    held, pauses = WriterLock(tmp_path / "log.db"), list[float]()
    with pytest.raises(StoreUnavailable, match=rf"\(id {os.getpid()}\); stop it"):
        WriterLock(tmp_path / "log.db", 3000, pauses.append)
    assert sum(pauses) == pytest.approx(3.0)
    held.release()


def test_logs_side_by_side_have_locks_of_their_own(tmp_path: Path) -> None:
    one, other = WriterLock(tmp_path / "a.db"), WriterLock(tmp_path / "b.db")
    one.release()
    other.release()


def test_releasing_twice_takes_the_lock_from_nobody(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / "log.db")
    lock.release()
    other = WriterLock(tmp_path / "log.db")
    lock.release()
    with pytest.raises(StoreUnavailable):
        WriterLock(tmp_path / "log.db")
    other.release()


def test_the_lock_of_a_process_that_ended_is_free(tmp_path: Path) -> None:
    take = (
        "import pathlib, sys; from proxy.store.sqlite.connection import WriterLock as W; W(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", take, str(tmp_path / "log.db")], check=True, cwd=ROOT)
    WriterLock(tmp_path / "log.db").release()


def test_a_longer_id_left_in_the_file_does_not_show_through(tmp_path: Path) -> None:
    (tmp_path / "log.db.lock").write_text("99999999999999\n")
    lock = WriterLock(tmp_path / "log.db")
    assert (tmp_path / "log.db.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_the_log_itself_is_not_touched(tmp_path: Path) -> None:
    WriterLock(tmp_path / "log.db").release()
    assert [path.name for path in tmp_path.iterdir()] == ["log.db.lock"]
