"""Calls for summaries: what comes of them, and what the log, the budget and the bus are told."""

import asyncio
import json
from typing import Any

import pytest

from proxy.engine.compaction.model_call import FailedCall, ModelResponse, RunningCall
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import EnginePolicy, Provider
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import AnswerRead, AuxiliaryEnded, CallUnreadableEvent
from proxy.model.exchange import Headers, Reading, Round, Usage
from proxy.model.lineage import Lineage, Reply
from proxy.model.log import ArchiveHealth
from proxy.model.manifest import make_head_manifest, make_manifest
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from tests.support.engine import JSON, LIMIT, STREAM, ScriptedResponse, ScriptedUpstream
from tests.support.loops import put_forward
from tests.support.managing import MODEL, SESSION, make_history, make_subject, spell
from tests.support.model_calls import ASKING, KEY, Setup

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 800}}
DONE = b"data: [DONE]\n\n"


def chunk(**delta: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
COUNTED = b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
STREAMED = (chunk(content="Goal: "), chunk(content="x"), END, COUNTED, DONE)


def answer(content: object, status: int = 200, headers: Headers = JSON) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(content).encode(), status=status, headers=headers, ending="whole")


def complete(text: str | None, finish: str = "stop", **message: Any) -> ScriptedResponse:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return answer({"id": "a", "object": "chat.completion", "choices": [choice], "usage": USAGE})


async def ask(setup: Setup, **changes: Any) -> ModelResponse | FailedCall:
    async with asyncio.timeout(LIMIT):
        outcome = await setup.caller.call(setup.make_call(**changes), is_manual=True)
        assert await setup.engine.tasks.finish(LIMIT)
    return outcome


async def test_a_stream_is_heard_to_its_end() -> None:
    setup = Setup(ScriptedUpstream(answer=ScriptedResponse(*STREAMED, ending="eof")))
    outcome = await ask(setup)
    assert outcome == ModelResponse("Goal: x", "stop", Usage(900, 50, 800), 0.0, is_tool_call=False, exchange="x1")
    assert not outcome.has_no_room_left


async def test_it_is_an_exchange_of_the_session_in_the_log() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("Goal: x")))
    await ask(setup)
    opening, outcome = setup.engine.archive.opening, setup.engine.archive.outcome
    assert (opening.kind, opening.session, opening.wire, opening.mode) == (
        *("auxiliary", SESSION),
        *("chat_completions", "manage"),
    )
    assert (opening.model, opening.method, opening.target) == (MODEL, "POST", "/v1/chat/completions?k")
    assert (opening.headers, opening.body) == (
        ((b"content-type", b"application/json"), (b"accept-encoding", b"identity")),
        make_manifest(ASKING),
    )
    assert setup.engine.archive.of(Round) == [Round("x1", 0, "main", None)]
    assert (outcome.status, outcome.completeness) == (200, "complete")
    [reading] = setup.engine.archive.of(Reading)
    assert (reading.exchange, reading.usage, reading.finish) == ("x1", Usage(900, 50, 800), "stop")


async def test_the_upstream_is_asked_with_the_key_of_the_session() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    await ask(setup)
    [sent] = setup.upstream.calls
    assert (sent.method, sent.target, sent.body) == ("POST", b"/v1/chat/completions?k=v", ASKING)
    assert KEY[0] in sent.headers
    assert KEY[1] not in sent.headers


async def test_another_upstream_gets_nothing_of_the_client() -> None:
    own = {"other": Provider(has_own_key=True)}
    setup = Setup(ScriptedUpstream("other", answer=complete("x")), providers=own)
    await ask(setup)
    [sent] = setup.upstream.calls
    assert sent.target == b"/v1/chat/completions"
    assert sent.headers == ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


async def test_an_echoed_key_is_not_recorded() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("It is sk-a-secret-of-the-client")))
    await ask(setup)
    assert b"sk-a-secret" not in setup.engine.archive.outcome.received


async def test_what_is_recorded_of_a_large_question_has_a_cap() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")), engine_policy=EnginePolicy(record_cap_bytes=20))
    await ask(setup)
    body = setup.engine.archive.opening.body
    assert (body.size, body.blobs[0].content) == (len(ASKING), ASKING[:20])
    assert body == make_head_manifest(ASKING[:20], len(ASKING), body.whole_digest)


async def test_a_warm_question_leans_on_what_was_sent_before() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    subject = make_subject(make_history(30))
    sent = spell(make_history(30), max_tokens=1)
    setup.memory.sent.keep(subject, sent)
    warm = spell([*make_history(30), {"role": "user", "content": "Report."}], max_tokens=1)
    await ask(setup, body=warm, extends=subject)
    body = setup.engine.archive.opening.body
    assert [piece.content for piece in body.slices] == [b'{"role": "user", "content": "Report."}']
    assert body.size == len(warm)


