"""The client of one upstream: what it sends, which connections it uses again, and how often it calls."""

import asyncio
import contextlib
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from proxy.engine.runtime import Descriptors, TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.client import DirectClient
from proxy.upstream.policy import Auth, UpstreamPolicy
from tests.support.scripted import LIMIT, ScriptedUpstream, answer, chunk, stream_head
from tests.upstream.client_contract import BEARER, CHAT, ClientContract, Upload, ask, read_all, send


class TestDirect(ClientContract):
    """Without a proxy."""


# --- what is sent ----------------------------------------------------------------------------------------------------


async def test_a_request_keeps_the_order_of_its_fields_and_gets_host_and_length_anew(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"{}"))
    sent: Headers = (
        (b"host", b"proxy"),
        (b"x-two", b"2"),
        (b"content-length", b"99"),
        (b"x-one", b"1"),
        (b"x-two", b""),
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"gone"),
        (b"te", b"trailers"),
        (b"x-palimpsest-mode", b"observe"),
    )
    await read_all(await send(client, b"/v1/x?a=%20b&c", sent, b"body"))
    (got,) = upstream.requests
    assert got.line == b"POST /v1/x?a=%20b&c HTTP/1.1"
    assert got.headers == (
        (b"host", b"127.0.0.1:%d" % upstream.port),
        (b"x-two", b"2"),
        (b"x-one", b"1"),
        (b"x-two", b""),
        (b"content-length", b"4"),
    )
    assert got.body == b"body"


@pytest.mark.parametrize(("method", "length"), [("POST", b"0"), ("PUT", b"0"), ("PATCH", b"0"), ("GET", b"")])
async def test_an_empty_body_has_a_length_where_the_method_expects_one(
    client: DirectClient, upstream: ScriptedUpstream, method: str, length: bytes
) -> None:
    upstream.answer_with(answer())
    await read_all(await client.send(method, b"/v1/x", (), b""))
    assert upstream.requests[0].find(b"content-length") == length


async def test_the_environments_proxy_is_not_used(
    client: DirectClient, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    upstream.answer_with(answer(b"ok"))
    assert await ask(client) == b"ok"


@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ("bearer", (b"authorization", b"Bearer own-key")),
        ("x-api-key", (b"x-api-key", b"own-key")),
        ("none", (b"authorization", b"Bearer client-key")),
    ],
)
async def test_a_key_of_the_settings_takes_the_place_of_the_clients(
    upstream: ScriptedUpstream, tasks: TaskRunner, auth: Auth, field: tuple[bytes, bytes]
) -> None:
    upstream.answer_with(answer())
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url, api_key="own-key", auth=auth), tasks.spawn)
    await read_all(await send(client, headers=BEARER))
    client.close()
    credentials = [f for f in upstream.requests[0].headers if f[0] in (b"authorization", b"x-api-key", b"api-key")]
    assert credentials == [field]


async def test_a_key_of_the_settings_is_not_spent_outside_the_base(
    upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    upstream.answer_with(answer())
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url, api_key="own-key"), tasks.spawn)
    await read_all(await send(client, b"/admin", BEARER))
    client.close()
    assert upstream.requests[0].all(b"authorization") == [b"Bearer client-key"]


# --- streamed bodies -------------------------------------------------------------------------------------------------


async def test_an_answer_in_the_middle_of_an_upload_ends_the_upload_and_its_connection(
    client: DirectClient, upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    upload = Upload()
    sending = asyncio.ensure_future(send(client, body=upload))
    upload.add(b"first")
    wire = await upstream.accept()
    await wire.read_until(b"first\r\n")
    wire.send(answer(b"no", status="413 Too Large"))
    response = await sending
    assert (response.status, await read_all(response)) == (413, b"no")
    assert await wire.read_to_end() == b""
    assert await tasks.finish(LIMIT)


async def test_an_upstream_that_stops_reading_holds_the_upload_back(
    upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url, idle_timeout=0.5), tasks.spawn)
    upload, given = Upload(), 64
    for _ in range(given):
        upload.add(bytes(1024 * 1024))
    sending = asyncio.ensure_future(send(client, body=upload))
    wire = await upstream.accept()
    wire.stop_reading()
    with pytest.raises(UpstreamUnreachable, match="silent"):
        await sending
    assert upload._pieces.qsize() > given // 2
    client.close()


