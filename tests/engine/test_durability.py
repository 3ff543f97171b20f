"""Waiting for the log: bounded, and while it is behind nobody waits twice."""

import asyncio

import pytest
from msgspec.structs import replace

from proxy.engine.durability import CommitGate
from proxy.model.exchange import Opening
from tests.support.engine import HEALTHY, LIMIT, Commit, FakeArchive, make_opening

LONG, SHORT = 60_000, 10


async def pass_gate(gate: CommitGate, commit: "asyncio.Future[bool]") -> None:
    async with asyncio.timeout(LIMIT):
        await gate.wait(commit)


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_wait_ends_when_the_commit_is_durable_or_lost(is_durable: bool) -> None:
    gate, commit = CommitGate(FakeArchive(), LONG), Commit()
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        waiting = group.create_task(gate.wait(commit))
        await commit.awaited.wait()
        assert not waiting.done()
        commit.set_result(is_durable)
    assert gate.problem == ""


async def test_a_commit_that_is_done_is_not_waited_for() -> None:
    commit = Commit()
    commit.set_result(True)
    await pass_gate(CommitGate(FakeArchive(), LONG), commit)
    assert not commit.awaited.is_set()


async def make_late(gate: CommitGate) -> Commit:
    """Have a commit come too late."""
    commit = Commit()
    await pass_gate(gate, commit)
    assert not commit.done()
    return commit


async def settle(commit: Commit, is_durable: bool) -> None:
    """Resolve a commit and let everybody who listens know."""
    commit.set_result(is_durable)
    await asyncio.wait((commit,))


async def is_waited_for(gate: CommitGate) -> bool:
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
    gate = CommitGate(FakeArchive(), SHORT)
    await make_late(gate)
    assert "10 ms behind" in gate.problem


async def test_nobody_waits_again_while_the_late_commit_has_not_come() -> None:
    gate = CommitGate(FakeArchive(), SHORT)
    late = await make_late(gate)
    assert not await is_waited_for(gate)
    assert not late.done()


async def test_waiting_begins_again_when_the_late_commit_has_come() -> None:
    gate = CommitGate(FakeArchive(), 300)
    late = await make_late(gate)
    await settle(late, True)
    assert gate.problem == ""
    assert await is_waited_for(gate)


async def test_a_late_commit_that_is_lost_in_the_end_does_not_suspend_the_promise_for_ever() -> None:
    """With `on_failure: refuse` no later call would come that could show the log to be well again."""
    gate = CommitGate(FakeArchive(), SHORT)
    await settle(await make_late(gate), False)
    assert gate.problem == ""


async def test_a_wait_that_gave_up_or_was_cancelled_leaves_the_commit_to_the_log() -> None:
    archive = FakeArchive()
    given_up = archive.append(make_opening())
    await pass_gate(CommitGate(archive, SHORT), given_up)
    left = Commit()
    waiting = asyncio.create_task(CommitGate(archive, LONG).wait(left))
    await left.awaited.wait()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert (given_up.cancelled(), left.cancelled()) == (False, False)
    archive.commit_of(Opening).set_result(True)


async def test_a_problem_of_the_log_is_told_first() -> None:
    archive = FakeArchive()
    archive.health = replace(HEALTHY, problem="disk full")
    assert CommitGate(archive, LONG).problem == "disk full"
