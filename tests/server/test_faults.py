"""What goes wrong upstream, and what the client and the record get of it (QUALITY §5): never a clean end of a broken
answer, never an end of our own making, one attempt.
"""

import asyncio
import gzip
import json

import pytest

from proxy.engine.policy import EnginePolicy
from proxy.model.exchange import Outcome
from tests.support.loops import put_forward
from tests.support.scripted import LAST_CHUNK, LIMIT, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[],"stream":true}'
ASK = request("POST", CHAT, body=BODY)
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
MIB = 1024 * 1024
PATHS = pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/other"])


def error_code(body: bytes) -> str:
    """The code in one of our errors."""
    code: str = json.loads(body)["error"]["code"]
    return code


# --- an answer that breaks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst", "bad chunk"])
@pytest.mark.parametrize("came", [EVENT, EVENT + EVENT[:20], b'data: "\xe2\x82', EVENT + b": comment"])
@PATHS
async def test_a_stream_that_breaks_is_passed_on_and_broken(
    served: Served, upstream: ScriptedUpstream, path: str, came: bytes, how: str
) -> None:
    async with await served.connect() as client:
        client.send(request("POST", path, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(came))
        head = await client.read_until(chunk(came))
        if how == "fin":
            await wire.close()
        elif how == "rst":
            wire.reset()
        else:
            wire.send(b"zz\r\n")
        assert b"HTTP/1.1 200 OK" in head
        assert await client.read_to_end() == b""
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.received, outcome.status) == ("truncated", came, 200)
    assert outcome.error
    assert (upstream.accepted, len(upstream.requests)) == (1, 1)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_body_shorter_than_its_length_is_passed_on_and_broken(
    served: Served, upstream: ScriptedUpstream, how: str
) -> None:
    async with await served.connect() as client:
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 40)
        await client.read_until(b"x" * 40)
        await wire.close() if how == "fin" else wire.reset()
        assert await client.read_to_end() == b""
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.received) == ("truncated", b"x" * 40)


