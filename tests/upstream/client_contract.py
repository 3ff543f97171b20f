"""What a client of an upstream does, directly and through a proxy; its module has the fixtures `client`, `upstream`."""

import asyncio

import pytest

from proxy.engine.ports import RequestBody, UpstreamResponse
from proxy.model.errors import BadRequest
from proxy.model.exchange import Headers
from proxy.upstream.client import DirectClient
from tests.support.scripted import LIMIT, ScriptedUpstream, answer

CHAT = b"/v1/chat/completions"
BEARER: Headers = ((b"authorization", b"Bearer client-key"),)


class Upload:
    """A request body that streams; the test says when there is more."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def add(self, content: bytes) -> None:
        """More of it; nothing at all is its end."""
        self._pieces.put_nowait(content)

    async def read(self) -> bytes:
        return await self._pieces.get()


async def send(
    client: DirectClient, target: bytes = CHAT, headers: Headers = (), body: bytes | RequestBody = b"{}"
) -> UpstreamResponse:
    async with asyncio.timeout(LIMIT):
        return await client.send("POST", target, headers, body)


async def read_all(response: UpstreamResponse) -> bytes:
    content = b""
    async with asyncio.timeout(LIMIT):
        while piece := await response.read():
            content += piece
    response.close()
    return content


async def ask(client: DirectClient, body: bytes | RequestBody = b"{}") -> bytes:
    return await read_all(await send(client, body=body))


class ClientContract:
    """What is sent of a request, and of a body that streams."""

    async def test_a_trick_path_is_refused_before_anything_is_sent(
        self, client: DirectClient, upstream: ScriptedUpstream
    ) -> None:
        with pytest.raises(BadRequest):
            await send(client, b"/v1/../admin")
        assert upstream.accepted == 0

    async def test_an_upload_arrives_while_it_is_still_being_sent(
        self, client: DirectClient, upstream: ScriptedUpstream
    ) -> None:
        upload = Upload()
        sending = asyncio.ensure_future(send(client, body=upload))
        upload.add(b"first")
        wire = await upstream.accept()
        assert (await wire.read_head()).find(b"transfer-encoding") == b"chunked"
        assert await wire.read_until(b"first\r\n") == b"5\r\nfirst\r\n"
        upload.add(b"second")
        upload.add(b"")
        assert await wire.read_until(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"
        wire.send(answer(b"done"))
        assert await read_all(await sending) == b"done"

    async def test_an_upload_with_a_length_goes_out_unframed(
        self, client: DirectClient, upstream: ScriptedUpstream
    ) -> None:
        upload = Upload()
        sending = asyncio.ensure_future(send(client, headers=((b"content-length", b"6"),), body=upload))
        for piece in (b"abc", b"def", b""):
            upload.add(piece)
        wire, got = await upstream.accept_request()
        assert (got.body, got.find(b"content-length"), got.all(b"transfer-encoding")) == (b"abcdef", b"6", [])
        wire.send(answer(b"done"))
        assert await read_all(await sending) == b"done"

    async def test_a_cancelled_upload_closes_its_connection(
        self, client: DirectClient, upstream: ScriptedUpstream
    ) -> None:
        upload = Upload()
        sending = asyncio.ensure_future(send(client, body=upload))
        upload.add(b"first")
        wire = await upstream.accept()
        await wire.read_until(b"first\r\n")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await wire.read_to_end() == b""
