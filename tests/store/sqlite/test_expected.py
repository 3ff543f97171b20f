import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.manifest import digest_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.batch import Batch
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.expected import expect_exchange, expect_message, expect_session
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.problem import Dangling
from tests.store.samples import OTHER_TENANT, chain_body, make_key, make_opening, make_turns

TURNS = make_turns(1)
DIGEST = digest_of(TURNS[0][1])


@pytest.fixture
def known(policy: StorePolicy) -> Iterator[RowIdCache]:
    """What the writer knows of a log with two tenants, of which one said something."""
    connection: sqlite3.Connection = connect_writer(policy)
    known = RowIdCache(connection)
    known.load()
    batch = Batch(known)
    batch.add(make_opening(body=chain_body(TURNS)))
    batch.add(make_opening("e2", key=make_key("spy", OTHER_TENANT)))
    batch.write(connection)
    yield known
    connection.close()


def test_what_is_there_is_found(known: RowIdCache) -> None:
    session, reference = expect_session(known, make_key().id)
    assert reference == (session.id, make_key().id)
    assert expect_exchange(known, "e2").n == 1
    assert expect_message(known, session.tenant, DIGEST) > 0


def test_what_is_missing_is_named(known: RowIdCache) -> None:
    with pytest.raises(Dangling, match="session"):
        expect_session(known, "nobody\udcff")
    with pytest.raises(Dangling, match="exchange"):
        expect_exchange(known, "e3\udcff")
    spy, _ = expect_session(known, make_key("spy", OTHER_TENANT).id)
    with pytest.raises(Dangling, match="message"):
        expect_message(known, spy.tenant, DIGEST)
