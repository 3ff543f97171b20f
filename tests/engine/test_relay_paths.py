"""Every path through the relay: one outcome, and nothing at the client or in the log that the upstream did not send.

Here stand also the secrets that an upstream may echo, on each way into the log.
"""

import asyncio
import gzip
import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.engine.policy import EnginePolicy, Principal
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, Opening, Outcome, Reading, Trailer
from proxy.model.manifest import compute_digest
from tests.support.engine import (
    JSON,
    STREAM,
    Ending,
    Engine,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    wait_out,
)
from tests.support.examples import examples
from tests.support.rescuing import TOO_LONG_EVENT, RescuedEngine, ScriptedRescuer
from tests.support.scripted import LIMIT

KEY = b"sk-0123456789abcdefghij"
OTHER = b"key-abcdefghij0123456789"
BODY = b'{"model":"m","messages":[]}'

beginnings = [b'data: {"c":1}\n\n', b": beat\r\n\r\n", b'data: "content"\n\n', TOO_LONG_EVENT]
events = st.sampled_from([*beginnings, b"data: [DONE]\n\n", b"garbage", b'data: {"c":"[DONE]"}\n\n'])
endings: st.SearchStrategy[Ending] = st.sampled_from(["eof", "last", "cut", "whole"])


@examples(120)
@example([b"data: [DONE]\n\n", b"after"], {1, 3}, "cut", 2, None)
@given(
    st.lists(events, max_size=5),
    st.sets(st.integers(0, 60), max_size=6),
    endings,
    st.none() | st.integers(0, 12),
    st.none() | st.booleans(),
)
def test_every_path_leaves_one_opening_one_outcome_and_no_byte_that_did_not_come(
    stream: list[bytes], cuts: set[int], ending: Ending, leaves_after: int | None, is_guarded: bool | None
) -> None:
    sent = b"".join(stream)
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    pieces = [sent[a:b] for a, b in pairwise(places)]
    response = ScriptedResponse(*pieces, ending=ending, headers=STREAM)
    response.is_slow = True
    asyncio.run(carry(sent, response, ending, leaves_after, is_guarded))


async def carry(
    sent: bytes, response: ScriptedResponse, ending: Ending, leaves_after: int | None, is_guarded: bool | None
) -> None:
    """A call; where `is_guarded` is not None, somebody stands by it who has nothing to send instead."""
    upstream, client = ScriptedUpstream(answer=response), RecordingClient()
    engine = Engine(upstream, is_soon=True)
    if is_guarded is not None:
        engine = RescuedEngine(ScriptedRescuer(is_guarded=is_guarded, retry=None), upstream, is_soon=True)
    task = engine.begin(ClientRequest("POST", b"/", (), BODY), "chat_completions", client)
    await asyncio.sleep(0)  # the call has begun; now the client may leave at any step
    for _ in range(leaves_after or 0):
        await asyncio.sleep(0)
    if leaves_after is not None:
        task.cancel()
    await wait_out(task)
    await engine.tasks.finish(LIMIT)
    outcome, archive = engine.archive.outcome, engine.archive
    assert len(archive.of(Opening)) == 1
    assert sum(isinstance(event, ExchangeRecorded) for event in engine.events) == 1
    recorded = outcome.received + b"".join(trailer.received for trailer in archive.of(Trailer))
    assert sent.startswith(recorded)
    assert recorded.startswith(client.body)
    assert client.ended.is_set()
    if client.is_whole:
        assert (client.body, recorded, outcome.completeness) == (sent, sent, "complete")
        assert ending != "cut"
    else:
        assert client.is_aborted
        assert leaves_after is not None or ending == "cut"
    if leaves_after is None:
        assert client.body == recorded == sent
    if outcome.status:
        assert response.is_closed
    if not client.is_whole and b"data: [DONE]" not in recorded:
        assert outcome.completeness in ("truncated", "aborted") or outcome.received == sent


async def record(
    response: ScriptedResponse, headers: Headers, own_keys: tuple[bytes, ...] = ()
) -> tuple[Engine, bytes]:
    """Carry an answer, and return what the client got of it."""
    engine = Engine(ScriptedUpstream(answer=response), is_instant=True, own_keys=own_keys)
    client = RecordingClient()
    await wait_out(engine.begin(ClientRequest("POST", b"/", headers, BODY), "chat_completions", client))
    await engine.tasks.finish(LIMIT)
    return engine, client.body


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"])
async def test_an_echoed_credential_reaches_the_client_and_not_the_log(name: bytes) -> None:
    value = b"Bearer " + KEY if name == b"authorization" else KEY
    answer = b'{"error":"bad key ' + KEY + b'"}'
    engine, body = await record(ScriptedResponse(answer, headers=JSON, ending="whole"), ((name, value),))
    assert body == answer
    assert engine.archive.outcome.received == answer.replace(KEY, b"*" * len(KEY))
    assert engine.archive.outcome.size == len(answer)


