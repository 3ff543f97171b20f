"""Asking the running server, over sockets."""

import asyncio
import json

import pytest

from proxy.engine.runtime import TaskRunner
from proxy.model.errors import TooLarge, UpstreamUnreachable
from proxy.upstream.own_server import ask_own_server, leads_back, name_address
from tests.support.scripted import ScriptedUpstream, Wire, answer


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8484"),
        ("0.0.0.0", "http://127.0.0.1:8484"),
        ("::", "http://[::1]:8484"),
        ("fd00::1", "http://[fd00::1]:8484"),
        ("proxy.example", "http://proxy.example:8484"),
    ],
)
def test_a_server_is_found_where_it_listens(host: str, address: str) -> None:
    assert name_address(host, 8484) == address


async def test_the_answer_is_handed_on_whatever_its_status() -> None:
    async with ScriptedUpstream() as server:

        async def play(wire: Wire) -> None:
            server.requests.append(await wire.read_request())
            wire.send(answer(b'{"error":{}}', "Content-Type: application/json", status="409 Conflict"))

        server.script = play
        address = f"http://127.0.0.1:{server.port}"
        got = await ask_own_server(
            address, "the-token", "/-/api/sessions/a/compact", b'{"level":3}', TaskRunner().spawn
        )
    assert got == (409, b'{"error":{}}')
    (asked,) = server.requests
    assert asked.line == b"POST /-/api/sessions/a/compact HTTP/1.1"
    assert asked.find(b"authorization") == b"Bearer the-token"
    assert json.loads(asked.body) == {"level": 3}


async def test_where_nobody_listens_it_is_told_what_to_do() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    with pytest.raises(UpstreamUnreachable, match="start it by `palimpsest serve`, or say --host, --port"):
        await ask_own_server(f"http://127.0.0.1:{port}", "t", "/", b"", TaskRunner().spawn)


async def test_an_answer_without_end_is_not_read_to_it() -> None:
    async with ScriptedUpstream() as server:

        async def play(wire: Wire) -> None:
            await wire.read_request()
            wire.send(answer(b"x" * 100))

        server.script = play
        with pytest.raises(TooLarge):
            await ask_own_server(f"http://127.0.0.1:{server.port}", "t", "/", b"", TaskRunner().spawn, 10)


@pytest.mark.parametrize(
    ("base_url", "address", "is_own"),
    [
        ("http://127.0.0.1:8484/v1", "127.0.0.1", True),
        ("https://127.0.0.1:8484", "127.0.0.1", True),
        ("http://localhost:8484/v1", "127.0.0.1", True),
        ("http://[::1]:8484/v1", "::1", True),
        ("http://0.0.0.0:8484/v1", "127.0.0.1", True),
        ("http://127.0.0.1:8484/v1", "0.0.0.0", True),
        ("http://127.9.9.9:8484/v1", "0.0.0.0", True),
        ("http://0.0.0.0:8484/v1", "0.0.0.0", True),
        ("http://127.0.0.1:8485/v1", "127.0.0.1", False),
        ("http://127.0.0.2:8484/v1", "127.0.0.1", False),
        ("http://[::1]:8484/v1", "127.0.0.1", False),
        ("http://192.0.2.1:8484/v1", "0.0.0.0", False),
        ("http://nobody.invalid:8484/v1", "127.0.0.1", False),
        ("https://api.openai.com/v1", "127.0.0.1", False),
    ],
)
def test_an_upstream_that_is_this_server_is_seen(base_url: str, address: str, *, is_own: bool) -> None:
    assert leads_back(base_url, address, 8484) == is_own
