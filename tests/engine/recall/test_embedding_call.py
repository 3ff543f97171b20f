"""One call for embeddings: what is sent, what of it is recorded, what it costs, and what an odd answer does."""

import asyncio
import gzip
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.context.pricing import Cost
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_call import FailedCall, ModelCall
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import Provider
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import AuxiliaryEnded, ExchangeRecorded
from proxy.model.exchange import Headers, Opening, Outcome, Reading, Usage
from proxy.model.log import ArchiveHealth
from proxy.retrieval.embeddings import write_embedding_request
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from proxy.store.sqlite.reader import SqliteReader
from tests.support.embedding import encode, make_response
from tests.support.engine import JSON, LIMIT, ScriptedResponse, ScriptedUpstream
from tests.support.managing import SESSION
from tests.support.model_calls import KEY, Setup

TEXTS = ["a dog", "a boat in the harbour"]
FREE = CompactionPolicy(spend_fraction=1.0)


def answer(content: bytes, status: int = 200, headers: Headers = JSON) -> ScriptedUpstream:
    return ScriptedUpstream(answer=ScriptedResponse(content, status=status, headers=headers, ending="whole"))


class World:
    """A caller over fakes, in a session that has spent enough for any call."""

    def __init__(self, upstream: ScriptedUpstream, policy: CompactionPolicy = FREE, spent: int = 10_000) -> None:
        self.setup = Setup(upstream, policy)
        self.upstream, self.engine, self.health = upstream, self.setup.engine, self.setup.health
        made = self.caller = self.setup.caller
        self.ended: list[AuxiliaryEnded] = []
        made.bus.subscribe(AuxiliaryEnded, self.ended.append)
        balance = self.health.budget
        balance.record_estimate("client", Usage(spent, 0))
        balance.record_exchange(self.make_event())

    def make_event(self) -> ExchangeRecorded:
        """The end of a call of the client."""
        told = ("client", SESSION.id, "managed", "chat_completions", "main", 200, "complete", 9, 9, 0.0, 0.0)
        return ExchangeRecorded(*told, is_readable=True, model="m")  # type: ignore[arg-type]

    def make_request(self, upstream: Any = None, headers: Headers = KEY, texts: Sequence[str] = TEXTS) -> ModelCall:
        credential = CallCredential(self.upstream, b"/v1/chat/completions", headers)
        body, expected = write_embedding_request("e", texts), Usage(sum(len(text) // 3 + 1 for text in texts), 0)
        return ModelCall(SESSION, credential, upstream or self.upstream, None, "e", body, 0, expected, texts=texts)

    async def call(self, request: ModelCall | None = None) -> list[bytes] | FailedCall:
        async with asyncio.timeout(LIMIT):
            found = await self.caller.ask(request or self.make_request())
        return found if isinstance(found, FailedCall) else list(found.codes)

    @property
    def records(self) -> list[Any]:
        return [record for each in self.engine.archive.appended for record in each.records]


async def fail(upstream: ScriptedUpstream) -> tuple[str, World]:
    """Why a call fails."""
    world = World(upstream)
    found = await world.call()
    assert isinstance(found, FailedCall)
    return found.reason, world


async def test_texts_are_sent_and_vectors_come_back() -> None:
    world = World(answer(make_response(TEXTS)))
    assert await world.call() == [encode(text) for text in TEXTS]
    [sent] = world.upstream.calls
    assert (sent.method, sent.target) == ("POST", b"/v1/embeddings")
    assert json.loads(sent.body) == {"model": "e", "input": TEXTS}  # type: ignore[arg-type]
    assert dict(sent.headers)[b"authorization"] == dict(KEY)[b"authorization"]
    assert b"accept-encoding" not in dict(sent.headers) or dict(sent.headers)[b"accept-encoding"] == b"identity"
    [ended] = world.ended
    assert (ended.verdict, ended.made, ended.cost, ended.session) == ("answered", 2, 7.0, SESSION.id)
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 7.0
    assert world.health.budget.get_balance(SESSION.id).reserved == Cost()


async def test_the_record_has_the_beginning_and_the_usage_but_not_all_texts_and_vectors() -> None:
    texts = ["word " * 2000]
    world = World(answer(make_response(texts)))
    request = world.make_request(texts=texts)
    assert await world.call(request) == [encode(texts[0])]
    [opening] = [each for each in world.records if isinstance(each, Opening)]
    assert (opening.kind, opening.session, opening.model, opening.wire) == ("auxiliary", SESSION, "e", "")
    assert opening.body.size > 10_000
    assert opening.body.weight < 2000
    [outcome] = [each for each in world.records if isinstance(each, Outcome)]
    assert (len(outcome.received), outcome.completeness) == (1024, "complete")
    assert outcome.size == len(make_response(texts))
    [reading] = [each for each in world.records if isinstance(each, Reading)]
    assert reading.usage == Usage(2000, 0)
    assert b"sk-a-secret" not in repr(world.records).encode()


async def test_the_log_takes_it_and_knows_what_was_spent(tmp_path: Path) -> None:
    world = World(answer(make_response(TEXTS)))
    await world.call()
    archive = open_sqlite(StorePolicy(tmp_path / "log.db", durability="full"), asyncio.get_running_loop())
    async with asyncio.timeout(LIMIT):
        assert await archive.append(*world.records)
        [spent] = await archive.sum_auxiliary(0)
    assert (spent.session, spent.model, spent.usage.input) == (SESSION.id, "e", 7)
    assert archive.health.dropped == 0
    await archive.close()
    log = SqliteReader(tmp_path / "log.db")
    assert not (await log.verify()).faults
    await log.close()
    assert sqlite3.connect(tmp_path / "log.db").execute("SELECT kind FROM exchange").fetchall() == [("auxiliary",)]


async def test_another_upstream_gets_no_header_of_the_client() -> None:
    other = ScriptedUpstream("other", ScriptedResponse(make_response(TEXTS), headers=JSON, ending="whole"))
    world = World(ScriptedUpstream())
    refused = await world.call(world.make_request(other))
    assert isinstance(refused, FailedCall)
    assert refused.reason == "no client's key goes to another upstream; set api_key of other"
    assert not other.calls
    setup = Setup(world.upstream, FREE, providers={"other": Provider(has_own_key=True)})
    world.caller.health, world.setup = setup.health, setup
    setup.health.budget.record_estimate("client", Usage(10_000, 0))
    setup.health.budget.record_exchange(world.make_event())
    assert await world.call(world.make_request(other)) == [encode(text) for text in TEXTS]
    assert b"authorization" not in dict(other.calls[0].headers)


async def test_spending_is_bounded_with_that_of_summaries() -> None:
    world = World(answer(make_response(TEXTS)), CompactionPolicy(spend_fraction=0.05), spent=100)
    found = await world.call()
    assert isinstance(found, FailedCall)
    assert "compaction.spend_fraction" in found.reason
    assert found.exchange == ""
    assert not world.upstream.calls
    assert not world.records


async def test_a_plan_of_a_person_is_not_used_unless_permitted() -> None:
    world = World(answer(make_response(TEXTS)))
    found = await world.call(world.make_request(headers=((b"authorization", b"Bearer sk-ant-oat01-x"),)))
    assert isinstance(found, FailedCall)
    assert found.reason == "the credential is of a person's plan (compaction.subscription_calls)"
    assert not world.upstream.calls


async def test_a_model_that_fails_twice_is_not_asked_for_a_while() -> None:
    world = World(answer(b'{"error":{"message":"no"}}', status=500))
    for _ in range(2):
        found = await world.call()
        assert isinstance(found, FailedCall)
        assert found.status == 500
        assert found.reason.startswith("status 500: ")
    found = await world.call()
    assert isinstance(found, FailedCall)
    assert found.reason == "e failed lately and is not asked for a while"
    assert len(world.upstream.calls) == 2
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 0.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"data":[]}',
        b'{"data":[{"embedding":"AAAA","index":0},{"embedding":"AAAA","index":1}]}',
        make_response(TEXTS[:1]),
        make_response([*TEXTS, "one more"]),
        make_response(TEXTS, data=[{"index": 0, "embedding": [1.0] * 64}, {"index": 0, "embedding": [1.0] * 64}]),
        make_response(TEXTS, data=[{"index": 0, "embedding": [1.0] * 64}, {"index": 5, "embedding": [1.0] * 64}]),
        make_response(TEXTS, data=[{"embedding": [1.0] * 64}, {"embedding": [1.0] * 128}]),
        make_response(TEXTS, data=[{"embedding": [1.0] * 64}, {"embedding": [0.0] * 64}]),
        make_response(TEXTS, data=[{"embedding": [1.0] * 64}, {"embedding": [1.0] * 2}]),
    ],
)
async def test_an_odd_answer_brings_no_vectors_and_costs_what_was_expected(content: bytes) -> None:
    _, world = await fail(answer(content))
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 10.0
    assert world.ended[0].verdict == "failed"


