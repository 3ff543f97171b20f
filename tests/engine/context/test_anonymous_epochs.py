"""A client that nobody can tell from others: every call is a session, and what is sent goes on all the same."""

import json
from bisect import bisect_left
from typing import Any

import msgspec
import pytest

from proxy.engine.context.epoch_planner import EpochPlanner, PlanInputs
from proxy.engine.context.epoch_scope import AnonymousEpochCache
from proxy.engine.context.rewriter import Rewriter
from proxy.model.epoch import Epoch, Written
from proxy.model.exchange import Headers
from tests.support import managed
from tests.support.managed import ManagedEngine
from tests.support.managing import MODEL, SESSION, Message, make_history, make_subject

HISTORY = make_history(160, 300)
UNNAMED: Headers = ((b"authorization", b"Bearer k"),)
STEPS = 155
BARE = make_subject(HISTORY[:20], session=msgspec.structs.replace(SESSION, family=""))


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


def count_common(one: bytes, other: bytes) -> int:
    """The length of the longest common prefix, by bisection."""
    return bisect_left(range(1, min(len(one), len(other)) + 1), 1, key=lambda n: one[:n] != other[:n])


async def play(engine: ManagedEngine, base: Headers, stop: int = STEPS) -> float:
    """Send a history that grows; the share of what is sent that had been sent right before."""
    sent, last, repeated = 0, b"", 0
    for steps in range(1, stop):
        turn = await engine.send(until(steps), base=base)
        repeated += count_common(last, turn.sent)
        sent, last = sent + len(turn.sent), turn.sent
    return repeated / sent


async def warm(engine: ManagedEngine, base: Headers = UNNAMED) -> int:
    """Send a history until an epoch was opened; how many steps the next request has."""
    steps = 30
    while not engine.epochs:
        await engine.send(until(steps), base=base)
        steps += 1
    return steps


def make_epoch(depth: int, *edits: Written, **changes: Any) -> Epoch:
    epoch = Epoch(
        id="e",
        session=BARE.session.id,
        view=MODEL,
        parent="",
        through=BARE.nodes[depth - 1],
        depth=depth,
        why="hard",
        exchange="x",
        opened_ms=1,
        tokens_before=9_000,
        tokens_after=2_000,
        edits=msgspec.json.encode(edits),
        rendered=(b"{}",),
    )
    return msgspec.structs.replace(epoch, **changes)


@pytest.mark.no_cover
async def test_without_a_name_a_conversation_is_cut_no_more_often_than_with_one() -> None:
    named, unnamed = ManagedEngine(), ManagedEngine()
    share = await play(named, managed.NAMED)
    assert await play(unnamed, UNNAMED) > share - 0.005
    made = {(epoch.through, epoch.rendered) for epoch in unnamed.epochs}
    assert 1 < len(made) <= len(named.epochs)
    assert len({epoch.session for epoch in unnamed.epochs}) == len(unnamed.epochs) > 30
    assert unnamed.failures == []


async def test_what_is_taken_over_was_not_opened() -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    turn = await engine.send(until(steps), base=UNNAMED)
    first, taken = engine.epochs
    assert (taken.rendered, taken.originals, taken.through) == (first.rendered, first.originals, first.through)
    assert taken.session != first.session
    assert (turn.plan.rung, turn.plan.epoch, turn.plan.pressure) == ("epoch", taken.id, "hard")
    assert "another request's" in turn.plan.reason
    assert "x-palimpsest-notice" not in turn.labels
    again = await engine.send(until(steps), base=UNNAMED)
    assert again.sent == turn.sent


@pytest.mark.parametrize(
    "base", [managed.NAMED, ((b"authorization", b"Bearer another"),)], ids=["a name", "another tenant"]
)
async def test_nothing_is_taken_over_from_or_by_whom_it_does_not_concern(base: Headers) -> None:
    engine = ManagedEngine()
    steps = await warm(engine)
    await engine.send(until(1), base=base)  # the upstream accepts the credential
    turn = await engine.send(until(steps), base=base)
    assert turn.plan.rung == "plan"
    other = ManagedEngine()
    steps = await warm(other, managed.NAMED)
    assert (await other.send(until(steps), base=UNNAMED)).plan.rung in ("plan", "original")
    assert len({epoch.session for epoch in other.epochs}) <= 2


