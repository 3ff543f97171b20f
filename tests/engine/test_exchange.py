"""One call, end to end: what a request may ask for, what streams through, and who owns the call."""

import asyncio
import gc

import pytest
from msgspec.structs import replace

from proxy.engine.policy import EnginePolicy
from proxy.model.epoch import Plan
from proxy.model.errors import BadRequest
from proxy.model.exchange import ClientRequest, Headers, Mode, Opening, Outcome, Reading, RequestOptions, Round
from proxy.model.lineage import Lineage
from proxy.model.manifest import compute_digest
from tests.support.engine import (
    HEALTHY,
    JSON,
    LIMIT,
    STREAM,
    Engine,
    FedBody,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    wait_out,
)

HEADERS: Headers = ((b"authorization", b"Bearer k"), (b"x-unheard-of", b"1"))
BODY = b'{"model":"m", "messages":[ ]}'
MANAGED = ClientRequest("POST", b"/v1/chat/completions", HEADERS, BODY)
UPLOAD = ClientRequest("PUT", b"/v1/files?key=secret", HEADERS)


def answer(content: bytes = b"{}") -> ScriptedResponse:
    return ScriptedResponse(content, headers=JSON, ending="whole")


def make_engine(response: ScriptedResponse | Exception | None = None, reads: int | None = None) -> Engine:
    return Engine(ScriptedUpstream(answer=response, reads=reads), is_instant=True)


async def finish(engine: Engine, task: "asyncio.Task[None]") -> None:
    await wait_out(task)
    assert await engine.tasks.finish(LIMIT)


@pytest.mark.parametrize(
    ("asked", "mode"), [(b"", "manage"), (b"observe", "observe"), (b" ByPass ", "bypass"), (b"manage", "manage")]
)
async def test_a_request_may_ask_for_a_mode(asked: bytes, mode: Mode) -> None:
    headers: Headers = ((b"x-palimpsest-mode", asked),) if asked else ()
    engine = make_engine(answer())
    assert engine.exchanges.calls.read_options(headers) == RequestOptions(mode)
    await finish(engine, engine.begin(replace(MANAGED, headers=headers), "chat_completions", RecordingClient()))
    assert engine.archive.opening.mode == mode


async def test_a_call_that_stands_alone_is_recorded_in_its_session_and_part_of_no_conversation() -> None:
    named: Headers = ((b"x-palimpsest-session", b"batch"),)
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    alone, placed = ((*named, (b"x-palimpsest-history", b"none")), named)
    engine = make_engine(answer(b'{"choices":[{"message":{"role":"assistant","content":"yes"}}]}'))
    for headers in (alone, placed):
        request = replace(MANAGED, headers=headers, body=body)
        await finish(engine, engine.begin(request, "chat_completions", RecordingClient()))
    first, second = engine.archive.of(Opening)
    assert (first.session.family, first.mode, first.kind) == ("batch", "observe", "managed")
    assert (second.session, second.mode) == (first.session, "manage")
    assert [each.exchange for each in engine.archive.of(Lineage)] == [second.exchange]
    assert first.exchange in [each.exchange for each in engine.archive.of(Reading)]


async def test_without_asking_the_configured_mode_holds() -> None:
    engine = Engine(policy=EnginePolicy(mode="bypass"))
    assert engine.exchanges.calls.read_options(()) == RequestOptions("bypass")


async def test_an_unknown_mode_is_a_bad_request_that_reaches_neither_upstream_nor_log() -> None:
    engine = make_engine(answer())
    headers: Headers = ((b"x-palimpsest-mode", b"\xffverbose" + b"x" * 100),)
    managed, streamed = RecordingClient(), RecordingClient()
    await finish(engine, engine.begin(replace(MANAGED, headers=headers), "chat_completions", managed))
    await finish(engine, engine.begin_stream(replace(UPLOAD, headers=headers), FedBody(b""), streamed))
    for client in (managed, streamed):
        assert isinstance(client.error, BadRequest)
        assert "manage, observe, bypass" in str(client.error)
        assert len(str(client.error)) < 150
    assert (engine.upstream.calls, engine.archive.appended) == ([], [])


async def test_the_upstream_gets_the_clients_own_bytes_and_the_log_knows_it() -> None:
    engine, client = make_engine(answer(b'{"a":1}')), RecordingClient()
    await finish(engine, engine.begin(MANAGED, "chat_completions", client))
    (call,) = engine.upstream.calls
    assert (call.method, call.target, call.headers, call.body) == ("POST", MANAGED.target, HEADERS, BODY)
    assert engine.archive.of(Round) == [Round("x1", 0, "main", None)]
    assert (client.status, client.body) == (200, b'{"a":1}')


BROKEN = "it is no whole JSON object, is nested too deep, or has a member twice"
MARKED = "it has a byte order mark, or is not in UTF-8"
UNLISTED = "'messages' is no list of messages, or has more than can be told apart"


