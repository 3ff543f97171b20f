"""A managed call, end to end: what goes upstream in place of a long history, and what the log and the client know."""

import asyncio
import base64
import contextlib
import gc
import json
import re
from itertools import pairwise
from typing import Any

import pytest

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.context import session_context
from proxy.engine.context.controller import ContextController
from proxy.engine.context.refusal_retry import RefusalRetry
from proxy.engine.lineage import tracker
from proxy.engine.policy import EnginePolicy, Provider
from proxy.model.epoch import ContextPlan, Epoch, Kept, Pin, Plan, SourceNote, Written
from proxy.model.errors import BadRequest, ProxyError, UpstreamUnreachable
from proxy.model.events import CeilingExceededEvent, EpochOpened
from proxy.model.exchange import Headers, Opening, Outcome, Round
from proxy.model.lineage import Lineage
from proxy.model.log import Record
from proxy.wire.headers import find_header
from tests.support.engine import LIMIT, Commit, wait_out
from tests.support.garbage import no_collector
from tests.support.managed import (
    NAMED,
    PLANNING_SECONDS,
    ContextLog,
    Hanging,
    ManagedEngine,
    OwnBuilder,
    Turn,
    answer,
    cut_end,
    let_wait,
    refuse,
)
from tests.support.managing import Message, make_history, make_subject

HISTORY = make_history(60, 1600)


def until(steps: int) -> list[Any]:
    """The history up to the results of so many steps."""
    return list(HISTORY[: 2 + 2 * steps])


LONG = until(22)
LONGER = until(24)


async def open_epoch(engine: ManagedEngine) -> Turn:
    """Send a history of about 9,400 tokens, above the high mark of 7,760."""
    await engine.send(until(14))
    return await engine.send(LONG)


@pytest.mark.parametrize("outcome", ["answered", "cut and answered", "failed"])
async def test_a_call_that_has_ended_leaves_nothing_to_the_collector(outcome: str) -> None:
    """It holds bodies, and the collector goes by how many objects there are: a thousand such calls take a gigabyte."""
    outcomes = {"answered": (answer(),), "cut and answered": (refuse("400 tokens are too many"), answer())}
    # the test's own client and upstream keep the error, whose frames have the exchange
    kinds = (RefusalRetry,) if outcome == "failed" else (RefusalRetry, OpenExchange)
    engine = ManagedEngine(answer(), *outcomes.get(outcome, (UpstreamUnreachable("gone"),)))
    await engine.send(until(14))
    gc.collect()
    before = [each for each in gc.get_objects() if isinstance(each, kinds)]  # of tests before this one
    with no_collector():
        with contextlib.suppress(ProxyError):
            await engine.send(LONG)
        await engine.tasks.finish(LIMIT)
        left = [
            type(each)
            for each in gc.get_objects()
            if isinstance(each, kinds) and not any(each is old for old in before)
        ]
    assert left == []


async def test_below_the_soft_mark_the_clients_own_bytes_go_out() -> None:
    engine = ManagedEngine()
    for steps in range(1, 10, 2):
        turn = await engine.send(until(steps))
        assert turn.sent == turn.body
        assert not turn.labels.keys() & {"x-palimpsest-epoch", "x-palimpsest-notice"}
    assert (engine.epochs, engine.failures) == ([], [])
    assert {each.body for each in engine.log.of(Round)} == {None}


async def test_markers_of_ours_are_only_in_rewritten_requests_and_move_only_at_the_end() -> None:
    engine = ManagedEngine(provider=Provider(cache="breakpoints"))
    turns = [await engine.send(until(steps)) for steps in range(4, 40)]
    assert len(engine.epochs) >= 2
    plain = [turn for turn in turns if b"cache_control" not in turn.sent]
    assert plain and {turn.sent == turn.body for turn in plain} == {True}
    marked = [turn for turn in turns if turn.sent != turn.body]
    for turn in marked:
        frozen = len(next(epoch for epoch in engine.epochs if epoch.id == turn.plan.epoch).rendered)
        places = [at for at, each in enumerate(turn.messages) if "cache_control" in json.dumps(each)]
        assert places == sorted({0, frozen, len(turn.messages) - 1})
    for before, after in pairwise(marked):
        frozen = len(next(epoch for epoch in engine.epochs if epoch.id == after.plan.epoch).rendered)
        is_same = before.plan.epoch == after.plan.epoch
        assert (before.messages[: frozen + 1] == after.messages[: frozen + 1]) is is_same
    assert engine.failures == []


