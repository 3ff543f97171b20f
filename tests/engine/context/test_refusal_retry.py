"""A call that is refused as too long: fewer tokens asked for, or a shorter context, once; else its own answer."""

import json
from typing import Any

import pytest

from proxy.engine.context.refusal_retry import RefusalRetry
from proxy.model.epoch import Epoch
from proxy.model.exchange import Outcome, Round
from tests.support.managed import ContextLog, ManagedEngine, OwnBuilder, answer, cut_end, refuse
from tests.support.managing import Message, StatedCatalog, make_history

HISTORY = make_history(60, 1600)
LONG = HISTORY[: 2 + 2 * 22]
CONTEXT = "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens."
BOTH = (
    "This model's maximum context length is {} tokens. However, you requested {} tokens"
    " ({} in the messages, {} in the completion)."
)


def fail(*_: object) -> Any:
    raise RuntimeError("the builder is out of order")


def count(body: bytes) -> int:
    """Tokens near enough: a quarter of the bytes."""
    return len(body) // 4


async def test_what_is_refused_is_sent_once_more_under_a_new_epoch() -> None:
    engine = ManagedEngine(refuse(CONTEXT.format(8192, 9500)), answer(), ceiling=None, window=None)
    turn = await engine.send(LONG)
    first, second = turn.all_sent
    assert (turn.client.status, first) == (200, turn.body)
    assert count(second) < 8192 * 0.75
    (epoch,) = engine.epochs
    assert (epoch.id, epoch.why, epoch.exchange) == (f"{turn.exchange}-1", "overflow", turn.exchange)
    (plan,) = turn.plans
    assert (plan.k, plan.rung, plan.epoch, plan.pressure) == (1, "plan", epoch.id, "hard")
    assert plan.tokens_upstream is not None
    assert plan.tokens_client is not None
    assert plan.tokens_upstream <= plan.usable < plan.tokens_client
    rounds = engine.log.of(Round)
    assert (rounds[0].k, rounds[0].body) == (0, None)
    assert (rounds[1].k, rounds[1].body is not None) == (1, True)
    assert [(each.k, each.status) for each in engine.log.of(Outcome)] == [(0, 400), (1, 200)]
    records = [type(record) for each in engine.log.appended for record in each.records]
    assert records.index(Epoch) < len(records) - 1 - records[::-1].index(Round)


async def test_the_epoch_of_a_rescue_is_waited_for_no_longer_than_the_log_needs() -> None:
    engine = ManagedEngine(
        refuse(CONTEXT.format(8192, 9500)), archive=ContextLog(is_lazy=True), ceiling=None, window=None
    )
    engine.upstream.prepare(answer())
    turn = await engine.send(LONG)
    assert (turn.client.status, len(turn.all_sent), engine.failures) == (200, 2, [])


async def test_later_requests_go_on_under_it_and_the_same_history_is_not_refused_again() -> None:
    engine = ManagedEngine(ceiling=20_000)
    await engine.send(HISTORY[: 2 + 2 * 14])
    engine.upstream.prepare(refuse(CONTEXT.format(8192, 9500)))
    engine.upstream.prepare(answer())
    turn = await engine.send(LONG)
    again = await engine.send(LONG)
    assert again.sent == turn.all_sent[1]
    later = await engine.send(HISTORY[: 2 + 2 * 23])
    assert later.sent.startswith(cut_end(again.sent))
    assert len(engine.epochs) == 1


async def test_a_history_that_was_sent_under_an_epoch_is_cut_anew() -> None:
    engine = ManagedEngine(ceiling=20_000)
    opened = await engine.send(HISTORY[: 2 + 2 * 50])
    assert opened.plan.rung == "plan"
    await engine.send(HISTORY[: 2 + 2 * 55])
    engine.upstream.prepare(refuse(CONTEXT.format(4096, 8000)))
    engine.upstream.prepare(answer())
    turn = await engine.send(HISTORY[: 2 + 2 * 56])
    refused, cut = turn.all_sent
    assert refused.startswith(cut_end(opened.sent))
    assert count(cut) < 4096 * 0.75
    assert engine.epochs[-1].parent == opened.exchange
    again = await engine.send(HISTORY[: 2 + 2 * 56])
    assert again.sent == cut


