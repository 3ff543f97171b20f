import sqlite3
from collections.abc import Iterator

import pytest

from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.manifest import digest_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_writer
from proxy.store.sqlite.context_queries import (
    expect_sound,
    fetch,
    find_session,
    load_contents,
    load_digests,
)
from proxy.store.sqlite.transaction import TransactionWriter
from tests.store.samples import chain_body, make_key, make_opening, make_turns

TURNS = make_turns(2, size=2000)


@pytest.fixture
def log(policy: StorePolicy) -> Iterator[sqlite3.Connection]:
    connection = connect_writer(policy)
    TransactionWriter(connection).commit([[make_opening(body=chain_body(TURNS))]])
    yield connection
    connection.close()


def test_content_is_read_by_its_numbers_and_what_is_missing_left_out(log: sqlite3.Connection) -> None:
    numbers = [n for (n,) in log.execute("SELECT id FROM blob WHERE size > 2000 ORDER BY id")]
    raw = [content for _, content in TURNS]
    assert load_contents(log, [*numbers, 999]) == dict(zip(numbers, raw, strict=True))
    assert load_digests(log, iter([*numbers, 999])) == dict(zip(numbers, map(digest_of, raw), strict=True))
    assert load_contents(log, ()) == {}
    assert fetch(log, "SELECT value FROM json_each(?)", {7}) == [(7,)]


def test_a_session_has_a_row(log: sqlite3.Connection) -> None:
    assert find_session(log, make_key().id) == 1
    for name in ("nobody", "\udcff"):
        with pytest.raises(NotFound, match="no session"):
            find_session(log, name)


@pytest.mark.parametrize("error", [ValueError("no JSON"), KeyError(3)])
def test_damage_is_told_with_what_to_do(error: Exception) -> None:
    with pytest.raises(StoreUnavailable, match="run `palimpsest verify`"), expect_sound():
        raise error


def test_what_is_not_there_is_no_damage() -> None:
    with pytest.raises(NotFound), expect_sound():
        raise NotFound("nothing")