async def test_an_upload_to_an_upstream_that_goes_away_is_an_error(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    upload = Upload()
    sending = asyncio.ensure_future(send(client, body=upload))
    wire = await upstream.accept()
    await wire.read_head()
    wire.reset()
    with pytest.raises(UpstreamUnreachable, match="before it responded"):
        await sending


async def test_a_connection_carries_one_call_after_another(client: DirectClient, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    assert [await ask(client) for _ in range(3)] == [b"ok"] * 3
    assert upstream.accepted == 1


# --- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["Connection: close", "Keep-Alive: timeout=1"])
async def test_a_connection_the_upstream_will_not_keep_is_not_used_again(
    client: DirectClient, upstream: ScriptedUpstream, field: str
) -> None:
    upstream.answer_with(answer(b"ok", field))
    assert [await ask(client) for _ in range(2)] == [b"ok"] * 2
    assert upstream.accepted == 2


async def test_a_connection_kept_for_long_enough_is_used_again(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"ok", "Keep-Alive: max=5, timeout=60"))
    assert [await ask(client) for _ in range(2)] == [b"ok"] * 2
    assert upstream.accepted == 1


async def test_a_streamed_body_never_goes_out_on_a_connection_that_was_used(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(b"ok"))
    await ask(client)
    upload = Upload()
    for piece in (b"abc", b""):
        upload.add(piece)
    assert await ask(client, upload) == b"ok"
    assert upstream.accepted == 2


async def test_an_answer_left_unread_closes_its_connection(client: DirectClient, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(client))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(b"data"))
    response = await sending
    assert await response.read() == b"data"
    response.close()
    response.close()
    assert (response.is_received, response.is_ended) == (True, True)
    assert await wire.read_to_end() == b""