async def test_fewer_tokens_of_output_are_asked_for_where_that_is_all_it_takes() -> None:
    message = BOTH.format(16_000, 16_500, 9_500, 7_000)
    engine = ManagedEngine(refuse(message), answer(), ceiling=None)
    turn = await engine.send(LONG, max_tokens=7_000)
    first, second = turn.all_sent
    assert first == turn.body
    assert json.loads(second) == {**json.loads(first), "max_tokens": 6_500}
    (plan,) = turn.plans
    assert (plan.k, plan.rung, plan.epoch) == (1, "original", "")
    assert "lowered from 7000 to 6500" in plan.reason
    assert engine.epochs == []


async def test_under_an_epoch_fewer_tokens_are_asked_for_too() -> None:
    engine = ManagedEngine(answer(), refuse(BOTH.format(16_000, 16_500, 9_500, 7_000)), answer())
    opened = await engine.send(LONG, max_tokens=7_000)
    turn = await engine.send(HISTORY[: 2 + 2 * 23], max_tokens=7_000)
    first, second = turn.all_sent
    assert json.loads(second) == {**json.loads(first), "max_tokens": 6_500}
    assert [(plan.k, plan.rung, plan.epoch) for plan in turn.plans] == [
        (0, "epoch", opened.exchange),
        (1, "epoch", opened.exchange),
    ]


@pytest.mark.parametrize("is_believed", [True, False])
async def test_where_too_little_output_would_be_left_the_context_is_cut_so_that_all_fits(
    monkeypatch: pytest.MonkeyPatch, *, is_believed: bool
) -> None:
    message = BOTH.format(12_000, 17_500, 9_500, 8_000)
    engine = ManagedEngine(refuse(message), answer(), ceiling=None)
    if not is_believed:
        monkeypatch.setattr(StatedCatalog, "note_limit", lambda *_, **__: None)
    turn = await engine.send(LONG, max_tokens=8_000)
    _, second = turn.all_sent
    assert json.loads(second)["max_tokens"] == 8_000
    assert turn.plans[-1].usable + 8_000 < 12_000
    assert count(second) <= turn.plans[-1].usable
    assert [plan.rung for plan in turn.plans][-1] in ("plan", "minimal")


async def test_where_no_less_output_can_be_asked_for_the_context_is_cut() -> None:
    message = BOTH.format(16_000, 16_500, 9_500, 7_000)
    asked: tuple[dict[str, Any], ...] = ({"max_tokens": 5_000}, {})
    for members in asked:
        engine = ManagedEngine(refuse(message), answer(), ceiling=None)
        turn = await engine.send(LONG, **members)
        first, second = turn.all_sent
        assert count(second) < count(first)
        assert json.loads(second).get("max_tokens") == members.get("max_tokens")


async def test_without_a_number_a_good_part_is_cut() -> None:
    engine = ManagedEngine(refuse("input exceeds the context window of this model"), answer(), ceiling=None)
    turn = await engine.send(LONG)
    first, second = turn.all_sent
    assert count(second) < 0.7 * count(first)