async def test_between_epochs_what_is_sent_only_grows() -> None:
    engine = ManagedEngine()
    turns = [await engine.send(until(steps)) for steps in range(10, 60)]
    assert len(engine.epochs) >= 3
    for before, after in pairwise(turns):
        is_opened = after.plan.rung == "plan"
        assert after.sent.startswith(cut_end(before.sent)) is not is_opened
        assert is_opened or after.plan.epoch == before.plan.epoch
        assert after.plan.tokens_upstream is None or after.plan.tokens_upstream <= after.plan.usable
    assert max(len(turn.sent) for turn in turns) < len(turns[-1].body)
    assert engine.failures == []


async def test_the_client_is_told_which_epoch_holds_and_when_one_opened() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine)
    (epoch,) = engine.epochs
    assert turn.labels["x-palimpsest-epoch"] == epoch.id == turn.exchange
    assert turn.labels["x-palimpsest-notice"] == f"compacted {epoch.tokens_before}->{epoch.tokens_after}"
    assert turn.labels["x-palimpsest-tokens"] == f"client={epoch.tokens_before}, upstream={epoch.tokens_after}"
    later = await engine.send(LONGER)
    assert later.labels["x-palimpsest-epoch"] == epoch.id
    assert "x-palimpsest-notice" not in later.labels
    opened = [event for event in engine.events if isinstance(event, EpochOpened)]
    assert opened == [EpochOpened(epoch, opened[0].wire, opened[0].load)]
    assert (epoch.exchange, epoch.why) == (turn.exchange, "hard")


async def test_an_epoch_is_in_the_log_before_anything_is_sent_under_it() -> None:
    engine = ManagedEngine(archive=ContextLog(is_lazy=True))
    turn = await open_epoch(engine)
    records = [type(record) for each in engine.log.appended for record in each.records]
    mine = records[len(records) - records[::-1].index(Opening) - 1 :]
    assert mine[:5] == [Opening, Lineage, Epoch, Round, Plan]
    assert turn.plan.epoch == engine.epochs[0].id
    engine = ManagedEngine()
    engine.log.loses_epochs = True
    turn = await open_epoch(engine)
    assert (turn.sent, turn.plan.rung, len(engine.epochs)) == (turn.body, "original", 1)
    assert [rung for rung, _ in engine.failures] == ["plan"]
    assert "in time" in engine.failures[0][1]


async def test_a_commit_that_fails_keeps_the_epoch_that_stood() -> None:
    engine = ManagedEngine()
    first = await open_epoch(engine)
    engine.log.loses_epochs = True
    turn = await engine.send(until(50))
    assert (turn.plan.rung, turn.plan.epoch, turn.plan.pressure) == ("epoch", first.exchange, "hard")
    assert turn.sent.startswith(cut_end(first.sent))
    assert turn.plan.reason


async def test_the_same_history_again_has_the_same_bytes() -> None:
    engine = ManagedEngine()
    first = await open_epoch(engine)
    grown = await engine.send(until(30))
    newer = await engine.send(until(50))
    assert newer.plan.epoch != first.plan.epoch
    for turn in (first, grown, newer):
        again = await engine.send(json.loads(turn.body)["messages"])
        assert again.sent == turn.sent
    assert len(engine.epochs) == 2


async def test_a_history_that_a_newer_epoch_would_stand_for_has_the_same_bytes_too() -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    turns = [await engine.send(until(steps)) for steps in range(24, 60)]
    opened = next(i for i, turn in enumerate(turns) if turn.plan.rung == "plan")
    before, epoch = turns[opened - 1], engine.epochs[1]
    assert epoch.depth <= len(json.loads(before.body)["messages"]) - 1
    assert (await engine.send(json.loads(before.body)["messages"])).sent == before.sent


async def test_a_branch_in_the_middle_goes_on_under_the_epoch_of_what_it_shares() -> None:
    engine = ManagedEngine()
    first = await open_epoch(engine)
    await engine.send(until(30))
    turn = await engine.send([*LONG, {"role": "user", "content": "No, the other way round."}])
    assert (turn.plan.rung, turn.plan.epoch) == ("epoch", first.exchange)
    assert turn.sent.startswith(cut_end(first.sent))
    above = await engine.send([*until(4), {"role": "user", "content": "No, the other way round."}])
    assert above.sent == above.body


