"""Anthropic Messages (`/v1/messages`)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from proxy.model.epoch import ClearedContext, ClearingTerms
from proxy.model.exchange import Answer, Headers, Usage
from proxy.model.messages import Message, MessageStructure, ToolCall
from proxy.wire.body import SplitBody
from proxy.wire.format import MANAGING_MEMBERS, Format, is_set
from proxy.wire.headers import add_to_list
from proxy.wire.identity import (
    Item,
    ItemPosition,
    ItemReader,
    NormalPart,
    collapse,
    digest_form,
    load_elements,
    name_role,
    normalize_values,
    weigh,
)
from proxy.wire.json_values import (
    JSON_ERRORS,
    encode_value,
    join_array,
    list_elements,
    load_json,
    load_lenient,
    normalize_arguments,
    normalize_object,
    read_count,
    read_member,
    read_object,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.messages import (
    CLEAR_USES,
    THINKING,
    digest_reasoning,
    format_arguments,
    is_attached_text,
    is_empty,
    read_clearing_terms,
    read_content,
    read_role,
)
from proxy.wire.streams import (
    EVENT_LINE,
    TYPED_DATA_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    finish_object,
    merge,
    read_error,
    read_typed_error,
    set_members,
)

_NAME = "anthropic_messages"
COMPACTION_BETA = b"compact-2026-09-04"
"""The beta without which a request may neither ask for a compaction nor have one."""
COMPACTED, ASKING = b'{"role":"assistant","content":[{"type":"compaction",', b'{"type":"summarize"}'
"""How a message with a compaction begins that we send, and the member `compaction` of a request that asks for one."""
_TEXTS = frozenset({"text"})
# Claude Code since 2.1.36 sends it as a first block or line. Its `cch` is computed from the whole body.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_REMOVED = b'"[The reasoning of this message was removed.]"'
# Blocks from which nothing follows for what is sent later. Of others that is not known: a `tool_reference` loads a
# tool, a `container_upload` puts a file where code runs.
_KNOWN = frozenset({"text", "image", "document", "search_result", *THINKING, "tool_use", "server_tool_use"})
_KNOWN |= {"tool_result", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result"}
_OF_PROVIDER = (
    "_tool_use",
    "_tool_result",
)  # endings of the types of what the provider's own tools were asked, and said
_KNOWN |= {f"{kind}code_execution_tool_result" for kind in ("", "bash_", "text_editor_")}
# Edits of `context_management` that only remove what the provider has read before, as ours do. Any other one may put
# something in place of messages.
_CLEARING = (CLEAR_USES, "clear_thinking_")
_USAGE = UsageNames(
    input=("input_tokens",),
    output=("output_tokens",),
    cached=("cache_read_input_tokens",),
    written=("cache_creation_input_tokens",),
)
# The types of blocks whose start event is missing, by types of deltas that do not have the block's name.
_BLOCK_TYPES = {"input_json_delta": "tool_use", "citations_delta": "text", "signature_delta": "thinking"}

_Block = tuple[dict[str, object], list[dict[str, object]]]  # a content block as it begins, and its deltas


class _IdentityBlock(msgspec.Struct, gc=False):
    """The members of a content block of a known type that participate in identity."""

    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None
    tool_use_id: str | None = None
    content: object = None
    is_error: bool | None = None
    citations: object = None


class _AnthropicMessage(msgspec.Struct, gc=False):
    """The members of a message that participate in its identity."""

    role: str = ""
    content: str | list[_IdentityBlock] | None = None


def _read_item(message: _AnthropicMessage, position: ItemPosition) -> Item:
    """Read the identity of a message: role, text, tool calls (id, name, input) and results (call, content, is_error).

    Blocks of any other type count as a whole. Thinking, cache markers and empty citations do not count. A message with
    a tool's result has the role tool, whatever text it has besides.
    """
    content = message.content
    if not isinstance(content, list):
        form = digest_form((_NAME, message.role, content or None))
        return Item(name_role(message.role), form, weight=len(content or ""))
    parts: list[NormalPart] = []
    calls: list[str] = []
    results: list[str] = []
    whole: list[object] = []  # decoded once, however many blocks are of another kind
    weight = 0
    for place, block in enumerate(content):
        kind = block.type
        if kind == "text" and not block.citations:
            if block.text:
                parts.append(block.text)
                weight += len(block.text)
        elif kind == "tool_use":
            arguments = normalize_arguments(block.input)
            parts.append((kind, block.id, block.name, arguments))
            calls += [block.id] if block.id else []
            weight += len(arguments)
        elif kind == "tool_result":
            said = _normalize_result(block.content)
            parts.append((kind, block.tool_use_id, block.is_error or None, said))
            results += [block.tool_use_id] if block.tool_use_id else []
            weight += len(said) if isinstance(said, str) else weigh(said)
        elif kind not in THINKING:
            whole = whole or load_elements(position, "content")
            parts.append(normalize_object(whole[place]))
            weight += weigh(parts[-1])
    form = digest_form((_NAME, message.role, collapse(parts)))
    return Item("tool" if results else name_role(message.role), form, tuple(calls), tuple(results), weight)


def _normalize_result(content: object) -> object:
    return content or None if isinstance(content, str) else collapse(normalize_values(content, _TEXTS))


def _replaces_context(value: object) -> bool:
    """Return whether `context_management` does more than clear tool outputs and thinking, as Claude Code lets it."""
    edits = value.get("edits") if isinstance(value, dict) and value.keys() <= {"edits"} else None
    if not isinstance(edits, list):
        return is_set(value)
    kinds = [read_text(edit.get("type")) if isinstance(edit, dict) else "" for edit in edits]
    return not all(kind.startswith(_CLEARING) for kind in kinds)


def _demands_binding(value: object) -> bool:
    """Return whether `thinking` asks for an error where reasoning is bound to another beginning."""
    binding = value.get("block_binding") if isinstance(value, dict) else None
    return isinstance(binding, dict) and "error" in binding.values()


class AnthropicMessages(Format):
    """The Anthropic Messages format, which Claude Code uses."""

    name = _NAME
    title, short_name, api = "messages", "messages", "anthropic"
    path_ending = "/v1/messages"
    count_ending = "/v1/messages/count_tokens"
    items_key = "messages"
    limit_keys = ("max_tokens",)
    own_members: ClassVar[Mapping[str, object]] = {"max_tokens": 1024}
    own_headers = ((b"anthropic-version", b"2023-06-01"),)
    has_compaction = goes_on = True
    instructions_key = "system"
    end_marker = re.compile(EVENT_LINE + rb"message_stop(?=[\r\n])|" + TYPED_DATA_LINE + b'message_stop"')
    limit_headers = (b"anthropic-beta",)
    clearing_key = "context_management"
    clearing_beta = b"context-management-"
    clearing_sign = b"message_delta"
    signed_names = (b"thinking",)
    managing_members: ClassVar[Mapping[str, Callable[[object], bool]]] = {
        **MANAGING_MEMBERS,
        "context_management": _replaces_context,
        "compaction": is_set,
        "thinking": _demands_binding,
    }
    reader = ItemReader(_NAME, _AnthropicMessage, _read_item)

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """Return the response in a non-streamed body."""
        return Answer(
            value=dict(value),
            usage=_read_usage(value.get("usage")),
            finish=read_text(value.get("stop_reason")),
            error=read_error(value),
        )

    def _assemble(self, events: Iterable[ServerEvent]) -> tuple[dict[str, object], bool, str]:
        is_ended, error, place = False, "", 0
        message: dict[str, object] = {}
        blocks = IndexedSlots[_Block]()
        for event in events:
            sent = event.value
            if sent is None:
                continue
            kind = sent.get("type")
            kind = kind if isinstance(kind, str) else event.name
            if kind in ("content_block_delta", "content_block_start"):
                is_new, index = kind == "content_block_start", sent.get("index")
                part = sent.get("content_block" if is_new else "delta")
                if not isinstance(part, dict):
                    continue
                place = index if type(index) is int else place
                if is_new:
                    blocks.put(place, (part, []))
                else:
                    (blocks.get(place) or blocks.put(place, _begin_block(part)))[1].append(part)
            elif kind == "message_delta":
                _set_message(message, sent)
            elif kind == "message_start":
                begun = sent.get("message")
                message = begun if isinstance(begun, dict) else message
            elif kind == "message_stop":
                is_ended = True
            else:
                error = error or read_typed_error(kind, sent)
        value: dict[str, object] = {"type": "message", "role": "assistant", "content": [], **message}
        joined = [_join_block(*block) for block in blocks.ordered()]
        return {**value, "content": joined} if joined else value, is_ended, error

    def read_instructions(self, member: bytes) -> bytes:
        """Return the form of the system prompt, string or blocks, without the line that changes with every request."""
        try:
            parts = normalize_values(load_json(member), _TEXTS)
        except JSON_ERRORS:
            return digest_form((_NAME, "raw", member))
        kept = [_BILLING.sub("", part, count=1) if isinstance(part, str) else part for part in parts]
        return digest_form((_NAME, "system", collapse([part for part in kept if part])))

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """Return the one message as the one alternative; empty if the response is an error."""
        if not isinstance(value.get("content"), list):
            return ()
        return ((self.reader.read_value({"role": value.get("role") or "assistant", "content": value["content"]}),),)

    def spell_error(self, error: Mapping[str, object], number: int) -> bytes:
        """Return an error as an event of a stream."""
        return b"event: error\ndata: %b\n\n" % encode_value({"type": "error", "error": error})

    def list_echoes(self, answer: bytes) -> list[bytes]:
        """Return an assistant message with the response's content."""
        content = read_member(answer, "content")
        return [b'{"role":"assistant","content":%b}' % content] if content else []

    def _read_structure(
        self, message: Mapping[str, object], markers: tuple[str, ...], says_json: bool
    ) -> MessageStructure:
        content = message.get("content")
        blocks = read_objects(content)
        calls = [read_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        results = [read_text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
        thinking = _list_thinking(blocks)
        return MessageStructure(
            "tool" if results else read_role(message),
            tuple(filter(None, calls)),
            tuple(filter(None, results)),
            digest_reasoning(thinking),
            markers,
            says_json,
            tuple(
                chain(
                    ["empty"] if is_empty(content) else (),
                    _find_disorder(blocks, len(results)),
                    ["id"] if not all(map(_ID.match, [*calls, *results])) else (),
                )
            ),
            _count_signed(thinking),
            is_leading=message.get("role") == "system",
            stays="always" if any(map(_has_effect, blocks)) else "",
            is_compaction=[block.get("type") for block in blocks] == ["compaction"],
        )

    def add_needed_headers(self, headers: Headers, body: bytes) -> Headers:
        """Return the headers with the beta of compactions if the body has one, or asks for one."""
        is_needed = COMPACTED in body or b'"compaction":' + ASKING in body
        return add_to_list(headers, self.limit_headers[0], COMPACTION_BETA) if is_needed else headers

    def needs_thinking(self, body: SplitBody) -> bool:
        """Return whether thinking has a budget: the provider then refuses a turn that does not begin with thinking."""
        thinking = read_object(body.member("thinking").decode(errors="replace"))
        return thinking is not None and thinking.get("type") == "enabled"

    def strip_reasoning(self, raw: bytes) -> bytes:
        """Return a message without its thinking, if that is signed, with text and calls as they are."""
        if self.signed_names[0] not in raw:
            return raw
        message = load_lenient(raw)
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return raw
        if not _count_signed(_list_thinking(read_objects(message.get("content")))):
            return raw
        parts = list_elements(read_member(raw, "content"))
        kept = [part for part in parts if not _list_thinking([load_lenient(part)])]
        return set_member(raw, "content", join_array(kept) if kept else _REMOVED)

    def read_clearing(self, body: SplitBody) -> ClearingTerms | None:
        """Return what the edits of a request clear; None if it has none, or one that does more."""
        value = load_lenient(body.member(self.clearing_key))
        if not isinstance(value, dict) or _replaces_context(value):
            return None
        return read_clearing_terms(read_objects(value.get("edits")))

    def count_reasoning(self, raw: bytes) -> int:
        """Return the characters of the thinking in a raw message, at least 1 if it has some, else 0."""
        message = load_lenient(raw) if self.signed_names[0] in raw else None
        thinking = _list_thinking(read_objects(message.get("content"))) if isinstance(message, dict) else []
        return _count_characters(thinking) if thinking else 0

    def append_output(self, raw: bytes, line: bytes) -> bytes:
        """Return a raw message with a text behind its last result of a tool."""
        blocks = list_elements(content) if (content := read_member(raw, "content"))[:1] == b"[" else []
        for i, block in reversed(tuple(enumerate(blocks))):
            if (read_object(block.decode(errors="replace")) or {}).get("type") == "tool_result":
                told = (*blocks[:i], self.append_text(block, "content", line), *blocks[i + 1 :])
                return set_member(raw, "content", join_array(told))
        return raw

    def add_cleared(self, raw: bytes, terms: ClearingTerms, cleared: ClearedContext) -> bytes:
        """Return a raw message, or the data of a `message_delta`, with the edits that were applied."""
        value = load_lenient(raw)
        if not isinstance(value, dict) or value.get("type") not in ("message", "message_delta"):
            return raw
        edits: list[dict[str, object]] = []
        if terms.thinking and cleared.thinking_turns:
            counts = {"cleared_thinking_turns": cleared.thinking_turns, "cleared_input_tokens": cleared.thinking_tokens}
            edits.append({"type": terms.thinking, **counts})
        if terms.tool_uses and (cleared.tool_uses or cleared.tokens):
            tokens = cleared.tokens - (cleared.thinking_tokens if edits else 0)
            counts = {"cleared_tool_uses": cleared.tool_uses, "cleared_input_tokens": max(0, tokens)}
            edits.append({"type": terms.tool_uses, **counts})
        return set_member(raw, self.clearing_key, msgspec.json.encode({"applied_edits": edits}))

    def add_original_count(self, raw: bytes, cleared: int) -> bytes:
        """Return a raw count with `original_input_tokens`."""
        value = load_lenient(raw)
        counted = read_count(value.get("input_tokens")) if isinstance(value, dict) else None
        if counted is None:
            return raw
        return set_member(raw, self.clearing_key, b'{"original_input_tokens":%d}' % (counted + cleared))

    def _read_message(self, message: Mapping[str, object]) -> Message:
        content = message.get("content")
        if not isinstance(content, list):
            text, media = read_content(content)
            return Message(read_role(message), text, media=media)
        calls: list[ToolCall] = []
        results: list[str] = []
        outputs: list[str] = []
        rest: list[object] = []
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else ""
            if kind == "tool_use":
                arguments = format_arguments(block.get("input"))
                calls.append(ToolCall(read_text(block.get("id")), read_text(block.get("name")), arguments))
                continue
            if kind == "tool_result":
                results.append(read_text(block.get("tool_use_id")))
                outputs.append(read_content([block])[0])
            rest.append(block)
        text, media = read_content(rest)
        role = "tool" if results else read_role(message)
        answered = tuple(filter(None, results))
        has_several = 1 < len(set(answered)) == len(results)
        texts = [read_text(block.get("text")) for block in read_objects(rest) if block.get("type") == "text"]
        beside = tuple(filter(None, texts)) if results else ()
        return Message(
            role,
            text,
            tuple(calls),
            answered,
            media,
            tuple(outputs) if has_several else (),
            beside,
            said=_read_answer_text(read_objects(rest)) if role == "assistant" else None,
            attached=_list_attached(read_objects(rest)) if role == "user" else (),
        )


def _read_answer_text(blocks: Sequence[Mapping[str, object]]) -> str | None:
    """Return what is said behind the last block of the provider's own tools, else before it; None if there is none."""
    kinds = [read_text(block.get("type")) for block in blocks]
    tools = [place for place, kind in enumerate(kinds) if kind.endswith(_OF_PROVIDER)]
    if not tools:
        return None
    texts = [read_text(block.get("text")) if kind == "text" else "" for block, kind in zip(blocks, kinds, strict=True)]
    answer = "".join(texts[tools[-1] :])  # citations divide one text into several blocks
    return answer if answer.strip() else "\n".join(filter(None, texts))


def _list_attached(blocks: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    return tuple(filter(None, [read_content([block])[0] for block in blocks if is_attached_text(block)]))


def _list_thinking(blocks: Iterable[object]) -> list[dict[str, object]]:
    return [block for block in blocks if isinstance(block, dict) and read_text(block.get("type")) in THINKING]


def _has_effect(block: Mapping[str, object]) -> bool:
    """Return whether later messages may need a block: one of an unknown kind, or a result that loads tools."""
    if block.get("type") == "tool_result":
        return any(part.get("type") == "tool_reference" for part in read_objects(block.get("content")))
    return read_text(block.get("type")) not in _KNOWN


def _count_signed(thinking: list[dict[str, object]]) -> int:
    """Return the characters of the thinking of a message, at least 1 if it is signed or encrypted, else 0."""
    if not any([block.get("signature") or block.get("data") for block in thinking]):
        return 0
    return _count_characters(thinking)


def _count_characters(thinking: list[dict[str, object]]) -> int:
    return max(1, sum([len(read_text(block.get(name))) for block in thinking for name in ("thinking", "data")]))


def _find_disorder(blocks: list[dict[str, object]], results: int) -> Iterator[str]:
    """Yield a flaw if a result comes after other blocks, and one if thinking comes after a call."""
    kinds = [read_text(block.get("type")) for block in blocks]
    if any(kind != "tool_result" for kind in kinds[:results]):
        yield "result behind text"
    if "tool_use" in kinds and any(kind in THINKING for kind in kinds[kinds.index("tool_use") :]):
        yield "thinking behind a call"


def _read_usage(value: object) -> Usage | None:
    """Return the counts with the whole prompt as `input`. Anthropic's `input_tokens` are the uncached ones only."""
    usage = _USAGE.read(value)
    if usage is None or not isinstance(value, dict):
        return None
    if not (usage.input or usage.output or usage.cached or usage.written):
        # the answer to a request for a compaction reports what that took by its steps alone
        usage = _add_usages(filter(None, map(_USAGE.read, read_objects(value.get("iterations"))))) or usage
    parts = [count for count in (usage.input, usage.cached, usage.written) if count is not None]
    return replace(usage, input=sum(parts) if parts else None)


def _add_usages(usages: Iterable[Usage]) -> Usage | None:
    rows = [(each.input, each.output, each.cached, each.written, each.reasoning) for each in usages]
    known = [[count for count in column if count is not None] for column in zip(*rows, strict=True)]
    return Usage(*[sum(column) if column else None for column in known]) if rows else None


def _set_message(message: dict[str, object], sent: dict[str, object]) -> None:
    """Set what a `message_delta` has."""
    delta, counts = sent.pop("delta", None), sent.pop("usage", None)
    sent.pop("type", None)
    set_members(message, sent)
    if isinstance(delta, dict):
        set_members(message, delta)
    if isinstance(counts, dict):
        known = message.get("usage")
        usage = message["usage"] = known if isinstance(known, dict) else {}
        set_members(usage, counts)


def _begin_block(delta: Mapping[str, object]) -> _Block:
    """Return a block whose start event is missing, before its first delta."""
    kind = read_text(delta.get("type"))
    return {"type": _BLOCK_TYPES.get(kind, kind.removesuffix("_delta"))}, []


def _join_block(value: dict[str, object], deltas: Iterable[dict[str, object]]) -> dict[str, object]:
    """Return a block with its deltas; unknown types of both are merged like text.

    A tool's input that is cut off, or is not JSON, stays a string.
    """
    inputs, fragments = list[object](), list[dict[str, object]]()
    for delta in deltas:
        kind = delta.pop("type", None)
        if kind == "input_json_delta":
            inputs.append(delta.get("partial_json"))
        else:
            fragments.append({"citations": [delta.get("citation")]} if kind == "citations_delta" else delta)
    merge(value, *fragments)
    block = finish_object(value)
    sent = "".join([piece for piece in inputs if isinstance(piece, str)])
    if sent:
        parsed = read_object(sent)
        block["input"] = sent if parsed is None else parsed
    return block