async def test_when_the_log_has_lost_something_it_leans_on_nothing() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    subject = make_subject(make_history(30))
    setup.memory.sent.keep(subject, spell(make_history(30)))
    setup.engine.archive.health = ArchiveHealth("", 0, 0, 0, generation=1)
    await ask(setup, body=spell(make_history(30)), extends=subject)
    assert len(setup.engine.archive.opening.body.slices) == 62


async def test_nothing_is_asked_that_could_not_be_recorded() -> None:
    setup = Setup()
    setup.engine.archive.health = ArchiveHealth("the disk is full", 0, 0, 0, 0)
    assert await ask(setup) == FailedCall("nothing is asked that cannot be recorded: the disk is full")
    assert (setup.upstream.calls, setup.engine.archive.appended) == ([], [])


async def test_a_call_of_a_tool_ends_it_at_once_and_is_recorded_as_aborted() -> None:
    response = ScriptedResponse(chunk(role="assistant"), chunk(tool_calls=[{"index": 0, "id": "c"}]))
    setup = Setup(ScriptedUpstream(answer=response))
    outcome = await ask(setup)
    assert isinstance(outcome, ModelResponse)
    assert outcome.is_tool_call
    assert setup.engine.archive.outcome.completeness == "aborted"
    assert response.is_closed


async def test_a_call_of_a_tool_in_a_whole_answer_is_one_too() -> None:
    setup = Setup(ScriptedUpstream(answer=complete(None, "tool_calls", tool_calls=[{"id": "c"}])))
    outcome = await ask(setup)
    assert isinstance(outcome, ModelResponse)
    assert (outcome.is_tool_call, outcome.text) == (True, "")
    [ended] = setup.list_events(AuxiliaryEnded)
    assert (ended.verdict, ended.cost) == ("tool_call", 100 + 0.1 * 800 + 5 * 50)  # it was whole, and counted


@pytest.mark.parametrize("response", [ScriptedResponse(chunk(content="x" * 401)), complete("x" * 401)])
async def test_what_is_too_long_is_no_answer(response: ScriptedResponse) -> None:
    outcome = await ask(Setup(ScriptedUpstream(answer=response)))
    assert outcome == FailedCall("the response is longer than it may be", 200, exchange="x1")


async def test_a_stream_that_has_ended_is_not_waited_for() -> None:
    setup = Setup(ScriptedUpstream(answer=ScriptedResponse(*STREAMED)))  # the connection goes on
    assert isinstance(await ask(setup), ModelResponse)
    assert setup.engine.archive.outcome.completeness == "complete"


async def test_thoughts_alone_want_more_room() -> None:
    outcome = await ask(Setup(ScriptedUpstream(answer=complete("", "length"))))
    assert isinstance(outcome, ModelResponse)
    assert outcome.has_no_room_left


async def test_a_refusal_is_told() -> None:
    outcome = await ask(Setup(ScriptedUpstream(answer=complete(None, refusal="No."))))
    assert isinstance(outcome, ModelResponse)
    assert (outcome.text, outcome.refusal) == ("", "No.")


async def test_a_refused_call_says_why() -> None:
    limits = (*JSON, (b"retry-after", b"7"))
    setup = Setup(ScriptedUpstream(answer=answer({"error": {"message": "slow down"}}, 429, limits)))
    assert await ask(setup) == FailedCall("status 429: slow down", 429, "x1")


async def test_a_question_that_is_too_long_is_known() -> None:
    error = {"message": "too long", "code": "context_length_exceeded"}
    outcome = await ask(Setup(ScriptedUpstream(answer=answer({"error": error}, 400))))
    assert isinstance(outcome, FailedCall)
    assert outcome.is_too_long


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (UpstreamUnreachable("nobody is there"), "nobody is there"),
        (ScriptedResponse(chunk(content="Go"), ending="cut"), "the response broke off"),
        (ScriptedResponse(chunk(content="Go"), ending="eof"), "the response broke off"),
        (ScriptedResponse(b'data: {"error":{"message":"overloaded"}}\n\n', DONE, ending="eof"), "overloaded"),
        (ScriptedResponse(b"hello", headers=JSON, ending="whole"), "the answer is not a JSON object"),
        (ScriptedResponse(b"hello", status=500, headers=JSON, ending="whole"), "status 500: "),
        (answer({"error": {"message": "no"}}), "no"),
    ],
)
async def test_what_is_no_answer_says_why(response: Any, reason: str) -> None:
    outcome = await ask(Setup(ScriptedUpstream(answer=response)))
    assert isinstance(outcome, FailedCall)
    assert outcome.reason.startswith(reason)
    assert outcome.exchange == "x1"


