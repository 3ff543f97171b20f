"""The body of a response, written from an answer that is known already: one recorded elsewhere, or in a transcript."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from proxy.model.exchange import Usage
from proxy.model.results import FinishReason
from proxy.wire.format import Format
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
    form: Format,
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
    write, count = _WRITERS[form.name]
    whole = {**write(answer, number, finish), "model": model, "usage": count(usage), **(more or {})}
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


def _count_chat(usage: Usage) -> Value:
    whole, output = usage.input or 0, usage.output or 0
    return {
        "prompt_tokens": whole,
        "completion_tokens": output,
        "total_tokens": whole + output,
        "prompt_tokens_details": _count_cached(usage),
    }


def _count_responses(usage: Usage) -> Value:
    whole, output = usage.input or 0, usage.output or 0
    return {
        "input_tokens": whole,
        "output_tokens": output,
        "total_tokens": whole + output,
        "input_tokens_details": _count_cached(usage),
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
    }


def _count_cached(usage: Usage) -> Value:
    counts: Value = {"cached_tokens": usage.cached} if usage.cached is not None else {}
    return counts | ({"cache_write_tokens": usage.written} if usage.written else {})


def _count_messages(usage: Usage) -> Value:
    parts = {"cache_read_input_tokens": usage.cached or 0, "cache_creation_input_tokens": usage.written or 0}
    return {"input_tokens": (usage.input or 0) - sum(parts.values()), "output_tokens": usage.output or 0, **parts}


_WRITERS: Mapping[
    str, tuple[Callable[[Sequence[bytes], str, FinishReason | None], Value], Callable[[Usage], Value]]
] = {
    "chat_completions": (_write_chat, _count_chat),
    "responses": (_write_responses, _count_responses),
    "anthropic_messages": (_write_messages, _count_messages),
}
