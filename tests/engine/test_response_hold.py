"""KeptPart answers back: what a client sees meanwhile, and that what is held is neither lost nor changed."""

import asyncio

import pytest

from proxy.engine.call import response_stream
from proxy.engine.call.open_exchange import REFUSAL_BYTES
from proxy.engine.call.response_stream import is_open_stream, spell_in_stream
from proxy.model.exchange import Headers, Outcome, Round
from proxy.model.log import Record
from proxy.wire import FORMATS
from tests.engine.test_overflow_retry import DONE, ROLE, WORD, Call, refuse, stream
from tests.support.engine import JSON, LIMIT, STREAM, Ending, ScriptedResponse
from tests.support.rescuing import TOO_LONG, TOO_LONG_EVENT

COMMENT = b": upstream works\n\n"
WAITING = b": waiting\n\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients get a sign of life after a moment."""
    monkeypatch.setattr(response_stream, "WITHHOLD_SECONDS", 0.01)


@pytest.mark.parametrize("cut", [30, -1])
async def test_head_and_first_events_are_held_until_the_first_content(cut: int) -> None:
    response = stream(ROLE, WORD[:cut], ending="open")
    call = Call(response, is_guarded=True)
    await response.wait_until_starved()
    assert not call.client.started.is_set()
    response.feed(WORD[cut:])
    assert await call.client.wait_for_body(len(ROLE + WORD)) == ROLE + WORD
    response.feed(DONE, ending="eof")
    (outcome,) = await call.finish()
    assert (call.client.body, call.client.is_whole, outcome.received) == (ROLE + WORD + DONE, True, ROLE + WORD + DONE)


async def test_what_stands_behind_the_first_content_is_not_looked_at() -> None:
    response = stream(WORD, ending="open")
    call = Call(response, is_guarded=True)
    await call.client.wait_for_body(len(WORD))
    response.feed(TOO_LONG_EVENT, ending="eof")
    await call.finish()
    assert (call.client.body, call.rescuer.refusals, call.rescuer.read) == (WORD + TOO_LONG_EVENT, [], 1)


async def test_the_end_marker_behind_held_content_waits_for_the_outcome() -> None:
    call = Call(stream(ROLE, WORD + DONE, ending="open"), is_guarded=True, is_instant=False)
    (await call.archive.wait_until_awaited(Round)).set_result(True)
    commit = await call.archive.wait_until_awaited(Outcome)
    assert call.client.body == ROLE + WORD
    commit.set_result(True)
    await call.client.wait_for_body(len(ROLE + WORD + DONE))
    await call.leave()


@pytest.mark.parametrize("cut", [1, len(COMMENT) - 2, len(COMMENT) - 1])
async def test_comments_release_the_head_and_a_retry_goes_on_in_the_same_stream(cut: int) -> None:
    first = stream(COMMENT[:cut], COMMENT[cut:] + COMMENT, ending="open")
    call = Call(first, stream(WORD, DONE), is_guarded=True)
    assert await call.client.wait_for_body(2 * len(COMMENT)) == 2 * COMMENT
    assert (call.client.status, call.client.headers) == (200, STREAM)
    first.feed(ROLE, TOO_LONG_EVENT, ending="eof")
    refused, answered = await call.finish()
    assert (call.client.body, call.client.is_whole) == (2 * COMMENT + WORD + DONE, True)
    assert (refused.received, answered.received) == (2 * COMMENT + ROLE + TOO_LONG_EVENT, WORD + DONE)
    assert call.rescuer.refusals[0].content == ROLE + TOO_LONG_EVENT


@pytest.mark.parametrize(("ending", "awaited"), [("open", Round), ("whole", Outcome)])
async def test_nothing_is_released_before_the_opening_is_durable_not_even_a_comment(
    ending: Ending, awaited: type[Record]
) -> None:
    call = Call(stream(COMMENT, ending=ending), is_guarded=True, is_instant=False)
    commit = await call.archive.wait_until_awaited(awaited)
    assert not call.client.started.is_set()
    commit.set_result(True)
    assert await call.client.wait_for_body(len(COMMENT)) == COMMENT
    await call.leave()


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_waits_long_is_told_so_and_what_is_held_stays_held() -> None:
    response = stream(ROLE, ending="open")
    call = Call(response, stream(WORD, DONE), is_guarded=True)
    told = await call.client.wait_for_body(2 * len(WAITING))
    assert set(told.split(b"\n\n")) == {b": waiting", b""}
    response.feed(TOO_LONG_EVENT, ending="eof")
    refused, _ = await call.finish()
    assert call.client.body.replace(WAITING, b"") == WORD + DONE
    assert refused.received == ROLE + TOO_LONG_EVENT


@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_takes_its_time_is_not_lost() -> None:
    response = stream(ROLE, ending="open")
    call = Call(response, is_guarded=True)
    await call.client.wait_for_body(len(WAITING))
    response.feed(WORD, DONE, ending="eof")
    (outcome,) = await call.finish()
    assert call.client.body.replace(WAITING, b"") == outcome.received == ROLE + WORD + DONE
    assert call.client.is_whole


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("status", "headers"), [(400, JSON), (200, JSON), (400, STREAM)])
async def test_a_body_that_takes_its_time_goes_on_as_it_comes(status: int, headers: Headers) -> None:
    response = ScriptedResponse(TOO_LONG[:20], status=status, headers=headers)
    call = Call(response, is_guarded=True)
    assert await call.client.wait_for_body(20) == TOO_LONG[:20]
    response.feed(TOO_LONG[20:], ending="eof")
    (outcome,) = await call.finish()
    assert (call.client.body, call.client.is_whole, call.client.status) == (TOO_LONG, True, status)
    assert (outcome.received, call.rescuer.refusals) == (TOO_LONG, [])


