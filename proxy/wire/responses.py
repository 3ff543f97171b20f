"""Responses (`/v1/responses`).

Rule: the object in the event that ends a stream is the answer; the smaller events are put together only where that one
is missing, since they repeat what it says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxy.model.exchange import Answer
from proxy.wire import responses_identity
from proxy.wire.body import ByteRange
from proxy.wire.identity import Item
from proxy.wire.json_values import read_objects, read_text
from proxy.wire.streams import (
    DATA_LINE,
    EVENT_LINE,
    TYPED_DATA_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    assemble,
    finish,
    finish_object,
    merge,
    read_error,
    read_fields,
    read_kind,
    read_typed_error,
    set_members,
)

_ENDS = frozenset({"response.completed", "response.failed", "response.incomplete"})
_END = rb"response\.(?:completed|failed|incomplete)"
_UNDER_WAY = frozenset({"queued", "in_progress"})

_USAGE = UsageNames(
    input=("input_tokens",),
    output=("output_tokens",),
    cached=("input_tokens_details.cached_tokens",),
    written=("input_tokens_details.cache_write_tokens",),
    reasoning=("output_tokens_details.reasoning_tokens",),
)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where the text of some events belongs: `key` of the item, or of a part in the item's list `parts`."""

    key: str
    item_type: str
    parts: str = ""
    part_type: str = ""


# By the event's type without its last word, `delta` or `done`.
_SLOTS = {
    "response.output_text": _Slot("text", "message", "content", "output_text"),
    "response.refusal": _Slot("refusal", "message", "content", "refusal"),
    "response.reasoning_text": _Slot("text", "reasoning", "content", "reasoning_text"),
    "response.reasoning_summary_text": _Slot("text", "reasoning", "summary", "summary_text"),
    "response.function_call_arguments": _Slot("arguments", "function_call"),
    "response.mcp_call_arguments": _Slot("arguments", "mcp_call"),
    "response.custom_tool_call_input": _Slot("input", "custom_tool_call"),
    "response.code_interpreter_call_code": _Slot("code", "code_interpreter_call"),
}
_PART_EVENTS = {
    "response.content_part": _SLOTS["response.output_text"],
    "response.reasoning_part": _SLOTS["response.reasoning_text"],  # vLLM's name
    "response.reasoning_summary_part": _SLOTS["response.reasoning_summary_text"],
}
_ANNOTATION = "response.output_text.annotation.added"
_PART_INDEXES = {"content": "content_index", "summary": "summary_index"}


class Responses:
    """OpenAI's newer wire, spoken by codex and the agents SDKs."""

    name = "responses"
    items_key = "input"
    orders_key = "instructions"
    previous_key = "previous_response_id"
    end_marker = re.compile(
        EVENT_LINE + _END + rb"(?=[\r\n])|" + DATA_LINE + rb"\[DONE\]|" + TYPED_DATA_LINE + _END + b'"'
    )

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """The answer in a non-streamed body."""
        details = value.get("incomplete_details")
        reason = read_text(details.get("reason")) if isinstance(details, dict) else ""
        status = read_text(value.get("status"))
        return Answer(
            value=dict(value),
            usage=_USAGE.read(value.get("usage")),
            finish=reason or ("" if status in _UNDER_WAY else status),
            error=read_error(value),
        )

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """The answer a stream ended with, or what its events add up to."""
        return assemble(_ResponsesStream(), events, self.read_answer)

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """The messages at these spans of a request body."""
        return responses_identity.READER.read_items(content, spans)

    def read_input(self, member: bytes) -> list[Item]:
        """The messages in a conversation that is no array. A plain string is one user message."""
        return responses_identity.read_plain(member)

    def read_orders(self, member: bytes) -> bytes:
        """The form of a system message that says the same."""
        return responses_identity.READER.read_item(b'{"role":"system","content":%b}' % member).form

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """For each alternative of an answer, what a client adds to its history."""
        return responses_identity.read_alternatives(value)

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """The ids of the output items, to which an `item_reference` refers."""
        return tuple(read_text(item.get("id")) for item in read_objects(value.get("output")))


