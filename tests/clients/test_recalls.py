"""The calls of the proxy's own tool: found in each format with what they got, and left out of what tells the step."""

from typing import Any

import pytest

from proxy.model.messages import RECALL_TOOL
from tests.clients.recalls import Recalled, drop_results, ends_with_result, read_recalls

OTHER = {"role": "user", "content": [{"type": "text", "text": "Read on."}]}
CHAT = {
    "messages": [
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": RECALL_TOOL, "arguments": "{}"}},
                                             {"id": "b", "function": {"name": "bash", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "é"},
        {"role": "tool", "tool_call_id": "b", "content": "ran"},
    ]
}  # fmt: skip
RESPONSES = {
    "input": [
        {"type": "function_call", "call_id": "a", "name": RECALL_TOOL, "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "é"},
        {"type": "function_call_output", "call_id": "b", "output": "ran"},
    ]
}
MESSAGES = {
    "messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": RECALL_TOOL, "input": {}},
                                          {"type": "tool_use", "id": "b", "name": "bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "é"},
                                     {"type": "tool_result", "tool_use_id": "b", "content": "ran"}]},
    ]
}  # fmt: skip


@pytest.mark.parametrize("asked", [CHAT, RESPONSES, MESSAGES])
def test_a_call_is_found_with_its_result(asked: dict[str, Any]) -> None:
    [(id_, recalled)] = read_recalls(asked).items()
    assert (id_, recalled.arguments) == ("a", "{}")
    assert recalled.result is not None
    assert "é" in recalled.result
    [items] = asked.values()
    assert read_recalls({"messages": items[:1]}) == {"a": Recalled("{}", None)}
    assert read_recalls({"messages": [OTHER]}) == {}


@pytest.mark.parametrize("asked", [CHAT, RESPONSES, MESSAGES])
def test_what_was_recalled_is_left_out(asked: dict[str, Any]) -> None:
    [items] = asked.values()
    kept = str(drop_results([*items, OTHER]))
    assert ("é" in kept, "ran" in kept, "Read on." in kept) == (False, True, True)
    assert drop_results([OTHER]) == [OTHER]


@pytest.mark.parametrize("asked", [CHAT, RESPONSES, MESSAGES])
def test_a_request_that_goes_on_with_a_result_ends_with_it(asked: dict[str, Any]) -> None:
    [items] = asked.values()
    assert ends_with_result(asked)
    assert not ends_with_result({"messages": [*items, {"role": "assistant", "content": "Done."}, OTHER]})
    assert not ends_with_result({"input": items[:1]})
    assert not ends_with_result({"input": "Hello"})
