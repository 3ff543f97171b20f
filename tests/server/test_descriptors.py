"""A server that hardly has a file descriptor left: idle clients are let go first, and it recovers."""

from dataclasses import replace

import pytest

from proxy.engine.runtime import Descriptors
from tests.server.test_http11 import BODY, CHAT, assert_refused
from tests.support.scripted import Message, ScriptedUpstream, answer, chunk, request, stream_head
from tests.support.serving import TOKEN, Plan, Served, serving

LIVE = request("GET", "/-/live")


class Few(Descriptors):
    """Descriptors that are scarce when the test says so."""

    def __init__(self) -> None:
        super().__init__(1024)
        self.are_scarce = False

    def is_scarce(self, newest: int) -> bool:
        return self.are_scarce


@pytest.fixture
def few() -> Few:
    """The descriptors of this test's server."""
    return Few()


@pytest.fixture
def plan(upstream: ScriptedUpstream, few: Few) -> Plan:
    """A server with few descriptors."""
    return replace(Plan(upstream.url), descriptors=few)


async def read_metric(served: Served) -> bytes:
    """How often descriptors were short."""
    got = await served.ask(request("GET", "/-/metrics", f"Authorization: Bearer {TOKEN}"))
    (line,) = [line for line in got.body.splitlines() if line.startswith(b"palimpsest_descriptor_shortages_total ")]
    return line.split()[1]


async def test_idle_clients_are_let_go_for_a_new_one_and_others_are_not(
    plan: Plan, few: Few, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(plan) as served:
        idle, busy, begun = [await served.connect() for _ in range(3)]
        for client in (idle, begun):
            client.send(LIVE)
            assert (await client.read_answer()).status == 200
        busy.send(request("POST", CHAT, body=BODY))
        wire, _ = await upstream.accept_request()
        wire.send(stream_head() + chunk(b"data: 1\n\n"))
        await busy.read_until(b"data: 1\n\n")
        begun.send(LIVE[:5])
        await served.ask(LIVE)
        few.are_scarce = True
        assert (await served.ask(LIVE)).status == 200
        few.are_scarce = False
        assert await idle.read_to_end() == b""
        begun.send(LIVE[5:])
        assert (await begun.read_answer()).status == 200
        wire.send(chunk(b"data: 2\n\n"))
        await busy.read_until(b"data: 2\n\n")
        assert await read_metric(served) == b"1.0"
        assert "nearly all of the 1024 file descriptors are taken" in caplog.text
        for client in (idle, busy, begun):
            await client.close()


async def test_connections_that_wait_for_use_upstream_are_let_go_too(
    plan: Plan, few: Few, upstream: ScriptedUpstream
) -> None:
    async with serving(plan) as served:
        async with await served.connect() as client:
            client.send(request("POST", CHAT, body=BODY))
            wire, _ = await upstream.accept_request()
            wire.send(answer(b"ok"))
            assert (await client.read_answer()).body == b"ok"
        few.are_scarce = True
        assert (await served.ask(LIVE)).status == 200
        assert await wire.read_to_end() == b""


async def test_a_client_is_refused_while_nobody_can_be_let_go_and_served_again_later(plan: Plan, few: Few) -> None:
    async with serving(plan) as served:
        few.are_scarce = True
        async with await served.connect() as client:
            got: Message = await client.read_answer()
            assert_refused(got, 503, "too_many_connections")
            assert await client.read_some() == b""
        few.are_scarce = False
        assert (await served.ask(LIVE)).status == 200