async def test_a_long_answer_is_read_beside_the_loop() -> None:
    padding = [b": comment %d\n\n" % number * 100 for number in range(60)]
    setup = Setup(ScriptedUpstream(answer=ScriptedResponse(*padding, *STREAMED, ending="eof")))
    assert len(b"".join(padding)) > 64 * 1024
    assert isinstance(await ask(setup), ModelResponse)


async def test_the_time_is_limited() -> None:
    response = ScriptedResponse(chunk(content="Go"))
    setup = Setup(ScriptedUpstream(answer=response), CompactionPolicy(time_limit_seconds=10))
    task = setup.begin()
    await response.wait_until_starved()
    await put_forward(10)
    assert await task == FailedCall("no complete response came within 10 s", 200, exchange="x1")
    assert setup.engine.archive.outcome.completeness == "aborted"
    assert response.is_closed


async def test_whoever_says_nothing_at_all_is_left() -> None:
    setup = Setup(policy=CompactionPolicy(time_limit_seconds=10))
    task = setup.begin()
    await setup.upstream.called.wait()
    await put_forward(10)
    assert await task == FailedCall("no complete response came within 10 s", exchange="x1")
    assert setup.engine.archive.outcome.status == 0


async def test_cancelled_it_leaves_its_record() -> None:
    setup = Setup()
    task = setup.begin()
    await setup.upstream.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await setup.engine.tasks.finish(LIMIT)
    assert setup.engine.archive.outcome.completeness == "aborted"
    [ended] = setup.list_events(AuxiliaryEnded)
    assert (ended.verdict, ended.cost > 0) == ("aborted", True)


async def test_at_the_end_of_the_process_it_is_ended_too() -> None:
    setup = Setup()
    task = setup.begin()
    await setup.upstream.called.wait()
    assert not await setup.engine.tasks.finish(0)
    assert isinstance(await task, FailedCall)
    assert setup.engine.archive.outcome.completeness == "aborted"


async def test_a_fault_of_ours_is_no_answer_and_no_more() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    outcome = await ask(setup, most_characters="many")
    assert isinstance(outcome, FailedCall)
    assert outcome.reason.startswith("the response could not be read: TypeError")


async def test_it_has_no_place_in_the_conversation_and_nobody_waits_for_its_answer() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    await ask(setup)
    assert [event.exchange for event in setup.list_events(AnswerRead)] == ["x1"]
    assert setup.list_events(CallUnreadableEvent) == []
    assert (setup.engine.archive.of(Lineage), setup.engine.archive.of(Reply)) == ([], [])
    assert list(setup.engine.lineage.list_unread_of(SESSION.tenant)) == []


async def test_what_it_cost_is_told_and_kept_account_of() -> None:
    setup = Setup(ScriptedUpstream(answer=complete("x")))
    await ask(setup)
    [ended] = setup.list_events(AuxiliaryEnded)
    cost = 100 + 0.1 * 800 + 5 * 50
    assert ended == AuxiliaryEnded("x1", "s1", "main", MODEL, "answered", cost, 0.0)
    assert setup.health.budget.record_waste("s1", ["x1"]).tokens == cost


@pytest.mark.parametrize(
    ("response", "cost"),
    [
        (answer({"error": {"message": "no"}}, 500), 0.0),
        (UpstreamUnreachable("gone"), 0.0),
        (ScriptedResponse(chunk(content="Go"), ending="cut"), 1500.0),
        (answer({"choices": []}), 1500.0),
    ],
)
async def test_what_nobody_counted_costs_what_it_was_expected_to(response: Any, cost: float) -> None:
    setup = Setup(ScriptedUpstream(answer=response))
    await ask(setup)
    [ended] = setup.list_events(AuxiliaryEnded)
    assert ended.cost == cost


async def test_only_warm_questions_tell_whether_the_cache_is_warm() -> None:
    for extends, is_cold in ((None, False), (make_subject(make_history(1)), True)):
        setup = Setup()
        for _ in range(2):
            setup.upstream.answer(answer({"choices": [], "usage": {"prompt_tokens": 9, "cached_tokens": 1}}))
            await ask(setup, extends=extends)
        assert setup.health.cache_hits.is_cold("main", MODEL) is is_cold


