"""Messages of the Chat Completions API, for clients whose transcripts have forms of their own."""

from collections.abc import Sequence

from proxy.transcripts.transcript import Value, encode


def write_text(role: str, text: str) -> bytes:
    """Return a message of text."""
    return encode({"role": role, "content": text})


def write_answer(text: str, calls: Sequence[tuple[str, str, object]] = ()) -> bytes:
    """Return an answer of the model: its text, and the calls of tools with id, name and arguments."""
    message: Value = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": encode(arguments).decode()}}
            for id, name, arguments in calls
        ]
    return encode(message)


def write_result(id: str, text: str) -> bytes:
    """Return the result of a tool."""
    return encode({"role": "tool", "tool_call_id": id, "content": text})
