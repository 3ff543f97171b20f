"""Rows of the log are values, equal by content and immutable."""

import pytest

from proxy.model.log import ArchiveHealth, LogFault, SessionRow, Verification


def test_rows_with_the_same_content_are_equal() -> None:
    assert SessionRow("s", "f", "main", 1, 2, 3, "m", 4, 5) == SessionRow("s", "f", "main", 1, 2, 3, "m", 4, 5)
    assert Verification(1, 1, 1, 1, (LogFault("blob 7", "digest"),)) != Verification(1, 1, 1, 1, ())


def test_a_health_report_cannot_be_changed_by_who_reads_it() -> None:
    health = ArchiveHealth(problem="", pending=0, pending_bytes=0, dropped=0, generation=0)
    with pytest.raises(AttributeError):
        health.generation = 1  # type: ignore[misc]
