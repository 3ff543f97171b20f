"""The scripted session: every step does what it says it does, and all of it the same each time."""

import json
import re

from proxy.demo.story import list_turns, make_tools, write_system
from proxy.demo.upstream import DemoUpstream, Meter, write_summary
from proxy.demo.workspace import CARRIERS, Workspace


def play() -> list[str]:
    """The results of all calls."""
    workspace = Workspace()
    return [workspace.run(step.tool, step.arguments) for turn in list_turns() for step in turn.steps if step.tool]


def test_it_has_150_steps_and_each_turn_ends_in_words() -> None:
    turns = list_turns()
    assert sum(len(turn.steps) for turn in turns) == 150
    for turn in turns:
        *before, last = turn.steps
        assert all(step.tool and step.said for step in before)
        assert last.said and not last.tool


def test_no_call_goes_wrong_and_all_are_the_same_each_time() -> None:
    results = play()
    assert results == play()
    assert not [
        result for result in results if result.startswith(("error", "sh: ", "no matches")) and "hours" in result
    ]
    assert sum(result.startswith(("error", "sh: ")) for result in results) == 0


def test_each_new_test_fails_before_its_change_and_passes_after() -> None:
    runs = [result for result in play() if result.startswith("python -m pytest")]
    failed = [result for result in runs if " failed" in result]
    assert len(failed) == 1 + len(CARRIERS)
    assert all("1 failed" in result and "timedelta(hours=24)" in result for result in failed)
    assert " failed" not in runs[-1]


def test_the_repository_has_each_carrier_in_its_own_words() -> None:
    files = Workspace().files
    for facts in CARRIERS:
        assert facts.title in files[f"quayside/carriers/{facts.name}.py"]
        compile(files[f"quayside/carriers/{facts.name}.py"], facts.name, "exec")
        compile(files[f"tests/carriers/test_{facts.name}.py"], facts.name, "exec")
    assert "$" not in "".join(text for path, text in files.items() if path.endswith(".py"))


def test_after_the_session_every_module_is_still_python() -> None:
    workspace = Workspace()
    for turn in list_turns():
        for step in turn.steps:
            if step.tool:
                workspace.run(step.tool, step.arguments)
    for path, text in workspace.files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
    assert not re.search(r"hours=24", "".join(workspace.files.values()))
    assert workspace.files["migrations/0007_promises.sql"] == Workspace().files["migrations/0007_promises.sql"]


def test_a_wrong_call_is_answered_with_a_text() -> None:
    workspace = Workspace()
    assert workspace.run("read_file", {"path": "none"}) == "error: none does not exist"
    assert workspace.run("edit_file", {"path": "README.md", "old": "promise", "new": ""}).startswith("error: ")
    assert workspace.run("search", {"pattern": "no such text"}) == "no matches"
    assert workspace.run("run", {"command": "rm -r ."}) == "sh: rm: not found"


def test_the_meter_reads_what_an_earlier_prompt_began_with() -> None:
    meter = Meter(len)
    long = {"role": "user", "content": "a" * 2000}
    first = meter.add({"messages": [long]}, "answer")
    again = meter.add({"messages": [long, {"role": "user", "content": "b"}]}, "answer")
    other = meter.add({"messages": [long], "tools": [tool.name for tool in make_tools(has_tracker=True)]}, "answer")
    assert (first.cached, other.cached) == (0, 0)
    assert again.cached and first.input and again.cached == first.input // 128 * 128


def test_a_short_prompt_is_not_cached() -> None:
    meter = Meter(len)
    body = {"messages": [{"role": "user", "content": "a" * 900}]}
    assert [meter.add(body, "").cached for _ in range(2)] == [0, 0]


def test_a_step_is_a_message_with_its_call() -> None:
    step = list_turns()[0].steps[0]
    message = step.write("call_0001")
    [asked] = message["tool_calls"]
    assert asked["id"] == "call_0001" and json.loads(asked["function"]["arguments"]) == {"command": "ls ."}


def test_a_summary_quotes_the_user_with_the_numbers_of_the_request() -> None:
    plain = write_summary([{"role": "user", "content": "quayside/carriers/amber.py"}])
    numbered = write_summary([{"role": "user", "content": "[m1 user]\nDo it."}])
    assert "- quayside/carriers/amber.py was read" in plain and "[m1]" not in plain
    assert '"Always use Decimal for money, never float." [m1]' in numbered


def test_the_system_prompt_has_what_the_repository_says_of_itself() -> None:
    files = Workspace().files
    assert files["README.md"] in write_system(files) and files["docs/days.md"] in write_system(files)


def test_every_rule_that_is_looked_for_was_stated() -> None:
    upstream = DemoUpstream(Meter(len))
    assert upstream.newest.input is None and not upstream.newest_text
