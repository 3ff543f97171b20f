"""Request bodies of all calls under way: how much they may take together, who waits, and how slow they may come."""

import asyncio
from dataclasses import replace

import pytest

from proxy.server.client import SMALL_BYTES, BodyBudget, Share, compute_patience
from proxy.server.policy import ServerPolicy
from tests.server.test_http11 import BODY, CHAT
from tests.support.scripted import LIMIT, ScriptedUpstream, answer, chunk, request
from tests.support.serving import Plan, serving, with_server

MIB = 1024 * 1024
MOST = 8 * MIB
LARGE = 3 * MIB


def hold(budget: BodyBudget, *sizes: int) -> list[Share]:
    """Shares that hold so much each."""
    shares = [Share() for _ in sizes]
    assert all(budget.resize(share, size) for share, size in zip(shares, sizes, strict=True))
    return shares


@pytest.mark.parametrize(
    ("held", "size", "has_room"),
    [
        ((LARGE,), LARGE, True),
        ((LARGE, LARGE), SMALL_BYTES + 1, False),  # above three quarters
        ((LARGE, LARGE), SMALL_BYTES, True),
        ((LARGE, LARGE, MIB, MIB), 1, False),
        ((MIB,) * 8, 1, False),
        ((MIB,) * 5, LARGE, True),
        ((MIB,) * 6, LARGE, True),  # the only large one
        ((MIB, 2 * MIB, LARGE), LARGE, False),
        ((), 100 * MIB, True),
        ((MIB, MIB), 100 * MIB, True),
        ((2 * MIB,), 100 * MIB, False),
        ((100 * MIB,), 1, True),
        ((100 * MIB, 1), 1, False),
    ],
)
def test_who_finds_room(held: tuple[int, ...], size: int, *, has_room: bool) -> None:
    budget = BodyBudget(MOST)
    shares = hold(budget, *held)
    assert budget.resize(Share(), size) == has_room
    for share in shares:
        budget.release(share)
    assert budget.used == size * has_room


def test_a_share_grows_from_small_to_large_and_gives_all_of_it_back() -> None:
    budget = BodyBudget(MOST)
    (share, other) = hold(budget, 10, 10)
    assert budget.resize(share, SMALL_BYTES + 1)
    assert budget.resize(share, 6 * MIB)
    assert budget.used == 6 * MIB + 10
    assert not budget.resize(other, SMALL_BYTES + 1)
    assert other.size == 10
    budget.release(share)
    budget.release(share)
    assert budget.resize(other, SMALL_BYTES + 1)
    budget.release(other)
    assert budget.used == 0


async def test_large_ones_wait_in_their_order_and_small_ones_do_not_wait_for_them() -> None:
    budget = BodyBudget(MOST)
    first, second = hold(budget, LARGE, LARGE)
    largest, large, small = Share(), Share(), Share()
    waiting = [budget.queue(largest, 6 * MIB), budget.queue(large, 2 * MIB)]
    assert not budget.resize(Share(), 2 * MIB)
    assert budget.resize(small, MIB)
    budget.release(first)
    assert [one.done() for one in waiting] == [False, False]  # there is room for the second, but it is not its turn
    budget.release(small)
    budget.release(second)
    assert [one.done() for one in waiting] == [True, False]
    budget.release(largest)
    assert waiting[1].result()
    assert (large.size, budget.used) == (2 * MIB, 2 * MIB)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_who_gives_up_is_not_in_the_way_of_those_behind(*, is_cancelled: bool) -> None:
    budget = BodyBudget(MOST)
    hold(budget, LARGE)
    gone, next_one = Share(), Share()
    given_up, waiting = budget.queue(gone, 4 * MIB), budget.queue(next_one, LARGE)
    if is_cancelled:
        given_up.cancel()
    else:
        given_up.set_result(False)
    async with asyncio.timeout(LIMIT):
        assert await waiting
    assert (gone.size, next_one.size) == (0, LARGE)


# --- over sockets ----------------------------------------------------------------------------------------------------

