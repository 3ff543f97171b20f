"""Valid histories of each wire, as agents send them: turns, calls with their results in one go, reasoning."""

import json
from typing import Any

from hypothesis import strategies as st

from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS

Message = dict[str, Any]
WIRES = ("chat_completions", "anthropic_messages", "responses")

_calls = st.integers(min_value=1, max_value=3)
steps = st.lists(st.one_of(st.just("user"), st.just("said"), _calls), max_size=12)


def structure(wire: str, *messages: Message) -> list[MessageStructure]:
    return [FORMATS[wire].parse_structure(json.dumps(message).encode()) for message in messages]


def write(wire: str, plan: list[str | int]) -> list[Message]:
    """A history of these steps: a user's words, the assistant's, or so many calls; it ends with a result."""
    messages: list[Message] = [] if wire == "anthropic_messages" else [{"role": "system", "content": "Be good."}]
    messages.append({"role": "user", "content": "begin"})
    for i, step in enumerate([*plan, "user", 2]):
        if isinstance(step, int):
            messages += _WRITERS[wire](i, [f"call_{i}_{k}" for k in range(step)])
        else:
            messages.append({"role": "user" if step == "user" else "assistant", "content": f"words {i}"})
    return messages


def _write_chat(i: int, ids: list[str]) -> list[Message]:
    calls = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in ids]
    said = {"role": "assistant", "content": None, "reasoning_content": f"thought {i}", "tool_calls": calls}
    return [said, *({"role": "tool", "tool_call_id": call, "content": f"did {call}"} for call in ids)]


def _write_anthropic(i: int, ids: list[str]) -> list[Message]:
    thought = {"type": "thinking", "thinking": f"thought {i}", "signature": "s"}
    calls = [{"type": "tool_use", "id": call, "name": "f", "input": {}} for call in ids]
    results = [{"type": "tool_result", "tool_use_id": call, "content": f"did {call}"} for call in ids]
    return [{"role": "assistant", "content": [thought, *calls]}, {"role": "user", "content": results}]


def _write_responses(i: int, ids: list[str]) -> list[Message]:
    thought = {"type": "reasoning", "id": f"rs_{i}", "summary": [], "encrypted_content": "x"}
    calls = [{"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"} for call in ids]
    return [thought, *calls, *({"type": "function_call_output", "call_id": call, "output": "did"} for call in ids)]


_WRITERS = {"chat_completions": _write_chat, "anthropic_messages": _write_anthropic, "responses": _write_responses}
