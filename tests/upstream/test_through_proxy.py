"""Upstreams behind an HTTP proxy, and webhooks."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from proxy.engine.ports import UpstreamResponse
from proxy.engine.runtime import TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.client import DirectClient, WebhookClient
from proxy.upstream.policy import UpstreamPolicy
from tests.support.http_proxy import HttpProxy
from tests.support.loops import put_forward
from tests.support.scripted import LAST_CHUNK, LIMIT, ScriptedUpstream, Wire, answer, chunk, stream_head
from tests.upstream.client_contract import BEARER, CHAT, ClientContract, ask, read_all, send

Make = Callable[..., DirectClient]


@pytest.fixture
async def proxy() -> AsyncIterator[HttpProxy]:
    """A proxy that lets everybody through."""
    async with HttpProxy() as server:
        yield server


@pytest.fixture(params=["http", "https"])
async def upstream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream: an http one is asked by absolute URLs, an https one through a tunnel."""
    context: ssl.SSLContext | None = None
    if request.param == "https":
        certificate: Path = request.getfixturevalue("certificate")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        context = make_server_context(certificate)
    async with ScriptedUpstream(context) as server:
        yield server


PATIENT = {"connect_timeout": LIMIT, "idle_timeout": LIMIT}


@pytest.fixture
async def make(upstream: ScriptedUpstream, proxy: HttpProxy, tasks: TaskRunner) -> AsyncIterator[Make]:
    """Makes clients of the upstream behind the proxy, by what of their policy is another."""
    made: list[DirectClient] = []

    def build(hop_id: str = "", **values: object) -> DirectClient:
        told: dict[str, object] = {"base_url": upstream.url, "proxy": proxy.url, **PATIENT, **values}
        made.append(DirectClient(UpstreamPolicy("u", **told), tasks.spawn, hop_id=hop_id))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for client in made:
        await client.aclose()


@pytest.fixture
def client(make: Make) -> DirectClient:
    return make()


class TestThroughProxy(ClientContract):
    """Through a proxy that lets everybody through."""


def make_server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


async def read_one(response: UpstreamResponse) -> bytes:
    async with asyncio.timeout(LIMIT):
        return await response.read()


async def fail(client: DirectClient) -> UpstreamUnreachable:
    with pytest.raises(UpstreamUnreachable) as caught:
        await send(client)
    return caught.value


# --- what is sent and what comes back --------------------------------------------------------------------------------


async def test_a_request_and_its_response_are_what_they_are_without_a_proxy(
    make: Make, upstream: ScriptedUpstream
) -> None:
    packed = b"\x1f\x8b not really gzip"
    upstream.answer_with(answer(packed, "Content-Encoding: gzip", "X-One: 1", "x-two: 2", "X-One: 3", status="429 No"))
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
    response = await send(make(), b"/v1/x%7e//{y}?a=%20b&c", sent, b"body")
    assert response.status == 429
    assert response.headers == (
        *((b"content-encoding", b"gzip"), (b"x-one", b"1"), (b"x-two", b"2"), (b"x-one", b"3")),
        (b"content-length", b"%d" % len(packed)),
    )
    assert await read_all(response) == packed
    (got,) = upstream.requests
    assert got.line == b"POST /v1/x%7e//{y}?a=%20b&c HTTP/1.1"
    assert got.headers == (
        (b"host", b"127.0.0.1:%d" % upstream.port),
        (b"x-two", b"2"),
        (b"x-one", b"1"),
        (b"x-two", b""),
        (b"content-length", b"4"),
    )
    assert got.body == b"body"


async def test_the_proxy_sees_a_tunnel_for_https_and_an_absolute_url_for_http(
    make: Make, upstream: ScriptedUpstream, proxy: HttpProxy
) -> None:
    upstream.answer_with(answer(b"ok"))
    assert [await ask(make()), await ask(make())] == [b"ok"] * 2
    place = b"127.0.0.1:%d" % upstream.port
    lines = {
        "http": b"POST http://%s/v1/chat/completions HTTP/1.1" % place,
        "https": b"CONNECT %s HTTP/1.1" % place,
    }
    assert [head.line for head in proxy.heads] == [lines[upstream.url.partition(":")[0]]] * 2


async def test_calls_share_a_connection_and_keep_no_cookie_and_follow_no_redirect(
    make: Make, upstream: ScriptedUpstream, proxy: HttpProxy, tasks: TaskRunner
) -> None:
    upstream.answer_with(answer(b"ok", "Set-Cookie: a=b", "Location: /v1/elsewhere", status="302 Found"))
    client = make()
    for _ in range(3):
        assert await ask(client) == b"ok"
        assert await tasks.finish(LIMIT)
    assert (len(proxy.heads), upstream.accepted, len(upstream.requests)) == (1, 1, 3)
    assert [request.all(b"cookie") for request in upstream.requests] == [[]] * 3


