"""Each way in which a round ends: what is recorded and what the client gets, in every format, with and without rounds.

The ways are those of the table in the docstring of `engine/call/relay`; each has a function here, in the same order.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.engine.call import relay
from proxy.engine.call.response_reader import read_received
from proxy.engine.call.response_stream import WITHHOLD_SECONDS
from proxy.engine.policy import EnginePolicy
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import ClientRequest, Outcome, Trailer
from proxy.model.log import Record
from tests.support.engine import LIMIT, Commit, Ending, RecordingClient, ScriptedResponse, wait_out
from tests.support.loops import put_forward
from tests.support.managed import NAMED, ContextLog, ManagedEngine, answer, refuse
from tests.support.rounds import SPEAKERS, Call, PlainResponsesSpeaker, Speaker, Text, number
from tests.support.wire_histories import PATHS, answer_call, ask, call, make_request

OUTPUT = "def function(value):\n    return other.path\n" * 40
LATE = b": late\n\n"
TOO_LONG = "This model's maximum context length is 6000 tokens. However, your messages resulted in 12000 tokens."
LOOK, FOUND = number([Text("I look. "), Call('{"action":"search","query":"path"}')], [Text("Found.")])


class SlowLog(ContextLog):
    """A log that commits an outcome only when it is told to, once `is_slow` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.queued: asyncio.Queue[Commit] = asyncio.Queue()

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        done = super().append(*records, is_urgent=is_urgent)
        if not (self.is_slow and any(isinstance(record, Outcome) for record in records)):
            return done
        self.queued.put_nowait(commit := Commit())
        return commit

    async def wait_for_outcome(self) -> Commit:
        async with asyncio.timeout(LIMIT):
            return await self.queued.get()


