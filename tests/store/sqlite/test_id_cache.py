import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.manifest import BlobPiece, ChainPiece, Piece, compute_digest, compute_root_link, encode_recipe
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import PACKED, RAW, seal_after, split_recipe
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.id_cache import (
    DanglingReference,
    EnvelopeCache,
    Exchange,
    GenerationCache,
    RowBuffer,
    RowIdCache,
    Tenant,
)
from proxy.store.sqlite.transaction import TransactionWriter
from tests.store.samples import (
    TENANT,
    chain_body,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_plan,
    make_reading,
    make_recalled,
    make_remembered,
    make_round,
    make_trailer,
    make_turns,
)

BODY = chain_body(make_turns(3))
ORIGINAL = make_original("r1", make_turns(3)[1][1])


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    """A log with one whole exchange in it, and its writer's connection."""
    connection = connect_writer(policy)
    exchange = (make_opening("e1", BODY), make_round("e1"), make_outcome("e1"), make_trailer(0, b"\n", "e1"))
    reading = make_reading("e1", answer=b"{}", error="overloaded")
    context = (
        make_epoch("p1", originals=[ORIGINAL]),
        make_plan("e1", epoch="p1"),
        make_pin(b"n" * 16),
        make_recalled(),
        make_remembered(),
    )
    TransactionWriter(connection).commit([exchange, (reading,), context, (make_leaf("a", [make_turns(3)[0][1]]),)])
    yield connection
    connection.close()


def load(log: sqlite3.Connection) -> RowIdCache:
    known = RowIdCache(log)
    known.load()
    return known


