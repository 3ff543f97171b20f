"""Leftovers: what an earlier process recorded and did not read is read by the next, before it takes calls."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.model.errors import StoreUnavailable
from proxy.model.events import ReadingFailed
from proxy.model.exchange import Opening, Outcome, Reading, Round
from proxy.model.lineage import Reply, Step
from proxy.model.log import UnreadRow
from tests.engine.lineage.talk import CHAIN, SHORT, Desk, bot, user
from tests.support.engine import JSON, ScriptedResponse

LOGGER = "palimpsest.leftovers"


def kill(desk: Desk, **policy: Any) -> Desk:
    """Another process over the log of one that has not read its last answers."""
    desk.engine.tasks.cancel()
    return Desk(desk, **policy)


async def fetch(desk: Desk, content: bytes, status: int = 200) -> None:
    """A call that is answered with these bytes."""
    desk.upstream.answer(ScriptedResponse(content, status=status, headers=JSON, ending="whole"))
    await desk.call([user("a")])


def tell_failures(desk: Desk) -> list[str]:
    return [event.exchange for event in desk.engine.events if isinstance(event, ReadingFailed)]


@pytest.mark.parametrize("name", ["", "n"])
async def test_a_conversation_goes_on_behind_an_answer_that_was_not_read(name: str) -> None:
    desk = Desk()
    await desk.send(user("a"), name=name)
    first = desk.session
    desk = kill(desk)
    await desk.engine.leftovers.read()
    desk.assert_nothing_in_mind()
    (reading,), (reply,) = desk.engine.archive.of(Reading), desk.engine.archive.of(Reply)
    assert (reading.exchange, reading.finish, reply.exchange) == ("x1", "stop", "x1")
    assert desk.engine.archive.flushed.is_set()
    step = await desk.send(*CHAIN, name=name)
    assert (desk.session, step.relation, step.base) == (first, "append", 2)
    await desk.settle()


async def test_what_was_read_before_is_not_read_again() -> None:
    desk = Desk()
    await desk.send(user("a"))
    await desk.settle()
    for _ in range(2):
        desk = Desk(desk)
        await desk.engine.leftovers.read()
    assert len(desk.engine.archive.of(Reading)) == len(desk.engine.archive.of(Reply)) == 1


async def test_all_answers_of_a_conversation_are_read_in_a_memory_that_holds_but_one() -> None:
    desk = Desk()
    for who in "ab":
        await desk.send(user(who))
        await desk.send(user(who), bot(SHORT), user("more"))
    before = len(desk.engine.archive.of(Reply))
    desk = kill(desk, cache_bytes=400)
    await desk.engine.leftovers.take_up()
    assert len(desk.engine.lineage.index) == 1
    await desk.settle()
    assert before < len(desk.engine.archive.of(Reply)) == 4
    assert len(desk.engine.lineage.index) == 1
    sessions = {opening.exchange: opening.session.id for opening in desk.engine.archive.of(Opening)}
    for who, exchange in (("a", "x2"), ("b", "x4")):
        await desk.send(user(who), bot(SHORT), user("more"), bot(SHORT), user("and more"))
        assert desk.session == sessions[exchange]
    await desk.settle()


async def test_a_request_that_shows_an_answer_has_it_read_first_where_time_was_short() -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    desk = kill(desk)
    assert await desk.engine.leftovers.take_up() == {"x1"}
    assert desk.engine.archive.of(Reply) == []
    await desk.send(*CHAIN)
    assert desk.session == first
    await desk.settle()


async def test_an_answer_to_a_request_without_a_place_is_read_and_placed_nowhere() -> None:
    desk = Desk(infer=False)
    await fetch(desk, b'{"choices":[]}')
    assert desk.engine.archive.of(Step) == []
    desk = kill(desk, infer=False)
    await desk.engine.leftovers.read()
    assert len(desk.engine.archive.of(Reading)) == 1
    assert desk.engine.archive.of(Reply) == []


def spy(monkeypatch: pytest.MonkeyPatch, of: object, method: str) -> list[tuple[Any, ...]]:
    """Note the arguments of each call of a method."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(of, method)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(of, method, call)
    return calls


