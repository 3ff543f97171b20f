"""Closing a connection whose client takes nothing; how one that has left is noticed, tests/server/test_client.py."""

import asyncio
from typing import cast

import pytest

from proxy.server.ending import Ending
from tests.support.loops import put_forward


class Transport:
    """One of which some bytes have not left yet."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.done: list[str] = []

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.done

    def get_write_buffer_size(self) -> int:
        return self.left


@pytest.mark.parametrize(("left", "done"), [(0, ["close"]), (5, ["close", "abort"])])
async def test_a_connection_is_not_held_by_a_client_that_takes_nothing(left: int, done: list[str]) -> None:
    transport = Transport(left)
    ending = Ending(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    ending.close()
    await put_forward(9)
    assert transport.done == ["close"]
    await put_forward(1)
    assert transport.done == done


async def test_a_connection_that_is_closed_is_watched_no_more() -> None:
    transport = Transport(5)
    ending = Ending(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    for _ in range(2):
        ending.close()
    ending.cancel()
    await put_forward(10)
    assert transport.done == ["close", "close"]


async def test_a_client_that_takes_something_has_its_time_anew_and_none_while_nothing_is_to_end() -> None:
    transport = Transport(5)
    ending = Ending(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    ending.hurry()
    ending.relax()
    await put_forward(10)
    assert transport.done == []
    ending.close()
    ending.relax()
    await put_forward(10)
    assert transport.done == ["close", "abort"]


async def test_a_client_that_takes_a_little_at_a_time_is_not_given_up() -> None:
    transport = Transport(50)
    ending = Ending(asyncio.get_running_loop(), cast(asyncio.Transport, transport), 10)
    ending.hurry()
    for _ in range(25):
        transport.left -= 1
        await put_forward(1)
    assert transport.done == []
    for _ in range(2):
        await put_forward(10)
    assert transport.done == ["abort"]
