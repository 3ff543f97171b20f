"""The long task: which step is next follows from the newest one that a request shows, whatever was left out of it."""

import json
from typing import Any

import pytest

from proxy.model.messages import RECALL_TOOL
from tests.clients.script import DONE, Call, Script
from tests.clients.task import PARTS, LongTask, Step, find_job, find_step, prompt_for, write_part

TASK = LongTask(script=Script("/somewhere", ending=""))
TOOLS = [
    {"name": name, "parameters": {"properties": {each: {"type": "string"} for each in names}}}
    for name, names in {"read": ["path"], "bash": ["command"], "write": ["path", "content"]}.items()
]


def ask(*contents: str, role: str = "user", tools: list[dict[str, Any]] = TOOLS) -> dict[str, Any]:
    return {"tools": tools, "messages": [{"role": role, "content": content} for content in contents]}


def take(n: int) -> tuple[str, Any]:
    """The call of a step that follows another."""
    [call] = TASK.answer(ask(f"end of part-{n - 1:02}", role="tool")).calls
    return call.name, call.arguments


def test_each_step_follows_the_newest_one() -> None:
    [first] = TASK.answer(ask(prompt_for(1))).calls
    assert first.arguments == {"command": "cat part-01.txt; echo 01 >> order.txt"}
    assert take(7)[1] == {"command": "cat part-07.txt; echo 07 >> order.txt"}
    assert take(8) == ("read", {"path": "/somewhere/part-08.txt"})
    assert take(15) == ("write", {"path": "/somewhere/part-15.copy.txt", "content": "Measured: 15. é\n"})
    told = TASK.answer(ask("a ledger: part-03, part-04", "end of part-09"))
    assert told.calls[0].arguments == {"command": "cat part-10.txt; echo 10 >> order.txt"}


def test_a_turn_ends_and_the_next_one_goes_on() -> None:
    ended = TASK.answer(ask("end of part-30"))
    assert (ended.text, ended.calls) == (f"{DONE} turn 1.", ())
    [call] = TASK.answer(ask("end of part-30", f"{DONE} turn 1.", prompt_for(31))).calls
    assert call.arguments["command"].startswith("cat part-31.txt")
    last = LongTask(PARTS, Script(ending="exit")).answer(ask(f"end of part-{PARTS}"))
    assert (last.text, last.calls[0].arguments) == (f"{DONE} turn 1.", {"command": "exit"})
    assert LongTask(PARTS).answer(ask("end of part-30")).calls


@pytest.mark.parametrize(
    "asked",
    [
        ask("end of part-29", "Make a summary.", tools=[]),
        ask("end of part-29", "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."),
        {"tools": TOOLS, "input": [{"role": "tool", "output": "end of part-29"},
                                   {"role": "user", "content": [{"text": "CONTEXT CHECKPOINT COMPACTION"}]}]},
    ],
)  # fmt: skip
def test_a_client_that_compacts_gets_a_summary_and_goes_on_from_it(asked: dict[str, Any]) -> None:
    turn = TASK.answer(asked)
    assert (turn.text, turn.calls) == (f"{DONE} all is read up to part-29.", ())
    # It may show a file again that it read before.
    [call] = TASK.answer(ask(prompt_for(1), turn.text, "Read before: part-24")).calls
    assert call.arguments["command"].startswith("cat part-30.txt")


def test_a_client_without_tools_gets_its_file_as_text() -> None:
    turn = LongTask(is_prose=True).answer(ask("Begin with part-07: ...", tools=[]))
    assert "part-07.copy.txt\n```\nMeasured: 07. é\n```" in turn.text
    assert turn.calls == ()


def test_what_stands_in_a_system_prompt_is_no_step() -> None:
    assert find_step({"messages": [{"role": "system", "content": "part-60"}]}) == Step()
    assert find_step({"input": prompt_for(31)}) == Step(31, is_asked=True)


def test_parts_have_no_line_in_common() -> None:
    lines = [line for n in range(1, PARTS + 1) for line in write_part(n).splitlines()]
    assert len(lines) == len(set(lines))
    assert {find_step(ask(write_part(n))).n for n in range(1, PARTS + 1)} == set(range(1, PARTS + 1))
    assert json.dumps(write_part(1)) == json.dumps(write_part(1))


def test_the_model_recalls_where_it_can() -> None:
    task = LongTask(recalls=(20,), beside=(22,), script=Script("/somewhere"))
    offered = [*TOOLS, {"name": RECALL_TOOL, "parameters": {"properties": {"action": {"type": "string"}}}}]
    before, job = ask("end of part-19", role="tool", tools=offered), find_job(5)[0]
    [search] = task.answer(before).calls
    assert search == Call(RECALL_TOOL, {"action": "search", "query": job})
    assert job in write_part(5)
    assert [call.name for call in task.answer(before | {"tools": TOOLS}).calls] == ["read"]
    call = {"id": "r", "function": {"name": RECALL_TOOL, "arguments": json.dumps(search.arguments)}}
    recalled = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "r", "content": "part-05"},
    ]
    following = before | {"messages": before["messages"] + recalled}
    assert [call.name for call in task.answer(following).calls] == ["read"]
    told = ask("ref:abcdefghij", "end of part-21", role="tool", tools=offered)
    expand = Call(RECALL_TOOL, {"action": "expand", "ref": "abcdefghij"})
    assert task.answer(told).calls[0] == expand
    assert task.answer(told).calls[1].name == "bash"
    assert task.answer_rescued(ask("ref:abcdefghij", "end of part-30", tools=offered)).calls == (expand,)
    assert task.answer_rescued(ask("end of part-30", tools=offered)).calls[0].arguments["query"] == find_job(1)[0]
    assert task.answer_rescued(following) == task.answer(following)
