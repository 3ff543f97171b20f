"""Requests for a summary of a conversation, in its own format, and reading the responses.

A warm call is the last request, byte for byte, with one instruction appended, so that it reads the provider's prompt
cache. If that request cannot be used so, the compact form, a small request of its own, always can. Some providers make
a compaction themselves, of a request that ends where it is to end (`write_compaction`): a message that only they can
read, or that they have signed. What differs between formats is in one class for each.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from proxy.model.exchange import Answer, Usage
from proxy.wire import CHAT, MESSAGES, RESPONSES
from proxy.wire.anthropic_messages import ASKING, COMPACTED
from proxy.wire.body import SplitBody
from proxy.wire.format import Format
from proxy.wire.json_values import (
    change_members,
    encode_text,
    join_array,
    list_elements,
    read_member,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.rendering import OUTPUT_LIMITS
from proxy.wire.streams import ServerEvent, read_events, read_kind

# Models that refuse `max_tokens`, because it never counted reasoning tokens.
_NEWER_LIMIT = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d))")
_PLAIN_FORMATS = (b"", b"null")
_FREE_CHOICES = (b"", b"null", b'"auto"', b'"none"')
_THOUGHT = re.compile(r"\A\s*<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
# How the formats say that the limit of the output was reached, by the word of Chat Completions.
_CUT_OFF = {"max_tokens": "length", "max_output_tokens": "length"}
_COMPACTED, _TYPED = COMPACTED.decode(), '{"type":"compaction",'
# The least output tokens of a request for a compaction, and what such a request may not have.
_LEAST_OUTPUT = 8192
_REFUSED = frozenset({"stop_sequences", "context_management", "output_format"})
_FORCED_CHOICES = (b'"any"', b'"tool"')
_ANTHROPIC = "anthropic.com"


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
    block: str = ""  # the raw message of the provider's own compaction, if there is exactly one


class _Spoken(msgspec.Struct, frozen=True, gc=False):
    """What a response says: its visible text, the model's refusal, whether it begins a tool call, and a compaction."""

    text: str = ""
    refusal: str = ""
    is_tool_call: bool = False
    block: str = ""


class _SummaryWire(ABC):
    """How models are asked for summaries in one format."""

    form: ClassVar[Format]

    def can_answer(self, body: SplitBody) -> bool:
        """Return whether a request allows a plain text response: it demands no tool call and no other output."""
        return bool(body.items) and body.member("tool_choice") in _FREE_CHOICES

    def list_new(self, events: list[ServerEvent]) -> list[ServerEvent]:
        """Return the events of a stream without those that only repeat what others have said."""
        return events

    @abstractmethod
    def write(self, model: str, orders: str, text: str, most: int) -> bytes:
        """Return a request with a system prompt and one user message, for at most `most` tokens."""

    def write_compaction(self, body: SplitBody, count: int) -> bytes | None:
        """Return the request for a compaction of the first `count` items, or None if that cannot be asked for."""
        return None

    @abstractmethod
    def read(self, value: Mapping[str, object]) -> _Spoken:
        """Return what a response (`Answer.value`) says."""


class _ChatSummaries(_SummaryWire):
    """Chat Completions, which nearly all servers speak."""

    form = CHAT

    def can_answer(self, body: SplitBody) -> bool:
        form = body.member("response_format")
        is_plain = form in _PLAIN_FORMATS or read_member(form, "type") == b'"text"'
        return is_plain and body.member("audio") in _PLAIN_FORMATS and super().can_answer(body)

    def write(self, model: str, orders: str, text: str, most: int) -> bytes:
        limit = self.form.limit_keys[0] if _NEWER_LIMIT.match(model.strip().lower()) else self.form.limit_keys[1]
        return b'{"model":%b,"messages":%b,"%b":%d,"stream":true,"stream_options":{"include_usage":true}}' % (
            encode_text(model),
            join_array((_write_message(self.form, "system", orders), _write_message(self.form, "user", text))),
            limit.encode(),
            most,
        )

    def read(self, value: Mapping[str, object]) -> _Spoken:
        message = next((choice.get("message") for choice in read_objects(value.get("choices"))), None)
        if not isinstance(message, dict):
            return _Spoken()
        text, refusal = _read_content(message.get("content")), read_text(message.get("refusal"))
        return _Spoken(text, refusal, bool(message.get("tool_calls") or message.get("function_call")))


