"""Finding the end of a stream as it passes; what is held of it then, tests/engine/test_relay.py shows."""

import asyncio

import pytest

from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.call.response_stream import EditingClient, StreamRelay, is_plain_stream, read_final_event
from proxy.model.errors import BadRequest
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
    return bytes(client.body), stream.withheld


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
        held = await read_final_event(response, tape, b"data: [DONE]\n\n")
    talking.cancel()
    assert held.startswith(b"data: [DONE]\n\n")
    assert not response.is_ended


EVENT = b'event: message_delta\ndata: {"type":"message_delta"}\n\n'
OTHER = b'event: ping\ndata: {"said":"message_delta"}\n\n'


def edit(raw: bytes) -> bytes:
    return raw.replace(b'"type":"message_delta"', b'"type":"message_delta","more":1').replace(b"[]", b"[1]")


def pass_edited(*pieces: bytes, headers: Headers = STREAM, status: int = 200, is_whole: bool = True) -> RecordingClient:
    """What reaches the client of a response in these pieces, to which something is added."""
    client = RecordingClient()
    editing = EditingClient(client, edit, b"message_delta")
    editing.start(status, headers)
    for i, piece in enumerate(pieces, 1):
        assert editing.write(piece, is_last=is_whole and i == len(pieces))
    if not is_whole:
        editing.abort()
    return client


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_what_an_event_tells_is_added_to_it_however_it_arrives(size: int, end: bytes) -> None:
    stream = (OTHER + EVENT + b": comment\n\n" + OTHER + b"event: message_stop\ndata: {}\n\n").replace(b"\n", end)
    client = pass_edited(*[stream[at : at + size] for at in range(0, len(stream), size)])
    if size == 1:  # each event as soon as it is whole
        assert len(next(filter(None, client.writes))) == len(OTHER.replace(b"\n", end))
    assert client.body == stream.replace(b'"type":"message_delta"', b'"type":"message_delta","more":1')
    assert client.is_whole


def test_events_pass_as_soon_as_they_are_whole_and_what_breaks_off_passes_as_it_came() -> None:
    client = pass_edited(OTHER + EVENT[:30], is_whole=False)
    assert client.writes == [OTHER, EVENT[:30]]
    assert client.is_aborted


@pytest.mark.parametrize(
    "event", [b'event: message_delta\ndata: {"type":"message_delta"\ndata: }\n\n', b": message_delta\n\n"]
)
def test_an_event_whose_data_is_not_one_line_passes_as_it_came(event: bytes) -> None:
    assert pass_edited(event).body == event


def test_a_whole_body_has_its_new_length() -> None:
    client = pass_edited(b'{"edits"', b":[]}", headers=((b"content-length", b"12"), *JSON))
    assert client.body == b'{"edits":[1]}'
    assert dict(client.headers)[b"content-length"] == b"13"
    assert b"content-length" not in dict(pass_edited(b"[]", headers=JSON).headers)


@pytest.mark.parametrize(
    ("status", "headers"),
    [(400, JSON), (200, ((b"content-type", b"text/plain"),)), (200, (*JSON, (b"content-encoding", b"br")))],
)
def test_a_body_to_which_nothing_belongs_passes_as_it_comes(status: int, headers: Headers) -> None:
    client = pass_edited(b"[", b"]", headers=headers, status=status)
    assert client.writes == [b"[", b"]"]


@pytest.mark.parametrize(
    ("status", "headers", "is_kept"),
    [
        (200, STREAM, False),
        (200, (), False),  # the first bytes say that it is a stream
        (200, (*STREAM, (b"content-encoding", b"gzip")), True),
        (400, STREAM, True),
    ],
)
def test_a_stream_that_may_be_edited_announces_no_length(status: int, headers: Headers, *, is_kept: bool) -> None:
    announced = (*headers, (b"content-length", b"%d" % len(EVENT)))
    client = pass_edited(EVENT, headers=announced, status=status)
    assert (b"content-length" in dict(client.headers)) == is_kept
    assert client.body == (EVENT if is_kept else edit(EVENT))


@pytest.mark.parametrize("headers", [JSON, STREAM])
def test_what_is_too_long_to_be_held_passes_as_it_came(headers: Headers) -> None:
    long = b" " * (8 * 1024 * 1024 + 1)
    client = pass_edited(b"[]", long, b"[]", headers=headers)
    assert client.writes == [b"[]" + long, b"[]"]


def test_a_whole_body_that_breaks_off_is_what_came_of_it() -> None:
    client = pass_edited(b'{"edits":[]', headers=JSON, is_whole=False)
    assert (client.status, client.body, client.is_aborted) == (200, b'{"edits":[]', True)
    assert pass_edited(headers=JSON, is_whole=False).status == 0


async def test_all_else_is_the_clients_own() -> None:
    client = RecordingClient()
    editing = EditingClient(client, edit, b"message_delta")
    editing.label(((b"x", b"1"),))
    editing.start(200, STREAM)
    editing.start(200, STREAM)
    await editing.drain()
    editing.write(b": waiting\n\n")
    editing.dismiss()
    assert (client.labels, client.writes) == (((b"x", b"1"),), [b": waiting\n\n"])
    failed = RecordingClient()
    EditingClient(failed, edit, b"message_delta").fail(BadRequest("no"))
    assert failed.error is not None
