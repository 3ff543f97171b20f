"""Summaries of long sessions and of several branches: merged, made again, shared, and each covers what it says."""

import asyncio
import itertools
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from proxy.context.compaction.spans import compute_ranks
from proxy.model.epoch import Summary
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from tests.support.compacting import FREE, REPORT, Workshop, fail, give_report, list_reports, say
from tests.support.managing import MODEL, Message, make_history
from tests.support.summaries import list_leaves

HISTORY = make_history(80, 1200)
SOFT, HARD = 17, 23
APART = replace(FREE, condensation=False)


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def reach(shop: Workshop, steps: int, start: int = 1) -> None:
    for each in range(start, steps + 1):
        await shop.ask(until(each))


def give_long_report(body: bytes) -> bytes:
    """A model whose reports of messages fill half of the room of all, and whose merged ones are short."""
    if b"one report in place of several" in body:
        return give_report(body)
    found = "".join(f"- Part {len(body)}.{i} was looked at and is as it should be.\n" for i in range(40))
    return say(f"{REPORT}\n## Discoveries\n{found}", sent=len(body) // 4)


async def reach_two(shop: Workshop) -> int:
    """Go on until there are two summaries of messages, which are too much together; how many steps that took."""
    for steps in range(1, 80):
        await shop.ask(until(steps))
        if sum(each.kind == "leaf" for each in shop.summaries) == 2:
            return steps
    raise AssertionError("no second summary came")


def check_covers(summaries: list[Summary], raws: list[bytes], originals: dict[str, tuple[bytes, ...]]) -> None:
    """Each expands to leaves without a gap, and to its messages and nothing else."""
    known = {each.id: each for each in summaries}
    for each in summaries:
        leaves = list_leaves(each, known)
        ends = [leaf.stop for leaf in leaves]
        assert [leaf.start for leaf in leaves] == [each.start, *ends[:-1]]
        assert ends[-1] == each.stop
        assert originals[each.id] == tuple(raws[each.start : each.stop])


@pytest.mark.no_cover
@pytest.mark.parametrize(("turns", "every", "least"), [(80, 1, 5), (100, 2, 4)])
async def test_in_a_long_session_the_graph_stays_shallow_and_every_summary_covers_its_messages(
    turns: int, every: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long turns that are asked for one by one: epochs open as they are due. Or several at once: these come late."""
    monkeypatch.setattr("proxy.engine.call.response_reader.GATHER_SECONDS", 0)  # else each turn waits for it
    shop, history = Workshop(), make_turns(turns)
    for turn in range(every, turns + 1, every):
        await shop.ask(history[: 2 * turn - 1])
    summaries = shop.summaries
    leaves = [each for each in summaries if each.kind == "leaf"]
    assert len(leaves) > least
    assert len(summaries) >= len(leaves) + 4 * least // 12
    ranks = compute_ranks(summaries)
    assert max(ranks.values()) <= math.log(len(leaves), 4) + 2
    request = await shop.read_state(history)
    live = shop.context.list_summaries(request.nodes, MODEL)
    assert live[0].start == 0
    assert all(one.stop == other.start for one, other in itertools.pairwise(live))
    raws = request.state.request.list_raws()
    originals = {each.id: (await shop.log.load_original(each.id)).messages for each in summaries}
    check_covers(summaries, raws, originals)
    assert (await shop.log.verify()).faults == ()


def make_turns(count: int) -> list[Message]:
    """Turns of a user and an assistant."""
    messages: list[Message] = [
        message
        for i in range(count)
        for message in (
            {"role": "user", "content": f"Question {i}: what does part {i} do, and why does it? " * 16},
            {"role": "assistant", "content": f"Part {i} computes value {i}. It was written for reason {i}. " * 16},
        )
    ]
    return messages[:-1]


async def test_merging_has_so_many_rounds() -> None:
    for rounds, kinds in ((0, {"leaf"}), (1, {"leaf", "condensed"})):
        shop = Workshop(give_long_report, replace(FREE, max_rounds=rounds))
        await reach_two(shop)
        assert {each.kind for each in shop.summaries} == kinds


async def test_what_is_no_smaller_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.compaction.worker.is_merge_smaller", lambda run, tokens: False)
    shop = Workshop(give_long_report)
    await reach_two(shop)
    assert {each.kind for each in shop.summaries} == {"leaf"}
    assert len(shop.model.asked) == len(shop.summaries) + 1


async def test_what_was_merged_without_a_model_is_merged_again() -> None:
    shop = Workshop(lambda body: fail(body) if b"one report in place of several" in body else give_long_report(body))
    steps = await reach_two(shop)
    (poor,) = (each for each in shop.summaries if each.kind == "condensed")
    assert (poor.level, poor.is_provisional) == (3, True)
    shop.model.summarise = give_report
    shop.clock.advance(3600)
    await reach(shop, steps + 19, steps + 1)
    (better,) = (each for each in shop.summaries if poor.id in each.supersedes)
    assert (better.level, better.parents, better.kind) == (1, poor.parents, "condensed")
    assert (await shop.log.verify()).faults == ()


async def test_what_it_was_made_of_must_be_known_to_be_merged_again() -> None:
    shop = Workshop()
    await reach(shop, SOFT)
    (leaf,) = shop.summaries
    request = await shop.read_state(until(SOFT))
    index = await shop.worker.index_conversation(request)
    lost = msgspec.structs.replace(leaf, id="x", kind="condensed", level=3, is_provisional=True, parents=("y",))
    assert await shop.worker.choose_repeat(request, index, [lost]) is None


async def test_what_nobody_is_shown_is_not_merged() -> None:
    shop = Workshop(fail)
    for steps in range(1, 60):
        shop.clock.advance(3600)
        await shop.ask(until(steps))
    assert len(shop.summaries) > 2
    assert {(each.kind, each.level) for each in shop.summaries} == {("leaf", 3)}


async def test_a_summary_is_used_on_every_branch_with_its_messages_and_on_no_other() -> None:
    shop = Workshop(policy=APART)
    await reach(shop, SOFT)
    (summary,) = shop.summaries
    other: list[Message] = [*until(SOFT - 1), {"role": "user", "content": "Another way, please."}]
    sent = await shop.ask([*other, *HISTORY[2 + 2 * SOFT : 2 + 2 * 24]])
    assert [each["content"] for each in list_reports(sent)] == [summary.text]
    early = [*until(5), {"role": "user", "content": "No, not so."}, *HISTORY[12:60]]
    assert summary.text not in {each["content"] for each in await shop.ask(early)}


async def test_a_summary_is_used_for_another_model() -> None:
    shop = Workshop(policy=APART)
    await reach(shop, SOFT)
    (summary,) = shop.summaries
    await shop.ask(until(HARD), model="small")
    (epoch,) = shop.epochs
    assert epoch.view == "small"
    assert summary.id in epoch.edits.decode()


async def test_after_a_restart_summaries_are_there_again(tmp_path: Path) -> None:
    policy = StorePolicy(tmp_path / "log.db")
    log = open_sqlite(policy, asyncio.get_running_loop())
    shop = Workshop(archive=log)
    await reach(shop, SOFT)
    await shop.log.close()
    again = open_sqlite(policy, asyncio.get_running_loop())
    shop.archive = again  # type: ignore[assignment]
    second = Workshop(lambda body: None, replace(FREE, auto=False), after=shop)
    sent = await second.ask(until(HARD))
    assert len(list_reports(sent)) == 1
    third = Workshop(lambda body: None, replace(FREE, auto=False), after=second)
    assert await third.ask(until(HARD)) == sent
    assert (await again.verify()).faults == ()
    await again.close()


async def test_after_a_restart_a_branch_has_what_was_merged_on_another_one() -> None:
    shop = Workshop(give_long_report)
    await reach_two(shop)
    first, _, merged = shop.summaries
    assert merged.parents[0] == first.id
    nodes = (await shop.read_state([*HISTORY[: 1 + first.stop], {"role": "user", "content": "Not so."}])).nodes
    again = Workshop(after=shop)
    for each in (shop, again):
        context = await each.memory.contexts.load(shop.session)
        assert context.list_summaries(nodes, MODEL) == [first]
        assert context.list_summaries((await shop.read_state(HISTORY)).nodes, MODEL) == [merged]


async def test_behind_the_call_that_opened_an_epoch_nothing_is_asked() -> None:
    """Most of what is to be reported is in the ledger only by then."""
    shop = Workshop(policy=APART)
    await reach(shop, 70)
    assert len(shop.summaries) > 2
    assert {each.exchange for each in shop.summaries}.isdisjoint({each.exchange for each in shop.epochs})


@pytest.mark.parametrize(("seconds", "kinds"), [(100, {"leaf", "condensed"}), (121, {"leaf"})])
async def test_each_question_has_the_time_of_a_lease_and_none_is_asked_when_it_is_lost(
    seconds: int, kinds: set[str]
) -> None:
    shop = Workshop()

    def take_time(body: bytes) -> bytes:
        shop.clock.advance(seconds)
        return give_long_report(body)

    shop.model.summarise = take_time
    await reach_two(shop)
    assert {each.kind for each in shop.summaries} == kinds
    assert shop.leases.held == {}
