"""Carrying answers: what is released when, what is recorded how, and that no end is made up."""

import asyncio

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import AnswerRead, CallUnreadableEvent, ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, Opening, Outcome, Reading, Round, Trailer
from proxy.model.lineage import Lineage, Reply
from tests.support.engine import (
    JSON,
    LIMIT,
    STREAM,
    Ending,
    Engine,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    wait_out,
)
from tests.support.loops import put_forward

REQUEST = ClientRequest("POST", b"/v1/chat/completions", (), b'{"model":"m","messages":[]}')
FIRST = b'data: {"choices":[]}\n\n'
DONE = b"data: [DONE]\n\n"


class Call:
    """One managed call whose upstream answers with `response` at once."""

    def __init__(
        self,
        response: ScriptedResponse | Exception | None,
        *,
        is_instant: bool = False,
        request: ClientRequest = REQUEST,
    ) -> None:
        self.engine = Engine(ScriptedUpstream(answer=response), is_instant=is_instant)
        self.archive = self.engine.archive
        self.client = RecordingClient()
        self.task = self.engine.begin(request, "chat_completions", self.client)

    async def finish(self) -> None:
        await wait_out(self.task)
        assert await self.engine.tasks.finish(LIMIT)

    async def make_opening_durable(self) -> None:
        (await self.archive.wait_until_awaited(Opening)).set_result(True)

    async def leave(self) -> None:
        self.task.cancel()
        await self.finish()


async def test_nothing_is_released_before_the_opening_is_durable() -> None:
    response = ScriptedResponse(FIRST)
    call = Call(response)
    commit = await call.archive.wait_until_awaited(Opening)
    assert not call.client.started.is_set()
    assert call.client.body == b""
    commit.set_result(True)
    assert await call.client.wait_for_body(len(FIRST)) == FIRST
    assert call.archive.of(Outcome) == []
    await call.leave()


async def test_an_opening_that_is_waited_for_is_not_left_to_wait_for_company() -> None:
    call = Call(ScriptedResponse(FIRST))
    await call.archive.wait_until_awaited(Opening)
    assert call.archive.flushed.is_set()
    await call.leave()


async def test_an_opening_is_written_while_the_upstream_still_thinks() -> None:
    call = Call(None)
    async with asyncio.timeout(LIMIT):
        await call.archive.flushed.wait()
    assert len(call.archive.of(Opening)) == 1
    await call.leave()


async def test_a_lost_opening_holds_nothing_back() -> None:
    call = Call(ScriptedResponse(FIRST))
    (await call.archive.wait_until_awaited(Opening)).set_result(False)
    assert await call.client.wait_for_body(len(FIRST)) == FIRST
    await call.leave()


async def test_a_log_that_never_commits_delays_both_ends_of_an_answer_for_a_bounded_time_only() -> None:
    engine = Engine(
        ScriptedUpstream(answer=ScriptedResponse(FIRST, DONE, ending="eof")), EnginePolicy(commit_wait_ms=20)
    )
    client = RecordingClient()
    await wait_out(engine.begin(REQUEST, "chat_completions", client))
    assert (client.body, client.is_whole) == (FIRST + DONE, True)
    assert not engine.archive.commit_of(Opening).done()
    assert "20 ms behind" in engine.relay.problem


@pytest.mark.parametrize(
    ("pieces", "ending", "headers", "before"),
    [
        ((FIRST, DONE), "eof", STREAM, FIRST),
        ((FIRST, DONE), "last", STREAM, FIRST),
        ((FIRST + DONE, b": bye\n\n"), "eof", STREAM, FIRST),
        ((FIRST, FIRST), "eof", STREAM, FIRST + FIRST),
        ((FIRST, DONE), "open", STREAM, FIRST),
        ((b'{"a":', b"1}"), "last", JSON, b'{"a":'),
        ((b'{"a":', b"1}"), "eof", JSON, b'{"a":1}'),
        ((), "eof", JSON, b""),
        ((b'{"a":', b"1}"), "whole", JSON, b""),
    ],
)
async def test_what_completes_an_answer_waits_for_its_outcome_and_what_comes_before_does_not(
    pieces: tuple[bytes, ...], ending: Ending, headers: Headers, before: bytes
) -> None:
    call = Call(ScriptedResponse(*pieces, ending=ending, headers=headers))
    if ending != "whole":
        await call.make_opening_durable()
    commit = await call.archive.wait_until_awaited(Outcome)
    assert (call.client.body, call.client.is_whole) == (before, False)
    commit.set_result(True)
    assert await call.client.wait_for_body(len(b"".join(pieces))) == b"".join(pieces)
    if ending == "open":
        assert not call.client.is_whole
        return await call.leave()
    await call.finish()
    assert call.client.is_whole
    assert call.archive.outcome.completeness == "complete"
    assert call.archive.outcome.received == b"".join(pieces)


