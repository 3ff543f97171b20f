"""Finding the end of a stream as it passes; what is held of it then, tests/engine/test_relay.py shows."""

import asyncio
import re

import pytest

from proxy.engine.response_stream import EndFinder, is_plain_stream, read_final_event
from proxy.engine.round import CappedBuffer
from proxy.model.exchange import Headers
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import JSON, LIMIT, STREAM, ScriptedResponse
from tests.support.loops import put_forward


def test_a_marker_longer_than_what_is_carried_over_begins_in_the_piece_that_shows_it() -> None:
    finder = EndFinder(ChatCompletions().end_marker)
    assert [finder.find(piece) for piece in (b"x" * 200, b"\nda", b"ta: [DONE]")] == [-1, -1, 0]
    assert EndFinder(re.compile(b"END")).find(b"..END") == 2


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
