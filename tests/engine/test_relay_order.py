"""What need not be waited for is done behind what is: the request upstream, the answer to the client."""

import asyncio
from typing import Any

from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import ClientRequest
from proxy.model.log import Record
from tests.support.engine import JSON, LIMIT, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream, wait_out

REQUEST = ClientRequest("POST", b"/v1/chat/completions", (), b'{"model":"m","messages":[]}')


async def test_a_request_is_on_its_way_before_its_opening_is_queued_and_nothing_comes_between() -> None:
    happened: list[str] = []
    engine, client = Engine(ScriptedUpstream()), RecordingClient()
    send, append = engine.upstream.send, engine.archive.append

    async def note_and_send(*request: Any) -> ScriptedResponse:
        happened.append("sent")
        asyncio.get_running_loop().call_soon(happened.append, "other")
        return await send(*request)

    def note_and_append(*records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        happened.append("queued")
        return append(*records, is_urgent=is_urgent)

    engine.upstream.send = note_and_send  # type: ignore[method-assign,assignment]
    engine.archive.append = note_and_append  # type: ignore[method-assign]
    task = engine.begin(REQUEST, "chat_completions", client)
    async with asyncio.timeout(LIMIT):
        await engine.archive.flushed.wait()
    assert happened == ["sent", "queued", "other"]
    task.cancel()
    await wait_out(task)


async def test_a_client_has_its_answer_before_anybody_is_told_of_it() -> None:
    answer = ScriptedResponse(b"{}", headers=JSON, ending="whole")
    engine, client = Engine(ScriptedUpstream(answer=answer), is_instant=True), RecordingClient()
    told: list[bytes] = []
    engine.bus.subscribe(ExchangeRecorded, lambda event: told.append(client.body))
    await wait_out(engine.begin(REQUEST, "chat_completions", client))
    assert await engine.tasks.finish(LIMIT)
    assert told == [b"{}"]
