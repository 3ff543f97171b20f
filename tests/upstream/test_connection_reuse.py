"""Connections that are used again: how long they are kept, and what becomes of a request whose connection dies."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.engine.runtime import TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.upstream.client import DirectClient
from proxy.upstream.policy import UpstreamPolicy
from tests.support.scripted import LIMIT, ScriptedUpstream, Wire, answer
from tests.upstream.client_contract import ask
from tests.upstream.conftest import REQUEST, Pair

LARGE = bytes(32 * 1024 * 1024)


class Kept:
    """A client on a clock of the test's, before an upstream that answers everything."""

    def __init__(self, upstream: ScriptedUpstream, tasks: TaskRunner) -> None:
        self.now = 0.0
        self.fields = ""
        self._upstream = upstream
        self._newest: Wire | None = None
        self.client = DirectClient(UpstreamPolicy("u", base_url=upstream.url), tasks.spawn, now=lambda: self.now)
        upstream.script = self._answer

    async def ask(self) -> bool:
        """Whether a call goes out on a new connection."""
        before = self._upstream.accepted
        assert await ask(self.client) == b"ok"
        return self._upstream.accepted > before

    async def close_newest(self) -> None:
        """The upstream closes the connection that it accepted last."""
        assert self._newest is not None
        await self._newest.close()

    async def _answer(self, wire: Wire) -> None:
        self._newest = wire
        while await wire.read_some():
            wire.send(answer(b"ok", self.fields or "x-a: 1"))


@pytest.fixture
async def kept(upstream: ScriptedUpstream, tasks: TaskRunner) -> AsyncIterator[Kept]:
    """A client whose connections age as the test says."""
    made = Kept(upstream, tasks)
    yield made
    made.client.close()


@pytest.mark.parametrize(("age", "is_new"), [(0.0, False), (18.9, False), (19.1, True)])
async def test_a_connection_retires_a_second_before_the_upstream_says_it_closes_it(
    kept: Kept, age: float, *, is_new: bool
) -> None:
    kept.fields = "Keep-Alive: timeout=20"
    assert await kept.ask()
    kept.now += age
    assert await kept.ask() == is_new


@pytest.mark.parametrize(
    ("closed_at", "age", "is_new"), [(5.0, 3.9, False), (5.0, 4.1, True), (0.4, 0.29, False), (0.4, 0.31, True)]
)
async def test_a_connection_retires_before_the_age_at_which_others_were_closed(
    kept: Kept, closed_at: float, age: float, *, is_new: bool
) -> None:
    await kept.ask()
    kept.now += closed_at
    await kept.close_newest()
    assert await kept.ask()
    kept.now += age
    assert await kept.ask() == is_new


async def test_a_connection_that_outlives_that_age_shows_that_it_was_no_limit(kept: Kept) -> None:
    """An upstream that was started anew has closed all of its connections, the youngest, too."""
    await kept.ask()
    kept.now += 0.1
    await kept.close_newest()
    await kept.ask()
    for _ in range(3):
        kept.now += 30.0
        assert not await kept.ask()


async def test_connections_that_the_client_closes_say_nothing_of_the_upstream(kept: Kept) -> None:
    await kept.ask()
    kept.now += 1.0
    kept.client.close()
    await asyncio.sleep(0)
    await kept.ask()
    kept.now += 50.0
    assert not await kept.ask()


# --- requests whose connection dies ----------------------------------------------------------------------------------


async def use_once(client: DirectClient, upstream: ScriptedUpstream) -> Wire:
    """The upstream's end of a connection that then waits in the pool."""
    sending = asyncio.ensure_future(ask(client))
    wire, _ = await upstream.accept_request()
    wire.send(answer(b"ok"))
    assert await sending == b"ok"
    return wire


