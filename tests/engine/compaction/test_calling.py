"""Calls of our own: what comes of them, and what the log, the purse and the bus are told."""

import asyncio
import json
from typing import Any

import pytest

from proxy.engine.compaction.calling import Answered, Unanswered
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import EnginePolicy
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import AnswerRead, AuxiliaryEnded, ReadingFailed
from proxy.model.exchange import Headers, Reading, Round, Usage
from proxy.model.lineage import Reply, Step
from proxy.model.log import ArchiveHealth
from proxy.model.manifest import keep_head, keep_whole
from tests.support.auxiliary import ASKING, KEY, Desk
from tests.support.engine import JSON, LIMIT, ScriptedResponse, ScriptedUpstream
from tests.support.loops import put_forward
from tests.support.managing import MODEL, SESSION, make_history, make_subject, spell

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 800}}
DONE = b"data: [DONE]\n\n"


def say(**delta: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
COUNTED = b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
STREAMED = (say(content="Goal: "), say(content="x"), END, COUNTED, DONE)


def answer(content: object, status: int = 200, headers: Headers = JSON) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(content).encode(), status=status, headers=headers, ending="whole")


def complete(text: str | None, finish: str = "stop", **message: Any) -> ScriptedResponse:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return answer({"id": "a", "object": "chat.completion", "choices": [choice], "usage": USAGE})


async def ask(desk: Desk, **changes: Any) -> Answered | Unanswered:
    async with asyncio.timeout(LIMIT):
        outcome = await desk.office.caller.ask(desk.errand(**changes))
        assert await desk.engine.tasks.finish(LIMIT)
    return outcome


async def test_a_stream_is_heard_to_its_end() -> None:
    desk = Desk(ScriptedUpstream(answer=ScriptedResponse(*STREAMED, ending="eof")))
    outcome = await ask(desk)
    assert outcome == Answered("Goal: x", "stop", Usage(900, 50, 800), 0.0, is_tool_call=False, exchange="x1")
    assert not outcome.wants_more_room


async def test_it_is_an_exchange_of_the_session_in_the_log() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("Goal: x")))
    await ask(desk)
    opening, outcome = desk.engine.archive.opening, desk.engine.archive.outcome
    assert (opening.kind, opening.session, opening.wire, opening.mode) == (
        *("auxiliary", SESSION),
        *("chat_completions", "manage"),
    )
    assert (opening.model, opening.method, opening.target) == (MODEL, "POST", "/v1/chat/completions?k")
    assert (opening.headers, opening.body) == (
        ((b"content-type", b"application/json"), (b"accept-encoding", b"identity")),
        keep_whole(ASKING),
    )
    assert desk.engine.archive.of(Round) == [Round("x1", 0, "main", None)]
    assert (outcome.status, outcome.completeness) == (200, "complete")
    [reading] = desk.engine.archive.of(Reading)
    assert (reading.exchange, reading.usage, reading.finish) == ("x1", Usage(900, 50, 800), "stop")


async def test_the_upstream_is_asked_with_the_key_of_the_session() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    await ask(desk)
    [sent] = desk.upstream.calls
    assert (sent.method, sent.target, sent.body) == ("POST", b"/v1/chat/completions?k=v", ASKING)
    assert KEY[0] in sent.headers
    assert KEY[1] not in sent.headers


async def test_another_upstream_gets_nothing_of_the_client() -> None:
    desk = Desk(ScriptedUpstream("other", answer=complete("x")))
    await ask(desk)
    [sent] = desk.upstream.calls
    assert sent.target == b"/v1/chat/completions"
    assert sent.headers == ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


async def test_an_echoed_key_is_not_recorded() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("It is sk-a-secret-of-the-client")))
    await ask(desk)
    assert b"sk-a-secret" not in desk.engine.archive.outcome.received


async def test_what_is_recorded_of_a_large_question_has_a_cap() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")), engine_policy=EnginePolicy(record_cap_bytes=20))
    await ask(desk)
    body = desk.engine.archive.opening.body
    assert (body.size, body.blobs[0].content) == (len(ASKING), ASKING[:20])
    assert body == keep_head(ASKING[:20], len(ASKING), body.whole_digest)


async def test_a_warm_question_leans_on_what_was_sent_before() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    subject = make_subject(make_history(30))
    sent = spell(make_history(30), max_tokens=1)
    desk.memory.sent.keep(subject, sent)
    warm = spell([*make_history(30), {"role": "user", "content": "Report."}], max_tokens=1)
    await ask(desk, body=warm, warm_behind=subject)
    body = desk.engine.archive.opening.body
    assert [piece.content for piece in body.slices] == [b'{"role": "user", "content": "Report."}']
    assert body.size == len(warm)


