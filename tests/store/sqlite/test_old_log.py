"""A log that an earlier version wrote. Rule: it opens, is brought up to date, and is as sound as it was."""

import sqlite3
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.schema import MIGRATIONS, migrate, read_applied
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    chain_body,
    make_chain,
    make_key,
    make_opening,
    make_outcome,
    make_reading,
    make_round,
    make_step,
    make_turns,
)
from tests.store.sqlite.conftest import Opener

TABLES = ("tenant", "blob", "payload", "raw", "exchange", "round", "outcome", "reading")


@pytest.fixture
async def old(open_archive: Opener, policy: StorePolicy, tmp_path: Path) -> Path:
    """A log of the first version, in the place of the test's."""
    archive = open_archive()
    for i in range(3):
        x = f"e{i}"
        archive.append(make_opening(x, chain_body(make_turns(i + 1))), make_round(x), make_outcome(x), make_reading(x))
    await archive.close()
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, MIGRATIONS[:1])
    connection.execute("ATTACH ? AS new", (str(policy.path),))
    columns = "id, key, tenant, upstream, family, created_ms"
    connection.execute(f"INSERT INTO session({columns}) SELECT {columns} FROM new.session")
    for table in TABLES:
        connection.execute(f"INSERT INTO {table} SELECT * FROM new.{table}")
    connection.close()
    path.replace(policy.path)
    return policy.path


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
    assert read_applied(connection) == ["m001_record", "m002_lineage", "m003_managed"]
    connection.close()