@pytest.mark.parametrize(("method", "status"), [("HEAD", "200 OK"), ("DELETE", "204 No Content")])
async def test_a_response_without_a_body_ends_with_its_head(
    make: Make, upstream: ScriptedUpstream, method: str, status: str
) -> None:
    upstream.answer_with(f"HTTP/1.1 {status}\r\nx-a: b\r\n\r\n".encode())
    response = await make().send(method, b"/v1/x", (), b"")
    assert await read_all(response) == b""
    assert (response.is_received, response.is_ended, upstream.requests[0].all(b"content-length")) == (True, True, [])


async def test_a_key_of_the_settings_takes_the_place_of_the_clients_below_the_base(
    make: Make, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer())
    client = make(api_key="own-key")
    await read_all(await send(client, headers=BEARER))
    await read_all(await send(client, b"/other", BEARER))
    keys = [request.find(b"authorization") for request in upstream.requests]
    assert keys == [b"Bearer own-key", b"Bearer client-key"]


async def test_a_server_of_our_kind_is_told_who_asks_where_its_address_is_near(
    make: Make, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer())
    await read_all(await send(make(hop_id="b"), headers=((b"x-palimpsest-hop", b"a"),)))
    assert upstream.requests[0].find(b"x-palimpsest-hop") == b"a, b"


@pytest.mark.parametrize("upstream", ["http"], indirect=True)
async def test_a_server_of_the_public_network_is_not_told_who_asks(make: Make, proxy: HttpProxy) -> None:
    proxy.is_silent = True
    sending = asyncio.ensure_future(send(make(hop_id="b", base_url="http://api.example/v1")))
    async with asyncio.timeout(LIMIT):
        await proxy.asked.wait()
    sending.cancel()
    await asyncio.wait([sending])
    assert proxy.heads[0].line == b"POST http://api.example/v1/chat/completions HTTP/1.1"
    assert proxy.heads[0].all(b"x-palimpsest-hop") == []


# --- bodies that stream ----------------------------------------------------------------------------------------------


async def test_a_stream_is_handed_on_as_it_comes_and_what_came_with_its_end_is_left_to_read(
    make: Make, upstream: ScriptedUpstream
) -> None:
    sending = asyncio.ensure_future(send(make()))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(b"one"))
    response, taken = await sending, asyncio.Queue[bytes]()

    def take(piece: bytes) -> bool:
        taken.put_nowait(piece)
        return piece != b"two"

    pumping = asyncio.ensure_future(response.pump(take))
    assert await taken.get() == b"one"
    wire.send(chunk(b"two"))
    async with asyncio.timeout(LIMIT):
        await pumping
    assert (await taken.get(), response.is_received) == (b"two", False)
    pumping = asyncio.ensure_future(response.pump(take))
    wire.send(chunk(b"last") + LAST_CHUNK)
    async with asyncio.timeout(LIMIT):
        await pumping
    assert (taken.empty(), response.is_received, response.is_ended) == (True, True, False)
    assert await read_all(response) == b"last"


async def test_who_gives_up_waiting_may_come_back(make: Make, upstream: ScriptedUpstream) -> None:
    sending = asyncio.ensure_future(send(make()))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(b"one"))
    response = await sending
    assert await read_one(response) == b"one"
    reading = asyncio.ensure_future(response.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    wire.send(chunk(b"two") + LAST_CHUNK)
    assert await read_all(response) == b"two"


async def test_a_client_that_is_slow_holds_the_upstream_back(make: Make, upstream: ScriptedUpstream) -> None:
    count, sent = 64, 0

    async def play(wire: Wire) -> None:
        nonlocal sent
        await wire.read_request()
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * 2**20))
        while sent < count:
            wire.send(bytes(2**20))
            await wire.flush()
            sent += 1

    upstream.script = play
    response = await send(make())
    known = -1
    while known != sent:
        known = sent
        await asyncio.sleep(0.1)
    assert sent < count
    received = 0
    while piece := await read_one(response):
        received += len(piece)
    assert received == count * 2**20