class _ResponsesSummaries(_SummaryWire):
    """Responses, whose streams end with events that repeat all that was said."""

    form = RESPONSES

    def can_answer(self, body: SplitBody) -> bool:
        form = read_member(body.member("text") or b"{}", "format")
        return (form in _PLAIN_FORMATS or read_member(form, "type") == b'"text"') and super().can_answer(body)

    def list_new(self, events: list[ServerEvent]) -> list[ServerEvent]:
        """Leave out events that have a text, a part, an item or the whole response as it is at its end."""
        return [event for event in events if not _is_repetition(event)]

    def write(self, model: str, orders: str, text: str, most: int) -> bytes:
        return b'{"model":%b,"instructions":%b,"input":%b,"max_output_tokens":%d,"store":false,"stream":true}' % (
            encode_text(model),
            encode_text(orders),
            join_array((_write_message(self.form, "user", text),)),
            most,
        )

    def read(self, value: Mapping[str, object]) -> _Spoken:
        items = read_objects(value.get("output"))
        parts = [part for item in items if item.get("type") == "message" for part in read_objects(item.get("content"))]
        return _Spoken(
            "".join(read_text(part.get("text")) for part in parts),
            "".join(read_text(part.get("refusal")) for part in parts),
            any(read_text(item.get("type")).endswith("_call") for item in items),
            _find_only([_spell(item) for item in items if is_compaction(item) and item.get("encrypted_content")]),
        )

    def write_compaction(self, body: SplitBody, count: int) -> bytes | None:
        """Return the request with a trigger behind these items.

        The other way, `/responses/compact`, is an endpoint of its own, with another response, which has messages of
        the user beside the item.
        """
        return _cut(self.form, body, count, b',{"type":"compaction_trigger"}') if self.can_answer(body) else None


class _MessagesSummaries(_SummaryWire):
    """Anthropic Messages, whose requests must have a limit of the output."""

    form = MESSAGES

    def can_answer(self, body: SplitBody) -> bool:
        choice, shape = body.member("tool_choice"), read_member(body.member("output_config") or b"{}", "format")
        is_free = choice in _PLAIN_FORMATS or read_member(choice, "type") in _FREE_CHOICES
        is_plain = shape in _PLAIN_FORMATS and body.member("output_format") in _PLAIN_FORMATS
        return bool(body.items) and is_free and is_plain

    def write(self, model: str, orders: str, text: str, most: int) -> bytes:
        return b'{"model":%b,"max_tokens":%d,"system":%b,"messages":%b,"stream":true}' % (
            encode_text(model),
            most,
            encode_text(orders),
            join_array((_write_message(self.form, "user", text),)),
        )

    def read(self, value: Mapping[str, object]) -> _Spoken:
        blocks = read_objects(value.get("content"))
        is_refused = value.get("stop_reason") == "refusal"
        made = [block for block in blocks if is_compaction(block)]
        said = [block.get("content") if is_compaction(block) else block.get("text") for block in blocks]
        return _Spoken(
            "".join(map(read_text, said)),
            "the model refused" if is_refused else "",
            any(read_text(block.get("type")).endswith("tool_use") for block in blocks),
            _find_only([f"{_COMPACTED}{_spell(block)[len(_TYPED) :]}]}}" for block in made if block.get("content")]),
        )

    def write_compaction(self, body: SplitBody, count: int) -> bytes | None:
        """Return the request that asks for one, without the members that the provider refuses then.

        Its output limit counts what the model thinks, too, and its task budget must not say what remains of it.
        """
        if read_member(read_member(body.member("output_config") or b"{}", "task_budget") or b"{}", "remaining"):
            return None
        limit = max(_LEAST_OUTPUT, read_number(body.member("max_tokens")) or 0)
        asked = set_member(_cut(self.form, body, count), "max_tokens", b"%d" % limit)
        return set_member(change_members(asked, _drop_refused), "compaction", ASKING)


