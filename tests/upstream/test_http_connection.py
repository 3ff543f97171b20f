"""One connection: what its bytes mean, what breaks it, and when it can be used again."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.errors import UpstreamUnreachable
from proxy.upstream.http_connection import HttpConnection, InvalidResponse, ResponseParser
from tests.support.scripted import LAST_CHUNK, LIMIT, answer, chunk, stream_head
from tests.upstream.conftest import REQUEST, Pair

MIB = 1024 * 1024


# --- framing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (answer(b"hello"), b"hello"),
        (answer(b""), b""),
        (stream_head() + chunk(b"he") + chunk(b"llo") + LAST_CHUNK, b"hello"),
        (stream_head() + b"5;name=value\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n", b"hello"),
        (stream_head() + LAST_CHUNK, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + answer(b"hello"), b"hello"),
        (b"HTTP/1.1 200 OK\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-type: text/event-stream\r\n\r\n\xff\xfe\x00",
            b"\xff\xfe\x00",
        ),
    ],
)
@pytest.mark.parametrize("is_torn", [False, True])
async def test_an_answer_ends_where_its_framing_says(pair: Pair, sent: bytes, body: bytes, *, is_torn: bool) -> None:
    await pair.begin()
    for piece in [sent[i : i + 1] for i in range(len(sent))] if is_torn else [sent]:
        pair.wire.send(piece)
        await pair.wire.flush()
        await asyncio.sleep(0)
    assert await pair.head() in (200, 204, 304)
    assert await pair.rest() == body
    assert pair.connection.finish()
    assert pair.connection.is_fresh()


async def test_fields_keep_their_order_their_duplicates_and_their_empty_values(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(
        b"HTTP/1.1 103 X\r\nlink: gone\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-Empty:\r\nset-cookie: b=2\r\n"
    )
    pair.wire.send(b"x-odd: \xe9\r\ncontent-length: 0\r\n\r\n")
    assert await pair.head() == 200
    assert pair.connection.headers == (
        (b"set-cookie", b"a=1"),
        (b"x-empty", b""),
        (b"set-cookie", b"b=2"),
        (b"x-odd", b"\xe9"),
        (b"content-length", b"0"),
    )


async def test_a_body_without_a_length_ends_with_the_connection(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(b"HTTP/1.1 200 OK\r\n\r\nhel")
    assert await pair.head() == 200
    assert await pair.connection.read() == b"hel"
    assert not pair.connection.is_received
    pair.wire.send(b"lo")
    await pair.wire.close()
    assert await pair.rest() == b"lo"
    assert not pair.connection.finish()


async def test_a_body_in_a_foreign_transfer_encoding_ends_with_the_connection(pair: Pair) -> None:
    """RFC 9112 §6.3: where chunked is not the last coding, the length is found by reading up to the close."""
    await pair.begin()
    pair.wire.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello")
    await pair.wire.close()
    assert await pair.head() == 200
    assert await pair.rest() == b"hello"


async def test_an_answer_to_head_has_no_body_and_ends_its_connection(pair: Pair) -> None:
    await pair.begin("HEAD")
    pair.wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    assert await pair.head() == 200
    assert await pair.rest() == b""
    assert not pair.connection.finish()
    assert await pair.wire.read_to_end() == b""


async def test_fields_behind_a_chunked_body_do_not_show_in_the_next_answer(pair: Pair) -> None:
    for _ in range(2):
        await pair.begin()
        pair.wire.send(stream_head() + chunk(b"x") + b"0\r\nx-trailer: 1\r\n\r\n")
        await pair.head()
        assert await pair.rest() == b"x"
        assert b"x-trailer" not in dict(pair.connection.headers)
        assert pair.connection.finish()


# --- breaking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello", b"hello"),
        (stream_head() + chunk(b"data: {\n\n") + chunk(b'data: {"a'), b'data: {\n\ndata: {"a'),
        (stream_head() + chunk(b"\xe2\x82"), b"\xe2\x82"),
        (stream_head() + b"5\r\nhel", b"hel"),
        (stream_head() + chunk(b"hello") + b"0\r\n", b"hello"),
        (stream_head(), b""),
    ],
)
@pytest.mark.parametrize("is_reset", [False, True])
async def test_an_answer_that_is_cut_is_an_error_after_the_bytes_that_came(
    pair: Pair, sent: bytes, body: bytes, *, is_reset: bool
) -> None:
    await pair.begin()
    pair.wire.send(sent)
    await pair.head()
    content = await pair.connection.read() if body else b""
    if is_reset:
        pair.wire.reset()
    else:
        await pair.wire.close()
    more, problem = await pair.rest_and_break()
    assert (content + more, problem) == (body, "the upstream closed the connection in the middle of its response")


async def test_a_bad_chunk_is_an_error_after_the_bytes_that_came(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(stream_head() + chunk(b"good") + b"zz\r\nbad")
    await pair.head()
    content, problem = await pair.rest_and_break()
    assert content == b"good"
    assert problem.startswith("the upstream's response is not valid HTTP: ")
    assert await pair.wire.read_to_end() == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x00\x01",
        b"HTTP/1.1 200 OK\r\n" + b"x: %s\r\n" % (b"a" * 1000) * 300 + b"\r\n",
    ],
)
async def test_what_is_not_an_answer_is_an_error_and_closes_the_connection(pair: Pair, sent: bytes) -> None:
    await pair.begin()
    pair.wire.send(sent)
    with pytest.raises(UpstreamUnreachable, match="not valid HTTP") as caught:
        await pair.head()
    assert caught.value.status == 502
    assert await pair.wire.read_to_end() == b""


async def test_a_head_that_never_ends_is_refused_at_the_cap_and_not_kept_in_memory(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(b"HTTP/1.1 200 OK\r\nx: " + b"a" * (2 * MIB))
    with pytest.raises(UpstreamUnreachable, match="not valid HTTP"):
        await pair.head()


async def test_a_head_within_the_cap_may_be_large(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n")
    assert await pair.head() == 200
    assert len(dict(pair.connection.headers)[b"x"]) == 100_000


async def test_silence_before_the_answer_is_an_error_of_its_own(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    pair.watch.wait(59)
    pair.watch.wait(1)
    with pytest.raises(UpstreamUnreachable, match="silent for 60 s") as caught:
        await pair.head()
    assert caught.value.status == 504
    assert await pair.wire.read_to_end() == b""


async def test_silence_inside_the_answer_breaks_it(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    pair.wire.send(stream_head() + chunk(b"data"))
    await pair.head()
    assert await pair.connection.read() == b"data"
    pair.watch.wait(60)
    assert await pair.rest_and_break() == (b"", "the upstream was silent for 60 s")
    assert await pair.wire.read_to_end() == b""


async def test_a_reader_that_takes_its_time_is_not_the_upstreams_silence(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    pair.wire.send(stream_head() + chunk(b"data"))
    await pair.head()
    pair.watch.wait(200)
    pair.wire.send(LAST_CHUNK)
    assert await pair.rest() == b"data"


async def test_an_answer_that_is_here_whole_is_nobodys_silence(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    pair.wire.send(stream_head() + chunk(b"data"))
    await pair.head()
    assert await pair.connection.read() == b"data"
    pair.wire.send(LAST_CHUNK)
    async with asyncio.timeout(LIMIT):
        while not pair.connection.is_received:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    pair.watch.wait(200)
    assert await pair.connection.read() == b""
    assert pair.connection.finish()


async def take_answer(pair: Pair) -> None:
    """Have a call answered, after which the connection is free for the next."""
    pair.wire.send(answer(b"data"))
    await pair.head()
    assert await pair.rest() == b"data"
    assert pair.connection.finish()


async def test_silence_between_two_calls_is_nobodys_and_the_second_has_all_its_time(pair: Pair) -> None:
    for pause in (59, 1, 200):
        await pair.begin(idle_timeout=60)
        pair.watch.wait(59)
        await take_answer(pair)
        pair.watch.wait(pause)
    assert pair.connection.is_fresh()
    await pair.begin(idle_timeout=60)
    pair.watch.wait(60)
    with pytest.raises(UpstreamUnreachable, match="silent for 60 s"):
        await pair.head()


async def test_a_connection_that_is_closed_leaves_no_timer(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    assert pair.watch.count_timers() == 1
    pair.connection.close()
    assert pair.watch.count_timers() == 0


async def test_a_connection_that_the_upstream_closes_leaves_no_timer(pair: Pair) -> None:
    await pair.begin(idle_timeout=60)
    pair.wire.send(answer(b"data"))
    await pair.head()
    pair.connection.connection_lost(None)
    assert pair.watch.count_timers() == 0


# --- the next call on the same connection ----------------------------------------------------------------------------


async def test_an_answer_behind_the_answer_is_not_part_of_it(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(answer(b"mine") + answer(b"not mine", "x-foreign: 1", status="500 Oops"))
    assert await pair.head() == 200
    content = b""
    while piece := await pair.connection.read():
        content += piece
    assert (content, pair.connection.status) == (b"mine", 200)
    assert not pair.connection.finish()


async def test_the_beginning_of_an_answer_behind_the_answer_does_not_reach_the_next_client(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(answer(b"mine") + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoi")
    await pair.head()
    while await pair.connection.read():
        pass
    assert not pair.connection.finish()


async def test_garbage_behind_the_answer_ends_the_connection_and_not_the_answer(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(answer(b"mine") + b"\x00garbage")
    await pair.head()
    assert await pair.rest() == b"mine"
    assert not pair.connection.finish()


@pytest.mark.parametrize("sent", [answer(b"late"), b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"x"])
async def test_bytes_on_a_connection_that_waits_end_it(pair: Pair, sent: bytes) -> None:
    await pair.begin()
    pair.wire.send(answer(b"ok"))
    await pair.head()
    assert await pair.rest() == b"ok"
    assert pair.connection.finish()
    pair.wire.send(sent)
    assert await pair.wire.read_to_end() == b""
    assert not pair.connection.is_fresh()


async def test_a_connection_whose_answer_was_not_read_is_not_kept(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(answer(b"ok"))
    await pair.head()
    assert pair.connection.is_received
    assert not pair.connection.is_ended
    assert not pair.connection.finish()
    assert await pair.wire.read_to_end() == b""


async def test_a_request_on_a_lost_connection_fails_at_once(pair: Pair) -> None:
    await pair.begin()
    pair.wire.reset()
    with pytest.raises(UpstreamUnreachable):
        await pair.head()
    pair.connection.finish()
    assert not pair.connection.is_fresh()
    pair.connection.begin("GET", REQUEST, b"", LIMIT)
    with pytest.raises(UpstreamUnreachable, match="before the request was sent"):
        await pair.head()


async def test_writing_more_to_a_lost_connection_does_nothing(pair: Pair) -> None:
    await pair.begin("POST")
    pair.wire.reset()
    with pytest.raises(UpstreamUnreachable):
        await pair.head()
    await pair.connection.write(b"more")
    assert not pair.connection.finish()


# --- flow ------------------------------------------------------------------------------------------------------------


async def test_what_nobody_reads_stays_with_the_upstream(pair: Pair) -> None:
    await pair.begin()
    pair.wire.send(stream_head())
    await pair.head()
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 256 * MIB:
            pair.wire.send(chunk(bytes(MIB)))
            sent += MIB
            async with asyncio.timeout(0.3):
                await pair.wire.flush()
    assert sent < 40 * MIB
    pair.wire.send(LAST_CHUNK)
    assert len(await pair.rest()) == sent


async def test_a_large_body_passes_whole(pair: Pair) -> None:
    await pair.begin()
    body = bytes(range(256)) * (32 * MIB // 256)
    pair.wire.send(answer(body))
    await pair.head()
    assert await pair.rest() == body
    assert pair.connection.finish()


# --- the order of what is sent -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 100_000])
async def test_what_is_sent_of_a_request_keeps_its_order(pair: Pair, size: int) -> None:
    body = b"b" * size
    pair.connection.begin("POST", b"POST / HTTP/1.1\r\n", b"content-length: %d\r\n\r\n" % (size + 3), LIMIT)
    await pair.connection.write(body)
    await pair.connection.write(b"end")
    assert (await pair.wire.read_request()).body == body + b"end"


@pytest.mark.parametrize(
    ("peer", "own", "is_near"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.1.2.3", "192.168.1.2", True),
        ("172.17.0.1", "172.17.0.2", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("fd00::1", "fd00::2", True),
        ("100.64.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", True),
        ("8.8.8.8", "8.8.8.8", True),
        ("8.8.8.8", "192.168.1.2", False),
        ("2606:4700::1", "fd00::2", False),
        ("::ffff:8.8.8.8", "::ffff:10.0.0.2", False),
    ],
)
async def test_what_is_near_is_this_machine_or_no_public_address(peer: str, own: str, *, is_near: bool) -> None:
    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return {"peername": (peer, 1), "sockname": (own, 2)}.get(name, default)

    connection = HttpConnection(asyncio.get_running_loop())
    assert not connection.is_near
    connection.connection_made(Transport())
    assert connection.is_near == is_near


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"


@given(st.sampled_from([CHUNKED, SIZED]), st.sets(st.integers(1, 80)))
def test_an_answer_cut_anywhere_is_the_same_answer(sent: bytes, cuts: set[int]) -> None:
    incoming = ResponseParser("POST")
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    body = b""
    for start, end in itertools.pairwise(edges):
        incoming.feed(sent[start:end])
        body += incoming.take()
    assert (incoming.status, body, incoming.is_complete, incoming.can_keep) == (200, b"hello world", True, True)


def test_an_interim_answer_is_not_the_answer() -> None:
    incoming = ResponseParser("POST")
    incoming.feed(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    assert not incoming.has_head
    incoming.feed(SIZED)
    assert (incoming.status, incoming.headers, incoming.is_complete) == (200, ((b"content-length", b"11"),), True)


def test_a_parser_is_told_that_a_body_without_a_length_has_ended() -> None:
    incoming = ResponseParser("POST")
    incoming.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not incoming.is_complete
    assert incoming.end()
    assert (incoming.take(), incoming.is_complete) == (b"abc", True)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", SIZED[:-1], CHUNKED[:-2]])
def test_the_end_of_the_connection_does_not_end_any_other_answer(sent: bytes) -> None:
    incoming = ResponseParser("POST")
    incoming.feed(sent)
    assert not incoming.end()


def test_an_answer_to_head_has_no_body_and_the_connection_is_not_kept() -> None:
    incoming = ResponseParser("HEAD")
    incoming.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n")
    assert (incoming.is_complete, incoming.take(), incoming.can_keep) == (True, b"", False)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"not http at all\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "101"),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "999"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok", "99"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", "head exceeds"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 600_000, "head exceeds"),
        (CHUNKED.replace(b"6\r\n", b"zz\r\n"), "chunk"),
        (SIZED + SIZED, "behind the response"),
    ],
)
def test_what_is_no_single_answer_is_refused(sent: bytes, reason: str) -> None:
    with pytest.raises(InvalidResponse, match=reason):
        ResponseParser("POST").feed(sent)


def test_the_bytes_before_a_fault_can_still_be_taken() -> None:
    incoming = ResponseParser("POST")
    with pytest.raises(InvalidResponse):
        incoming.feed(CHUNKED.replace(b"6\r\n", b"zz\r\n"))
    assert incoming.take() == b"hello"


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", CHUNKED[:-2] + b"X: "])
def test_an_endless_field_is_refused_before_and_behind_the_body(begin: bytes) -> None:
    incoming = ResponseParser("POST")
    incoming.feed(begin)
    with pytest.raises(InvalidResponse, match="exceeds"):
        for _ in range(30):
            incoming.feed(b"a" * 10_000)


def test_a_long_body_is_no_endless_field() -> None:
    incoming = ResponseParser("POST")
    incoming.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")
    for _ in range(9):
        incoming.feed(bytes(100_000))
    assert incoming.is_complete


async def test_what_went_wrong_does_not_hold_those_who_are_told(pair: Pair) -> None:
    """An error refers to all frames that it passes through, and so to the request: a connection that kept it would be
    part of a circle, which only the garbage collector finds."""
    await pair.begin()
    await pair.wire.close()
    told = []
    for _ in range(2):
        with pytest.raises(UpstreamUnreachable, match="before it responded") as caught:
            await pair.head()
        told.append(caught.value)
    assert told[0] is not told[1]
