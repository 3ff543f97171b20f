"""Who has a say in whether a model is asked."""

from typing import Any

from proxy.engine.compaction.keys import CallCredential
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import Provider
from proxy.model.events import AnswerRead, ExchangeRecorded, LimitsTold
from proxy.model.exchange import Headers, Usage
from tests.support.auxiliary import EXPECTED, KEY, Desk
from tests.support.managing import MODEL, SESSION

PLAN: Headers = ((b"authorization", b"Bearer sk-ant-oat01-x"),)


def make_desk(policy: CompactionPolicy | None = None, **providers: Provider) -> Desk:
    """A desk whose session has spent enough."""
    desk = Desk(policy=policy, providers=providers)
    bus = desk.engine.bus
    bus.publish(
        ExchangeRecorded(
            *("x0", SESSION.id, "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.1, 0.1),
            is_readable=True,
            model=MODEL,
        )
    )
    bus.publish(AnswerRead("x0", 0, Usage(1_000_000, 1000)))
    return desk


def object_to(desk: Desk, headers: Headers = KEY, upstream: str = "main", expected: Any = EXPECTED) -> str:
    key = CallCredential(desk.upstream, b"/v1/chat/completions", headers)
    return desk.office.permission.find_objection(SESSION, key, upstream, MODEL, expected)


def test_as_a_rule_it_may_be() -> None:
    assert object_to(make_desk()) == ""


def test_plans_of_people_are_not_used_unless_they_said_so() -> None:
    assert "subscription_calls" in object_to(make_desk(), PLAN)
    assert object_to(make_desk(CompactionPolicy(subscription_calls=True)), PLAN) == ""


def test_with_a_key_of_the_settings_the_clients_does_not_matter() -> None:
    assert object_to(make_desk(main=Provider(has_own_key=True)), PLAN) == ""


def test_another_upstream_needs_a_key_of_the_settings() -> None:
    assert object_to(make_desk(), upstream="other") == "no client's key goes to another upstream; set api_key of other"
    assert object_to(make_desk(other=Provider(has_own_key=True)), upstream="other") == ""


def test_a_model_that_fails_is_left_alone() -> None:
    desk = make_desk()
    for _ in range(2):
        desk.office.breakers.note_failure("main", MODEL, desk.engine.clock.monotonic())
    assert object_to(desk) == f"{MODEL} failed of late, and is left alone for a while"
    desk.engine.clock.advance(30)
    assert object_to(desk) == ""


def test_limits_count_what_is_asked_and_what_is_answered() -> None:
    desk = make_desk()
    told = ((b"x-ratelimit-remaining-tokens", b"2199"),)
    desk.engine.bus.publish(LimitsTold("x", "main", SESSION.tenant, MODEL, 200, told))
    assert "2199 tokens left" in object_to(desk)
    assert object_to(desk, expected=Usage(1000, 99)) == ""
    assert object_to(desk, expected=Usage(1099)) == ""


def test_the_purse_has_the_last_word() -> None:
    assert "spend_fraction" in object_to(make_desk(), expected=Usage(60_000, 100))


def test_what_a_person_wished_may_take_more_than_its_share_and_no_plan_that_nobody_opened() -> None:
    desk = make_desk(CompactionPolicy(spend_fraction=0.0))
    permission = desk.office.permission
    for headers, objection in ((KEY, ""), (PLAN, "the credential is of a person's plan")):
        key = CallCredential(desk.upstream, b"/v1/chat/completions", headers)
        found = permission.find_objection(SESSION, key, "main", MODEL, EXPECTED, is_wished=True)
        assert found.startswith(objection)
        assert bool(found) == bool(objection)
    assert "spend_fraction" in object_to(desk)
