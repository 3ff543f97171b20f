"""Leftovers: what an earlier process recorded and did not read is read by the next, before it takes calls."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.model.errors import StoreUnavailable
from proxy.model.events import CallUnreadableEvent
from proxy.model.exchange import Opening, Outcome, Reading, Round
from proxy.model.lineage import Lineage, Reply
from proxy.model.log import UnreadRow
from tests.engine.lineage.talk import CHAIN, SHORT, Setup, bot, user
from tests.support.engine import JSON, ScriptedResponse

LOGGER = "palimpsest.responses"


def kill(setup: Setup, **policy: Any) -> Setup:
    """Another process over the log of one that has not read its last answers."""
    setup.engine.tasks.cancel()
    return Setup(setup, **policy)


async def fetch(setup: Setup, content: bytes, status: int = 200) -> None:
    """A call that is answered with these bytes."""
    setup.upstream.answer(ScriptedResponse(content, status=status, headers=JSON, ending="whole"))
    await setup.call([user("a")])


def tell_failures(setup: Setup) -> list[str]:
    return [event.exchange for event in setup.engine.events if isinstance(event, CallUnreadableEvent)]


@pytest.mark.parametrize("name", ["", "n"])
async def test_a_conversation_goes_on_behind_an_answer_that_was_not_read(name: str) -> None:
    setup = Setup()
    await setup.send(user("a"), name=name)
    first = setup.session
    setup = kill(setup)
    await setup.engine.readings.read_left()
    setup.assert_nothing_in_mind()
    (reading,), (reply,) = setup.engine.archive.of(Reading), setup.engine.archive.of(Reply)
    assert (reading.exchange, reading.finish, reply.exchange) == ("x1", "stop", "x1")
    assert setup.engine.archive.flushed.is_set()
    step = await setup.send(*CHAIN, name=name)
    assert (setup.session, step.relation, step.base) == (first, "append", 2)
    await setup.settle()


async def test_what_was_read_before_is_not_read_again() -> None:
    setup = Setup()
    await setup.send(user("a"))
    await setup.settle()
    for _ in range(2):
        setup = Setup(setup)
        await setup.engine.readings.read_left()
    assert len(setup.engine.archive.of(Reading)) == len(setup.engine.archive.of(Reply)) == 1


async def test_all_answers_of_a_conversation_are_read_in_a_memory_that_holds_but_one() -> None:
    setup = Setup()
    for who in "ab":
        await setup.send(user(who))
        await setup.send(user(who), bot(SHORT), user("more"))
    before = len(setup.engine.archive.of(Reply))
    setup = kill(setup, cache_bytes=400)
    await setup.engine.readings.take_up_left()
    assert len(setup.engine.lineage.index) == 1
    await setup.settle()
    assert before < len(setup.engine.archive.of(Reply)) == 4
    assert len(setup.engine.lineage.index) == 1
    sessions = {opening.exchange: opening.session.id for opening in setup.engine.archive.of(Opening)}
    for who, exchange in (("a", "x2"), ("b", "x4")):
        await setup.send(user(who), bot(SHORT), user("more"), bot(SHORT), user("and more"))
        assert setup.session == sessions[exchange]
    await setup.settle()


async def test_a_request_that_shows_an_answer_has_it_read_first_where_time_was_short() -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    setup = kill(setup)
    assert await setup.engine.readings.take_up_left() == {"x1"}
    assert setup.engine.archive.of(Reply) == []
    await setup.send(*CHAIN)
    assert setup.session == first
    await setup.settle()


async def test_an_answer_to_a_request_without_a_place_is_read_and_placed_nowhere() -> None:
    setup = Setup(infer=False)
    await fetch(setup, b'{"choices":[]}')
    assert setup.engine.archive.of(Lineage) == []
    setup = kill(setup, infer=False)
    await setup.engine.readings.read_left()
    assert len(setup.engine.archive.of(Reading)) == 1
    assert setup.engine.archive.of(Reply) == []


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
    setup = Setup()
    for _ in range(3):
        await fetch(setup, b"<html>", status=502)
    await setup.send(user("b"))
    setup = kill(setup)
    begun, ended = spy(monkeypatch, setup.engine.bus, "subscribe"), spy(monkeypatch, setup.engine.bus, "unsubscribe")
    await setup.engine.readings.read_left()
    assert [subscriber for _, subscriber in begun] == [subscriber for (subscriber,) in ended] != []
    assert [reading.exchange for reading in setup.engine.archive.of(Reading)] == ["x4"]
    assert tell_failures(setup) == ["x3", "x2", "x1"]
    assert caplog.messages == [
        "3 responses from before the start cannot be read and stay unread; the log has them."
        " The first: ValueError: the answer is not a JSON object"
    ]
    setup.assert_nothing_in_mind()
    caplog.clear()
    await fetch(setup, b"<html>", status=502)
    await setup.settle()
    assert caplog.messages == []


def answer_with(setup: Setup, *rows: UnreadRow) -> asyncio.Event:
    """Have the log answer, once it is told to, that these are unread."""
    told = asyncio.Event()

    async def list_unread() -> Sequence[UnreadRow]:
        await told.wait()
        return rows

    setup.engine.archive.list_unread = list_unread  # type: ignore[assignment]
    return told


def fail_with(setup: Setup, error: Exception) -> None:
    """Have the log not answer."""

    async def list_unread() -> Sequence[UnreadRow]:
        raise error

    setup.engine.archive.list_unread = list_unread  # type: ignore[assignment]


async def test_an_answer_in_a_format_of_another_version_stays_unread() -> None:
    setup = Setup()
    await setup.send(user("a"))
    (row,) = await setup.engine.archive.list_unread()
    setup = kill(setup)
    answer_with(setup, replace(row, wire="telepathy")).set()
    await setup.engine.readings.read_left()
    assert (setup.engine.archive.of(Reading), tell_failures(setup)) == ([], [])
    setup.assert_nothing_in_mind()


async def test_of_several_rounds_of_an_exchange_all_are_read_and_the_last_is_the_answer() -> None:
    setup = Setup()
    await setup.send(user("a"))
    (row,) = await setup.engine.archive.list_unread()
    setup = kill(setup)
    answer_with(setup, replace(row, k=1), row).set()
    await setup.engine.readings.read_left()
    assert [reading.k for reading in setup.engine.archive.of(Reading)] == [1, 0]
    assert [reply.k for reply in setup.engine.archive.of(Reply)][-1:] == [1]
    setup.assert_nothing_in_mind()


async def test_where_the_log_does_not_say_what_goes_before_an_answer_stays_unread() -> None:
    setup = Setup()
    await setup.send(user("a"))
    first = setup.session
    setup = kill(setup)
    setup.engine.archive.refuses_recall = True
    await setup.engine.readings.read_left()
    assert setup.engine.archive.of(Reading) == []
    setup.assert_nothing_in_mind()
    setup = kill(setup)
    setup.engine.archive.refuses_recall = False
    await setup.engine.readings.read_left()
    await setup.send(*CHAIN)
    assert setup.session == first
    await setup.settle()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            StoreUnavailable("no disk"),
            "what responses from before the start say could not be read; the next start tries again: no disk",
        ),
        (IndexError("damaged"), "a background task failed inside the proxy; calls go on. Please report this line"),
    ],
)
async def test_a_log_that_cannot_be_read_stops_no_start(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup()
    fail_with(setup, error)
    await setup.engine.readings.read_left()
    await setup.settle()
    assert caplog.messages == [said]


async def test_a_start_waits_for_a_bounded_time_and_what_is_left_is_read_later() -> None:
    setup = Setup()
    await setup.send(user("a"))
    rows = await setup.engine.archive.list_unread()
    setup = kill(setup)
    told = answer_with(setup, *rows)
    await setup.engine.readings.read_left(most_seconds=0)
    assert setup.engine.archive.of(Reading) == []
    told.set()
    await setup.settle()
    assert len(setup.engine.archive.of(Reply)) == 1


async def test_an_answer_to_a_call_of_our_own_is_read_and_has_no_place_in_the_conversation() -> None:
    setup = Setup()
    await setup.send(user("a"))
    await setup.settle()
    archive = setup.engine.archive
    (opening,) = archive.of(Opening)
    auxiliary = msgspec.structs.replace(opening, exchange="a1", kind="auxiliary")
    outcome = msgspec.structs.replace(archive.of(Outcome)[0], exchange="a1")
    assert await archive.append(auxiliary, Round("a1", 0, opening.session.upstream, None), outcome)
    setup = Setup(setup)
    await setup.engine.readings.read_left()
    assert [reading.exchange for reading in setup.engine.archive.of(Reading)] == ["x1", "a1"]
    assert [reply.exchange for reply in setup.engine.archive.of(Reply)] == ["x1"]
    step = await setup.send(*CHAIN)
    assert (step.relation, step.base) == ("append", 2)
    await setup.settle()