async def test_an_echoed_key_of_the_settings_stays_out_of_the_log_with_or_without_one_of_the_client() -> None:
    for headers in ((), ((b"authorization", b"Bearer " + OTHER),)):
        response = ScriptedResponse(b"a " + KEY, b" b " + OTHER, headers=JSON, ending="eof")
        engine, _ = await record(response, headers, (KEY,))
        assert KEY not in engine.archive.outcome.received
        assert (OTHER in engine.archive.outcome.received) == (headers == ())


async def test_a_credential_echoed_across_two_pieces_stays_out_of_the_log() -> None:
    response = ScriptedResponse(b"a " + KEY[:9], KEY[9:], headers=JSON, ending="eof")
    engine, body = await record(response, ((b"x-api-key", KEY),))
    assert body == b"a " + KEY
    assert engine.archive.outcome.received == b"a " + b"*" * len(KEY)


async def test_a_credential_echoed_in_an_encoded_answer_stays_out_of_the_log() -> None:
    headers: Headers = (*JSON, (b"content-encoding", b"gzip"))
    answer = gzip.compress(b'{"error":"bad key ' + KEY + b'"}')
    response = ScriptedResponse(answer, headers=headers, ending="whole", status=401)
    engine, body = await record(response, ((b"x-api-key", KEY),))
    outcome = engine.archive.outcome
    assert body == answer
    assert gzip.decompress(outcome.received) == b'{"error":"bad key ' + b"*" * len(KEY) + b'"}'
    assert (outcome.size, outcome.whole_digest) == (len(outcome.received), b"")


async def test_a_refused_credential_in_an_encoding_that_is_not_read_leaves_a_digest() -> None:
    headers: Headers = (*JSON, (b"content-encoding", b"compress"))
    response = ScriptedResponse(b"packed", headers=headers, ending="whole", status=401)
    engine, body = await record(response, ((b"x-api-key", KEY),))
    outcome = engine.archive.outcome
    assert body == b"packed"
    assert (outcome.received, outcome.size, outcome.whole_digest) == (b"", 6, compute_digest(b"packed"))


async def test_a_credential_echoed_in_the_pieces_of_a_stream_is_not_put_together() -> None:
    deltas = [{"choices": [{"index": 0, "delta": {"content": part.decode()}}]} for part in (KEY[:9], KEY[9:])]
    stream = b"".join(b"data: " + json.dumps(delta).encode() + b"\n\n" for delta in deltas) + b"data: [DONE]\n\n"
    engine, body = await record(ScriptedResponse(stream, headers=STREAM, ending="whole"), ((b"x-api-key", KEY),))
    assert body == stream
    (reading,) = engine.archive.of(Reading)
    assert b'"' + b"*" * len(KEY) + b'"' in reading.answer
    kept = engine.archive.outcome.received
    assert kept == stream.replace(KEY[:9], b"*" * 9).replace(KEY[9:], b"*" * (len(KEY) - 9))


@pytest.mark.parametrize("status", [200, 401])
async def test_a_credential_echoed_in_a_field_of_the_answer_stays_out_of_the_log(status: int) -> None:
    fields: Headers = (
        *JSON,
        (b"x-request-id", b"req-" + KEY),
        (b"openai-organization", KEY),
        (b"anthropic-organization-id", KEY),
        (b"x-ratelimit-limit-requests", KEY),
        (b"request-id", b"req-1"),
    )
    engine, _ = await record(
        ScriptedResponse(b"{}", headers=fields, ending="whole", status=status), ((b"x-api-key", KEY),)
    )
    kept = dict(engine.archive.outcome.headers)
    assert kept[b"x-request-id"] == b"req-" + b"*" * len(KEY)
    assert kept[b"request-id"] == b"req-1"
    assert kept.keys() == dict(fields).keys()
    assert not any(KEY in value for value in kept.values())


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/?a=1&key=" + KEY, ()),
        (b"/?Access_Token=" + KEY.replace(b"-", b"%2D"), ()),
        (b"/", ((b"cookie", b"a=b; session=" + KEY + b"; c"),)),
        (b"/", ((b"x-team", KEY),)),
    ],
)
async def test_whatever_else_a_caller_is_known_by_stays_out_of_the_log(target: bytes, headers: Headers) -> None:
    response = ScriptedResponse(b'{"error":"' + KEY + b'"}', headers=JSON, ending="whole")
    policy = EnginePolicy(principals={"team": Principal(header="X-Team")})
    engine = Engine(ScriptedUpstream(answer=response), policy, is_instant=True)
    client = RecordingClient()
    await wait_out(engine.begin(ClientRequest("POST", target, headers, BODY), "chat_completions", client))
    await engine.tasks.finish(5)
    assert KEY in client.body
    assert engine.archive.outcome.received == b'{"error":"' + b"*" * len(KEY) + b'"}'


