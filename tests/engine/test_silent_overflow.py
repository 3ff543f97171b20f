"""Upstreams that accept too long a request without an error, or refuse it without a word (WIRES §7)."""

import json

import pytest

from proxy.model.events import SilentOverflowSeen
from tests.support.engine import ScriptedResponse
from tests.support.managed import CEILING, ManagedEngine, answer
from tests.support.managing import Message, make_history

HISTORY = make_history(60, 1600)
FULL = "model_context_window_exceeded"


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


def finish(reason: str = "stop", **usage: int) -> ScriptedResponse:
    choice = {"message": {"role": "assistant", "content": "hi"}, "finish_reason": reason}
    return answer(json.dumps({"choices": [choice], "usage": usage}).encode())


def seen(engine: ManagedEngine) -> list[SilentOverflowSeen]:
    return [event for event in engine.events if isinstance(event, SilentOverflowSeen)]


async def test_after_a_full_window_the_next_request_opens_an_epoch_below_the_soft_mark() -> None:
    engine = ManagedEngine(finish(FULL), ceiling=100_000, window=None)
    first = await engine.send(until(10))
    assert first.client.body == b'{"choices": [{"message": {"role": "assistant", "content": "hi"}, ' + (
        b'"finish_reason": "model_context_window_exceeded"}], "usage": {}}'
    )
    assert json.loads(first.sent)["messages"] == until(10)
    assert [event.kind for event in seen(engine)] == ["stopped"]
    second = await engine.send(until(11))
    [epoch] = engine.epochs
    assert (epoch.why, epoch.exchange) == ("overflow", second.exchange)
    assert len(second.sent) < 0.8 * len(first.sent)
    third = await engine.send(until(12))  # once is enough
    assert len(engine.epochs) == 1
    assert third.messages[: len(second.messages) - 2] == second.messages[:-2]


async def test_a_server_that_reads_only_the_end_has_its_window_learned_from_that() -> None:
    engine = ManagedEngine(finish(prompt_tokens=2_000, completion_tokens=5), ceiling=100_000, window=None)
    await engine.send(until(20))
    [event] = seen(engine)
    assert (event.kind, event.window) == ("truncated", 2_000)
    second = await engine.send(until(21))
    assert engine.epochs[0].why == "overflow"
    assert len(second.sent) // 4 < 2_000 * 1.3  # QuarterTokens, of text without the JSON around it


async def test_a_counted_request_is_compared_by_its_count() -> None:
    engine = ManagedEngine(finish(prompt_tokens=2_000, completion_tokens=5), ceiling=CEILING, window=None)
    await engine.send(until(14))
    assert [event.kind for event in seen(engine)] == ["truncated"]
    assert len(engine.epochs) == 0
    await engine.send(until(15))
    assert [epoch.why for epoch in engine.epochs] == ["overflow"]


async def test_a_server_that_counts_only_what_is_new_is_not_taken_for_one_that_reads_only_the_end() -> None:
    sizes = [sum(len(json.dumps(message)) for message in part) // 4 for part in (until(20), until(24)[42:])]
    answers = [finish(prompt_tokens=tokens, completion_tokens=5) for tokens in (*sizes, 4_000)]
    engine = ManagedEngine(*answers, ceiling=16_000, window=None)
    await engine.send(until(20))
    await engine.send(until(24))
    assert (seen(engine), sizes[1] > 1_024) == ([], True)
    await engine.send(until(25))  # that is neither all nor what is new
    assert [event.kind for event in seen(engine)] == ["truncated"]


async def test_a_retry_of_the_same_history_is_shortened_too() -> None:
    engine = ManagedEngine(finish(FULL, prompt_tokens=5_000, completion_tokens=10), ceiling=100_000, window=None)
    await engine.send(until(10))
    second = await engine.send(until(10))
    assert [epoch.why for epoch in engine.epochs] == ["overflow"]
    assert len(second.sent) < len(second.body)


async def test_a_short_request_and_one_with_images_are_not_compared() -> None:
    engine = ManagedEngine(
        finish(prompt_tokens=10, completion_tokens=5),
        finish(prompt_tokens=10, completion_tokens=5),
        ceiling=100_000,
        window=None,
    )
    await engine.send(until(2))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}}
    await engine.send([HISTORY[0], {"role": "user", "content": [image]}])
    assert seen(engine) == []


async def test_a_retry_of_another_view_is_left_alone() -> None:
    engine = ManagedEngine(finish(FULL), ceiling=100_000, window=None)
    await engine.send(until(10))
    other = await engine.send(until(11), model="gpt-4o-mini")
    assert (engine.epochs, len(other.sent)) == ([], len(other.body))


@pytest.mark.parametrize(("window", "sends"), [(None, 2), (16_000, 2), (1_000_000, 1)])
async def test_a_refusal_without_a_word_is_an_overflow_where_the_window_may_be_reached(
    window: int | None, sends: int
) -> None:
    engine = ManagedEngine(answer(b"", 400), answer(), ceiling=100_000, window=window)
    turn = await engine.send(until(20))
    assert len(turn.all_sent) == sends
    assert turn.client.status == (200 if sends == 2 else 400)
