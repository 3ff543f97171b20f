"""Readings: what can be read is, what cannot is told and harms nothing."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterable, Mapping

import pytest

from proxy.engine.call.response_reader import ResponseReader, UnreadAnswer, is_event_stream, read_received
from proxy.engine.policy import EnginePolicy
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.events import CallUnreadableEvent, Event
from proxy.model.exchange import Answer, Headers, Reading
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.streams import ServerEvent
from tests.support.engine import JSON, STREAM, FakeArchive, FixedClock, make_lineage
from tests.support.scripted import LIMIT

ANSWER = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7}}'
CHUNKS = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
CAP = 1_000_000


class Setup:
    """Readings over fakes, and what came of them."""

    def __init__(self) -> None:
        self.archive = FakeArchive(is_instant=True)
        self.tasks = TaskRunner()
        self.failures: list[Event] = []
        bus = EngineBus(self.tasks)
        bus.subscribe(CallUnreadableEvent, self.failures.append)
        lineage = make_lineage(self.archive, FixedClock(), EnginePolicy())
        self.readings = ResponseReader(
            self.archive, bus, self.tasks, lineage, CAP, own_keys=(b"sk-of-the-settings-0123",)
        )

    def submit(self, exchange: str, content: bytes = ANSWER, headers: Headers = JSON) -> None:
        self.readings.submit(UnreadAnswer(exchange, 0, ChatCompletions(), headers, content))

    async def finish(self) -> list[Reading]:
        assert await self.tasks.finish(LIMIT)
        return self.archive.of(Reading)


class ThreadTelling(ChatCompletions):
    """Notes on which thread an answer is read."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        self.thread = threading.current_thread()
        return super().read_answer(value)


class Failing(ChatCompletions):
    """Breaks down over every stream."""

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        raise RecursionError("too deep")


class Stuck(ChatCompletions):
    """Reads an answer for as long as the test likes."""

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        self.began.set()
        self.release.wait(LIMIT)
        return super().read_answer(value)


def read(headers: Headers, content: bytes, cap: int = CAP) -> Answer:
    return read_received(ChatCompletions(), headers, content, cap)[0]


@pytest.mark.parametrize(("headers", "content"), [(JSON, ANSWER), (STREAM, CHUNKS)])
def test_an_answer_is_read_streamed_or_not(headers: Headers, content: bytes) -> None:
    answer = read(headers, content)
    assert answer.finish == "stop"
    assert '"hi"' in str(answer.value).replace("'", '"')


def test_an_error_that_is_labelled_as_a_stream_is_read_as_what_it_is() -> None:
    assert read(STREAM, b'{"error":{"message":"too long"}}').error == "too long"


def test_an_answer_that_streams_what_json_cannot_spell_twice_is_rendered_all_the_same() -> None:
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"},"finish_reason":"stop"}]}\n\n'
    answer, rendered = read_received(ChatCompletions(), STREAM, chunk, CAP)
    assert json.loads(rendered) == answer.value


def test_an_encoded_answer_is_decoded_first() -> None:
    headers = (*JSON, (b"content-encoding", b"gzip"))
    assert read(headers, gzip.compress(ANSWER)).finish == "stop"


def test_an_answer_is_decoded_to_the_cap_only() -> None:
    with pytest.raises(ValueError, match="not"):
        read((*JSON, (b"content-encoding", b"gzip")), gzip.compress(ANSWER), len(ANSWER) - 1)


@pytest.mark.parametrize("content", [b"", b"{", b"<html>", b"[]", b"1", b'"\xff"', b"[" * 100_000 + b"]" * 100_000])
def test_what_is_no_json_object_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        read(JSON, content)


@pytest.mark.parametrize(
    ("kind", "is_stream"),
    [(b"text/event-stream", True), (b"Text/Event-Stream; charset=utf-8", True), (b"application/json", False)],
)
def test_a_stream_is_known_by_its_content_type(kind: bytes, is_stream: bool) -> None:
    assert is_event_stream(((b"content-type", kind),)) == is_stream
    assert not is_event_stream(())


async def test_what_an_answer_says_is_appended_without_urgency() -> None:
    setup = Setup()
    setup.submit("x1")
    (reading,) = await setup.finish()
    assert (reading.exchange, reading.k, reading.finish, reading.error) == ("x1", 0, "stop", "")
    assert reading.usage is not None
    assert reading.usage.input == 7
    assert [each.is_urgent for each in setup.archive.appended] == [False]


async def test_nothing_is_read_before_the_call_that_brought_it_goes_on() -> None:
    setup = Setup()
    setup.submit("x1")
    assert setup.archive.appended == []
    await setup.finish()


async def test_answers_are_read_in_order_and_an_unreadable_one_is_told_and_skipped() -> None:
    setup = Setup()
    setup.submit("x1")
    setup.submit("x2", b"<html>")
    setup.submit("x3", gzip.compress(ANSWER), (*JSON, (b"content-encoding", b"br")))
    setup.submit("x4")
    assert [reading.exchange for reading in await setup.finish()] == ["x1", "x4"]
    assert [getattr(event, "exchange", "") for event in setup.failures] == ["x2", "x3"]
    assert "not a JSON object" in str(setup.failures[0])


@pytest.mark.parametrize("odd", [b'"\\ud800"', b"1" + b"0" * 40, b'"\xff"', b"NaN"])
async def test_odd_values_keep_no_answer_from_being_read(odd: bytes) -> None:
    setup = Setup()
    setup.submit("x1", b'{"choices":[],"x":' + odd + b"}")
    setup.submit("x2", b'data: {"choices":[],"x":' + odd + b"}\n\n", STREAM)
    assert [reading.exchange for reading in await setup.finish()] == ["x1", "x2"]
    assert setup.failures == []


