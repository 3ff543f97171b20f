"""How sessions are managed, in memory; what every store answers is in `context_contract`."""

import pytest

from proxy.model.epoch import StoredContext
from proxy.model.errors import NotFound
from proxy.store.contexts import list_epochs, load_context, load_epoch, load_original
from proxy.store.tables import Tables
from tests.store.samples import chain_body, make_epoch, make_key, make_opening, make_original, make_turns

TURNS = make_turns(3)
RAW = [content for _, content in TURNS]


def make_tables() -> Tables:
    tables = Tables()
    assert tables.add((make_opening(body=chain_body(TURNS)),))
    return tables


def test_what_an_epoch_sends_is_kept_once() -> None:
    tables = make_tables()
    count = len(tables.blobs)
    copies = [bytes(bytearray(RAW[1])) for _ in range(2)]
    for i, copy in enumerate(copies):
        assert tables.add((make_epoch(f"p{i}", (copy, b"a ledger")),))
    assert len(tables.blobs) == count + 1
    first, second = load_context(tables, make_key().id).epochs
    assert first.rendered == (RAW[1], b"a ledger")
    assert all(one is other for one, other in zip(first.rendered, second.rendered, strict=True))
    assert first.rendered[0] is not copies[0]


def test_an_epoch_that_is_refused_leaves_nothing() -> None:
    tables = make_tables()
    count = len(tables.blobs)
    originals = [make_original("r1", RAW[1]), make_original("r2", b"never sent")]
    assert not tables.add((make_epoch("p1", (b"a ledger",), originals),))
    assert (len(tables.blobs), tables.originals, tables.epochs) == (count, {}, {})
    assert load_context(tables, make_key().id) == StoredContext()
    with pytest.raises(NotFound):
        load_original(tables, "r1")


def test_epochs_are_numbered_in_their_session() -> None:
    tables = make_tables()
    other = make_key("other")
    assert tables.add((make_opening("e2", key=other), make_epoch("p1"), make_epoch("p2", session=other.id)))
    assert [epoch.id for epoch in list_epochs(tables, other.id)] == ["p2"]
    assert load_epoch(tables, other.id, 1).id == "p2"
    with pytest.raises(NotFound):
        load_epoch(tables, other.id, 2)