async def test_two_models_do_not_touch_each_other() -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    other = await engine.send(until(17), model="gpt-4.1")
    assert other.sent == other.body
    opened = await engine.send(LONG, model="gpt-4.1")
    assert [epoch.view for epoch in engine.epochs] == ["gpt-4o", "gpt-4.1"]
    later = await engine.send(LONGER)
    assert later.plan.epoch == engine.epochs[0].id != opened.plan.epoch


async def test_a_side_call_is_sent_under_the_epoch_of_its_chain_and_opens_none() -> None:
    engine = ManagedEngine()
    tools = [{"type": "function", "function": {"name": "bash"}}]
    await engine.send(until(14), tools=tools)
    first = await engine.send(LONG, tools=tools)
    summary = [*until(50), {"role": "user", "content": "Summarise all this."}]
    side = await engine.send([{"role": "system", "content": "You summarise."}, *summary[1:]], tools=[])
    assert (side.plan.rung, side.plan.epoch, side.plan.pressure) == ("epoch", first.exchange, "hard")
    assert len(engine.epochs) == 1
    title = await engine.send([{"role": "user", "content": "A title, please. " * 3000}])
    assert (title.sent, title.plan.epoch) == (title.body, "")


async def test_a_side_call_does_not_look_like_a_change_of_the_conversation() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    engines = ManagedEngine(), ManagedEngine()
    for engine in engines:
        await engine.send(until(14), tools=tools)
    await engines[1].send([{"role": "user", "content": "A title, please."}])
    plain, beside = [await engine.send(until(15), tools=tools) for engine in engines]
    assert plain.plan.pressure == beside.plan.pressure == "soft"
    assert beside.plan.rung == plain.plan.rung == "original"


@pytest.mark.parametrize("mode", [b"observe", b"bypass"])
async def test_who_asks_for_it_is_not_managed_and_what_that_costs_is_told(mode: bytes) -> None:
    engine = ManagedEngine()
    first = await engine.send(LONG, ((b"x-palimpsest-mode", mode),))
    assert (first.sent, first.plans) == (first.body, [])
    await engine.send(LONGER)
    turn = await engine.send(until(26), ((b"x-palimpsest-mode", mode),))
    assert turn.sent == turn.body
    assert turn.plan.reason == f"{mode.decode()} was asked for"
    assert turn.plan.saving is not None
    assert turn.plan.saving < 0


async def test_a_request_may_ask_for_a_ceiling_of_its_own() -> None:
    engine = ManagedEngine(ceiling=None)
    assert (await engine.send(until(14))).plans == []
    turn = await engine.send(LONG, ((b"x-palimpsest-ceiling", b"8000"),))
    assert (turn.plan.rung, turn.plan.usable) == ("plan", 7_760)


@pytest.mark.parametrize("asked", [b"much", b"0", b"-1", b"1234567890"])
async def test_a_ceiling_that_is_no_number_of_tokens_is_a_bad_request(asked: bytes) -> None:
    engine = ManagedEngine()
    turn = await engine.send(LONG, ((b"x-palimpsest-ceiling", asked),))
    assert isinstance(turn.client.error, BadRequest)
    assert (engine.upstream.calls, engine.log.appended) == ([], [])


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (b"x-palimpsest-strategy", b"slices"),
        (b"x-palimpsest-strategy", b"\xffturns"),
        (b"x-palimpsest-history", b"mine"),
        (b"x-palimpsest-history", b"\xffnew"),
        (b"x-palimpsest-source", b"broadcast:"),
        (b"x-palimpsest-source", b"tick:now"),
    ],
)
async def test_what_is_not_served_is_refused_and_nothing_else_done(name: bytes, asked: bytes) -> None:
    engine = ManagedEngine()
    turn = await engine.send(LONG, ((name, asked),))
    assert isinstance(turn.client.error, BadRequest)
    assert name.decode() in str(turn.client.error)
    assert (engine.upstream.calls, engine.log.appended) == ([], [])


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (b"x-palimpsest-strategy", b"epochs"),
        (b"x-palimpsest-strategy", b" Epochs "),
        (b"x-palimpsest-history", b""),
        (b"x-palimpsest-source", b"direct"),
        (b"x-palimpsest-source", b" Broadcast:Ann "),
        (b"x-palimpsest-source", b"TICK:wait"),
    ],
)
async def test_what_is_done_anyway_may_be_asked_for(name: bytes, asked: bytes) -> None:
    turn = await ManagedEngine().send(LONG, ((name, asked),))
    assert (turn.client.error, turn.plan.rung) == (None, "plan")


