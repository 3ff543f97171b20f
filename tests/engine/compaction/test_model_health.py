"""Models that fail, miss the cache or are limited; and whether one may be asked."""

from typing import Any

import pytest

from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_health import CacheHitTracker, CircuitBreaker, CircuitBreakers, RateLimits
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import Provider
from proxy.model.events import AnswerRead, ExchangeRecorded, LimitsTold
from proxy.model.exchange import Headers, Usage
from tests.support.engine import FixedClock
from tests.support.managing import MODEL, SESSION
from tests.support.model_calls import EXPECTED, KEY, Setup


def test_two_failures_in_a_row_trip_it_and_its_pauses_grow_up_to_a_quarter_of_an_hour() -> None:
    breaker, pauses = CircuitBreaker(), []
    for _ in range(20):
        breaker = breaker.fail(100.0)
        pauses.append(breaker.pause)
        assert breaker.allows(100.0 + breaker.pause)
        assert not breaker.pause or not breaker.allows(99.9 + breaker.pause)
    assert pauses == [0, 30, 60, 120, 240, 480, *[900] * 14]


def test_behind_a_pause_one_call_probes_and_before_it_trips_calls_may_stand_side_by_side() -> None:
    breaker = CircuitBreaker().fail(0.0).fail(0.0).begin(30.0)
    assert not breaker.allows(59.9)
    assert breaker.allows(60.0)  # nothing was heard of it
    assert not breaker.fail(31.0).allows(90.9)
    assert CircuitBreaker().fail(0.0).begin(5.0).allows(5.0)


def test_models_fail_by_themselves_and_one_success_closes() -> None:
    clock = FixedClock()
    breakers = CircuitBreakers(clock)
    for _ in range(2):
        breakers.record_start("main", "m")
        breakers.record_failure("main", "m")
    assert not breakers.allows("main", "m")
    assert breakers.allows("main", "n")
    assert breakers.allows("other", "m")
    clock.advance(30)
    breakers.record_start("main", "m")
    assert not breakers.allows("main", "m")
    breakers.record_success("main", "m")
    assert breakers.allows("main", "m")
    breakers.record_failure("main", "m")
    assert breakers.allows("main", "m")


def test_what_an_upstream_does_not_do_at_all_is_left_alone_for_as_long_as_is_said() -> None:
    clock = FixedClock()
    breakers = CircuitBreakers(clock)
    breakers.refuse("main", "m", 86_400.0)
    clock.advance(86_399)
    assert not breakers.allows("main", "m")
    clock.advance(1)
    assert breakers.allows("main", "m")


def test_only_so_many_are_remembered() -> None:
    breakers = CircuitBreakers(FixedClock())
    for number in range(1026):
        for _ in range(2):
            breakers.record_failure("main", f"m{number}")
    assert breakers.allows("main", "m1")
    assert not breakers.allows("main", "m2")


COLD, WARM = Usage(1000, 10, cached=799), Usage(1000, 10, cached=800)


def hear(*usages: Usage | None) -> bool:
    tracker = CacheHitTracker()
    for usage in usages:
        tracker.record_call("main", "m", 1.0, usage)
    assert not tracker.is_cold("other", "m")
    return tracker.is_cold("main", "m")


@pytest.mark.parametrize(
    ("usages", "is_cold"),
    [
        ((COLD,), False),
        ((COLD, COLD), True),
        ((COLD, COLD, WARM), True),  # from then on
        ((COLD, WARM, COLD), False),
        ((Usage(1000, 10), Usage(cached=0), None, Usage(0, 0, cached=0)), False),  # what says nothing
        ((COLD, Usage(1000, 10), COLD), True),
    ],
)
def test_a_cache_that_was_cold_twice_in_a_row_is_cold(usages: tuple[Usage | None, ...], *, is_cold: bool) -> None:
    assert hear(*usages) is is_cold


def test_most_calls_are_answered_within_the_percentile() -> None:
    tracker = CacheHitTracker()
    assert tracker.compute_p95_seconds("main", "m") is None
    for seconds in range(1, 21):
        tracker.record_call("main", "m", float(seconds))
    assert tracker.compute_p95_seconds("main", "m") == 19.0
    for _ in range(64):
        tracker.record_call("main", "m", 2.0)
    assert tracker.compute_p95_seconds("main", "m") == 2.0


def test_only_so_many_models_are_remembered() -> None:
    tracker = CacheHitTracker()
    for number in range(1025):
        tracker.record_call("main", f"m{number}", 1.0)
    assert tracker.compute_p95_seconds("main", "m0") is None
    assert tracker.compute_p95_seconds("main", "m1") == 1.0


