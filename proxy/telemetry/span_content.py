"""The content of a call as attributes of its span, in the shape of OpenTelemetry's GenAI conventions.

Only where `telemetry.capture_content` is set: spans leave the machine, and what they hold is kept elsewhere.
"""

from collections.abc import Iterable, Mapping

import msgspec

from proxy.model.messages import Message
from proxy.wire.body import split_body
from proxy.wire.format import Format

MOST_CHARACTERS = 100_000
"""Of one attribute. Collectors refuse spans that are much longer."""


def describe_request(form: Format, body: bytes) -> dict[str, str | int]:
    """Return the newest messages of a request that fit, oldest first, and how many older ones were left out."""
    split = split_body(body, form.items_key)
    if split is None or not split.items:
        return {}
    kept: list[dict[str, object]] = []
    room = MOST_CHARACTERS
    for span in reversed(split.items):
        described = _describe_message(form.parse_message(body[span.start : span.end]))
        room -= len(msgspec.json.encode(described))
        if room < 0:
            break
        kept.append(described)
    described_all: dict[str, str | int] = {"gen_ai.input.messages": msgspec.json.encode(kept[::-1]).decode()}
    if left := len(split.items) - len(kept):
        described_all["palimpsest.input.messages_left_out"] = left
    return described_all


def describe_response(form: Format, answer: bytes, finish: str) -> Mapping[str, str]:
    """Return the messages of a response, empty if they are too long."""
    described = [_describe_message(message) for message in _list_answers(form, answer)]
    content = msgspec.json.encode([{**each, "finish_reason": finish} for each in described]).decode()
    return {"gen_ai.output.messages": content} if described and len(content) <= MOST_CHARACTERS else {}


def _list_answers(form: Format, answer: bytes) -> Iterable[Message]:
    return [form.parse_message(raw) for raw in form.list_echoes(answer)]


def _describe_message(message: Message) -> dict[str, object]:
    parts: list[dict[str, object]] = []
    if message.results:
        outputs = message.outputs or (message.text,)
        for id, output in zip(message.results, outputs, strict=False):
            parts.append({"type": "tool_call_response", "id": id, "response": output})
        parts += [{"type": "text", "content": text} for text in message.beside]
    elif message.text:
        parts.append({"type": "text", "content": message.text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls
    ]
    return {"role": message.role, "parts": parts}
