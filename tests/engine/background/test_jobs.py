"""Work behind calls: what begins it, what ends it, and that nothing of it comes too late."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.background.jobs import SUMMARY, BackgroundJobs, Job
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.erasing.live import LiveSessions
from proxy.engine.memory.compaction import MemoryRequests
from proxy.engine.policy import Provider
from proxy.engine.recall.embeddings import RETRY_SECONDS, build_embedding
from proxy.engine.request_resolver import Route
from proxy.engine.turns.files import FileProse
from proxy.model.errors import WorkerLost
from proxy.model.exchange import Headers, Usage
from tests.support.compacting import FREE, Workshop, in_time, record_usage, say
from tests.support.engine import JSON, ScriptedResponse, ScriptedUpstream
from tests.support.managing import make_history
from tests.support.remembering import make_memory

OBSERVED: Headers = ((b"x-palimpsest-mode", b"observe"),)
LARGE = make_history(14, 3_000)


def begin(jobs: BackgroundJobs, session: str = "s1", *, upstream: str = "", lease: str = "") -> Job:
    """Work that never ends by itself."""
    work: Any = asyncio.Event().wait
    job = jobs.start(session, "work", work, upstream=upstream, lease=lease)
    assert job is not None
    return job


def make_live(shop: Workshop) -> LiveSessions:
    nothing: Any = None
    return LiveSessions(shop.exchanges, shop.worker, shop.remembered, nothing, nothing)


async def test_work_is_known_by_its_session_until_it_has_ended() -> None:
    shop = Workshop()
    job = begin(shop.jobs)
    assert shop.jobs.list_jobs("s1") == shop.jobs.list_jobs("s1", "work") == [job]
    assert shop.jobs.list_jobs("s1", SUMMARY) == shop.jobs.list_jobs("s2") == []
    job.task.cancel()
    await shop.settle()
    assert (len(shop.jobs), shop.jobs.list_jobs("s1")) == (0, [])


async def test_a_lease_is_held_as_long_as_the_work_and_nobody_else_does_it_meanwhile() -> None:
    shop = Workshop()
    job = begin(shop.jobs, lease="one")
    await asyncio.sleep(0)
    assert list(shop.leases.held) == ["one"]
    other = Workshop()
    other.jobs.leases, other.jobs.owner = shop.leases, "another"
    refused = begin(other.jobs, lease="one")
    await in_time(asyncio.wait((refused.task,)))
    assert refused.is_refused
    job.task.cancel()
    await shop.settle()
    assert (job.is_refused, shop.leases.held) == (False, {})


async def test_a_fault_is_logged_unless_somebody_else_is_told(caplog: pytest.LogCaptureFixture) -> None:
    shop, told = Workshop(), list[Exception]()

    async def fail() -> None:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.ERROR):
        shop.jobs.start("s1", "work", fail, note=told.append)
        await shop.settle()
        assert [str(each) for each in told] == ["a bug"]
        assert caplog.records == []
        shop.jobs.start("s1", "work", fail)
        await shop.settle()
    (record,) = caplog.records
    assert "a background task failed" in record.getMessage()


async def test_once_it_is_closed_nothing_begins_any_more() -> None:
    shop, done = Workshop(), list[str]()
    shop.jobs.later(5.0, lambda: done.append("one"))
    shop.later.pop()()
    assert done == ["one"]
    shop.jobs.later(5.0, lambda: done.append("two"))
    shop.jobs.close()
    shop.later.pop()()
    assert done == ["one"]
    work: Any = asyncio.Event().wait
    assert shop.jobs.start("s1", "work", work) is None


async def test_vectors_that_cannot_be_had_are_not_asked_for_again_once_the_engine_has_closed() -> None:
    shop = Workshop()

    class Lost:
        looks = 0

        async def list_passages(self, session: str, model: str) -> Any:
            self.looks += 1
            raise WorkerLost("the server is stopping")

        async def keep_vectors(self, session: str, model: str, batch: Any) -> str:
            raise AssertionError

    store, timers = Lost(), list[tuple[float, Any]]()
    shop.jobs.call_later = lambda seconds, work: timers.append((seconds, work))
    build_embedding("e", shop.worker, store)
    await shop.ask(make_history(3)[:4])
    timers.pop()[1]()
    await shop.settle()
    (seconds, again) = timers.pop()
    assert (store.looks, seconds) == (1, RETRY_SECONDS)
    shop.jobs.close()
    again()
    await shop.settle()
    assert (store.looks, timers) == (1, [])


async def test_a_call_that_is_only_observed_keeps_a_local_server_busy_too() -> None:
    shop = Workshop(provider=Provider(cache="local"))
    send, seen = shop.model.send, list[bool]()

    async def look(*args: Any) -> Any:
        seen.append(shop.jobs.has_call("main", "m"))
        return await send(*args)

    shop.model.send = look  # type: ignore[assignment, method-assign]
    await shop.ask([{"role": "user", "content": "Hi."}], OBSERVED)
    assert seen == [True]
    assert not shop.jobs.has_call("main", "m")


async def test_what_is_made_for_a_session_ends_before_that_is_erased_and_begins_no_more() -> None:
    shop = Workshop()
    await shop.ask(make_history(3)[:4])
    credentials = shop.worker.credentials
    assert credentials.find_newest(shop.session) is not None
    job, other = begin(shop.jobs, shop.session), begin(shop.jobs, "another")
    assert await in_time(make_live(shop).settle(shop.session)) == ""
    assert (job.task.cancelled(), other.task.done()) == (True, False)
    assert credentials.find_newest(shop.session) is None
    assert len(credentials) == 0
    shop.tasks.cancel()
    await shop.settle()


async def test_a_session_is_not_erased_while_a_summary_of_it_is_made() -> None:
    shop = Workshop()
    await shop.ask(make_history(3)[:4])
    work: Any = asyncio.Event().wait
    job = shop.jobs.start(shop.session, SUMMARY, work)
    assert job is not None
    assert await make_live(shop).settle(shop.session) == "a summary of it is being made"
    assert not job.task.done()
    assert shop.worker.credentials.find_newest(shop.session) is not None
    shop.tasks.cancel()
    await shop.settle()


async def test_memory_that_was_asked_for_is_not_made_behind_an_erasing() -> None:
    shop, loading = Workshop(ceiling=100_000), asyncio.Event()
    compaction = make_memory(shop)

    async def load(*args: Any) -> Any:
        loading.set()
        await asyncio.Event().wait()

    compaction.load = load  # type: ignore[assignment, method-assign]
    MemoryRequests(compaction, shop.bus)
    await shop.ask(make_history(3)[:4])
    await compaction.memory.order(shop.session, "request")
    await shop.call(make_history(3)[:6])
    await in_time(loading.wait())
    (job,) = shop.jobs.list_jobs(shop.session)
    assert await in_time(make_live(shop).settle(shop.session)) == ""
    assert job.task.cancelled()


async def test_a_sentence_that_is_being_written_at_a_local_server_ends_when_that_has_a_call() -> None:
    local: Any = ScriptedUpstream("local")
    asked = asyncio.Event()

    async def send(*args: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    local.send = send
    providers = {"local": Provider(cache="local", has_own_key=True)}
    policy = replace(FREE, may_receive=("local",))
    shop = Workshop(policy=policy, providers=providers, others=(local,))
    shop.summarizer.routes = [Route(shop.model), Route(local, ("small",))]
    record_usage(shop.summarizer.health.budget, "s1", Usage(1_000_000, 0))
    prose = FileProse(model="small", inline_tokens=100, worker=shop.worker)
    request = await shop.read_state(LARGE)
    prose.describe_outputs(request)
    await in_time(asked.wait())
    (job,) = shop.jobs.list_jobs("s1", "sentences")
    prose.describe_outputs(request)
    assert shop.jobs.list_jobs("s1", "sentences") == [job]
    shop.jobs.note_arrival("local", "x1")
    await shop.settle()
    assert job.task.cancelled()


async def test_a_model_that_writes_no_sentence_is_left_alone_for_a_while() -> None:
    shop, asked = Workshop(), list[Any]()

    async def send(*args: Any) -> Any:
        asked.append(args)
        return ScriptedResponse(say(""), headers=JSON, ending="whole")

    shop.model.send = send  # type: ignore[assignment, method-assign]
    record_usage(shop.summarizer.health.budget, "s1", Usage(1_000_000, 0))
    request = await shop.read_state(LARGE)
    session, key = request.state.request.session, CallCredential(shop.model, b"/v1/chat/completions", ())
    shop.worker.credentials.store("s1", b"tip", key, session)
    prose = FileProse(model="small", inline_tokens=100, worker=shop.worker)
    prose.describe_outputs(request)
    await shop.settle()
    assert len(asked) == 2
    assert not shop.summarizer.health.breakers.allows("main", "small")