_WIRES: Mapping[str, _SummaryWire] = {
    wire.form.name: wire for wire in (_ChatSummaries(), _ResponsesSummaries(), _MessagesSummaries())
}


def find_form(host: str) -> Format:
    """Return the format in which a provider is asked that the session does not use: nearly all have the same one."""
    is_anthropic = host == _ANTHROPIC or host.endswith(f".{_ANTHROPIC}")
    return MESSAGES if is_anthropic else CHAT


def make_target(form: Format) -> bytes:
    """Return the path at which an upstream is asked in a format, where no request of a client tells it."""
    return f"/v1/{form.path_ending.removeprefix('/v1').lstrip('/')}".encode()


def write_warm(
    form: Format, body: SplitBody, instruction: str, room: OutputLimit, *, is_alternating: bool = False
) -> bytes | None:
    """Return the last request with a user instruction appended, or None if it cannot be used so.

    All other bytes stay, except that the output limits are replaced if the request has any, and `n` becomes 1.
    `is_alternating`: the upstream refuses two user messages in a row, not counting messages of the role tool.
    """
    wire = _WIRES[form.name]
    message = _place(form, body, instruction, is_alternating=is_alternating) if wire.can_answer(body) else None
    if message is None:
        return None
    changes = [message, *_list_limits(body, form.limit_keys, room)]
    if (read_number(body.member("n")) or 1) > 1:
        changes.append((body.members["n"].start, body.members["n"].end, b"1"))
    content, pieces, at = body.content, list[bytes](), 0
    for start, stop, text in sorted(changes):
        pieces += (content[at:start], text)
        at = stop
    return b"".join((*pieces, content[at:]))


def write_compact(form: Format, model: str, orders: str, text: str, room: OutputLimit) -> bytes:
    """Return a small request with a system prompt (`orders`) and one user message."""
    return _WIRES[form.name].write(model, orders, text, room.visible + room.reasoning)


def write_compaction(form: Format, body: SplitBody, count: int) -> bytes | None:
    """Return the request for the provider's own compaction of the first `count` items of a request.

    Everything else stays as it was sent, so that it reads the provider's prompt cache. None if it cannot be asked for.
    """
    return _WIRES[form.name].write_compaction(body, count)


def raise_output_limit(content: bytes, factor: int = 2) -> bytes | None:
    """Return the same request with its output limit multiplied, or None if it has none."""
    for name in OUTPUT_LIMITS:
        if (limit := read_number(read_member(content, name))) is not None:
            return set_member(content, name, b"%d" % (limit * factor))
    return None


def read_summary(form: Format, answer: Answer) -> SummaryAnswer:
    """Return the summary in a response, which may be incomplete, without thoughts that precede it in the text."""
    said = _WIRES[form.name].read(answer.value)
    text, finish = _THOUGHT.sub("", said.text).strip(), _CUT_OFF.get(answer.finish, answer.finish)
    return SummaryAnswer(text, finish, answer.usage, said.is_tool_call, said.refusal, said.text, said.block)


def read_piece(form: Format, piece: bytes) -> tuple[SummaryAnswer, bool]:
    """Return what a piece of a stream, in whole events, adds to a response, and whether it ends with them."""
    list_new, every = _WIRES[form.name].list_new, read_events(piece)
    has_repetitions, answer = len(list_new(every)) < len(every), form.read_events(every)
    new = form.read_events(list_new(read_events(piece))) if has_repetitions else answer
    return read_summary(form, new), answer.is_ended


def begins_with_thoughts(begun: str) -> bool:
    """Return whether a text, of which `begun` is the beginning, begins with the model's thoughts."""
    return _THOUGHT.match(begun) is not None


def read_number(raw: bytes) -> int | None:
    """Return the count in a raw member, or None if it is not one."""
    return int(raw[:9]) if raw.isdigit() else None


def is_compaction(part: Mapping[str, object]) -> bool:
    """Return whether a decoded block or item is a provider's compaction."""
    return part.get("type") == "compaction"


