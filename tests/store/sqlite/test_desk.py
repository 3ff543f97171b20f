import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.connection import connect_reader
from proxy.store.sqlite.lineage_queries import has_sessions
from proxy.store.sqlite.reader import ReaderThread
from tests.store.samples import make_opening
from tests.store.sqlite.conftest import Opener
from tests.support.scripted import LIMIT


class Gate:
    """Makes connections, once it is open."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.gate = threading.Event()

    def connect(self, path: Path) -> sqlite3.Connection:
        self.began.set()
        assert self.gate.wait(LIMIT)
        return connect_reader(path)


async def test_whoever_goes_away_leaves_the_connection_to_the_next(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    gate = Gate()
    asked: list[sqlite3.Connection] = []
    desk = ReaderThread(policy.path, gate.connect)
    loop = asyncio.get_running_loop()
    first = loop.create_task(desk.ask(has_sessions))
    await asyncio.to_thread(gate.began.wait, 10)
    waiting = loop.create_task(desk.ask(asked.append))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    second = loop.create_task(desk.ask(has_sessions))
    await asyncio.sleep(0)
    gate.gate.set()
    assert await second
    assert asked == [], "whoever goes away before it is their turn is not answered at all"
    await desk.close()


async def test_who_still_waits_when_it_closes_is_told(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    gate = Gate()
    desk = ReaderThread(policy.path, gate.connect)
    loop = asyncio.get_running_loop()
    first, second = (loop.create_task(desk.ask(has_sessions)) for _ in range(2))
    await asyncio.to_thread(gate.began.wait, 10)
    closing = loop.create_task(desk.close())
    await asyncio.sleep(0)
    gate.gate.set()
    assert await first
    await closing
    for question in (second, desk.ask(has_sessions)):
        with pytest.raises(StoreUnavailable, match="closed"):
            await question
    await desk.close()


async def test_its_thread_ends_with_it(open_archive: Opener, policy: StorePolicy) -> None:
    await open_archive().append(make_opening())
    desk = ReaderThread(policy.path, connect_reader)
    thread = await desk.ask(lambda connection: threading.current_thread())
    assert thread is await desk.ask(lambda connection: threading.current_thread())
    await desk.close()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
