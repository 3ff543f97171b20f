"""The stream of events: what readers get, what they get when they come back, and who is dropped."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.engine.events.stream import EVERYTHING, EventReader, EventStream, StreamPolicy, TooManyReaders, Wanted
from proxy.model.events import CallUnreadableEvent, RungFailedEvent, StreamedEvent


class Clock:
    """Timers that run when a test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> "Order":
        order = (seconds, call)
        self.timers.append(order)
        return Order(self, order)

    def run(self, seconds: float) -> None:
        """Run what waits for so long."""
        due = [order for order in self.timers if order[0] == seconds]
        self.timers = [order for order in self.timers if order not in due]
        for _, call in due:
            call()


class Order:
    """A timer that can be cancelled."""

    def __init__(self, clock: Clock, order: tuple[float, Callable[[], object]]) -> None:
        self._clock, self._order = clock, order

    def cancel(self) -> None:
        if self._order in self._clock.timers:
            self._clock.timers.remove(self._order)


def make_stream(**policy: Any) -> tuple[EventStream, Clock]:
    clock = Clock()
    return EventStream("run", clock.call_later, lambda: 7, StreamPolicy(**policy)), clock


def event(name: str, session: str = "s1") -> StreamedEvent:
    return CallUnreadableEvent(at_ms=1, session=session, exchange=name, error="why")


def told(reader: EventReader) -> list[tuple[str, str, dict[str, Any]]]:
    """What waits for a reader: type, id and data of each event."""
    content = b"".join(reader.waiting).decode()
    reader.waiting.clear()
    found = []
    for block in content.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


def names(reader: EventReader) -> list[str]:
    return [str(data.get("exchange", data.get("reason"))) for _, _, data in told(reader)]


def test_each_reader_gets_what_it_asked_for_in_order() -> None:
    stream, _ = make_stream()
    every, one = stream.open(), stream.open(Wanted(sessions=frozenset({"s2"})))
    typed = stream.open(Wanted(types=frozenset({"RUNG_FAILED"})))
    failed = RungFailedEvent(at_ms=1, session="s1", exchange="x3", rung="plan", error="why")
    stream.publish([event("x1"), event("x2", "s2"), failed])
    assert told(every) == [
        ("CALL_UNREADABLE", "run-2", {"type": "CALL_UNREADABLE", **_data("x1", "s1")}),
        ("CALL_UNREADABLE", "run-3", {"type": "CALL_UNREADABLE", **_data("x2", "s2")}),
        ("RUNG_FAILED", "run-4", {"type": "RUNG_FAILED", **_data("x3", "s1"), "rung": "plan"}),
    ]
    assert names(one) == ["x2"]
    assert names(typed) == ["x3"]


def _data(name: str, session: str) -> dict[str, Any]:
    return {"at_ms": 1, "session": session, "exchange": name, "n": None, "error": "why"}


def test_a_stream_begins_with_its_position_so_that_a_break_before_the_first_event_loses_none() -> None:
    stream, _ = make_stream()
    reader = stream.open()
    assert reader.waiting == [b"retry: 1000\nid: run-1\n: palimpsest\n\n"]
    stream.leave(reader)
    stream.publish([event("x1")])
    assert names(stream.open(after="run-1")) == ["x1"]


def test_a_reader_that_comes_back_gets_what_it_wants_of_all_since() -> None:
    stream, _ = make_stream()
    stream.open()
    stream.publish([event("x1"), event("x2"), event("y", "s2"), event("x3")])
    assert names(stream.open(Wanted(sessions=frozenset({"s1"})), after="run-2")) == ["x2", "x3"]
    assert names(stream.open(after=stream.position)) == []


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("old-7", "restarted"),
        ("run-1", "expired"),  # the ring has the newest three: 4 to 6
        ("run-99", "expired"),
        ("run-", "unknown"),
        ("-3", "unknown"),
        ("run-²", "unknown"),
        ("x", "unknown"),
        ("run-" + "9" * 20, "unknown"),
    ],
)
def test_a_reader_whose_events_are_gone_is_told_to_load_anew(after: str, reason: str) -> None:
    stream, _ = make_stream(most_kept=3)
    stream.open()
    stream.publish([event(f"x{i}") for i in range(5)])
    reader = stream.open(Wanted(sessions=frozenset({"s1"}), types=frozenset({"RUNG_FAILED"})), after=after)
    assert told(reader) == [("RESET", "run-6", {"type": "RESET", "at_ms": 7, "session": "", "reason": reason})]


def test_the_ring_has_exactly_the_newest() -> None:
    stream, _ = make_stream(most_kept=3)
    stream.open()
    stream.publish([event(f"x{i}") for i in range(5)])
    assert names(stream.open(after="run-3")) == ["x2", "x3", "x4"]
    assert names(stream.open(after="run-2")) == ["expired"]