async def test_a_break_that_comes_with_the_head_is_a_break(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.close_after(stream_head() + chunk(EVENT))
    got = await served.ask(ASK)
    assert (got.status, got.is_whole) == (200, False)
    assert (await served.outcome()).completeness == "truncated"


async def test_a_break_is_no_trouble_of_the_next_call(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.close_after(stream_head() + chunk(EVENT))
    assert not (await served.ask(ASK)).is_whole
    upstream.answer_with(answer(b"fine"))
    assert (await served.ask(ASK)).body == b"fine"


async def test_silence_before_the_answer_is_a_gateway_timeout(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(Plan(upstream.url, idle_timeout=30)) as served, await served.connect() as client:
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        await put_forward(30)
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (504, "upstream_silent")
        assert await wire.read_to_end() == b""
        outcome = await served.outcome()
        assert (outcome.completeness, outcome.status) == ("failed", 0)


async def test_silence_inside_the_answer_breaks_it(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(Plan(upstream.url, idle_timeout=30)) as served, await served.connect() as client:
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(EVENT))
        await client.read_until(chunk(EVENT))
        await put_forward(30)
        assert await client.read_to_end() == b""
        assert await wire.read_to_end() == b""
        outcome = await served.outcome()
        assert (outcome.completeness, outcome.received) == ("truncated", EVENT)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_an_upstream_that_closes_before_answering_is_a_bad_gateway_and_called_once(
    served: Served, upstream: ScriptedUpstream, how: str
) -> None:
    async with await served.connect() as client:
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        await wire.close() if how == "fin" else wire.reset()
        got = await client.read_answer()
        assert (got.status, error_code(got.body)) == (502, "upstream_unreachable")
        assert got.find(b"x-palimpsest-error") == b"true"
    assert (await served.outcome()).completeness == "failed"
    assert upstream.accepted == 1


@pytest.mark.parametrize(
    "sent", [b"<html>nonsense</html>\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"\x00\x00\x12\x04\x00\x00"]
)
async def test_an_answer_that_is_no_http_is_a_bad_gateway(
    served: Served, upstream: ScriptedUpstream, sent: bytes
) -> None:
    upstream.close_after(sent)
    got = await served.ask(ASK)
    assert (got.status, error_code(got.body)) == (502, "upstream_unreachable")


async def test_an_answer_behind_the_answer_reaches_nobody(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"mine") + answer(b"foreign", "X-Foreign: 1", status="500 Oops"))
    async with await served.connect() as client:
        for _ in range(2):
            client.send(ASK)
            got = await client.read_answer()
            assert (got.status, got.body) == (200, b"mine")


# --- answers that are odd, and pass ----------------------------------------------------------------------------------

_STREAMS = [
    EVENT,
    EVENT + b"data: [DONE]\n\n",
    EVENT + b'data: {"error":{"message":"overloaded"}}\n\n',
    b"event: error\ndata: not json\n\n",
    b": PROCESSING\n\n" + EVENT + b": ping\n\ndata: [DONE]\n\n: after\n\n",
    EVENT.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    b"data:{malformed\n\nno colon\ndata: [DONE]\n\n",
    b"\xff\xfe\x00 not UTF-8 at all",
    b'data: {"x": NaN, "y": "\\ud800"}\n\n',
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("body", _STREAMS)
@pytest.mark.parametrize("size", [1, 7, 100_000])
@PATHS
async def test_a_stream_passes_byte_for_byte_however_it_is_cut(
    served: Served, upstream: ScriptedUpstream, path: str, body: bytes, size: int
) -> None:
    pieces = [chunk(body[at : at + size]) for at in range(0, len(body), size)]
    upstream.answer_with(stream_head() + b"".join(pieces) + LAST_CHUNK)
    got = await served.ask(request("POST", path, body=BODY))
    assert (got.body, got.is_whole) == (body, True)
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.received) == ("complete", body)


async def test_each_event_is_passed_on_when_it_comes(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        wire.send(stream_head())
        await client.read_head()
        for piece in (b": ping\n\n", EVENT, b"dat"):
            wire.send(chunk(piece))
            assert await client.read_until(chunk(piece)) == chunk(piece)
        wire.send(LAST_CHUNK)
        assert await client.read_until(LAST_CHUNK) == LAST_CHUNK


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff\xfe", b"[" * 100_000, b"{}" + bytes(32 * MIB)],
    ids=["empty", "text", "nan", "surrogate", "bytes", "deep", "large"],
)
@PATHS
async def test_a_plain_body_passes_byte_for_byte(
    served: Served, upstream: ScriptedUpstream, path: str, body: bytes
) -> None:
    upstream.answer_with(answer(body, "Content-Type: application/json"))
    got = await served.ask(request("POST", path, body=BODY))
    assert got.body == body
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.size) == ("complete", len(body))
    assert outcome.received == body[: 8 * MIB]
    assert bool(outcome.whole_digest) == (len(body) > 8 * MIB)


async def test_a_body_that_ends_with_the_connection_passes(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.close_after(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
    got = await served.ask(ASK)
    assert (got.body, got.is_whole) == (b"hello", True)
    assert (await served.outcome()).completeness == "complete"


async def test_a_compressed_body_passes_as_it_is_and_is_not_unpacked_for_the_record(
    upstream: ScriptedUpstream,
) -> None:
    bomb = gzip.compress(bytes(64 * MIB))
    upstream.answer_with(answer(bomb, "Content-Encoding: gzip", "Content-Type: application/json"))
    engine = EnginePolicy(record_cap_bytes=MIB)
    async with serving(Plan(upstream.url, engine=engine)) as served:
        got = await served.ask(request("POST", CHAT, "Accept-Encoding: gzip", body=BODY))
        assert (got.body, got.find(b"content-encoding")) == (bomb, b"gzip")
        assert (await served.outcome()).received == bomb
    assert upstream.requests[0].find(b"accept-encoding") == b"gzip"


@pytest.mark.parametrize(
    "status",
    [
        "301 Moved Permanently",
        "302 Found",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "413 Content Too Large",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Service Unavailable",
        "529 Overloaded",
    ],
)
@PATHS
async def test_an_upstreams_own_verdict_is_passed_on_after_one_attempt(
    served: Served, upstream: ScriptedUpstream, path: str, status: str
) -> None:
    fields = ("Retry-After: 7", "X-Request-Id: req_1", "Request-Id: req_2", "Location: http://127.0.0.1:1/", "X-Odd: 1")
    body = b'{"error":{"message":"no","code":null}}'
    upstream.answer_with(answer(body, *fields, status=status))
    got = await served.ask(request("POST", path, body=BODY))
    assert (got.status, got.body) == (int(status[:3]), body)
    for field in fields:
        name, _, value = field.encode().partition(b": ")
        assert got.find(name.lower()) == value
    assert len(upstream.requests) == 1
    outcome = await served.outcome()
    assert (outcome.completeness, outcome.status) == ("complete", int(status[:3]))


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_a_body_passes(served: Served, upstream: ScriptedUpstream, status: str) -> None:
    upstream.answer_with(b"HTTP/1.1 %s\r\nX-A: 1\r\n\r\n" % status.encode())
    async with await served.connect() as client:
        for _ in range(2):
            client.send(request("GET", "/v1/files/x"))
            got = await client.read_answer()
            assert (got.status, got.find(b"x-a")) == (int(status[:3]), b"1")
    assert upstream.accepted == 1


async def test_a_head_of_many_fields_passes_whole(served: Served, upstream: ScriptedUpstream) -> None:
    fields = [f"X-{i}: {'v' * 500}" for i in range(200)]
    upstream.answer_with(
        b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + answer(b"ok", *fields, "Set-Cookie: a", "Set-Cookie: b", "X-E:")
    )
    got = await served.ask(ASK)
    assert got.headers[:200] == tuple((b"x-%d" % i, b"v" * 500) for i in range(200))
    assert (got.all(b"set-cookie"), got.all(b"x-e")) == ([b"a", b"b"], [b""])


async def test_fields_of_one_hop_stay_there(served: Served, upstream: ScriptedUpstream) -> None:
    fields = (
        "Connection: keep-alive, X-Hop",
        "Keep-Alive: timeout=5",
        "X-Hop: 1",
        "Proxy-Authenticate: x",
        "Trailer: y",
    )
    upstream.answer_with(answer(b"ok", *fields, "Upgrade: h2", "X-Kept: 1"))
    got = await served.ask(ASK)
    assert got.headers[:-2] == ((b"x-kept", b"1"), (b"content-length", b"2"))


async def test_a_pooled_connection_that_is_reset_is_not_seen_by_the_client(
    served: Served, upstream: ScriptedUpstream
) -> None:
    asking = asyncio.ensure_future(served.ask(ASK))
    wire, _ = await upstream.accept_request()
    wire.send(answer(b"first"))
    assert (await asking).body == b"first"
    asking = asyncio.ensure_future(served.ask(ASK))
    lost = await wire.read_request()
    wire.reset()
    fresh, again = await upstream.accept_request()
    assert again == lost
    fresh.send(answer(b"second"))
    got = await asking
    assert (got.status, got.body, got.find(b"x-palimpsest-error")) == (200, b"second", b"")
    await served.archive.wait_for(Outcome, 2)
    assert [outcome.completeness for outcome in served.archive.of(Outcome)] == ["complete", "complete"]


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_three_hundred_streams_that_say_nothing_do_not_keep_others_waiting(
    served: Served, upstream: ScriptedUpstream
) -> None:
    clients = [await served.connect() for _ in range(300)]
    for client in clients:
        client.send(ASK)
    wires = [await upstream.accept() for _ in clients]
    for wire in wires:
        wire.send(stream_head() + chunk(EVENT))
    for client in clients:
        await client.read_until(chunk(EVENT))
    async with asyncio.timeout(LIMIT):
        assert (await served.ask(request("GET", "/-/live"))).status == 200
    for wire in wires:
        wire.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
    async with asyncio.timeout(LIMIT):
        for client in clients:
            assert (await client.read_until(LAST_CHUNK)).endswith(b"data: [DONE]\n\n\r\n" + LAST_CHUNK)
            await client.close()
