"""The parts of messages in events: those that a message brings, that a result completes, and that an epoch shortens.

A result belongs to the part of its call, as in `/-/api/sessions/{id}/messages`. Texts are cut: the stream keeps the
newest events in memory, and the log has all of it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from proxy.context.memory.traces import fit_text
from proxy.engine.memory.messages import describe_call, judge_output, list_new_parts
from proxy.model.epoch import Replaced, decode_edits
from proxy.model.messages import Message, ToolCall
from proxy.model.parts import MessagePart, ToolPart
from proxy.wire.format import Format

MOST_CHARACTERS = 1000
"""Characters of each text in a part."""

_MOST_LOOKED_BACK = 64  # messages before a result, in which its call is looked for
_MOST_FILES = 20  # of a patch
_PRUNING = frozenset({"tombstone", "file"})

Load = Callable[[int], tuple[bytes, bytes]]
"""Returns the node and the raw message at a place."""


class PartOf(NamedTuple):
    """A part, and the node of its message."""

    node: bytes
    part: MessagePart


def list_created(form: Format, node: bytes, raws: Iterable[bytes], at_ms: int) -> Iterator[PartOf]:
    """Yield the parts of a message that came, but for results, given its raw message, or all of its raw items."""
    for raw in raws:
        for part in list_new_parts(raw, form.parse_message(raw), at_ms):
            yield PartOf(node, _cut(part))


def group_items(form: Format, nodes: Iterable[bytes], raws: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield each node of a response with its raw items: those without a node, as reasoning, go with the next one."""
    waiting: list[bytes] = []
    left = iter(nodes)
    for raw in raws:
        waiting.append(raw)
        if form.reader.read_item(raw).form and (node := next(left, None)) is not None:
            yield node, waiting
            waiting = []


def list_completed(form: Format, load: Load, place: int, at_ms: int) -> Iterator[PartOf]:
    """Yield the parts of the calls whose results are in the message at a place."""
    node, raw = load(place)
    message = form.parse_message(raw)
    for id, output in _list_outputs(message):
        status = judge_output(output, None, at_ms)
        found = _find_call(form, load, place, id)
        if found is None:
            yield PartOf(node, _cut(ToolPart("", fit_text(id), None, fit_text(output), status)))
        else:
            yield PartOf(found[0], _cut(describe_call(found[1], fit_text(output), status)))


def list_pruned(form: Format, load: Load, edits: bytes, before: frozenset[int], at_ms: int) -> Iterator[PartOf]:
    """Yield the parts of calls whose outputs an epoch shortens, but for the places where one did `before`."""
    for place in sorted(find_pruned(edits) - before):
        for found in list_completed(form, load, place, at_ms):
            part = found.part
            if isinstance(part, ToolPart):
                status = msgspec.structs.replace(part.status, completed_at=None, compacted_at=at_ms)
                yield PartOf(found.node, msgspec.structs.replace(part, status=status))


def find_pruned(edits: bytes) -> frozenset[int]:
    """Return the places of the messages in whose stead an epoch sends a line, or an outline."""
    decoded = decode_edits(edits) if edits else ()
    return frozenset([each.place for each in decoded if isinstance(each, Replaced) and each.kind in _PRUNING])


def _list_outputs(message: Message) -> Iterator[tuple[str, str]]:
    texts = message.outputs if len(message.outputs) == len(message.results) else (message.text,) * len(message.results)
    return zip(message.results, texts, strict=True)


def _find_call(form: Format, load: Load, place: int, id: str) -> tuple[bytes, ToolCall] | None:
    """Return the newest call with an id before a place, and the node of its message."""
    for earlier in range(place - 1, max(-1, place - 1 - _MOST_LOOKED_BACK), -1):
        node, raw = load(earlier)
        for call in form.parse_message(raw).calls:
            if call.id == id:
                return node, call
    return None


def _cut(part: MessagePart) -> MessagePart:
    """Return a part with its texts cut. Arguments that are too long become a text."""
    changed: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            changed[name] = value[:MOST_CHARACTERS]
        elif name == "files_changed":
            changed[name] = value[:_MOST_FILES]
        elif name == "input" and len(text := msgspec.json.encode(value)) > MOST_CHARACTERS:
            changed[name] = text[:MOST_CHARACTERS].decode(errors="ignore")
    return msgspec.structs.replace(part, **changed) if changed else part
