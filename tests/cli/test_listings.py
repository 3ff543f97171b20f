"""Rows as text."""

from dataclasses import replace

from proxy.cli.listings import list_exchanges, tell_exchange
from tests.cli.fake_log import EXCHANGE, ROUND, exchange


def test_what_went_wrong_is_told() -> None:
    failed = replace(
        ROUND, status=0, completeness="failed", timings=None, usage=None, finish="", answer=b"", error="refused"
    )
    told = tell_exchange(replace(EXCHANGE, rounds=(failed,), is_capped=True, model="", wire=""))
    assert "status -, failed" in told
    assert "error     refused" in told
    assert "kept to the cap only" in told
    assert "no known wire format" in told
    assert "answer" not in told


def test_a_round_without_counts_leaves_its_columns_empty() -> None:
    bare = replace(ROUND, usage=None, timings=None, status=0, completeness="")
    line = list_exchanges([exchange(1, rounds=(bare,))]).splitlines()[1]
    assert line.endswith("open, or cut by a crash")


def test_a_client_cannot_move_the_cursor() -> None:
    told = tell_exchange(replace(EXCHANGE, target="/\x1b[2J\x9b", model="\x07"))
    assert not [c for c in told if not c.isprintable() and c != "\n"]