@pytest.mark.parametrize(
    ("body", "mode", "encoding", "told"),
    [
        (b'{"messages":[' + b"x" * 70_000, b"manage", b"", BROKEN),
        (b'{"messages":[x', b"manage", b"", BROKEN),
        (b"", b"manage", b"", BROKEN),
        (b'{"messages":[],"messages":[]}', b"manage", b"", BROKEN),
        (b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"manage", b"", BROKEN),
        (b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n{}\r\n--x--', b"manage", b"", BROKEN),
        (b'\xef\xbb\xbf{"messages":[]}', b"manage", b"", MARKED),
        ('{"messages":[]}'.encode("utf-16-le"), b"manage", b"", MARKED),
        (
            b"\x28\xb5\x2f\xfdbroken",
            b"manage",
            b"zstd",
            "it is not in content-encoding 'zstd', or that is not known here",
        ),
        (b"a", b"manage", b"gzip, snappy", "it is not in content-encoding 'gzip, snappy', or that is not known here"),
        (b'{"messages":[%s]}' % b",".join([b"{   }"] * 20_001), b"manage", b"", UNLISTED),
        (b'{"messages":"%s"}' % (b"x" * 70_000), b"manage", b"", UNLISTED),
        (b'{"messages":[x', b"observe", b"", ""),
        (b'{"messages":"short"}', b"manage", b"", ""),
        (b'{"messages":[]}', b"manage", b"", ""),
    ],
)
async def test_a_body_that_cannot_be_read_goes_on_and_says_so(
    body: bytes, mode: bytes, encoding: bytes, told: str
) -> None:
    engine, client = make_engine(answer()), RecordingClient()
    headers: Headers = (*HEADERS, (b"x-palimpsest-mode", mode), (b"content-encoding", encoding))
    await finish(engine, engine.begin(replace(MANAGED, body=body, headers=headers), "chat_completions", client))
    assert engine.upstream.calls[0].body == body
    reason = f"its body could not be read: {told}" if told else ""
    labels = [value.decode() for name, value in client.labels if name == b"x-palimpsest-mode"]
    assert labels == ([f"observe; stood-down:{reason}"] if told else [])
    assert [(plan.rung, plan.reason) for plan in engine.archive.of(Plan)] == ([("original", reason)] if told else [])


async def test_with_refuse_no_call_goes_out_while_the_log_has_a_problem() -> None:
    engine = Engine(ScriptedUpstream(answer=answer()), EnginePolicy(on_failure="refuse"), is_instant=True)
    engine.archive.health = replace(HEALTHY, problem="disk full")
    managed, streamed = RecordingClient(), RecordingClient()
    await finish(engine, engine.begin(MANAGED, "chat_completions", managed))
    await finish(engine, engine.begin_stream(UPLOAD, FedBody(b""), streamed))
    for client in (managed, streamed):
        assert client.error is not None
        assert (client.error.status, "disk full" in str(client.error)) == (503, True)
    assert engine.upstream.calls == []
    engine.archive.health = HEALTHY
    well = RecordingClient()
    await finish(engine, engine.begin(MANAGED, "chat_completions", well))
    assert well.is_whole


async def test_with_forward_calls_go_on_while_the_log_has_a_problem() -> None:
    engine, client = make_engine(answer()), RecordingClient()
    engine.archive.health = replace(HEALTHY, problem="disk full")
    await finish(engine, engine.begin(MANAGED, "chat_completions", client))
    assert client.is_whole


async def test_a_streaming_body_passes_unread_and_its_opening_is_recorded_when_it_has_passed() -> None:
    engine, client, body = make_engine(), RecordingClient(), FedBody(b"one ", b"two")
    task = engine.begin_stream(UPLOAD, body, client)
    async with asyncio.timeout(LIMIT):
        await engine.upstream.called.wait()
    assert engine.archive.appended == []
    body.feed(b"")
    await engine.archive.wait_for(Opening)
    engine.upstream.answer(answer())
    await finish(engine, task)
    opening = engine.archive.opening
    assert engine.upstream.calls[0].uploaded == b"one two"
    assert [blob.content for blob in opening.body.blobs] == [b"one two"]
    assert (opening.kind, opening.target, opening.body.size) == ("passthrough", "/v1/files?key", 7)
    assert (client.is_whole, engine.archive.outcome.completeness) == (True, "complete")
    assert engine.archive.of(Reading) == []


async def test_a_streaming_body_above_the_cap_passes_whole_and_is_kept_to_the_cap() -> None:
    engine = Engine(ScriptedUpstream(answer=answer()), EnginePolicy(record_cap_bytes=5), is_instant=True)
    await finish(engine, engine.begin_stream(UPLOAD, FedBody(b"one ", b"two", b""), RecordingClient()))
    kept = engine.archive.opening.body
    assert engine.upstream.calls[0].uploaded == b"one two"
    assert [blob.content for blob in kept.blobs] == [b"one t"]
    assert (kept.size, kept.whole_digest) == (7, compute_digest(b"one two"))


async def test_without_a_body_the_opening_is_recorded_before_the_upstream_is_asked() -> None:
    engine, client = make_engine(), RecordingClient()
    task = engine.begin_stream(ClientRequest("GET", b"/v1/models", ()), None, client)
    async with asyncio.timeout(LIMIT):
        await engine.upstream.called.wait()
    assert (engine.archive.opening.body.size, engine.upstream.calls[0].body) == (0, b"")
    engine.upstream.answer(answer())
    await finish(engine, task)
    assert client.is_whole


async def test_an_upstream_may_answer_while_the_upload_is_still_going() -> None:
    response = ScriptedResponse(b"too ", b"large", status=413, headers=JSON, ending="eof")
    engine, client, body = make_engine(response, reads=1), RecordingClient(), FedBody(b"one ", b"two")
    await finish(engine, engine.begin_stream(UPLOAD, body, client))
    assert (client.status, client.body, client.is_whole) == (413, b"too large", True)
    assert [blob.content for blob in engine.archive.opening.body.blobs] == [b"one "]
    assert engine.archive.outcome.completeness == "complete"
    upload = engine.upstream.calls[0].body
    assert not isinstance(upload, bytes)
    assert await upload.read() == b"two"
    body.feed(b"")
    assert await upload.read() == b""
    assert len(engine.archive.of(Opening)) == 1


async def test_an_early_answer_is_not_held_back_for_an_opening_that_is_not_written() -> None:
    response = ScriptedResponse(b"early")
    engine = Engine(ScriptedUpstream(answer=response, reads=1))
    client = RecordingClient()
    task = engine.begin_stream(UPLOAD, FedBody(b"one "), client)
    assert await client.wait_for_body(5) == b"early"
    assert engine.archive.appended == []
    task.cancel()
    await finish(engine, task)
    assert (engine.archive.opening.body.size, engine.archive.outcome.completeness) == (4, "aborted")


async def test_a_client_that_leaves_during_its_upload_leaves_a_record_of_what_came() -> None:
    engine, client = make_engine(answer()), RecordingClient()
    task = engine.begin_stream(UPLOAD, FedBody(b"one "), client)
    async with asyncio.timeout(LIMIT):
        await engine.upstream.called.wait()
    task.cancel()
    await finish(engine, task)
    assert [blob.content for blob in engine.archive.opening.body.blobs] == [b"one "]
    assert (engine.archive.outcome.completeness, engine.archive.outcome.status) == ("aborted", 0)
    kinds = [type(record) for each in engine.archive.appended for record in each.records]
    assert kinds == [Opening, Round, Outcome]


async def test_no_end_of_a_stream_is_sought_where_the_wire_is_not_known() -> None:
    response = ScriptedResponse(b"data: [DONE]\n\n", headers=STREAM)
    engine, client = make_engine(response), RecordingClient()
    task = engine.begin_stream(UPLOAD, None, client)
    await response.wait_until_starved()
    assert (client.body, engine.archive.of(Outcome)) == (b"data: [DONE]\n\n", [])
    response.feed(ending="eof")
    await finish(engine, task)
    assert client.is_whole


async def test_a_target_that_the_upstream_refuses_is_answered_and_recorded_as_failed() -> None:
    engine, client = make_engine(BadRequest("no dots")), RecordingClient()
    await finish(engine, engine.begin(MANAGED, "chat_completions", client))
    assert client.error is not None
    assert (client.error.status, engine.archive.outcome.completeness) == (400, "failed")


async def test_a_defect_breaks_the_answer_and_is_recorded_and_raised() -> None:
    engine, client = make_engine(ValueError("a defect")), RecordingClient()
    call = engine.begin(MANAGED, "chat_completions", client)
    await finish(engine, call)
    assert (client.is_aborted, engine.archive.outcome.completeness) == (True, "aborted")
    assert str(call.exception()) == "a defect"


async def test_a_call_is_held_by_the_runner_even_if_nobody_else_holds_it() -> None:
    engine, client = make_engine(), RecordingClient()
    engine.begin(MANAGED, "chat_completions", client)
    async with asyncio.timeout(LIMIT):
        await engine.upstream.called.wait()
    gc.collect()
    assert len(engine.tasks) == 1
    engine.upstream.answer(answer())
    assert await engine.archive.wait_for(Outcome)
    async with asyncio.timeout(LIMIT):
        await client.ended.wait()
    assert client.is_whole


async def test_an_unknown_wire_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        await make_engine().exchanges.carry(MANAGED, "no_such_wire", RecordingClient())
