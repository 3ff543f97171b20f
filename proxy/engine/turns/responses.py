"""The body of a response, written from an answer that is known already: one recorded elsewhere, or in a transcript."""

from collections.abc import Mapping, Sequence

import msgspec

from proxy.model.exchange import Usage
from proxy.model.results import FinishReason
from proxy.wire.json_values import list_elements, read_member

_CHAT: Mapping[FinishReason, str] = {"stop": "stop", "max_tokens": "length", "tool_use": "tool_calls", "error": "error"}
_MESSAGES: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "max_tokens": "max_tokens",
    "tool_use": "tool_use",
    "error": "error",
}
_NO_CALLS = (b"", b"null", b"[]")

Value = dict[str, object]


def write_response(
    wire: str,
    answer: Sequence[bytes],
    *,
    number: str,
    model: str,
    usage: Usage,
    finish: FinishReason | None = None,
    more: Mapping[str, object] | None = None,
) -> bytes:
    """Return the body of a response with the raw messages, or items, of an answer. `number` makes its id.

    Without a `finish` it is that of an answer which ends by itself, or has tools called. `more` are members of ours.
    """
    if wire == "responses":
        value = _write_responses(answer, number, finish)
    elif wire == "anthropic_messages":
        value = _write_messages(answer, number, finish)
    else:
        value = _write_chat(answer, number, finish)
    whole = {**value, "model": model, "usage": _write_usage(wire, usage), **(more or {})}
    return msgspec.json.encode(whole)


def _write_responses(answer: Sequence[bytes], number: str, finish: FinishReason | None) -> Value:
    value: Value = {"id": f"resp_{number}", "object": "response", "status": "completed"}
    if finish == "max_tokens":
        value |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return value | {"output": [msgspec.Raw(raw) for raw in answer]}


def _write_messages(answer: Sequence[bytes], number: str, finish: FinishReason | None) -> Value:
    blocks = [block for raw in answer for block in _list_blocks(read_member(raw, "content"))]
    calls = any(read_member(block, "type") == b'"tool_use"' for block in blocks)
    reason = _MESSAGES[finish or ("tool_use" if calls else "stop")]
    value: Value = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
    return value | {"content": [msgspec.Raw(block) for block in blocks], "stop_reason": reason}


def _list_blocks(content: bytes) -> Sequence[bytes]:
    return [b'{"type":"text","text":%b}' % content] if content[:1] == b'"' else list_elements(content or b"[]")


def _write_chat(answer: Sequence[bytes], number: str, finish: FinishReason | None) -> Value:
    calls = any(read_member(raw, "tool_calls") not in _NO_CALLS for raw in answer)
    choice = {
        "index": 0,
        "message": msgspec.Raw(answer[0]) if answer else {},
        "finish_reason": _CHAT[finish or ("tool_use" if calls else "stop")],
    }
    return {"id": f"chatcmpl-{number}", "object": "chat.completion", "choices": [choice]}


def _write_usage(wire: str, usage: Usage) -> Value:
    whole, output, read, written = usage.input or 0, usage.output or 0, usage.cached, usage.written
    if wire == "anthropic_messages":
        parts = {"cache_read_input_tokens": read or 0, "cache_creation_input_tokens": written or 0}
        return {"input_tokens": whole - sum(parts.values()), "output_tokens": output, **parts}
    counts = {"cached_tokens": read} if read is not None else {}
    if wire == "responses":
        counts |= {"cache_write_tokens": written} if written else {}
        return {
            "input_tokens": whole,
            "output_tokens": output,
            "total_tokens": whole + output,
            "input_tokens_details": counts,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        }
    counts |= {"cache_write_tokens": written} if written else {}
    return {
        "prompt_tokens": whole,
        "completion_tokens": output,
        "total_tokens": whole + output,
        "prompt_tokens_details": counts,
    }
