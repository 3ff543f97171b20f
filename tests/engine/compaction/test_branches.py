"""Branches of which reports are made: apart from each other, and each one at a time."""

import asyncio
from dataclasses import replace as change
from typing import Any

from msgspec.structs import replace

from proxy.context.compaction.spans import MessageRange
from proxy.engine.compaction.branches import Branches, Making, is_one_branch
from proxy.engine.compaction.work import Latest, Wish
from tests.support.by_hand import make_compactor
from tests.support.compacting import FREE, Workshop, give_report, in_time
from tests.support.managing import Message, make_history

HISTORY = make_history(30, 1200)
SOFT, HARD = 17, 23


def leave(at: int, steps: int) -> list[Message]:
    """A branch that leaves the history behind so many steps."""
    return [*HISTORY[: 2 + 2 * at], {"role": "user", "content": "Not so."}, *HISTORY[2 + 2 * at : 2 + 2 * steps]]


async def make(shop: Workshop, messages: list[Message]) -> Latest:
    return await shop.look_at(messages)


def begin(branches: Branches, latest: Latest, upstream: str = "main", end: asyncio.Event | None = None) -> Making:
    """Something that is being made, until its end."""

    async def work() -> None:
        if end is not None:
            await end.wait()

    task = asyncio.get_running_loop().create_task(work())
    making = Making(latest.nodes, branches.name(latest), upstream, task)
    branches.enter(latest, making)
    return making


def test_a_branch_is_what_goes_on() -> None:
    a, b, c = b"a", b"b", b"c"
    assert is_one_branch([a], [a, b]) and is_one_branch([a, b], [a]) and is_one_branch([a], [a])
    assert not is_one_branch([a, b], [a, c])
    assert not is_one_branch([b], [a])


async def test_what_is_made_is_found_by_whatever_goes_on_and_forgotten_at_its_end() -> None:
    shop, branches = Workshop(), Branches()
    main, fork = await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    making = begin(branches, main)
    later, earlier = await make(shop, HISTORY[:24]), await make(shop, HISTORY[:10])
    assert [branches.find("s1", each.nodes) for each in (main, later, earlier)] == [making] * 3
    assert branches.find("s1", fork.nodes) is branches.find("other", main.nodes) is None
    other = begin(branches, fork, "local")
    assert (len(branches), branches.list_at("local"), branches.list_at("main")) == (2, [other], [making])
    await asyncio.wait((making.task, other.task))
    assert (len(branches), branches._making) == (0, {})


async def test_a_lease_is_named_by_what_no_report_is_of_and_nobody_else_here_shares() -> None:
    shop, branches = Workshop(), Branches()
    main, fork = await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    assert branches.name(main) == branches.name(fork) == f"summaries/s1/{main.nodes[0].hex()}"
    begin(branches, main)
    apart = 1 + 2 * 5  # the places count behind the system message
    assert branches.name(fork) == f"summaries/s1/{fork.nodes[apart].hex()}"
    summary = shop.drafter.put_together(await _plan(shop, main, 0, 5))
    fork.case.context.add_summary(summary)
    assert Branches().name(fork) == f"summaries/s1/{fork.nodes[5].hex()}"
    short = await make(shop, HISTORY[: 1 + summary.stop])
    assert Branches().name(short) == f"summaries/s1/{short.nodes[-1].hex()}"


async def _plan(shop: Workshop, latest: Latest, start: int, stop: int) -> Any:
    from_start = shop.worker._choose(latest, await shop.worker._survey(latest), (), is_needed=True)
    assert from_start is not None
    return replace(from_start, span=MessageRange(start, stop, 1000))


async def test_a_span_that_two_branches_share_is_reported_by_one() -> None:
    shop, branches = Workshop(), Branches()
    one = begin(branches, await make(shop, HISTORY[:20]))
    end = asyncio.Event()
    other = begin(branches, await make(shop, leave(5, 9)), end=end)
    assert branches.claim("s1", one, (0, b"last"))
    assert branches.claim("s1", one, (0, b"last"))
    assert not branches.claim("s1", other, (0, b"last"))
    assert branches.claim("s1", other, (0, b"another"))
    await asyncio.wait((one.task,))
    assert branches.claim("s1", other, (0, b"last"))
    end.set()
    await asyncio.wait((other.task,))