async def test_a_response_that_is_given_up_closes_its_connection(
    make: Make, upstream: ScriptedUpstream, tasks: TaskRunner
) -> None:
    client = make()
    for is_read in (False, True):
        sending = asyncio.ensure_future(send(client))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(b"data"))
        response = await sending
        if is_read:
            assert await read_one(response) == b"data"
        response.close()
        response.close()
        assert await wire.read_to_end() == b""
    assert await tasks.finish(LIMIT)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"", "before it responded"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "before it responded"),
        (b"nonsense\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 700 What\r\nContent-Length: 0\r\n\r\n", "the status 700 is unexpected"),
    ],
)
async def test_a_response_that_is_none_is_an_error_after_one_attempt(
    make: Make, upstream: ScriptedUpstream, sent: bytes, problem: str
) -> None:
    upstream.close_after(sent)
    error = await fail(make())
    assert (error.status, problem in str(error), upstream.accepted) == (502, True, 1), str(error)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (stream_head() + chunk(b"part"), "in the middle of its response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart", "in the middle of its response"),
        (stream_head() + chunk(b"part") + b"nonsense\r\n", "not valid HTTP"),
    ],
)
async def test_a_response_that_breaks_is_an_error_after_the_bytes_that_came(
    make: Make, upstream: ScriptedUpstream, sent: bytes, problem: str
) -> None:
    upstream.close_after(sent)
    response = await send(make())
    assert await read_one(response) == b"part"
    with pytest.raises(UpstreamUnreachable, match=problem):
        await read_one(response)
    assert not response.is_ended
    response.close()


async def test_a_silent_upstream_is_given_up_before_and_inside_its_response(
    make: Make, upstream: ScriptedUpstream
) -> None:
    client = make(idle_timeout=5.0)
    sending = asyncio.ensure_future(client.send("POST", CHAT, (), b"{}"))
    await upstream.accept_request()
    await put_forward(6.0)
    with pytest.raises(UpstreamUnreachable, match="silent for 5 s") as caught:
        await sending
    assert caught.value.status == 504
    sending = asyncio.ensure_future(client.send("POST", CHAT, (), b"{}"))
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(b"data"))
    response = await sending
    assert await response.read() == b"data"
    reading = asyncio.ensure_future(response.read())
    await asyncio.sleep(0)
    await put_forward(6.0)
    with pytest.raises(UpstreamUnreachable, match="silent for 5 s"):
        await reading
    response.close()


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_proxy_that_nobody_answers_at_is_named_as_the_fault(make: Make, upstream: ScriptedUpstream) -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    error = await fail(make(proxy=f"http://user:hidden@127.0.0.1:{port}"))
    assert error.status == 502
    assert "no connection to the upstream 'u' through its proxy" in str(error)
    assert "hidden" not in str(error)


