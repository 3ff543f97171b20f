"""The worker process indexes the log while it has no job, and jobs do not wait for that."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.context.conversation import BuilderPolicy
from proxy.engine.token_counter import MeasureJob
from proxy.model.errors import StoreUnavailable
from proxy.model.search import IndexHealth, SearchQuery
from proxy.retrieval.vectors import VectorBatch
from proxy.store.search.indexer import Indexer
from proxy.store.search.reader import SearchIndex
from proxy.worker.indexing import IdleIndexing, IndexJob
from proxy.worker.process import WorkerProcess
from proxy.worker.program import Jobs, WorkerSettings
from tests.store.search.test_indexer import write_work
from tests.support.embedding import ESTIMATOR, encode
from tests.support.indexing import LogBuilder, say
from tests.support.scripted import LIMIT

EMPTY = MeasureJob("o200k_base", ())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogBuilder]:
    made = LogBuilder(tmp_path / "log.db")
    yield made
    made.close()


@pytest.fixture
async def worker(log: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkerProcess]:
    monkeypatch.setattr("proxy.worker.process.ASK_SECONDS", 0.02)
    settings = WorkerSettings(BuilderPolicy(), 1 << 20, str(log.path), ESTIMATOR)
    made = WorkerProcess(settings, job_seconds=LIMIT)
    yield made
    await made.close()


async def wait_for_hit(log: LogBuilder, text: str) -> str:
    """The best hit of a search, once there is one."""
    index = SearchIndex(log.path)
    async with asyncio.timeout(LIMIT):
        while not (found := await index.search(SearchQuery(text=text))).hits:  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(0.02)
    await index.close()
    return found.hits[0].snippet


async def test_what_is_recorded_is_soon_found(log: LogBuilder, worker: WorkerProcess) -> None:
    await worker.start()
    log.call([say("a zebra")])
    assert await wait_for_hit(log, "zebra") == "a zebra"
    log.call([say("a zebra"), say("an okapi")])
    assert await wait_for_hit(log, "okapi") == "an okapi"
    assert worker.index_health.fault == ""


async def test_jobs_are_done_while_there_is_much_to_index(log: LogBuilder, worker: WorkerProcess) -> None:
    for i in range(20):
        write_work(log, 20, f"s{i}")
    await worker.start()
    for _ in range(20):
        assert await worker.measure(EMPTY) == []
    assert await wait_for_hit(log, "s19")


async def test_a_process_that_was_killed_goes_on(log: LogBuilder, worker: WorkerProcess) -> None:
    await worker.start()
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    log.call([say("a zebra")])
    assert await wait_for_hit(log, "zebra") == "a zebra"
    assert worker.pid not in (None, first)


async def test_the_index_is_made_anew_on_demand(log: LogBuilder, worker: WorkerProcess) -> None:
    log.call([say("a zebra")])
    await worker.start()
    assert await wait_for_hit(log, "zebra") == "a zebra"
    assert (await worker.rebuild_index()).is_rebuilding
    assert await wait_for_hit(log, "zebra") == "a zebra"


async def test_what_another_process_writes_is_left_alone(log: LogBuilder, worker: WorkerProcess) -> None:
    other = Indexer(log.path)
    other.run(1.0)
    await worker.start()
    with pytest.raises(StoreUnavailable, match="is being written by another process"):
        await worker.rebuild_index()
    async with asyncio.timeout(LIMIT):
        while not worker.index_health.fault:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.02)
    assert "is being written by another process" in worker.index_health.fault
    other.close()


async def test_a_lost_worker_shows_in_the_health_of_the_index(log: LogBuilder, worker: WorkerProcess) -> None:
    await worker.start()
    await worker.close()
    with pytest.raises(Exception, match="stopping"):
        await worker.rebuild_index()


def test_it_stops_when_a_job_comes(log: LogBuilder) -> None:
    write_work(log, 30)
    reading, writing = os.pipe()
    indexer = Indexer(log.path)
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        sink.write(b"job")
        sink.flush()
        IdleIndexing(indexer, source).run()
    assert not log.path.with_name("index.db").exists()
    indexer.close()


def test_without_a_log_nothing_is_told() -> None:
    assert Jobs(WorkerSettings(BuilderPolicy(), 1 << 20)).do(IndexJob()) == IndexHealth()


async def test_vectors_are_kept_for_the_passages_that_it_names(log: LogBuilder, worker: WorkerProcess) -> None:
    await worker.start()
    log.call([say("a zebra"), say("an okapi")])
    assert await wait_for_hit(log, "okapi") == "an okapi"
    batch = await worker.list_passages("s1", "e")
    assert [each.text for each in batch.passages] == ["a zebra", "an okapi"]
    numbers, codes = tuple([each.number for each in batch.passages]), (encode("a zebra"), encode("an okapi"))
    made = VectorBatch(stamp=batch.stamp, since=batch.since, until=batch.until, numbers=numbers, codes=codes)
    assert await worker.keep_vectors("s1", "e", made) == ""
    assert (await worker.list_passages("s1", "e")).passages == ()
    async with asyncio.timeout(LIMIT):
        while worker.index_health.vectors != 2:  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(0.02)
    log.call([say("a zebra"), say("an okapi"), say("a gnu")])
    assert await wait_for_hit(log, "gnu") == "a gnu"
    batch = await worker.list_passages("s1", "e")
    codes = (encode("a gnu", 64), encode("a gnu", 64))
    made = VectorBatch(stamp=batch.stamp, since=batch.since, until=batch.until, numbers=numbers, codes=codes)
    assert "vectors have 64 numbers, and others of e had 128" in await worker.keep_vectors("s1", "e", made)


async def test_without_an_index_there_are_no_passages() -> None:
    worker = WorkerProcess(WorkerSettings(BuilderPolicy(), 1 << 20), job_seconds=LIMIT)
    with pytest.raises(StoreUnavailable, match="only an indexed log has passages"):
        await worker.list_passages("s1", "e")
    await worker.close()
