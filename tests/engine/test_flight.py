"""The opening of a call goes to the log once, and each of its rounds starts afresh."""

import msgspec

from proxy.engine.round import CappedBuffer, PendingRecord, RoundState
from proxy.model.epoch import Plan
from proxy.model.exchange import Opening, Round, SessionKey
from proxy.model.manifest import keep_whole
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import FakeArchive, FixedClock, RecordingClient
from tests.support.rescuing import ScriptedRescuer

KEY = SessionKey("s", b"t" * 16, "main", "")
OPENING = Opening("x1", KEY, "managed", "chat_completions", "manage", "m", "POST", "/", (), keep_whole(b"{}"), 1)
FIRST, SECOND = Round("x1", 0, "main", None), Round("x1", 1, "main", keep_whole(b"{}"))
PLAN = Plan("x1", 0, "m", "epoch")


def make_flight(archive: FakeArchive) -> RoundState:
    entry = PendingRecord(archive, lambda: (OPENING, FIRST), is_urgent=True)
    return RoundState(
        "x1", entry, ChatCompletions(), "main", RecordingClient(), CappedBuffer(7), (b"key",), ScriptedRescuer()
    )


async def test_an_opening_is_queued_once() -> None:
    archive = FakeArchive()
    entry = make_flight(archive).entry
    assert entry.commit is None
    assert entry.append() is entry.append() is OPENING
    (appended,) = archive.appended
    assert (appended.records, appended.is_urgent) == ((OPENING, FIRST), True)
    assert entry.commit is appended.commit


async def test_another_round_is_queued_behind_the_opening_and_waited_for_in_its_place() -> None:
    archive = FakeArchive()
    entry = make_flight(archive).entry
    entry.extend(SECOND)
    assert [each.records for each in archive.appended] == [(OPENING, FIRST), (SECOND,)]
    assert entry.commit is archive.appended[1].commit
    assert entry.opening is OPENING


async def test_what_is_to_be_kept_is_queued_once_before_anything_else_and_what_is_left_when_it_is_settled() -> None:
    archive = FakeArchive()
    entry = make_flight(archive).entry
    entry.append()
    entry.postpone(lambda: entry.extend(SECOND), lambda: entry.extend(PLAN))
    assert (len(archive.appended), entry.is_settled) == (1, False)
    entry.append()
    entry.append()
    assert [each.records for each in archive.appended] == [(OPENING, FIRST), (SECOND,)]
    entry.settle()
    assert [each.records for each in archive.appended[2:]] == [(PLAN,)]
    entry.settle()
    assert (len(archive.appended), entry.is_settled) == (3, True)


async def test_what_is_postponed_before_the_opening_is_queued_comes_behind_it() -> None:
    archive = FakeArchive()
    entry = make_flight(archive).entry
    entry.postpone(lambda: entry.extend(SECOND), lambda: entry.extend(PLAN))
    entry.settle()
    assert [each.records for each in archive.appended] == [(OPENING, FIRST), (SECOND,), (PLAN,)]


async def test_where_a_call_waits_its_opening_is_queued_unless_its_body_is_on_its_way_in_a_moment() -> None:
    archive = FakeArchive()
    waiting, going = make_flight(archive).entry, make_flight(archive).entry
    going.postpone(lambda: None, lambda: None)
    going.append_for_wait()
    assert archive.appended == []
    waiting.append_for_wait()
    waiting.append_for_wait()
    assert [each.records for each in archive.appended] == [(OPENING, FIRST)]


async def test_the_first_piece_is_timed_and_all_are_kept() -> None:
    flight, clock = make_flight(FakeArchive()), FixedClock()
    flight.note(b"a", clock)
    clock.advance(1)
    flight.note(b"b", clock)
    assert (flight.first_at, flight.tape.content) == (100.0, b"ab")


async def test_the_next_round_is_of_the_same_call_and_has_nothing_of_the_last_one() -> None:
    flight, clock = make_flight(FakeArchive()), FixedClock()
    flight.note(b"12345678", clock)
    flight.head_at, flight.ended_at, flight.is_head_out, flight.is_final = 1.0, 2.0, True, False
    again = flight.go_again(1)
    assert (again.exchange, again.entry, again.client, again.secrets) == ("x1", flight.entry, flight.client, (b"key",))
    assert (again.k, again.rescuer, again.is_head_out, again.is_final) == (1, flight.rescuer, True, True)
    assert (again.head_at, again.first_at, again.ended_at) == (0, 0, 0)
    assert (again.tape.size, again.tape.cap, flight.tape.size) == (0, 7, 8)


async def test_a_long_body_is_kept_by_the_log_alone() -> None:
    archive = FakeArchive()
    body = keep_whole(b"x" * 20_000)
    opening = msgspec.structs.replace(OPENING, body=body)
    entry = PendingRecord(archive, lambda: (opening, FIRST))
    kept = entry.append()
    assert archive.opening.body == body
    assert (kept.body.size, kept.body.weight, kept.exchange) == (20_000, 0, "x1")
