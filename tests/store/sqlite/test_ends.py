import sqlite3

from proxy.store.sqlite.ends import Ends, read_end
from proxy.store.sqlite.known import SealHead


def test_an_end_is_what_was_noted_last(log: sqlite3.Connection) -> None:
    ends = Ends()
    assert read_end(log, "pin") is None
    ends.note(log, {"pin": SealHead(0, b""), "round": SealHead(7, b"seal")})
    assert (read_end(log, "pin"), read_end(log, "round")) == (None, SealHead(7, b"seal"))
    ends.note(log, {"pin": SealHead(1, b"first"), "round": SealHead(8, b"next")})
    assert (read_end(log, "pin"), read_end(log, "round")) == (SealHead(1, b"first"), SealHead(8, b"next"))


def test_what_has_not_grown_is_not_written(log: sqlite3.Connection) -> None:
    ends = Ends()
    ends.note(log, {"round": SealHead(7, b"seal")})
    before = log.total_changes
    ends.note(log, {"round": SealHead(7, b"seal")})
    assert log.total_changes == before


def test_what_was_rolled_back_is_noted_again(log: sqlite3.Connection) -> None:
    ends = Ends()
    log.execute("BEGIN")
    ends.note(log, {"round": SealHead(7, b"seal")})
    log.execute("ROLLBACK")
    assert read_end(log, "round") is None
    ends.forget()
    ends.note(log, {"round": SealHead(7, b"seal")})
    assert read_end(log, "round") == SealHead(7, b"seal")
