import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.engine.history.policy import FIRM, GENTLE, URGENT, NudgePolicy
from proxy.engine.policy import Provider
from proxy.model.errors import BadRequest, SessionIdle, TooSoon
from proxy.model.events import AgentNudgedEvent, SessionIdleEvent
from tests.support.engine import RecordingClient
from tests.support.holding import WIRES, HeldClient, Wire, answer, result, user

ON = NudgePolicy(enabled=True)
TICK = (b"x-palimpsest-source", b"tick")
WAIT = (b"x-palimpsest-source", b"tick:wait")

Open = Callable[..., Awaitable[HeldClient]]


@pytest.fixture
async def open_client() -> AsyncIterator[Open]:
    opened: list[HeldClient] = []

    async def make(
        wire: Wire = "chat_completions", *, steps: int = 12, nudges: NudgePolicy = ON, **more: Any
    ) -> HeldClient:
        """A client whose agent has taken so many steps since it was prompted."""
        held = HeldClient(wire, nudges=nudges, **more)
        opened.append(held)
        brought = [user("do it")]
        for step in range(steps):
            held.upstream.reply(answer(wire, f"step {step}", f"call_{step}"))
            await held.call(brought, history="server" if step else "new")
            brought = [result(wire, f"call_{step}")]
        await held.call(brought, history="server" if steps else "new")
        held.advance(200)
        return held

    yield make
    for each in opened:
        await each.close()


def told(client: RecordingClient, kind: type[Exception]) -> str:
    assert isinstance(client.error, kind), (client.error, client.status)
    return str(client.error)


def list_events(held: HeldClient) -> list[tuple[str, int]]:
    """The nudges so far, and when the session went idle."""
    found = [("nudge", e.attempt) for e in held.engine.events if isinstance(e, AgentNudgedEvent)]
    return found + [("idle", e.attempts) for e in held.engine.events if isinstance(e, SessionIdleEvent)]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_nudge_stands_last_and_is_no_part_of_the_history(open_client: Open, wire: Wire) -> None:
    held = await open_client(wire)
    before = held.words
    assert (await held.call([], TICK)).status == 200
    assert held.words == [*before, "word 1", GENTLE]
    session = await held.find_session()
    row = (await held.log.list_exchanges(session))[-1]
    assert GENTLE.encode() not in await held.log.load_request(row.id)
    assert await held.log.load_sent(row.id, 0) == held.upstream.calls[-1].body
    assert json.loads(await held.log.load_held(row.id)) == {"model": "m", held.form.items_key: []}
    held.advance(40)
    await held.call([user("well done")])
    assert held.words == [*before, "word 1", "word 2", "well done"]
    steps = [(each.relation, each.depth - each.base) for each in await held.log.list_exchanges(session)]
    assert steps[-2:] == [("append", 0), ("append", 1)]
    await held.reopen()
    await held.call([user("more")])
    assert held.words == [*before, "word 1", "word 2", "well done", "word 3", "more"]


async def test_nudges_grow_firmer_until_the_session_is_idle(open_client: Open) -> None:
    held = await open_client()
    before = held.words
    for text in (GENTLE, FIRM, URGENT):
        held.upstream.reply(answer("chat_completions", ""))
        assert (await held.call([], TICK)).status == 200
        assert held.words == [*before, "word 1", text]
        assert "tick" not in json.dumps(held.upstream.sent)
        held.advance(31)
    assert list_events(held) == [("nudge", 1), ("nudge", 2), ("nudge", 3), ("idle", 3)]
    client = await held.call([], TICK)
    assert "3 nudges had no answer" in told(client, SessionIdle)
    assert (client.error.status, client.error.code) == (409, "session_idle")  # type: ignore[union-attr]
    held.advance(1000)
    told(await held.call([], WAIT), SessionIdle)
    await held.call([user("go on")], TICK)  # a nudge of the client's own words prompts nobody
    told(await held.call([], TICK), TooSoon)
    held.advance(31)
    assert (await held.call([], TICK)).status == 200
    assert held.words[-1] == GENTLE  # it was answered