async def test_an_answer_without_indexes_and_usage_is_in_order() -> None:
    data = [{"embedding": [1.0] * 64}, {"embedding": [-1.0] * 63 + [1.0]}]
    world = World(answer(make_response(TEXTS, data=data, usage=None)))
    assert await world.call() == [b"\xff" * 8, b"\x00" * 7 + b"\x01"]
    assert world.ended[0].cost == 10.0


async def test_an_answer_in_another_order_is_put_in_order() -> None:
    data = [{"index": 1, "embedding": [1.0] * 64}, {"index": 0, "embedding": [-1.0] * 63 + [1.0]}]
    world = World(answer(make_response(TEXTS, data=data, usage={"total_tokens": 3})))
    assert await world.call() == [b"\x00" * 7 + b"\x01", b"\xff" * 8]
    assert world.ended[0].cost == 3.0


async def test_a_compressed_answer_is_read() -> None:
    headers = (*JSON, (b"content-encoding", b"gzip"))
    world = World(answer(gzip.compress(make_response(TEXTS)), headers=headers))
    assert await world.call() == [encode(text) for text in TEXTS]


async def test_an_answer_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.compaction.model_call.MOST_BYTES", 100)
    reason, world = await fail(answer(make_response(TEXTS)))
    assert reason == "the response is longer than it may be"
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 10.0  # it came, and is billed


