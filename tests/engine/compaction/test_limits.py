"""Rate limits are left to the clients."""

import pytest

from proxy.engine.compaction.limits import RateLimits
from proxy.model.events import LimitsTold
from tests.support.engine import FixedClock


class World:
    """Limits of two upstreams, one of which is asked with a key of the settings."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.limits = RateLimits(self.clock, ["owned"])

    def tell(self, status: int = 200, *, upstream: str = "main", tenant: bytes = b"t", **fields: str) -> None:
        headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
        self.limits.note(LimitsTold("x", upstream, tenant, "m", status, headers))

    def objects(self, tokens: int = 500, upstream: str = "main", tenant: bytes = b"t", model: str = "m") -> str:
        return self.limits.find_objection(upstream, tenant, model, tokens)


@pytest.fixture
def world() -> World:
    return World()


def test_where_nothing_was_said_nothing_is_limited(world: World) -> None:
    assert world.objects() == ""


def test_what_is_left_must_take_it_twice(world: World) -> None:
    world.tell(x_ratelimit_remaining_tokens="1000")
    assert world.objects(500) == ""
    assert world.objects(501) == "the provider has 1000 tokens left for now, and 1002 would have to be"


def test_one_request_is_left_to_the_client(world: World) -> None:
    world.tell(x_ratelimit_remaining_requests="1")
    assert "1 requests left" in world.objects()
    world.tell(x_ratelimit_remaining_requests="2")
    assert world.objects() == ""


def test_what_was_said_is_forgotten_when_more_has_come(world: World) -> None:
    world.tell(x_ratelimit_remaining_tokens="0", x_ratelimit_reset_tokens="10s")
    world.clock.advance(9.9)
    assert world.objects()
    world.clock.advance(0.1)
    assert not world.objects()


def test_what_has_no_end_is_believed_for_a_minute(world: World) -> None:
    world.tell(x_ratelimit_remaining_tokens="0")
    world.clock.advance(59.9)
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
