"""`palimpsest doctor`: what is written, and the exit codes."""

import json
from typing import Any

import pytest

from proxy.config import Settings
from proxy.read.findings import Diagnosis, StoreFacts, conclude, judge_mode, judge_traffic
from tests.cli.commands import call_with
from tests.support.fake_log import FakeLog

FINE = conclude("1.2", (judge_mode("manage"),))
WARNED = conclude("1.2", (judge_mode("manage"), judge_traffic(StoreFacts(path=""), 0)))
BROKEN = conclude("1.2", (judge_mode("bypass"),))


def run_doctor(diagnosis: Diagnosis, *arguments: str) -> tuple[int, Settings, dict[str, Any]]:
    told: list[tuple[Settings, dict[str, Any]]] = []

    def diagnose(settings: Settings, **options: Any) -> Diagnosis:
        told.append((settings, options))
        return diagnosis

    code = call_with(["doctor", *arguments], lambda settings: FakeLog(), diagnose=diagnose)
    [(settings, options)] = told
    return code, settings, options


@pytest.mark.parametrize(("diagnosis", "code"), [(FINE, 0), (WARNED, 0), (BROKEN, 1)])
def test_only_a_fault_ends_with_1(diagnosis: Diagnosis, code: int) -> None:
    assert run_doctor(diagnosis)[0] == code


def test_each_finding_has_a_line_and_its_advice_below(capsys: pytest.CaptureFixture[str]) -> None:
    run_doctor(WARNED)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok       mode          The mode is manage")
    assert lines[1].startswith("WARNING  traffic       No call has been recorded yet.")
    assert lines[2].strip().startswith("\u2192 Set the client's base URL")
    assert lines[-1] == "It works; see the warnings. (palimpsest 1.2)"


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    run_doctor(BROKEN, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["state"]) == ("1.2", "fault")
    assert told["findings"][0]["facts"] == {"mode": "bypass", "ceiling": None} and told["findings"][0]["advice"]


def test_no_money_is_spent_unless_that_is_asked_for() -> None:
    assert run_doctor(FINE)[2] == {"is_live": False}
    assert run_doctor(FINE, "--live")[2] == {"is_live": True}


def test_another_upstream_can_be_examined() -> None:
    settings = run_doctor(FINE, "--upstream", "http://127.0.0.1:9/v1")[1]
    assert [policy.base_url for policy in settings.upstream_policies()] == ["http://127.0.0.1:9/v1"]