async def test_what_is_told_of_the_newest_message_is_kept_with_its_node() -> None:
    engine = ManagedEngine()
    for kind in (b" Broadcast:Ann ", b"Tick:Wait"):
        await engine.send(LONG, ((b"x-palimpsest-source", kind),))
    tip = engine.log.of(Lineage)[0].tip
    notes = [(note.node, note.kind) for note in engine.log.of(SourceNote)]
    assert notes == [(tip, "broadcast:Ann"), (tip, "tick:wait")]


def fail(*_: object) -> ContextPlan:
    raise RuntimeError("the builder is out of order")


def orphan(view: Any, build: Any) -> ContextPlan:
    """A result whose call is gone."""
    return ContextPlan(len(view.messages), (Written("a ledger", 0, 2), Kept(0), Kept(3)), (), 10)


def forget_user(view: Any, build: Any) -> ContextPlan:
    return ContextPlan(2, (Written("a ledger", 0, 2),), (), 10)


@pytest.mark.parametrize("act", [fail, orphan, forget_user])
async def test_plans_that_do_not_bear_fail_no_call_and_the_client_is_told_of_the_excess(act: Any) -> None:
    engine = ManagedEngine(builder=OwnBuilder(act, act), plans_ahead=False)
    turn = await open_epoch(engine)
    assert (turn.client.status, turn.sent, turn.plan.rung) == (200, turn.body, "original")
    assert (engine.epochs, [rung for rung, _ in engine.failures]) == ([], ["plan", "minimal"])
    (excess,) = [event for event in engine.events if isinstance(event, CeilingExceededEvent)]
    assert (excess.exchange, excess.usable) == (turn.exchange, 7_760) and excess.tokens > 7_760
    failed = r"a plan: (\w+.*); a minimal plan: \1"
    assert re.fullmatch(
        failed,
        turn.plan.reason.removeprefix(f"above the ceiling: {excess.tokens} tokens of 7760; it could not be cut: "),
    )
    assert turn.labels["x-palimpsest-notice"] == turn.plan.reason
    assert turn.labels["x-palimpsest-mode"].startswith("observe; stood-down:it could not be cut: a plan: ")
    later = await engine.send(LONGER)
    assert later.plan.rung == "plan"
    assert "above the ceiling" not in later.labels.get("x-palimpsest-notice", "")


async def test_more_than_the_ceiling_goes_out_where_that_must_stay_and_the_client_is_told() -> None:
    engine = ManagedEngine()
    orders: Message = {"role": "system", "content": "These words all matter. " * 2_000}
    turn = await engine.send([orders, *until(3), {"role": "user", "content": "Go on."}])
    (excess,) = [event for event in engine.events if isinstance(event, CeilingExceededEvent)]
    assert excess.error.startswith("the system prompt and the tools alone have 12014 tokens of 7760 below the ceiling")
    assert turn.labels["x-palimpsest-notice"] == f"above the ceiling: {excess.tokens} tokens of 7760; {excess.error}"
    later = await engine.send([orders, *until(4)])
    assert "x-palimpsest-notice" not in later.labels and later.plan.usable == 12_014 + 2_328


async def test_a_newest_turn_above_the_ceiling_is_cut_and_the_client_is_told() -> None:
    engine = ManagedEngine()
    lines = "\n".join(f"2024-05-01 10:00:00 INFO worker took job {i} from the queue" for i in range(2_000))
    messages: list[Message] = [*until(3), {"role": "user", "content": f"Look:\n{lines}\nWhy does it stop?"}]
    turn = await engine.send(messages)
    newest = turn.messages[-1]["content"]
    assert newest.startswith("Look:\n2024") and "Why does it stop?\n[shortened by palimpsest" in newest
    notices = [value.decode() for name, value in turn.client.labels if name == b"x-palimpsest-notice"]
    assert notices[0].startswith("compacted ")
    assert notices[1:] == ["shortened on arrival: 1 of the newest messages, too large for the ceiling"]
    assert not [event for event in engine.events if isinstance(event, CeilingExceededEvent)]
    # What follows is sent behind the same bytes, and nothing is shortened again.
    messages += [{"role": "assistant", "content": "I look."}, {"role": "user", "content": "Well?"}]
    later = await engine.send(messages)
    assert later.messages[: len(turn.messages)] == turn.messages
    assert "shortened on arrival" not in str(later.client.labels)


