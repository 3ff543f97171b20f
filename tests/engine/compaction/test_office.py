"""The parts put together hear what they must."""

from proxy.engine.compaction.keys import CallCredential
from proxy.engine.policy import Provider
from proxy.model.events import LimitsTold
from tests.support.auxiliary import KEY, Desk
from tests.support.managing import MODEL, SESSION


def test_limits_come_by_the_bus_and_are_shared_where_the_key_is() -> None:
    desk = Desk(providers={"main": Provider(has_own_key=True), "other": Provider()})
    for upstream in ("main", "other"):
        desk.engine.bus.publish(LimitsTold("x", upstream, b"somebody else", MODEL, 429, ()))
    limits = desk.office.permission.limits
    assert limits.find_objection("main", SESSION.tenant, MODEL, 1)
    assert not limits.find_objection("other", SESSION.tenant, MODEL, 1)


def test_keys_are_swept_by_whoever_was_given() -> None:
    desk = Desk()
    desk.office.keys.note("s1", b"t" * 16, CallCredential(desk.upstream, b"/", KEY))
    assert [seconds for seconds, _ in desk.later] == [1800.0]