async def test_no_model_is_asked_for_what_another_branch_has_asked_one_for() -> None:
    shop, end = Workshop(), asyncio.Event()
    branches, main, fork = shop.worker._branches, await make(shop, HISTORY[:20]), await make(shop, leave(5, 9))
    one, other = begin(branches, main, end=end), begin(branches, fork, end=end)
    for each in (one, other):
        assert await shop.leases.acquire(each.lease, "me", 100)
    work = await _plan(shop, fork, 0, 5)
    other_work = replace(work, latest=main)
    assert await shop.worker._draft(work, is_needed=True) is not None
    assert await shop.worker._draft(other_work, is_needed=True) is None
    end.set()
    await asyncio.wait((one.task, other.task))
    assert await shop.worker._draft(work, is_needed=True) is None  # nobody is at it any more


async def test_what_was_in_vain_is_so_for_its_branch_alone_until_that_has_grown() -> None:
    shop, branches = Workshop(), Branches()
    main, later = await make(shop, HISTORY[:20]), await make(shop, HISTORY[:24])
    fork = await make(shop, leave(5, 9))
    branches.note_vain(main, later.case.path.tokens)
    assert branches.is_in_vain(main)
    assert not branches.is_in_vain(later)
    assert not branches.is_in_vain(fork)
    branches.note_vain(fork, 1_000_000)
    branches.note_vain(later, 1_000_000)
    assert branches.is_in_vain(later) and branches.is_in_vain(fork)
    assert not branches.is_in_vain(main)  # its note was the later one's, who has another
    for step in range(6, 14):
        branches.note_vain(await make(shop, leave(step, 15)), 1_000_000)
    assert not branches.is_in_vain(later) and not branches.is_in_vain(fork)


async def hang(shop: Workshop) -> None:
    """Up to where a summary of the main branch is asked for that never comes."""
    for steps in (*range(1, 4), SOFT):
        await shop.call(HISTORY[: 2 + 2 * steps])
    await in_time(shop.model.was_asked.wait())


async def test_a_branch_is_reported_while_another_one_is() -> None:
    shop = Workshop(lambda body: None)
    await hang(shop)
    shop.model.summarise = give_report
    shop.model.was_asked.clear()
    await shop.call(leave(3, 11))
    await shop.call(leave(3, SOFT))
    await in_time(shop.model.was_asked.wait())
    (other,) = [each for each in shop.worker._branches.list_at("main") if len(each.nodes) > 2 * SOFT + 1]
    assert len(shop.leases._held) == 2
    await in_time(asyncio.wait((other.task,)))
    (summary,) = shop.summaries
    assert summary.last in set((await shop.look_at(leave(3, SOFT))).nodes)
    assert len(shop.leases._held) == len(shop.worker._branches) == 1
    shop.worker.stop_at("main")
    await shop.settle()


async def test_a_call_above_the_high_mark_waits_for_its_own_branch_only() -> None:
    shop = Workshop(lambda body: None, change(FREE, hard_wait_seconds=3600.0))
    await hang(shop)
    await in_time(shop.call(leave(3, HARD)))
    waiting = asyncio.create_task(shop.call(HISTORY[: 2 + 2 * HARD]))
    done, _ = await asyncio.wait((waiting,), timeout=0)
    assert not done
    shop.worker.stop_at("main")
    await in_time(waiting)
    shop.worker.stop_at("main")
    await shop.settle()


async def test_a_person_has_a_branch_compacted_while_another_one_is_reported() -> None:
    shop = Workshop(lambda body: None)
    await hang(shop)
    shop.model.summarise = give_report
    await shop.call(leave(3, 12))
    found = await in_time(make_compactor(shop).compact(shop.session, Wish()))
    assert found.epoch is not None
    assert found.reason == ""
    assert len(shop.worker._branches) == 1
    shop.worker.stop_at("main")
    await shop.settle()
