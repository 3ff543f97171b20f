"""What is sent for a request is decided by what is known of it; nothing that goes wrong here fails it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from proxy.engine.context.refusal_retry import RefusalRetry
from proxy.engine.context.request_state import OutgoingRequest, StateReader
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Plan
from proxy.model.events import ResponseRead, RungFailedEvent
from proxy.model.exchange import Headers, Usage
from tests.support.engine import HEALTHY
from tests.support.managed import Setup
from tests.support.managing import Message, make_history, make_subject

HISTORY = make_history(60, 1600)


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def prepare(
    setup: Setup, messages: list[Message], exchange: str = "x1", mode: Any = "manage", **options: Any
) -> OutgoingRequest:
    return await setup.decide(make_subject(messages, exchange, **options), mode)


def make_revert(subject: ManagedRequest) -> Epoch:
    """A person has gone back to the client's own bytes."""
    return Epoch("r", "s1", "gpt-4o", "", subject.chain.root, 0, "revert", "", 1, 2, 6_000, b"[]", ())


def read_answer(setup: Setup, exchange: str, usage: Usage) -> None:
    """The answer of a call was read."""
    setup.bus.publish(ResponseRead(exchange, 0, usage))


async def test_below_the_soft_mark_nothing_is_decided_and_nothing_counted() -> None:
    setup = Setup()
    subject = make_subject(until(1))
    sending = await setup.decide(subject)
    assert sending == OutgoingRequest("original", subject.split.content, is_managed=True)
    assert setup.controller.states.caches.histories.find(subject) == (None, 0)


