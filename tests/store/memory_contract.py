"""What every archive does with memory."""

from msgspec.structs import replace

from proxy.engine.memory.memory import MemoryLog
from proxy.model.lineage import Adoption
from proxy.model.memory import LearnedFact, StoredMemory
from tests.store.context_contract import OTHER, B, open_session
from tests.store.contract import count_dropped, is_stored
from tests.store.samples import make_memory_order, make_remembered


class MemoryContract:
    """Behaviour of records of memory, and of `load_memory`."""

    async def test_memory_comes_back_in_order_and_with_all_that_it_has(self, archive: MemoryLog) -> None:
        await open_session(archive)
        facts = (
            LearnedFact("decision", "It is \ud800.", ("\ud800",), (b"\xff" * 16,), 0.25, 0.75, "\ud800"),
            LearnedFact("fact", "The port is 8484."),
        )
        first, second = make_remembered(1, 4, b"n" * 16, *facts, tags=("t",), report="a" * 10), make_remembered(3)
        pin, reset = make_memory_order("pin", "sem_\ud800"), make_memory_order("reset", "")
        for record in (first, pin, second, reset):
            assert await is_stored(archive, record)
        found = await archive.load_memory(first.session)
        fitted = replace(facts[0], text="It is ?.", tags=("?",), replaces="?")
        assert [entry for _, entry in found.entries] == [replace(first, facts=(fitted, facts[1])), second]
        assert [order for _, order in found.orders] == [replace(pin, item="sem_?"), reset]
        numbers = [n for n, _ in (found.entries[0], found.orders[0], found.entries[1], found.orders[1])]
        assert numbers == sorted(numbers)
        assert (await archive.verify()).faults == ()

    async def test_a_session_has_the_memory_of_those_it_continues(self, archive: MemoryLog) -> None:
        session = await open_session(archive)
        await open_session(archive, "other")
        entry = make_remembered()
        assert await is_stored(archive, entry)
        assert await archive.load_memory(OTHER) == StoredMemory() == await archive.load_memory("\udcff")
        assert await is_stored(archive, Adoption(OTHER, session, B.node, 1))
        assert [each for _, each in (await archive.load_memory(OTHER)).entries] == [entry]

    async def test_memory_of_no_session_is_refused(self, archive: MemoryLog) -> None:
        await open_session(archive)
        for refused in (make_remembered(session="nobody"), make_memory_order(session="nobody")):
            assert await count_dropped(archive, refused) == 1
