"""An upstream that refuses what was rewritten (BEHAVIOUR B8a). `test_bound_reasoning` has what is exact (B37)."""

import json
from itertools import pairwise
from typing import Any

import pytest

from proxy.engine.policy import Provider
from proxy.model.events import CeilingExceededEvent, EpochOpened, ReasoningRemoved
from proxy.model.exchange import Outcome, Round
from tests.support.managed import ManagedEngine, Turn, answer, cut_end, refuse
from tests.support.managing import make_history

HISTORY = make_history(90, 1600)
DAY = 24 * 60 * 60
REFUSAL = json.dumps({"error": {"message": "messages.3: Invalid `signature`"}}).encode()
TOO_LONG = "maximum context length is 8192 tokens. However, your messages resulted in 9400 tokens"


def until(steps: int) -> list[Any]:
    return list(HISTORY[: 2 + 2 * steps])


def sign(messages: list[Any], first: int = 0) -> list[Any]:
    """The same with signed reasoning in each of the assistant's messages from one on."""
    details = [{"type": "reasoning.text", "text": "hm", "signature": "c2ln"}]
    return [
        {**message, "reasoning_details": details} if message["role"] == "assistant" and place >= first else message
        for place, message in enumerate(messages)
    ]


async def open_epoch(engine: ManagedEngine, *answers: Any, signed: int = 1000) -> Turn:
    """A history below the high mark, then one above it, which is answered so."""
    await engine.send(sign(until(14), signed))
    for each in answers:
        engine.upstream.prepare(each)
    return await engine.send(sign(until(22), signed))


@pytest.mark.parametrize("status", [400, 404, 415, 422])
async def test_what_is_refused_goes_as_the_client_sent_it_and_the_view_is_left_alone(status: int) -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine, answer(REFUSAL, status), answer())
    rewritten, own = turn.all_sent
    assert (own, turn.client.status) == (turn.body, 200)
    assert rewritten != own
    refused, stands = engine.epochs
    assert (stands.why, stands.parent, stands.depth, stands.exchange) == ("refused", refused.id, 0, turn.exchange)
    assert [plan.rung for plan in turn.plans] == ["plan", "original"]
    assert "refused the rewritten request" in turn.plans[1].reason
    assert "as the client sent it" in turn.labels["x-palimpsest-notice"]
    assert EpochOpened(stands) in engine.events
    assert [(each.k, each.status) for each in engine.log.of(Outcome) if each.exchange == turn.exchange] == [
        (0, status),
        (1, 200),
    ]
    assert [each.body is None for each in engine.log.of(Round) if each.exchange == turn.exchange] == [False, True]
    later = await engine.send(until(30))
    assert (later.sent, later.plan.rung, later.plan.epoch) == (later.body, "original", stands.id)
    assert later.labels["x-palimpsest-mode"] == "observe; stood-down:the upstream refused the last epoch"
    assert later.labels["x-palimpsest-notice"].startswith("above the ceiling: ")
    excess = [event for event in engine.events if isinstance(event, CeilingExceededEvent)]
    assert [event.exchange for event in excess] == [turn.exchange, later.exchange]
    assert all(event.tokens > event.usable for event in excess)


async def test_what_an_upstream_says_is_not_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = ManagedEngine()
    await open_epoch(engine, answer(b'{"error":{"message":"not for sk-0123456789"}}', 400), answer())
    assert "refused the rewritten request with 400" in caplog.text
    assert "sk-0123456789" not in caplog.text


async def test_a_refusal_holds_for_a_day_and_over_a_restart() -> None:
    engine = ManagedEngine()
    await open_epoch(engine, answer(REFUSAL, 400), answer())
    again = ManagedEngine(after=engine)
    held = await again.send(until(30))
    assert held.sent == held.body
    assert held.plan.reason.endswith("; the upstream refused the last epoch")
    again.clock.advance(DAY - 60)
    assert (await again.send(until(34))).plan.rung == "original"
    again.clock.advance(120)
    opened = await again.send(until(38))
    assert (opened.plan.rung, again.epochs[-1].parent) == ("plan", again.epochs[1].id)


@pytest.mark.parametrize("status", [401, 402, 403, 408, 429, 500, 503])
async def test_refusals_that_are_not_about_the_form_go_on_as_they_came(status: int) -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine, answer(REFUSAL, status))
    assert (turn.client.status, len(turn.all_sent), len(engine.epochs)) == (status, 1, 1)


async def test_the_clients_own_refusal_is_the_answer_to_its_own_request() -> None:
    engine = ManagedEngine()
    own = json.dumps({"error": {"message": "no such model"}}).encode()
    turn = await open_epoch(engine, answer(REFUSAL, 400), answer(own, 404))
    assert (turn.client.status, turn.client.body) == (404, own)
    assert turn.all_sent[1] == turn.body
    assert [epoch.why for epoch in engine.epochs] == ["hard"]


async def test_a_request_that_was_not_rewritten_is_sent_once() -> None:
    engine = ManagedEngine()
    engine.upstream.prepare(answer(REFUSAL, 400))
    turn = await engine.send(until(14))
    assert (turn.client.status, turn.all_sent) == (400, [turn.body])