async def test_an_answer_that_is_here_whole_waits_once_for_both() -> None:
    call = Call(ScriptedResponse(b'{"a":1}', ending="whole", headers=JSON))
    commit = await call.archive.wait_until_awaited(Outcome)
    assert not call.archive.commit_of(Opening).awaited.is_set()
    assert not call.client.started.is_set()
    commit.set_result(True)
    await call.finish()
    assert (call.client.status, call.client.writes, call.client.is_whole) == (200, [b'{"a":1}'], True)


STREAMED = FIRST + DONE
MARK, MARK_END = len(FIRST), len(FIRST + b"data: [DONE]")


@pytest.mark.parametrize("cut", range(1, len(STREAMED)))
async def test_an_end_marker_cut_anywhere_is_not_released_whole_before_the_outcome(cut: int) -> None:
    call = Call(ScriptedResponse(STREAMED[:cut], STREAMED[cut:], ending="eof"))
    await call.make_opening_durable()
    commit = await call.archive.wait_until_awaited(Outcome)
    assert call.client.body == STREAMED[: cut if MARK < cut < MARK_END else MARK]
    commit.set_result(True)
    await call.finish()
    assert (call.client.body, call.client.is_whole) == (STREAMED, True)
    assert call.archive.outcome.received == STREAMED


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
async def test_a_marker_is_found_in_single_bytes_however_lines_end(line_end: bytes) -> None:
    stream = STREAMED.replace(b"\n", line_end)
    call = Call(ScriptedResponse(*(stream[i : i + 1] for i in range(len(stream))), ending="eof"))
    await call.make_opening_durable()
    commit = await call.archive.wait_until_awaited(Outcome)
    assert call.client.body == stream[: stream.rindex(b"]")]
    commit.set_result(True)
    await call.finish()
    assert call.client.body == stream


async def test_a_marker_inside_content_ends_nothing() -> None:
    inside = (
        b'data: {"c":"data: [DONE]"}\n\n',
        b'data: {"c":"\\ndata: [DONE]"}\n\n',
        b"data: x [DONE]\n\n",
        b": data: [DONE]\n",
    )
    response = ScriptedResponse(*inside)
    call = Call(response, is_instant=True)
    await response.wait_until_starved()
    assert call.client.body == b"".join(inside)
    assert call.archive.of(Outcome) == []
    await call.leave()


@pytest.mark.parametrize("encoding", [b"gzip", b"br"])
async def test_no_marker_is_sought_in_an_encoded_stream(encoding: bytes) -> None:
    response = ScriptedResponse(DONE, headers=(*STREAM, (b"content-encoding", encoding)))
    call = Call(response, is_instant=True)
    await response.wait_until_starved()
    assert (call.client.body, call.archive.of(Outcome)) == (DONE, [])
    await call.leave()


async def test_what_comes_after_the_end_marker_is_passed_on_and_recorded_as_trailers() -> None:
    response = ScriptedResponse(FIRST, DONE)
    call = Call(response, is_instant=True)
    await call.client.wait_for_body(len(STREAMED))
    for late in (b": one\n\n", b": two\n\n"):
        response.feed(late)
        await response.wait_until_starved()
        assert call.client.writes[-1] == late
    response.feed(ending="eof")
    await call.finish()
    assert call.client.is_whole
    assert call.archive.of(Trailer) == [Trailer("x1", 0, 0, b": one\n\n"), Trailer("x1", 0, 1, b": two\n\n")]
    assert (call.archive.outcome.received, call.archive.outcome.completeness) == (STREAMED, "complete")


