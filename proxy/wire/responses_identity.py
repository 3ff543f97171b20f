"""What makes a Responses item the same item.

Rule: messages count by role and parts, function calls and their outputs by call, name, arguments and output, items of
any other kind as a whole; ids and states of items, annotations and log probabilities never do. Reasoning has no form,
since clients drop it or not as they like. An item without a type is a message if it has a role.
"""

from collections.abc import Mapping

import msgspec

from proxy.wire.identity import (
    Item,
    ItemPosition,
    Part,
    Reader,
    Settled,
    collapse,
    digest_form,
    name_role,
    settle_parts,
    settle_values,
    weigh,
)
from proxy.wire.json_values import normalize_arguments, normalize_object, read_objects

_WIRE = "responses"
_TEXTS = frozenset({"input_text", "output_text", "text"})
_APPROVAL = "mcp_approval_response"


class _Element(msgspec.Struct, gc=False):
    """What counts of an item of the kinds that are known."""

    type: str | None = None
    role: str = ""
    content: str | list[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: object = None
    output: object = None


def read_alternatives(value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
    """The items of the one answer; nothing where there is none."""
    if not isinstance(value.get("output"), list):
        return ()
    return (tuple(READER.read_value(item) for item in read_objects(value["output"])),)


def read_plain(member: bytes) -> list[Item]:
    """The one user message that a plain string as `input` is."""
    return [READER.read_item(b'{"role":"user","content":%b}' % member)] if member[:1] == b'"' else []


def _read(element: _Element, source: ItemPosition) -> Item:
    kind = element.type
    if kind == "message" or (not kind and element.role):
        return _read_message(element, source)
    if kind == "function_call":
        return _read_call(element)
    if kind == "function_call_output":
        output = collapse(settle_values(element.output, _TEXTS))
        form = digest_form((_WIRE, kind, element.call_id, output))
        return Item("tool", form, (), _name(element.call_id), weigh(output))
    if kind == "reasoning":
        return Item("assistant", b"")
    if element.id and kind in ("item_reference", None):
        return Item("assistant", digest_form((_WIRE, "item_reference", element.id)), reference=element.id)
    return _read_other(element, source)


def _read_message(element: _Element, source: ItemPosition) -> Item:
    content = element.content
    parts: list[Settled] = [content] if isinstance(content, str) and content else []
    if isinstance(content, list):
        parts = settle_parts(content, source, _TEXTS)
    role = "system" if element.role == "developer" else element.role
    return Item(name_role(role), digest_form((_WIRE, "message", role, collapse(parts))), weight=weigh(parts))


def _read_call(element: _Element) -> Item:
    arguments = normalize_arguments(element.arguments)
    form = digest_form((_WIRE, "function_call", element.call_id, element.name, arguments))
    return Item("assistant", form, _name(element.call_id), (), len(arguments))


def _read_other(element: _Element, source: ItemPosition) -> Item:
    """An item of a server's tool, or of a kind not known here: outputs answer a call, the rest is the model's."""
    kind = element.type or ""
    whole = normalize_object(source.load(), "id", "status")
    form = digest_form((_WIRE, "other", whole))
    if kind.endswith("_output") or kind == _APPROVAL:
        return Item("tool", form, (), _name(element.call_id), len(whole))
    return Item("assistant", form, _name(element.call_id), (), len(whole))


def _name(call_id: str | None) -> tuple[str, ...]:
    return (call_id,) if call_id else ()


READER = Reader(_WIRE, _Element, _read)
