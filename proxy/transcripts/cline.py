"""Reader of cline's transcripts: `sessions/ID/*.messages.json`, or of older versions `api_conversation_history.json`.

Messages have Anthropic's form. What each answer cost is in its `metrics`. Older versions kept that apart, in
`ui_messages.json`, which is not read. System prompt and tools are not kept.
"""

from collections.abc import Iterable, Iterator

from proxy.model.exchange import Usage
from proxy.transcripts.chat_messages import write_answer, write_result, write_text
from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    Value,
    encode,
    join_text,
    read_json,
    read_list,
    read_map,
    read_number,
    read_parts,
    read_time,
)
from proxy.wire.json_values import read_text

_MISSING = ("its system prompt", "its tools")
_ANTHROPIC = "anthropic"
_INPUT = ('<user_input mode="act">', '<user_input mode="plan">', "<task>", "</user_input>", "</task>")


def is_cline(value: object) -> bool:
    """Return whether this is the content of such a transcript."""
    messages = read_map(value).get("messages") if isinstance(value, dict) else value
    found = [message for message in read_list(messages) if isinstance(message, dict)]
    return any(message.get("role") == "assistant" for message in found) and all("content" in each for each in found)


def read_cline(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the session of a file, if it has a call."""
    value = read_json(file.text)
    whole = read_map(value)
    messages = read_list(whole.get("messages") if whole else value)
    known = [message for message in messages if isinstance(message, dict) and "role" in message]
    info = next((read_map(each.get("modelInfo")) for each in known if each.get("modelInfo")), {})
    is_anthropic = read_text(info.get("provider")) == _ANTHROPIC
    conversation = CallHistory()
    for message in known:
        _add(conversation, message, is_anthropic=is_anthropic)
    if not conversation.calls:
        return
    origin, parent = read_map(whole.get("origin")), read_text(read_map(whole.get("origin")).get("parentThreadId"))
    yield Transcript(
        read_text(whole.get("sessionId")) or file.path.rpartition("/")[0].rpartition("/")[2] or file.path,
        "cline",
        "anthropic_messages" if is_anthropic else "chat_completions",
        conversation.freeze(),
        tuple(conversation.calls),
        version=read_text(origin.get("version")),
        provider=read_text(info.get("provider")),
        missing=_MISSING,
        lifetime="5m" if is_anthropic else "",
        parent=parent,
        source=file.path,
        broken=len(messages) - len(known),
    )


def _add(conversation: CallHistory, message: Value, *, is_anthropic: bool) -> None:
    blocks = read_parts(message.get("content"))
    if message.get("role") == "assistant":
        raw = encode({"role": "assistant", "content": blocks}) if is_anthropic else _write_answer(blocks)
        model = read_text(read_map(message.get("modelInfo")).get("id"))
        usage = _read_usage(read_map(message.get("metrics")))
        conversation.call([raw], model, usage, read_time(message.get("ts")))
    elif is_anthropic:
        last = read_map(read_json(conversation.trail[-1])) if conversation.trail else {}
        if last.get("role") == "user":  # results of calls that were made together go into one message
            conversation.replace_last(
                encode({"role": "user", "content": read_list(last.get("content")) + _fit(blocks)})
            )
        else:
            conversation.add(encode({"role": "user", "content": _fit(blocks)}))
    else:
        conversation.add(*_write_prompt(blocks))


def _fit(blocks: Iterable[Value]) -> list[Value]:
    """Return blocks as the API takes them: the results of tools as text."""
    return [
        {"type": "tool_result", "tool_use_id": each.get("tool_use_id"), "content": _read_output(each)}
        if each.get("type") == "tool_result"
        else each
        for each in blocks
    ]


def _write_answer(blocks: Iterable[Value]) -> bytes:
    known = [*blocks]
    calls = [
        (read_text(each.get("id")), read_text(each.get("name")), each.get("input") or {})
        for each in known
        if each.get("type") == "tool_use"
    ]
    return write_answer(join_text(known), calls)


def _write_prompt(blocks: Iterable[Value]) -> Iterator[bytes]:
    known = [*blocks]
    for each in known:
        if each.get("type") == "tool_result":
            yield write_result(read_text(each.get("tool_use_id")), _read_output(each))
    if text := join_text(known):
        yield write_text("user", text)


def _read_output(block: Value) -> str:
    content = block.get("content")
    if isinstance(content, str):
        return content
    parts = read_parts(content)
    is_text = bool(parts) and all(part.get("type") == "text" for part in parts)
    return join_text(parts) if is_text else encode(content).decode()


def _read_usage(metrics: Value) -> Usage | None:
    """Return the usage. `inputTokens` includes what was read of the cache and written to it."""
    whole = read_number(metrics.get("inputTokens"))
    if not whole:
        return None
    read, written = (read_number(metrics.get(name)) or 0 for name in ("cacheReadTokens", "cacheWriteTokens"))
    whole = whole if whole >= read + written else whole + read + written
    return Usage(whole, read_number(metrics.get("outputTokens")), read, written or None)