@pytest.mark.parametrize(("body", "is_urgent"), [(b'{"stream":true}', True), (b'{"stream":false}', False)])
async def test_the_opening_of_a_stream_does_not_wait_for_company(body: bytes, *, is_urgent: bool) -> None:
    request = ClientRequest("POST", b"/v1/chat/completions", (), body)
    call = Call(ScriptedResponse(b"{}", headers=JSON, ending="whole"), is_instant=True, request=request)
    await call.finish()
    assert [each.is_urgent for each in call.archive.appended if isinstance(each.records[0], Opening)] == [is_urgent]


async def test_what_comes_behind_the_end_is_kept_up_to_the_cap_only() -> None:
    response = ScriptedResponse(FIRST, DONE)
    engine = Engine(
        ScriptedUpstream(answer=response), EnginePolicy(record_cap_bytes=len(STREAMED) + 5), is_instant=True
    )
    client = RecordingClient()
    task = engine.begin(REQUEST, "chat_completions", client)
    await client.wait_for_body(len(STREAMED))
    for late in (b": 1\n\n", b": 2\n\n"):
        response.feed(late)
        await response.wait_until_starved()
    response.feed(ending="eof")
    await wait_out(task)
    assert await engine.tasks.finish(LIMIT)
    assert client.body == STREAMED + b": 1\n\n: 2\n\n"
    assert engine.archive.of(Trailer) == [Trailer("x1", 0, 0, b": 1\n\n")]


async def test_an_end_marker_waits_for_the_rest_of_its_event() -> None:
    response = ScriptedResponse(FIRST, b"data: [DONE]")
    call = Call(response, is_instant=True)
    await response.wait_until_starved()
    await put_forward(0.15)  # longer than what comes behind a whole event is waited for
    assert call.archive.of(Outcome) == []
    response.feed(b"\n\n", ending="eof")
    await call.finish()
    assert call.archive.outcome.received == FIRST + DONE
    assert call.archive.of(Trailer) == []
    assert call.client.is_whole


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_break_behind_the_end_marker_is_a_break_at_the_client(is_late: bool) -> None:
    response = ScriptedResponse(FIRST, DONE, ending="open" if is_late else "cut")
    call = Call(response, is_instant=True)
    assert await call.client.wait_for_body(len(STREAMED)) == STREAMED
    response.feed(ending="cut")
    await call.finish()
    assert (call.client.is_aborted, call.client.is_whole) == (True, False)
    assert call.archive.outcome.completeness == "complete"


@pytest.mark.parametrize("pieces", [(), (FIRST,), (FIRST, b"data: [DO"), (FIRST, b"data: \xe2\x82")])
async def test_an_upstream_that_breaks_off_breaks_the_answer_behind_all_that_came(pieces: tuple[bytes, ...]) -> None:
    call = Call(ScriptedResponse(*pieces, ending="cut"), is_instant=True)
    await call.finish()
    assert (call.client.body, call.client.is_aborted, call.client.is_whole) == (b"".join(pieces), True, False)
    outcome = call.archive.outcome
    assert (outcome.completeness, outcome.received, outcome.status) == ("truncated", b"".join(pieces), 200)
    assert outcome.error == "the upstream broke off"


@pytest.mark.parametrize("was_silent", [True, False])
async def test_an_upstream_that_gives_no_answer_is_an_error_and_a_failed_round(was_silent: bool) -> None:
    call = Call(UpstreamUnreachable("refused", was_silent=was_silent), is_instant=True)
    await call.finish()
    assert call.client.error is not None
    assert call.client.error.status == (504 if was_silent else 502)
    outcome = call.archive.outcome
    assert (outcome.completeness, outcome.status, outcome.received, outcome.error) == ("failed", 0, b"", "refused")
    assert (outcome.timings.head_ms, outcome.timings.first_byte_ms) == (0.0, 0.0)


async def test_a_client_that_leaves_while_its_opening_is_awaited_leaves_an_aborted_round() -> None:
    response = ScriptedResponse(FIRST)
    call = Call(response)
    await call.archive.wait_until_awaited(Opening)
    await call.leave()
    assert (call.archive.outcome.completeness, call.archive.outcome.status) == ("aborted", 200)
    assert response.is_closed


