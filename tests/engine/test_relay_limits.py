"""What answers say of rate limits is told by the bus, and only where they say something."""

import pytest

from proxy.model.events import ExchangeRecorded, LimitsTold
from proxy.model.exchange import ClientRequest, Headers
from tests.support.engine import JSON, LIMIT, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream, wait_out

REQUEST = ClientRequest("POST", b"/v1/chat/completions", (), b'{"model":"m","messages":[]}')
LEFT = (b"x-ratelimit-remaining-tokens", b"9")


async def list_told(status: int, *fields: tuple[bytes, bytes]) -> tuple[Engine, list[LimitsTold]]:
    headers: Headers = (*JSON, *fields)
    answer = ScriptedResponse(b"{}", status=status, headers=headers, ending="whole")
    engine = Engine(ScriptedUpstream(answer=answer), is_instant=True)
    await wait_out(engine.begin(REQUEST, "chat_completions", RecordingClient()))
    assert await engine.tasks.finish(LIMIT)
    return engine, [event for event in engine.events if isinstance(event, LimitsTold)]


async def test_an_answer_that_says_nothing_is_not_told() -> None:
    assert (await list_told(200, (b"x-request-id", b"r")))[1] == []


@pytest.mark.parametrize(("status", "fields"), [(200, (LEFT,)), (429, ()), (503, ((b"retry-after", b"1"),))])
async def test_what_is_said_is_told_with_whose_it_is(status: int, fields: Headers) -> None:
    engine, told = await list_told(status, *fields, (b"set-cookie", b"secret"))
    opening = engine.archive.opening
    kept = (*JSON, *fields)
    assert told == [LimitsTold(opening.exchange, "main", opening.session.tenant, "m", status, kept)]


async def test_a_recorded_exchange_names_its_model() -> None:
    engine, _ = await list_told(200)
    assert [event.model for event in engine.events if isinstance(event, ExchangeRecorded)] == ["m"]