BIG = BODY + b" " * (3 * MIB // 2)


def tight(plan: Plan, **changes: object) -> Plan:
    """Room for one large body and a few small ones."""
    return with_server(plan, max_buffered_bytes=2 * MIB + 64 * 1024, **changes)


async def test_a_large_body_waits_for_the_call_before_it_and_small_ones_go_ahead(
    plan: Plan, upstream: ScriptedUpstream
) -> None:
    async with serving(tight(plan)) as served, await served.connect() as first, await served.connect() as second:
        first.send(request("POST", CHAT, body=BIG))
        wire, _ = await upstream.accept_request()
        second.send(request("POST", CHAT, body=BIG))
        asking = asyncio.ensure_future(served.ask(request("POST", CHAT, body=BODY)))
        small, got = await upstream.accept_request()
        assert got.body == BODY
        small.send(answer(b"small"))
        assert (await asking).body == b"small"
        assert upstream.accepted == 2
        wire.send(answer(b"first", "Connection: close"))
        assert (await first.read_answer()).body == b"first"
        assert (await small.read_request()).body == BIG  # on the connection that is free
        small.send(answer(b"second"))
        assert (await second.read_answer()).body == b"second"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_finds_no_room_is_refused_until_later(
    plan: Plan, upstream: ScriptedUpstream, *, is_chunked: bool
) -> None:
    # Longer than a busy machine stands still while the first body comes.
    async with serving(tight(plan, body_timeout=2)) as served, await served.connect() as first:
        first.send(request("POST", CHAT, body=BIG))
        wire, _ = await upstream.accept_request()
        content = request("POST", CHAT, body=BIG)
        if is_chunked:
            content = request("POST", CHAT, "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            content += chunk(BIG)
        got = await served.ask(content)
        assert (got.status, got.find(b"retry-after")) == (503, b"2")
        assert b"server.max_buffered_bytes" in got.body
        wire.send(answer(b"first"))
        assert (await first.read_answer()).body == b"first"
        assert upstream.accepted == 1


async def test_a_client_that_leaves_while_its_body_waits_takes_no_room(plan: Plan, upstream: ScriptedUpstream) -> None:
    async with serving(tight(plan)) as served, await served.connect() as first:
        first.send(request("POST", CHAT, body=BIG))
        wire, _ = await upstream.accept_request()
        gone = await served.connect()
        gone.send(request("POST", CHAT, body=BIG))
        await served.ask(request("GET", "/-/live"))  # by then the one before waits
        gone.reset()
        async with asyncio.timeout(LIMIT):
            while len(served.state.connections) > 1:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        wire.send(answer(b"first"))
        assert (await first.read_answer()).body == b"first"
        assert upstream.accepted == 1
        first.send(request("POST", CHAT, body=BIG))
        assert (await wire.read_request()).body == BIG
        wire.send(answer(b"again"))
        assert (await first.read_answer()).body == b"again"


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_body_that_drips_has_an_end(plan: Plan, upstream: ScriptedUpstream, path: str) -> None:
    """It is never silent, for a byte comes whenever the server looks for one."""
    upstream.answer_with(answer(b"never"))
    limits = with_server(plan, body_timeout=0.2, body_min_rate=2**40)
    async with serving(limits) as served, await served.connect() as client:
        client.send(request("POST", path, body=bytes(MIB))[:-MIB])
        reading = asyncio.ensure_future(client.read_to_end())
        while not reading.done():
            client.send(b"x")
            await asyncio.wait({reading}, timeout=0.01)
        content = await reading
        if path == CHAT:
            assert b"HTTP/1.1 408 " in content
            assert b"server.body_min_rate" in content
        else:
            assert content == b""
            assert (await served.outcome()).completeness == "aborted"


@pytest.mark.parametrize(
    ("received", "waited", "seconds"),
    [(0, 0.0, 60.0), (0, 59.0, 1.0), (0, 60.0, 0.0), (1000, 60.0, 1.0), (100_000, 90.0, 60.0), (100_000, 159.0, 1.0)],
)
def test_how_long_more_of_a_body_may_take(received: int, waited: float, seconds: float) -> None:
    policy = ServerPolicy(body_timeout=60.0, body_min_rate=1000)
    assert compute_patience(policy, received, waited) == seconds
    assert compute_patience(replace(policy, body_min_rate=0), received, waited) == 60.0