async def test_signed_reasoning_goes_first_and_stays_away() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine, answer(REFUSAL, 400), answer(), signed=0)
    signed, unsigned = turn.all_sent
    assert b"signature" in signed
    assert b"reasoning_details" not in unsigned
    assert json.loads(unsigned)["messages"][-1] == HISTORY[45]
    assert "without signed reasoning" in turn.labels["x-palimpsest-notice"]
    hard, stripped = engine.epochs
    assert (hard.why, stripped.why, stripped.parent) == ("hard", "unsigned", hard.id)
    assert [plan.epoch for plan in turn.plans] == [hard.id, stripped.id]
    assert turn.plans[1].reason.endswith(
        "removed the signed reasoning of 4 messages, which is bound to another beginning"
    )
    told = [event for event in engine.events if isinstance(event, ReasoningRemoved)]
    assert [(event.epoch, event.messages) for event in told] == [(stripped.id, 4)]
    later = await engine.send(sign(until(24)))
    assert (later.plan.rung, later.plan.epoch) == ("epoch", stripped.id)
    assert later.sent.startswith(cut_end(unsigned))
    kept = [place for place, message in enumerate(later.messages) if "reasoning_details" in message]
    assert kept == [len(json.loads(unsigned)["messages"])]  # the one that may be its answer


async def test_what_is_refused_without_signed_reasoning_too_goes_as_the_client_sent_it() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine, answer(REFUSAL, 400), answer(REFUSAL, 400), answer(), signed=0)
    assert turn.all_sent[2] == turn.body
    assert len(turn.all_sent) == 3
    assert [epoch.why for epoch in engine.epochs] == ["hard", "unsigned", "refused"]
    assert [plan.k for plan in turn.plans] == [0, 1, 2]


async def test_where_the_clients_own_does_not_fit_a_minimal_plan_goes_out() -> None:
    engine = ManagedEngine(window=10_500)
    turn = await open_epoch(engine, answer(b"no", 400), answer(), signed=0)
    rewritten, minimal = turn.all_sent
    assert b"signature" in rewritten
    assert b"signature" not in minimal
    assert len(minimal) < len(rewritten)
    assert (turn.client.status, [epoch.why for epoch in engine.epochs]) == (200, ["hard", "overflow"])
    assert [plan.epoch for plan in turn.plans] == [epoch.id for epoch in engine.epochs]


async def test_an_overflow_of_the_clients_own_is_cut_and_no_form_is_tried_twice() -> None:
    engine = ManagedEngine()
    long = refuse(TOO_LONG)
    turn = await open_epoch(engine, answer(REFUSAL, 400), long, answer(REFUSAL, 400), answer(REFUSAL, 400))
    assert len(turn.all_sent) <= 4
    assert len(set(turn.all_sent)) == len(turn.all_sent)
    assert turn.client.status == 400


ROLES = json.dumps({"error": {"code": 500, "message": "Jinja Exception: conversation roles must alternate"}}).encode()


def repeats_user(sent: bytes) -> bool:
    """Whether two messages of the user follow each other."""
    roles = [message["role"] for message in json.loads(sent)["messages"]]
    return ("user", "user") in pairwise(roles)


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_roles_that_must_alternate_are_learned_whatever_the_status(status: int) -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine, answer(ROLES, status), answer())
    refused, joined = turn.all_sent
    assert (turn.client.status, repeats_user(refused), repeats_user(joined)) == (200, True, False)
    assert [(epoch.why, epoch.depth > 0) for epoch in engine.epochs] == [("hard", True), ("alternating", True)]
    assert [plan.epoch for plan in turn.plans] == [epoch.id for epoch in engine.epochs]
    assert "so that roles alternate" in turn.labels["x-palimpsest-notice"]
    kept = await engine.send(until(24))
    assert (kept.plan.rung, kept.plan.epoch) == ("epoch", engine.epochs[1].id)
    assert kept.sent.startswith(cut_end(joined))
    opened = await engine.send(until(34))
    assert (opened.plan.rung, engine.epochs[-1].why) == ("plan", "hard")
    assert not repeats_user(opened.sent)


async def test_roles_that_must_alternate_are_remembered_over_a_restart_for_a_day() -> None:
    engine = ManagedEngine()
    await open_epoch(engine, answer(ROLES, 500), answer())
    again = ManagedEngine(after=engine)
    opened = await again.send(until(34))
    assert (opened.plan.rung, repeats_user(opened.sent)) == ("plan", False)
    again.clock.advance(DAY + 60)
    assert repeats_user((await again.send(until(48))).sent)


async def test_where_roles_alternate_already_what_is_refused_goes_as_the_client_sent_it() -> None:
    engine = ManagedEngine(provider=Provider(strict_alternation=True))
    turn = await open_epoch(engine, answer(ROLES, 500), answer())
    assert (turn.client.status, turn.all_sent[-1]) == (200, turn.body)
    assert [epoch.why for epoch in engine.epochs] == ["hard", "refused"]