async def test_what_cannot_be_taken_over_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ManagedEngine()
    steps = await warm(engine)

    def fail(epoch: Epoch) -> Any:
        raise ValueError("not now")

    monkeypatch.setattr(Rewriter, "rewrite", lambda *_: fail(engine.epochs[0]))
    turn = await engine.send(until(steps), base=UNNAMED)
    assert [rung for rung, _ in engine.failures] == ["epoch", "plan", "minimal"]
    assert json.loads(turn.sent)["messages"] == until(steps)
    monkeypatch.undo()
    assert (await engine.send(until(steps + 1), base=UNNAMED)).plan.rung == "epoch"


async def test_a_minimal_one_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, steps = ManagedEngine(window=9_000), 60
    await engine.send(until(1), base=UNNAMED)  # the upstream accepts the credential

    def fail(*_: Any) -> Any:
        raise RuntimeError("not now")

    monkeypatch.setattr("proxy.context.builder.ContextBuilder.build", fail)
    assert (await engine.send(until(steps), base=UNNAMED)).plan.rung == "minimal"
    monkeypatch.undo()
    assert (await engine.send(until(steps + 1), base=UNNAMED)).plan.rung == "plan"


@pytest.mark.no_cover
async def test_where_it_is_too_long_the_next_plan_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    grounds: list[PlanInputs] = []
    engine = ManagedEngine()
    draft = EpochPlanner.draft

    def look(opener: EpochPlanner, subject: Any, path: Any, ground: PlanInputs, **options: Any) -> Any:
        if not options.get("is_ahead"):
            grounds.append(ground)
        return draft(opener, subject, path, ground, **options)

    monkeypatch.setattr(EpochPlanner, "draft", look)
    await play(engine, UNNAMED, 130)
    frozen = [ground.frozen for ground in grounds]
    assert frozen[0] is None
    assert len(frozen) > 1
    assert all(each in engine.epochs for each in frozen[1:])


def test_the_deepest_is_found() -> None:
    twins = AnonymousEpochCache(1 << 20)
    assert twins.find(BARE) is None
    epochs = [make_epoch(4), make_epoch(8), make_epoch(8, id="later")]
    for epoch in epochs:
        twins.note(BARE, epoch)
    assert twins.find(BARE) is epochs[2]
    twins.note(make_subject(HISTORY[:8], session=BARE.session), epochs[0])
    assert twins.find(make_subject(HISTORY[:8], session=BARE.session)) is epochs[0]
    assert (
        twins.find(make_subject(HISTORY[:12], session=BARE.session)) is epochs[0]
    )  # 11 messages are behind the system's
    assert twins.find(make_subject(HISTORY[:4], session=BARE.session)) is None
    twins.clear()
    assert twins.find(BARE) is None


@pytest.mark.parametrize("changes", [{"tenant": b"t2"}, {"upstream": "other"}, {"family": "f"}])
def test_it_is_of_one_tenant_and_upstream_and_of_nobody_with_a_name(changes: dict[str, Any]) -> None:
    twins = AnonymousEpochCache(1 << 20)
    twins.note(BARE, make_epoch(4))
    session = msgspec.structs.replace(BARE.session, **changes)
    other = msgspec.structs.replace(BARE, session=session)
    assert twins.find(other) is None
    twins.clear()
    twins.note(other, make_epoch(4))
    assert twins.find(BARE) is None


def test_one_for_another_model_is_not_found() -> None:
    twins = AnonymousEpochCache(1 << 20)
    twins.note(BARE, make_epoch(4))
    assert twins.find(msgspec.structs.replace(BARE, model="another")) is None


def test_one_with_a_summary_is_left_alone() -> None:
    twins = AnonymousEpochCache(1 << 20)
    twins.note(BARE, make_epoch(4, Written("told", 0, 4, report="s1")))
    assert twins.find(BARE) is None
    twins.note(BARE, make_epoch(4, Written("told", 0, 4)))
    assert twins.find(BARE) is not None


def test_the_oldest_are_dropped() -> None:
    twins, epochs = AnonymousEpochCache(4_000), [make_epoch(depth) for depth in (2, 4, 6, 8)]
    for epoch in (*epochs, epochs[3], epochs[3]):
        twins.note(make_subject(HISTORY[: epoch.depth + 1], session=BARE.session), epoch)
    assert twins.find(make_subject(HISTORY[:3], session=BARE.session)) is None
    assert twins.find(make_subject(HISTORY[:7], session=BARE.session)) is epochs[2]
    twins.note(BARE, make_epoch(8, rendered=(b"x" * 4_000,)))
    assert twins.find(BARE) is None