async def test_what_cannot_be_read_stays_unread_and_its_number_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", LOGGER)
    desk = Desk()
    for _ in range(3):
        await fetch(desk, b"<html>", status=502)
    await desk.send(user("b"))
    desk = kill(desk)
    begun, ended = spy(monkeypatch, desk.engine.bus, "subscribe"), spy(monkeypatch, desk.engine.bus, "unsubscribe")
    await desk.engine.leftovers.read()
    assert [subscriber for _, subscriber in begun] == [subscriber for (subscriber,) in ended] != []
    assert [reading.exchange for reading in desk.engine.archive.of(Reading)] == ["x4"]
    assert tell_failures(desk) == ["x3", "x2", "x1"]
    assert caplog.messages == [
        "3 responses from before the start cannot be read and stay unread; the first: ValueError: the answer is not"
        " a JSON object"
    ]
    desk.assert_nothing_in_mind()
    caplog.clear()
    await fetch(desk, b"<html>", status=502)
    await desk.settle()
    assert caplog.messages == []


def answer_with(desk: Desk, *rows: UnreadRow) -> asyncio.Event:
    """Have the log answer, once it is told to, that these are unread."""
    told = asyncio.Event()

    async def list_unread() -> Sequence[UnreadRow]:
        await told.wait()
        return rows

    desk.engine.archive.list_unread = list_unread  # type: ignore[assignment]
    return told


def fail_with(desk: Desk, error: Exception) -> None:
    """Have the log not answer."""

    async def list_unread() -> Sequence[UnreadRow]:
        raise error

    desk.engine.archive.list_unread = list_unread  # type: ignore[assignment]


async def test_an_answer_in_a_format_of_another_version_stays_unread() -> None:
    desk = Desk()
    await desk.send(user("a"))
    (row,) = await desk.engine.archive.list_unread()
    desk = kill(desk)
    answer_with(desk, replace(row, wire="telepathy")).set()
    await desk.engine.leftovers.read()
    assert (desk.engine.archive.of(Reading), tell_failures(desk)) == ([], [])
    desk.assert_nothing_in_mind()


async def test_of_several_rounds_of_an_exchange_the_last_is_read_and_nothing_is_left_in_mind() -> None:
    desk = Desk()
    await desk.send(user("a"))
    (row,) = await desk.engine.archive.list_unread()
    desk = kill(desk)
    answer_with(desk, replace(row, k=1), row).set()
    await desk.engine.leftovers.read()
    assert [reading.k for reading in desk.engine.archive.of(Reading)] == [1]
    desk.assert_nothing_in_mind()


async def test_where_the_log_does_not_say_what_goes_before_an_answer_stays_unread() -> None:
    desk = Desk()
    await desk.send(user("a"))
    first = desk.session
    desk = kill(desk)
    desk.engine.archive.refuses_recall = True
    await desk.engine.leftovers.read()
    assert desk.engine.archive.of(Reading) == []
    desk.assert_nothing_in_mind()
    desk = kill(desk)
    desk.engine.archive.refuses_recall = False
    await desk.engine.leftovers.read()
    await desk.send(*CHAIN)
    assert desk.session == first
    await desk.settle()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable("no disk"), "responses from before the start stay unread: no disk"),
        (IndexError("damaged"), "a task failed"),
    ],
)
async def test_a_log_that_cannot_be_read_stops_no_start(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    fail_with(desk, error)
    await desk.engine.leftovers.read()
    await desk.settle()
    assert caplog.messages == [said]


async def test_a_start_waits_for_a_bounded_time_and_what_is_left_is_read_later() -> None:
    desk = Desk()
    await desk.send(user("a"))
    rows = await desk.engine.archive.list_unread()
    desk = kill(desk)
    told = answer_with(desk, *rows)
    await desk.engine.leftovers.read(most_seconds=0)
    assert desk.engine.archive.of(Reading) == []
    told.set()
    await desk.settle()
    assert len(desk.engine.archive.of(Reply)) == 1


async def test_an_answer_to_a_call_of_our_own_is_read_and_has_no_place_in_the_conversation() -> None:
    desk = Desk()
    await desk.send(user("a"))
    await desk.settle()
    archive = desk.engine.archive
    (opening,) = archive.of(Opening)
    auxiliary = msgspec.structs.replace(opening, exchange="a1", kind="auxiliary")
    outcome = msgspec.structs.replace(archive.of(Outcome)[0], exchange="a1")
    assert await archive.append(auxiliary, Round("a1", 0, opening.session.upstream, None), outcome)
    desk = Desk(desk)
    await desk.engine.leftovers.read()
    assert [reading.exchange for reading in desk.engine.archive.of(Reading)] == ["x1", "a1"]
    assert [reply.exchange for reply in desk.engine.archive.of(Reply)] == ["x1"]
    step = await desk.send(*CHAIN)
    assert (step.relation, step.base) == ("append", 2)
    await desk.settle()
