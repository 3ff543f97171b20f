"""Who uses a data directory, and when calls are ended; the end of a server is in `tests/journeys/test_shutdown`."""

import threading
from pathlib import Path

import pytest

from proxy.model.errors import Conflict
from proxy.shutdown import call_when_unused, compute_cut_seconds, use_data
from tests.support.scripted import LIMIT


def test_a_directory_is_given_up_with_the_last_that_uses_it_and_then_kept(tmp_path: Path) -> None:
    folder, called = tmp_path / "data", threading.Event()
    with use_data(folder, 1):
        with use_data(folder, 1):
            call_when_unused(folder, called.set)
            assert not called.wait(0.1)
        assert not called.wait(0.1)
    assert called.wait(LIMIT)
    with pytest.raises(Conflict, match="is ending"), use_data(folder, 0.1):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("calls", "drain", "seconds"),
    [(0, 30.0, 0.25), (100, 30.0, 0.4), (9000, 30.0, 13.75), (9000, 15.0, 10.0), (9, 0, 0)],
)
def test_the_more_calls_are_left_the_earlier_they_are_ended(calls: int, drain: float, seconds: float) -> None:
    assert compute_cut_seconds(calls, drain) == pytest.approx(seconds)
