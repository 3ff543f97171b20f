"""A scripted agent and its model: tool calls, reasoning, a loop, a branch, several epochs. What it says is made up here.

The client says in a header what the model answers, so that the conversation is the same on every run.
"""

import base64
import json
import os.path
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.browser.asking import send
from tests.journeys.running import Running

MODEL = "gpt-5"
SYSTEM = "You are an agent that mends the shop of a bicycle maker. Work in small steps and say what you do."
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("read_file", "run", "edit_file")
]
Message = dict[str, Any]


async def answer(request: Request) -> Response:
    """Answer as the header says. A token has four bytes; what an earlier prompt begins with is read from the cache."""
    body = await request.body()
    told = request.headers.get("x-answer")
    if told is None:
        return JSONResponse({"error": {"message": "the model is overloaded", "type": "overloaded"}}, 529)
    message = json.loads(base64.b64decode(told))
    size, seen = len(body) // 4, request.app.state.seen
    read = max((len(os.path.commonprefix([body, other])) // 4 for other in seen[-8:]), default=0)
    seen.append(body)
    usage = {
        "prompt_tokens": size,
        "completion_tokens": len(json.dumps(message)) // 4,
        "total_tokens": size,
        "prompt_tokens_details": {"cached_tokens": min(read, size - 1)},
    }
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return JSONResponse(
        {"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}
    )


APPLICATION = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
APPLICATION.state.seen = []


@dataclass
class Agent:
    """An agent: the messages so far, and the name of its session."""

    proxy: Running
    name: str
    messages: list[Message] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    count: int = 0

    def ask(self, said: str, **answered: Any) -> None:
        """Say something as the user, and take the answer."""
        self.messages.append({"role": "user", "content": said})
        self.take(**answered)

    def take(self, text: str = "", *calls: tuple[str, Message], thought: str = "", output: str = "") -> None:
        """Send what there is. The answer has a text, calls, and what was thought; each call gets the output."""
        made = []
        for name, arguments in calls:
            self.count += 1
            function = {"name": name, "arguments": json.dumps(arguments)}
            made.append({"id": f"call_{self.count}", "type": "function", "function": function})
        message: Message = {"content": text or None}
        message |= {"tool_calls": made} if made else {}
        message |= {"reasoning_content": thought} if thought else {}
        self.send(message)
        self.messages.append({"role": "assistant", **message})
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": output} for call in made]

    def send(self, message: Message | None) -> None:
        """Send what there is; without a message to answer with, the upstream refuses it."""
        body = json.dumps({"model": MODEL, "messages": self.messages, "tools": TOOLS}).encode()
        headers = {"x-palimpsest-session": self.name, "user-agent": "bicycle-agent/2.1"}
        if message is not None:
            headers["x-answer"] = base64.b64encode(json.dumps(message).encode()).decode()
        send(self.proxy, body, headers)


def write_file(name: str, lines: int) -> str:
    """The text of a file."""
    said = (f"{n:>4}  def {name}_{n}(wheel, spoke={n}): return wheel.turn(spoke) + {n * 37}" for n in range(lines))
    return "\n".join(said)


def list_steps(names: Iterator[str] | list[str], lines: int) -> Iterator[tuple[str, tuple[str, Message], str, str]]:
    """The steps of a search through files: what is said, the call, its output, what was thought."""
    for i, name in enumerate(names):
        thought = f"The price could be rounded in {name}.py. I read it before I change anything." if i % 3 == 0 else ""
        said = f"I look at {name}.py." if i % 2 else ""
        yield said, ("read_file", {"path": f"shop/{name}.py"}), write_file(name, lines), thought


def tell_story(proxy: Running, name: str = "shop", *, turns: int = 4, files: int = 8, lines: int = 30) -> Agent:
    """A session with several turns, a loop in the second, a branch from the third, and a refusal at the end."""
    agent = Agent(proxy, name)
    words = [
        "Customers pay a cent too much for a wheel of 28 inches. Find out why, and do not change the price list.",
        "Good. The tests in tests/test_prices.py hang since yesterday; look into that, too.",
        "Now write the change up for the release notes, two sentences.",
        "One more: the invoice shows the address twice. Rule: never delete a field of an invoice.",
    ]
    for turn in range(turns):
        said = words[turn % len(words)] if turn < len(words) else f"{words[turn % len(words)]} ({turn + 1})"
        parts = ["cart", "price", "invoice", "wheel", "order", "tax", "stock", "mail", "label", "export"]
        steps = list(list_steps([f"{parts[(turn + i) % 10]}_{turn}" for i in range(files)], lines))
        first, *rest = steps
        agent.ask(said, text=first[0], calls=()) if not files else None
        agent.messages.append({"role": "user", "content": said}) if files else None
        for text, call, output, thought in (first, *rest):
            agent.take(text, call, thought=thought, output=output)
        if turn == 1:
            for _ in range(5):
                agent.take("", ("run", {"command": "pytest -q tests/test_prices.py"}), output="timeout: still running after 60 s")
        if turn == 2:
            before = list(agent.messages)
            agent.take("The wheel costs what the list says. Rounding now happens once, at the end.")
            after, agent.messages = agent.messages, [*before[:-2], {"role": "user", "content": "Stop. Write one sentence only, in English and in German."}]
            agent.take("Prices of wheels are rounded once. Preise von Laufrädern werden einmal gerundet.")
            agent.messages = after
        else:
            agent.take(f"**Done with part {turn + 1}.**\n\n- `price()` rounded twice: once for each wheel, and once for the sum.\n- It rounds the sum alone now; `tests/test_prices.py` has a case for it.\n\nNothing else was changed.")
    return agent
