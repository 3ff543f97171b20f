import logging

import pytest

from proxy.store.tables import Tables
from tests.store.samples import chain_body, make_opening, make_outcome, make_round, make_turns


def test_records_that_fit_are_all_there() -> None:
    tables = Tables()
    assert tables.add((make_opening("e1", chain_body(make_turns(3))), make_round("e1"), make_outcome("e1")))
    assert (len(tables.exchanges), len(tables.rounds["e1"]), len(tables.outcomes), len(tables.slices)) == (1, 1, 1, 3)


def test_a_refusal_leaves_no_trace() -> None:
    tables = Tables()
    assert not tables.add((make_opening("e1", chain_body(make_turns(3))), make_round("e1"), make_outcome("e2")))
    for table in (tables.exchanges, tables.sessions, tables.keys, tables.rounds, tables.slices, tables.blobs):
        assert not table


def test_a_refusal_takes_nothing_from_what_was_there() -> None:
    tables = Tables()
    tables.add((make_opening("e1"), make_round("e1")))
    assert not tables.add((make_round("e1", 1), make_opening("e2"), make_opening("e1")))
    assert list(tables.exchanges) == ["e1"]
    assert list(tables.rounds["e1"]) == [0]
    assert tables.add((make_opening("e2"),))
    assert tables.exchanges["e2"].n == 2


def test_a_refusal_is_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    Tables().add((make_outcome("e1", received=b"secret"),))
    assert "could not take a record" in caplog.text
    assert "secret" not in caplog.text
