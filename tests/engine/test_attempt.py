"""`attempt`: an exception is passed on to a function and not raised; a cancellation is."""

import asyncio

import pytest

from proxy.engine.runtime import attempt


async def fail(error: BaseException) -> int:
    raise error


async def test_what_comes_of_work_is_returned() -> None:
    async def work() -> int:
        return 7

    noted: list[Exception] = []
    assert (await attempt(work(), noted.append), noted) == (7, [])


async def test_a_fault_is_noted_and_goes_no_further() -> None:
    noted: list[Exception] = []
    error = KeyError("x")
    assert await attempt(fail(error), noted.append) is None
    assert noted == [error]


async def test_who_is_told_to_end_ends() -> None:
    noted: list[Exception] = []
    with pytest.raises(asyncio.CancelledError):
        await attempt(fail(asyncio.CancelledError()), noted.append)
    assert noted == []
