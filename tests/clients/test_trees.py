"""Trees: each way in which sessions can come out otherwise is seen; only the order of branches is forgiven."""

from dataclasses import replace

import pytest

from tests.clients.client import Expected, Tree
from tests.clients.logs import Found, Log, Recorded
from tests.clients.trees import check_sessions, read_trees

CALL = Recorded("chat", "POST", "/v1/x", "complete", b"", b"", b"")
ASIDE = replace(CALL, wire="")
MAIN = Found("s1", "codex:1", "", ("root append*2", "(root)"))
AGENT = Found("s2", "codex:2", "s1", ("root",))
EXPECTED = Expected(5, (Tree(("(root)", "root append*2")), Tree(("root",), parent=0)), names="codex:")
LOG = Log((ASIDE, *5 * (CALL,)), (MAIN, AGENT))


def test_what_is_expected_is_fine() -> None:
    assert list(check_sessions(EXPECTED, LOG)) == []
    again = (replace(MAIN, id="s3"), replace(AGENT, id="s4", parent="s3"))
    assert list(check_sessions(EXPECTED, Log(10 * (CALL,), (MAIN, AGENT, *again)), runs=2)) == []


@pytest.mark.parametrize(
    ("calls", "sessions", "fault"),
    [
        (4, (MAIN, AGENT), "4 calls in formats we read, expected 5"),
        (5, (replace(MAIN, name="x-session-id:1"), AGENT), "sessions are named ['x-session-id:1'], expected codex:..."),
        (5, (MAIN,), "1 sessions, expected 2: (root) | root append*2"),
        (5, (AGENT, MAIN), "session 1: root under 2, expected (root) | root append*2"),
        (5, (MAIN, replace(AGENT, parent="")), "session 2: root, expected root under 1"),
        (5, (MAIN, replace(AGENT, parent="other")), "session 2: root under 0, expected root under 1"),
        (5, (replace(MAIN, branches=("root append*2",)), AGENT), "session 1: root append*2, expected (root) | root a"),
        (5, (replace(MAIN, branches=("root", "(root) append*2")), AGENT), "session 1: (root) append*2 | root, expec"),
    ],
)
def test_what_is_not_expected_is_told(calls: int, sessions: tuple[Found, ...], fault: str) -> None:
    faults = list(check_sessions(EXPECTED, Log(calls * (CALL,), sessions)))
    assert faults[0].startswith(fault)


def test_what_is_asked_for_first_may_pass_for_the_conversation() -> None:
    expected = Expected(3, (Tree(("root append*2", "(root)?")),), names="codex:")

    def check(*branches: str) -> list[str]:
        return list(check_sessions(expected, Log(3 * (CALL,), (replace(MAIN, branches=branches),))))

    assert check("(root)", "root append*2") == check("root", "root append*2") == []
    assert check("(root)", "(root) append*2") == [
        "session 1: (root) | (root) append*2, expected (root)? | root append*2"
    ]
    assert check("root append*2")


def test_a_session_without_expected_branches_may_have_any() -> None:
    expected = replace(EXPECTED, sessions=(Tree(()), Tree(("root",), parent=0)))
    assert list(check_sessions(expected, LOG)) == []
    assert list(check_sessions(replace(expected, sessions=(Tree(()), Tree((), parent=1))), LOG)) != []


def test_what_a_client_does_not_know_of_is_no_call_of_it() -> None:
    hidden = replace(CALL, hidden=1)
    assert list(check_sessions(EXPECTED, replace(LOG, exchanges=(*LOG.exchanges, hidden)))) == []


def test_runs_have_sessions_of_their_own() -> None:
    joined = replace(MAIN, branches=("root append*2", "(root)", "root append*2", "(root)"))
    assert list(check_sessions(EXPECTED, Log(10 * (CALL,), (joined, AGENT)), runs=2))
    assert read_trees((MAIN, AGENT, AGENT))[2].parent == 0
    again = (MAIN, AGENT, replace(MAIN, id="s3"), replace(AGENT, id="s4"))
    assert list(check_sessions(EXPECTED, Log(10 * (CALL,), again), runs=2)) == [
        "session 4: root under 1, expected root under 3"
    ]


def test_a_client_that_names_nothing_must_not_be_named() -> None:
    log = Log((CALL,), (replace(AGENT, parent=""),))
    assert list(check_sessions(Expected(1, (Tree(("root",)),)), log)) == [
        "sessions are named ['codex:2'], expected ..."
    ]


def test_what_a_killed_client_repeats_is_left_to_chance_within_its_spare() -> None:
    lenient = replace(EXPECTED, spare=2)
    other = replace(MAIN, branches=("root append*4", "branch"))
    assert list(check_sessions(lenient, Log(7 * (CALL,), (other, AGENT, replace(MAIN, id="s3"))))) == []
    assert list(check_sessions(lenient, Log(8 * (CALL,), (other,)))) == ["8 calls in formats we read, expected 5"]
    (fault,) = check_sessions(lenient, Log(5 * (CALL,), 4 * (MAIN,)))
    assert fault.startswith("4 sessions, expected at most 3")