def _find_only(made: Sequence[str]) -> str:
    return made[0] if len(made) == 1 else ""


def _spell(part: Mapping[str, object]) -> str:
    """Return a block or item as JSON in ASCII, its type first. It is sent so ever after."""
    return json.dumps({"type": part["type"], **part}, separators=(",", ":"), default=lambda raw: bytes(raw).decode())


def _cut(form: Format, body: SplitBody, count: int, more: bytes = b"") -> bytes:
    """Return a request with only its first `count` items, and `more` behind them.

    Where cache markers go with the others, the last item gets one: the provider looks for an earlier entry before it.
    """
    content, last = body.content, body.items[count - 1]
    raw, gone = content[last.start : last.end], [content[span.start : span.end] for span in body.items[count:]]
    lost = next((marker for each in gone for marker in form.parse_structure(each).markers), "")
    is_marked = not lost or bool(form.parse_structure(raw).markers)
    marked = raw if is_marked else form.set_marker(raw, lost) or raw
    return content[: last.start] + marked + more + content[body.items[-1].end :]


def _drop_refused(name: str, value: bytes) -> bytes | None:
    """Return a member as a request for a compaction may have it, or None if it may not."""
    if name == "output_config":
        return change_members(value, lambda inner, each: None if inner == "format" else each)
    is_forced = name == "tool_choice" and read_member(value, "type") in _FORCED_CHOICES
    return None if is_forced or name in _REFUSED else value


def _is_repetition(event: ServerEvent) -> bool:
    kind = event.name or read_kind(event, event.value or {})
    return kind.endswith((".done", ".completed", ".incomplete", ".failed"))


def _place(form: Format, body: SplitBody, instruction: str, *, is_alternating: bool) -> tuple[int, int, bytes] | None:
    """Return the change that adds the instruction, as a new message or at the end of the last; None if impossible."""
    last = body.items[-1]
    raw = body.content[last.start : last.end]
    message = form.parse_structure(raw)
    if message.calls or message.is_leading:
        return None  # calls must be answered first, and some messages only by the assistant
    if not is_alternating or _find_last_speaker(form, body) == "assistant":
        return last.end, last.end, b"," + _write_message(form, "user", instruction)
    longer = _lengthen(form, raw, instruction) if _is_of_user(raw) else None
    return (last.start, last.end, longer) if longer is not None else None


def _is_of_user(raw: bytes) -> bool:
    return read_member(raw, "role") == b'"user"'


def _find_last_speaker(form: Format, body: SplitBody) -> str:
    """Return the role of the last speaker as strict templates count: calls, and results that are no user messages, do
    not.
    """
    for span in reversed(body.items):
        raw = body.content[span.start : span.end]
        message = form.parse_structure(raw)
        if _is_of_user(raw):
            return "user"
        if message.role == "assistant" and not message.calls:
            return message.role
    return "assistant"  # no message counts, so a user message may follow


def _lengthen(form: Format, raw: bytes, instruction: str) -> bytes | None:
    """Return a user message with text appended, or None if its content is neither text nor parts."""
    content = read_member(raw, "content")
    if content[:1] == b'"':
        return set_member(raw, "content", content[:-1] + b"\\n\\n" + encode_text(instruction)[1:])
    if content[:1] == b"[":
        part = form.write_text_part("user", encode_text(instruction))
        return set_member(raw, "content", join_array((*list_elements(content), part)))
    return None


def _list_limits(body: SplitBody, names: Iterable[str], room: OutputLimit) -> list[tuple[int, int, bytes]]:
    """Return the changes that set the request's output limits. At least its own thinking budget is added to them."""
    thinking = read_number(read_member(body.member("thinking") or b"{}", "budget_tokens")) or 0
    limit = b"%d" % (room.visible + max(room.reasoning, thinking))
    spans = [body.members[name] for name in names if read_number(body.member(name)) is not None]
    return [(span.start, span.end, limit) for span in spans]


def _write_message(form: Format, role: str, text: str) -> bytes:
    return form.write_message(role, encode_text(text))


def _read_content(content: object) -> str:
    return read_text(content) or "".join(read_text(part.get("text")) for part in read_objects(content))
