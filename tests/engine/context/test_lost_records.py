"""What managing remembers is a cache of the log: what leans on lost records goes, the rest stays."""

from msgspec.structs import replace

from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.token_counter import TokenCounter
from tests.support.contexts import HISTORY, StatedArchive, ask, make_epoch
from tests.support.managing import QuarterTokens, spell


async def fill(memory: ContextCaches) -> None:
    await memory.contexts.open(ask(base=0))
    memory.contexts.add("s1", make_epoch("a"))
    memory.sent.keep(ask(), spell(HISTORY))


def count_kept(memory: ContextCaches) -> tuple[int, int]:
    """Contexts; messages of what was sent that the log need not be brought again."""
    fresh = len(memory.sent.keep(ask(), spell(HISTORY)).slices)
    return len(memory.contexts), len(HISTORY) - fresh


async def test_while_nothing_is_lost_everything_stays() -> None:
    memory = ContextCaches(StatedArchive(), TokenCounter(QuarterTokens()), 1 << 20)
    await fill(memory)
    memory.forget_lost()
    assert count_kept(memory) == (1, len(HISTORY))


async def test_what_leans_on_lost_records_is_forgotten_once() -> None:
    archive = StatedArchive()
    archive.health = replace(archive.health, generation=3)
    memory = ContextCaches(archive, TokenCounter(QuarterTokens()), 1 << 20)
    await fill(memory)
    memory.forget_lost()
    assert len(memory.contexts) == 1
    archive.health = replace(archive.health, generation=4)
    memory.forget_lost()
    assert count_kept(memory) == (0, 0)
    await fill(memory)
    memory.forget_lost()
    assert count_kept(memory) == (1, len(HISTORY))


async def test_what_a_model_said_of_an_erased_session_is_forgotten() -> None:
    memory = ContextCaches(StatedArchive(), TokenCounter(QuarterTokens()), 1 << 20)
    for session in ("s1", "s2"):
        memory.sentences.put(session, {"00": "It lists the tests."})
    memory.forget(["s1"])
    assert list(memory.sentences) == ["s2"]


async def test_each_takes_its_part_of_what_may_be_remembered() -> None:
    memory = ContextCaches(StatedArchive(), TokenCounter(QuarterTokens()), 40_000)
    for number in range(30):
        await memory.contexts.open(ask(session=f"s{number}", base=0))
    assert 5_000 < memory.contexts.weight <= 10_000