async def test_when_the_log_has_lost_something_it_leans_on_nothing() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    subject = make_subject(make_history(30))
    desk.memory.sent.keep(subject, spell(make_history(30)))
    desk.engine.archive.health = ArchiveHealth("", 0, 0, 0, generation=1)
    await ask(desk, body=spell(make_history(30)), warm_behind=subject)
    assert len(desk.engine.archive.opening.body.slices) == 62


async def test_nothing_is_asked_that_could_not_be_recorded() -> None:
    desk = Desk()
    desk.engine.archive.health = ArchiveHealth("the disk is full", 0, 0, 0, 0)
    assert await ask(desk) == Unanswered("nothing is asked that cannot be recorded: the disk is full")
    assert (desk.upstream.calls, desk.engine.archive.appended) == ([], [])


async def test_a_call_of_a_tool_ends_it_at_once_and_is_recorded_as_aborted() -> None:
    response = ScriptedResponse(say(role="assistant"), say(tool_calls=[{"index": 0, "id": "c"}]))
    desk = Desk(ScriptedUpstream(answer=response))
    outcome = await ask(desk)
    assert isinstance(outcome, Answered)
    assert outcome.is_tool_call
    assert desk.engine.archive.outcome.completeness == "aborted"
    assert response.is_closed


async def test_a_call_of_a_tool_in_a_whole_answer_is_one_too() -> None:
    desk = Desk(ScriptedUpstream(answer=complete(None, "tool_calls", tool_calls=[{"id": "c"}])))
    outcome = await ask(desk)
    assert isinstance(outcome, Answered)
    assert (outcome.is_tool_call, outcome.text) == (True, "")


@pytest.mark.parametrize("response", [ScriptedResponse(say(content="x" * 401)), complete("x" * 401)])
async def test_babble_is_no_answer(response: ScriptedResponse) -> None:
    outcome = await ask(Desk(ScriptedUpstream(answer=response)))
    assert outcome == Unanswered("the answer is longer than it may be", 200, exchange="x1")


async def test_a_stream_that_has_ended_is_not_waited_for() -> None:
    desk = Desk(ScriptedUpstream(answer=ScriptedResponse(*STREAMED)))  # the connection goes on
    assert isinstance(await ask(desk), Answered)
    assert desk.engine.archive.outcome.completeness == "complete"


async def test_thoughts_alone_want_more_room() -> None:
    outcome = await ask(Desk(ScriptedUpstream(answer=complete("", "length"))))
    assert isinstance(outcome, Answered)
    assert outcome.wants_more_room


async def test_a_refusal_is_told() -> None:
    outcome = await ask(Desk(ScriptedUpstream(answer=complete(None, refusal="No."))))
    assert isinstance(outcome, Answered)
    assert (outcome.text, outcome.refusal) == ("", "No.")


async def test_a_refused_call_says_when_to_ask_again() -> None:
    limits = (*JSON, (b"retry-after", b"7"))
    desk = Desk(ScriptedUpstream(answer=answer({"error": {"message": "slow down"}}, 429, limits)))
    assert await ask(desk) == Unanswered("status 429: slow down", 429, 7.0, "x1")


async def test_a_question_that_is_too_long_is_known() -> None:
    error = {"message": "too long", "code": "context_length_exceeded"}
    outcome = await ask(Desk(ScriptedUpstream(answer=answer({"error": error}, 400))))
    assert isinstance(outcome, Unanswered)
    assert outcome.is_too_long


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (UpstreamUnreachable("nobody is there"), "nobody is there"),
        (ScriptedResponse(say(content="Go"), ending="cut"), "the answer broke off"),
        (ScriptedResponse(say(content="Go"), ending="eof"), "the answer broke off"),
        (ScriptedResponse(b'data: {"error":{"message":"overloaded"}}\n\n', DONE, ending="eof"), "overloaded"),
        (ScriptedResponse(b"hello", headers=JSON, ending="whole"), "the answer is not a JSON object"),
        (ScriptedResponse(b"hello", status=500, headers=JSON, ending="whole"), "status 500: "),
        (answer({"error": {"message": "no"}}), "no"),
    ],
)
async def test_what_is_no_answer_says_why(response: Any, reason: str) -> None:
    outcome = await ask(Desk(ScriptedUpstream(answer=response)))
    assert isinstance(outcome, Unanswered)
    assert outcome.reason.startswith(reason)
    assert outcome.exchange == "x1"