async def test_an_upstream_that_does_not_read_a_body_does_not_get_the_next_call_behind_it(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    """An early 401 on a connection whose bytes have not left yet: the next request would wait behind them for ever."""
    sending = asyncio.ensure_future(send(client, body=bytes(32 * 1024 * 1024)))
    wire = await upstream.accept()
    await wire.read_head()
    wire.stop_reading()
    wire.send(answer(b"no", status="401 Unauthorized"))
    assert await read_all(await sending) == b"no"
    upstream.answer_with(answer(b"fresh"))
    assert await ask(client) == b"fresh"


async def test_a_cancelled_call_whose_empty_answer_has_just_come_leaves_no_connection_behind(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    sending = asyncio.ensure_future(send(client))
    wire, _ = await upstream.accept_request()
    wire.send(answer())
    asyncio.get_running_loop().call_later(0, sending.cancel)
    with pytest.raises(asyncio.CancelledError):
        await sending
    upstream.answer_with(answer(b"next"))
    assert await ask(client) == b"next"
    assert await wire.read_to_end() == b""


async def test_closing_lets_go_of_the_connections_that_wait(client: DirectClient, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(ask(client))
    wire, _ = await upstream.accept_request()
    wire.send(answer(b"ok"))
    await sending
    client.close()
    assert await wire.read_to_end() == b""


# --- one call is one call --------------------------------------------------------------------------------------------


async def test_a_connection_closed_while_it_waited_is_replaced_unseen(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    sending = asyncio.ensure_future(ask(client))
    wire, _ = await upstream.accept_request()
    wire.send(answer(b"ok"))
    await sending
    wire.shut()
    assert await wire.read_to_end() == b""
    upstream.answer_with(answer(b"fresh"))
    assert await ask(client) == b"fresh"


async def test_a_close_that_came_before_the_request_went_out_is_replaced_even_if_nobody_has_looked_yet(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    """The FIN is in our kernel when the request is sent; a busy loop then takes its time to see it."""
    sending = asyncio.ensure_future(ask(client))
    wire, _ = await upstream.accept_request()
    wire.send(answer(b"ok"))
    await sending
    upstream.answer_with(answer(b"fresh"))
    wire.shut()
    follow = client.send("POST", CHAT, (), b"{}")
    asyncio.get_running_loop().call_soon(time.sleep, 0.05)
    async with asyncio.timeout(LIMIT):
        assert await read_all(await follow) == b"fresh"


async def test_a_first_connection_that_breaks_is_not_tried_again(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    upstream.close_after(b"")
    with pytest.raises(UpstreamUnreachable, match="before it responded"):
        await send(client)
    assert upstream.accepted == 1


async def test_nobody_listening_is_an_error_that_names_the_upstream(tasks: TaskRunner) -> None:
    async with ScriptedUpstream() as gone:
        url = gone.url
    with pytest.raises(UpstreamUnreachable, match="no connection to the upstream 'u'") as caught:
        await send(DirectClient(UpstreamPolicy("u", base_url=url), tasks.spawn))
    assert caught.value.status == 502


@contextlib.contextmanager
def exhausted() -> Iterator[Callable[[], int]]:
    """No descriptor is free until this is called, or the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))

    def relieve() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return 1

    try:
        yield relieve
    finally:
        relieve()


async def test_where_no_descriptor_is_free_others_let_go_of_theirs_for_a_connection(
    upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    upstream.answer_with(answer(b"ok"))
    descriptors = Descriptors(1024)
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url), tasks.spawn, descriptors=descriptors)
    with exhausted() as relieve:
        descriptors.add_releaser(relieve)
        assert await ask(client) == b"ok"
    assert descriptors.shortages == 1
    assert client.close() == 1


async def test_where_nobody_can_let_go_of_a_descriptor_the_call_fails_of_that(
    upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url), tasks.spawn, descriptors=Descriptors(1024))
    with exhausted(), pytest.raises(UpstreamUnreachable, match="oo many open files") as caught:
        await send(client)
    assert caught.value.status == 502


async def test_a_connection_that_takes_too_long_is_an_error(upstream: ScriptedUpstream, tasks: TaskRunner) -> None:
    """An upstream that says nothing when TLS is offered."""
    url = upstream.url.replace("http:", "https:")
    client = DirectClient(UpstreamPolicy("u", base_url=url, connect_timeout=0.2), tasks.spawn)
    with pytest.raises(UpstreamUnreachable, match=r"within 0\.2 s") as caught:
        await send(client)
    assert caught.value.status == 504


# --- loops (BEHAVIOUR B40) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_server_that_is_near_is_told_through_whom_a_call_came(
    upstream: ScriptedUpstream, tasks: TaskRunner, *, is_streamed: bool
) -> None:
    upstream.answer_with(answer())
    client = DirectClient(UpstreamPolicy("u", base_url=upstream.url), tasks.spawn, hop_id="own")
    came: Headers = ((b"x-palimpsest-hop", b"a, b"), (b"x-palimpsest-hop", b",c"), (b"x-palimpsest-mode", b"observe"))
    for headers, hops in (((), b"own"), (came, b"a, b, c, own")):
        upload = Upload()
        upload.add(b"")
        await read_all(await send(client, headers=headers, body=upload if is_streamed else b"{}"))
        asked = upstream.requests.pop()
        assert asked.find(b"x-palimpsest-hop") == hops
        assert [name for name, _ in asked.headers if name.startswith(b"x-palimpsest-")] == [b"x-palimpsest-hop"]
    client.close()


async def test_a_server_without_an_id_names_nobody(client: DirectClient, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer())
    await read_all(await send(client, headers=((b"x-palimpsest-hop", b"a"),)))
    assert upstream.requests[0].all(b"x-palimpsest-hop") == []


@pytest.fixture
async def secure(certificate: Path) -> AsyncIterator[ScriptedUpstream]:
    """An upstream with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    async with ScriptedUpstream(context) as server:
        yield server


async def test_an_upstream_whose_signer_the_system_trusts_is_talked_to(
    secure: ScriptedUpstream, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client = DirectClient(UpstreamPolicy("u", base_url=secure.url), TaskRunner().spawn)
    secure.answer_with(answer(b"secret"))
    assert [await ask(client) for _ in range(3)] == [b"secret"] * 3
    assert secure.accepted == 1
    client.close()


async def test_a_stream_over_tls_that_is_cut_is_broken(
    secure: ScriptedUpstream, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client = DirectClient(UpstreamPolicy("u", base_url=secure.url), TaskRunner().spawn)
    secure.close_after(stream_head() + chunk(b"part"))
    with pytest.raises(UpstreamUnreachable, match="in the middle of its response"):
        await ask(client)


async def test_an_upstream_that_nobody_vouches_for_gets_nothing(secure: ScriptedUpstream) -> None:
    client = DirectClient(UpstreamPolicy("u", base_url=secure.url), TaskRunner().spawn)
    secure.answer_with(answer(b"secret"))
    with pytest.raises(UpstreamUnreachable, match=r"(?i)certificate"):
        await ask(client)
    assert secure.requests == []