async def test_a_window_that_is_not_to_be_believed_is_not_cut_down_to(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ManagedEngine(refuse(CONTEXT.format(60, 9500)), answer(), ceiling=None)
    monkeypatch.setattr(StatedCatalog, "note_limit", lambda *_, **__: None)
    turn = await engine.send(LONG)
    first, second = turn.all_sent
    assert turn.plans[-1].rung == "plan"
    assert count(first) // 8 < count(second) < 0.7 * count(first)


async def test_where_no_plan_bears_a_minimal_one_is_sent() -> None:
    builder = OwnBuilder(fail)
    engine = ManagedEngine(
        refuse("input exceeds the context window of this model"), answer(), ceiling=None, window=None, builder=builder
    )
    turn = await engine.send(LONG)
    assert (builder.asked, turn.plans[-1].rung, turn.client.status) == (["plan", "minimal"], "minimal", 200)


async def test_with_nothing_to_cut_the_upstreams_own_answer_goes_on() -> None:
    refusal = refuse(CONTEXT.format(1000, 1100))
    content = refusal.pieces[0]
    messages: list[Message] = [{"role": "system", "content": "word " * 1000}, {"role": "user", "content": "Go."}]
    engine = ManagedEngine(refusal)
    turn = await engine.send(messages)
    assert (turn.client.status, turn.client.body, turn.sent) == (400, content, turn.body)
    assert (engine.epochs, turn.plans[1:]) == ([], [])


async def test_a_newest_turn_that_does_not_fit_is_cut() -> None:
    engine = ManagedEngine(refuse(CONTEXT.format(1000, 1100)), answer())
    turn = await engine.send([{"role": "user", "content": f"First. {'word ' * 1000} Last."}])
    sent = json.loads(turn.all_sent[1])["messages"]
    assert turn.client.status == 200 and len(sent) == 1
    assert sent[0]["content"].startswith("First. word") and "Last.\n[shortened by palimpsest" in sent[0]["content"]


@pytest.mark.parametrize("content", [b'{"error":{"message":"no such model"}}', b"<p>bad</p>"])
async def test_another_error_is_not_ours_to_mend(content: bytes) -> None:
    engine = ManagedEngine(answer(content, 400), ceiling=None)
    turn = await engine.send(LONG)
    assert (turn.client.status, turn.client.body, turn.sent) == (400, content, turn.body)


async def test_what_goes_wrong_inside_is_no_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_later(*_: object) -> None:
        fail()

    monkeypatch.setattr(RefusalRetry, "_cut", fail_later)
    engine = ManagedEngine(refuse(CONTEXT.format(8192, 9500)), ceiling=None)
    turn = await engine.send(LONG)
    assert (turn.client.status, len(turn.all_sent)) == (400, 1)


async def test_a_commit_that_fails_is_no_retry() -> None:
    engine = ManagedEngine(refuse(CONTEXT.format(8192, 9500)), ceiling=None)
    engine.log.loses_epochs = True
    turn = await engine.send(LONG)
    assert (turn.client.status, len(turn.all_sent)) == (400, 1)
    assert [rung for rung, _ in engine.failures] == ["plan"]
    assert len(engine.epochs) == 1


async def test_what_is_no_shorter_than_what_was_refused_is_no_retry() -> None:
    engine = ManagedEngine()
    await engine.send(LONG)
    engine.log.loses_epochs = True
    engine.upstream.prepare(refuse(CONTEXT.format(2_000, 2_500)))
    turn = await engine.send(HISTORY[: 2 + 2 * 23])
    assert (turn.client.status, turn.plan.rung, len(turn.all_sent)) == (400, "epoch", 1)


async def test_who_is_not_managed_is_not_cut() -> None:
    engine = ManagedEngine(refuse(CONTEXT.format(8192, 9500)))
    turn = await engine.send(LONG, ((b"x-palimpsest-mode", b"observe"),))
    assert (turn.client.status, turn.sent) == (400, turn.body)


async def test_where_the_window_is_unknown_the_head_waits_and_a_refusal_in_the_stream_is_mended() -> None:
    event = b"data: " + refuse(CONTEXT.format(8192, 9500)).pieces[0] + b"\n\n"
    engine = ManagedEngine(answer(event), answer(), ceiling=None, window=None)
    turn = await engine.send(LONG, stream=True)
    assert (len(turn.all_sent), turn.client.body) == (2, answer().pieces[0])
    small = ManagedEngine(answer(event), ceiling=None, window=None)
    turn = await small.send(HISTORY[:2], stream=True)
    assert (len(turn.all_sent), turn.client.body) == (1, event)
