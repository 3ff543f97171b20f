"""Anthropic Messages (`/v1/messages`).

Rule: a stream is the non-streamed message taken apart, and is put together again by block; kinds of blocks and deltas
that are not known are continued like text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from proxy.model.exchange import Answer, Usage
from proxy.wire import anthropic_identity
from proxy.wire.body import ByteRange
from proxy.wire.identity import Item
from proxy.wire.json_values import read_object, read_text
from proxy.wire.streams import (
    EVENT_LINE,
    TYPED_DATA_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    assemble,
    finish_object,
    merge,
    read_error,
    read_fields,
    read_kind,
    read_typed_error,
    set_members,
)

_USAGE = UsageNames(
    input=("input_tokens",),
    output=("output_tokens",),
    cached=("cache_read_input_tokens",),
    written=("cache_creation_input_tokens",),
)
# Types of blocks whose beginning is missing, where the delta is not named after them.
_BLOCK_TYPES = {"input_json_delta": "tool_use", "citations_delta": "text", "signature_delta": "thinking"}


class AnthropicMessages:
    """The wire of claude-code."""

    name = "anthropic_messages"
    items_key = "messages"
    orders_key = "system"
    previous_key = ""
    end_marker = re.compile(EVENT_LINE + rb"message_stop(?=[\r\n])|" + TYPED_DATA_LINE + b'message_stop"')

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """The answer in a non-streamed body."""
        return Answer(
            value=dict(value),
            usage=_read_usage(value.get("usage")),
            finish=read_text(value.get("stop_reason")),
            error=read_error(value),
        )

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """The answer a stream adds up to, in the shape of a non-streamed one."""
        return assemble(_AnthropicStream(), events, self.read_answer)

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """The messages at these spans of a request body."""
        return anthropic_identity.READER.read_items(content, spans)

    def read_input(self, member: bytes) -> list[Item]:
        """The messages in a conversation that is no array. There are none: this wire knows only arrays."""
        return []

    def read_orders(self, member: bytes) -> bytes:
        """The form of the system's text, string or blocks."""
        return anthropic_identity.read_orders(member)

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """For each alternative of an answer, what a client adds to its history."""
        return anthropic_identity.read_alternatives(value)

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """None: no request refers to a stored message."""
        return ()


def _read_usage(value: object) -> Usage | None:
    """As counted, but with the whole prompt as `input`: Anthropic counts only what the cache had no part in."""
    usage = _USAGE.read(value)
    if usage is None:
        return None
    parts = [count for count in (usage.input, usage.cached, usage.written) if count is not None]
    return replace(usage, input=sum(parts) if parts else None)


class _AnthropicStream:
    """What has come of an answer."""

    def __init__(self) -> None:
        self.is_ended = False
        self.error = ""
        self._message: dict[str, object] = {}
        self._blocks = IndexedSlots[_Block]()

    def take(self, event: ServerEvent) -> None:
        """Add an event."""
        sent = read_fields(event)
        if sent is None:
            return
        kind = read_kind(event, sent)
        if kind == "content_block_delta":
            self._take_block_delta(sent.get("index"), sent.get("delta"))
        elif kind == "content_block_start":
            self._take_block(sent.get("index"), sent.get("content_block"))
        elif kind == "message_delta":
            self._take_message_delta(sent)
        elif kind == "message_start":
            self._take_message(sent.get("message"))
        elif kind == "message_stop":
            self.is_ended = True
        else:
            self.error = self.error or read_typed_error(kind, sent)

    def finish(self) -> dict[str, object]:
        """The message so far."""
        value: dict[str, object] = {"type": "message", "role": "assistant", "content": [], **self._message}
        blocks = [block.finish() for block in self._blocks.ordered()]
        return {**value, "content": blocks} if blocks else value

    def _take_message(self, message: object) -> None:
        if isinstance(message, dict):
            self._message = message

    def _take_message_delta(self, sent: dict[str, object]) -> None:
        delta, counts = sent.pop("delta", None), sent.pop("usage", None)
        sent.pop("type", None)
        set_members(self._message, sent)
        if isinstance(delta, dict):
            set_members(self._message, delta)
        if isinstance(counts, dict):
            known = self._message.get("usage")
            usage = self._message["usage"] = known if isinstance(known, dict) else {}
            set_members(usage, counts)

    def _take_block(self, index: object, value: object) -> None:
        if isinstance(value, dict):
            self._blocks.put(self._blocks.locate(index), _Block(value))

    def _take_block_delta(self, index: object, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        kind = read_text(delta.pop("type", None))
        place = self._blocks.locate(index)
        block = self._blocks.get(place)
        if block is None:
            block_type = _BLOCK_TYPES.get(kind, kind.removesuffix("_delta"))
            block = self._blocks.put(place, _Block({"type": block_type}))
        block.take(kind, delta)


class _Block:
    """A content block."""

    def __init__(self, value: dict[str, object]) -> None:
        self._value = value
        self._input: list[str] = []

    def take(self, kind: str, delta: dict[str, object]) -> None:
        """Add a delta, its type taken out."""
        if kind == "input_json_delta":
            self._input.append(read_text(delta.get("partial_json")))
        elif kind == "citations_delta":
            merge(self._value, {"citations": [delta.get("citation")]})
        else:
            merge(self._value, delta)

    def finish(self) -> dict[str, object]:
        """The block so far. A tool's input that is cut, or was never JSON, stays a string."""
        value = finish_object(self._value)
        sent = "".join(self._input)
        if sent:
            parsed = read_object(sent)
            value["input"] = sent if parsed is None else parsed
        return value
