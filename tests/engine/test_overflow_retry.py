"""A request that is refused as too long is sent once more, shorter, and the client gets that answer alone."""

import asyncio
from typing import Any

import pytest

from proxy.engine.call.open_exchange import REFUSAL_BYTES
from proxy.model.epoch import Plan
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import CallUnreadableEvent, ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, Opening, Outcome, Reading, Round
from proxy.model.lineage import Lineage, Reply
from proxy.model.log import Record
from proxy.model.manifest import make_manifest
from tests.support.engine import (
    JSON,
    LIMIT,
    STREAM,
    Ending,
    FakeArchive,
    RecordingClient,
    ScriptedResponse,
    wait_out,
)
from tests.support.rescuing import (
    SHORT,
    TOO_LONG,
    TOO_LONG_EVENT,
    RescuedEngine,
    ScriptedRescuer,
    UpstreamInTurn,
)

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
REQUEST = ClientRequest("POST", b"/v1/chat/completions", ((b"x-a", b"1"),), BODY)
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


class Call:
    """A call whose upstream gives these answers in turn."""

    def __init__(self, *answers: ScriptedResponse | Exception | None, is_instant: bool = True, **options: Any) -> None:
        self.rescuer = ScriptedRescuer(**options)
        self.upstream = UpstreamInTurn(*answers)
        self.engine = RescuedEngine(self.rescuer, self.upstream, is_instant=is_instant)
        self.archive: FakeArchive = self.engine.archive
        self.client = RecordingClient()
        self.task = self.engine.begin(REQUEST, "chat_completions", self.client)

    async def finish(self) -> list[Outcome]:
        await wait_out(self.task)
        assert await self.engine.tasks.finish(LIMIT)
        return self.archive.of(Outcome)

    async def leave(self) -> list[Outcome]:
        self.task.cancel()
        return await self.finish()

    @property
    def recorded(self) -> list[ExchangeRecorded]:
        return [event for event in self.engine.events if isinstance(event, ExchangeRecorded)]


def refuse(status: int = 400, content: bytes = TOO_LONG, headers: Headers = JSON) -> ScriptedResponse:
    return ScriptedResponse(content, status=status, headers=headers, ending="whole")


def stream(*pieces: bytes, ending: Ending = "eof") -> ScriptedResponse:
    return ScriptedResponse(*pieces, headers=STREAM, ending=ending)


REFUSALS = [
    (False, lambda: refuse()),
    (False, lambda: refuse(413)),
    (False, lambda: refuse(500)),
    (False, lambda: ScriptedResponse(TOO_LONG[:9], TOO_LONG[9:], status=400, headers=JSON, ending="eof")),
    (False, lambda: ScriptedResponse(TOO_LONG[:9], TOO_LONG[9:], status=400, headers=STREAM, ending="last")),
    (True, lambda: refuse()),
    (True, lambda: refuse(200)),
    (True, lambda: ScriptedResponse(TOO_LONG[:9], TOO_LONG[9:], headers=JSON, ending="last")),
    (True, lambda: stream(TOO_LONG_EVENT, DONE)),
    (True, lambda: stream(TOO_LONG_EVENT, ending="open")),
    (True, lambda: stream(ROLE, TOO_LONG_EVENT[:20], TOO_LONG_EVENT[20:], ending="last")),
    (True, lambda: stream(TOO_LONG_EVENT, ending="whole")),
    (True, lambda: stream(TOO_LONG)),
    (True, lambda: stream(TOO_LONG_EVENT[:-1])),
    (True, lambda: ScriptedResponse(TOO_LONG_EVENT, headers=(*STREAM, (b"content-length", b"73")), ending="last")),
]


@pytest.mark.parametrize(("is_guarded", "make"), REFUSALS)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_the_client_gets_the_second_answer_alone(is_guarded: bool, make: Any, is_stream: bool) -> None:
    first = make()
    sent = b"".join(first.pieces)
    second = stream(WORD, DONE) if is_stream else ScriptedResponse(ANSWER, headers=JSON, ending="whole")
    call = Call(first, second, is_guarded=is_guarded)
    refused, answered = await call.finish()
    assert (call.client.status, call.client.headers) == (200, second.headers)
    assert (call.client.body, call.client.is_whole) == (WORD + DONE if is_stream else ANSWER, True)
    assert [each.body for each in call.upstream.calls] == [BODY, SHORT]
    assert {(each.method, each.target, each.headers) for each in call.upstream.calls} == {
        (REQUEST.method, REQUEST.target, REQUEST.headers)
    }
    assert first.is_closed
    assert call.rescuer.accepted == 1
    assert (refused.k, refused.status, refused.received, refused.completeness) == (0, first.status, sent, "complete")
    assert (answered.k, answered.received, answered.completeness) == (1, call.client.body, "complete")


