"""Lineage and the log: it is asked once for what memory lacks, after a restart or a loss, and waited for in order."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from proxy.model.exchange import Opening, SessionKey
from proxy.model.lineage import StoredSession
from tests.engine.lineage.talk import CHAIN, KEEP, SHORT, Message, Setup, bot, user
from tests.support.engine import wait_out


@pytest.mark.parametrize("name", ["", "n"])
async def test_a_conversation_goes_on_after_a_restart(name: str) -> None:
    setup = Setup()
    await setup.send(user("a"), name=name)
    first = setup.session
    await setup.settle()
    setup = Setup(setup)
    step = await setup.send(*CHAIN, name=name)
    assert (setup.session, step.relation, step.base) == (first, "append", 2)
    await setup.send(*CHAIN, name=name)
    assert (setup.session, setup.lineage.relation, setup.lineage.nodes) == (first, "retry", ())
    assert len(setup.engine.archive.recalled) == 1


async def test_a_named_session_is_remembered_after_a_restart_whatever_is_sent_first() -> None:
    setup = Setup()
    await setup.send(user("a"), name="n")
    await setup.settle()
    setup = Setup(setup)
    step = await setup.send(user("a"), name="n")
    assert (step.relation, step.nodes) == ("retry", ())


async def test_by_its_chain_the_log_is_asked_only_for_what_shows_an_answer() -> None:
    setup = Setup()
    setup.engine.lineage.index.clear()
    await setup.send(user("a"), user("b"), name="n")
    first = setup.session
    await setup.send(*CHAIN, name="m")
    (nodes, _, _) = setup.engine.archive.recalled[1]
    assert setup.engine.archive.recalled == [((), (), first), (nodes, (), setup.session)]
    assert len(nodes) == 3


async def test_conversations_go_on_in_a_memory_that_holds_but_one() -> None:
    setup = Setup(cache_bytes=400)
    sessions: dict[str, set[str]] = {}
    for turn in range(3):
        for who in "abcd":
            history = [each for i in range(turn) for each in (user(f"{who}{i}"), bot(f"{who} said"))]
            await setup.send(*history, user(f"{who}{turn}"), answer=bot(f"{who} said"))
            sessions.setdefault(who, set()).add(setup.session)
            await setup.settle()
            assert len(setup.engine.lineage.index) == 1
    assert sorted(map(len, sessions.values())) == [1, 1, 1, 1]
    assert len(set.union(*sessions.values())) == 4


async def test_an_answer_to_a_session_that_was_dropped_meanwhile_is_found() -> None:
    setup = Setup(cache_bytes=400)
    await setup.send(user("a"))
    first = setup.session
    await setup.send(user("b"))
    assert len(setup.engine.lineage.index) == 1
    await setup.send(*CHAIN)
    assert setup.session == first
    await setup.settle()
    setup.assert_nothing_in_mind()


async def test_what_was_asked_before_is_asked_again_when_memory_was_lost() -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    await setup.settle()
    setup = Setup(setup)
    await setup.send(*CHAIN)
    setup.engine.lineage.index.clear()
    await setup.send(*CHAIN)
    assert setup.session == first


async def test_where_the_log_cannot_be_read_a_call_goes_on_in_a_session_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    await setup.settle()
    setup = Setup(setup)
    setup.engine.archive.refuses_recall = True
    assert (await setup.send(*CHAIN)).relation == "root"
    assert setup.session != first
    setup.engine.archive.refuses_recall = False
    await setup.settle()
    await setup.send(*CHAIN, bot(SHORT), user("c"))
    assert [record.getMessage()[:35] for record in caplog.records] == ["the log did not say in time which s"]


async def test_the_log_is_asked_once_about_a_history_that_it_does_not_know() -> None:
    setup = Setup()
    setup.engine.lineage.index.clear()
    for _ in range(3):
        await setup.send(*CHAIN, status=429)
        await setup.settle()
    assert len(setup.engine.archive.recalled) == 1


async def test_what_the_log_has_lost_is_not_known_any_more() -> None:
    setup = Setup()
    await setup.send(user("a"), name="n")
    await setup.settle()
    setup.engine.archive.health = replace(setup.engine.archive.health, generation=1)
    setup.engine.archive.trees.by_id.clear()
    step = await setup.send(*CHAIN, name="n")
    assert (step.relation, step.base, len(step.nodes)) == ("root", 0, 3)


class Stalling:
    """A log that does not answer before it is told to."""

    def __init__(self, setup: Setup) -> None:
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self._recall = setup.engine.archive.recall
        setup.engine.archive.recall = self.recall  # type: ignore[method-assign]

    async def recall(
        self, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        self.asked.set()
        await self.told.wait()
        return await self._recall(nodes, fingerprints, session)


async def test_a_client_that_leaves_while_the_log_is_asked_takes_nothing_along() -> None:
    """What a request brought is not known before it is in the log: the next one brings it."""
    setup = Setup()
    setup.engine.lineage.index.clear()
    stalling = Stalling(setup)
    body = [*CHAIN, user("x" * 5000)]
    task = asyncio.create_task(setup.call(body))
    await stalling.asked.wait()
    task.cancel()
    await wait_out(task)
    stalling.told.set()
    assert setup.engine.archive.of(Opening) == []
    setup.assert_nothing_in_mind()
    await setup.send(*body)
    assert len(setup.engine.archive.opening.body.slices) == 4


async def test_a_record_that_is_lost_while_the_log_is_asked_is_brought_again() -> None:
    setup = Setup()
    big = user("x" * 5000)
    await setup.send(big)
    setup.engine.lineage.index.clear()
    stalling = Stalling(setup)
    task = asyncio.create_task(setup.send(big, bot(SHORT), user("b")))
    await stalling.asked.wait()
    setup.engine.archive.health = replace(setup.engine.archive.health, generation=1)
    stalling.told.set()
    await task
    assert len(setup.engine.archive.of(Opening)[-1].body.slices) == 3


async def test_two_requests_that_wait_for_the_log_are_placed_alike() -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    await setup.settle()
    setup = Setup(setup)
    stalling = Stalling(setup)
    tasks = [asyncio.create_task(setup.send(*CHAIN[:2], user(text))) for text in "bc"]
    await stalling.asked.wait()
    stalling.told.set()
    await asyncio.gather(*tasks)
    assert {opening.session.id for opening in setup.engine.archive.of(Opening)} == {first}


def act(i: int) -> Message:
    return {**KEEP, "tool_calls": [{**KEEP["tool_calls"][0], "id": f"call_Zk93fQpX{i}"}]}


EXAMPLES = [each for i in range(8) for each in (user(f"u{i}"), act(i))]
TALK = [*EXAMPLES, {"role": "tool", "tool_call_id": "call_Zk93fQpX7", "content": "seven"}]


async def test_a_history_that_is_sent_again_and_again_is_asked_for_once_however_many_were_dropped() -> None:
    setup = Setup(cache_bytes=8 * 80_000)  # room for some eight of them
    seen: set[str] = set()
    for i in range(40):
        await setup.send(*EXAMPLES, user("go"), answer=bot(f"answer {i}"))
        seen.add(setup.session)
        await setup.settle()
    forest = setup.engine.lineage.index
    assert (len(seen), len(forest) < 12, forest.is_complete) == (40, True, False)
    assert len(setup.engine.archive.recalled) == 1


async def test_what_goes_on_from_one_of_equal_histories_is_put_there() -> None:
    setup = Setup(cache_bytes=8 * 80_000)
    sessions: list[str] = []
    for i in range(40):
        await setup.send(*EXAMPLES, user("go"), answer=bot(f"answer {i}"))
        sessions.append(setup.session)
        await setup.settle()
    forest = setup.engine.lineage.index
    for i in (1, 39, 20, 1):
        before = len(setup.engine.archive.recalled)
        is_dropped = forest.get(sessions[i]) is None
        step = await setup.send(*EXAMPLES, user("go"), bot(f"answer {i}"), user("on"), answer=bot("done"))
        assert (setup.session, step.relation == "root") == (sessions[i], False)
        assert len(setup.engine.archive.recalled) - before == is_dropped
        await setup.settle()


async def test_the_answers_to_a_history_that_is_under_way_are_siblings_however_often_it_is_sent() -> None:
    setup = Setup()
    setup.engine.lineage.index.clear()  # the log is asked
    first = await setup.send(*TALK, user("go"), answer=bot("answer 0"))
    session = setup.session
    for i in range(1, 40):
        step = await setup.send(*TALK, user("go"), answer=bot(f"answer {i}"))
        assert (setup.session, step.relation, step.tip, step.nodes, step.fingerprints) == (
            session,
            "retry",
            first.tip,
            (),
            (),
        )
    for i in (39, 3):
        step = await setup.send(*TALK, user("go"), bot(f"answer {i}"), user("on"))
        assert (setup.session, step.relation, len(step.nodes)) == (session, "append", 1)
    assert len(setup.engine.archive.recalled) == 1


async def test_what_was_found_before_is_asked_for_again_once_it_was_dropped() -> None:
    setup = Setup(cache_bytes=400)
    await setup.send(user("a"))
    first = setup.session
    for i in range(3):
        await setup.send(*CHAIN, answer=bot("yes"))
        assert setup.session == first
        await setup.send(user(f"other {i}"))
        assert len(setup.engine.lineage.index) == 1
