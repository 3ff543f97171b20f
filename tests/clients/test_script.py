"""The scripted model: which tools it calls, with what, and when it is done."""

from dataclasses import replace
from typing import Any

import pytest

from tests.clients.script import CONTENT, DONE, HELP, Call, Script, Turn

SCRIPT = Script("/somewhere")
READ, SHELL, WRITE = (
    Call("read_file", {"path": "/somewhere/notes.txt"}),
    Call("run_shell_command", {"command": "cat notes.txt"}),
    Call("write_file", {"path": "/somewhere/copy.txt", "content": CONTENT}),
)
NAMES = {"read_file": ["path"], "run_shell_command": ["command"], "write_file": ["path", "content"]}


def offer(name: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"name": name, "parameters": schema if required is None else schema | {"required": required}}


def offer_all() -> list[dict[str, Any]]:
    return [offer(name, {each: {"type": "string"} for each in names}) for name, names in NAMES.items()]


def in_chat(*calls: str, then: str = "") -> list[dict[str, Any]]:
    made = [{"function": {"name": name}} for name in calls]
    ended = [{"role": "assistant", "content": then}] if then else []
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": made}, *ended]


def in_responses(*calls: str, then: str = "") -> list[dict[str, Any]]:
    made = [{"type": "function_call", "name": name} for name in calls]
    end = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": then}]}
    return [{"role": "user", "content": "x"}, *made, *([end] if then else [])]


def in_anthropic(*calls: str, then: str = "") -> list[dict[str, Any]]:
    parts = [{"type": "tool_use", "name": name} for name in calls]
    parts += [{"type": "text", "text": then}] if then else []
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]


WIRES = {"messages": in_chat, "input": in_responses, "messages ": in_anthropic}


@pytest.mark.parametrize(("key", "tell"), WIRES.items(), ids=["chat", "responses", "anthropic"])
def test_it_calls_one_tool_after_another_and_then_it_is_done(key: str, tell: Any) -> None:
    def ask(*calls: str, then: str = "") -> Turn:
        return SCRIPT.answer({"tools": offer_all(), key.strip(): tell(*calls, then=then)})

    assert SCRIPT.answer({"tools": offer_all(), key.strip(): "Hello"}).calls == (READ, SHELL)
    assert ask("read_file", "run_shell_command").calls == (SHELL,)
    assert ask("read_file", "run_shell_command", "run_shell_command").calls == (WRITE,)
    every = ("read_file", "run_shell_command", "run_shell_command", "write_file")
    assert ask(*every) == Turn(f"{DONE} turn 1. \U0001f600")
    assert ask(*every, then=f"{DONE} turn 1.").calls == (READ, SHELL), "the next turn begins anew"


def test_tools_that_it_does_not_know_are_left_alone() -> None:
    asked = {"tools": [offer("fetch", {}), {"type": "web_search"}], "messages": []}
    assert SCRIPT.answer(asked) == Turn(f"{DONE} turn 1. \U0001f600")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (offer("Read", {"file_path": {"type": "string"}, "limit": {"type": "number"}}, ["file_path"]),
         {"file_path": "/somewhere/notes.txt"}),
        (offer("read_files", {"files": {"type": "array", "items": {"type": "object", "properties": {"path": {}}}}}),
         {"files": [{"path": "/somewhere/notes.txt"}]}),
        (offer("exec_command", {"cmd": {"type": "string"}, "tty": {"type": "boolean"}}, ["cmd", "tty"]),
         {"cmd": "cat notes.txt", "tty": False}),
        (offer("run_commands", {"commands": {"type": ["null", "array"], "items": {"type": "string"}}}),
         {"commands": ["cat notes.txt"]}),
        (offer("bash", {"command": {"anyOf": [{"type": "null"}, {"type": "string"}]}, "why": {"enum": ["a", "b"]}}),
         {"command": "cat notes.txt", "why": "a"}),
        (offer("view", {"path": {"type": "string"}, "lines": {"type": "integer"}}),
         {"path": "/somewhere/notes.txt", "lines": 1}),
    ],
)  # fmt: skip
def test_arguments_fit_the_schema(tool: dict[str, Any], arguments: dict[str, Any]) -> None:
    for offered in (tool, {"type": "function", "function": tool}, {**tool, "input_schema": tool["parameters"]}):
        assert SCRIPT.answer({"tools": [offered]}).calls[0] == Call(tool["name"], arguments)


def test_gemini_is_answered_by_what_it_offers_and_shows() -> None:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": schema}]}]
    said = {"role": "model", "parts": [{"text": "I will look."}, {"functionCall": {"name": "bash"}}]}
    begun = {"contents": [{"role": "user", "parts": [{"text": "x"}]}, said], "tools": tools}
    assert SCRIPT.answer(begun).calls == (Call("bash", {"command": "cat notes.txt"}),)
    assert SCRIPT.answer(begun | {"contents": [said, said]}).calls == ()


def test_prose_is_for_requests_without_tools() -> None:
    script = Script(prose="Take this.")
    assert script.answer({"messages": []}) == Turn("This is answer 1 of run 1. Take this.")
    later = {"messages": in_chat("bash", then="x")}
    assert replace(script, run=2).answer(later) == Turn("This is answer 3 of run 3. Take this.")
    assert script.answer({"messages": [], "tools": [offer("fetch", {})]}).text.startswith(DONE)


def test_help_is_asked_once_and_by_no_helper() -> None:
    script = Script(helper="general")
    agent = offer("Agent", {"prompt": {"type": "string"}, "subagent_type": {"type": "string"}})
    asks = (Call("Agent", {"prompt": HELP, "subagent_type": "general"}),)
    assert script.answer({"tools": [agent], "messages": "Hello"}).calls == asks
    assert script.answer({"tools": [agent], "messages": in_chat(then=f"{DONE} turn 1.")}).calls == ()
    for content in (HELP, [{"type": "text", "text": f"<system>\n{HELP}"}]):
        assert script.answer({"tools": [agent], "input": [{"role": "user", "content": content}]}).calls == ()
    assert SCRIPT.answer({"tools": [agent], "messages": "Hello"}).calls == (), "only of clients with a kind of helper"


def test_a_client_may_want_the_end_as_a_command() -> None:
    script = Script(ending="exit")
    shell = offer("bash", {"command": {"type": "string"}})
    turn = script.answer({"tools": [shell], "messages": in_chat("bash", "bash")})
    assert (turn.text.startswith(DONE), turn.calls) == (True, (Call("bash", {"command": "exit"}),))
