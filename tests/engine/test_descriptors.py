"""What is done when hardly a file descriptor is free: who lets go, what is said, and what is counted."""

import logging
import resource

import pytest

from proxy.engine.runtime import Descriptors, read_descriptor_limit


@pytest.mark.parametrize(("limit", "first"), [(128, 112), (1024, 960), (1_000_000, 999_936)])
def test_the_last_few_are_kept_in_reserve(limit: int, first: int) -> None:
    descriptors = Descriptors(limit)
    assert [descriptors.is_scarce(newest) for newest in (first - 1, first)] == [False, True]


@pytest.mark.parametrize(("idle", "said"), [((2, 3), "idle connections are closed"), ((0, 0), "new ones are refused")])
def test_all_who_hold_some_let_go(idle: tuple[int, int], said: str, caplog: pytest.LogCaptureFixture) -> None:
    descriptors = Descriptors(128)
    for count in idle:
        descriptors.add_releaser(lambda count=count: count)  # type: ignore[misc]
    with caplog.at_level(logging.WARNING):
        assert descriptors.relieve() == sum(idle)
    (record,) = caplog.records
    assert "nearly all of the 128 file descriptors are taken; raise the limit (ulimit -n" in record.getMessage()
    assert said in record.getMessage()
    assert descriptors.shortages == 1


def test_the_limit_is_that_of_the_process() -> None:
    assert read_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
