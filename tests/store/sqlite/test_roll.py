"""Which named sessions the log may hold; that a call is spared a look-up by it is shown at the archive."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.ports import MOST_MARKS
from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.lock import WriterLock
from proxy.store.sqlite.reader import SqliteReader
from proxy.store.sqlite.roll import Roll
from tests.store.samples import make_chain, make_key, make_opening, make_step
from tests.store.sqlite.conftest import Opener


class Pages:
    """Named sessions, two at a time."""

    def __init__(self, *names: str) -> None:
        self._rows = [(3 * i + 1, make_key(name).id) for i, name in enumerate(names)]
        self.asked: list[int] = []

    async def list(self, after: int) -> Sequence[tuple[int, str]]:
        self.asked.append(after)
        return [row for row in self._rows if row[0] > after][:2]


async def test_what_the_file_has_may_be_there_and_nothing_else() -> None:
    roll, pages = Roll(), Pages("a", "b", "c", "d", "e")
    await roll.read(pages.list)
    assert [roll.may_hold(make_key(name)) for name in "abcdef"] == [True] * 5 + [False]
    assert pages.asked == [0, 4, 10, 13]


async def test_before_the_file_has_been_gone_through_any_may_be_there() -> None:
    roll, gate = Roll(), asyncio.Event()

    async def list_slowly(after: int) -> Sequence[tuple[int, str]]:
        await gate.wait()
        return ()

    reading = asyncio.create_task(roll.read(list_slowly))
    roll.note((make_opening(key=make_key("a")),))
    assert roll.may_hold(make_key("b"))
    gate.set()
    await reading
    assert [roll.may_hold(make_key(name)) for name in "ab"] == [True, False]


async def test_what_is_appended_may_be_there_at_once() -> None:
    roll = Roll()
    await roll.read(Pages().list)
    assert not roll.may_hold(make_key("a"))
    roll.note((make_step("e1", make_chain("x")), make_opening(key=make_key("a"))))
    assert roll.may_hold(make_key("a"))


async def test_of_a_session_without_a_name_nothing_is_said() -> None:
    roll = Roll()
    await roll.read(Pages().list)
    unnamed = replace(make_key("a"), family="")
    roll.note((make_opening(key=unnamed),))
    assert [roll.may_hold(unnamed), roll.may_hold(make_key("a"))] == [True, False]


async def test_an_id_is_known_as_the_log_spells_it() -> None:
    roll = Roll()
    await roll.read(Pages().list)
    odd = replace(make_key("a"), id="\ud800")
    roll.note((make_opening(key=odd),))
    assert roll.may_hold(odd) and roll.may_hold(replace(odd, id="?"))


async def test_where_the_file_cannot_be_read_any_may_be_there(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(after: int) -> Sequence[tuple[int, str]]:
        raise StoreUnavailable("the log cannot be read")

    roll = Roll()
    await roll.read(refuse)
    assert roll.may_hold(make_key("a"))
    assert "cannot be read" in caplog.text


async def test_a_reader_lists_the_named_sessions_page_by_page(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive(durability="normal")
    names = [f"n{i}" for i in range(300)]
    for i, name in enumerate(names):
        unnamed = replace(make_key(f"u{i}"), family="")
        archive.append(make_opening(f"u{i}", key=unnamed), make_opening(f"e{i}", key=make_key(name)))
    assert await archive.list_sessions(1)
    reader, last, found = SqliteReader(policy.path), 0, []
    while page := await reader.list_named(last):
        assert len(page) <= 256
        found += [key for _, key in page]
        last = page[-1][0]
    await reader.close()
    assert found == [make_key(name).id for name in names]


async def test_only_what_the_log_may_hold_is_looked_for(open_archive: Opener) -> None:
    """What waits to be written goes on waiting, unless somebody needs it."""
    held = {"durability": "normal", "hold_ms": 60_000, "journal_hold_ms": 60_000}
    archive = open_archive(**held)
    await archive._reading_roll
    archive.append(make_opening(key=make_key("a")), is_urgent=False)
    assert await archive.recall((), (), make_key("b")) == ()
    assert archive.health.pending == 1
    assert [each.key for each in await archive.recall((), (), make_key("a"))] == [make_key("a")]
    assert archive.health.pending == 0
    await archive.close()

    archive = open_archive(**held)
    await archive._reading_roll
    archive.append(make_opening("e2", key=make_key("c")), is_urgent=False)
    assert await archive.recall((), (), make_key("b")) == ()
    assert archive.health.pending == 1
    assert [each.key for each in await archive.recall((), (), make_key("a"))] == [make_key("a")]


async def test_nodes_and_marks_are_looked_for_whatever_the_session(open_archive: Opener) -> None:
    archive = open_archive(durability="normal")
    await archive._reading_roll
    nodes = make_chain("a", "!b")
    archive.append(make_opening(key=make_key("a")), make_step("e1", nodes))
    found = await archive.recall([row.node for row in nodes], ["call:x"] * MOST_MARKS, make_key("b"))
    assert [each.key for each in found] == [make_key("a")]


async def test_a_log_that_is_closed_at_once_leaves_nothing_behind(open_archive: Opener) -> None:
    archive = open_archive()
    stored = archive.append(make_opening())
    await archive.close()
    assert archive._reading_roll.cancelled()
    assert await stored


class Silent(asyncio.SelectorEventLoop):
    """A loop to which no thread ever answers."""

    def run_in_executor(self, executor: object, func: object, *args: object) -> "asyncio.Future[Any]":
        return self.create_future()


def test_a_loop_that_is_gone_while_the_file_is_gone_through_is_no_trouble(policy: StorePolicy) -> None:
    loop = Silent()
    archive = open_sqlite(policy, loop)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert not archive._reading_roll.done()
    asyncio.run(archive.close())
    WriterLock(policy.path).release()


async def test_however_many_are_appended_each_may_be_there() -> None:
    roll = Roll()
    await roll.read(Pages().list)
    keys = [make_key(f"session {i}") for i in range(5000)]
    for key in (*keys[:10], *keys, *keys[:10]):
        roll.note((make_opening(key=key),))
    assert all(roll.may_hold(key) for key in keys)
    assert not roll.may_hold(make_key("another"))
