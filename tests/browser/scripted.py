"""A scripted agent and its model: tool calls, reasoning, a loop, a branch, several epochs.

The client says in a header what the model answers, so that the conversation is the same on every run.
"""

import base64
import json
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


WORDS = (
    "Customers pay a cent too much for a wheel of 28 inches. Find out why, and do not change the price list.",
    "Good. The tests in tests/test_prices.py hang since yesterday; look into that, too.",
    "Now write the change up for the release notes, two sentences.",
    "One more: the invoice shows the address twice. Rule: never delete a field of an invoice.",
)
FILES = ("cart", "price", "invoice", "wheel", "order", "tax", "stock", "mail", "label", "export")
DONE = """**Done with part %d.**

- `price()` rounded twice: once for each wheel, and once for the sum.
- It rounds the sum alone now; `tests/test_prices.py` has a case for it.

Nothing else was changed."""
SHORT = "Stop. Write one sentence only, in English and in German."
REPEATED = ("run", {"command": "pytest -q tests/test_prices.py"})


def count_shared(one: bytes, other: bytes) -> int:
    """How many bytes two bodies begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


async def answer(request: Request) -> Response:
    """Answer as the header says. A token has four bytes; what an earlier prompt begins with is read from the cache."""
    body = await request.body()
    told = request.headers.get("x-answer")
    if told is None:
        return JSONResponse({"error": {"message": "the model is overloaded", "type": "overloaded"}}, 529)
    message = json.loads(base64.b64decode(told))
    size, seen = len(body) // 4, request.app.state.seen
    read = max((count_shared(body, other) // 4 for other in seen[-8:]), default=0)
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

    def ask(self, said: str, answered: str) -> None:
        """Say something as the user, and take the answer."""
        self.messages.append({"role": "user", "content": said})
        self.take(answered)

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


def read_files(agent: Agent, turn: int, count: int, lines: int) -> None:
    """Have the model read files, one with each call; every third time it thinks, every second time it says so."""
    for i in range(count):
        name = f"{FILES[(turn + i) % len(FILES)]}_{turn}"
        thought = f"The price could be rounded in {name}.py. I read it before I change anything." if i % 3 == 0 else ""
        said, call = f"I look at {name}.py." if i % 2 else "", ("read_file", {"path": f"shop/{name}.py"})
        agent.take(said, call, thought=thought, output=write_file(name, lines))


def tell_story(proxy: Running, name: str = "shop", *, turns: int = 4, files: int = 8, lines: int = 30) -> Agent:
    """A session with several turns, a loop in the second, and a branch from the third."""
    agent = Agent(proxy, name)
    for turn in range(turns):
        words = WORDS[turn % len(WORDS)]
        agent.messages.append({"role": "user", "content": words if turn < len(WORDS) else f"{words} ({turn + 1})"})
        read_files(agent, turn, files, lines)
        for _ in range(5 if turn == 1 else 0):
            agent.take("", REPEATED, output="timeout: still running after 60 s")
        before = list(agent.messages)
        agent.take(DONE % (turn + 1))
        if turn == 2:
            after, agent.messages = agent.messages, [*before[:-2], {"role": "user", "content": SHORT}]
            agent.take("Prices of wheels are rounded once. Preise von Laufr\u00e4dern werden einmal gerundet.")
            agent.messages = after
    return agent