async def test_a_request_on_a_pooled_connection_that_is_reset_goes_out_once_more(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    wire = await use_once(client, upstream)
    upstream.answer_with(answer(b"fresh"))
    follow = asyncio.ensure_future(ask(client, b"the body"))
    sent = await wire.read_request()
    wire.reset()
    assert await follow == b"fresh"
    assert upstream.requests[-1] == sent


async def test_a_request_of_which_the_upstream_read_a_part_before_it_closed_goes_out_once_more(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    wire = await use_once(client, upstream)
    upstream.answer_with(answer(b"fresh"))
    follow = asyncio.ensure_future(ask(client, LARGE))
    await wire.read_head()
    wire.stop_reading()
    wire.shut()
    assert await follow == b"fresh"
    assert upstream.requests[-1].body == LARGE


async def test_a_request_does_not_go_out_a_third_time(client: DirectClient, upstream: ScriptedUpstream) -> None:
    wire = await use_once(client, upstream)
    follow = asyncio.ensure_future(ask(client))
    await wire.read_request()
    wire.reset()
    second, _ = await upstream.accept_request()
    second.reset()
    with pytest.raises(UpstreamUnreachable, match="before it responded"):
        await follow
    assert upstream.accepted == 2


async def test_a_request_that_may_have_been_read_is_never_sent_a_second_time(
    client: DirectClient, upstream: ScriptedUpstream
) -> None:
    wire = await use_once(client, upstream)
    upstream.answer_with(answer(b"billed again"))
    follow = asyncio.ensure_future(ask(client))
    await wire.read_request()
    await wire.close()
    with pytest.raises(UpstreamUnreachable, match="before it responded") as caught:
        await follow
    assert caught.value.status == 502
    assert upstream.accepted == 1


# --- whether a request may go out once more --------------------------------------------------------------------------


async def fail(pair: Pair) -> bool:
    """Whether the request that has failed may go out once more."""
    with pytest.raises(UpstreamUnreachable):
        await pair.head()
    return pair.connection.may_send_again


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_request_that_met_a_reset_may_go_out_once_more(pair: Pair, *, is_read: bool) -> None:
    pair.connection.begin("POST", REQUEST, b"", LIMIT)
    if is_read:
        await pair.wire.read_head()
    pair.wire.reset()
    assert await fail(pair)


async def test_a_request_that_came_after_the_close_may_go_out_once_more(pair: Pair) -> None:
    """The FIN is on its way while the request is sent; the request is answered by a reset."""
    pair.wire.shut(socket.SHUT_RDWR)
    pair.connection.begin("POST", REQUEST, b"", LIMIT)
    assert await fail(pair)


async def test_a_request_that_was_sent_whole_before_an_orderly_close_may_not(pair: Pair) -> None:
    await pair.begin("POST")
    pair.wire.shut()
    assert not await fail(pair)


async def test_a_request_of_which_something_is_unsent_at_an_orderly_close_may_go_out_once_more(pair: Pair) -> None:
    pair.connection.begin("POST", REQUEST, LARGE, LIMIT)
    await pair.wire.read_head()
    pair.wire.stop_reading()
    pair.wire.shut()
    assert await fail(pair)


async def test_a_request_may_not_go_out_again_once_a_byte_of_its_answer_has_come(pair: Pair) -> None:
    await pair.begin("POST")
    pair.connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    pair.wire.reset()
    assert not await fail(pair)


async def test_a_request_that_was_given_up_may_not_go_out_again_though_it_had_not_left(pair: Pair) -> None:
    pair.connection.begin("POST", REQUEST, LARGE, 60.0)
    await pair.wire.read_head()
    pair.wire.stop_reading()
    pair.watch.wait(60)
    pair.connection.connection_lost(ConnectionResetError())
    assert not await fail(pair)


async def test_the_next_request_does_not_inherit_that_the_one_before_could_go_out_again(pair: Pair) -> None:
    pair.connection.may_send_again = True
    await pair.begin("POST")
    assert not pair.connection.may_send_again
