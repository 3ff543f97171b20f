"""Requests of commands to our own server."""

import asyncio
import json

import pytest

from proxy.model.errors import TooLarge, UpstreamUnreachable
from proxy.upstream.admin_client import AdminClient
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, answer, chunk, stream_head


async def test_a_request_bears_the_token_and_its_response_is_handed_on_whatever_its_status() -> None:
    async with ScriptedUpstream() as server:
        server.answer_with(answer(b'{"error":{}}', status="409 Conflict"))
        client = AdminClient(f"http://127.0.0.1:{server.port}", "the-token")
        found = await asyncio.to_thread(client.ask, "/-/api/sessions/a/compact", b'{"level":3}')
    assert found == (409, b'{"error":{}}')
    (asked,) = server.requests
    assert asked.line == b"POST /-/api/sessions/a/compact HTTP/1.1"
    assert (b"authorization", b"Bearer the-token") in asked.headers
    assert (b"content-type", b"application/json") in asked.headers
    assert json.loads(asked.body) == {"level": 3}


async def test_the_server_is_asked_directly_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with ScriptedUpstream() as server:
        server.answer_with(answer(b"{}", "Location: /elsewhere", status="307 Temporary Redirect"))
        client = AdminClient(f"http://127.0.0.1:{server.port}", "t")
        assert await asyncio.to_thread(client.ask, "/x%2Fy", b"", "DELETE") == (307, b"{}")
    assert [request.line for request in server.requests] == [b"DELETE /x%2Fy HTTP/1.1"]


async def test_where_nobody_listens_it_is_told_what_to_do() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    client = AdminClient(f"http://127.0.0.1:{port}", "t")
    with pytest.raises(UpstreamUnreachable, match="start it by `palimpsest serve`, or name another by --data"):
        client.ask("/", b"")
    with pytest.raises(UpstreamUnreachable, match="start it by `palimpsest serve`"):
        client.follow("/-/api/events", "", lambda piece: None)
    assert not client.is_live()


async def test_a_response_without_end_is_not_read_to_it() -> None:
    async with ScriptedUpstream() as server:

        async def play(wire: Wire) -> None:
            await wire.read_request()
            wire.send(answer(b"x" * 100))

        server.script = play
        client = AdminClient(f"http://127.0.0.1:{server.port}", "t", max_bytes=10)
        with pytest.raises(TooLarge):
            await asyncio.to_thread(client.ask, "/", b"")


async def test_a_server_is_live_that_says_so() -> None:
    for said, expected in ((b'{"status":"live"}', True), (b'{"status":"live"} ', False), (b"<html>", False)):
        async with ScriptedUpstream() as server:
            server.answer_with(answer(said))
            client = AdminClient(f"http://127.0.0.1:{server.port}", "")
            assert await asyncio.to_thread(client.is_live) is expected
            assert b"authorization" not in dict(server.requests[0].headers)


async def follow(server: ScriptedUpstream, *pieces: bytes, last_id: str = "") -> tuple[int, bytes, list[bytes]]:
    """What a stream of these bytes comes to; each piece is sent once the one before was taken, then it breaks off."""
    taken: list[bytes] = []
    loop, went_on = asyncio.get_running_loop(), asyncio.Event()

    def take(piece: bytes) -> None:
        taken.append(piece)
        loop.call_soon_threadsafe(went_on.set)

    async def play(wire: Wire) -> None:
        server.requests.append(await wire.read_request())
        for n, piece in enumerate(pieces):
            if n > 1:
                await went_on.wait()
            went_on.clear()
            wire.send(piece)
        await went_on.wait()
        await wire.close()

    server.script = play
    client = AdminClient(f"http://127.0.0.1:{server.port}", "t")
    status, refused = await asyncio.to_thread(client.follow, "/-/api/events?a=b", last_id, take)
    return status, refused, taken


async def test_a_stream_is_handed_on_as_it_comes() -> None:
    async with ScriptedUpstream() as server:
        pieces = (stream_head(), chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), LAST_CHUNK)
        assert await follow(server, *pieces, last_id="7-1") == (200, b"", [b"data: 1\n\n", b"data: 2\n\n"])
    (asked,) = server.requests
    assert asked.line == b"GET /-/api/events?a=b HTTP/1.1"
    assert (b"last-event-id", b"7-1") in asked.headers


async def test_a_stream_that_is_refused_is_not_handed_on() -> None:
    async with ScriptedUpstream() as server:
        assert await follow(server, answer(b"no", status="403 Forbidden")) == (403, b"no", [])
    assert b"last-event-id" not in dict(server.requests[0].headers)


async def test_a_stream_that_breaks_off_is_no_end() -> None:
    async with ScriptedUpstream() as server:
        with pytest.raises(UpstreamUnreachable, match=r"did not answer: .*; try again"):
            await follow(server, stream_head(), chunk(b"data: 1\n\n"))