async def test_the_head_of_an_answer_waits_where_the_window_is_unknown_or_near() -> None:
    assert not (await prepare(Setup(window=None), until(1))).is_guarded
    assert (await prepare(Setup(window=None), until(4))).is_guarded
    assert not (await prepare(Setup(), until(22))).is_guarded
    case = await Setup().read_state(until(22))
    for window, is_near in ((case.tokens * 4 // 3, True), (case.tokens * 4 // 3 + 2, False)):
        sending = await prepare(Setup(window=window, ceiling=200_000), until(22), is_side=True)
        assert (sending.plan is not None, sending.is_guarded) == (True, is_near)


async def test_whatever_goes_wrong_the_request_goes_on_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Any:
        raise RuntimeError("the state_reader is blind")

    monkeypatch.setattr(StateReader, "read", fail)
    setup = Setup()
    subject = make_subject(until(22))
    problem = "RuntimeError: the state_reader is blind"
    plan = Plan("x1", 0, "gpt-4o", "original", reason=problem)
    labels = ((b"x-palimpsest-mode", b"observe; stood-down:it could not be cut; the server's log says why"),)
    assert await setup.decide(subject) == OutgoingRequest("original", subject.split.content, plan=plan, labels=labels)
    assert setup.list_events(RungFailedEvent) == [
        RungFailedEvent(exchange="x1", session="s1", rung="plan", error=problem)
    ]


async def test_a_rescuer_stands_by_who_is_managed() -> None:
    setup, told = Setup(), list[Headers]()
    sending = OutgoingRequest("original", b"", is_managed=True, is_guarded=True)
    controller, subject = setup.controller, make_subject(until(1))
    parts = controller.states, controller.chain, controller.bus
    rescuer = RefusalRetry(*parts, subject, sending, commit=setup.commit, add_labels=told.append)
    assert rescuer.read_start(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n') == "content"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"transforms": ["middle-out"]}, "the request has transforms"),
        ({"context_management": {"edits": []}}, "the request has context_management"),
    ],
)
async def test_who_manages_by_other_means_is_left_alone_and_told_so(members: Any, reason: str) -> None:
    setup = Setup()
    sending = await prepare(setup, until(22), **members)
    assert sending.labels == ((b"x-palimpsest-mode", f"observe; stood-down:{reason}".encode()),)
    assert sending.plan == Plan("x1", 0, "gpt-4o", "original", reason=reason)
    assert not sending.is_managed


async def test_what_was_looked_at_before_is_not_looked_at_again() -> None:
    setup = Setup()
    sign = (
        "[tool: bash · ok · 3 lines — output pruned; completed; shown in full earlier; original intact; ref:abcdefghij]"
    )
    signed: list[Message] = [*until(16), {"role": "user", "content": sign}]
    assert not (await prepare(Setup(), signed)).is_managed
    subject = make_subject(signed)
    await setup.controller.states.caches.histories.follow(subject)
    assert (await setup.decide(subject)).is_managed
    assert not (await prepare(setup, [*signed, {"role": "user", "content": sign}])).is_managed


async def test_under_an_epoch_what_looks_like_a_sign_is_an_echo() -> None:
    setup = Setup()
    await prepare(setup, until(22))
    sign = (
        "[tool: bash · ok · 3 lines — output pruned; completed; shown in full earlier; original intact; ref:abcdefghij]"
    )
    sending = await prepare(setup, [*until(23), {"role": "user", "content": sign}], "x2", base=46)
    assert sending.plan is not None
    assert (sending.plan.rung, sending.plan.epoch) == ("epoch", "x1")


async def test_a_plan_tells_tokens_as_the_model_counts_them() -> None:
    setup = Setup(ceiling=12_000)
    first = await prepare(setup, until(18))
    assert first.plan is not None
    tokens = first.plan.tokens_upstream
    assert tokens is not None
    for number in range(3):
        await prepare(setup, until(18), f"y{number}", base=1)
        read_answer(setup, f"y{number}", Usage(input=tokens * 11 // 10))
    again = await prepare(setup, until(18), "x2", base=1)
    assert again.plan is not None
    told = setup.controller.states.find_ratio(make_subject(until(18))).apply(tokens)
    assert (again.plan.tokens_client, again.plan.tokens_upstream) == (told, told)
    assert told > tokens * 1.02
    assert again.plan.usable == pytest.approx(first.plan.usable, rel=0.001)


async def test_what_a_request_saves_is_priced_with_what_the_caches_hold() -> None:
    setup = Setup()
    savings = [(await prepare(setup, until(steps), f"x{steps}", base=1)).plan for steps in (14, 15, 22, 23, 24)]
    assert all(plan is not None for plan in savings)
    told = [plan.saving for plan in savings if plan is not None]
    assert told[:2] == [None, 0.0]
    assert [plan.rung for plan in savings if plan is not None] == ["original", "original", "plan", "epoch", "epoch"]
    assert told[3] == pytest.approx(told[4])
    shorter = savings[4]
    assert shorter is not None
    assert shorter.tokens_client is not None
    assert shorter.tokens_upstream is not None
    assert told[4] is not None
    assert 0 < told[4] < shorter.tokens_client - shorter.tokens_upstream


async def test_under_a_revert_a_request_is_charged_to_it_and_says_so() -> None:
    setup = Setup()
    await prepare(setup, until(14))
    subject = make_subject(until(17), "x2", base=31)
    setup.controller.states.caches.contexts.add("s1", make_revert(subject))
    sending = await setup.decide(subject)
    assert sending.plan is not None
    assert (sending.rung, sending.body, sending.plan.epoch) == ("original", subject.split.content, "r")
    assert (b"x-palimpsest-epoch", b"r") in sending.labels
    context = setup.controller.states.caches.contexts.get("s1")
    assert context is not None
    budget = setup.controller.states.find_budget(subject)
    assert context.get_account("gpt-4o", "r", budget).before == subject.nodes
    assert context.get_account("gpt-4o", "", budget).before == make_subject(until(14)).nodes


async def test_a_request_that_asks_for_all_of_the_window_is_not_managed_but_may_be_rescued() -> None:
    setup = Setup(window=20_000)
    sending = await prepare(setup, until(22), max_tokens=20_000)
    assert sending.plan is not None
    assert (sending.plan.rung, sending.plan.pressure, sending.is_managed) == ("original", "none", True)
    assert "no room" in sending.plan.reason


async def test_when_the_log_has_lost_a_record_what_leans_on_it_is_forgotten() -> None:
    setup = Setup()
    await prepare(setup, until(22))
    context = setup.controller.states.caches.contexts.get("s1")
    await prepare(setup, until(23), "x2", base=46)
    assert setup.controller.states.caches.contexts.get("s1") is context
    setup.log.health = msgspec.structs.replace(HEALTHY, generation=1)
    sending = await prepare(setup, until(24), "x3", base=48)
    assert setup.controller.states.caches.contexts.get("s1") is not context
    assert sending.plan is not None
    assert sending.plan.epoch == "x3"


async def test_of_an_epochs_first_request_the_head_alone_was_sent_before() -> None:
    setup = Setup()
    await prepare(setup, until(14))
    subject = make_subject(until(22), "x2", base=29)
    sending = await setup.decide(subject)
    history, _ = setup.controller.states.caches.histories.find(subject)
    assert history is not None and history.head.tokens > 1
    read_answer(setup, "x2", Usage(input=sending.tokens, cached=history.head.tokens // 2))
    survival = setup.controller.states.find_tariff(subject, history).survival
    assert survival == pytest.approx(history.head.tokens // 2 / history.head.tokens)


@pytest.mark.parametrize(
    ("steps", "relation", "rung"), [(15, "append", "plan"), (15, "retry", "original"), (22, "retry", "plan")]
)
async def test_a_history_that_the_log_has_opens_an_epoch_only_above_the_ceiling(
    steps: int, relation: Any, rung: str
) -> None:
    """After a restart memory does not know what it was sent as (B5)."""
    setup = Setup()
    context = await setup.controller.states.caches.contexts.open(make_subject(until(steps)))
    subject = make_subject(until(steps), base=1, relation=relation)
    standing = context.get_account(subject.model, "", setup.controller.states.find_budget(subject))
    standing.account = replace(standing.account, owed=100_000.0)
    sending = await setup.decide(subject)
    assert sending.plan is not None
    assert sending.plan.rung == rung
