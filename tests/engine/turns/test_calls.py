import asyncio
import json
from typing import Any

import pytest

from proxy.engine.call.response_reader import ReadResponse, read_received
from proxy.engine.call.response_stream import LocalClient
from proxy.engine.turns.answers import read_response
from proxy.engine.turns.calls import Take, make_call
from proxy.model.errors import BadRequest, UpstreamUnreachable
from proxy.model.exchange import ClientRequest, Headers, Outcome
from proxy.wire import FORMATS
from tests.support.engine import JSON, STREAM, Engine, ScriptedResponse, ScriptedUpstream
from tests.support.holding import KEY, answer, user

BODY = json.dumps({"model": "m", "messages": [user("a")]}).encode()
SESSION: Headers = ((b"x-palimpsest-session", b"tick"),)
EVENTS = (b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n")


class Caller:
    """An engine whose calls are made in this process, and the upstream that answers them."""

    def __init__(self, said: ScriptedResponse | Exception) -> None:
        self.upstream = ScriptedUpstream(answer=said)
        self.engine = Engine(self.upstream, is_instant=True)

    async def call(self, take: Take | None = None, headers: Headers = SESSION) -> LocalClient:
        request = ClientRequest("POST", b"/v1/chat/completions", (*KEY, *headers), BODY)
        return await make_call(self.engine.exchanges, self.engine.tasks, request, "chat_completions", take)


def whole(value: dict[str, Any], status: int = 200) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(value).encode(), status=status, headers=JSON, ending="whole")


def stream(*pieces: bytes, ending: Any = "eof") -> ScriptedResponse:
    return ScriptedResponse(*pieces, headers=STREAM, ending=ending)


@pytest.mark.parametrize("status", [200, 429])
async def test_a_call_has_the_whole_response_and_where_it_is_kept(status: int) -> None:
    caller = Caller(whole(answer("chat_completions", "hello"), status))
    response = await caller.call()
    assert (response.status, json.loads(response.content)) == (status, answer("chat_completions", "hello"))
    assert response.headers == JSON
    opening = caller.engine.archive.opening
    assert (response.session, response.exchange) == (opening.session.id, opening.exchange)
    assert caller.engine.archive.outcome.completeness == "complete"


async def test_pieces_are_given_one_after_another_as_they_come() -> None:
    caller = Caller(answering := stream(EVENTS[0], ending="open"))
    taken: list[bytes] = []
    gate, begun = asyncio.Event(), asyncio.Event()

    async def take(piece: bytes, headers: Headers) -> None:
        assert headers == STREAM
        begun.set()
        await gate.wait()
        taken.append(piece)

    calling = asyncio.create_task(caller.call(take))
    await begun.wait()
    answering.feed(EVENTS[0], EVENTS[1], ending="eof")
    assert taken == []
    gate.set()
    response = await calling
    assert b"".join(taken) == response.content == EVENTS[0] * 2 + EVENTS[1]


async def test_a_stream_that_has_said_all_is_complete_though_its_body_stays_open() -> None:
    caller = Caller(stream(*EVENTS, ending="open"))
    assert (await caller.call()).content == b"".join(EVENTS)
    assert not await caller.engine.tasks.finish(0), "its body is still open"


async def test_what_a_taker_raises_comes_after_the_record() -> None:
    caller, taken = Caller(stream(*EVENTS)), list[bytes]()

    async def take(piece: bytes, headers: Headers) -> None:
        taken.append(piece)
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        await caller.call(take)
    assert taken == [EVENTS[0]]
    assert caller.engine.archive.outcome.completeness == "complete"


async def test_refusals_are_not_given_to_a_taker() -> None:
    taken = list[bytes]()

    async def take(piece: bytes, headers: Headers) -> None:
        taken.append(piece)

    assert (await Caller(whole({"error": {}}, 400)).call(take)).status == 400
    assert taken == []


@pytest.mark.parametrize(
    ("said", "headers", "kind"),
    [
        (UpstreamUnreachable("no way"), SESSION, UpstreamUnreachable),
        (stream(EVENTS[0], ending="cut"), SESSION, UpstreamUnreachable),
        (stream(*EVENTS), ((b"x-palimpsest-mode", b"off"),), BadRequest),
    ],
)
async def test_a_call_without_a_complete_response_raises(
    said: ScriptedResponse | Exception, headers: Headers, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await Caller(said).call(None, headers)


async def test_a_cancelled_call_is_recorded_as_aborted() -> None:
    caller = Caller(answering := stream(EVENTS[0], ending="open"))
    calling = asyncio.create_task(caller.call())
    await answering.wait_until_starved()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert [each.completeness for each in caller.engine.archive.of(Outcome)] == ["aborted"]


async def test_a_call_that_the_engine_ends_says_so() -> None:
    caller = Caller(answering := stream(EVENTS[0], ending="open"))
    calling = asyncio.create_task(caller.call())
    await answering.wait_until_starved()
    await caller.engine.tasks.finish(0)
    with pytest.raises(UpstreamUnreachable, match="cancelled"):
        await calling


def test_an_answer_with_the_bytes_of_the_record_is_not_parsed_again() -> None:
    chat, body = FORMATS["chat_completions"], json.dumps(answer("chat_completions", "said")).encode()
    told, plain = read_received(chat, JSON, json.dumps(answer("chat_completions", "recorded")).encode(), 1000)
    response = LocalClient()
    response.start(200, JSON)
    response.write(body, is_last=True)
    assert read_response(chat, response, ReadResponse(body, told, plain)).text == "recorded"
    assert read_response(chat, response, ReadResponse(plain, told, plain)).text == "said"  # the record was redacted
    assert read_response(chat, response).text == "said"