class World:
    """An agent of one format. With `has_rounds` its calls are sent under an epoch, with our tool."""

    def __init__(self, speaker: Speaker, *, has_rounds: bool, is_strict: bool = False) -> None:
        policy = EnginePolicy(commit_wait_ms=60_000, on_failure="refuse" if is_strict else "forward")
        self.log, self.has_rounds, self.wire = SlowLog(), has_rounds, speaker.form.name
        self.may_answer, self.asked = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.engine = ManagedEngine(
            archive=self.log, policy=policy, run=self._run, ceiling=8_000 if has_rounds else None
        )
        # some responses repeat the request's tools, of which the client gets its own
        plain = PlainResponsesSpeaker() if self.wire == "responses" else speaker
        self.speaker = speaker if has_rounds else plain
        self.items: list[Any] = [ask(self.wire, "Mend the tests.")]
        self.client = RecordingClient()
        self.events = self.speaker.list_events(FOUND)
        self.stream = b"".join(self.events)
        self.passed = plain.stream(FOUND)  # what the client gets of it

    async def _run(self, request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
        self.asked.set()
        await self.may_answer.wait()
        return "the page"

    async def settle(self) -> "World":
        """Make the calls before, with which an epoch opens."""
        for steps in (10, 14) if self.has_rounds else ():
            for _ in range(steps):
                id = f"call_{len(self.items):024x}"
                self.items += [call(self.wire, id, f"f{len(self.items)}.py"), answer_call(self.wire, id, OUTPUT)]
            self.engine.upstream.prepare(answer(self.speaker.spell_body(FOUND)))
            await wait_out(self.begin())
        self.log.appended.clear()
        self.engine.events.clear()
        return self

    def begin(self, *answers: ScriptedResponse | Exception | None) -> "asyncio.Task[None]":
        """Send the history once more."""
        for each in answers:
            self.engine.upstream.prepare(each)
        self.client = RecordingClient()
        body = make_request(self.wire, self.items, is_stream=bool(answers))
        request = ClientRequest("POST", PATHS[self.wire].encode(), NAMED, body)
        return self.engine.begin(request, self.wire, self.client)

    async def send(self, *answers: ScriptedResponse | Exception | None) -> list[tuple[str, int]]:
        return await self.end(self.begin(*answers))

    async def end(self, task: "asyncio.Task[None]") -> list[tuple[str, int]]:
        """Wait for the end of a call. Return how each of its rounds ended, and with which status."""
        await wait_out(task)
        assert await self.engine.tasks.finish(LIMIT)
        told = [event for event in self.engine.events if isinstance(event, ExchangeRecorded)]
        assert [event.is_final for event in told] == [False] * (len(told) - 1) + [True]
        return [(outcome.completeness, outcome.status) for outcome in self.log.of(Outcome)]

    def respond(self, *pieces: bytes, ending: Ending = "open") -> ScriptedResponse:
        return ScriptedResponse(*pieces, ending=ending)

    def look(self) -> ScriptedResponse:
        """A round with a call of our tool."""
        return self.respond(*self.speaker.list_events(LOOK), ending="eof")

    def check(self, *, is_whole: bool, body: bytes | None = None) -> None:
        assert (self.client.body, self.client.is_whole, self.client.is_aborted) == (
            self.passed if body is None else body,
            is_whole,
            not is_whole,
        )


COMPLETE, ABORTED = ("complete", 200), ("aborted", 200)
End = Callable[[World], Awaitable[None]]


async def end_with_the_last_event(world: World) -> None:
    assert await world.send(world.respond(*world.events, ending="eof")) == [COMPLETE]
    world.check(is_whole=True)


async def end_during_the_commit(world: World) -> None:
    world.log.is_slow = True
    response = world.respond(*world.events)
    task = world.begin(response)
    commit = await world.log.wait_for_outcome()
    assert world.events[-1] not in world.client.body
    response.is_received = response.is_ended = True
    commit.set_result(True)
    assert await world.end(task) == [COMPLETE]
    world.check(is_whole=True)


async def end_later(world: World) -> None:
    response = world.respond(*world.events)
    task = world.begin(response)
    await world.client.wait_for_body(len(world.passed))
    response.feed(LATE, ending="eof")
    assert await world.end(task) == [COMPLETE]
    world.check(is_whole=True, body=world.passed + LATE)
    assert [trailer.received for trailer in world.log.of(Trailer)] == [LATE]


async def break_behind_the_last_event(world: World) -> None:
    assert await world.send(world.respond(*world.events, ending="cut")) == [COMPLETE]
    world.check(is_whole=False)


async def refuse_for_good(world: World) -> None:
    busy = b'{"error":{"message":"busy"}}'
    assert await world.send(answer(busy, 503)) == [("complete", 503)]
    assert world.client.status == 503
    world.check(is_whole=True, body=busy)


async def refuse_and_send_something_else(world: World) -> None:
    refused = refuse(TOO_LONG)
    assert await world.send(refused, world.respond(*world.events, ending="eof")) == [("complete", 400), COMPLETE]
    assert refused.is_closed
    world.check(is_whole=True)


async def send_another_round(world: World) -> None:
    assert await world.send(world.look(), world.respond(*world.events, ending="eof")) == [COMPLETE, COMPLETE]
    _, plain = read_received(world.speaker.form, world.client.headers, world.client.body, 1 << 20)
    assert b"I look." in plain and b"Found." in plain and world.client.is_whole


async def break_at_every_byte(world: World) -> None:
    # With rounds, each call is decided and planned: every byte of the last two events, and some of the others.
    whole = len(b"".join(world.events[:-1]))
    cuts = range(whole) if not world.has_rounds else (*range(0, whole, 97), *range(whole - 40, whole))
    for cut in cuts:
        world.log.appended.clear()
        world.engine.events.clear()
        pieces = world.stream[: cut // 2], world.stream[cut // 2 : cut]
        assert await world.send(world.respond(*filter(None, pieces), ending="cut")) == [("truncated", 200)]
        assert world.log.outcome.received == world.stream[:cut]
        events = world.client.body[: world.client.body.rfind(b"\n\n") + 1]  # clients ignore an event that is not whole
        assert world.client.is_aborted and world.passed.startswith(events)
        assert world.has_rounds or world.client.body == world.stream[:cut]
        assert b"context_recall" not in world.client.body


async def send_no_response(world: World) -> None:
    assert await world.send(UpstreamUnreachable("gone")) == [("failed", 0)]
    assert isinstance(world.client.error, UpstreamUnreachable)


async def leave_before_the_head(world: World) -> None:
    task = world.begin(None)
    await world.engine.upstream.wait_until_starved()
    task.cancel()
    assert await world.end(task) == [("aborted", 0)]
    assert world.client.is_aborted


async def leave_before_the_last_event(world: World) -> None:
    response = world.respond(*world.events[:-2])
    task = world.begin(response)
    await response.wait_until_starved()
    task.cancel()
    assert await world.end(task) == [ABORTED]
    assert world.log.outcome.received == b"".join(world.events[:-2]) and response.is_closed


async def leave_while_the_last_event_is_read(world: World) -> None:
    """In an answer of rounds that one is a call of ours: it is not executed, since the client has left."""
    events = world.speaker.list_events(LOOK) if world.has_rounds else world.events
    response = world.respond(*events)
    task = world.begin(response)
    await response.wait_until_starved()  # the body may end a moment later
    task.cancel()
    assert await world.end(task) == [COMPLETE if world.has_rounds else ABORTED]
    assert world.log.outcome.received == b"".join(events)
    assert task.cancelled() and not world.asked.is_set()


async def leave_while_the_next_round_is_made(world: World) -> None:
    world.may_answer.clear()
    task = world.begin(world.look())
    async with asyncio.timeout(LIMIT):
        await world.asked.wait()
    task.cancel()
    assert await world.end(task) == [COMPLETE]
    assert not world.client.is_whole


async def leave_when_a_next_round_is_recorded(world: World) -> None:
    task = world.begin(world.look())

    def leave(event: ExchangeRecorded) -> None:
        if not event.is_final:
            task.cancel()

    world.engine.bus.subscribe(ExchangeRecorded, leave)
    assert await world.end(task) == [COMPLETE, ("aborted", 0)]
    assert task.cancelled() and not world.client.is_whole


async def leave_when_all_has_come(world: World) -> None:
    world.log.is_slow = True
    task = world.begin(world.respond(*world.events, ending="eof"))
    commit = await world.log.wait_for_outcome()
    task.cancel()
    await asyncio.sleep(0)
    commit.set_result(True)
    assert await world.end(task) == [COMPLETE]
    assert task.cancelled()


async def leave_behind_the_last_event(world: World) -> None:
    response = world.respond(*world.events)
    task = world.begin(response)
    await world.client.wait_for_body(len(world.passed))
    response.feed(LATE)
    await world.client.wait_for_body(len(world.passed + LATE))
    task.cancel()
    assert await world.end(task) == [COMPLETE]
    world.check(is_whole=False, body=world.passed + LATE)
    assert response.is_closed and len(world.log.of(Trailer)) == 1


async def fail_to_record(world: World) -> None:
    world.log.is_slow = True
    task = world.begin(world.respond(*world.events, ending="eof"))
    (await world.log.wait_for_outcome()).set_result(False)
    assert await world.end(task) == [COMPLETE]
    assert world.events[-1] not in world.client.body and world.client.is_aborted


ENDS: tuple[End, ...] = (
    end_with_the_last_event,
    end_during_the_commit,
    end_later,
    break_behind_the_last_event,
    refuse_for_good,
    refuse_and_send_something_else,
    send_another_round,
    break_at_every_byte,
    send_no_response,
    leave_before_the_head,
    leave_before_the_last_event,
    leave_while_the_last_event_is_read,
    leave_while_the_next_round_is_made,
    leave_when_a_next_round_is_recorded,
    leave_when_all_has_come,
    leave_behind_the_last_event,
    fail_to_record,
)
OF_ROUNDS = {
    refuse_and_send_something_else,
    send_another_round,
    leave_while_the_next_round_is_made,
    leave_when_a_next_round_is_recorded,
}


def test_each_way_of_the_table_is_shown() -> None:
    rows = re.findall(r"^\| (?!what happens|---)", relay.__doc__ or "", re.MULTILINE)
    assert len(rows) == len(ENDS)


@pytest.mark.parametrize("has_rounds", [False, True], ids=["plain", "rounds"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
async def test_a_round_ends(speaker: Speaker, end: End, has_rounds: bool) -> None:
    if has_rounds or end not in OF_ROUNDS:
        world = World(speaker, has_rounds=has_rounds, is_strict=end is fail_to_record)
        await end(await world.settle())


async def test_an_answer_that_goes_on_as_something_else_waits_for_nothing_any_more() -> None:
    """The next round is no stream: the client gets it as an event, and no timer for comments goes on behind that."""
    world = await World(SPEAKERS[0], has_rounds=True).settle()
    assert await world.send(world.look(), answer(b'{"error":{"message":"busy"}}', 503)) == [COMPLETE, ("complete", 503)]
    assert world.client.is_whole
    assert json.loads(world.client.body.split(b"data: ")[-1])["error"]["message"] == "busy"
    loop, delays = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def note(delay: float, *given: Any, **options: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return call_later(delay, *given, **options)

    loop.call_later = note  # type: ignore[method-assign,assignment]
    await put_forward(WITHHOLD_SECONDS + 1)
    assert WITHHOLD_SECONDS not in delays
