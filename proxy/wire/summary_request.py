"""Requests for a summary of a Chat Completions conversation, and reading the responses (BEHAVIOUR B28, B29).

A warm call is the last request, byte for byte, with one instruction appended, so that it reads the provider's prompt
cache. If that request cannot be used so, the compact form, a small request of its own, always can.
"""

import re

import msgspec

from proxy.model.exchange import Answer, Usage
from proxy.wire.body import SplitBody
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.json_values import (
    encode_text,
    join_array,
    list_elements,
    read_member,
    read_objects,
    read_text,
    set_member,
)

FORMAT = ChatCompletions()
"""The format in which models are asked for summaries."""

_LIMITS = ("max_completion_tokens", "max_tokens")
# Models that refuse `max_tokens`, because it never counted reasoning tokens.
_NEWER_LIMIT = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d))")
_PLAIN_FORMATS = (b"", b"null")
_FREE_CHOICES = (b"", b"null", b'"auto"', b'"none"')
_THOUGHT = re.compile(r"\A\s*<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)


class OutputLimit(msgspec.Struct, frozen=True, gc=False):
    """The limit of a response in tokens: `visible` for its text, and `reasoning` for models that think first."""

    visible: int
    reasoning: int = 0


class SummaryAnswer(msgspec.Struct, frozen=True, gc=False):
    """The response to a request for a summary."""

    text: str  # without thoughts at its beginning
    finish: str = ""
    usage: Usage | None = None
    is_tool_call: bool = False  # whether the model began a tool call
    refusal: str = ""  # the model's refusal, if any
    said: str = ""  # all visible text, including thoughts


def write_warm(body: SplitBody, instruction: str, room: OutputLimit, *, is_alternating: bool = False) -> bytes | None:
    """Return the last request with a user instruction appended, or None if it cannot be used so.

    All other bytes stay, except that the output limits are replaced if the request has any, and `n` becomes 1.
    `is_alternating`: the upstream refuses two user messages in a row, not counting tool results.
    """
    message = _place(body, instruction, is_alternating=is_alternating) if _can_answer(body) else None
    if message is None:
        return None
    changes = [message, *_list_limits(body, room)]
    if (read_number(body.member("n")) or 1) > 1:
        changes.append((body.members["n"].start, body.members["n"].end, b"1"))
    content, pieces, at = body.content, list[bytes](), 0
    for start, stop, text in sorted(changes):
        pieces += (content[at:start], text)
        at = stop
    return b"".join((*pieces, content[at:]))


def write_compact(model: str, orders: str, text: str, room: OutputLimit) -> bytes:
    """Return a small request with a system prompt (`orders`) and one user message."""
    limit = _LIMITS[0] if _NEWER_LIMIT.match(model.strip().lower()) else _LIMITS[1]
    return b'{"model":%b,"messages":%b,"%b":%d,"stream":true,"stream_options":{"include_usage":true}}' % (
        encode_text(model),
        join_array((_write_message("system", orders), _write_message("user", text))),
        limit.encode(),
        room.visible + room.reasoning,
    )


def raise_output_limit(content: bytes, factor: int = 2) -> bytes | None:
    """Return the same request with its output limit multiplied, or None if it has none."""
    for name in _LIMITS:
        if (limit := read_number(read_member(content, name))) is not None:
            return set_member(content, name, b"%d" % (limit * factor))
    return None


def read_summary(answer: Answer) -> SummaryAnswer:
    """Return the summary in a response, which may be incomplete, without thoughts that precede it in the text."""
    text = refusal = ""
    is_tool_call = False
    for choice in read_objects(answer.value.get("choices"))[:1]:
        message = choice.get("message")
        if isinstance(message, dict):
            text, refusal = _read_content(message.get("content")), read_text(message.get("refusal"))
            is_tool_call = bool(message.get("tool_calls") or message.get("function_call"))
    return SummaryAnswer(_THOUGHT.sub("", text).strip(), answer.finish, answer.usage, is_tool_call, refusal, text)


def begins_with_thoughts(begun: str) -> bool:
    """Return whether a text, of which `begun` is the beginning, begins with the model's thoughts."""
    return _THOUGHT.match(begun) is not None


def read_number(raw: bytes) -> int | None:
    """Return the count in a raw member, or None if it is not one."""
    return int(raw[:9]) if raw.isdigit() else None


def _can_answer(body: SplitBody) -> bool:
    """Return whether the request allows a plain text response: it demands no tool call, output format or audio."""
    form, choice = body.member("response_format"), body.member("tool_choice")
    is_plain = form in _PLAIN_FORMATS or read_member(form, "type") == b'"text"'
    return bool(body.items) and is_plain and choice in _FREE_CHOICES and body.member("audio") in _PLAIN_FORMATS


def _place(body: SplitBody, instruction: str, *, is_alternating: bool) -> tuple[int, int, bytes] | None:
    """Return the change that adds the instruction, as a new message or at the end of the last; None if impossible."""
    last = body.items[-1]
    raw = body.content[last.start : last.end]
    message = FORMAT.parse_structure(raw)
    if message.calls:
        return None  # calls must be answered first
    if not is_alternating or _find_last_speaker(body) == "assistant":
        return last.end, last.end, b"," + _write_message("user", instruction)
    longer = _lengthen(raw, instruction) if message.role == "user" else None
    return (last.start, last.end, longer) if longer is not None else None


def _find_last_speaker(body: SplitBody) -> str:
    """Return the role of the last speaker as strict templates count: calls of tools and their results do not."""
    for span in reversed(body.items):
        message = FORMAT.parse_structure(body.content[span.start : span.end])
        if message.role == "user" or (message.role == "assistant" and not message.calls):
            return message.role
    return "assistant"  # no message counts, so a user message may follow


def _lengthen(raw: bytes, instruction: str) -> bytes | None:
    """Return a user message with text appended, or None if its content is neither text nor parts."""
    content = read_member(raw, "content")
    if content[:1] == b'"':
        return set_member(raw, "content", content[:-1] + b"\\n\\n" + encode_text(instruction)[1:])
    if content[:1] == b"[":
        part = b'{"type":"text","text":%b}' % encode_text(instruction)
        return set_member(raw, "content", join_array((*list_elements(content), part)))
    return None


def _list_limits(body: SplitBody, room: OutputLimit) -> list[tuple[int, int, bytes]]:
    """Return the changes that set the request's output limits. At least its own thinking budget is added to them."""
    thinking = read_number(read_member(body.member("thinking") or b"{}", "budget_tokens")) or 0
    limit = b"%d" % (room.visible + max(room.reasoning, thinking))
    spans = [body.members[name] for name in _LIMITS if read_number(body.member(name)) is not None]
    return [(span.start, span.end, limit) for span in spans]


def _write_message(role: str, text: str) -> bytes:
    return b'{"role":"%b","content":%b}' % (role.encode(), encode_text(text))


def _read_content(content: object) -> str:
    return read_text(content) or "".join(read_text(part.get("text")) for part in read_objects(content))
