"""Transcripts of Claude Code: requests that are stated, and those that follow from the conversation."""

import json
from typing import Any

from proxy.model.exchange import Usage
from proxy.transcripts.recognition import read_transcripts, recognise
from proxy.transcripts.transcript import Transcript, TranscriptFile
from proxy.trial.requests import Requests
from tests.support.transcribing import find_own_title

SESSION = "0b6c9f6e-5d0f-4f0a-9b52-1f5d6c0f7a10"
USAGE = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 7}


class Lines:
    """The lines of a transcript, each following the one before."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.newest: str | None = None

    def add(self, kind: str, message: Any, parent: str | None = "", **more: Any) -> str:
        """Add a line with a message; its id."""
        uuid, parent = f"line-{len(self.values)}", self.newest if parent == "" else parent
        line = {"parentUuid": parent, "isSidechain": False, "type": kind, "message": message, "uuid": uuid}
        stamps = {
            "timestamp": f"2026-11-26T11:09:{len(self.values):02}.000Z",
            "sessionId": SESSION,
            "version": "2.1.330",
        }
        self.values.append(line | stamps | more)
        self.newest = uuid
        return uuid

    def ask(self, text: str, **more: Any) -> str:
        return self.add("user", {"role": "user", "content": text}, **more)

    def give(self, call: str, output: str, **more: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": output}
        return self.add("user", {"role": "user", "content": [block]}, **more)

    def answer(self, id: str, *blocks: Any, **more: Any) -> str:
        """Add a line for each block of an answer, as the client does; the id of the last one."""
        named = {"id": id, "role": "assistant", "model": "claude-sonnet-4-5", "usage": USAGE}
        return [self.add("assistant", named | {"content": [block]}, **more) for block in blocks][-1]

    def note(self, kind: str, **members: Any) -> None:
        self.values.append({"type": kind, "sessionId": SESSION, **members})

    def read(self) -> list[Transcript]:
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in self.values)
        return read_transcripts(TranscriptFile("s.jsonl", text))


def text(words: str) -> Any:
    return {"type": "text", "text": words}


def use(id: str) -> Any:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}


def load(transcript: Transcript, n: int) -> list[Any]:
    """The messages of the n-th request, without cache markers."""
    messages: list[Any] = json.loads(Requests(transcript).make_body(transcript.calls[n]))["messages"]
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            block.pop("cache_control", None)
    return messages


def test_answers_in_several_lines_and_results_of_calls_made_together_are_one_message_each() -> None:
    lines = Lines()
    lines.ask("Repair it.")
    first = lines.answer("m1", text("I look."), use("a"))
    lines.answer("m1", use("b"))
    lines.give("a", "one", parent=first)
    lines.give("b", "two")
    lines.answer("m2", text("Done."))
    [found] = lines.read()
    assert [(call.depth, call.usage) for call in found.calls] == [
        (1, Usage(125, 7, 100, 20)),
        (3, Usage(125, 7, 100, 20)),
    ]
    asked, said, given = load(found, 1)
    assert asked == {"role": "user", "content": [text("Repair it.")]}
    assert said == {"role": "assistant", "content": [text("I look."), use("a"), use("b")]}
    assert [block["tool_use_id"] for block in given["content"]] == ["a", "b"]
    assert (find_own_title(found), found.model, found.version) == ("Repair it.", "claude-sonnet-4-5", "2.1.330")
    assert found.missing and found.lifetime == "5m", "older versions do not keep the system prompt, and mark the newest"


def test_requests_that_are_stated_are_taken_as_they_were() -> None:
    lines = Lines()
    lines.ask("Repair it.")
    reminder = {"role": "user", "content": [text("<system-reminder>Be brief.</system-reminder>"), text("Repair it.")]}
    shape = {"system": [text("You repair.")], "tools": [{"name": "Bash", "input_schema": {}}]}
    marker = {"path": ["system", 0], "value": {"type": "ephemeral", "ttl": "1h"}}
    lines.note("api-request-shape", shapeHash="S", shape=shape)
    lines.note("api-request-blob", hash="h1", message=reminder)
    stated = {"shapeHash": "S", "params": {"max_tokens": 9, "betas": ["x"]}, "cacheControl": [marker]}
    lines.note("api-request", id="r1", keep=0, tail=["h1"], **stated)
    lines.answer("m1", use("a"))
    lines.give("a", "one")
    lines.note("api-request", id="r2", keep=1, tail=["h2", "h3"], **stated)
    lines.answer("m2", text("Done."))
    lines.ask("Again.")
    # Another process states all messages anew.
    lines.note("api-request", id="r3", keep=0, tail=["h1", "h2", "h3", "h4", "h5"], **stated)
    lines.answer("m3", text("Done again."))
    [found] = lines.read()
    assert found.missing == () and len(found.trails) == 1
    assert load(found, 1)[0] == reminder and load(found, 2)[0] == reminder
    assert [message["role"] for message in load(found, 2)] == ["user", "assistant", "user", "assistant", "user"]
    body = json.loads(Requests(found).make_body(found.calls[0]))
    assert body["system"] == [text("You repair.") | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert (body["max_tokens"], body["tools"], "betas" in body) == (9, shape["tools"], False)
    assert body["messages"][0]["content"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_going_back_and_compacting_begin_another_trail() -> None:
    lines = Lines()
    lines.ask("One.")
    first = lines.answer("m1", text("First."))
    lines.ask("Two.")
    lines.answer("m2", text("Second."))
    lines.ask("Three instead.", parent=first)
    lines.answer("m3", text("Third."))
    lines.ask("A summary.", isCompactSummary=True, parent=None)
    lines.answer("m4", text("Fourth."))
    [found] = lines.read()
    texts = [[block["text"] for message in load(found, n) for block in message["content"]] for n in range(4)]
    assert texts == [["One."], ["One.", "First.", "Two."], ["One.", "First.", "Three instead."], ["A summary."]]


def test_subagents_are_sessions_of_their_own() -> None:
    lines = Lines()
    lines.ask("Repair it.")
    lines.answer("m1", use("a"))
    lines.add("user", {"role": "user", "content": "Look."}, parent=None, isSidechain=True)
    lines.answer("m2", text("Seen."), isSidechain=True)
    lines.give("a", "Seen.")
    lines.answer("m3", text("Done."))
    lines.add("user", {"role": "user", "content": "Help."}, isSidechain=True, agentId="x1")
    lines.answer("m4", text("Helped."), isSidechain=True, agentId="x1")
    main, helper, named = lines.read()
    assert [len(each.calls) for each in (main, helper, named)] == [2, 1, 1]
    assert main.parent == "" and helper.parent == named.parent == SESSION and named.id == f"{SESSION}/x1"


def test_what_is_broken_unknown_or_said_by_the_client_is_no_call() -> None:
    lines = Lines()
    lines.ask("<command-name>/clear</command-name>")
    lines.ask("Repair it.")
    lines.values += ["{broken\n", "\n", "[1]\n", {"type": "hologram"}]
    lines.add("assistant", {"id": "e", "role": "assistant", "model": "<synthetic>", "content": [text("API Error")]})
    lines.answer("m1", text("Done."))
    lines.add("assistant", {"id": "f", "role": "assistant", "model": "m", "content": []}, isApiErrorMessage=True)
    [found] = lines.read()
    assert (len(found.calls), found.broken, found.unknown, find_own_title(found)) == (1, 2, 1, "Repair it.")
    lines = Lines()
    lines.ask("Nothing came.")
    assert lines.read() == []
    assert recognise(TranscriptFile("s.jsonl", "")) is None
