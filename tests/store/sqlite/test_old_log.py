"""A log that an earlier version wrote: it opens, is migrated, and is as sound as it was."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.model.epoch import StoredContext
from proxy.model.errors import StoreUnavailable
from proxy.model.lineage import Adoption
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import WriterLock, connect_reader
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.recovery import recover_log
from proxy.store.sqlite.schema import MIGRATIONS, migrate, read_applied
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    chain_body,
    make_chain,
    make_epoch,
    make_key,
    make_leaf,
    make_opening,
    make_original,
    make_outcome,
    make_plan,
    make_reading,
    make_recalled,
    make_round,
    make_step,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil

CHAIN = make_chain("a", "!b", "c")
TURNS = make_turns(3)
TABLES = ("tenant", "blob", "payload", "raw", "exchange", "round", "outcome", "reading")


TREES = ("node", "step", "mark", "adoption")
MANAGED = ("epoch", "original", "decision", "pin")


def put_back(policy: StorePolicy, tmp_path: Path, migrations: int, session: str, tables: Sequence[str]) -> Path:
    """Write what is in the log as a version with so many migrations did, in its place."""
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, MIGRATIONS[:migrations])
    connection.execute("ATTACH ? AS new", (str(policy.path),))
    connection.execute(f"INSERT INTO session({session}) SELECT {session} FROM new.session")
    for table in tables:
        columns = ", ".join(name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO {table}({columns}) SELECT {columns} FROM new.{table}")
    connection.close()
    path.replace(policy.path)
    return policy.path


@pytest.fixture
async def old(open_archive: Opener, policy: StorePolicy, tmp_path: Path) -> Path:
    """A log of the first version, in the place of the test's."""
    archive = open_archive()
    for i in range(3):
        x = f"e{i}"
        archive.append(make_opening(x, chain_body(make_turns(i + 1))), make_round(x), make_outcome(x), make_reading(x))
    await archive.close()
    return put_back(policy, tmp_path, 1, "id, key, tenant, upstream, family, created_ms", TABLES)


@pytest.fixture
async def unmanaged(open_archive: Opener, policy: StorePolicy, tmp_path: Path) -> Path:
    """A log of the second version, with a tree."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)), make_step("e1", CHAIN), make_round("e1"), make_outcome("e1"))
    archive.append(make_opening("e2", key=make_key("other")), make_step("e2", CHAIN))
    archive.append(Adoption(make_key("other").id, make_key().id, CHAIN[1].node, 7))
    await archive.close()
    columns = "id, key, tenant, upstream, family, created_ms, parent"
    return put_back(policy, tmp_path, 2, columns, (*TABLES, *TREES))


@pytest.fixture
async def plain(open_archive: Opener, policy: StorePolicy, tmp_path: Path) -> Path:
    """A log of the third version, with an epoch."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)), make_step("e1", CHAIN), make_round("e1"), make_outcome("e1"))
    archive.append(make_epoch("p1", (b"a ledger",), [make_original("r1", TURNS[1][1])]), make_plan("e1", epoch="p1"))
    await archive.close()
    columns = "id, key, tenant, upstream, family, created_ms, parent"
    return put_back(policy, tmp_path, 3, columns, (*TABLES, *TREES, *MANAGED))


async def test_what_a_log_without_tallies_holds_is_counted_once_and_missed_from_then_on(
    plain: Path, open_archive: Opener, policy: StorePolicy, tmp_path: Path
) -> None:
    columns = "id, key, tenant, upstream, family, created_ms, parent"
    connection = sqlite3.connect(plain, isolation_level=None)
    migrate(connection, MIGRATIONS[:4])
    connection.close()
    put_back(policy, tmp_path, 4, columns, (*TABLES, *TREES, *MANAGED))
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(policy.path)
    archive = open_archive()
    assert (await archive.verify()).faults == ()
    chain = make_chain("a", "!b", "c", "d")
    assert await archive.append(make_opening("e2"), make_step("e2", chain[3:], base=3), make_round("e2"))
    await archive.close()
    assert verify_log(policy.path).faults == ()
    spoil(policy.path, "UPDATE step SET is_side = 1 WHERE n = 1")
    assert [fault.where for fault in verify_log(policy.path).faults] == ["step"]


async def test_calls_from_before_their_cache_was_explained_stay_sound_and_later_ones_are_sealed_with_it(
    plain: Path, open_archive: Opener, policy: StorePolicy, tmp_path: Path
) -> None:
    connection = sqlite3.connect(plain, isolation_level=None)
    migrate(connection, MIGRATIONS[:5])
    connection.close()
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(policy.path)
    archive = open_archive()
    chain = make_chain("a", "!b", "c", "d")
    step = replace(make_step("e2", chain[3:], base=3), layers=b"t" * 24)
    later = replace(make_plan("e2"), client_read=900, sent_read=300)
    assert await archive.append(make_opening("e2"), step, make_round("e2"), later)
    first, second = await archive.list_exchanges(make_key().id)
    assert (first.layers, second.layers) == (b"", b"t" * 24)
    assert (first.rounds[0].plan, second.rounds[0].plan) == (make_plan("e1", epoch="p1"), later)
    await archive.close()
    assert verify_log(policy.path).faults == ()
    spoil(policy.path, "UPDATE decision SET client_read = NULL, sent_read = NULL")
    spoil(policy.path, "UPDATE step SET layers = NULL")
    assert [fault.where for fault in verify_log(policy.path).faults] == ["step", "decision 2"]