async def test_a_client_that_leaves_while_its_outcome_is_awaited_is_not_recorded_twice() -> None:
    call = Call(ScriptedResponse(b"{}", ending="whole", headers=JSON))
    await call.archive.wait_until_awaited(Outcome)
    await call.leave()
    assert call.archive.outcome.completeness == "complete"
    assert not call.client.is_whole


@pytest.mark.parametrize("ending", ["open", "eof"])
async def test_a_client_that_leaves_behind_the_end_marker_is_not_recorded_twice(ending: Ending) -> None:
    response = ScriptedResponse(FIRST, DONE, ending=ending)
    call = Call(response)
    await call.make_opening_durable()
    await call.archive.wait_until_awaited(Outcome)
    await call.leave()
    assert (call.archive.outcome.completeness, call.archive.outcome.received) == ("complete", STREAMED)
    assert response.is_closed


async def test_a_slow_reader_holds_the_upstream_back() -> None:
    response = ScriptedResponse(FIRST)
    call = Call(response, is_instant=True)
    await response.wait_until_starved()
    call.client.can_take.clear()
    response.feed(b"1", b"2", b"3")
    async with asyncio.timeout(LIMIT):
        await call.client.stalled.wait()
    assert (response.left, call.client.body) == (2, FIRST + b"1")
    call.client.can_take.set()
    await response.wait_until_starved()
    assert call.client.body == FIRST + b"123"
    await call.leave()


async def test_the_head_goes_on_without_what_belongs_to_one_hop() -> None:
    headers: Headers = (*JSON, (b"connection", b"close, x-hop"), (b"x-hop", b"1"), (b"x-unheard-of", b"2"))
    call = Call(ScriptedResponse(b"{}", status=429, headers=headers, ending="whole"), is_instant=True)
    await call.finish()
    assert (call.client.status, call.client.headers) == (429, (*JSON, (b"x-unheard-of", b"2")))
    assert (call.archive.outcome.status, call.archive.outcome.headers) == (429, JSON)


async def test_the_records_of_a_call_come_in_order_and_its_event_once() -> None:
    call = Call(ScriptedResponse(FIRST, DONE, ending="eof"), is_instant=True)
    await call.finish()
    kinds = [type(record) for each in call.archive.appended for record in each.records]
    assert kinds == [Opening, Round, Lineage, Outcome, Reading, Reply]
    event, read = [each for each in call.engine.events if isinstance(each, ExchangeRecorded | AnswerRead)]
    assert isinstance(event, ExchangeRecorded)
    assert (type(read), read.exchange) == (AnswerRead, "x1")
    assert (event.exchange, event.status, event.completeness, event.upstream) == ("x1", 200, "complete", "main")
    assert (event.request_size, event.received_size) == (len(REQUEST.body), len(STREAMED))


async def test_an_answer_without_a_byte_is_not_read() -> None:
    call = Call(ScriptedResponse(status=204, headers=(), ending="whole"), is_instant=True)
    await call.finish()
    assert (call.client.status, call.client.body, call.client.is_whole) == (204, b"", True)
    assert call.archive.of(Reading) == []
    assert not any(isinstance(event, CallUnreadableEvent) for event in call.engine.events)


async def test_timings_count_from_the_request_to_the_head_the_first_byte_and_the_end() -> None:
    call = Call(None, is_instant=True)
    async with asyncio.timeout(LIMIT):
        await call.engine.upstream.called.wait()
    call.engine.clock.advance(0.25)
    response = ScriptedResponse()
    call.engine.upstream.answer(response)
    await response.wait_until_starved()
    call.engine.clock.advance(0.5)
    response.feed(FIRST)
    await response.wait_until_starved()
    call.engine.clock.advance(1)
    response.feed(ending="eof")
    await call.finish()
    timings = call.archive.outcome.timings
    assert (timings.head_ms, timings.first_byte_ms, timings.total_ms) == (250.0, 750.0, 1750.0)
    (event,) = call.engine.events[:1]
    assert isinstance(event, ExchangeRecorded)
    assert (event.first_byte_s, event.total_s) == (0.75, 1.75)
