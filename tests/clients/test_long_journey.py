"""A long task of a client of our own, through a real proxy: its calls are shortened, and what is wrong is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.agents import AGENTS
from tests.clients.answers import Tokens
from tests.clients.client import Expected, Long, Tree
from tests.clients.comparing import Run
from tests.clients.logs import Log
from tests.clients.long_journey import Figures, check_log, check_long_run, compare_work, run_long_journey
from tests.clients.long_tasks import LONG_TASKS
from tests.clients.script import Call, Turn
from tests.clients.sdks import SDKS
from tests.clients.task import ORDER, LongTask, prompt_for
from tests.clients.test_journey import CLIENT, PROGRAMS
from tests.clients.upstream import Exchange

STEPS = 20
LONG = Long(
    CLIENT.commands,
    Expected(STEPS + 1, (Tree((f"root append*{STEPS}",)),)),
    16_000,
    task=LongTask(STEPS),
    settings={"PROMPT": prompt_for(1)},
)
TURN = Turn("", (Call("bash", {"command": "ls"}),))
CALL = Exchange("POST", "/v1/x", b"", b"", TURN, Tokens())
RUN = Run((0,), b"", (CALL,), ((ORDER, b"01\n"),))
FIGURES = Figures("hand", 1, (0,), 1, 1, 7, 7, 0, managed=1)


def test_a_long_task_without_a_fault(tmp_path: Path) -> None:
    faults, figures = run_long_journey(replace(CLIENT, files={}), LONG, PROGRAMS, tmp_path)
    assert faults == []
    assert [each.way for each in figures] == ["direct", "hand", "run"]
    direct, *through = figures
    assert direct.largest > 2 * LONG.ceiling
    for each in through:
        assert each.largest <= LONG.ceiling
        assert (each.calls, each.steps) == (direct.calls, direct.steps) == (STEPS + 1, STEPS)
        assert min(each.managed, each.epochs) > 0
        assert each.client > each.sent > 0
        assert f"{each.managed} managed, {each.epochs} epochs" in str(each)


def test_a_client_that_the_provider_refuses_is_told(tmp_path: Path) -> None:
    faults, _ = run_long_journey(replace(CLIENT, files={}), replace(LONG, window=30_000), PROGRAMS, tmp_path)
    assert [fault for fault in faults if fault.startswith("direct")] == [
        next(fault for fault in faults if fault.startswith("direct: exit codes (1,)")),
        "direct: 1 calls were refused as too long",
        next(fault for fault in faults if fault.endswith(f"calls, expected {STEPS + 1}")),
    ]
    assert any(fault.startswith("hand: exit codes (0,), direct (1,)") for fault in faults)


def test_what_differs_is_told() -> None:
    other = Exchange("POST", "/v1/x", b"", b"", Turn("", (Call("bash", {"command": "pwd"}),)), Tokens())
    changed = Run((1,), b"", (other,), ((ORDER, b"02\n"),))
    assert list(compare_work(LONG, RUN, RUN)) == []
    assert list(compare_work(LONG, RUN, changed)) == [
        "exit codes (1,), direct (0,)",
        "files that differ: order.txt",
        'tool call 1: [\'["bash", {"command": "pwd"}]\'], direct [\'["bash", {"command": "ls"}]\']',
    ]


@pytest.mark.parametrize("alone", [False, True])
def test_a_step_that_a_client_takes_again_counts_once_where_it_compacted(alone: bool) -> None:
    again = replace(RUN, recording=(CALL, CALL), files=((ORDER, b"01\n01\n"),))
    assert bool(list(compare_work(replace(LONG, alone=alone), again, RUN))) != alone
    assert list(compare_work(replace(LONG, alone=alone), RUN, again)), "through the proxy it may not"


def test_compactions_of_its_own_are_told_but_direct() -> None:
    expected = replace(LONG, expected=Expected(2, ()))
    assert list(check_long_run(expected, RUN, may_compact=False)) == ["1 calls, expected 2"]
    assert list(check_long_run(expected, RUN, may_compact=True)) == []


def test_calls_have_to_be_shortened_and_below_the_ceiling() -> None:
    expected, log = replace(LONG, expected=Expected(0, ())), Log((), ())
    run = replace(RUN, recording=())
    assert list(check_log(expected, run, log, FIGURES)) == []
    assert list(check_log(expected, run, log, replace(FIGURES, managed=0, largest=16_001))) == [
        "no call was shortened",
        "16001 tokens were sent, above the ceiling of 16000",
    ]


def test_every_client_has_a_long_task_but_the_one_that_is_not_shortened() -> None:
    assert {client.name for client in (*SDKS, *AGENTS)} - LONG_TASKS.keys() == {"gemini-cli"}
    assert LONG_TASKS.keys() <= {client.name for client in (*SDKS, *AGENTS)}
