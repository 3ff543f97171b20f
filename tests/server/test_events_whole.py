"""Events and notes of the whole server: what webhooks and buses get of calls, and what epochs make of a note."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.engine.events.webhooks import sign
from proxy.sdk.events import EventBus
from tests.support.managing import spell
from tests.support.scripted import LIMIT, Message, ScriptedUpstream, answer
from tests.support.whole_server import CHAT, SAID, serving_whole

SECRET = "whsec_" + "c3Nz" * 8  # 24 times an s
TOLD = "[This call was made 3 times in a row"
FIELDS = {"authorization": "Bearer k", "x-palimpsest-session": "build"}


@pytest.fixture
async def receiver() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        server.answer_with(answer(b"", status="204 No Content"))
        yield server


async def wait_for(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens in another process, or task
            await asyncio.sleep(0.01)


async def test_webhooks_get_signed_events_and_a_bus_those_of_its_session(
    tmp_path: Path, upstream: ScriptedUpstream, receiver: ScriptedUpstream
) -> None:
    wanted = ["SESSION_CREATED", "MESSAGE_CREATED", "CALL_COMPLETED"]
    webhooks = [{"url": f"http://127.0.0.1:{receiver.port}/in", "secret": SECRET, "events": wanted}]
    heard: list[tuple[str, Any]] = []
    async with serving_whole(tmp_path, upstream, **{"events.webhooks": webhooks}) as server:
        session = await server.talk("first", 1)
        await wait_for(lambda: len(receiver.requests) >= 8)
        bus = EventBus()
        bus.follow(server.engine.events, session)
        bus.subscribe_all(lambda event, payload: heard.append((event, payload)))
        await server.talk("first", 2)
        await server.talk("second", 1)
        await bus.settle()
        bus.leave()
        metrics = (await server.client.get("/-/metrics")).text
    for asked in receiver.requests:
        id, seconds = asked.find(b"webhook-id").decode(), int(asked.find(b"webhook-timestamp"))
        assert asked.find(b"webhook-signature").decode() == sign(b"s" * 24, id, seconds, asked.body)
    told = [json.loads(asked.body) for asked in receiver.requests]
    assert {each["type"] for each in told} == set(wanted)
    assert sum(each["type"] == "SESSION_CREATED" for each in told) == 2, "the end waits for what is on its way"
    assert {payload.session for _, payload in heard} == {session}
    assert "CALL_COMPLETED" in {event for event, _ in heard}
    assert 'palimpsest_webhooks_total{host="127.0.0.1",verdict="delivered"}' in metrics


async def test_a_compaction_by_hand_tells_what_it_has_made_and_what_is_short(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    heard: list[tuple[str, Any]] = []
    async with serving_whole(tmp_path, upstream) as server:
        messages = make_steps(12, range(0))
        for count in (3, len(messages)):
            got = await server.client.post(CHAT, content=spell(messages[:count]), headers=FIELDS)
        session = got.headers["x-palimpsest-session"]
        bus = EventBus()
        bus.follow(server.engine.events, session)
        bus.subscribe_all(lambda event, payload: heard.append((event, payload)))
        made = await server.client.post(f"/-/api/sessions/{session}/compact", json={"level": 3})
        assert made.status_code == 200, made.text
        await bus.settle()
        bus.leave()
    told = [event for event, _ in heard]
    assert told.index("COMPACTION_TRIGGERED") < told.index("COMPACTION_COMPLETED") < told.index("EPOCH_OPENED")
    (result,) = (payload for event, payload in heard if event == "COMPACTION_COMPLETED")
    assert (result.session_id, result.level_used) == (session, 3)
    assert all(payload.why == "pruned" for event, payload in heard if event == "PART_UPDATED")


async def test_calls_do_not_wait_for_a_webhook_that_hangs(
    tmp_path: Path, upstream: ScriptedUpstream, receiver: ScriptedUpstream
) -> None:
    async def hang(wire: Any) -> None:
        await asyncio.Event().wait()

    receiver.script = hang
    webhooks = [{"url": f"http://127.0.0.1:{receiver.port}/in", "secret": SECRET}]
    async with serving_whole(tmp_path, upstream, **{"events.webhooks": webhooks}) as server:
        async with asyncio.timeout(LIMIT / 2):
            for n in range(5):
                await server.talk(f"talk{n}", 1)
    assert receiver.accepted


# --- notes to the model under epochs, and in histories that we hold --------------------------------------------------


def call(n: int, command: str) -> dict[str, Any]:
    made = {"id": f"c{n}", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"cmd": command})}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def give(n: int, output: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{n}", "content": output}


def make_steps(count: int, looping: range) -> list[dict[str, Any]]:
    """Calls with outputs of 300 words, the same in a loop."""
    steps = []
    for n in range(count):
        said = "make" if n in looping else f"cat {n}"
        output = f"{said} " * 300
        steps += [call(n, said), give(n, output)]
    return [{"role": "user", "content": "build it"}, *steps]


def list_places(asked: Message) -> list[int]:
    return [place for place, item in enumerate(json.loads(asked.body)["messages"]) if TOLD in json.dumps(item)]


async def test_a_note_stays_where_it_was_until_an_epoch_and_is_not_in_that(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    flags = {"budget.ceiling_tokens": 9000, "doom_loop.action": "annotate", "recall.inject": False}
    messages, epochs, pruned = make_steps(40, range(3, 6)), [], list[Any]()
    async with serving_whole(tmp_path, upstream, **flags) as server:
        bus = EventBus()
        bus.follow(server.engine.events, "")  # of all sessions
        bus.subscribe("PART_UPDATED", lambda event, payload: pruned.append(payload))
        for count in range(3, len(messages) + 1, 2):
            got = await server.client.post(CHAT, content=spell(messages[:count]), headers=FIELDS)
            epochs.append(got.headers.get("x-palimpsest-epoch", ""))
        counted = await server.client.post(
            CHAT, content=spell(messages[:13]), headers={**FIELDS, "x-palimpsest-mode": "observe"}
        )
        assert counted.status_code == 200
        await bus.settle()
    short = [payload.part.tool_call_id for payload in pruned if payload.why == "pruned"]
    assert len(short) == len(set(short)), "each is told once, whatever epochs follow"
    assert short and all(payload.part.tool_name == "bash" for payload in pruned)
    *asked, observed = [each for each in upstream.requests if each.body]  # one asks for a list of models
    places = [list_places(each) for each in asked]
    first = next(n for n, epoch in enumerate(epochs) if epoch)
    assert first > 6
    assert places[:first] == [[]] * 5 + [[12]] * (first - 5)
    assert places[first:] == [[]] * (len(asked) - first)
    assert list_places(observed) == []
    for n, (before, after) in enumerate(itertools.pairwise(asked)):
        if epochs[n] == epochs[n + 1]:
            sent, later = (json.loads(each.body)["messages"] for each in (before, after))
            assert later[: len(sent)] == sent


async def test_under_an_epoch_a_note_is_behind_its_messages(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    flags = {"budget.ceiling_tokens": 9000, "doom_loop.action": "annotate", "recall.inject": False}
    messages, epochs = make_steps(40, range(24, 28)), []
    async with serving_whole(tmp_path, upstream, **flags) as server:
        for count in range(3, len(messages) + 1, 2):
            got = await server.client.post(CHAT, content=spell(messages[:count]), headers=FIELDS)
            epochs.append(got.headers.get("x-palimpsest-epoch", ""))
    asked = [each for each in upstream.requests if each.body]
    places = [list_places(each) for each in asked]
    told = [n for n, found in enumerate(places) if found]
    assert told[0] == 26, "that has three outputs of the loop"
    assert told == list(range(26, told[-1] + 1))
    assert all(epochs[n] and epochs[n] == epochs[26] and places[n] == places[26] for n in told)
    for before, after in itertools.pairwise(asked[n] for n in told):
        sent, later = (json.loads(each.body)["messages"] for each in (before, after))
        assert later[: len(sent)] == sent


async def test_a_history_that_we_hold_is_annotated_as_any_other(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    answers = [call(n, "make") for n in range(4)]

    async with serving_whole(tmp_path, upstream, **{"doom_loop.action": "annotate"}) as server:
        say_calls(upstream, answers)
        content: dict[str, Any] = {"role": "user", "content": "build it"}
        for n in range(5):
            held = {"x-palimpsest-history": "server" if n else "new"}
            got = await server.client.post(CHAT, content=spell([content]), headers={**FIELDS, **held})
            assert got.status_code == 200, got.text
            assert TOLD not in got.text
            content = give(n, "failed")
    assert [list_places(each) for each in upstream.requests] == [[], [], [], [6], [6]]


def say_calls(upstream: ScriptedUpstream, answers: list[dict[str, Any]]) -> None:
    async def play(wire: Any) -> None:
        while True:
            upstream.requests.append(await wire.read_request())
            said = answers.pop(0) if answers else SAID
            body = {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
            wire.send(answer(json.dumps(body).encode(), "Content-Type: application/json"))

    upstream.script = play
