"""Finding the end of a stream as it passes; what is held of it then, tests/engine/test_relay.py shows."""

import asyncio

import pytest

from proxy.engine.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.response_stream import StreamRelay, is_plain_stream, read_final_event
from proxy.model.exchange import Headers
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import JSON, LIMIT, STREAM, FakeArchive, FixedClock, RecordingClient, ScriptedResponse
from tests.support.loops import put_forward


def pass_on(*pieces: bytes, form: ChatCompletions | None = None) -> tuple[bytes, bytes]:
    """What reaches the client of a stream, and what is held."""
    client = RecordingClient()
    exchange = OpenExchange(
        "x1", FakeArchive(), None, form or ChatCompletions(), "main", client, CappedBuffer(1000), ()
    )
    client.start(200, STREAM)
    stream = StreamRelay(exchange, STREAM, FixedClock())
    for piece in pieces:
        stream.take(piece)
    assert exchange.buffer.content == b"".join(pieces)
    return bytes(client.body), stream.held


async def test_a_marker_longer_than_what_is_carried_over_begins_in_the_piece_that_shows_it() -> None:
    assert pass_on(b"x" * 200, b"\nda", b"ta: [DONE]") == (b"x" * 200 + b"\nda", b"ta: [DONE]")
    assert pass_on(b"data: 1\n\ndata: [DONE]\n\n") == (b"data: 1\n\n", b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("headers", "is_plain"),
    [
        (STREAM, True),
        ((*STREAM, (b"content-encoding", b"identity")), True),
        ((*STREAM, (b"content-encoding", b"gzip")), False),
        (JSON, False),
    ],
)
def test_a_stream_is_read_as_it_passes_where_it_is_not_encoded(headers: Headers, *, is_plain: bool) -> None:
    assert is_plain_stream(headers) == is_plain


async def test_what_comes_behind_the_end_does_not_keep_it_from_the_client() -> None:
    response, tape = ScriptedResponse(headers=STREAM), CappedBuffer(1000)

    async def talk() -> None:
        while True:
            response.feed(b": still here\n\n")
            await put_forward(0.02)

    talking = asyncio.ensure_future(talk())
    async with asyncio.timeout(LIMIT):
        held, is_ended = await read_final_event(response, tape, b"data: [DONE]\n\n")
    talking.cancel()
    assert held.startswith(b"data: [DONE]\n\n")
    assert not is_ended