async def test_a_stream_answered_in_pieces_ends_once() -> None:
    pieces = b"".join(STREAMED)
    response = ScriptedResponse(*[pieces[i : i + 7] for i in range(0, len(pieces), 7)], ending="last")
    outcome = await ask(Setup(ScriptedUpstream(answer=response)))
    assert isinstance(outcome, ModelResponse)
    assert outcome.text == "Goal: x"


class StoppedReader:
    """A reader that is told to stop."""

    def __init__(self, most: int = 10, form: Format | None = None) -> None:
        self.stops = 0
        asked = Setup().make_call(form=form or ChatCompletions(), most_characters=most)
        self.reader = RunningCall(asked, "x1", 0.0, self._stop)

    def _stop(self) -> None:
        self.stops += 1


@pytest.fixture
def reading() -> StoppedReader:
    found = StoppedReader()
    found.reader.start(200, STREAM)
    return found


def test_an_answer_that_comes_to_its_end_is_whole(reading: StoppedReader) -> None:
    assert reading.reader.write(chunk(content="fine"))
    assert not reading.reader.is_whole
    reading.reader.write(DONE, is_last=True)
    assert reading.reader.is_whole
    assert (reading.reader.verdict, reading.stops) == ("", 0)


def test_nobody_waits_behind_the_end_of_a_stream(reading: StoppedReader) -> None:
    reading.reader.write(DONE)
    assert (reading.reader.is_whole, reading.stops) == (True, 1)


def test_a_call_of_a_tool_is_seen_with_its_first_piece(reading: StoppedReader) -> None:
    piece = chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])
    reading.reader.write(piece[:40])
    assert reading.stops == 0
    reading.reader.write(piece[40:])
    assert (reading.reader.verdict, reading.stops) == ("tool_call", 1)


def test_more_text_than_was_asked_for_is_too_long(reading: StoppedReader) -> None:
    reading.reader.write(chunk(content="x" * 10))
    assert reading.stops == 0
    reading.reader.write(chunk(content=" "))
    assert (reading.reader.verdict, reading.stops) == ("too_long", 1)


def test_what_is_thought_is_not_text(reading: StoppedReader) -> None:
    reading.reader.write(chunk(reasoning_content="x" * 100))
    assert reading.reader.verdict == ""


def test_thoughts_spoken_aloud_have_more_room_and_not_for_ever(reading: StoppedReader) -> None:
    reading.reader.write(chunk(content="<think>"))
    reading.reader.write(chunk(content="x" * 33))
    assert reading.stops == 0
    reading.reader.write(chunk(content="x"))
    assert reading.reader.verdict == "too_long"


def test_an_event_without_end_is_not_kept(reading: StoppedReader) -> None:
    reading.reader.write(b"data: " + b"x" * 1024 * 1024)
    assert (reading.reader.verdict, reading.stops) == ("too_long", 1)


def test_a_verdict_stays(reading: StoppedReader) -> None:
    reading.reader.write(chunk(tool_calls=[{"index": 0, "id": "c"}]))
    reading.reader.write(chunk(content="x" * 11))
    assert reading.reader.verdict == "tool_call"


def test_a_last_event_without_its_blank_line_counts(reading: StoppedReader) -> None:
    reading.reader.write(chunk(content="x" * 11).rstrip(), is_last=True)
    assert reading.reader.verdict == "too_long"


def test_what_the_last_events_of_a_stream_repeat_counts_once() -> None:
    reading = StoppedReader(form=Responses())
    reading.reader.start(200, STREAM)
    item = {"type": "message", "content": [{"type": "output_text", "text": "x" * 8}]}
    for event in (
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x" * 8},
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "x" * 8},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"status": "completed", "output": [item]}},
    ):
        reading.reader.write(b"data: %b\n\n" % json.dumps(event).encode())
    assert (reading.reader.verdict, reading.reader.is_whole) == ("", True)


def test_a_whole_body_is_read_by_others() -> None:
    reading = StoppedReader()
    reading.reader.start(200, JSON)
    reading.reader.write(b'{"choices":[{"message":{"content":"' + b"x" * 50 + b'"}}]}', is_last=True)
    assert (reading.reader.is_whole, reading.reader.verdict, reading.reader.status) == (True, "", 200)


async def test_the_rest_of_what_clients_are_told_is_nothing_to_it(reading: StoppedReader) -> None:
    reading.reader.label(())
    reading.reader.abort()
    await reading.reader.drain()
    reading.reader.fail(UpstreamUnreachable("gone"))
    assert str(reading.reader.error) == "gone"
    assert not reading.reader.is_whole