async def test_epochs_from_before_there_was_a_tool_stay_sound(
    plain: Path, open_archive: Opener, policy: StorePolicy
) -> None:
    connection = sqlite3.connect(plain, isolation_level=None)
    migrate(connection, MIGRATIONS[:6])
    connection.close()
    archive = open_archive()
    later = replace(make_epoch("p2", (b"a ledger",), parent="p1"), tool=b"a tool")
    assert await archive.append(later, make_recalled("e1", "p2"))
    found = await archive.load_context(make_key().id)
    assert ([epoch.tool for epoch in found.epochs], len(found.recalled)) == ([b"", b"a tool"], 1)
    await archive.close()
    assert verify_log(policy.path).faults == ()


async def test_it_is_brought_up_to_date_and_grows_trees_from_then_on(old: Path, open_archive: Opener) -> None:
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(old)
    archive = open_archive()
    assert [row.relation for row in await archive.list_exchanges(make_key().id)] == ["", "", ""]
    (row,) = await archive.list_sessions()
    assert (row.exchanges, row.parent, row.branches, row.side, row.adopted) == (3, "", 0, 0, "")
    assert list(await archive.list_branches(make_key().id)) == []
    (stored,) = await archive.recall((), (), make_key())
    assert (stored.key, stored.nodes, stored.tips, stored.marks) == (make_key(), (), (), ())
    chain = make_chain("a", "!b", "c")
    assert await archive.append(make_opening("e3"), make_step("e3", chain))
    assert len(await archive.recall([chain[1].node], (), make_key("new"))) == 1
    await archive.close()
    found = verify_log(old)
    assert (found.exchanges, found.faults) == (4, ())
    connection = sqlite3.connect(old)
    assert read_applied(connection) == [migration.__name__ for migration in MIGRATIONS]
    connection.close()


async def test_commands_bring_it_up_to_date_where_no_server_runs(old: Path, policy: StorePolicy) -> None:
    recover_log(policy)
    reader = SqliteReader(old)
    assert [row.exchanges for row in await reader.list_sessions()] == [3]
    await reader.close()
    assert verify_log(old).faults == ()


def test_a_log_in_use_that_is_older_is_left_alone(
    old: Path, policy: StorePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    lock = WriterLock(old.resolve())
    recover_log(policy)
    lock.release()
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(old)
    assert not caplog.records


async def test_sessions_without_epochs_are_managed_from_then_on(unmanaged: Path, open_archive: Opener) -> None:
    archive = open_archive()
    other = make_key("other").id
    assert [await archive.load_context(session) for session in (make_key().id, other)] == [StoredContext()] * 2
    (row,) = await archive.list_exchanges(make_key().id)
    assert (row.rounds[0].plan, row.tip) == (None, CHAIN[2].node)
    epoch = make_epoch("p1", (TURNS[0][1], b"a ledger"), [make_original("r1", TURNS[1][1])], exchange="e1")
    assert await archive.append(epoch, make_plan("e1", epoch="p1"))
    assert (await archive.load_context(other)).epochs == (epoch,)
    assert (await archive.load_original("r1")).messages == (TURNS[1][1],)
    (row,) = await archive.list_exchanges(make_key().id)
    assert row.rounds[0].plan == make_plan("e1", epoch="p1")
    await archive.close()
    found = verify_log(unmanaged)
    assert (found.exchanges, found.faults) == (2, ())


async def test_sessions_without_summaries_have_some_from_then_on(plain: Path, open_archive: Opener) -> None:
    with pytest.raises(StoreUnavailable, match="start the server once"):
        connect_reader(plain)
    archive = open_archive()
    session = make_key().id
    context = await archive.load_context(session)
    assert ([epoch.id for epoch in context.epochs], context.summaries) == (["p1"], ())
    assert not list(await archive.list_summaries(session))
    assert not list(await archive.sum_auxiliary(0))
    leaf = make_leaf("a", [TURNS[1][1], TURNS[2][1]], 1, session=session)
    assert await archive.append(leaf, make_opening("a1", kind="auxiliary"))
    assert (await archive.load_context(session)).summaries == (leaf,)
    assert (await archive.load_original("a")).messages == (TURNS[1][1], TURNS[2][1])
    row = await archive.find_session(session)
    assert (row.exchanges, row.auxiliary, row.recorded) == (1, 1, 2)
    await archive.close()
    assert verify_log(plain).faults == ()
