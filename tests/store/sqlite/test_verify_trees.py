"""What `verify` finds in trees is in `test_verify`; here, that it finds nothing in a sound log."""

from proxy.store.policy import StorePolicy
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import make_chain, make_key, make_mark, make_opening, make_reply, make_step
from tests.store.sqlite.conftest import Opener


async def test_trees_that_hang_on_each_other_are_sound(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    chain = make_chain("a", "!b", "c")
    archive.append(make_opening("e1"), make_step("e1", chain), make_reply("e1", chain, [make_mark("call:1", chain[1])]))
    later = make_chain("d", parent=chain[1].node)
    archive.append(make_opening("e2", key=make_key("b")), make_step("e2", later), make_reply("e2", [], []))
    assert await archive.append(make_opening("e3", key=make_key("b")), make_step("e3", tip=chain[1].node))
    await archive.close()
    assert verify_log(policy.path).faults == ()
