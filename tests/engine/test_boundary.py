"""A fault of ours ends where it is noted; what is no fault goes on."""

import asyncio

import pytest

from proxy.engine.boundary import attempt, attempt_now


async def fail(error: BaseException) -> int:
    raise error


async def test_what_comes_of_work_is_returned() -> None:
    async def work() -> int:
        return 7

    noted: list[Exception] = []
    assert (await attempt(work(), noted.append), attempt_now(lambda: 8, noted.append), noted) == (7, 8, [])


async def test_a_fault_is_noted_and_goes_no_further() -> None:
    noted: list[Exception] = []
    error = KeyError("x")
    assert await attempt(fail(error), noted.append) is None
    assert attempt_now(lambda: 1 // 0, noted.append) is None
    assert noted[0] is error
    assert isinstance(noted[1], ZeroDivisionError)


async def test_who_is_told_to_end_ends() -> None:
    noted: list[Exception] = []
    with pytest.raises(asyncio.CancelledError):
        await attempt(fail(asyncio.CancelledError()), noted.append)
    assert noted == []
