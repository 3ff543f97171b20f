"""Sessions that are only observed, so that what managing saves can be told: what is sent for them, and recorded."""

from typing import Any

from msgspec.structs import replace

from proxy.engine.context.request_state import OutgoingRequest
from proxy.model.epoch import Epoch, Plan
from proxy.model.events import Planned
from tests.support.managed import CEILING, ManagedEngine, Setup, refuse
from tests.support.managing import SESSION, Message, make_history, make_subject

HISTORY = make_history(60, 1600)
OBSERVED = (b"x-palimpsest-mode", b"observe; holdout")
ALL = 1.0


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def prepare(setup: Setup, messages: list[Message], exchange: str = "x1", **options: Any) -> OutgoingRequest:
    return await setup.decide(make_subject(messages, exchange, **options))


def find_usable(setup: Setup) -> int:
    return setup.controller.states.find_budget(make_subject(until(1))).usable


async def test_a_session_that_is_held_out_goes_as_it_came_and_says_so() -> None:
    setup = Setup(held_out=ALL)
    for steps in (1, 22, 40):
        subject = make_subject(until(steps), f"x{steps}", base=steps - 1)
        sending = await setup.decide(subject)
        plan = Plan(f"x{steps}", 0, "gpt-4o", "original", reason="holdout", usable=find_usable(setup))
        assert sending == OutgoingRequest(
            "original", subject.split.content, plan=plan, labels=(OBSERVED,) if steps > 1 else ()
        )
        assert not sending.is_managed
        assert setup.controller.states.caches.histories.find(subject) == (None, 0)  # nothing was counted
    assert setup.committed == []


async def test_who_is_held_out_is_not_told_at_a_glance() -> None:
    subject = make_subject(until(0))
    subject = replace(subject, chain=replace(subject.chain, is_plain=True))
    assert Setup().controller.decide_at_once(subject) == OutgoingRequest(
        "original", subject.split.content, is_managed=True
    )
    assert Setup(held_out=ALL).controller.decide_at_once(subject) is None


async def test_others_are_managed_as_ever() -> None:
    setup = Setup(held_out=0.5)
    holdout = setup.controller.states.holdout
    names = [f"s{number}" for number in range(40)]
    rungs = {}
    for name in names:
        session = replace(SESSION, id=name)
        sending = await prepare(setup, until(22), f"x-{name}", session=session)
        assert sending.plan is not None
        rungs[name] = sending.plan.rung
    assert {name for name in names if rungs[name] == "original"} == set(filter(holdout.has, names))
    assert {"original", "plan"} == set(rungs.values())


async def test_a_session_in_which_an_epoch_was_opened_stays_managed() -> None:
    setup = Setup(held_out=ALL)
    subject = make_subject(until(22))
    before = Epoch("e", "s1", "other-model", "", subject.nodes[0], 1, "hard", "", 1, 2, 1, b"[]", ())
    setup.log.append(before)
    sending = await prepare(setup, until(22), base=1)
    assert sending.plan is not None
    assert sending.plan.rung == "plan"


async def test_where_the_log_cannot_tell_no_session_is_counted_among_them() -> None:
    setup = Setup(held_out=ALL)
    setup.log.is_unreadable = True
    sending = await prepare(setup, until(22), base=1)
    assert sending.plan is not None
    assert (sending.plan.rung, "holdout" in sending.plan.reason) == ("original", False)
    assert OBSERVED not in sending.labels
    setup.log.is_unreadable = False
    assert OBSERVED in (await prepare(setup, until(23), "x2", base=1)).labels


async def test_after_the_log_has_lost_a_record_it_is_asked_anew() -> None:
    setup = Setup(held_out=ALL)
    await prepare(setup, until(1))
    context = setup.controller.states.caches.contexts.get("s1")
    assert context is not None
    setup.log.health = replace(setup.log.health, generation=1)
    await prepare(setup, until(2), "x2", base=1)
    assert setup.controller.states.caches.contexts.get("s1") is not context


async def test_a_pin_of_a_session_that_is_held_out_is_refused() -> None:
    setup = Setup(held_out=ALL)
    sending = await prepare(setup, until(2), headers=((b"x-palimpsest-pin", b"true"),))
    assert sending.labels == (OBSERVED, (b"x-palimpsest-notice", b"not pinned: holdout"))
    assert sending.records == ()


async def test_another_reason_to_stand_aside_is_told_in_both_arms_alike() -> None:
    sign = "[tool: bash · ok · 3 lines — output pruned; completed; shown in full earlier; ref:abcdefghij]"
    signed: list[Message] = [*until(16), {"role": "user", "content": sign}]
    cases: list[tuple[list[Message], dict[str, Any]]] = [(signed, {}), (until(22), {"transforms": ["middle-out"]})]
    for messages, members in cases:
        held, other = [await prepare(Setup(held_out=share), messages, **members) for share in (ALL, 0.0)]
        assert held == other
        assert held.plan is not None and held.plan.reason != "holdout"


async def test_a_session_that_is_held_out_is_not_managed_so_that_nobody_makes_summaries_of_it() -> None:
    for share, is_managed in ((ALL, False), (0.0, True)):
        outgoing = await prepare(Setup(held_out=share), until(22))
        assert (outgoing.is_managed, outgoing.state is not None) == (is_managed, is_managed)


async def test_the_plan_is_recorded_with_the_call_and_the_client_is_told() -> None:
    engine = ManagedEngine(held_out=ALL)
    turn = await engine.send(until(22))
    assert [each.plan for each in engine.events if isinstance(each, Planned)] == [turn.plan]
    assert (turn.plan.reason, turn.plan.rung, turn.labels["x-palimpsest-mode"]) == (
        "holdout",
        "original",
        "observe; holdout",
    )
    assert turn.messages == until(22)


async def test_a_refusal_as_too_long_is_the_clients_as_it_would_be_without_us() -> None:
    refusal = refuse("This model's maximum context length is 9000 tokens. However, you requested 12000 tokens.")
    engine = ManagedEngine(refusal, held_out=ALL, ceiling=CEILING)
    turn = await engine.send(until(22))
    assert len(turn.all_sent) == 1
    assert turn.client.status == 400
