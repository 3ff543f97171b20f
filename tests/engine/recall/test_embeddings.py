"""When vectors are asked for, of what, and what is done if there are none."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.compaction.credentials import CallCredential, CredentialCache
from proxy.engine.compaction.model_call import FailedCall, ModelCall, ModelResponse
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import Provider
from proxy.engine.recall import embeddings
from proxy.engine.recall.embeddings import RETRY_SECONDS, Embedder, build_embedding
from proxy.engine.request_resolver import Route
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.card import Card
from proxy.model.errors import StoreUnavailable, WorkerLost
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import SessionKey
from proxy.model.search import QueryVector, SearchQuery
from proxy.retrieval.vectors import PassageBatch, PassageText, VectorBatch
from tests.support.compacting import Workshop
from tests.support.embedding import encode
from tests.support.engine import LIMIT, FixedClock, ScriptedUpstream
from tests.support.leases import MemoryLeases
from tests.support.managing import make_history

TENANT, OTHER = b"\x01" * 16, b"\x02" * 16
KEYS = {
    "s1": SessionKey("s1", TENANT, "main", "one"),
    "s2": SessionKey("s2", TENANT, "main", "two"),
    "t1": SessionKey("t1", OTHER, "main", "three"),
}
QUERY = SearchQuery(text="which vessel", tenant=TENANT.hex())


class Passages:
    """The passages of sessions, in batches of `most`."""

    def __init__(self, most: int = 2) -> None:
        self.texts: dict[str, list[str]] = {}
        self.kept: dict[str, list[tuple[str, bytes]]] = {}
        self.done: dict[str, int] = {}
        self.most = most
        self.error: Exception | None = None
        self.is_current = True
        self.looks = 0
        self.problem = ""

    async def list_passages(self, session: str, model: str) -> PassageBatch:
        self.looks += 1
        if self.error is not None:
            raise self.error
        texts, since = self.texts.get(session, []), self.done.get(session, 0)
        chosen = [PassageText(since + i, text) for i, text in enumerate(texts[since : since + self.most])]
        until = since + len(chosen)
        return PassageBatch(
            stamp="m", passages=tuple(chosen), since=since, until=until, left=len(texts) - until,
            is_current=self.is_current,
        )  # fmt: skip

    async def keep_vectors(self, session: str, model: str, batch: VectorBatch) -> str:
        if self.problem:
            return self.problem
        assert batch.since == self.done.get(session, 0)
        self.done[session] = batch.until
        texts = self.texts[session]
        made = [(texts[n], code) for n, code in zip(batch.numbers, batch.codes, strict=True)]
        self.kept[session] = self.kept.get(session, []) + made
        return ""


class Caller:
    """Makes vectors by the words, unless it is told to fail."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self.answers: list[Any] = []
        self.refused: str | None = None
        self.open = asyncio.Event()
        self.open.set()

    @property
    def texts(self) -> list[list[str]]:
        return [list(each.texts) for each in self.calls]

    async def ask(self, asked: ModelCall) -> ModelResponse | FailedCall:
        self.calls.append(asked)
        await self.open.wait()
        if self.refused in asked.texts:
            return FailedCall("status 400", 400, exchange="x")
        if self.answers:
            found: FailedCall = self.answers.pop(0)
            return found
        codes = [encode(text) for text in asked.texts]
        return ModelResponse("", "", None, 0.0, is_tool_call=False, exchange="x", codes=codes)


