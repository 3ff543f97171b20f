"""Runs: what the assistant says in one go, and the results behind it."""

from proxy.model.messages import MessageStructure, list_run_starts

USER, SAID, CALL, RESULT = (
    MessageStructure("user"),
    MessageStructure("assistant"),
    MessageStructure("assistant", ("a",)),
    MessageStructure("tool", (), ("a",)),
)


def test_what_is_said_in_one_go_and_its_results_are_one_run() -> None:
    assert list_run_starts(
        [MessageStructure("system"), USER, SAID, CALL, RESULT, RESULT, CALL, RESULT, USER, USER]
    ) == [
        0,
        1,
        2,
        6,
        8,
        9,
    ]


def test_results_join_whatever_they_stand_behind() -> None:
    assert list_run_starts([RESULT, USER, RESULT]) == [0, 1]
    assert list_run_starts([]) == []
