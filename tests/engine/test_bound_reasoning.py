"""Models that bind their reasoning to all before it (BEHAVIOUR B36, B37): what is removed when, and what is told."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.context.epoch_decision import IN_LOOP
from proxy.context.verbatim import OWN
from proxy.model.epoch import Epoch, Plan
from proxy.model.events import ReasoningRemoved
from proxy.model.exchange import Outcome, Round
from tests.support.managed import NAMED, ManagedEngine, Turn, answer, refuse
from tests.support.managing import MODEL, Message, make_history
from tests.support.strict_upstream import REFUSAL

HISTORY, SLOW = make_history(90, 1600), make_history(120, 200)
BOUND, OTHER = "claude-fable-5-2", "claude-opus-5-5"
TOO_LONG = "maximum context length is 8192 tokens. However, your messages resulted in 9400 tokens"
MISMATCH = json.dumps({"error": {"message": REFUSAL.format(3, 0)}}).encode()
NOTE = "removed the signed reasoning of {} messages, which is bound to another beginning"


def until(steps: int, history: Sequence[Message] = HISTORY) -> list[Message]:
    """A history of so many steps, whose assistant thought before each, and signed it."""
    return [think(message, place) for place, message in enumerate(history[: 2 + 2 * steps])]


def think(message: Message, place: int) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "reasoning_details": [{"type": "reasoning.text", "text": "hm" * 40, "signature": f"s{place}"}]}


def find_thoughts(body: bytes) -> list[str]:
    """The signatures of what was thought, in a request."""
    messages = json.loads(body)["messages"]
    return [each["signature"] for message in messages for each in message.get("reasoning_details") or ()]


def list_told(engine: ManagedEngine) -> list[tuple[str, str, int]]:
    return [(each.view, each.epoch, each.messages) for each in engine.events if isinstance(each, ReasoningRemoved)]


async def grow(engine: ManagedEngine, first: int, last: int, **members: Any) -> Turn:
    """The calls of an agent, each with one more step; the last of them."""
    for steps in range(first, last + 1):
        turn = await engine.send(until(steps), **{"model": BOUND, **members})
    return turn


async def open_epoch(engine: ManagedEngine, **members: Any) -> tuple[Epoch, int]:
    """The calls of an agent until one opens an epoch; that, and the number of its steps."""
    for steps in range(10, 40):
        turn = await engine.send(until(steps), **{"model": BOUND, **members})
        if engine.epochs:
            assert turn.plan.epoch == engine.epochs[0].id
            return engine.epochs[0], steps
    raise AssertionError("no epoch opened")


async def test_an_epoch_takes_all_reasoning_that_was_made_before_it_and_later_one_stays() -> None:
    engine = ManagedEngine()
    epoch, steps = await open_epoch(engine)
    opening = engine.upstream.calls[-1].body
    assert isinstance(opening, bytes)
    assert find_thoughts(opening) == []
    assert list_told(engine) == [(BOUND, epoch.id, steps)]
    later = await grow(engine, steps + 1, steps + 3)
    places = [2 + 2 * step for step in range(steps, steps + 3)]
    assert find_thoughts(later.sent) == [f"s{place}" for place in places]
    assert later.sent.startswith(opening[:-2])  # what was sent is sent again, byte for byte
    assert len(list_told(engine)) == 1


async def test_that_is_told_with_the_call() -> None:
    engine = ManagedEngine()
    epoch, steps = await open_epoch(engine)
    plan = engine.log.of(Plan)[-1]
    assert plan.reason == NOTE.format(steps)
    turn = await grow(engine, steps + 1, steps + 1)
    assert "x-palimpsest-notice" not in turn.labels
    assert epoch.tokens_after < epoch.tokens_before


async def test_a_model_that_does_not_bind_it_keeps_it() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine, model=MODEL)
    turn = await grow(engine, steps + 1, steps + 1, model=MODEL)
    kept = [message for message in turn.messages if message["role"] == "assistant"]
    assert len(find_thoughts(turn.sent)) == len(kept) >= 3
    assert list_told(engine) == []


async def test_within_a_turn_an_epoch_waits_for_the_high_mark() -> None:
    steps: dict[str, int] = {}
    for model, why in ((BOUND, "hard"), (MODEL, "soft")):
        engine = ManagedEngine()
        while not engine.epochs:
            steps[model] = steps.get(model, 30) + 1
            await engine.send(until(steps[model], SLOW), model=model)
        assert [epoch.why for epoch in engine.epochs] == [why]
        reasons = {plan.reason for plan in engine.log.of(Plan) if plan.pressure == "soft"}
        assert (reasons == {IN_LOOP}) == (model == BOUND)
    assert steps[MODEL] < steps[BOUND]


async def test_calls_that_are_observed_or_bypassed_have_only_what_was_made_under_no_epoch() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    for mode in (b"observe", b"bypass"):
        turn = await engine.send(until(steps + 3), ((b"x-palimpsest-mode", mode),), model=BOUND)
        own = [f"s{2 + 2 * step}" for step in range(steps)]
        assert find_thoughts(turn.sent) == own
        assert [message.get("content") for message in turn.messages] == [each["content"] for each in until(steps + 3)]
        assert turn.labels["x-palimpsest-notice"] == NOTE.format(3)
        assert ("x-palimpsest-session" in turn.labels) == (mode == b"observe")
        (record,) = [each for each in engine.log.of(Round) if each.exchange == engine.log.of(Round)[-1].exchange]
        assert record.body is not None  # which is not what the client sent
        assert engine.log.of(Plan)[-1].reason.endswith(NOTE.format(3))
    back = await grow(engine, steps + 4, steps + 4)
    assert find_thoughts(back.sent) == [f"s{2 + 2 * step}" for step in range(steps, steps + 3)]


async def test_what_another_model_sent_behind_an_epoch_goes_too() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    turn = await engine.send(until(8), model=OTHER)  # of a shorter history, which was its own
    assert turn.sent == turn.body
    long = await ManagedEngine.send(engine, until(steps + 3), ((b"x-palimpsest-ceiling", b"100000"),), model=OTHER)
    assert find_thoughts(long.sent) == [f"s{2 + 2 * step}" for step in range(steps)]
    assert long.labels["x-palimpsest-notice"] == NOTE.format(3)
    free = await engine.send(until(steps + 3), ((b"x-palimpsest-ceiling", b"100000"),), model=MODEL)
    assert free.sent == free.body


async def test_without_an_epoch_nothing_is_touched() -> None:
    engine = ManagedEngine()
    for mode in (b"manage", b"observe", b"bypass"):
        turn = await engine.send(until(6), ((b"x-palimpsest-mode", mode),), model=BOUND)
        assert turn.sent == turn.body
    assert list_told(engine) == []


async def test_after_a_restart_the_log_tells_what_was_made_under_which_epoch() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    again = ManagedEngine(after=engine)
    turn = await grow(again, steps + 3, steps + 3)
    assert find_thoughts(turn.sent) == [f"s{2 + 2 * step}" for step in range(steps, steps + 3)]


async def test_what_the_log_cannot_tell_is_not_sent() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    again = ManagedEngine(after=engine)
    again.log.forgets_uses = True
    turn = await grow(again, steps + 3, steps + 3)
    assert turn.plan.rung == "epoch"
    assert find_thoughts(turn.sent) == []


async def test_the_rescue_of_an_overflow_takes_it() -> None:
    engine = ManagedEngine()
    engine.upstream.prepare(refuse(TOO_LONG))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(10), model=BOUND)
    own, cut = turn.all_sent
    assert (own, find_thoughts(cut)) == (turn.body, [])
    later = await grow(engine, 11, 12)
    assert find_thoughts(later.sent) == ["s22", "s24"]


async def test_what_is_refused_for_another_reason_keeps_it() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    engine.upstream.prepare(answer(b'{"error":{"message":"no such parameter"}}', 400))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(steps + 3), model=BOUND)
    assert [epoch.why for epoch in engine.epochs] == ["hard", "refused"]
    assert find_thoughts(turn.all_sent[1]) == [f"s{2 + 2 * step}" for step in range(steps)]  # those of its own
    later = await grow(engine, steps + 4, steps + 4)
    assert find_thoughts(later.sent) == [f"s{2 + 2 * step}" for step in (*range(steps), steps + 3)]
    assert later.plan.rung == "original"


@pytest.mark.parametrize("text", [MISMATCH, b'{"error":{"message":"Invalid signature"}}'])
async def test_what_is_refused_anyway_goes_without_any_and_stays_so(text: bytes) -> None:
    engine = ManagedEngine()
    epoch, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 2)
    engine.upstream.prepare(answer(text, 400))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(steps + 3), model=BOUND)
    refused, sent = turn.all_sent
    assert (len(find_thoughts(refused)), find_thoughts(sent), turn.client.status) == (3, [], 200)
    assert json.loads(sent)["messages"][-1] == until(steps + 3)[-1]
    stripped = engine.epochs[-1]
    assert (stripped.why, stripped.parent) == ("unsigned", epoch.id)
    assert turn.labels["x-palimpsest-epoch"] == stripped.id
    assert "without signed reasoning" in turn.labels["x-palimpsest-notice"]
    for each in (engine, ManagedEngine(after=engine)):
        later = await grow(each, steps + 4, steps + 4)
        assert (later.plan.epoch, find_thoughts(later.sent)) == (stripped.id, [f"s{2 + 2 * (steps + 3)}"])
        assert later.sent.startswith(sent[:-2])


async def test_own_requests_are_mended_only_if_the_session_has_epochs() -> None:
    engine = ManagedEngine()
    await grow(engine, 5, 5)
    for mode in (b"observe", b"manage"):
        engine.upstream.prepare(answer(MISMATCH, 400))
        turn = await engine.send(until(6), ((b"x-palimpsest-mode", mode),), model=BOUND)
        assert (turn.client.status, len(turn.all_sent)) == (400, 1)
    _, steps = await open_epoch(engine)
    for mode in (b"observe", b"bypass"):
        engine.upstream.prepare(answer(MISMATCH, 400))
        engine.upstream.prepare(answer())
        turn = await engine.send(until(steps + 1), ((b"x-palimpsest-mode", mode),), model=BOUND)
        assert (turn.client.status, len(turn.all_sent)) == (200, 2)
        assert find_thoughts(turn.all_sent[1]) == []
        assert "without signed reasoning" in turn.labels["x-palimpsest-notice"]
        assert len(engine.epochs) == 1
    engine.upstream.prepare(answer(b'{"error":{"message":"other"}}', 400))
    turn = await engine.send(until(steps + 1), ((b"x-palimpsest-mode", b"observe"),), model=BOUND)
    assert (turn.client.status, len(turn.all_sent)) == (400, 1)


@pytest.mark.parametrize("mode", [b"manage", b"observe"])
async def test_what_was_made_with_another_credential_is_mended_where_it_is_new(mode: bytes) -> None:
    engine = ManagedEngine()
    await grow(engine, 6, 6)
    base = tuple((name, b"Bearer new" if name == b"authorization" else value) for name, value in NAMED)
    engine.upstream.prepare(answer(MISMATCH, 400))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(8), ((b"x-palimpsest-mode", mode),), model=BOUND, base=base)
    own, stripped = turn.all_sent
    assert (own, turn.client.status, find_thoughts(stripped)) == (turn.body, 200, [])
    assert json.loads(stripped)["messages"][-1] == until(8)[-1]
    assert "without signed reasoning" in turn.labels["x-palimpsest-notice"]


async def test_an_own_request_that_is_managed_is_mended_once() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    for each in (answer(MISMATCH, 400), answer(MISMATCH, 400)):
        engine.upstream.prepare(each)
    turn = await engine.send(until(8), model=BOUND)  # shorter than what the epoch replaces
    own, stripped = turn.all_sent
    assert own == turn.body
    assert find_thoughts(stripped) == []
    assert (turn.client.status, turn.client.body) == (400, MISMATCH)
    assert [each.status for each in engine.log.of(Outcome)][-2:] == [400, 400]
    assert steps > 8


async def test_an_epoch_that_is_lost_is_not_used_to_go_without() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    await grow(engine, steps + 1, steps + 1)
    engine.log.loses_epochs = True
    engine.upstream.prepare(answer(MISMATCH, 400))
    engine.upstream.prepare(answer())
    turn = await engine.send(until(steps + 2), model=BOUND)
    assert turn.client.status == 200
    assert find_thoughts(turn.all_sent[1]) == [f"s{2 + 2 * step}" for step in range(steps)]
    assert [rung for rung, _ in engine.failures] == ["epoch"]


async def test_a_model_that_refuses_it_is_taken_at_its_word() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine, model=MODEL)
    engine.upstream.prepare(answer(MISMATCH, 400))
    engine.upstream.prepare(answer())
    await engine.send(until(steps + 1), model=MODEL)
    later = await grow(engine, steps + 2, steps + 3, model=MODEL)
    assert find_thoughts(later.sent) == [f"s{2 + 2 * step}" for step in range(steps + 1, steps + 3)]


async def test_another_session_has_its_own() -> None:
    engine = ManagedEngine()
    _, steps = await open_epoch(engine)
    base = tuple((name, b"other" if name == b"x-session-id" else value) for name, value in NAMED)
    turn = await engine.send(until(steps), ((b"x-palimpsest-mode", b"observe"),), model=BOUND, base=base)
    assert turn.sent == turn.body
    assert OWN == ""