async def test_the_rescuer_is_told_what_came() -> None:
    call = Call(refuse(413), refuse())
    await call.finish()
    refusal, second = call.rescuer.refusals
    assert (refusal.status, refusal.headers, refusal.content) == (413, JSON, TOO_LONG)
    assert (second.status, call.rescuer.accepted) == (400, 0)
    call = Call(stream(TOO_LONG_EVENT), refuse(), is_guarded=True)
    await call.finish()
    refusal, _ = call.rescuer.refusals
    assert (refusal.status, refusal.content) == (200, TOO_LONG_EVENT)


async def test_each_round_is_recorded_and_read_as_what_it_was_in_order() -> None:
    plan = Plan("x1", 1, "m", "minimal")
    call = Call(refuse(), stream(WORD, DONE), plan=plan)
    await call.finish()
    records = [record for each in call.archive.appended for record in each.records]
    kinds = [Opening, Round, Lineage, Outcome, Reading, Round, Plan, Outcome, Reading, Reply]
    assert [type(record) for record in records if not isinstance(record, Lineage)] == [
        k for k in kinds if k is not Lineage
    ]
    assert call.archive.of(Round) == [Round("x1", 0, "main", None), Round("x1", 1, "main", make_manifest(SHORT))]
    assert call.archive.of(Plan) == [plan]
    assert [(reading.k, reading.error) for reading in call.archive.of(Reading)] == [(0, "too long"), (1, "")]
    (reply,) = call.archive.of(Reply)
    assert (reply.k, len(reply.nodes)) == (1, 1)
    events = [(event.status, event.is_final, event.is_readable) for event in call.recorded]
    assert events == [(400, False, True), (200, True, True)]


async def test_a_refusal_that_nobody_can_read_costs_the_second_answer_nothing() -> None:
    call = Call(refuse(413, b"<p>too long</p>"), stream(WORD, DONE))
    await call.finish()
    assert [reading.k for reading in call.archive.of(Reading)] == [1]
    assert len(call.archive.of(Reply)) == 1
    assert not any(isinstance(event, CallUnreadableEvent) for event in call.engine.events)


async def test_a_conversation_that_began_with_a_refusal_goes_on() -> None:
    call = Call(refuse(), ScriptedResponse(ANSWER, headers=JSON, ending="whole"), refuse(200, ANSWER))
    await call.finish()
    said = b'{"role":"user","content":"hello"},{"role":"assistant","content":"hi"},{"role":"user","content":"more"}'
    request = ClientRequest("POST", b"/v1/chat/completions", (), b'{"model":"m","messages":[%s]}' % said)
    await wait_out(call.engine.begin(request, "chat_completions", RecordingClient()))
    assert await call.engine.tasks.finish(LIMIT)
    first, second = call.archive.of(Opening)
    assert first.session == second.session
    assert call.archive.of(Lineage)[-1].relation == "append"
    assert not call.engine.lineage.open_exchanges and not call.engine.lineage.unread


async def test_a_second_refusal_reaches_the_client_byte_for_byte() -> None:
    other = b'{"error": {"message":"still too long"}}'
    last: Headers = (*JSON, (b"x-unheard-of", b"2"))
    call = Call(refuse(), refuse(413, other, last))
    outcomes = await call.finish()
    assert (call.client.status, call.client.headers, call.client.body) == (413, last, other)
    assert call.client.is_whole
    assert (len(call.upstream.calls), len(call.rescuer.refusals)) == (2, 2)
    assert [outcome.status for outcome in outcomes] == [400, 413]


NO_REFUSALS = [
    (False, lambda: refuse(content=b'{"error":{"message":"bad schema"}}')),
    (False, lambda: refuse(429, b"slow down")),
    (False, lambda: refuse(503, b"busy")),
    (True, lambda: refuse(503, b"busy")),
    (False, lambda: refuse(304)),
    (False, lambda: refuse(200)),
    (False, lambda: stream(TOO_LONG_EVENT, DONE)),
    (False, lambda: refuse(content=TOO_LONG + b" " * REFUSAL_BYTES)),
    (False, lambda: ScriptedResponse(*[b" " * 20_000] * 4, TOO_LONG, status=400, headers=JSON, ending="eof")),
    (False, lambda: refuse(content=b"\x8b", headers=(*JSON, (b"content-encoding", b"br")))),
    (True, lambda: ScriptedResponse(TOO_LONG_EVENT, headers=(*STREAM, (b"content-encoding", b"gzip")), ending="eof")),
    (True, lambda: ScriptedResponse(ANSWER[:30], ANSWER[30:], headers=JSON, ending="eof")),
    (True, lambda: stream(ROLE, WORD, DONE)),
    (True, lambda: stream(ROLE + WORD + DONE, ending="whole")),
    (True, lambda: stream(WORD, TOO_LONG_EVENT)),
    (True, lambda: stream(ROLE, DONE, b": bye\n\n")),
    (True, lambda: stream(b": x" * 25_000, WORD, DONE)),
    (True, lambda: stream()),
    (True, lambda: ScriptedResponse(status=204, headers=(), ending="whole")),
]