class World:
    """An embedder over fakes, whose timers run when they are told to."""

    def __init__(
        self,
        policy: CompactionPolicy | None = None,
        routes: tuple[Route, ...] = (),
        *,
        cache: Literal["local"] | None = None,
    ) -> None:
        self.clock, self.tasks = FixedClock(), TaskRunner()
        self.upstream = ScriptedUpstream()
        self.passages = Passages()
        self.caller = Caller()
        caller: Any = self.caller
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.credentials = CredentialCache(self.clock, lambda seconds, work: None)
        models: Any = SimpleNamespace(providers={"main": Provider(cache=cache)}, card=lambda *names: Card())
        self.jobs = BackgroundJobs(
            bus=EngineBus(self.tasks),
            models=models,
            call_later=lambda seconds, work: self.timers.append((seconds, work)),
            leases=MemoryLeases(self.clock),
            owner="me",
            lease_seconds=1.0,
        )
        self.embedder = Embedder(
            model="e",
            policy=policy or CompactionPolicy(),
            caller=caller,
            store=self.passages,
            jobs=self.jobs,
            credentials=self.credentials,
            routes=routes,
        )

    def note_call(
        self, session: str = "s1", *, status: int = 200, kind: Any = "managed", is_final: bool = True
    ) -> None:
        """Let a client's call end."""
        if status == 200:
            credential = CallCredential(self.upstream, b"/v1/chat/completions", ())
            self.credentials.store(session, b"tip", credential, KEYS[session])
        told = ("x", session, kind, "chat_completions", "main", status, "complete", 1, 1, 0.0, 0.0)
        self.embedder.note_exchange(ExchangeRecorded(*told, is_final=is_final))  # type: ignore[arg-type]

    def note_end(self, exchange: str) -> None:
        """Let a call at a local server end."""
        told = (exchange, "s2", "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.0, 0.0)
        self.jobs.note_exchange(ExchangeRecorded(*told))  # type: ignore[arg-type]

    async def step(self) -> float:
        """Run the next timer and what it begins; its seconds."""
        seconds, work = self.timers.pop(0)
        work()
        await self.settle()
        return seconds

    async def settle(self) -> None:
        async with asyncio.timeout(LIMIT):
            while self.tasks.running:
                await asyncio.wait(tuple(self.tasks.running))

    async def run(self) -> list[float]:
        """Run all timers until there is none; their seconds."""
        return [await self.step() for _ in range(20) if self.timers]


async def test_what_a_session_said_is_embedded_in_batches_behind_its_call() -> None:
    world = World()
    world.passages.texts["s1"] = ["a", "b", "c"]
    world.note_call()
    assert world.caller.calls == []
    assert await world.run() == [embeddings.FIRST_SECONDS, embeddings.NEXT_SECONDS]
    assert world.caller.texts == [["a", "b"], ["c"]]
    assert world.passages.kept["s1"] == [(text, encode(text)) for text in "abc"]
    [first, _] = world.caller.calls
    assert (first.session, first.upstream, first.model) == (KEYS["s1"], world.upstream, "e")
    world.note_call()
    await world.run()
    assert len(world.caller.calls) == 2


async def test_sessions_take_turns() -> None:
    world = World()
    world.passages.texts = {"s1": ["a", "b", "c"], "s2": ["d", "e", "f"]}
    world.note_call("s1")
    world.note_call("s2")
    assert len(world.timers) == 1
    await world.run()
    assert world.caller.texts == [["a", "b"], ["d", "e"], ["c"], ["f"]]


async def test_a_call_that_tells_of_no_conversation_starts_nothing() -> None:
    world = World()
    key = CallCredential(world.upstream, b"/v1/chat/completions", ())
    world.credentials.store("s1", b"tip", key, KEYS["s1"])
    world.note_call(status=401)
    world.note_call(kind="auxiliary")
    world.note_call(is_final=False)
    told = ("x", "s2", "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.0, 0.0)
    world.embedder.note_exchange(ExchangeRecorded(*told))  # type: ignore[arg-type]  # without a credential
    assert world.timers == []


async def test_what_is_not_indexed_yet_is_looked_for_again() -> None:
    world = World()
    world.passages.is_current = False
    world.note_call()
    await world.step()
    assert len(world.timers) == 1
    world.passages.texts["s1"], world.passages.is_current = ["a"], True
    await world.run()
    assert world.caller.texts == [["a"]]


async def test_a_credential_that_has_expired_is_not_used() -> None:
    world = World()
    world.passages.texts["s1"] = ["a"]
    world.note_call()
    world.clock.advance(1801)
    await world.run()
    assert world.passages.looks == 0
    assert await world.embedder.embed_query(QUERY) is None


@pytest.mark.parametrize("failure", [FailedCall("it may not"), FailedCall("status 500", 500, exchange="x")])
async def test_a_batch_that_fails_is_asked_for_again_later_and_others_go_on(failure: FailedCall) -> None:
    world = World()
    world.passages.texts = {"s1": ["a"], "s2": ["b"]}
    world.caller.answers = [failure]
    world.note_call("s1")
    world.note_call("s2")
    await world.step()
    assert [seconds for seconds, _ in world.timers] == [RETRY_SECONDS, embeddings.NEXT_SECONDS]
    world.timers.reverse()
    await world.step()
    assert world.caller.texts == [["a"], ["b"]]
    await world.run()
    assert world.passages.kept["s1"] == [("a", encode("a"))]


@pytest.mark.parametrize("error", [WorkerLost("gone"), StoreUnavailable("full")])
async def test_a_worker_that_is_lost_is_asked_again_later(error: Exception) -> None:
    world = World()
    world.passages.texts["s1"], world.passages.error = ["a"], error
    world.note_call()
    await world.step()
    assert [seconds for seconds, _ in world.timers] == [RETRY_SECONDS]
    world.passages.error = None
    await world.run()
    assert world.caller.texts == [["a"]]


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_upstream_without_embeddings_is_asked_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.passages.texts = {"s1": ["a"], "s2": ["b"]}
    world.caller.answers = [FailedCall(f"status {status}", status, exchange="x")] * 9
    world.note_call("s1")
    world.note_call("s2")
    with caplog.at_level(logging.WARNING):
        await world.run()
        world.note_call("s1")
        await world.run()
        assert await world.embedder.embed_query(QUERY) is None
    assert world.caller.texts == [["a"]]
    assert [each.getMessage() for each in caplog.records] == [
        f"/v1/embeddings was refused with status {status}, and is not asked again until a restart; "
        "search goes on by words. Check recall.embedding_model"
    ]


async def test_that_an_upstream_has_no_embeddings_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.note_call()
    world.caller.answers = [FailedCall("status 404", 404, exchange="x")] * 2
    with caplog.at_level(logging.WARNING):
        queries = [SearchQuery(text=text, tenant=TENANT.hex()) for text in ("one", "two")]
        assert await asyncio.gather(*map(world.embedder.embed_query, queries)) == [None, None]
    assert len(world.caller.calls) == 2
    assert len(caplog.records) == 1


async def test_vectors_of_another_length_end_it(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.passages.texts = {"s1": ["a"], "s2": ["b"]}
    world.passages.problem = "they are too long"
    world.note_call("s1")
    world.note_call("s2")
    with caplog.at_level(logging.WARNING):
        await world.run()
    assert world.caller.texts == [["a"]]
    assert [each.getMessage() for each in caplog.records] == [
        "vectors cannot be used and are not asked for until a restart: they are too long. Check recall.embedding_model"
    ]


async def test_a_passage_that_is_refused_is_found_and_left_out() -> None:
    world = World()
    world.passages.most = 4
    world.passages.texts["s1"] = ["a", "b", "c", "d", "e", "f"]
    world.caller.refused = "b"
    world.note_call()
    await world.run()
    assert world.caller.texts == [["a", "b", "c", "d"], ["a"], ["b"], ["c", "d", "e", "f"]]
    assert [text for text, _ in world.passages.kept["s1"]] == ["a", "c", "d", "e", "f"]
    assert world.passages.done["s1"] == 6


async def test_a_local_server_is_asked_only_while_it_has_no_call() -> None:
    world = World(cache="local")
    world.jobs.note_arrival("main", "x9")
    world.passages.texts["s1"] = ["a"]
    world.note_call()
    assert await world.step() == embeddings.LOCAL_SECONDS
    assert world.caller.calls == []
    world.note_end("x9")
    await world.run()
    assert world.caller.texts == [["a"]]


async def test_a_call_to_a_local_server_stops_the_batch_which_is_made_later() -> None:
    world = World(cache="local")
    world.passages.texts["s1"] = ["a"]
    world.caller.open.clear()
    world.note_call()
    world.timers.pop(0)[1]()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.caller.texts == [["a"]]
    world.jobs.note_arrival("main", "y1")
    await world.settle()
    assert world.passages.kept == {}
    world.jobs.note_arrival("main", "y1")
    world.note_end("y1")
    world.timers.pop(0)[1]()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.jobs.note_arrival("another", "y1")
    world.caller.open.set()
    await world.settle()
    assert world.caller.texts == [["a"], ["a"]]
    assert world.passages.kept["s1"] == [("a", encode("a"))]


async def test_another_upstream_is_asked_only_if_it_may_receive() -> None:
    other = ScriptedUpstream("other")
    route = Route(other, ("e",))
    for policy, expected in ((CompactionPolicy(), "main"), (CompactionPolicy(may_receive=("other",)), "other")):
        world = World(policy, (route,))
        world.passages.texts["s1"] = ["a"]
        world.note_call()
        await world.run()
        assert [each.upstream.name for each in world.caller.calls] == [expected]


async def test_a_query_is_embedded_once_for_its_tenant() -> None:
    world = World()
    world.note_call("t1")
    world.note_call("s1")
    world.note_call("s2")
    expected = QueryVector("e", encode(QUERY.text))
    found = await asyncio.gather(*[world.embedder.embed_query(QUERY) for _ in range(3)])
    assert found == [expected] * 3
    assert await world.embedder.embed_query(QUERY) == expected
    [call] = world.caller.calls
    assert (call.session.id, list(call.texts)) == ("s2", [QUERY.text])
    assert await world.embedder.embed_query(SearchQuery(text=QUERY.text, tenant=OTHER.hex())) == expected
    assert world.caller.calls[-1].session.id == "t1"


async def test_a_query_of_the_administrator_is_embedded_for_the_session_that_it_names_or_the_only_tenant() -> None:
    world = World()
    world.note_call("s1")
    world.note_call("s2")
    assert await world.embedder.embed_query(SearchQuery(text="one", sessions=("s1",))) is not None
    assert await world.embedder.embed_query(SearchQuery(text="two")) is not None
    world.note_call("t1")
    assert await world.embedder.embed_query(SearchQuery(text="three")) is None
    assert await world.embedder.embed_query(SearchQuery(text="four", sessions=("unknown",))) is None
    assert await world.embedder.embed_query(SearchQuery(text=" ")) is None
    assert [each.session.id for each in world.caller.calls] == ["s1", "s2"]


async def test_a_vector_that_comes_late_is_there_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.note_call()
    world.caller.open.clear()
    monkeypatch.setattr(embeddings, "QUERY_SECONDS", 0.01)
    assert await world.embedder.embed_query(QUERY) is None
    world.caller.open.set()
    await world.settle()
    assert await world.embedder.embed_query(QUERY) == QueryVector("e", encode(QUERY.text))
    assert len(world.caller.calls) == 1


async def test_a_query_that_failed_is_asked_for_again() -> None:
    world = World()
    world.note_call()
    world.caller.answers = [FailedCall("status 500", 500, exchange="x")]
    assert await world.embedder.embed_query(QUERY) is None
    assert await world.embedder.embed_query(QUERY) == QueryVector("e", encode(QUERY.text))


async def test_a_query_with_half_a_character_is_sent_without_it() -> None:
    world = World()
    world.note_call()
    assert await world.embedder.embed_query(SearchQuery(text="a \ud800", tenant=TENANT.hex())) is not None
    assert world.caller.texts == [["a ?"]]


async def test_a_session_that_calls_again_while_it_waits_is_asked_for_once() -> None:
    world = World()
    world.passages.texts["s1"] = ["a"]
    world.caller.answers = [FailedCall("it may not")]
    world.note_call()
    await world.step()
    world.note_call()
    world.timers.reverse()
    assert [seconds for seconds, _ in world.timers] == [embeddings.FIRST_SECONDS, RETRY_SECONDS]
    world.timers.reverse()
    await world.step()
    await world.run()
    assert world.caller.texts == [["a"], ["a"]]


def test_without_a_model_there_is_nothing() -> None:
    trigger: Any = None
    assert build_embedding("", trigger, Passages()) is None


async def test_with_a_model_it_follows_the_calls_of_clients() -> None:
    shop = Workshop(provider=Provider(cache="local"))
    passages = Passages()
    embed = build_embedding("e", shop.worker, passages)
    assert embed is not None
    assert await embed(QUERY) is None
    await shop.ask(make_history(3)[:4])
    passages.texts[shop.session] = ["a"]
    assert len(shop.later) >= 1
    for later in tuple(shop.later):
        later()
    await shop.settle()
    assert passages.looks == 1