def test_nothing_is_collected_while_nobody_reads_but_for_a_while_after_the_last() -> None:
    stream, clock = make_stream()
    changes: list[str] = []
    stream.on_listen, stream.on_idle = lambda: changes.append("on"), lambda: changes.append("off")
    reader = stream.open()
    stream.leave(reader)
    stream.leave(reader)
    assert (changes, stream.is_collecting) == (["on"], True)
    clock.run(60.0)
    assert (changes, stream.is_collecting, clock.timers) == (["on", "off"], False, [])
    assert names(stream.open(after="run-1")) == ["expired"], "what happened meanwhile was not collected"
    assert changes == ["on", "off", "on"]


def test_a_reader_that_comes_in_time_keeps_the_events_collected() -> None:
    stream, clock = make_stream()
    stream.leave(stream.open())
    stream.open()
    clock.run(60.0)
    assert stream.is_collecting


def test_a_page_can_hold_the_position_that_its_data_has() -> None:
    stream, clock = make_stream()
    position = stream.begin()
    stream.publish([event("x1")])
    assert names(stream.open(after=position)) == ["x1"]
    stream, clock = make_stream()
    stream.begin()
    clock.run(60.0)
    assert not stream.is_collecting
    stream.close()
    stream.begin()
    assert not stream.is_collecting


def test_a_slow_reader_is_dropped_with_a_last_event_and_the_others_go_on() -> None:
    stream, _ = make_stream(most_waiting=3)
    slow, quick = stream.open(), stream.open()
    for i in range(3):
        quick.waiting.clear()
        stream.publish([event(f"x{i}")])
    assert (slow.is_ended, quick.is_ended, stream.readers) == (True, False, 1)
    assert told(slow) == [
        ("STREAM_ENDED", "", {"type": "STREAM_ENDED", "at_ms": 7, "session": "", "reason": "slow"}),
    ]
    assert names(quick) == ["x2"]
    stream.publish([event("x9")])
    assert slow.waiting == []


async def test_reading_waits_for_what_comes_and_ends_with_the_stream() -> None:
    stream, _ = make_stream()
    reader = stream.open()
    assert b"retry" in await reader.read()
    asyncio.get_running_loop().call_soon(stream.publish, [event("x1"), event("x2")])
    content = await reader.read()
    assert (content.count(b"data: "), content.endswith(b"\n\n")) == (2, True)
    asyncio.get_running_loop().call_soon(stream.close)
    assert b'"reason":"stopping"' in await reader.read()
    assert await reader.read() == b""
    assert await reader.read() == b""


def test_the_heartbeat_tells_a_reader_how_far_it_has_everything() -> None:
    stream, clock = make_stream(most_waiting=2)
    reader = stream.open(Wanted(sessions=frozenset()))
    stream.publish([event("x1")])
    reader.waiting.clear()
    clock.run(15.0)
    clock.run(15.0)
    clock.run(15.0)
    assert reader.waiting == [b"id: run-2\n: heartbeat\n\n"] * 2, "one that does not read gets no more of them"


def test_what_the_stream_ends_with_is_sent_behind_what_waits() -> None:
    stream, _ = make_stream()
    reader = stream.open()
    stream.publish([event("x1")])
    stream.close()
    assert names(reader) == ["x1", "stopping"]
    with pytest.raises(TooManyReaders, match="stopping"):
        stream.open()


def test_there_are_only_so_many_readers() -> None:
    stream, _ = make_stream(most_readers=2)
    first = stream.open()
    stream.open(EVERYTHING)
    with pytest.raises(TooManyReaders, match="2 streams are open"):
        stream.open()
    stream.leave(first)
    stream.open()


def test_a_text_that_is_no_text_is_told_all_the_same() -> None:
    stream, _ = make_stream()
    reader = stream.open()
    stream.publish([CallUnreadableEvent(at_ms=1, session="s1", exchange="x", error="half \ud83d\nof it")])
    (found,) = told(reader)
    assert found[2]["error"] == "half ?\nof it"


def test_a_listener_hears_of_its_session_or_of_all_as_it_happens() -> None:
    stream, clock = make_stream()
    every, one = list[StreamedEvent](), list[StreamedEvent]()
    stream.listen(every.append)
    stream.listen(one.append, "s2")
    first, second = event("x1"), event("x2", "s2")
    stream.publish([first, second])
    assert (every, one, stream.is_heard) == ([first, second], [second], True)
    stream.stop_listening(one.append, "s2")
    stream.stop_listening(one.append, "s3")  # where it never was
    stream.publish([second])
    assert (every, one) == ([first, second, second], [second])
    clock.run(60.0)
    assert stream.is_collecting
    stream.stop_listening(every.append)
    assert not stream.is_heard
    clock.run(60.0)
    assert not stream.is_collecting


def test_what_happens_in_the_drain_is_told_in_this_process_only() -> None:
    stream, clock = make_stream()
    heard = list[StreamedEvent]()
    reader = stream.open()
    stream.listen(heard.append)
    stream.close()
    stream.publish([event("x1")])
    assert (names(reader), heard) == (["stopping"], [event("x1")])
    stream.stop_listening(heard.append)
    assert (stream.is_collecting, clock.timers) == (False, [])
