"""What the people, models and tools of the golden corpus say: seeded, so that it is the same in every run."""

import base64
import json
import random
from typing import Any

Message = dict[str, Any]

_WORD_TEXT = (
    "account adapter amount archive array balance batch block branch bridge buffer build cache call channel client "
    "code commit config context cursor data decode default driver edge engine entry error event field file filter "
    "flag format frame group handle header history index input item journal kernel label layer length level limit "
    "line list lock logger match merge message method model module name node number offset option order output page "
    "parse patch path plan policy pool prefix query queue range reader record region render request result retry "
    "route row rule sample schema scope server session shard slice socket source span stack state status step store "
    "stream string table target task tenant thread token total trace tree type update user value vector version"
)
_WORDS = _WORD_TEXT.split()


class Talk:
    """A source of text. Two with the same seed say the same."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._calls = 0

    def pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def prose(self, words: int) -> str:
        """Sentences of so many words in all."""
        said = self._random.choices(_WORDS, k=words)
        return " ".join(word + "." if place % 11 == 10 else word for place, word in enumerate(said))

    def lines(self, count: int) -> str:
        """So many lines of code, listings and logs."""
        return "\n".join(self._line() for _ in range(count))

    def _line(self) -> str:
        one, two, three = self._random.choices(_WORDS, k=3)
        number = self._random.randrange(1, 100_000)
        shape = self._random.randrange(5)
        if shape == 0:
            return f"    {one}_{two} = self.{three}({one}, limit={number})"
        if shape == 1:
            return f"{one}/{two}_{three}.py:{number % 900}: {one.title()}Error: {self.prose(6)}"
        if shape == 2:
            return f"def {one}_{two}({three}: int = {number}) -> {two.title()}:"
        if shape == 3:
            return f"2026-03-{number % 28 + 1:02d} {number % 24:02d}:00:00 INFO {one} {two}={number}"
        return f"- {self.prose(9)}"

    def image(self, size: int) -> Message:
        """A part with so many bytes of a picture, which is none."""
        content = base64.b64encode(self._random.randbytes(size)).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}

    def call(self, name: str, arguments: Message) -> Message:
        self._calls += 1
        id = f"call_{self._calls:06}{self._random.getrandbits(40):010x}"
        return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}

    def step(self, size: int) -> list[Message]:
        """An agent's step: what it says and calls, and what its tools return, about `size` lines in all."""
        path = f"src/{self.pick(*_WORDS[:12])}_{self.number(0, 6)}.py"
        kind = self.number(0, 9)
        if kind < 4:
            calls = [self.call("read_file", {"path": path})]
        elif kind < 6:
            calls = [self.call("bash", {"command": f"grep -rn {self.pick(*_WORDS)} src/ | head -{self.number(5, 50)}"})]
        elif kind == 6:
            calls = [self.call("edit_file", {"path": path, "old": self.lines(3), "new": self.lines(4)})]
        elif kind == 7:
            calls = [self.call("write_file", {"path": path, "content": self.lines(size)})]
        else:
            calls = [self.call("bash", {"command": f"pytest tests/test_{self.number(0, 5)}.py"}) for _ in range(2)]
        said: Message = {"role": "assistant", "content": self.prose(self.number(0, 40)) or None, "tool_calls": calls}
        return [said, *({"role": "tool", "tool_call_id": call["id"], "content": self._result(size)} for call in calls)]

    def _result(self, size: int) -> str:
        if self.number(0, 9) == 0:
            return f"Traceback (most recent call last):\n{self.lines(3)}\nValueError: {self.prose(5)}"
        return self.lines(self.number(1, 2 * size))

    def task(self, words: int = 30) -> str:
        return f"Ticket PAL-{self.number(100, 999)}: {self.prose(words)}"

    def history(self, steps: int, size: int, *, turn_every: int = 0) -> list[Message]:
        """A system prompt, a task, and an agent's steps; a further request of the user's every so many steps."""
        messages: list[Message] = [
            {"role": "system", "content": f"You are an agent. {self.prose(60)}"},
            {"role": "user", "content": self.task()},
        ]
        for number in range(steps):
            messages += self.step(size)
            if turn_every and number % turn_every == turn_every - 1:
                messages.append({"role": "assistant", "content": f"Done. {self.prose(20)}"})
                messages.append({"role": "user", "content": self.task(self.number(5, 60))})
        return messages


def list_requests(history: list[Message]) -> list[list[Message]]:
    """The requests of a client with this history: one wherever the assistant speaks next, and one with all of it."""
    ends = [place for place, message in enumerate(history) if message["role"] == "assistant" and place > 1]
    return [history[:end] for end in ends] + [history]