@pytest.mark.parametrize("act", [fail, orphan])
@pytest.mark.parametrize("window", [16_000, 1_000_000, None])
async def test_what_would_be_above_the_ceiling_is_sent_as_a_minimal_plan(act: Any, window: int | None) -> None:
    builder = OwnBuilder(act)
    engine = ManagedEngine(builder=builder, window=window)
    turn = await engine.send(until(40))
    assert (turn.plan.rung, turn.labels["x-palimpsest-epoch"]) == ("minimal", turn.exchange)
    assert turn.plan.tokens_upstream is not None and turn.plan.tokens_upstream < turn.plan.usable
    assert builder.asked == ["plan", "minimal"]
    later = await engine.send(until(41))
    assert later.sent.startswith(cut_end(turn.sent))
    assert (later.plan.rung, later.plan.epoch) == ("epoch", turn.exchange)


async def test_a_builder_that_hangs_is_not_waited_for_and_what_is_sent_is_below_the_ceiling() -> None:
    hang = Hanging()
    builder = OwnBuilder(hang)
    engine = ManagedEngine(builder=builder, hard_wait_seconds=PLANNING_SECONDS, plans_ahead=False)
    try:
        turn = await open_epoch(engine)
        assert (turn.client.status, turn.plan.rung) == (200, "minimal")
        ((rung, problem),) = engine.failures
        assert rung == "plan" and problem.startswith("planning took more than ")
        during = await engine.send(until(23))
        assert (during.plan.rung, during.plan.epoch) == ("epoch", turn.exchange)
        above = await let_wait(
            engine.send(until(44))
        )  # above the ceiling again while the first plan is still being made
        assert (above.plan.rung, builder.asked) == ("minimal", ["plan", "minimal", "minimal"])
    finally:
        hang.released.set()
    await engine.wait_for_late(turn)
    assert all(plan.tokens_upstream < plan.usable for plan in (turn.plan, above.plan) if plan.tokens_upstream)
    later = await engine.send(until(70))
    assert (later.plan.rung, builder.asked[3:]) == ("plan", ["plan"])


async def test_a_plan_that_hangs_does_not_stand_in_the_way_of_a_minimal_one() -> None:
    hang = Hanging()
    engine = ManagedEngine(builder=OwnBuilder(hang), window=16_000, hard_wait_seconds=PLANNING_SECONDS)
    try:
        turn = await engine.send(until(40))
    finally:
        hang.released.set()
    assert turn.plan.rung == "minimal"


async def test_what_a_user_said_beside_what_they_pasted_is_in_every_later_request() -> None:
    engine = ManagedEngine(ceiling=9_000)
    messages = [{"role": "system", "content": "You are an agent."}]
    for number in range(12):
        own = "The ticket is PAL-7731." if number == 3 else f"Here is what run {number} said."
        pasted = "\n".join(f"2024-05-01 10:00:{line % 60:02} INFO run {number} took job {line}" for line in range(180))
        messages.append({"role": "user", "content": f"{own}\n```\n{pasted}\n```"})
        turn = await engine.send(messages)
        assert number < 3 or any("The ticket is PAL-7731." in each["content"] for each in turn.messages)
        assert all(plan.tokens_upstream < plan.usable for plan in turn.plans if plan.tokens_upstream and plan.usable)
        messages.append({"role": "assistant", "content": "I have read it."})
    assert len(engine.epochs) > 1


async def test_two_requests_at_once_open_one_epoch() -> None:
    engine = ManagedEngine(answer(), answer(), answer())
    await engine.send(until(14))
    first, second = engine.start(LONG), engine.start(LONGER)
    await first.finish()
    await second.finish()
    (epoch,) = engine.epochs
    assert {first.plan.epoch, second.plan.epoch} == {epoch.id}
    assert sorted([first.plan.rung, second.plan.rung]) == ["epoch", "plan"]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_what_the_first_byte_of_a_stream_waits_for_does_not_wait_for_company(*, is_stream: bool) -> None:
    engine = ManagedEngine()
    await engine.send(LONG, stream=is_stream)
    rounds = [each.is_urgent for each in engine.log.appended if isinstance(each.records[0], Round)]
    assert rounds == [is_stream]


