"""Requests in the shapes that agents send, with fields, blocks and items that nobody knows yet, oddly spelt.

Rule: all follows from the seed. What is unknown looks like what is known as often as not.
"""

import json
from random import Random
from typing import Any

Value = Any
NEW_FIELDS = ("x_new", "future", "überdies", "content_filter", "text_hint", "results")
NEW_KINDS = ("hologram", "tool_vote", "quantum_call", "text_delta_v2", "memory_ref", "sealed_note")


class OddRequests:
    """Makes requests; each fifth object has an unknown field, each eighth message an unknown part or neighbour."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._number = 0

    def make_messages(self) -> bytes:
        """A request to `/v1/messages`."""
        history: list[Value] = [self._odd({"role": "user", "content": "Mend the parser. " * 20})]
        for _ in range(self._random.randint(6, 18)):
            history += self._step() if self._random.random() < 0.8 else self._turn()
        body = {"model": "claude-sonnet-4-5", "max_tokens": 1024, "system": "You are an agent.", "messages": history}
        return self._write_body(body)

    def make_responses(self) -> bytes:
        """A request to `/v1/responses`."""
        items: list[Value] = [self._odd({"role": "user", "content": "Mend the parser. " * 20})]
        for _ in range(self._random.randint(6, 18)):
            items += self._item_step() if self._random.random() < 0.8 else self._item_turn()
            if self._random.random() < 0.12:
                items.append(self._unknown() | ({"call_id": f"odd_{self._number}"} if self._is_often() else {}))
        body = {"model": "gpt-5.6", "store": False, "instructions": "You are an agent.", "input": items}
        return self._write_body(body)

    def _write_body(self, body: dict[str, Value]) -> bytes:
        members = list(self._odd(body).items())
        self._random.shuffle(members)
        return self.spell(dict(members)).encode()

    def _is_often(self) -> bool:
        return self._random.random() < 0.5

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}_{self._number:04d}"

    def _step(self) -> list[Value]:
        calls = [self._name("toolu") for _ in range(self._random.choice((1, 1, 1, 2, 3)))]
        said: list[Value] = []
        if self._is_often():
            said.append({"type": "thinking", "thinking": "Hm. " * 5, "signature": "sig=="})
        if self._is_often():
            said.append(self._odd({"type": "text", "text": "I look at it."}))
        inputs = ({"path": f"src/{call}.py", "deep": [1.0, {"type": "text"}]} for call in calls)
        said += [
            self._odd({"type": "tool_use", "id": call, "name": "read", "input": given})
            for call, given in zip(calls, inputs, strict=True)
        ]
        results: list[Value] = [self._result(call) for call in calls]
        if self._random.random() < 0.12:
            (said if self._is_often() else results).append(self._unknown())
        if self._random.random() < 0.1:
            results.append({"type": "text", "text": "<system-reminder>Take care.</system-reminder>"})
        return [self._odd({"role": "assistant", "content": said}), self._odd({"role": "user", "content": results})]

    def _result(self, call: str) -> Value:
        output: Value = self._output()
        if self._is_often():
            output = [self._odd({"type": "text", "text": output})]
        result = {"type": "tool_result", "tool_use_id": call, "content": output}
        return self._odd(result | ({"is_error": True} if self._random.random() < 0.1 else {}))

    def _turn(self) -> list[Value]:
        asked: Value = "Now the lexer, please. " * 5
        if self._is_often():
            asked = [self._odd({"type": "text", "text": asked})]
            if self._random.random() < 0.25:
                asked.append(self._unknown())
        answer = {"role": "assistant", "content": "Done: the tests pass."}
        return [self._odd(answer), self._odd({"role": "user", "content": asked})]

    def _item_step(self) -> list[Value]:
        calls = [self._name("call") for _ in range(self._random.choice((1, 1, 1, 2, 3)))]
        items: list[Value] = []
        if self._is_often():
            items.append({"type": "reasoning", "id": self._name("rs"), "summary": [], "encrypted_content": "gAAAA" * 9})
        if self._is_often():
            part = self._odd({"type": "output_text", "text": "I look at it.", "annotations": []})
            message = {"type": "message", "role": "assistant", "phase": "commentary", "content": [part]}
            items.append(self._odd(message))
        for call in calls:
            arguments = json.dumps({"path": f"src/{call}.py"})
            known = {"type": "function_call", "call_id": call, "name": "read", "arguments": arguments}
            items.append(self._odd(known | ({"id": self._name("fc")} if self._is_often() else {})))
        for call in calls:
            output: Value = self._output()
            if self._is_often():
                output = [self._odd({"type": "input_text", "text": output})]
            items.append(self._odd({"type": "function_call_output", "call_id": call, "output": output}))
        return items

    def _item_turn(self) -> list[Value]:
        part = self._odd({"type": "input_text", "text": "Now the lexer, please. " * 5})
        answer = {"role": "assistant", "content": "Done: the tests pass."}
        return [self._odd(answer), self._odd({"type": "message", "role": "user", "content": [part]})]

    def _output(self) -> str:
        line = f"def function_{self._number}(value): return 'é\\n\u2028' + other.path  # 💡\n"
        return line * self._random.choice((1, 5, 12, 25))

    def _unknown(self) -> dict[str, Value]:
        return {"type": self._random.choice(NEW_KINDS), "id": self._name("odd"), "value": self._any()}

    def _odd(self, value: dict[str, Value]) -> dict[str, Value]:
        """The object, with an unknown field or as it is."""
        if self._random.random() < 0.2:
            return value | {self._random.choice(NEW_FIELDS): self._any()}
        return value

    def _any(self, depth: int = 2) -> Value:
        plain: tuple[Value, ...] = (
            None,
            True,
            0,
            1.0,
            12345678901234567890,
            "",
            "\u2028]}",
            "compaction",
            '"role":"user"',
            [],
            {},
        )
        if not depth or self._is_often():
            return self._random.choice(plain)
        return self._random.choice(
            (
                [self._any(depth - 1), self._any(depth - 1)],
                {"type": "text", "text": self._any(depth - 1)},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]},
                {"messages": [1], "input": {"call_id": "y"}},
            )
        )

    def spell(self, value: Value) -> str:
        """The value as JSON, with blanks and escapes as chance wants."""
        blank = self._random.choice(("", "", "", " ", "\n  "))
        if isinstance(value, dict):
            members = [f"{self._quote(name)}{blank}:{self.spell(member)}" for name, member in value.items()]
            return "{" + blank + f",{blank}".join(members) + blank + "}"
        if isinstance(value, list):
            return "[" + blank + f"{blank},".join(map(self.spell, value)) + "]"
        return self._quote(value) if isinstance(value, str) else json.dumps(value)

    def _quote(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=self._random.random() < 0.3)
        return written.replace("/", "\\/") if self._random.random() < 0.1 else written
