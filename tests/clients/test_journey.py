"""A journey of a client of our own: a fine one is fine, through a real proxy; what a client does wrong is seen."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients import journey
from tests.clients.client import Client, Expected, Tree
from tests.clients.journey import run_journey
from tests.clients.logs import read_log

PROGRAMS = [Path(sys.executable).parent]
TALK = """
import json, os, subprocess, urllib.request
function = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
messages = [{"role": "user", "content": os.environ["PROMPT"]}]
while True:
    asked = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, json.dumps(asked).encode(), {"content-type": "application/json"})
    message = json.load(urllib.request.urlopen(request, timeout=10))["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls", ()):
        command = json.loads(call["function"]["arguments"])["command"]
        output = subprocess.check_output(command, shell=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    if not message.get("tool_calls"):
        print(message["content"])
        break
"""
TREE = Tree(("root append*2",))
CLIENT = Client(
    "own", "pip", (("python", "-c", TALK),), Expected(3, (TREE,)), {"PROMPT": "Read."}, {"$work/made/here": "$origin"}
)


def test_a_journey_without_a_fault(tmp_path: Path) -> None:
    assert run_journey(replace(CLIENT, files={}), PROGRAMS, tmp_path) == []
    assert (tmp_path / "output-through").read_bytes() == "Done: turn 1. \U0001f600\n".encode()
    answers = [row.received for row in read_log(tmp_path / "data").exchanges]
    assert (b'"call_1_0"' in answers[0], b'"call_1001_0"' in answers[3]) == (True, True), "the first run comes first"


def test_the_log_is_held_against_what_the_upstream_saw_and_its_trees_against_those_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journey, "compare_log", lambda seen, log: [f"{len(seen)} calls, {len(log)} in the log"])
    expected = Expected(3, (Tree(("root append", "branch")),))
    faults = run_journey(replace(CLIENT, files={}, expected=expected), PROGRAMS, tmp_path)
    assert [fault.partition(":")[0] for fault in faults] == ["6 calls, 6 in the log", "session 1", "session 2"]


def test_what_differs_is_told(tmp_path: Path) -> None:
    faults = run_journey(
        replace(CLIENT, settings={"PROMPT": "I call $origin"}, expected=Expected(4, (TREE,))), PROGRAMS, tmp_path
    )
    assert [fault.split(" ")[0] for fault in faults] == ["files", "call", "call", "call", "6"]


def test_a_client_that_fails_by_itself_is_told_from_one_that_fails_through_the_proxy(tmp_path: Path) -> None:
    alone = run_journey(replace(CLIENT, commands=(("sh", "-c", "echo why >&2; exit 3"),)), PROGRAMS, tmp_path)
    assert alone[0] == "direct: exit codes (3,)"
    assert "why" in alone[1]
    fails = ("sh", "-c", "test ! -d ../data")
    through = run_journey(replace(CLIENT, commands=(*CLIENT.commands, fails), files={}), PROGRAMS, tmp_path)
    assert through == [
        "through the proxy: exit codes (0, 1)",
        "exit codes: direct (0, 0), through the proxy (0, 1)",
        "through the proxy again: exit codes (0, 1)",
    ]


def test_a_client_that_does_not_end_is_ended(tmp_path: Path) -> None:
    faults = run_journey(replace(CLIENT, commands=(("sleep", "600"),), seconds=0.1), PROGRAMS, tmp_path)
    assert faults[0] == "direct: exit codes (124,)"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
def test_what_a_client_leaves_running_is_ended(tmp_path: Path) -> None:
    daemon = ("sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & echo $$! > pid")
    run_journey(replace(CLIENT, commands=(daemon,)), PROGRAMS, tmp_path)
    process = (tmp_path / "work" / "pid").read_text().strip()
    deadline = time.monotonic() + 10
    while is_running(process):
        assert time.monotonic() < deadline, "it still runs"
        os.sched_yield()


def is_running(process: str) -> bool:
    """Whether a process is there; one that has ended may wait for a parent to ask how."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