async def test_a_format_that_breaks_down_is_told_and_the_next_answer_is_read() -> None:
    setup = Setup()
    setup.readings.submit(UnreadAnswer("x1", 0, Failing(), STREAM, CHUNKS))
    setup.submit("x2")
    assert [reading.exchange for reading in await setup.finish()] == ["x2"]
    assert setup.failures == [CallUnreadableEvent(exchange="x1", error="RecursionError: too deep")]


@pytest.mark.parametrize(("size", "is_here"), [(100, True), (100_000, False)])
async def test_a_huge_answer_is_read_in_a_thread_and_a_small_one_here(size: int, is_here: bool) -> None:
    setup, form = Setup(), ThreadTelling()
    setup.readings.submit(UnreadAnswer("x1", 0, form, JSON, b'{"a":"' + b"x" * size + b'"}'))
    assert len(await setup.finish()) == 1
    assert (form.thread is threading.current_thread()) == is_here


@pytest.mark.parametrize(("size", "is_here"), [(100, True), (100_000, False)])
async def test_an_answer_in_a_hurry_is_read_where_it_delays_nobody_else(size: int, is_here: bool) -> None:
    setup, form = Setup(), ThreadTelling()
    setup.readings.submit(UnreadAnswer("x1", 0, form, JSON, b'{"a":"' + b"x" * size + b'"}'))
    await asyncio.gather(setup.readings.read_now("x1"), setup.readings.read_now("x1"))
    assert (form.thread is threading.current_thread()) == is_here
    assert len(setup.archive.of(Reading)) == 1
    assert len(await setup.finish()) == 1


async def test_what_is_read_in_a_hurry_is_returned_once() -> None:
    setup = Setup()
    setup.submit("x1")
    read = await setup.readings.read_now("x1")
    assert read is not None
    assert (read.plain, read.answer.value) == (read.content, json.loads(read.content))
    assert await setup.readings.read_now("x1") is None
    setup.readings.submit(UnreadAnswer("x2", 0, ThreadTelling(), JSON, b"[]"))
    assert await setup.readings.read_now("x2") is None


async def test_the_oldest_of_too_many_waiting_answers_stay_unread_and_that_is_told() -> None:
    setup = Setup()
    for number in range(4100):
        setup.submit(f"x{number}")
    assert [getattr(event, "exchange", "") for event in setup.failures] == [f"x{number}" for number in range(4)]
    assert [reading.exchange for reading in await setup.finish()] == [f"x{number}" for number in range(4, 4100)]


async def test_answers_that_wait_take_bounded_memory_and_the_newest_is_kept_however_large() -> None:
    setup, half = Setup(), b'{"a":"' + b"x" * 16 * 1024 * 1024 + b'"}'
    for number in range(3):
        setup.submit(f"x{number}", half)
    assert [getattr(event, "exchange", "") for event in setup.failures] == ["x0", "x1"]
    setup.submit("x3", half * 2)
    setup.submit("x4")
    assert [getattr(event, "exchange", "") for event in setup.failures] == ["x0", "x1", "x2", "x3"]
    assert [reading.exchange for reading in await setup.finish()] == ["x4"]


async def test_reading_goes_on_after_the_reader_was_cancelled() -> None:
    setup, form = Setup(), Stuck()
    setup.submit("x1")
    assert len(await setup.finish()) == 1
    setup.readings.submit(UnreadAnswer("x2", 0, form, JSON, b'{"a":"' + b"x" * 100_000 + b'"}'))
    assert await asyncio.to_thread(form.began.wait, LIMIT)
    assert not await setup.tasks.finish(0)
    form.release.set()
    setup.submit("x3")
    assert [reading.exchange for reading in await setup.finish()] == ["x1", "x2", "x3"]


@pytest.mark.parametrize(("turns", "at_once", "size"), [(300, 20, 10), (250, 4, 60_000)])
async def test_no_answer_stays_unread_while_many_come_without_a_pause(turns: int, at_once: int, size: int) -> None:
    setup = Setup()
    content = ANSWER.replace(b'"hi"', b'"%s"' % (b"h" * size))
    setup.submit("first", content)
    await setup.archive.wait_for(Reading)  # they are being read from now on
    for turn in range(turns):
        for i in range(at_once):
            setup.submit(f"{turn}-{i}", content)
        await asyncio.sleep(0)
    assert len(await setup.finish()) == 1 + turns * at_once
    assert setup.failures == []


async def test_one_answer_is_read_in_a_turn_while_few_wait() -> None:
    setup = Setup()
    for i in range(20):
        setup.submit(str(i))
    await setup.archive.wait_for(Reading)
    read_so_far = len(setup.archive.of(Reading))
    await asyncio.sleep(0)
    assert len(setup.archive.of(Reading)) == read_so_far + 1
    await setup.finish()


async def test_an_error_does_not_tell_the_credential_it_echoes() -> None:
    setup, content = Setup(), b'{"error":{"message":"bad key lm-studio"}}'
    setup.readings.submit(UnreadAnswer("x1", 0, ChatCompletions(), JSON, content, secrets=(b"lm-studio",)))
    (reading,) = await setup.finish()
    assert "lm-studio" not in reading.error
    assert "*********" in reading.error
    assert b"lm-studio" not in reading.answer


async def test_of_an_answer_that_a_killed_process_left_our_own_keys_are_known() -> None:
    setup = Setup()
    setup.submit("x1", b'{"choices":[{"message":{"content":"sk-of-the-settings-0123"}}]}')
    (reading,) = await setup.finish()
    assert b'"' + b"*" * 23 + b'"' in reading.answer
