"""Responses (`/v1/responses`)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from proxy.model.exchange import Answer
from proxy.model.messages import Message, MessageStructure, Stay, ToolCall
from proxy.wire.body import SplitBody
from proxy.wire.format import COMPACTION_SIGNS, MANAGING_MEMBERS, Format, is_set
from proxy.wire.identity import (
    Item,
    ItemPosition,
    ItemReader,
    NormalPart,
    Part,
    collapse,
    digest_form,
    name_role,
    normalize_parts,
    normalize_values,
    weigh,
)
from proxy.wire.json_values import (
    change_members,
    encode_text,
    encode_value,
    join_array,
    list_elements,
    normalize_arguments,
    normalize_object,
    read_member,
    read_object,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.messages import (
    TEXTS,
    are_ids_invalid,
    digest_reasoning,
    format_arguments,
    is_empty,
    is_not_text,
    is_result,
    list_unknown,
    read_content,
    read_role,
)
from proxy.wire.streams import (
    DATA_LINE,
    EVENT_LINE,
    TYPED_DATA_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    finish,
    finish_object,
    merge,
    read_error,
    read_typed_error,
    set_members,
)

_NAME = "responses"
_LONGEST_ID = 64
_TEXT_ROLES = frozenset({"system", "tool"})
_MANAGING_MEMBERS = {
    **MANAGING_MEMBERS,
    "previous_response_id": is_set,
    "conversation": is_set,
}
# Items of the model that the client may send without their own ids.
_DETACHABLE = frozenset({"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"})
# Of these kinds nothing is lost that later items need, if they go with the groups that they are in.
_OUTPUTS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "computer_call_output",
        "mcp_approval_response",
    }
)
_KNOWN = _DETACHABLE | _OUTPUTS | {kind.removesuffix("_output") for kind in _OUTPUTS}
_KNOWN |= {"reasoning", "mcp_call", "mcp_approval_request"}
_KNOWN |= {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
_TEXT_LISTS = frozenset({"function_call_output", "custom_tool_call_output"})
_SHELL_LISTS = frozenset({"shell_call_output"})
# Items that hold for all that follows, as messages of the system do.
_STANDING = frozenset({"configuration_update", "additional_tools"})
_TRIGGER = "compaction_trigger"
_REASONING_CONTENT = ("encrypted_content", "content", "summary")
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
    """The place of an event's text in the response: member `key` of the item, or of a part in its list `parts`."""

    key: str
    item_type: str
    parts: str = ""
    part_type: str = ""


# By the event's type without its last component, `delta` or `done`.
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