def test_everything_is_found_in_the_tables_by_one_that_remembers_nothing(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None and tenant.root == compute_root_link(TENANT)
    assert known.find_blob(tenant, BODY.slices[1].digest) is not None
    assert all(known.has_link(piece.link) for piece in BODY.slices)
    session = known.find_session(make_key().id)
    assert session is not None and (session.n, session.tenant) == (1, tenant)
    assert known.expect_session(make_key().id) == (session, (session.id, make_key().id))
    assert known.expect_message(tenant, BODY.slices[1].digest) == known.find_blob(tenant, BODY.slices[1].digest)
    assert known.expect_exchange("e1") == Exchange(1, tenant, make_key().id, 1)


def test_what_is_not_there_is_not_found(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None
    assert known.find_blob(tenant, compute_digest(b"other")) is None
    assert not known.has_link(compute_root_link(TENANT))
    assert known.find_session("other") is None
    for find, what in (
        (lambda: known.expect_exchange("e2\udcff"), "exchange"),
        (lambda: known.expect_session("nobody\udcff"), "session"),
        (lambda: known.expect_message(tenant, compute_digest(b"other")), "message"),
    ):
        with pytest.raises(DanglingReference, match=what):
            find()
    assert known.find_tenant(b"other") is None


def test_what_was_found_is_not_looked_up_again(log: sqlite3.Connection) -> None:
    known = load(log)
    tenant = known.find_tenant(TENANT)
    assert tenant is not None
    questions: list[str] = []

    def ask() -> None:
        known.find_tenant(TENANT)
        known.find_blob(tenant, BODY.slices[0].digest)
        known.has_link(BODY.slices[0].link)
        known.find_session(make_key().id)
        known.expect_exchange("e1")

    ask()
    log.set_trace_callback(questions.append)
    ask()
    assert questions == []
    log.set_trace_callback(None)


def test_after_forgetting_what_was_only_put_in_is_gone(log: sqlite3.Connection) -> None:
    known = load(log)
    first = known.next_id("payload")
    known.links.put(b"L" * 16, True)
    known.exchanges.put("never stored", Exchange(9, known.put_tenant(b"n" * 16, 9), "s", 1))
    known.heads["exchange"].seq += 1
    known.forget()
    known.load()
    assert not known.has_link(b"L" * 16)
    with pytest.raises(DanglingReference):
        known.expect_exchange("never stored")
    assert known.find_tenant(b"n" * 16) is None
    assert known.heads["exchange"].seq == 1
    assert known.next_id("payload") == first


def test_numbers_go_on_after_the_last(log: sqlite3.Connection) -> None:
    known = load(log)
    (last,) = log.execute("SELECT max(id) FROM payload").fetchone()
    assert [known.next_id("payload"), known.next_id("payload")] == [last + 1, last + 2]
    assert [known.next_id(table) for table in ("tenant", "session", "original")] == [2, 2, 2]
    assert {table: head.seq for table, head in known.heads.items()} == {
        "exchange": 1,
        "round": 1,
        "outcome": 1,
        "trailer": 1,
        "reading": 1,
        "epoch": 1,
        "decision": 1,
        "pin": 1,
        "summary": 1,
        "recalled": 1,
        "held": 0,
        "source": 0,
        "memory": 1,
        "erased": 0,
    }


def test_an_empty_log_begins_with_one(policy: StorePolicy) -> None:
    connection = connect_writer(policy)
    known = load(connection)
    assert [known.next_id(table) for table in ("tenant", "session", "original", "payload")] == [1, 1, 1, 1]
    assert all((head.seq, head.seal) == (0, b"") for head in known.heads.values())
    connection.close()


INSERTS = {
    "blob": "INSERT INTO blob(id, tenant, digest, size) VALUES (?, ?, ?, ?)",
    "payload": "INSERT INTO payload(id, codec, bytes) VALUES (?, ?, ?)",
    "pin": "INSERT INTO pin(seq, seal, session, node, is_on, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
    "meta": "INSERT INTO meta(key, value) VALUES (?, ?)",
}
LONG = b"all work and no play " * 100


@pytest.fixture
def unchecked(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    connection.execute("PRAGMA foreign_keys = OFF")
    yield connection
    connection.close()


@pytest.fixture
def rows(unchecked: sqlite3.Connection) -> RowBuffer:
    known = RowIdCache(unchecked)
    known.load()
    return RowBuffer(known, INSERTS)


def test_content_of_a_tenant_is_stored_once_and_that_of_another_again(
    unchecked: sqlite3.Connection, rows: RowBuffer
) -> None:
    mine, other = Tenant(1, b""), Tenant(2, b"")
    digest = compute_digest(LONG)
    found = [rows.add_blob(tenant, digest, LONG) for tenant in (mine, mine, other)]
    assert found == [(1, digest), (1, digest), (2, digest)]
    assert rows.write(unchecked) == 4
    assert unchecked.execute("SELECT id, tenant, size FROM blob ORDER BY id").fetchall() == [(1, 1, 2100), (2, 2, 2100)]


def test_what_is_kept_is_packed_from_some_size_on(unchecked: sqlite3.Connection, rows: RowBuffer) -> None:
    assert [rows.add_payload(LONG[:1000]), rows.add_payload(LONG), rows.add_payload(LONG[:1000], 500)] == [1, 2, 3]
    rows.write(unchecked)
    codecs = unchecked.execute("SELECT codec FROM payload ORDER BY id").fetchall()
    assert codecs == [(RAW,), (PACKED,), (PACKED,)]


def test_a_sealed_row_follows_on_the_one_before_it(unchecked: sqlite3.Connection, rows: RowBuffer) -> None:
    assert [rows.add_sealed("pin", ((7, "s"),), (b"n", 1, at_ms)) for at_ms in (5, 6)] == [1, 2]
    rows.write(unchecked)
    first = seal_after(b"", (1, "s", b"n", 1, 5))
    second = seal_after(first, (2, "s", b"n", 1, 6))
    assert unchecked.execute("SELECT seq, seal, session, at_ms FROM pin ORDER BY seq").fetchall() == [
        (1, first, 7, 5),
        (2, second, 7, 6),
    ]


def test_a_row_without_a_seal_is_as_it_is(unchecked: sqlite3.Connection, rows: RowBuffer) -> None:
    rows.add("meta", ("a", b"b"))
    assert rows.write(unchecked) == 1
    assert unchecked.execute("SELECT value FROM meta WHERE key = 'a'").fetchone() == (b"b",)


def test_what_was_put_in_is_found_until_it_ages() -> None:
    recent: GenerationCache[int, str] = GenerationCache(10)
    for key in range(1000):
        recent.put(key, str(key))
    # far beyond the limit: a transaction must find all it added itself
    assert all(recent.get(key) == str(key) for key in range(1000))
    assert recent.get(1000) is None


def test_what_is_not_asked_for_is_let_go_after_two_generations() -> None:
    recent: GenerationCache[int, str] = GenerationCache(2)
    recent.put(1, "a")
    recent.put(2, "b")
    recent.age()
    recent.put(3, "c")
    assert recent.get(1) == "a"  # asked for: it is young again
    recent.age()
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("a", None, "c")


def test_below_the_limit_nothing_is_let_go() -> None:
    recent: GenerationCache[int, str] = GenerationCache(3)
    recent.put(1, "a")
    for _ in range(5):
        recent.age()
    assert recent.get(1) == "a"


def test_the_memory_is_bounded_by_two_limits() -> None:
    recent: GenerationCache[int, str] = GenerationCache(5)
    for key in range(100):
        recent.put(key, "x")
        recent.age()
    assert sum(recent.get(key) is not None for key in range(100)) <= 10


def test_clearing_forgets_both_generations() -> None:
    recent: GenerationCache[int, str] = GenerationCache(1)
    recent.put(1, "a")
    recent.age()
    recent.put(2, "b")
    recent.clear()
    assert (recent.get(1), recent.get(2)) == (None, None)


literals = st.one_of(st.binary(max_size=4), st.just(encode_recipe((ChainPiece(b"a" * 16),))), st.just(b"\2\0\0\0\x10"))
links = st.sampled_from([b"a" * 16, b"b" * 16, b"\2\0\0\0\x10" + b"c" * 11])
likely = st.lists(st.one_of(literals, st.just(BlobPiece(b"d" * 32)), links.map(ChainPiece)), max_size=4)


@given(st.lists(likely, min_size=1, max_size=12))
def test_what_is_known_of_earlier_recipes_changes_nothing(recipes: list[list[Piece]]) -> None:
    known = EnvelopeCache(8)
    for parts in recipes * 2:
        recipe = encode_recipe(parts)
        envelope, tip, links = known.split(recipe)
        assert (envelope.content, tip) == split_recipe(recipe)[:2]
        assert envelope.digest == compute_digest(envelope.content)
        assert list(envelope.blobs) == [part.digest for part in parts if isinstance(part, BlobPiece)]
        assert list(links) == [part.link for part in parts if isinstance(part, ChainPiece)]


def test_a_call_with_the_parameters_of_another_has_the_same_envelope_at_once() -> None:
    known = EnvelopeCache(8)
    first, again = [
        known.split(encode_recipe((b"{", BlobPiece(b"d" * 32), ChainPiece(link * 16), b"}")))[0]
        for link in (b"a", b"b")
    ]
    assert first is again


def test_a_recipe_with_long_literals_is_not_kept() -> None:
    known = EnvelopeCache(8)
    first, again = [known.split(encode_recipe((bytes(5000), ChainPiece(b"a" * 16))))[0] for _ in range(2)]
    assert first is not again


def test_a_damaged_recipe_is_a_value_error_whatever_is_known() -> None:
    known = EnvelopeCache(8)
    known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}")))
    with pytest.raises(ValueError):
        known.split(encode_recipe((b"{", ChainPiece(b"a" * 16), b"}"))[:-1])
