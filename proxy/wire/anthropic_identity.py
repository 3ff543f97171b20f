"""What makes an Anthropic message the same message.

Rule: role, text, tool calls (id, name, input) and tool results (call, content, whether it is an error) count, and
blocks of any other type as a whole; thinking and cache markers do not, nor citations that are none. A message with a
tool's result in it is a tool's for lineage, whatever text stands beside the result.
"""

import re
from collections.abc import Mapping

import msgspec

from proxy.wire.identity import (
    Item,
    ItemPosition,
    Reader,
    Settled,
    collapse,
    digest_form,
    load_elements,
    name_role,
    settle_values,
    weigh,
)
from proxy.wire.json_values import JSON_ERRORS, load_json, normalize_arguments, normalize_object

_WIRE = "anthropic_messages"
_TEXTS = frozenset({"text"})
# Claude Code since 2.1.36, as a first block or line: its `cch` is drawn from the whole body.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_DROPPED = frozenset({"thinking", "redacted_thinking"})


class _IdentityBlock(msgspec.Struct, gc=False):
    """What counts of a content block of the types that are known."""

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
    """What counts of a message."""

    role: str = ""
    content: str | list[_IdentityBlock] | None = None


def read_alternatives(value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
    """The one message an answer is; nothing where it is an error."""
    if not isinstance(value.get("content"), list):
        return ()
    return ((READER.read_value({"role": value.get("role") or "assistant", "content": value["content"]}),),)


def read_orders(member: bytes) -> bytes:
    """The form of the text that tells the model who it is, less the line that is another one in every request."""
    try:
        parts = settle_values(load_json(member), _TEXTS)
    except JSON_ERRORS:
        return digest_form((_WIRE, "raw", member))
    kept = [_BILLING.sub("", part, count=1) if isinstance(part, str) else part for part in parts]
    return digest_form((_WIRE, "system", collapse([part for part in kept if part])))


def _read(message: _AnthropicMessage, source: ItemPosition) -> Item:
    content = message.content
    if not isinstance(content, list):
        form = digest_form((_WIRE, message.role, content or None))
        return Item(name_role(message.role), form, weight=len(content or ""))
    parts: list[Settled] = []
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
            said = _settle_said(block.content)
            parts.append((kind, block.tool_use_id, block.is_error or None, said))
            results += [block.tool_use_id] if block.tool_use_id else []
            weight += len(said) if isinstance(said, str) else weigh(said)
        elif kind not in _DROPPED:
            whole = whole or load_elements(source, "content")
            parts.append(normalize_object(whole[place]))
            weight += weigh(parts[-1])
    form = digest_form((_WIRE, message.role, collapse(parts)))
    return Item("tool" if results else name_role(message.role), form, tuple(calls), tuple(results), weight)


def _settle_said(content: object) -> object:
    """What a tool said."""
    return content or None if isinstance(content, str) else collapse(settle_values(content, _TEXTS))


READER = Reader(_WIRE, _AnthropicMessage, _read)