class _ResponsesStream:
    """What has come of an answer."""

    def __init__(self) -> None:
        self.is_ended = False
        self.error = ""
        self._response: dict[str, object] = {}
        self._items = IndexedSlots[_Item]()
        self._places: dict[str, int] = {}

    def take(self, event: ServerEvent) -> None:
        """Add an event."""
        sent = read_fields(event)
        if sent is None:
            return
        kind = read_kind(event, sent)
        self.error = self.error or read_typed_error(kind, sent)
        response = sent.get("response")
        if isinstance(response, dict) and not self.is_ended:
            self._response = response
        self.is_ended = self.is_ended or kind in _ENDS
        self._take_change(kind, sent)

    def finish(self) -> dict[str, object]:
        """The object so far."""
        value: dict[str, object] = {"object": "response", "output": [], **self._response}
        # ChatGPT's own backend ends with an empty `output`, the items having come before.
        if not (self.is_ended and value["output"]):
            value["output"] = [item.finish() for item in self._items.ordered()] or value["output"] or []
        return value

    def _take_change(self, kind: str, sent: dict[str, object]) -> None:
        subject, _, act = kind.rpartition(".")
        if subject == "response.output_item":
            self._take_item(sent, is_new=act == "added")
        elif subject in _PART_EVENTS:
            _take_part(self._find_holder(sent, _PART_EVENTS[subject]), sent.get("part"))
        elif subject in _SLOTS:
            slot = _SLOTS[subject]
            _take_text(self._find_holder(sent, slot), slot.key, act, sent)
        elif kind == _ANNOTATION:
            _take_annotation(self._find_holder(sent, _SLOTS["response.output_text"]), sent.get("annotation"))

    def _take_item(self, sent: Mapping[str, object], *, is_new: bool) -> None:
        value = sent.get("item")
        if not isinstance(value, dict):
            return
        place = self._locate(sent, read_text(value.get("id")))
        item = self._items.get(place)
        if item is None or (is_new and item.value.get("id") != value.get("id")):
            self._items.put(place, _Item(value))
        else:
            item.replace(value)

    def _find_holder(self, sent: Mapping[str, object], slot: _Slot) -> dict[str, object]:
        item_id = read_text(sent.get("item_id"))
        place = self._locate(sent, item_id)
        item = self._items.get(place)
        if item is None:  # its beginning was lost, or never sent
            item = self._items.put(place, _Item({"type": slot.item_type, "id": item_id}))
        return item.find_part(slot, sent.get(_PART_INDEXES[slot.parts])) if slot.parts else item.value

    def _locate(self, sent: Mapping[str, object], item_id: str) -> int:
        """The place of an item. Its index goes before its id, which GitHub Copilot changes with every event."""
        index = sent.get("output_index")
        if type(index) is not int and item_id:
            index = self._places.get(item_id, self._items.locate(None) + 1)
        place = self._items.locate(index)
        if item_id:
            self._places.setdefault(item_id, place)
        return place


class _Item:
    """An output item. Its parts are kept aside once one of them is spoken of, since they come by index."""

    def __init__(self, value: dict[str, object]) -> None:
        self.value = value
        self._parts: dict[str, IndexedSlots[dict[str, object]]] = {}

    def replace(self, value: dict[str, object]) -> None:
        """Take the item as sent whole."""
        self.value, self._parts = value, {}

    def find_part(self, slot: _Slot, index: object) -> dict[str, object]:
        """The part at an index, begun if need be."""
        parts = self._parts.get(slot.parts)
        if parts is None:
            parts = self._parts[slot.parts] = IndexedSlots()
            for place, known in enumerate(read_objects(self.value.get(slot.parts))):
                parts.put(place, known)
        place = parts.locate(index)
        part = parts.get(place)
        return parts.put(place, {"type": slot.part_type}) if part is None else part

    def finish(self) -> dict[str, object]:
        """The item so far."""
        parts = {name: [finish(part) for part in places.ordered()] for name, places in self._parts.items()}
        return {**finish_object(self.value), **parts}


def _take_part(holder: dict[str, object], part: object) -> None:
    if isinstance(part, dict):
        set_members(holder, part)


def _take_text(holder: dict[str, object], key: str, act: str, sent: Mapping[str, object]) -> None:
    fields = {"logprobs": sent["logprobs"]} if "logprobs" in sent else {}
    if act == "delta":
        merge(holder, {key: sent.get("delta"), **fields})
    elif act == "done":
        set_members(holder, {key: sent.get(key), **fields})


def _take_annotation(holder: dict[str, object], annotation: object) -> None:
    # Not merged: the `index` of a citation is a position in the text, and several may share it.
    annotations = holder.get("annotations")
    if isinstance(annotations, list):
        annotations.append(annotation)
    else:
        holder["annotations"] = [annotation]