@pytest.mark.parametrize("pieces", [(), (ROLE,), (COMMENT, ROLE), (ROLE, WORD[:20])])
async def test_an_upstream_that_breaks_while_its_answer_is_held_breaks_it_behind_all_that_came(
    pieces: tuple[bytes, ...],
) -> None:
    call = Call(stream(*pieces, ending="cut"), is_guarded=True)
    (outcome,) = await call.finish()
    sent = b"".join(pieces)
    assert (call.client.status, call.client.body, call.client.is_aborted) == (200, sent, True)
    assert (outcome.completeness, outcome.received) == ("truncated", sent)


async def test_a_refusal_that_breaks_off_breaks_at_the_client() -> None:
    response = ScriptedResponse(TOO_LONG, status=400, headers=JSON, ending="cut")
    call = Call(response)
    (outcome,) = await call.finish()
    assert (call.client.status, call.client.body, call.client.is_aborted) == (400, TOO_LONG, True)
    assert (outcome.completeness, call.rescuer.refusals) == ("truncated", [])


async def test_a_client_that_leaves_while_its_answer_is_held_leaves_what_came() -> None:
    response = stream(ROLE, ending="open")
    call = Call(response, is_guarded=True)
    await response.wait_until_starved()
    (outcome,) = await call.leave()
    assert (outcome.completeness, outcome.status, outcome.received) == ("aborted", 200, ROLE)
    assert response.is_closed


async def test_a_slow_reader_of_what_was_held_holds_the_upstream_back() -> None:
    response = stream(ROLE, ending="open")
    call = Call(response, is_guarded=True)
    await response.wait_until_starved()
    call.client.can_take.clear()
    response.feed(WORD, b"1", b"2")
    async with asyncio.timeout(LIMIT):
        await call.client.stalled.wait()
    assert (response.left, call.client.body) == (2, ROLE + WORD)
    call.client.can_take.set()
    await response.wait_until_starved()
    assert call.client.body == ROLE + WORD + b"12"
    await call.leave()


async def test_a_beginning_without_content_is_held_up_to_a_bound() -> None:
    response = stream(ROLE, b"data: " + b"x" * REFUSAL_BYTES, ending="open")
    call = Call(response, is_guarded=True)
    assert len(await call.client.wait_for_body(REFUSAL_BYTES)) > REFUSAL_BYTES
    await call.leave()


async def test_a_refusal_is_held_up_to_a_bound() -> None:
    pieces = [TOO_LONG, *[b" " * 20_000] * 4]
    response = ScriptedResponse(*pieces, status=400, headers=JSON)
    call = Call(response)
    assert await call.client.wait_for_body(len(TOO_LONG) + 80_000) == b"".join(pieces)
    assert call.rescuer.refusals == []
    await call.leave()


async def test_an_encoded_stream_is_not_held() -> None:
    response = ScriptedResponse(b"\x1f", headers=(*STREAM, (b"content-encoding", b"gzip")))
    call = Call(response, is_guarded=True)
    assert await call.client.wait_for_body(1) == b"\x1f"
    await call.leave()


async def test_a_retry_behind_the_head_that_is_no_stream_becomes_an_error_event_of_it() -> None:
    second = refuse(429, b'{"error":\n{"message":"slow down"}}')
    call = Call(stream(COMMENT, TOO_LONG_EVENT), second, is_guarded=True)
    _, outcome = await call.finish()
    event = b'data: {"error":{"type":"server_error","message":"slow down"}}\n\n'
    assert (call.client.status, call.client.body, call.client.is_whole) == (200, COMMENT + event, True)
    assert (outcome.status, outcome.received) == (429, b'{"error":\n{"message":"slow down"}}')


async def test_a_retry_behind_the_head_that_never_comes_breaks_the_stream() -> None:
    call = Call(stream(COMMENT, TOO_LONG_EVENT), stream(ending="cut"), is_guarded=True)
    await call.finish()
    assert (call.client.body, call.client.is_aborted) == (COMMENT, True)


@pytest.mark.parametrize(
    ("headers", "is_open"),
    [(STREAM, True), ((*STREAM, (b"content-length", b"9")), False), (JSON, False)],
)
def test_more_can_stand_in_a_stream_whose_length_is_not_announced(headers: Headers, *, is_open: bool) -> None:
    assert is_open_stream(headers) == is_open


def test_what_cannot_be_read_becomes_an_event_all_the_same() -> None:
    event = b'data: {"error":{"type":"server_error","message":"error without a message"}}\n\n'
    assert spell_in_stream(FORMATS["chat_completions"], JSON, b"") == event
    assert spell_in_stream(FORMATS["chat_completions"], (*JSON, (b"content-encoding", b"br")), b"\x8b") == event