class _Element(msgspec.Struct, gc=False):
    """The members of an item of a known kind that participate in its identity."""

    type: str | None = None
    role: str = ""
    content: str | list[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: object = None
    output: object = None


def _read_item(element: _Element, position: ItemPosition) -> Item:
    """Read the identity of an item.

    A message is identified by its role and parts, a call by its id, name and arguments, an output by its call's id and
    the output. Items of any other kind count as a whole. Ids and states of items, annotations and log probabilities
    never count. Reasoning has no form, since clients may drop it. An item without a type is a message if it has a role.
    """
    kind = element.type
    calls = (element.call_id,) if element.call_id else ()
    if kind == "message" or (not kind and element.role):
        return _read_message_item(element, position)
    if kind == "function_call":
        arguments = normalize_arguments(element.arguments)
        form = digest_form((_NAME, kind, element.call_id, element.name, arguments))
        return Item("assistant", form, calls, (), len(arguments))
    if kind == "function_call_output":
        output = collapse(normalize_values(element.output, TEXTS))
        return Item("tool", digest_form((_NAME, kind, element.call_id, output)), (), calls, weigh(output))
    if kind == "reasoning":
        return Item("assistant", b"")
    if element.id and kind in ("item_reference", None):
        return Item("assistant", digest_form((_NAME, "item_reference", element.id)), reference=element.id)
    # an item of a server-side tool, or of an unknown kind: outputs answer a call, anything else is the model's
    whole = normalize_object(position.load(), "id", "status")
    form = digest_form((_NAME, "other", whole))
    if kind == _TRIGGER or kind in _STANDING:
        return Item("user" if kind == _TRIGGER else "system", form, weight=len(whole))
    if is_result(kind or ""):
        return Item("tool", form, (), calls, len(whole))
    return Item("assistant", form, calls, (), len(whole))


def _read_message_item(element: _Element, position: ItemPosition) -> Item:
    content = element.content
    parts: list[NormalPart] = [content] if isinstance(content, str) and content else []
    if isinstance(content, list):
        parts = normalize_parts(content, position, TEXTS)
    role = "system" if element.role == "developer" else element.role
    return Item(name_role(role), digest_form((_NAME, "message", role, collapse(parts))), weight=weigh(parts))


class Responses(Format):
    """The Responses format, OpenAI's newer API, which codex and the agents SDKs use."""

    name = _NAME
    title, short_name = "Responses", "responses"
    path_ending = "/responses"
    count_ending = "/responses/input_tokens"
    items_key = "input"
    limit_keys = ("max_output_tokens",)
    own_members: ClassVar[Mapping[str, object]] = {"store": False}
    instructions_key = "instructions"
    previous_key = "previous_response_id"
    reference_sign = b'"item_reference"'
    end_marker = re.compile(
        EVENT_LINE + _END + rb"(?=[\r\n])|" + DATA_LINE + rb"\[DONE\]|" + TYPED_DATA_LINE + _END + b'"'
    )
    is_itemised = has_compaction = True
    takes_markers = False
    foreign_signs = (*COMPACTION_SIGNS, reference_sign, b'"reasoning"')
    managing_members = _MANAGING_MEMBERS
    reader = ItemReader(_NAME, _Element, _read_item)

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """Return the response in a non-streamed body."""
        details = value.get("incomplete_details")
        reason = read_text(details.get("reason")) if isinstance(details, dict) else ""
        status = read_text(value.get("status"))
        return Answer(
            value=dict(value),
            usage=_USAGE.read(value.get("usage")),
            finish=reason or ("" if status in _UNDER_WAY else status),
            error=read_error(value),
        )

    def _assemble(self, events: Iterable[ServerEvent]) -> tuple[dict[str, object], bool, str]:
        """Return as the base class says: the response is the object in the event that ends the stream.

        The other events repeat its content, so they are assembled only if that event, or its output, is missing.
        """
        is_ended, error = False, ""
        response: dict[str, object] = {}
        changes = list[tuple[str, dict[str, object]]]()
        for event in events:
            sent = event.value
            if sent is None:
                continue
            kind = sent.get("type")
            kind = kind if isinstance(kind, str) else event.name
            if not error and (kind in ("", "error") or "object" in sent):
                error = read_typed_error(kind, sent)
            told = sent.get("response")
            if not is_ended and isinstance(told, dict):
                response = told
            is_ended = is_ended or kind in _ENDS
            changes.append((kind, sent))
        value: dict[str, object] = {"object": "response", "output": [], **response}
        # ChatGPT's own backend ends with an empty `output`, because it sent the items before.
        if not (is_ended and value["output"]):
            value["output"] = _OutputItems(changes).finish() or value["output"] or []
        return value, is_ended, error

    def read_input(self, member: bytes) -> list[Item]:
        """Return the one user message that a plain string stands for."""
        return [self.reader.read_item(b'{"role":"user","content":%b}' % member)] if member[:1] == b'"' else []

    def read_instructions(self, member: bytes) -> bytes:
        """Return the form of a system message with the same content."""
        return self.reader.read_item(b'{"role":"system","content":%b}' % member).form

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """Return the output items as the one alternative; empty if there is no output."""
        if not isinstance(value.get("output"), list):
            return ()
        return (tuple(self.reader.read_value(item) for item in read_objects(value["output"])),)

    def spell_error(self, error: Mapping[str, object], number: int) -> bytes:
        """Return an error as an event of a stream, as documented and, within `error`, as the provider sends it."""
        code = read_text(error.get("code")) or read_text(error.get("type"))
        told = {"code": code, "message": error.get("message"), "param": error.get("param")}
        event = {"type": "error", "sequence_number": number, **told, "error": {**error, "code": code}}
        return b"event: error\ndata: %b\n\n" % encode_value(event)

    def list_echoes(self, answer: bytes) -> list[bytes]:
        """Return the output items."""
        return list_elements(read_member(answer, "output"))

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """Return the ids of the output items, to which an `item_reference` refers."""
        return tuple(read_text(item.get("id")) for item in read_objects(value.get("output")))

    def _read_structure(
        self, message: Mapping[str, object], markers: tuple[str, ...], says_json: bool
    ) -> MessageStructure:
        kind = self.read_item_kind(message)
        own_id = read_text(message.get("id")) if kind in _DETACHABLE else ""
        if kind == "message":
            role, content = read_role(message), message.get("content")
            flaws = ["empty"] if is_empty(content) else []
            if role in _TEXT_ROLES and is_not_text(content):
                flaws.append("not text")
            own_id = own_id if role == "assistant" else ""
            return MessageStructure(role, markers=markers, says_json=says_json, flaws=tuple(flaws), item_id=own_id)
        if kind == _TRIGGER or kind in _STANDING:
            return MessageStructure("user" if kind == _TRIGGER else "system", markers=markers, says_json=says_json)
        ids = _read_call_ids(kind, message)
        are_invalid = (ids or kind.startswith("function_call")) and are_ids_invalid(ids, _LONGEST_ID)
        flawed = ("id",) if are_invalid else ()
        stays: Stay = "" if kind in _KNOWN else "always"
        if is_result(kind):
            return MessageStructure("tool", (), ids, b"", markers, says_json, flawed, stays=stays)
        reasoning = digest_reasoning([message]) if kind == "reasoning" else b""
        stays = "unanswered" if ids and not stays else stays
        return MessageStructure(
            "assistant",
            ids,
            (),
            reasoning,
            markers,
            says_json,
            flawed,
            stays=stays,
            is_compaction=kind == "compaction",
            item_id=own_id,
        )

    def _read_message(self, message: Mapping[str, object]) -> Message:
        kind = self.read_item_kind(message)
        if kind == "message":
            text, media = read_content(message.get("content"))
            return Message(read_role(message), text, media=media)
        ids = _read_call_ids(kind, message)
        call_id = ids[0] if ids else ""
        if is_result(kind):
            text, media = read_content(message["output"] if "output" in message else list_unknown(message))
            return Message("tool", text, (), ids, media)
        if kind.endswith("_call"):
            text, media = read_content(message if kind == "image_generation_call" else message.get("output"))
            names = ("arguments", "input", "action", "code")
            arguments = format_arguments(next((message[name] for name in names if name in message), ""))
            called = read_text(message.get("name")) or kind.removesuffix("_call")
            return Message("assistant", text, (ToolCall(call_id, called, arguments),), media=media, said="")
        text, media = ("", ()) if kind == "reasoning" else read_content(list_unknown(message))
        return Message("assistant", text, (), (), media, said="")

    def is_aside(self, body: SplitBody) -> bool:
        """Return whether a request ends with a trigger, whose answer is one compaction."""
        raw = body.content[body.items[-1].start : body.items[-1].end] if body.items else b""
        return (
            _TRIGGER.encode() in raw
            and self.read_item_kind(read_object(raw.decode(errors="replace")) or {}) == _TRIGGER
        )

    def read_item_kind(self, item: Mapping[str, object]) -> str:
        """Return the type of an item. Without a type it is a message if it has a role."""
        return read_text(item.get("type")) or ("message" if item.get("role") else "")

    def is_reference(self, item: Mapping[str, object]) -> bool:
        """Return whether an item only names what the provider stores: a reference, or reasoning without its content.

        Such reasoning comes from providers that store their responses, whether the request says so or not.
        """
        kind = read_text(item.get("type"))
        return kind == "item_reference" or (kind == "reasoning" and not any(map(item.get, _REASONING_CONTENT)))

    def detach(self, raw: bytes) -> bytes:
        """Return an item without its own id. Its `call_id` stays."""
        return change_members(raw, lambda name, value: None if name == "id" else value)

    def replace_output(self, raw: bytes, item: Mapping[str, object], text: str) -> bytes:
        """Return an item with a text as its output: a string, a list of parts, or what a shell command has printed."""
        kind, output, said = self.read_item_kind(item), item.get("output"), encode_text(text)
        if isinstance(output, str) and (is_result(kind) or kind == "mcp_call"):
            return set_member(raw, "output", said)
        if isinstance(output, list) and kind in _TEXT_LISTS:
            return set_member(raw, "output", join_array([self.write_text_part("tool", said)]))
        if isinstance(output, list) and kind in _SHELL_LISTS and read_objects(output):
            last = list_elements(read_member(raw, "output"))[-1]
            told = set_member(set_member(last, "stdout", said), "stderr", b'""')
            return set_member(raw, "output", join_array([told]))
        return raw

    def append_output(self, raw: bytes, line: bytes) -> bytes:
        """Return an item with a text behind its output, if that is a string or a list of parts."""
        kind = self.read_item_kind(read_object(raw.decode(errors="replace")) or {})
        return self.append_text(raw, "output", line) if kind in _TEXT_LISTS else raw

    def write_message(self, role: str, text: bytes) -> bytes:
        """Return a message item with one part."""
        part = self.write_text_part(role, text)
        return b'{"type":"message","role":"%b","content":[%b]}' % (role.encode(), part)

    def write_text_part(self, role: str, text: bytes) -> bytes:
        """Return a text part, whose type depends on the role."""
        return b'{"type":"%b","text":%b}' % (b"output_text" if role == "assistant" else b"input_text", text)


def _read_call_ids(kind: str, item: Mapping[str, object]) -> tuple[str, ...]:
    """Return the id of the call that an item makes or answers, in whichever member its kind has it."""
    call_id = read_text(item.get("call_id"))
    if kind == "local_shell_call_output":
        call_id = call_id or read_text(item.get("id"))
    elif kind.startswith("mcp_approval_"):
        call_id = read_text(item.get("id" if kind == "mcp_approval_request" else "approval_request_id"))
    return (call_id,) if call_id else ()


class _OutputItems:
    """The output of a streamed response, assembled from the events that tell of its items."""

    def __init__(self, changes: Iterable[tuple[str, dict[str, object]]]) -> None:
        self._items = IndexedSlots[_Item]()
        self._places: dict[str, int] = {}
        for kind, sent in changes:
            self._take_change(kind, sent)

    def finish(self) -> list[dict[str, object]]:
        """Return the items so far."""
        return [item.finish() for item in self._items.ordered()]

    def _take_change(self, kind: str, sent: dict[str, object]) -> None:
        subject, _, act = kind.rpartition(".")
        if subject == "response.output_item":
            self._take_item(sent, is_new=act == "added")
        elif subject in _PART_EVENTS:
            part = sent.get("part")
            container = self._find_container(sent, _PART_EVENTS[subject])
            if isinstance(part, dict):
                set_members(container, part)
        elif subject in _SLOTS:
            slot = _SLOTS[subject]
            _take_text(self._find_container(sent, slot), slot.key, act, sent)
        elif kind == _ANNOTATION:
            _take_annotation(self._find_container(sent, _SLOTS["response.output_text"]), sent.get("annotation"))

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

    def _find_container(self, sent: Mapping[str, object], slot: _Slot) -> dict[str, object]:
        item_id = read_text(sent.get("item_id"))
        place = self._locate(sent, item_id)
        item = self._items.get(place)
        if item is None:  # its beginning was lost, or never sent
            item = self._items.put(place, _Item({"type": slot.item_type, "id": item_id}))
        return item.find_part(slot, sent.get(_PART_INDEXES[slot.parts])) if slot.parts else item.value

    def _locate(self, sent: Mapping[str, object], item_id: str) -> int:
        """Return the place of an item, by its index if it has one: GitHub Copilot changes the id with every event."""
        index = sent.get("output_index")
        if type(index) is not int and item_id:
            index = self._places.get(item_id, self._items.locate(None) + 1)
        place = self._items.locate(index)
        if item_id:
            self._places.setdefault(item_id, place)
        return place


class _Item:
    """An output item. Its parts are kept separately as soon as an event refers to one by index."""

    def __init__(self, value: dict[str, object]) -> None:
        self.value = value
        self._parts: dict[str, IndexedSlots[dict[str, object]]] = {}

    def replace(self, value: dict[str, object]) -> None:
        """Replace the item by a complete one."""
        self.value, self._parts = value, {}

    def find_part(self, slot: _Slot, index: object) -> dict[str, object]:
        """Return the part at an index, or add an empty one."""
        parts = self._parts.get(slot.parts)
        if parts is None:
            parts = self._parts[slot.parts] = IndexedSlots()
            for place, known in enumerate(read_objects(self.value.get(slot.parts))):
                parts.put(place, known)
        place = parts.locate(index)
        part = parts.get(place)
        return parts.put(place, {"type": slot.part_type}) if part is None else part

    def finish(self) -> dict[str, object]:
        """Return the item so far."""
        parts = {name: [finish(part) for part in slots.ordered()] for name, slots in self._parts.items()}
        return {**finish_object(self.value), **parts}


def _take_text(container: dict[str, object], key: str, act: str, sent: Mapping[str, object]) -> None:
    fields = {"logprobs": sent["logprobs"]} if "logprobs" in sent else {}
    if act == "delta":
        merge(container, {key: sent.get("delta"), **fields})
    elif act == "done":
        set_members(container, {key: sent.get(key), **fields})


def _take_annotation(container: dict[str, object], annotation: object) -> None:
    # Not merged: the `index` of a citation is a position in the text, and several may share it.
    annotations = container.get("annotations")
    if isinstance(annotations, list):
        annotations.append(annotation)
    else:
        container["annotations"] = [annotation]
