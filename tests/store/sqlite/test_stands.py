import pytest

from proxy.model.errors import NotFound
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.lineage_queries import ExchangePosition, load_positions
from tests.store.samples import make_chain, make_key, make_opening, make_step
from tests.store.sqlite.conftest import Opener

A, B = make_chain("a", "b")


async def test_a_tree_is_loaded_as_it_was_stored(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    assert await archive.append(make_opening("e1"))
    assert await archive.append(make_opening("e2"), make_step("e2", [A, B], relation="root"))
    assert await archive.append(make_opening("e3"), make_step("e3", relation="append", is_side=True))
    await archive.close()
    connection = connect_reader(policy.path)
    parents, (first, second) = load_positions(connection, make_key().id)
    assert parents == {A.node: b"", B.node: A.node}
    assert first == ExchangePosition(2, "e2", B.node, 2, "root", False)
    assert (second.n, second.exchange, second.is_side, second.tip in parents) == (3, "e3", True, False)
    with pytest.raises(NotFound, match="nobody"):
        load_positions(connection, "nobody")
    connection.close()
