"""An answer's framing: what its head announces is what comes, and a break never looks like an end."""

import pytest

from proxy.server.policy import ServerPolicy
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, answer, chunk, request, stream_head
from tests.support.serving import Plan, Served, serving
from tests.support.writes import BusyWrites

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[]}'


async def ask(client: Wire, upstream: ScriptedUpstream, sent: bytes, version: bytes = b"1.1") -> Wire:
    """Make a call that is answered with these bytes; the upstream's connection."""
    client.send(request("POST", CHAT, body=BODY).replace(b"HTTP/1.1", b"HTTP/" + version))
    wire, _ = await upstream.accept_request()
    wire.send(sent)
    return wire


async def test_an_old_client_gets_no_chunks_but_an_answer_that_ends_with_the_connection(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, b"HTTP/1.1 200 OK\r\n\r\npart of it", b"1.0")
        await wire.close()
        head = await client.read_head()
        assert head.all(b"transfer-encoding") == []
        assert head.find(b"connection") == b"close"
        assert await client.read_to_end() == b"part of it"


async def test_an_old_client_sees_a_reset_where_its_answer_breaks(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, stream_head() + chunk(b"part"), b"1.0")
        await client.read_until(b"part")
        wire.reset()
        with pytest.raises(ConnectionResetError):
            await client.read_some()


async def test_an_old_client_that_leaves_in_its_answer_is_no_fault_of_ours(
    served: Served, upstream: ScriptedUpstream
) -> None:
    async with await served.connect() as client:
        wire = await ask(client, upstream, stream_head() + chunk(b"part"), b"1.0")
        await client.read_until(b"part")
        client.reset()
        await wire.read_to_end()
    assert (await served.outcome()).completeness == "aborted"


async def test_a_length_is_passed_on_to_head_without_a_body(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        client.send(request("HEAD", "/v1/models"))
        wire, _ = await upstream.accept_request()
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n")
        head = await client.read_answer(method="HEAD")
        assert head.find(b"content-length") == b"12"
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_followed_by_the_next_one(
    served: Served, upstream: ScriptedUpstream, status: int
) -> None:
    async with await served.connect() as client:
        await ask(client, upstream, b"HTTP/1.1 %d X\r\netag: a\r\n\r\n" % status)
        head = await client.read_head()
        assert (head.status, head.all(b"content-length"), head.all(b"transfer-encoding")) == (status, [], [])
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200


async def test_a_status_without_a_name_is_passed_on(served: Served, upstream: ScriptedUpstream) -> None:
    async with await served.connect() as client:
        await ask(client, upstream, b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\nno")
        got = await client.read_answer()
        assert (got.status, got.body) == (529, b"no")


async def test_a_body_in_pieces_is_joined_and_capped(upstream: ScriptedUpstream) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    policy = ServerPolicy(port=0, admin_token="t", max_body_bytes=64)
    async with serving(Plan(upstream.url, server=policy)) as served, await served.connect() as client:
        client.send(head + chunk(BODY[:5]))
        await served.ask(request("GET", "/-/live"))  # meanwhile the first piece has been read
        client.send(chunk(BODY[5:]) + LAST_CHUNK)
        wire, seen = await upstream.accept_request()
        assert seen.body == BODY
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert (await client.read_answer()).status == 200
        client.send(head + chunk(b"x" * 65) + LAST_CHUNK)
        assert (await client.read_answer()).status == 413


async def test_what_waits_for_the_end_of_the_turn_is_sent_before_the_connection_ends(
    upstream: ScriptedUpstream,
) -> None:
    async with serving(Plan(upstream.url, writes=BusyWrites())) as served, await served.connect() as client:
        client.send(request("POST", CHAT, "Connection: close", body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(answer(b"whole"))
        assert (await client.read_answer()).body == b"whole"
        assert await client.read_to_end() == b""