async def test_a_long_answer_is_read_beside_the_loop() -> None:
    padding = [b": comment %d\n\n" % number * 100 for number in range(60)]
    desk = Desk(ScriptedUpstream(answer=ScriptedResponse(*padding, *STREAMED, ending="eof")))
    assert len(b"".join(padding)) > 64 * 1024
    assert isinstance(await ask(desk), Answered)


async def test_the_time_is_limited() -> None:
    response = ScriptedResponse(say(content="Go"))
    desk = Desk(ScriptedUpstream(answer=response), CompactionPolicy(time_limit_seconds=10))
    task = desk.begin()
    await response.wait_until_starved()
    await put_forward(10)
    assert await task == Unanswered("no whole answer came within 10 s", 200, exchange="x1")
    assert desk.engine.archive.outcome.completeness == "aborted"
    assert response.is_closed


async def test_whoever_says_nothing_at_all_is_left() -> None:
    desk = Desk(policy=CompactionPolicy(time_limit_seconds=10))
    task = desk.begin()
    await desk.upstream.called.wait()
    await put_forward(10)
    assert await task == Unanswered("no whole answer came within 10 s", exchange="x1")
    assert desk.engine.archive.outcome.status == 0


async def test_cancelled_it_leaves_its_record() -> None:
    desk = Desk()
    task = desk.begin()
    await desk.upstream.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await desk.engine.tasks.finish(LIMIT)
    assert desk.engine.archive.outcome.completeness == "aborted"
    [ended] = desk.list_events(AuxiliaryEnded)
    assert (ended.verdict, ended.cost > 0) == ("aborted", True)


async def test_at_the_end_of_the_process_it_is_ended_too() -> None:
    desk = Desk()
    task = desk.begin()
    await desk.upstream.called.wait()
    assert not await desk.engine.tasks.finish(0)
    assert isinstance(await task, Unanswered)
    assert desk.engine.archive.outcome.completeness == "aborted"


async def test_a_fault_of_ours_is_no_answer_and_no_more() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    outcome = await ask(desk, most_characters="many")
    assert isinstance(outcome, Unanswered)
    assert outcome.reason.startswith("the answer could not be read: TypeError")


async def test_it_has_no_place_in_the_conversation_and_nobody_waits_for_its_answer() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    await ask(desk)
    assert [event.exchange for event in desk.list_events(AnswerRead)] == ["x1"]
    assert desk.list_events(ReadingFailed) == []
    assert (desk.engine.archive.of(Step), desk.engine.archive.of(Reply)) == ([], [])
    assert list(desk.engine.lineage.list_unread_of(SESSION.tenant)) == []


async def test_what_it_cost_is_told_and_kept_account_of() -> None:
    desk = Desk(ScriptedUpstream(answer=complete("x")))
    await ask(desk)
    [ended] = desk.list_events(AuxiliaryEnded)
    cost = 100 + 0.1 * 800 + 5 * 50
    assert ended == AuxiliaryEnded("x1", "s1", "main", MODEL, "answered", cost, 0.0)
    assert desk.office.purse.book_loss("s1", ["x1"]).tokens == cost


@pytest.mark.parametrize(
    ("response", "cost"),
    [
        (answer({"error": {"message": "no"}}, 500), 0.0),
        (UpstreamUnreachable("gone"), 0.0),
        (ScriptedResponse(say(content="Go"), ending="cut"), 1500.0),
        (answer({"choices": []}), 1500.0),
    ],
)
async def test_what_nobody_counted_costs_what_it_was_expected_to(response: Any, cost: float) -> None:
    desk = Desk(ScriptedUpstream(answer=response))
    await ask(desk)
    [ended] = desk.list_events(AuxiliaryEnded)
    assert ended.cost == cost


async def test_only_warm_questions_tell_whether_the_cache_is_warm() -> None:
    for warm_behind, is_cold in ((None, False), (make_subject(make_history(1)), True)):
        desk = Desk()
        for _ in range(2):
            desk.upstream.answer(answer({"choices": [], "usage": {"prompt_tokens": 9, "cached_tokens": 1}}))
            await ask(desk, warm_behind=warm_behind)
        assert desk.office.warmth.is_cold("main", MODEL) is is_cold


async def test_a_stream_answered_in_pieces_ends_once() -> None:
    pieces = b"".join(STREAMED)
    response = ScriptedResponse(*[pieces[i : i + 7] for i in range(0, len(pieces), 7)], ending="last")
    outcome = await ask(Desk(ScriptedUpstream(answer=response)))
    assert isinstance(outcome, Answered)
    assert outcome.text == "Goal: x"
