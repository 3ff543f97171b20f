"""The ports: what the tests put behind them keeps the contracts that the shells keep."""

import asyncio

import pytest

from proxy.engine.ports import Archive, Client, Clock, Ids, RequestBody, Upstream, UpstreamResponse
from proxy.engine.runtime import SystemClock, SystemIds
from proxy.model.errors import BadRequest, NotFound, UpstreamUnreachable
from tests.support.engine import (
    CountingIds,
    FakeArchive,
    FedBody,
    FixedClock,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    make_opening,
)


async def test_clocks_and_ids_real_and_fake_fit_their_ports() -> None:
    clocks: list[Clock] = [SystemClock(), FixedClock()]
    names: list[Ids] = [SystemIds(), CountingIds()]
    assert all(clock.monotonic() <= clock.monotonic() and clock.now_ms() > 0 for clock in clocks)
    assert all(ids.next_exchange() != ids.next_exchange() for ids in names)


async def test_an_answer_gives_its_bytes_then_its_end() -> None:
    by_end: UpstreamResponse = ScriptedResponse(b"a", b"b", ending="eof")
    assert [await by_end.read(), await by_end.read(), by_end.is_ended] == [b"a", b"b", False]
    assert [await by_end.read(), by_end.is_ended] == [b"", True]
    by_length: UpstreamResponse = ScriptedResponse(b"a", b"b", ending="last")
    assert [await by_length.read(), by_length.is_ended, await by_length.read(), by_length.is_ended] == [
        *(b"a", False),
        *(b"b", True),
    ]
    whole: UpstreamResponse = ScriptedResponse(b"a", b"b", ending="whole")
    assert [whole.is_received, await whole.read(), whole.is_ended] == [True, b"ab", True]


async def test_a_broken_answer_stays_broken() -> None:
    answer: UpstreamResponse = ScriptedResponse(b"a", ending="cut")
    assert await answer.read() == b"a"
    for _ in range(2):
        with pytest.raises(UpstreamUnreachable):
            await answer.read()
    assert not answer.is_ended


async def test_a_client_ends_once() -> None:
    recording = RecordingClient()
    client: Client = recording
    client.start(200, ())
    client.write(b"a", is_last=True)
    client.write(b"b")
    client.fail(BadRequest("late"))
    client.abort()
    assert (recording.body, recording.is_whole, recording.is_aborted, recording.error) == (b"a", True, False, None)


async def test_an_upstream_answers_when_it_is_told_to() -> None:
    upstream = ScriptedUpstream()
    port: Upstream = upstream
    body: RequestBody = FedBody(b"a", b"b", b"")
    sending = asyncio.create_task(port.send("POST", b"/", (), body))
    await upstream.called.wait()
    assert not sending.done()
    answer = ScriptedResponse()
    upstream.answer(answer)
    assert await sending is answer
    assert upstream.calls[0].uploaded == b"ab"


async def test_a_log_takes_records_and_misses_what_it_does_not_hold() -> None:
    archive = FakeArchive()
    port: Archive = archive
    commit = port.append(make_opening())
    assert not commit.done()
    assert await port.list_sessions() == ()
    assert (await port.verify()).faults == ()
    for missing in (
        port.list_exchanges("s"),
        port.list_calls("s"),
        port.load_request("x"),
        port.load_sent("x", 0),
        port.load_received("x", 0),
    ):
        with pytest.raises(NotFound):
            await missing
    await port.close()
