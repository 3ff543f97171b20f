"""Waiting for the log: bounded, and while it is behind nobody waits twice."""

import asyncio

import pytest
from msgspec.structs import replace

from proxy.engine.durability import DurabilityWaiter
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Opening
from tests.support.engine import HEALTHY, LIMIT, Commit, FakeArchive, make_opening

LONG, SHORT = 60_000, 10


async def pass_gate(gate: DurabilityWaiter, commit: "asyncio.Future[bool]") -> None:
    async with asyncio.timeout(LIMIT):
        await gate.wait(commit)


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_wait_ends_when_the_commit_is_durable_or_lost(is_durable: bool) -> None:
    gate, commit = DurabilityWaiter(FakeArchive(), LONG), Commit()
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        waiting = group.create_task(gate.wait(commit))
        await commit.awaited.wait()
        assert not waiting.done()
        commit.set_result(is_durable)
    assert gate.problem == ""


async def test_a_commit_that_is_done_is_not_waited_for() -> None:
    commit = Commit()
    commit.set_result(True)
    await pass_gate(DurabilityWaiter(FakeArchive(), LONG), commit)
    assert not commit.awaited.is_set()


async def make_late(gate: DurabilityWaiter) -> Commit:
    """Have a commit come too late."""
    commit = Commit()
    await pass_gate(gate, commit)
    assert not commit.done()
    return commit


async def settle(commit: Commit, is_durable: bool) -> None:
    """Resolve a commit and let everybody who listens know."""
    commit.set_result(is_durable)
    await asyncio.wait((commit,))


async def is_waited_for(gate: DurabilityWaiter) -> bool:
    """Whether the gate holds back for a further commit."""
    commit = Commit()
    waiting = asyncio.create_task(gate.wait(commit))
    await commit.awaited.wait()
    await asyncio.wait((waiting,), timeout=0)
    is_held = not waiting.done()
    commit.set_result(True)
    await asyncio.wait((waiting,))
    return is_held


async def test_a_late_commit_is_waited_for_a_bounded_time_and_the_promise_is_then_suspended() -> None:
    gate = DurabilityWaiter(FakeArchive(), SHORT)
    await make_late(gate)
    assert "10 ms behind" in gate.problem


async def test_nobody_waits_again_while_the_late_commit_has_not_come() -> None:
    gate = DurabilityWaiter(FakeArchive(), SHORT)
    late = await make_late(gate)
    assert not await is_waited_for(gate)
    assert not late.done()


async def test_waiting_begins_again_when_the_late_commit_has_come() -> None:
    gate = DurabilityWaiter(FakeArchive(), 300)
    late = await make_late(gate)
    await settle(late, True)
    assert gate.problem == ""
    assert await is_waited_for(gate)


async def test_a_late_commit_that_is_lost_in_the_end_does_not_suspend_the_promise_for_ever() -> None:
    """With `on_failure: refuse` no later call would come that could show the log to be well again."""
    gate = DurabilityWaiter(FakeArchive(), SHORT)
    await settle(await make_late(gate), False)
    assert gate.problem == ""


async def test_what_is_needed_is_waited_for_though_the_log_is_behind() -> None:
    gate = DurabilityWaiter(FakeArchive(), SHORT)
    late = await make_late(gate)
    needed = Commit()
    waiting = asyncio.create_task(gate.confirm(needed, LIMIT))
    await needed.awaited.wait()
    assert not waiting.done()
    needed.set_result(True)
    assert await waiting
    assert not late.done()
    assert not await gate.confirm(Commit())


async def test_what_is_needed_is_not_waited_for_where_the_log_is_known_to_fail() -> None:
    archive = FakeArchive()
    archive.health = replace(HEALTHY, problem="disk full")
    async with asyncio.timeout(LIMIT):
        assert not await DurabilityWaiter(archive, SHORT).confirm(Commit(), 10 * LIMIT)


async def test_a_wait_that_gave_up_or_was_cancelled_leaves_the_commit_to_the_log() -> None:
    archive = FakeArchive()
    given_up = archive.append(make_opening())
    await pass_gate(DurabilityWaiter(archive, SHORT), given_up)
    left = Commit()
    waiting = asyncio.create_task(DurabilityWaiter(archive, LONG).wait(left))
    await left.awaited.wait()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert (given_up.cancelled(), left.cancelled()) == (False, False)
    archive.commit_of(Opening).set_result(True)


async def test_a_problem_of_the_log_is_told_first() -> None:
    archive = FakeArchive()
    archive.health = replace(HEALTHY, problem="disk full")
    assert DurabilityWaiter(archive, LONG).problem == "disk full"


async def is_released(gate: DurabilityWaiter, commit: "asyncio.Future[bool]") -> bool:
    """Whether what waits for a commit may go on, as the gate says in the end."""
    try:
        async with asyncio.timeout(LIMIT):
            await gate.pass_on(commit)
    except StoreUnavailable as error:
        assert "not recorded (store.on_failure)" in str(error)
        return False
    return True


async def test_a_strict_gate_releases_nothing_that_the_log_has_not_taken() -> None:
    for is_strict in (False, True):
        gate, lost = DurabilityWaiter(FakeArchive(), SHORT, is_strict=is_strict), Commit()
        lost.set_result(False)
        assert await is_released(gate, lost) is not is_strict
        assert await is_released(gate, Commit()) is not is_strict


async def test_a_strict_gate_waits_on_while_nothing_is_known_to_be_wrong() -> None:
    gate, commit = DurabilityWaiter(FakeArchive(), 1000, is_strict=True), Commit()
    waiting = asyncio.create_task(is_released(gate, commit))
    await asyncio.wait((waiting,), timeout=1.5)
    assert "1000 ms behind" in gate.problem  # so that others are refused meanwhile
    await settle(commit, True)
    assert await waiting


async def test_a_strict_gate_gives_up_at_once_where_the_log_is_known_to_fail() -> None:
    archive = FakeArchive()
    archive.health = replace(HEALTHY, problem="disk full")
    gate, commit = DurabilityWaiter(archive, SHORT, is_strict=True), Commit()
    assert not await is_released(gate, commit)
