"""A long task of a client of our own, through a real proxy: its calls are shortened, and what is wrong is told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.model.messages import RECALL_TOOL
from tests.clients.client import Expected, Long, Tree
from tests.clients.comparing import Run
from tests.clients.logs import Log, Recorded
from tests.clients.long_journey import (
    Figures,
    check_log,
    check_recalls,
    check_traces,
    compare_work,
    run_long_journey,
)
from tests.clients.long_tasks import LONG_TASKS
from tests.clients.script import Call, Turn
from tests.clients.task import ORDER, PARTS, LongTask, name_part, prompt_for, write_part
from tests.clients.test_journey import CLIENT, PROGRAMS
from tests.clients.upstream import Exchange
from tests.support.answers import Tokens

STEPS = 20
LONG = Long(
    CLIENT.commands,
    Expected(STEPS + 1, (Tree((f"root append*{STEPS}",)),)),
    16_000,
    task=LongTask(STEPS),
    settings={"PROMPT": prompt_for(1)},
)
# A client that keeps its conversation, goes on with it when it is told something more, and calls again what failed.
KEEPING = """
import http.client, json, os, subprocess, sys, urllib.error, urllib.request
function = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
kept = os.path.join(os.environ["HOME"], "kept.json")
messages = json.load(open(kept)) if os.path.exists(kept) else []
messages.append({"role": "user", "content": sys.argv[1]})
while True:
    asked = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}
    body = json.dumps(asked | {"max_tokens": 1000}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    while True:
        try:
            request = urllib.request.Request(address, body, {"content-type": "application/json"})
            message = json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]["message"]
            break
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):
            pass
    messages.append(message)
    for call in message.get("tool_calls", ()):
        command = json.loads(call["function"]["arguments"])["command"]
        output = subprocess.check_output(command, shell=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    with open(kept, "w") as file:
        json.dump(messages, file)
    if not message.get("tool_calls"):
        print(message["content"])
        break
"""
TRIED = Long(
    (("python", "-c", KEEPING, prompt_for(1)),),
    Expected(PARTS + 1, (Tree((f"root append*{PARTS}",)),)),
    16_000,
    task=LongTask(PARTS, recalls=(27,)),
    resume=("python", "-c", KEEPING, "Go on, please."),
    # A call whose client has gone before its head is given up, so that it has no answer beside which to go on.
    killed=Expected(PARTS + 3, (Tree((f"root append*49 retry append*{PARTS - 48}",)),)),
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


def test_a_client_and_a_proxy_that_were_killed_come_to_the_end(tmp_path: Path) -> None:
    faults, figures = run_long_journey(replace(CLIENT, files={}), TRIED, PROGRAMS, tmp_path)
    assert faults == []
    assert [each.way for each in figures] == ["direct", "hand", "run", "rescue", "killed"]
    assert [each.recalls > 0 for each in figures] == [False, True, True, True, True]
    assert [each.refused > 0 for each in figures] == [False, False, False, True, True]
    assert figures[-1].codes == (-9, 0)


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


def test_calls_have_to_be_shortened_and_below_the_ceiling_but_for_what_is_recalled() -> None:
    expected = replace(LONG, expected=Expected(0, ()))

    def check(tokens: int, body: str, managed: int = 1) -> list[str]:
        call = replace(CALL, body=body.encode(), tokens=Tokens(tokens))
        row = Recorded("", "POST", "/v1/x", "complete", b"", body.encode(), b"")
        log = Log((row,), ())
        return list(check_log(expected, replace(RUN, recording=(call,)), log, replace(FIGURES, managed=managed)))

    call = {"tool_calls": [{"id": "r", "function": {"name": RECALL_TOOL, "arguments": "{}"}}], "role": "assistant"}
    recalled = json.dumps({"messages": [call, {"role": "tool", "tool_call_id": "r", "content": "found"}]})
    assert check(16_000, "{}") == check(19_000, recalled) == []
    assert check(16_001, "{}", managed=0) == [
        "no call was shortened",
        "16001 tokens were sent, above the ceiling of 16000",
    ]
    assert check(19_001, recalled) == ["19001 tokens were sent, above the ceiling of 16000"]


def test_what_of_ours_a_client_keeps_is_told() -> None:
    own = (("home/talk", b"...end of part-07..."), (f"work/{name_part(7)}", b"end of part-07"))
    assert list(check_traces(replace(RUN, kept=own), is_kept=True)) == []
    bare = replace(RUN, kept=own[1:])
    assert list(check_traces(bare, is_kept=True)) == ["the client keeps nothing of its conversation"]
    assert list(check_traces(bare, is_kept=False)) == []
    told = replace(RUN, kept=(*own, ("home/log", b"no tool context_recall")), output=b"[palimpsest ledger 1]")
    assert list(check_traces(told, is_kept=True)) == ["home/log names context_recall", "output names palimpsest ledger"]


def test_a_recall_has_to_be_answered_in_the_next_request() -> None:
    search = {"action": "search", "query": "x"}
    asks = replace(CALL, body=b"{}", turn=Turn("", (Call(RECALL_TOOL, search),)))
    line = write_part(3).splitlines()[1]

    def follow(result: str) -> Exchange:
        call = {"id": "r", "function": {"name": RECALL_TOOL, "arguments": json.dumps(search)}}
        shown = [{"tool_calls": [call]}, {"role": "tool", "tool_call_id": "r", "content": result}]
        return replace(CALL, body=json.dumps({"messages": shown}).encode())

    assert list(check_recalls(replace(RUN, recording=(asks, follow(f"Found: {line}"))))) == []
    assert list(check_recalls(replace(RUN, recording=(asks, follow("No such tool"))))) != []
    assert list(check_recalls(replace(RUN, recording=(asks, replace(CALL, body=b"{}"))))) != []
    assert list(check_recalls(replace(RUN, recording=(CALL,)))) == ["the model did not recall"]


def test_the_agents_that_can_be_resumed_have_trials() -> None:
    tried = {name for name, long in LONG_TASKS.items() if long.killed is not None}
    assert tried == {"codex", "claude-code", "opencode", "pi", "copilot-cli"}
    assert all(long.resume and long.task.recalls for long in LONG_TASKS.values() if long.killed is not None)