LONG = b'{"error":"' + b"x" * 1_500_000 + b" bad key " + KEY + b'"}'
ZIPPED: Headers = (*JSON, (b"content-encoding", b"gzip"))


@pytest.mark.parametrize("ending", ["whole", "eof", "cut"])
async def test_a_long_encoded_answer_is_searched_to_its_end(ending: Ending) -> None:
    answer = gzip.compress(LONG)
    engine, body = await record(ScriptedResponse(answer, headers=ZIPPED, ending=ending), ((b"x-api-key", KEY),))
    outcome = engine.archive.outcome
    assert body == answer
    assert outcome.completeness == ("truncated" if ending == "cut" else "complete")
    assert gzip.decompress(outcome.received) == LONG.replace(KEY, b"*" * len(KEY))


@pytest.mark.parametrize("times", [1, 2])
async def test_a_client_that_leaves_while_a_long_answer_is_searched_leaves_one_record(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def search(function: Callable[..., bytes], *given: object) -> bytes:
        begun.set()
        await may_go_on.wait()
        return function(*given)

    monkeypatch.setattr(asyncio, "to_thread", search)
    answer = gzip.compress(LONG)
    engine = Engine(ScriptedUpstream(answer=ScriptedResponse(answer, headers=ZIPPED, ending="whole")), is_instant=True)
    request = ClientRequest("POST", b"/", ((b"x-api-key", KEY),), BODY)
    task = engine.begin(request, "chat_completions", RecordingClient())
    for _ in range(times):
        async with asyncio.timeout(LIMIT):
            await begun.wait()
        begun.clear()
        task.cancel()
    may_go_on.set()
    await wait_out(task)
    outcome = engine.archive.outcome
    assert (outcome.completeness, outcome.status) == ("aborted", 200)
    if times == 1:
        assert gzip.decompress(outcome.received) == LONG.replace(KEY, b"*" * len(KEY))
    else:
        assert (outcome.received, outcome.size, outcome.whole_digest) == (b"", len(answer), compute_digest(answer))


async def test_every_credential_of_a_request_stays_out_of_the_log_not_only_the_first() -> None:
    headers: Headers = ((b"authorization", b"Bearer " + KEY), (b"x-api-key", OTHER))
    engine, _ = await record(ScriptedResponse(OTHER + KEY, headers=JSON, ending="whole"), headers)
    assert KEY not in engine.archive.outcome.received
    assert OTHER not in engine.archive.outcome.received


async def test_a_credential_echoed_behind_the_end_marker_stays_out_of_the_log() -> None:
    response = ScriptedResponse(b"data: [DONE]\n\n")
    engine, client = Engine(ScriptedUpstream(answer=response), is_instant=True), RecordingClient()
    request = ClientRequest("POST", b"/", ((b"x-api-key", KEY),), BODY)
    task = engine.begin(request, "chat_completions", client)
    await client.wait_for_body(14)
    response.feed(b": " + KEY + b"\n\n", ending="eof")
    await wait_out(task)
    assert KEY in client.body
    (trailer,) = engine.archive.of(Trailer)
    assert KEY not in trailer.received


async def test_an_answer_above_the_record_cap_passes_whole_and_is_kept_to_the_cap() -> None:
    engine = Engine(is_instant=True)
    cap = 8 * 1024 * 1024
    piece = b"x" * (1024 * 1024)
    engine.upstream.answer(ScriptedResponse(*([piece] * 9), headers=JSON, ending="eof"))
    client = RecordingClient()
    await wait_out(engine.begin(ClientRequest("POST", b"/", (), BODY), "chat_completions", client))
    await engine.tasks.finish(LIMIT)
    outcome: Outcome = engine.archive.outcome
    assert (len(client.body), client.is_whole) == (9 * len(piece), True)
    assert (len(outcome.received), outcome.size, len(outcome.whole_digest)) == (cap, 9 * len(piece), 32)