def picture(size: int, seed: int = 0) -> dict[str, Any]:
    """A screenshot of a user, so many bytes long on the wire; another one for each seed."""
    head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (1024).to_bytes(4, "big") + (768).to_bytes(4, "big")
    content = base64.b64encode(head + seed.to_bytes(2, "big") + b"p" * (size * 3 // 4)).decode()
    url = {"url": f"data:image/png;base64,{content}"}
    return {"role": "user", "content": [{"type": "image_url", "image_url": url}]}


def is_kept(engine: ManagedEngine, turn: Turn) -> tuple[bool, bool]:
    """Whether the log has all of what the client sent, and of what was sent for it."""
    openings = [opening for opening in engine.log.of(Opening) if opening.exchange == turn.exchange]
    rounds = [each for each in engine.log.of(Round) if each.exchange == turn.exchange]
    bodies = [opening.body for opening in openings], [each.body for each in rounds if each.body is not None]
    return not any(body.whole_digest for body in bodies[0]), not any(body.whole_digest for body in bodies[1])


@pytest.mark.no_cover
async def test_a_session_that_repeats_twelve_megabytes_of_pictures_stays_under_its_ceiling() -> None:
    engine, messages = ManagedEngine(), list(HISTORY[:2])
    turns = []
    for steps in range(50):
        messages += [picture(1_500_000, steps)] if steps < 8 else []
        messages += HISTORY[2 + 2 * steps : 4 + 2 * steps]
        if steps >= 7 and steps % 2:
            turns.append(await engine.send(messages))
    assert min(len(turn.body) for turn in turns) > 12_000_000
    assert len(engine.epochs) >= 2
    for turn in turns:
        assert turn.plan.tokens_upstream is None or turn.plan.tokens_upstream <= turn.plan.usable
        assert len(turn.sent) < len(turn.body) or turn.plan.rung == "original"
    assert [is_kept(engine, turn) for turn in turns[2:]] == [(True, True)] * len(turns[2:])
    brought = [opening.body.weight for opening in engine.log.of(Opening)]
    assert max(brought) <= 9 * 1024 * 1024
    again = ManagedEngine(after=engine)
    later = await again.send(messages)
    assert later.plan.epoch == turns[-1].plan.epoch
    assert is_kept(again, later) == (True, True)


@pytest.mark.no_cover
async def test_a_message_larger_than_the_record_takes_stays_while_all_around_it_goes() -> None:
    engine, messages = ManagedEngine(), list(HISTORY[:22])
    large = picture(10 * 1024 * 1024)
    messages += [large, *HISTORY[22:24]]
    for steps in range(12, 60, 2):
        messages += HISTORY[2 * steps : 2 * steps + 4]
        turn = await engine.send(messages)
        assert large in turn.messages
        assert turn.plan.tokens_upstream is None or turn.plan.tokens_upstream <= turn.plan.usable
    assert len(engine.epochs) >= 2
    assert engine.epochs[-1].depth > 23
    assert engine.failures == []
    assert is_kept(engine, turn) == (False, False)
    kept = {piece.digest for opening in engine.log.of(Opening) for piece in opening.body.slices}
    for epoch in engine.epochs:
        assert kept.issuperset(digest for original in epoch.originals for digest in original.digests)
    brought = [opening.body.weight for opening in engine.log.of(Opening)]
    brought += [each.body.weight for each in engine.log.of(Round) if each.body is not None]
    assert max(brought) <= 9 * 1024 * 1024


async def test_after_a_restart_the_prefix_is_the_same_to_the_byte() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine)
    again = ManagedEngine(after=engine)
    later = await again.send(LONGER)
    assert (later.plan.rung, later.plan.epoch) == ("epoch", turn.exchange)
    assert later.sent.startswith(cut_end(turn.sent))


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is waited for as long as the policy says, and no longer."""
    monkeypatch.setattr(tracker, "RECALL_SECONDS", 0)
    monkeypatch.setattr(session_context, "LOAD_SECONDS", 0)


@pytest.mark.usefixtures("no_grace")
async def test_after_a_restart_a_session_is_waited_for_that_a_busy_log_finds_late() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine)
    again = ManagedEngine(answer(), after=engine, policy=EnginePolicy(hard_wait_seconds=LIMIT))
    again.log.asked.clear()
    again.log.is_free.clear()
    later = again.start(LONGER)
    async with asyncio.timeout(LIMIT):
        await again.log.asked.wait()
    assert not later.task.done()
    again.log.is_free.set()
    await later.finish()
    assert (later.plan.rung, later.plan.epoch) == ("epoch", turn.plan.epoch)
    assert later.labels["x-palimpsest-session"] == turn.labels["x-palimpsest-session"]
    assert "x-palimpsest-mode" not in later.labels


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("base", [NAMED, NAMED[1:]], ids=["named", "unnamed"])
async def test_a_session_that_is_not_found_in_time_keeps_its_ceiling_and_the_log_says_so(
    base: Headers, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    again = ManagedEngine(answer(), answer(), after=engine, policy=EnginePolicy(hard_wait_seconds=0))
    again.log.is_free.clear()
    blind = again.start(LONGER, base=base)
    await blind.finish()
    assert (blind.plan.rung, len(again.epochs)) == ("plan", 2)
    assert blind.plan.tokens_upstream is not None
    assert blind.plan.tokens_upstream <= blind.plan.usable
    assert "the log did not say in time which session" in caplog.text


async def test_while_the_log_cannot_be_read_the_ceiling_is_kept_and_below_it_nothing_is_opened() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine)
    again = ManagedEngine(after=engine)
    again.log.is_unreadable = True
    short = await again.send(until(12))
    assert (short.sent, len(again.epochs)) == (short.body, 1)
    blind = await again.send(until(30))
    assert (blind.plan.rung, len(again.epochs)) == ("plan", 2)
    again.log.is_unreadable = False
    later = await again.send(until(31))
    assert later.plan.epoch == blind.exchange != turn.exchange


async def test_what_is_pinned_later_stays_from_the_next_epoch_on() -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    session = engine.epochs[0].session
    context = engine.controller.states.caches.contexts.get(session)
    assert context is not None
    context.pin(Pin(session, make_subject(HISTORY).nodes[6], True, 1))
    later = await engine.send(LONGER)
    assert (later.plan.rung, engine.failures) == ("epoch", [])
    newest = await engine.send(until(50))
    assert newest.plan.rung == "plan"
    assert HISTORY[7] in newest.messages


async def test_who_echoes_our_own_words_is_managed_as_before() -> None:
    engine = ManagedEngine()
    turn = await open_epoch(engine)
    ledger = next(m["content"] for m in turn.messages if m["role"] == "user" and m != HISTORY[1])
    echo = [*LONG, {"role": "assistant", "content": ledger}, {"role": "user", "content": "Go on."}]
    later = await engine.send(echo)
    assert (later.plan.rung, later.plan.epoch) == ("epoch", turn.exchange)
    elsewhere = await ManagedEngine().send([{"role": "user", "content": ledger}, *LONG[1:]])
    assert elsewhere.sent == elsewhere.body
    assert not elsewhere.labels.keys() & {"x-palimpsest-tokens"}
    assert elsewhere.labels["x-palimpsest-mode"].startswith("observe; stood-down:the messages have a ledger")


async def test_an_unproven_token_is_not_managed() -> None:
    base: Headers = (
        (b"x-session-id", b"s"),
        (b"authorization", b"Bearer eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJpIiwic3ViIjoicyJ9.c2ln"),
    )
    engine = ManagedEngine(answer(status=401), answer(), answer())
    refused = engine.start(LONG, base=base)
    await refused.finish()
    assert refused.sent == refused.body
    assert "has not accepted" in refused.labels["x-palimpsest-mode"]
    proven = engine.start(LONG, base=base)
    await proven.finish()
    managed = engine.start(LONGER, base=base)
    await managed.finish()
    assert managed.plan.rung == "plan"


async def test_who_leaves_while_it_is_decided_is_recorded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, entered = ManagedEngine(), asyncio.Event()
    prepare = ContextController.decide

    async def hang(self: ContextController, *arguments: Any) -> Any:
        entered.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(ContextController, "decide", hang)
    turn = engine.start(until(4))
    async with asyncio.timeout(LIMIT):
        await entered.wait()
    assert len(engine.log.of(Opening)) == 1
    turn.task.cancel()
    await wait_out(turn.task)
    assert [type(record) for each in engine.log.appended for record in each.records] == [
        Opening,
        Lineage,
        Round,
        Outcome,
    ]
    assert (engine.log.outcome.completeness, engine.log.outcome.status) == ("aborted", 0)
    assert (engine.upstream.calls, turn.client.is_aborted) == ([], True)
    monkeypatch.setattr(ContextController, "decide", prepare)
    assert (await engine.send(until(5))).client.status == 200


async def test_what_was_once_too_much_is_not_held_against_a_session() -> None:
    engine = ManagedEngine()
    large = until(30)
    large[-1] = {**large[-1], "content": "word " * 5_200}
    await engine.send(until(20))
    turn = await engine.send(large)
    assert turn.plan.tokens_upstream is not None
    assert turn.plan.tokens_upstream > turn.plan.usable * 0.7  # fresh, so it goes out whole
    for steps in range(31, 45):
        turn = await engine.send([*large, *until(steps)[len(large) :]])
    assert turn.plan.rung == "epoch"
    assert turn.plan.tokens_upstream is not None
    assert turn.plan.tokens_upstream < turn.plan.usable


@pytest.mark.parametrize(("window", "encoding"), [(None, b"identity"), (1_000_000, b"gzip")])
async def test_an_answer_that_may_be_held_back_is_asked_for_in_plain(window: int | None, encoding: bytes) -> None:
    engine = ManagedEngine(window=window)
    turn = await engine.send(until(4), ((b"accept-encoding", b"gzip"),))
    (call,) = engine.upstream.calls
    assert find_header(call.headers, b"accept-encoding") == encoding
    assert turn.sent == turn.body


async def test_an_upstream_is_asked_for_a_model_whose_window_nobody_told() -> None:
    engine = ManagedEngine(window=None)
    await engine.send(until(1))
    assert engine.upstream.listings == []  # what is short is not looked at so closely
    for steps in (14, 16):
        await engine.send(until(steps))
    assert await engine.tasks.finish(LIMIT)
    assert [find_header(headers, b"authorization") for headers in engine.upstream.listings] == [b"Bearer k"]
    for other, headers in ((ManagedEngine(), ()), (ManagedEngine(window=None), ((b"x-palimpsest-mode", b"observe"),))):
        await other.send(until(14), headers)
        assert await other.tasks.finish(LIMIT)
        assert other.upstream.listings == []


def clear(messages: list[Any], places: range) -> list[Any]:
    """The same, with the outputs at these places cleared, as some clients do with old ones."""
    return [
        {**message, "content": "[cleared]"} if place in places and message["role"] == "tool" else message
        for place, message in enumerate(messages)
    ]


async def test_outputs_that_the_client_clears_leave_what_is_frozen_as_it_was() -> None:
    engine = ManagedEngine()
    opened = await open_epoch(engine)
    (epoch,) = engine.epochs
    cleared = clear(until(24), range(4, epoch.depth))
    turn = await engine.send(cleared)
    assert (turn.plan.rung, turn.plan.epoch) == ("epoch", epoch.id)
    assert turn.sent.startswith(cut_end(opened.sent))
    again = await engine.send([*cleared, *until(25)[len(cleared) :]])
    assert again.plan.epoch == epoch.id
    assert again.sent.startswith(cut_end(turn.sent))


@pytest.mark.parametrize(("role", "added"), [("user", "Something else."), ("tool", " and more")])
async def test_words_that_the_client_changes_are_another_history(role: str, added: str) -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    (epoch,) = engine.epochs
    changed = [
        {**message, "content": message["content"] + added} if message["role"] == role else message
        for message in until(24)
    ]
    turn = await engine.send(changed)
    assert turn.plan.epoch != epoch.id


class BusyLog(ContextLog):
    """Keeps epochs when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: asyncio.Queue[Commit] = asyncio.Queue()

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        commit = super().append(*records, is_urgent=is_urgent)
        if not any(isinstance(record, Epoch) for record in records):
            return commit
        busy = Commit()
        self.epochs.put_nowait(busy)
        return busy


async def test_above_the_ceiling_a_log_that_is_behind_is_waited_for() -> None:
    log = BusyLog()
    engine = ManagedEngine(
        answer(), answer(), archive=log, policy=EnginePolicy(commit_wait_ms=0, hard_wait_seconds=LIMIT)
    )
    await engine.send(until(14))
    turn = engine.start(LONG)
    async with asyncio.timeout(LIMIT):
        commit = await log.epochs.get()
        await commit.awaited.wait()
        for _ in range(10):  # what takes no time would be over by then
            await asyncio.sleep(0)
        commit.set_result(True)
        await turn.finish()
    assert (turn.plan.rung, engine.failures) == ("plan", [])
