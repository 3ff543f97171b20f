"""Runs: what the assistant says in one go, and the results behind it."""

from proxy.model.shapes import Shape, find_runs

USER, SAID, CALL, RESULT = Shape("user"), Shape("assistant"), Shape("assistant", ("a",)), Shape("tool", (), ("a",))


def test_what_is_said_in_one_go_and_its_results_are_one_run() -> None:
    assert find_runs([Shape("system"), USER, SAID, CALL, RESULT, RESULT, CALL, RESULT, USER, USER]) == [
        0,
        1,
        2,
        6,
        8,
        9,
    ]


def test_results_join_whatever_they_stand_behind() -> None:
    assert find_runs([RESULT, USER, RESULT]) == [0, 1]
    assert find_runs([]) == []
