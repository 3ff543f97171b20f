"""The opening of a call goes to the log once, and each of its rounds starts afresh."""

import msgspec

from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange, Retry
from proxy.model.epoch import Plan
from proxy.model.exchange import Opening, Round, SessionKey
from proxy.model.manifest import make_manifest
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import FakeArchive, FixedClock, RecordingClient
from tests.support.rescuing import ScriptedRescuer

KEY = SessionKey("s", b"t" * 16, "main", "")
OPENING = Opening("x1", KEY, "managed", "chat_completions", "manage", "m", "POST", "/", (), make_manifest(b"{}"), 1)
FIRST, SECOND = Round("x1", 0, "main", None), Round("x1", 1, "main", make_manifest(b"{}"))
PLAN = Plan("x1", 0, "m", "epoch")


def make_exchange(archive: FakeArchive, opening: Opening = OPENING) -> OpenExchange:
    return OpenExchange(
        "x1",
        archive,
        lambda: (opening, FIRST),
        ChatCompletions(),
        "main",
        RecordingClient(),
        CappedBuffer(7),
        (b"key",),
        is_urgent=True,
        make_retries=ScriptedRescuer,
    )


async def test_an_opening_is_queued_once() -> None:
    archive = FakeArchive()
    exchange = make_exchange(archive)
    assert (exchange.commit, exchange.is_durable) == (None, False)
    assert exchange.record_opening() is exchange.record_opening() is OPENING
    (appended,) = archive.appended
    assert (appended.records, appended.is_urgent) == ((OPENING, FIRST), True)
    assert exchange.commit is appended.commit
    assert not exchange.is_durable
    appended.commit.set_result(True)
    assert exchange.is_durable


async def test_another_round_is_queued_behind_the_opening_and_waited_for_in_its_place() -> None:
    archive = FakeArchive()
    exchange = make_exchange(archive)
    exchange.record(SECOND)
    assert [each.records for each in archive.appended] == [(OPENING, FIRST), (SECOND,)]
    assert exchange.commit is archive.appended[1].commit
    assert exchange.opening is OPENING


async def test_the_first_piece_is_timed_and_all_are_kept() -> None:
    exchange, clock = make_exchange(FakeArchive()), FixedClock()
    exchange.keep_piece(b"a", clock)
    clock.advance(1)
    exchange.keep_piece(b"b", clock)
    assert (exchange.first_at, exchange.buffer.content) == (100.0, b"ab")


async def test_the_next_round_is_of_the_same_call_and_has_nothing_of_the_last_one() -> None:
    archive, clock = FakeArchive(), FixedClock()
    exchange = make_exchange(archive)
    exchange.keep_piece(b"12345678", clock)
    last = exchange.buffer
    exchange.head_at, exchange.ended_at, exchange.beginning = 1.0, 2.0, b"1"
    exchange.begin_next(Retry(b"{}", SECOND, PLAN))
    assert (exchange.k, exchange.beginning, exchange.plans) == (1, b"", [PLAN])
    assert (exchange.head_at, exchange.first_at, exchange.ended_at) == (0, 0, 0)
    assert (exchange.buffer.size, exchange.buffer.cap, last.size) == (0, 7, 8)
    assert archive.appended[-1].records == (SECOND, PLAN)


async def test_a_long_body_is_kept_by_the_log_alone() -> None:
    archive = FakeArchive()
    body = make_manifest(b"x" * 20_000)
    opening = msgspec.structs.replace(OPENING, body=body)
    kept = make_exchange(archive, opening).record_opening()
    assert archive.opening.body == body
    assert (kept.body.size, kept.body.weight, kept.exchange) == (20_000, 0, "x1")