async def test_a_prompt_ends_the_idleness(open_client: Open) -> None:
    held = await open_client(nudges=NudgePolicy(enabled=True, texts=("hello?",)))
    held.upstream.reply({"error": {"message": "busy"}}, 500)
    assert (await held.call([], TICK)).status == 500
    held.advance(31)
    told(await held.call([], TICK), SessionIdle)
    assert (await held.call([user("go on")])).status == 200
    assert held.words[-1] == "go on"
    held.advance(31)
    client = await held.call([], TICK)
    assert (client.status, held.words[-1]) == (200, "word 2")  # somebody has prompted it lately


async def test_an_answer_begins_the_count_anew(open_client: Open) -> None:
    held = await open_client()
    held.upstream.reply(answer("chat_completions", ""))
    await held.call([], TICK)
    held.advance(31)
    held.upstream.reply(answer("chat_completions", "", "call_a"))
    await held.call([], TICK)
    assert held.words[-1] == FIRM
    await held.call([result("chat_completions", "call_a")])
    held.advance(31)
    await held.call([], TICK)
    assert held.words[-1] == GENTLE


async def test_sooner_than_that_is_too_soon(open_client: Open) -> None:
    held = await open_client()
    await held.call([], TICK)
    held.advance(10.5)
    client = await held.call([], TICK)
    assert "30 seconds" in told(client, TooSoon)
    assert client.error.retry_after == pytest.approx(19.5)  # type: ignore[union-attr]
    assert "120 seconds" in told(await held.call([], WAIT), TooSoon)
    held.advance(20)
    told(await held.call([], WAIT), TooSoon)
    assert (await held.call([], TICK)).status == 200
    await held.reopen()
    held.advance(5)
    told(await held.call([], TICK), TooSoon)


async def test_with_a_prompt_in_the_window_nothing_is_added(open_client: Open) -> None:
    held = await open_client(steps=2)
    before = held.words
    assert (await held.call([], TICK)).status == 200
    assert held.words == [*before, "word 1"]
    assert list_events(held) == []


async def test_where_that_would_be_a_prefill_the_first_text_stands_last(open_client: Open) -> None:
    held = await open_client("anthropic_messages", steps=2)
    for _ in range(2):
        assert (await held.call([], TICK)).status == 200
        assert held.words[-1] == GENTLE
    assert list_events(held) == []


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_what_a_request_told_of_its_message_counts(open_client: Open, is_stopped: bool) -> None:
    held = await open_client(steps=12)
    await held.call([user("tick tock")], TICK)
    held.advance(31)
    if is_stopped:
        await held.reopen()
    await held.call([], TICK)
    assert held.words[-1] == GENTLE  # the message was a nudge, no prompt
    session = await held.find_session()
    notes = (await held.log.load_context(session)).sources
    assert [(note.kind, len(note.node)) for note in notes] == [("tick", 16)]


async def test_a_client_that_asks_for_no_nudge_or_may_not_is_told(open_client: Open) -> None:
    held = await open_client()
    assert "x-palimpsest-source: tick" in told(await held.call([]), BadRequest)
    off = await open_client(nudges=NudgePolicy())
    assert "nudge.enabled" in told(await off.call([], TICK), BadRequest)
    assert "server-held" not in told(await held.call([], TICK, history=""), BadRequest)
    assert "x-palimpsest-history" in told(await held.call([], TICK, history=""), BadRequest)
    assert "begins with a message" in told(await held.call([], TICK, history="new", session="n"), BadRequest)


async def test_an_upstream_that_takes_no_two_answers_in_a_row_gets_no_nudge(open_client: Open) -> None:
    held = await open_client(nudges=ON, provider=Provider(strict_alternation=True))
    assert "strict_alternation" in told(await held.call([], TICK), BadRequest)
    assert (await held.call([user("a")])).status == 200


async def test_an_epoch_is_kept_under_a_nudge(open_client: Open) -> None:
    held = await open_client(steps=60, ceiling=1500)
    client = await held.call([], TICK)
    assert client.status == 200
    assert dict(client.labels)[b"x-palimpsest-epoch"]
    assert held.words[-1] == GENTLE
    assert len(held.items) < 100
    await held.call([user("more")])
    assert held.words[-2:] == ["word 2", "more"]