@pytest.mark.parametrize(("is_guarded", "make"), NO_REFUSALS)
async def test_what_is_no_refusal_goes_on_byte_for_byte(is_guarded: bool, make: Any) -> None:
    response = make()
    sent = b"".join(response.pieces)
    call = Call(response, is_guarded=is_guarded)
    (outcome,) = await call.finish()
    assert (call.client.status, call.client.headers, call.client.body) == (response.status, response.headers, sent)
    assert (call.client.is_whole, outcome.received, outcome.completeness) == (True, sent, "complete")
    assert [event.is_final for event in call.recorded] == [True]


async def test_where_nothing_shorter_can_be_had_the_refusal_goes_on() -> None:
    for response in (refuse(), stream(TOO_LONG_EVENT, DONE)):
        sent = b"".join(response.pieces)
        call = Call(response, is_guarded=True, retry=None)
        (outcome,) = await call.finish()
        assert len(call.rescuer.refusals) == 1
        assert (call.client.body, call.client.is_whole, outcome.received) == (sent, True, sent)


async def test_an_answer_of_a_call_that_is_not_guarded_is_not_held() -> None:
    response = stream(ROLE, ending="open")
    call = Call(response)
    await response.wait_until_starved()
    assert (call.client.body, call.rescuer.read) == (ROLE, 0)
    await call.leave()


async def test_a_client_that_leaves_while_the_rescuer_thinks_leaves_one_whole_round() -> None:
    response = refuse()
    call = Call(response)
    call.rescuer.may_answer.clear()
    await call.rescuer.wait_until_asked()
    (outcome,) = await call.leave()
    assert (outcome.completeness, outcome.received, response.is_closed) == ("complete", TOO_LONG, True)
    assert (call.client.is_aborted, len(call.upstream.calls)) == (True, 1)
    assert [event.is_final for event in call.recorded] == [True]
    assert not call.engine.lineage.open_exchanges


async def test_a_client_that_leaves_during_the_retry_leaves_both_rounds() -> None:
    call = Call(refuse(), None)
    await call.upstream.wait_until_starved()
    refused, aborted = await call.leave()
    assert (refused.completeness, refused.status) == ("complete", 400)
    assert (aborted.k, aborted.completeness, aborted.status) == (1, "aborted", 0)
    assert not call.engine.lineage.open_exchanges


async def test_an_upstream_that_dies_before_the_second_answer_is_an_error() -> None:
    call = Call(refuse(), UpstreamUnreachable("gone"))
    _, failed = await call.finish()
    assert call.client.error is not None
    assert (call.client.error.status, failed.k, failed.completeness) == (502, 1, "failed")


async def test_an_upstream_that_dies_in_the_second_answer_breaks_it() -> None:
    call = Call(refuse(), stream(WORD, ending="cut"))
    _, broken = await call.finish()
    assert (call.client.body, call.client.is_aborted, call.client.is_whole) == (WORD, True, False)
    assert (broken.k, broken.completeness, broken.received) == (1, "truncated", WORD)


async def test_the_second_answer_waits_for_the_record_of_its_own_round() -> None:
    call = Call(refuse(), stream(WORD, ending="open"), is_instant=False)
    await call.archive.wait_for(Round, 2)
    (commit,) = [each.commit for each in call.archive.appended if _has_second_round(each.records)]
    async with asyncio.timeout(LIMIT):
        await commit.awaited.wait()
    assert not call.client.started.is_set()
    assert call.archive.flushed.is_set()
    commit.set_result(True)
    assert await call.client.wait_for_body(len(WORD)) == WORD
    await call.leave()


async def test_each_round_has_its_own_times() -> None:
    second = stream(ending="open")
    call = Call(refuse(), second)
    call.rescuer.may_answer.clear()
    await call.rescuer.wait_until_asked()
    call.engine.clock.advance(2)
    call.rescuer.may_answer.set()
    await second.wait_until_starved()
    call.engine.clock.advance(0.5)
    second.feed(WORD)
    await second.wait_until_starved()
    call.engine.clock.advance(1)
    second.feed(DONE, ending="eof")
    refused, answered = await call.finish()
    assert refused.timings.total_ms == 0
    times = answered.timings
    assert (times.head_ms, times.first_byte_ms, times.total_ms) == (0, 500, 1500)


async def test_a_kill_between_the_rounds_leaves_what_the_next_start_can_read() -> None:
    call = Call(refuse(), None)
    await call.upstream.wait_until_starved()
    call.archive.appended = [  # the reading had not got into the log
        each for each in call.archive.appended if not isinstance(each.records[0], Reading)
    ]
    after = RescuedEngine(call.rescuer, UpstreamInTurn(), after=call.engine)
    await after.readings.read_left()
    (reading,), (reply,) = after.archive.of(Reading), after.archive.of(Reply)
    assert (reading.k, reading.error, reply.nodes) == (0, "too long", ())
    assert not after.lineage.open_exchanges
    await call.leave()


def _has_second_round(records: tuple[Record, ...]) -> bool:
    return any(isinstance(record, Round) and record.k == 1 for record in records)
