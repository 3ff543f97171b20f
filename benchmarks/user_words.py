"""What is left of the words of a user: `python -m benchmarks.user_words`, some minutes.

Scripted sessions go through the proxy at several ceilings, and what arrives at the upstream with the last call is
looked at: are the user's turns, statements and questions still there? `--before COMMAND` does the same with another
version. Texts are the same in every run. A model that answers is not part of it, and no summary is made.
"""

import argparse
import http.client
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.picture import THIS, LoopbackServer, load_counting_encoder, make_text, respond, run_proxy

Message = dict[str, Any]
CEILINGS = (8000, 16_000, 32_000, 64_000)
_MODEL = "gpt-5-mini"
_REFERENCE = re.compile(r"ref:[a-z0-9]{10}")
_ENCODER = load_counting_encoder()


class Upstream(LoopbackServer):
    """Answers with the message that the script has next, and keeps the last request."""

    def __init__(self) -> None:
        self.next: Message = {}
        self.body: dict[str, Any] = {}
        super().__init__()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers["content-length"]))
        self.body = json.loads(content)
        usage = {"prompt_tokens": _ENCODER.count(content.decode()), "completion_tokens": 9}
        choice = {"index": 0, "finish_reason": "stop", "message": self.next}
        respond(handler, 200, {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


class Script(NamedTuple):
    """A session: messages in their order, a call before each of the assistant's; and what is looked at in the last one.

    `judge` is given the texts of the messages of the last request, by role, and returns figures by their names.
    """

    name: str
    messages: Sequence[Message]
    judge: Callable[[Sequence[Message]], dict[str, str]]
    strategy: str = "epochs"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def act(n: int, command: str, output: str) -> tuple[Message, Message]:
    """Return a call of the agent's, and its output."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": f"call_{n:04}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, {
        "role": "tool",
        "tool_call_id": f"call_{n:04}",
        "content": output,
    }


def make_prose(seed: str, words: int) -> str:
    """Return sentences of words that follow from the seed alone."""
    return " ".join(f"{line.capitalize()}." for line in make_text(seed, words).split("\n"))


def join(messages: Sequence[Message]) -> str:
    return "\n".join(read(message) for message in messages)


def read(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def share(texts: Sequence[str], messages: Sequence[Message]) -> str:
    """Return how many of the texts stand in the messages of the user."""
    words = join([message for message in messages if message["role"] == "user"])
    return f"{sum(text in words for text in texts)} of {len(texts)}"


def speak() -> Script:
    """Write 24 turns of four sentences, each with an output of 12,000 characters and an answer of 24,000."""
    turns = [f"This is request {n}. {make_prose(f'words {n}', 50)}" for n in range(24)]
    messages: list[Message] = []
    for n, turn in enumerate(turns):
        answer = make_text(f"spoken {n}", 4000)[:24_000]
        messages += [user(turn), *act(n, f"cat {n}.py", make_text(f"out {n}", 2200)[:12_000]), said(answer)]
    return Script(
        "user turns, word for word", [*messages, user("What is next?")], lambda sent: {"": share(turns, sent)}
    )


_STATED = {
    "requirement": "The export must keep column {n} in the order of the sheet.",
    "change of plan": "Forget what I said about screen {n}, we do it after the release.",
    "value": "The limit for customer {n} is 4{n:02} euros.",
}


def state() -> Script:
    """Write 24 long turns, each with a requirement, a change of plan or a value in one sentence."""
    stated = [(kind, text.format(n=n)) for n in range(8) for kind, text in _STATED.items()]
    messages: list[Message] = []
    for n, (_, sentence) in enumerate(stated):
        text = f"{make_prose(f'before {n}', 160)} {sentence} {make_prose(f'after {n}', 160)}"
        steps = [each for k in range(3) for each in act(3 * n + k, f"cat {n}-{k}.py", make_text(f"o {n} {k}", 900))]
        messages += [user(text), *steps, said(make_text(f"done {n}", 120))]

    def judge(sent: Sequence[Message]) -> dict[str, str]:
        return {kind: share([text for each, text in stated if each == kind], sent) for kind in _STATED}

    return Script("sentences in long turns", [*messages, user("What is next?")], judge)


_TYPED = (
    "Always run the linter before you say that you are done.",
    "Never change anything below vendor/.",
    "HARD CONSTRAINT: the image has to stay below 80 MB.",
    "All times must be in UTC.",
    "I prefer short functions over comments.",
    "Please answer in English only.",
    "The staging database is called orders_eu_2.",
    "Our customers in Norway pay in kroner.",
    "The goal of all this is that the nightly run ends before six.",
    "By the end of the week the import has to work for all tenants.",
)


def remember(strategy: str) -> Script:
    """Write a statement a turn: rules, constraints, preferences, facts, goals. Sixty steps follow."""
    messages: list[Message] = []
    for n, text in enumerate(_TYPED):
        words = f"{make_prose(f'before {n}', 20)} {text}"
        messages += [user(words), *act(n, f"cat {n}.py", make_text(f"t {n}", 300)), said("Done.")]
    messages.append(user("Now port the importer, file by file."))
    for n in range(60):
        messages += act(100 + n, f"sed -n 1,200p src/{n}.py", make_text(f"step {n}", 1100))
    name = f"typed statements, 60 steps later ({strategy})"
    return Script(name, [*messages, said("Done.")], lambda sent: {"": share(_TYPED, sent)}, strategy)


def ask() -> Script:
    """Write 30 turns, each a sentence, 600 tokens of pasted code, and a question."""
    questions, messages = [], []
    for n in range(30):
        lines = (f"    value_{n}_{i} = handler_{n}_{i}(other[{i}])" for i in range(36))
        code = "\n".join([f"def module_{n}(other):", *lines])
        questions.append(f"Why does handler_{n}_7 return None? Do not rename anything.")
        messages += [user(f"Here is module {n}.\n```python\n{code}\n```\n{questions[-1]}")]
        messages += [said(f"Handler {n} returns None since its branch has no return statement.")]
    return Script("questions behind pasted code", [*messages, user("And?")], lambda sent: {"": share(questions, sent)})


def loop() -> Script:
    """Write a task, 30 steps, one answer of 64,000 tokens, and 27 steps."""
    task = f"Task: {make_text('the task', 250)}"
    messages = [user(task)]
    for n in range(30):
        messages += act(n, f"cat {n}.py", make_text(f"a {n}", 300))
    messages += [said("again and again " * 21_000), user("You were going round in circles. Go on with the task.")]
    for n in range(30, 57):
        messages += act(n, f"cat {n}.py", make_text(f"b {n}", 300))

    def judge(sent: Sequence[Message]) -> dict[str, str]:
        size = _ENCODER.count(json.dumps(sent))
        return {"task": "whole" if task in join(sent) else "cut", "tokens sent": f"{size:,}"}

    return Script("one answer of 64,000 tokens", [*messages, said("Done.")], judge)


def chat() -> Script:
    """Write 700 questions and answers of 30 tokens."""
    messages: list[Message] = []
    for n in range(700):
        messages += [user(f"Q{n}: {make_text(f'q {n}', 24)}?".replace("\n", " "))]
        messages += [said(f"A{n}: {make_text(f'r {n}', 24)}.".replace("\n", " "))]

    def judge(sent: Sequence[Message]) -> dict[str, str]:
        longest = run = 0
        for message in sent:
            run = run + 1 if message["role"] == "user" else 0
            longest = max(longest, run)
        references = len(_REFERENCE.findall(join(sent)))
        return {"user messages in a row": f"{longest}", "references": f"{references}"}

    return Script("700 questions and answers", [*messages, user("And?")], judge)


SCRIPTS = (speak(), state(), remember("epochs"), remember("snapshot"), ask(), loop(), chat())


def play(script: Script, ceiling: int, program: Sequence[str]) -> dict[str, str]:
    """Send a script through the proxy. Return what its last request has."""
    is_open = script.messages[-1]["role"] == "user"
    messages = [*script.messages, said("So be it.")] if is_open else script.messages
    with (
        tempfile.TemporaryDirectory() as data,
        Upstream() as upstream,
        run_proxy(upstream.port, Path(data), "--ceiling", str(ceiling), program=program) as port,
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection,
    ):
        for at in (at for at, message in enumerate(messages) if message["role"] == "assistant"):
            upstream.next = messages[at]
            call(connection, messages[:at], script.strategy)
        return script.judge(upstream.body["messages"])


def call(connection: http.client.HTTPConnection, messages: Sequence[Message], strategy: str) -> None:
    """Send a request. Exits if it is refused."""
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    system = {"role": "system", "content": make_text("system", 200)}
    headers = {
        "authorization": "Bearer sk-mock",
        "content-type": "application/json",
        "x-palimpsest-strategy": strategy,
    }
    body = json.dumps({"model": _MODEL, "messages": [system, *messages], "tools": tools})
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status} {content.decode()}")


def render(scripts: Sequence[Script], ceilings: Sequence[int], program: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: a row for each figure of each script, a column for each ceiling."""
    yield "| | " + " | ".join(f"{ceiling:,}" for ceiling in ceilings) + " |"
    yield "|---" * (len(ceilings) + 1) + "|"
    for script in scripts:
        found = [play(script, ceiling, program) for ceiling in ceilings]
        for name in found[0]:
            yield f"| {script.name}{name and ': ' + name} | " + " | ".join(each[name] for each in found) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ceilings", type=int, nargs="+", default=CEILINGS)
    parser.add_argument("--before", help="the command of another version")
    parser.add_argument("--only", default="", help="what the name of a script has in it")
    asked = parser.parse_args()
    scripts = [script for script in SCRIPTS if asked.only in script.name]
    for title, program in (("now", THIS), ("before", shlex.split(asked.before or ""))):
        if program:
            print(f"\n### {title}\n", flush=True)
            for line in render(scripts, asked.ceilings, program):
                print(line, flush=True)


if __name__ == "__main__":
    main()