async def test_the_password_goes_to_the_proxy_and_nowhere_else(
    upstream: ScriptedUpstream, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upstream.answer_with(answer(b"ok"))
    async with HttpProxy(password="hidden") as strict:
        client = make(proxy=strict.url)
        assert await ask(client) == b"ok"
        assert strict.heads[0].find(b"proxy-authorization") == b"Basic dXNlcjpoaWRkZW4="
        assert "hidden" not in repr(UpstreamPolicy("u", base_url=upstream.url, proxy=strict.url))
        await client.aclose()
    assert upstream.requests[0].all(b"proxy-authorization") == []
    assert "hidden" not in caplog.text
    assert "dXNlcjpoaWRkZW4=" not in caplog.text


@pytest.mark.parametrize("upstream", ["https"], indirect=True)
async def test_a_proxy_that_refuses_a_tunnel_is_an_error_that_says_so(make: Make, upstream: ScriptedUpstream) -> None:
    async with HttpProxy(password="hidden") as strict:
        error = await fail(make(proxy=strict.url.replace("hidden", "wrong")))
    assert error.status == 502
    assert "the proxy of the upstream 'u' refused to connect: 407" in str(error)
    assert upstream.accepted == 0


@pytest.mark.parametrize("upstream", ["https"], indirect=True)
async def test_a_proxy_that_is_silent_is_given_up_within_the_time_of_a_connection(make: Make, proxy: HttpProxy) -> None:
    proxy.is_silent = True
    sending = asyncio.ensure_future(make(connect_timeout=3.0).send("POST", CHAT, (), b"{}"))
    async with asyncio.timeout(LIMIT):
        await proxy.asked.wait()
    await put_forward(4.0)
    with pytest.raises(UpstreamUnreachable, match="within 3 s") as caught:
        await sending
    assert caught.value.status == 504


@pytest.mark.parametrize("upstream", ["https"], indirect=True)
async def test_a_call_that_is_cancelled_while_it_connects_leaves_no_connection(
    make: Make, proxy: HttpProxy, tasks: TaskRunner
) -> None:
    """The tunnel stands, but its other end is a listener that never shakes hands."""
    met = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as mute:
        client = make(base_url=f"https://127.0.0.1:{mute.sockets[0].getsockname()[1]}/v1")
        sending = asyncio.ensure_future(client.send("POST", CHAT, (), b"{}"))
        async with asyncio.timeout(LIMIT):
            await met.wait()
            sending.cancel()
            await asyncio.wait([sending])
            await proxy.closed.wait()


@pytest.mark.parametrize("upstream", ["https"], indirect=True)
async def test_a_connection_that_fails_late_costs_later_calls_none_of_theirs(
    make: Make, upstream: ScriptedUpstream, proxy: HttpProxy, tasks: TaskRunner
) -> None:
    proxy.is_silent = True
    upstream.answer_with(answer(b"ok"))
    client = make()
    waiting = []
    for _ in range(2):
        proxy.asked.clear()
        waiting.append(asyncio.ensure_future(send(client)))
        async with asyncio.timeout(LIMIT):
            await proxy.asked.wait()
    proxy.is_silent = False
    for sending in waiting:
        sending.cancel()
        await asyncio.wait([sending])
        assert await ask(client) == b"ok"
        assert await tasks.finish(LIMIT)
    assert (upstream.accepted, len(upstream.requests)) == (1, 2)


@pytest.mark.parametrize("upstream", ["https"], indirect=True)
async def test_an_upstream_that_nobody_vouches_for_gets_nothing(
    make: Make, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    error = await fail(make())
    assert "certificate" in str(error).lower()
    assert upstream.requests == []


async def test_a_proxy_may_be_spoken_to_over_tls(
    make: Make, upstream: ScriptedUpstream, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    upstream.answer_with(answer(b"ok"))
    async with HttpProxy(tls=make_server_context(certificate)) as secure:
        client = make(proxy=secure.url)
        assert await ask(client) == b"ok"
        await client.aclose()


# --- webhooks --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedUpstream]:
    """Who gets webhooks, whatever proxy the environment names."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with ScriptedUpstream() as server:
        yield server


@contextlib.asynccontextmanager
async def posting(server: ScriptedUpstream, seconds: float = LIMIT) -> AsyncIterator[WebhookClient]:
    client = WebhookClient(f"http://127.0.0.1:{server.port}/a%2Fb;c?token=t%2F1", seconds, TaskRunner().spawn)
    try:
        yield client
    finally:
        await client.aclose()


async def test_a_webhook_is_posted_as_it_is_and_no_redirect_is_followed(receiver: ScriptedUpstream) -> None:
    fields = ("Location: /elsewhere", "Set-Cookie: a=b; Path=/")
    receiver.answer_with(answer(b"{}", *fields, status="307 Temporary Redirect"))
    async with posting(receiver) as client:
        headers = ((b"webhook-id", b"msg_1"), (b"content-type", b"application/json"))
        assert [await client.post(headers, b'{"a":1}') for _ in range(2)] == [307, 307]
    assert [request.line for request in receiver.requests] == [b"POST /a%2Fb;c?token=t%2F1 HTTP/1.1"] * 2
    for request in receiver.requests:
        assert (request.body, request.find(b"webhook-id"), request.all(b"cookie")) == (b'{"a":1}', b"msg_1", [])
    assert receiver.accepted == 1


async def test_an_address_of_a_webhook_without_a_path_is_that_of_the_root(receiver: ScriptedUpstream) -> None:
    receiver.answer_with(answer(b""))
    client = WebhookClient(f"http://127.0.0.1:{receiver.port}?token=a", LIMIT, TaskRunner().spawn)
    assert await client.post((), b"{}") == 200
    await client.aclose()
    assert receiver.requests[0].line == b"POST /?token=a HTTP/1.1"


async def test_a_webhook_that_hangs_or_does_not_end_is_left(receiver: ScriptedUpstream) -> None:
    async def hang(wire: Wire) -> None:
        await wire.read_request()
        await asyncio.Event().wait()

    async def go_on(wire: Wire) -> None:
        await wire.read_request()
        wire.send(answer(b"x" * 200_000))

    receiver.script = hang
    async with posting(receiver, 0.05) as client:
        with pytest.raises(TimeoutError):
            await client.post((), b"{}")
    receiver.script = go_on
    async with posting(receiver) as client:
        assert await client.post((), b"{}") == 200


async def test_a_webhook_without_a_receiver_is_an_error() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    client = WebhookClient(f"http://127.0.0.1:{port}", LIMIT, TaskRunner().spawn)
    with pytest.raises(UpstreamUnreachable, match="no connection"):
        await client.post((), b"{}")
    await client.aclose()
    await client.aclose()
