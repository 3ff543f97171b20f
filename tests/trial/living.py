"""A session that is lived: a client in a loop, over sockets, with a provider that counts what it is sent."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from tests.clients.script import Call, Json, Turn, list_items
from tests.clients.upstream import Exchange

WORDS = ("billing", "ledger", "refund", "invoice", "gateway", "webhook", "importer", "scheduler", "archive", "worker")
MODEL = "scripted"
SYSTEM = "You repair a payment service. " * 40
TOOL = {"command": {"type": "string"}}
RATES = {"input": 1.0, "cached": 0.1, "output": 5.0}  # where no price is stated


@dataclass(frozen=True, slots=True)
class Worker:
    """A model that looks at one file after another. Its answer follows from how many results the newest step names."""

    run: int = 0

    def answer(self, asked: Json) -> Turn:
        """The next step: the client's last message says which."""
        n = int(json.dumps(list_items(asked)[-1]).rpartition("step ")[2].split(" ")[0])
        return Turn(f"I will look at part {n}.", (Call("bash", {"command": f"cat part_{n}.py"}),))


def write_output(n: int, lines: int = 90) -> str:
    """What a command wrote: the same for the same step."""
    chance = random.Random(n)
    said = (" ".join(chance.choices(WORDS, k=8)) + f" {chance.random():.6f}" for _ in range(lines))
    return f"step {n + 1} follows\n" + "\n".join(said) + f"\nstep {n + 1} is next"


@dataclass(slots=True)
class Talk:
    """A conversation in one API, and the calls that were made for it: request and response."""

    path: str
    messages: list[Json] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)

    def live(self, base_url: str, steps: int, **headers: str) -> None:
        """Make calls, one a step."""
        self.messages = [*self.begin()]
        with httpx.Client(base_url=base_url, timeout=60, headers={"authorization": "Bearer k", **headers}) as client:
            for n in range(steps):
                request = self.ask()
                response = client.post(self.path, json=request)
                assert response.status_code == httpx.codes.OK, response.text
                self.calls.append(
                    {"request": json.loads(json.dumps(request)), "response": response.json(), "time": 1000.0 + 20 * n}
                )
                self.messages += self.go_on(response.json(), write_output(n + 1))

    def begin(self) -> Iterator[Json]:
        raise NotImplementedError

    def ask(self) -> Json:
        raise NotImplementedError

    def go_on(self, answer: Json, output: str) -> Iterator[Json]:
        raise NotImplementedError


class ChatTalk(Talk):
    """Chat completions."""

    def begin(self) -> Iterator[Json]:
        yield {"role": "system", "content": SYSTEM}
        yield {"role": "user", "content": "Repair the importer, beginning with step 1 of it"}

    def ask(self) -> Json:
        function = {"name": "bash", "parameters": {"type": "object", "properties": TOOL}}
        return {"model": MODEL, "messages": self.messages, "tools": [{"type": "function", "function": function}]}

    def go_on(self, answer: Json, output: str) -> Iterator[Json]:
        message = answer["choices"][0]["message"]
        yield message
        yield {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": output}


class MessagesTalk(Talk):
    """Anthropic's messages, with a cache marker that hops to the newest one."""

    def begin(self) -> Iterator[Json]:
        yield {
            "role": "user",
            "content": [{"type": "text", "text": "Repair the importer, beginning with step 1 of it"}],
        }

    def ask(self) -> Json:
        marker = {"cache_control": {"type": "ephemeral"}}
        *before, last = self.messages
        *blocks, newest = last["content"]
        return {
            "model": MODEL,
            "max_tokens": 4096,
            "system": [{"type": "text", "text": SYSTEM, **marker}],
            "tools": [{"name": "bash", "input_schema": {"type": "object", "properties": TOOL}}],
            "messages": [*before, {**last, "content": [*blocks, newest | marker]}],
        }

    def go_on(self, answer: Json, output: str) -> Iterator[Json]:
        yield {"role": "assistant", "content": answer["content"]}
        use = next(block for block in answer["content"] if block["type"] == "tool_use")
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": output}]}


def price(exchanges: Sequence[Exchange]) -> float:
    """What these calls cost in tokens of uncached input, as the provider counted them."""
    tokens = [each.tokens for each in exchanges if each.tokens is not None and not each.is_refused]
    fresh = sum(each.prompt - each.cached for each in tokens)
    cached, output = sum(each.cached for each in tokens), sum(each.answer for each in tokens)
    return fresh * RATES["input"] + cached * RATES["cached"] + output * RATES["output"]