class World:
    """Limits of two upstreams, one of which is asked with a key of the settings."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.limits = RateLimits(self.clock, ["owned"])

    def tell(self, status: int = 200, *, upstream: str = "main", tenant: bytes = b"t", **fields: str) -> None:
        headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
        self.limits.record(LimitsTold("x", upstream, tenant, "m", status, headers))

    def objects(self, tokens: int = 500, upstream: str = "main", tenant: bytes = b"t", model: str = "m") -> str:
        return self.limits.find_objection(upstream, tenant, model, tokens)


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_left_must_take_it_twice(world: World) -> None:
    assert world.objects() == ""  # nothing was said yet
    world.tell(x_ratelimit_remaining_tokens="1000")
    assert world.objects(500) == ""
    assert world.objects(501) == "the provider has 1000 tokens left for now, and 1002 would have to be"


def test_one_request_is_left_to_the_client(world: World) -> None:
    world.tell(x_ratelimit_remaining_requests="1")
    assert "1 requests left" in world.objects()
    world.tell(x_ratelimit_remaining_requests="2")
    assert world.objects() == ""


@pytest.mark.parametrize(("fields", "seconds"), [({"x_ratelimit_reset_tokens": "10s"}, 10), ({}, 60)])
def test_a_limit_is_forgotten_when_more_has_come_or_after_a_minute(
    world: World, fields: dict[str, Any], seconds: float
) -> None:
    world.tell(x_ratelimit_remaining_tokens="0", **fields)
    world.clock.advance(seconds - 0.1)
    assert world.objects()
    world.clock.advance(0.1)
    assert not world.objects()


def test_limits_are_of_one_model_and_one_credential(world: World) -> None:
    world.tell(x_ratelimit_remaining_tokens="0")
    assert not world.objects(model="n")
    assert not world.objects(tenant=b"u")
    assert not world.objects(upstream="other")


@pytest.mark.parametrize(("fields", "seconds"), [({"retry_after": "7"}, 7), ({}, 60), ({"retry_after_ms": "500"}, 0.5)])
def test_too_many_requests_are_a_pause_for_all_models(world: World, fields: dict[str, str], seconds: float) -> None:
    world.tell(429, upstream="main", tenant=b"t", **fields)
    assert "too many requests" in world.objects(model="n")
    assert not world.objects(tenant=b"u")
    world.clock.advance(seconds)
    assert not world.objects(model="n")


def test_only_that_status_makes_a_pause(world: World) -> None:
    world.tell(503, retry_after="7")
    assert not world.objects()


def test_who_shares_a_key_of_the_settings_shares_its_limits(world: World) -> None:
    world.tell(429, upstream="owned", tenant=b"t")
    assert world.objects(upstream="owned", tenant=b"u")


PLAN: Headers = ((b"authorization", b"Bearer sk-ant-oat01-x"),)


def make_desk(policy: CompactionPolicy | None = None, **providers: Provider) -> Setup:
    """A setup whose session has spent enough."""
    setup = Setup(policy=policy, providers=providers)
    bus = setup.engine.bus
    bus.publish(
        ExchangeRecorded(
            *("x0", SESSION.id, "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.1, 0.1),
            is_readable=True,
            model=MODEL,
        )
    )
    bus.publish(AnswerRead("x0", 0, Usage(1_000_000, 1000)))
    return setup


def object_to(setup: Setup, headers: Headers = KEY, upstream: str = "main", expected: Any = EXPECTED) -> str:
    key = CallCredential(setup.upstream, b"/v1/chat/completions", headers)
    return setup.health.find_objection(SESSION, key, upstream, MODEL, expected=expected)


OWN = Provider(has_own_key=True)


@pytest.mark.parametrize(
    ("policy", "providers", "headers", "upstream", "objection"),
    [
        (None, {}, KEY, "main", ""),
        (None, {}, PLAN, "main", "subscription_calls"),
        (CompactionPolicy(subscription_calls=True), {}, PLAN, "main", ""),
        (None, {"main": OWN}, PLAN, "main", ""),
        (None, {}, KEY, "other", "no client's key goes to another upstream; set api_key of other"),
        (None, {"other": OWN}, KEY, "other", ""),
    ],
)
def test_whose_key_may_be_used(policy: Any, providers: Any, headers: Headers, upstream: str, objection: str) -> None:
    found = object_to(make_desk(policy, **providers), headers, upstream)
    assert objection in found and bool(found) is bool(objection)


def test_a_model_that_fails_is_left_alone() -> None:
    setup = make_desk()
    for _ in range(2):
        setup.health.breakers.record_failure("main", MODEL)
    assert object_to(setup) == f"{MODEL} failed lately and is not asked for a while"
    setup.engine.clock.advance(30)
    assert object_to(setup) == ""


def test_limits_count_what_is_asked_and_what_is_answered() -> None:
    setup = make_desk()
    told = ((b"x-ratelimit-remaining-tokens", b"2199"),)
    setup.engine.bus.publish(LimitsTold("x", "main", SESSION.tenant, MODEL, 200, told))
    assert "2199 tokens left" in object_to(setup)
    assert object_to(setup, expected=Usage(1000, 99)) == ""
    assert object_to(setup, expected=Usage(1099)) == ""


def test_what_a_person_wished_may_take_more_than_its_share_and_no_plan_that_nobody_opened() -> None:
    setup = make_desk(CompactionPolicy(spend_fraction=0.0))
    for headers, objection in ((KEY, ""), (PLAN, "the credential is of a person's plan")):
        key = CallCredential(setup.upstream, b"/v1/chat/completions", headers)
        found = setup.health.find_objection(SESSION, key, "main", MODEL, expected=EXPECTED, is_manual=True)
        assert found.startswith(objection)
        assert bool(found) == bool(objection)
    assert "spend_fraction" in object_to(setup)
    assert "spend_fraction" in object_to(make_desk(), expected=Usage(60_000, 100))


def test_limits_come_by_the_bus_and_are_shared_where_the_key_is() -> None:
    setup = Setup(providers={"main": Provider(has_own_key=True), "other": Provider()})
    for upstream in ("main", "other"):
        setup.engine.bus.publish(LimitsTold("x", upstream, b"somebody else", MODEL, 429, ()))
    limits = setup.health.limits
    assert limits.find_objection("main", SESSION.tenant, MODEL, 1)
    assert not limits.find_objection("other", SESSION.tenant, MODEL, 1)


def test_nothing_costs_money_that_nobody_allowed() -> None:
    policy = CompactionPolicy()
    assert (policy.spend_fraction, policy.subscription_calls, policy.may_receive) == (0.05, False, ())
