"""Recall inside an answer that comes with a content-encoding, though none was asked for."""

import gzip
import json
import logging
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

from proxy.model.epoch import Recalled
from proxy.model.exchange import Outcome, Reading
from proxy.wire.headers import find_header
from tests.engine.recall.test_rounds_chat import (
    DONE,
    PAGE,
    TOOLS,
    body_with_call,
    body_with_text,
    chunk,
    open_epoch,
    prepare,
    read_text,
    recalling,
    run,
    saying,
    until,
)
from tests.support.engine import JSON, STREAM, ScriptedResponse
from tests.support.managed import ManagedEngine

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def encode(response: ScriptedResponse, encoding: str) -> ScriptedResponse:
    content = ENCODE[encoding](b"".join(response.pieces))
    length = ((b"content-length", b"%d" % len(content)),) if response.headers == JSON else ()
    headers = (*response.headers, (b"content-encoding", encoding.encode()), *length)
    return ScriptedResponse(content[:30], content[30:], headers=headers, ending="eof")


@pytest.mark.parametrize("encoding", sorted(ENCODE))
async def test_a_call_of_ours_in_an_encoded_stream_is_answered(encoding: str) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    first, second = encode(recalling(), encoding), encode(saying("The port is 8443."), encoding)
    received = [b"".join(each.pieces) for each in (first, second)]
    prepare(engine, first, second)
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert read_text(turn.client.body) == "Let me look. The port is 8443."
    assert turn.client.is_whole and turn.client.body.count(b"[DONE]") == 1
    assert not find_header(turn.client.headers, b"content-encoding")
    assert PAGE.encode() in turn.all_sent[1] and len(engine.log.of(Recalled)) == 1
    outcomes = [each for each in engine.log.of(Outcome) if each.exchange == turn.exchange]
    assert [each.received for each in outcomes] == received
    assert {find_header(each.headers, b"content-encoding") for each in outcomes} == {encoding.encode()}
    readings = {each.k: each.usage for each in engine.log.of(Reading) if each.exchange == turn.exchange}
    assert {k: (each.input, each.output) for k, each in readings.items() if each} == {0: (1000, 20), 1: (1100, 30)}
    said = {"role": "assistant", "content": "Let me look. The port is 8443."}
    later = await engine.send([*until(23), said, {"role": "user", "content": "Thanks."}], tools=TOOLS)
    assert [each["role"] for each in later.messages[-4:]] == ["assistant", "tool", "assistant", "user"]
    assert engine.failures == []


@pytest.mark.parametrize("encoding", sorted(ENCODE))
async def test_a_call_of_ours_in_an_encoded_body_is_answered(encoding: str) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    prepare(engine, encode(body_with_call(), encoding), encode(body_with_text("It is 8443."), encoding))
    turn = await engine.send(until(23), tools=TOOLS)
    message = json.loads(turn.client.body)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Let me look. It is 8443."}
    assert find_header(turn.client.headers, b"content-length") == b"%d" % len(turn.client.body)
    assert not find_header(turn.client.headers, b"content-encoding")


async def test_what_is_decoded_of_a_stream_passes_at_once() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    encoder = zlib.compressobj(wbits=31)

    def encode_event(event: bytes) -> bytes:
        return encoder.compress(event) + encoder.flush(zlib.Z_SYNC_FLUSH)

    response = ScriptedResponse(headers=(*STREAM, (b"content-encoding", b"gzip")))
    prepare(engine, response)
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    expected = b""
    for event in (chunk({"role": "assistant", "content": "One "}), chunk({"content": "two"}), chunk({}, "stop")):
        encoded = encode_event(event)
        response.feed(encoded[:5], encoded[5:])
        expected += event
        await response.wait_until_starved()
        assert turn.client.body == expected
    response.feed(encode_event(DONE), encoder.flush(), ending="last")
    await turn.finish()
    assert turn.client.body == expected + DONE and turn.client.is_whole


async def test_what_follows_the_last_event_of_an_encoded_stream_passes_decoded() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    encoder = zlib.compressobj(wbits=31)
    said = [chunk({"role": "assistant", "content": "Yes."}), chunk({}, "stop"), DONE]
    begun = encoder.compress(b"".join(said)) + encoder.flush(zlib.Z_SYNC_FLUSH)
    late = encoder.compress(b": late\n\n") + encoder.flush()
    response = ScriptedResponse(begun, headers=(*STREAM, (b"content-encoding", b"gzip")))
    prepare(engine, response)
    turn = engine.start(until(23), tools=TOOLS, stream=True)
    await turn.client.wait_for_body(len(b"".join(said)))
    response.feed(late, ending="eof")
    await turn.finish()
    assert turn.client.body == b"".join([*said, b": late\n\n"]) and turn.client.is_whole


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_not_in_its_encoding_breaks_off(stream: bool) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    response = recalling() if stream else body_with_call()
    response.headers = (*response.headers, (b"content-encoding", b"gzip"), (b"content-length", b"999"))
    prepare(engine, response)
    turn = await engine.send(until(23), tools=TOOLS, stream=stream)
    assert turn.client.is_aborted and not turn.client.body
    assert not find_header(turn.client.headers, b"content-length")
    outcome = [each for each in engine.log.of(Outcome) if each.exchange == turn.exchange][-1]
    assert (outcome.completeness, outcome.error) == ("truncated", "the content is not gzip")


async def test_a_piece_that_is_far_too_long_when_decoded_breaks_off() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    bomb = zlib.compress(b":" * 40_000_000)
    prepare(engine, ScriptedResponse(bomb, headers=(*STREAM, (b"content-encoding", b"deflate")), ending="eof"))
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert turn.client.is_aborted and len(turn.client.body) < 20_000_000


async def test_an_upstream_whose_encoding_is_not_read_gets_no_tool_from_the_next_epoch_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    tool = engine.epochs[-1].tool
    history: list[Any] = until(23)
    with caplog.at_level(logging.WARNING, logger="palimpsest.recall"):
        for _ in range(2):
            response = saying("Yes.")
            response.headers = (*STREAM, (b"content-encoding", b"compress"))
            prepare(engine, response)
            turn = await engine.send(history, tools=TOOLS, stream=True)
            assert find_header(turn.client.headers, b"content-encoding") == b"compress"
    assert [each.getMessage() for each in caplog.records] == [
        "models get no tool to recall from the next epoch on, for a response cannot be read:"
        " content-encoding 'compress' is not read here"
    ]
    turns = [await engine.send(until(steps), tools=TOOLS) for steps in range(24, 50)]
    assert len(engine.epochs) > 1 and engine.epochs[0].tool == tool
    assert {epoch.tool for epoch in engine.epochs[1:]} == {b""}
    assert json.loads(turns[-1].sent)["tools"] == TOOLS
    assert "context_recall" not in turns[-1].sent.decode() and "palimpsest expand" in turns[-1].sent.decode()
    assert engine.failures == []


async def test_a_later_round_whose_encoding_is_not_read_ends_the_answer_with_an_error() -> None:
    engine = ManagedEngine(run=run)
    await open_epoch(engine)
    second = saying("Done.")
    second.headers = (*STREAM, (b"content-encoding", b"compress"))
    prepare(engine, recalling(), second)
    turn = await engine.send(until(23), tools=TOOLS, stream=True)
    assert b'data: {"error":{' in turn.client.body and b"context_recall" not in turn.client.body