async def test_no_answer_fails() -> None:
    reason, world = await fail(ScriptedUpstream(answer=UpstreamUnreachable("main does not answer")))
    assert reason == "main does not answer"
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 0.0


async def test_a_call_has_a_time_limit() -> None:
    world = World(ScriptedUpstream())
    world.caller.time_limit_seconds = 0.01
    found = await world.call()
    assert isinstance(found, FailedCall)
    assert found.reason == "no complete response came within 0.01 s"
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 10.0
    assert [each.completeness for each in world.records if isinstance(each, Outcome)] == ["aborted"]


async def test_a_cancelled_call_is_accounted_for_and_counts_as_no_failure() -> None:
    world = World(ScriptedUpstream())
    task = asyncio.create_task(world.call())
    await world.upstream.called.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert await world.engine.tasks.finish(LIMIT)
    assert [each.verdict for each in world.ended] == ["aborted"]
    assert world.health.budget.get_balance(SESSION.id).reserved == Cost()
    assert world.health.breakers.allows("main", "e")


async def test_a_cancelled_call_that_was_refused_costs_nothing() -> None:
    refusal = ScriptedResponse(b'{"error":', status=429, headers=JSON)  # its end does not come
    world = World(ScriptedUpstream(answer=refusal))
    task = asyncio.create_task(world.call())
    await refusal.wait_until_starved()
    task.cancel()
    await asyncio.wait((task,))
    assert await world.engine.tasks.finish(LIMIT)
    assert [(each.verdict, each.cost) for each in world.ended] == [("aborted", 0.0)]
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 0.0


async def test_a_response_that_breaks_off_is_told_from_one_that_is_late() -> None:
    reason, world = await fail(ScriptedUpstream(answer=ScriptedResponse(b'{"data":[', headers=JSON, ending="cut")))
    assert reason == "the response broke off"
    assert world.health.budget.get_balance(SESSION.id).summaries.tokens == 10.0


async def test_a_fault_of_ours_leaves_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr("proxy.retrieval.embeddings.pack_signs", lose)
    reason, world = await fail(answer(make_response(TEXTS)))
    assert reason == "the response could not be read: RuntimeError('lost')"
    assert world.health.budget.get_balance(SESSION.id).reserved == Cost()
    assert [(each.verdict, each.cost) for each in world.ended] == [("failed", 10.0)]


async def test_nothing_is_sent_that_could_not_be_recorded() -> None:
    world = World(answer(make_response(TEXTS)))
    world.engine.archive.health = ArchiveHealth("the disk is full", 0, 0, 0, 0)
    assert await world.call() == FailedCall("nothing is asked that cannot be recorded: the disk is full")
    assert not world.upstream.calls
