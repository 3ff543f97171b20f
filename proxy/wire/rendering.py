"""Rendering a plan's edits as raw messages, and replacing the client's messages in a body with them.

Kept messages have the client's bytes. In replaced ones only the text is ours; a message without text stays as it is.
Cache markers are removed from all rendered messages, because clients move them from request to request while rendered
messages stay. `place_marker` adds one for all that the current request lost, so that there are never
more than the client sent. Where an upstream is known to take them, `add_markers` adds some of ours. A provider
looks for an earlier entry only so many blocks before a marker: `find_hop` finds where one more is needed for that.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from proxy.model.card import CacheTerms
from proxy.model.epoch import Compacted, Edit, Kept, Replaced, Written
from proxy.model.messages import BESIDE, MOST_BESIDE, MessageStructure, list_led
from proxy.wire.body import SplitBody
from proxy.wire.format import DEFAULT_LIFETIME, Format
from proxy.wire.json_values import (
    change_members,
    encode_text,
    join_array,
    list_elements,
    read_member,
    read_object,
    read_text,
    set_member,
)
from proxy.wire.messages import CACHE_MARKER, TEXTS, is_attached_text
from proxy.wire.validity import MOST_MARKERS

Role = Literal["user", "assistant"]

_MARKER, _TYPE = "cache_control", b'"type"'
_MARKED_LISTS = ("content", "tool_calls")
_BESIDE = "[output pruned: see the first result of this message]"
# So many items behind a cut may be of an answer whose beginning is gone: calls with their outputs in between.
_MOST_LED = 64
_TEXT_PART = b'{"type":"text","text":%b}'
_CALLED, _ARGUMENTS = ("function", "custom"), ("arguments", "input")
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The members with the limit of the output, in any format."""
_BEFORE = re.compile(rb"[ \t\r\n]*+,?[ \t\r\n]*+")
_BEHIND = re.compile(rb"[ \t\r\n]*[,\]]")

NO_CHANGES: Mapping[int, bytes] = MappingProxyType({})
NO_MEMBERS: Mapping[str, bytes] = MappingProxyType({})
LOOKBACK = 20
"""The blocks up to each marker, its own among them, at whose ends Anthropic looks for an earlier entry."""


def render(
    form: Format, edits: Sequence[Edit], messages: Sequence[bytes], *, role: Role = "user", is_alternating: bool = False
) -> tuple[bytes, ...]:
    """Return a raw message for each of a plan's edits. `messages` are the client's after the preamble.

    `role` is that of the messages we write. If `is_alternating`, our messages are joined with adjacent user messages.
    """
    rendered = [_render_edit(form, edit, messages, role) for edit in edits]
    if not is_alternating:
        return tuple(rendered)
    return tuple(_join_neighbours(form, rendered, [isinstance(edit, Written) for edit in edits]))


def reach_user(
    form: Format, edits: Sequence[Edit], through: int, messages: Sequence[bytes]
) -> tuple[tuple[Edit, ...], int]:
    """Return the edits and how many messages they cover, extended so that a last one of ours joins a user message."""
    is_open = through < len(messages) and _ends_with_ours(form, edits, messages)
    if is_open and form.parse_structure(messages[through]).role == "user":
        return (*edits, Kept(through)), through + 1
    return tuple(edits), through


def detach_items(
    edits: Sequence[Edit], through: int, structures: Sequence[MessageStructure]
) -> tuple[tuple[Edit, ...], int]:
    """Return the edits and how many messages they cover, extended so that no id leads to reasoning that is gone.

    Items that stay are sent without such an id. Those at the beginning of the tail are among them.
    """
    kept = {edit.place for edit in edits if not isinstance(edit, Written)}
    led = {
        place
        for place, reasoning in list_led(structures[: through + _MOST_LED])
        if reasoning < through and reasoning not in kept and (place >= through or place in kept)
    }
    if not led:
        return tuple(edits), through
    stop = max(through, *(place + 1 for place in led))
    all_edits = (*edits, *map(Kept, range(through, stop)))
    return tuple([_detach(edit) if _find_place(edit) in led else edit for edit in all_edits]), stop


def _find_place(edit: Edit) -> int:
    return -1 if isinstance(edit, Written) else edit.place


def _detach(edit: Edit) -> Edit:
    if isinstance(edit, Replaced):
        return Replaced(edit.place, edit.text, "detached", edit.arguments)
    return Replaced(edit.place, "", "detached") if isinstance(edit, Kept) else edit


def _ends_with_ours(form: Format, edits: Sequence[Edit], messages: Sequence[bytes]) -> bool:
    """Return whether the last message is ours, or will be joined with ours."""
    for edit in reversed(edits):
        if isinstance(edit, Written):
            return True
        if form.parse_structure(messages[edit.place]).role != "user":
            return False
    return False


def place_marker(form: Format, rendered: tuple[bytes, ...], lost: Sequence[str]) -> tuple[bytes, ...]:
    """Return the rendered messages with a cache marker at their end if the request lost any; `lost` are retentions."""
    if not (lost and form.takes_markers):
        return rendered
    return _mark_last(form, rendered, lost[0]) or rendered


def _mark_last(form: Format, rendered: tuple[bytes, ...], lifetime: str) -> tuple[bytes, ...]:
    """Return the messages with a marker at the last one that can have one; empty if none can."""
    for place in reversed(range(len(rendered))):
        marked = form.set_marker(rendered[place], lifetime)
        if marked:
            return (*rendered[:place], marked, *rendered[place + 1 :])
    return ()


class RenderedRequest(NamedTuple):
    """The messages of an epoch, and what is sent in other bytes than the client's, as `apply` takes it."""

    rendered: tuple[bytes, ...]
    changed: Mapping[int, bytes]
    members: Mapping[str, bytes] = NO_MEMBERS


def find_hop(
    body: SplitBody, preamble: int, structures: Sequence[MessageStructure], newest: int, changed: Mapping[int, bytes]
) -> int:
    """Return the index of the last message before the newest answer, if a marker at message `newest` is too far away.

    The earlier request ended there, with a marker; an entry that is more blocks before a new marker is not found.
    Every block counts: only some upstreams count consecutive calls, or results, as one. -1: no marker is needed.
    """
    at = newest
    while at >= 0 and structures[at].role != "assistant":
        at -= 1
    while at >= 0 and structures[at].role == "assistant":
        at -= 1
    spans = body.items[preamble + at + 1 : preamble + newest + 1]
    raws = [changed.get(place, body.content[span.start : span.end]) for place, span in enumerate(spans, at + 1)]
    if at < 0 or sum(max(1, raw.count(_TYPE)) for raw in raws) < LOOKBACK:  # most steps have few blocks
        return -1
    blocks = sum(max(1, len(list_elements(content))) for content in (read_member(raw, "content") for raw in raws))
    return at if blocks >= LOOKBACK else -1


def add_markers(
    form: Format,
    body: SplitBody,
    sent: RenderedRequest,
    *,
    preamble: int,
    through: int,
    kept: CacheTerms,
    lost: Sequence[str],
    hop: tuple[int, str] | None = None,
    is_ours: bool = True,
) -> RenderedRequest:
    """Return what is sent with markers of ours at the end, behind the frozen prefix, and behind the preamble.

    `kept` has the client's markers that stay, `lost` those whose place `place_marker` has taken. Ours come in addition,
    up to the most that a request may have. None has a shorter lifetime than one behind it; the client gives the last.
    `hop` has the message that needs one for the client's marker, and its lifetime: the only one unless `is_ours`.
    """
    writer = _MarkerWriter(form, body, sent, preamble, MOST_MARKERS - len(kept.markers) - bool(lost))
    lifetime = next(iter((*lost, *kept.messages)), DEFAULT_LIFETIME)
    if is_ours and not kept.messages and len(body.items) > preamble + through:
        writer.set(len(body.items) - preamble - 1, DEFAULT_LIFETIME)
    if hop is not None and hop[0] >= through:
        writer.set(*hop)
    rendered = sent.rendered
    if is_ours and not lost and writer.room > 0 and (marked := _mark_last(form, rendered, lifetime)):
        rendered, writer.room = marked, writer.room - 1
    members = sent.members
    if is_ours and preamble:
        writer.set(-1, lifetime)
    elif is_ours and not kept.head and writer.room > 0 and (member := form.set_instructions_marker(body, lifetime)):
        members = {**members, form.instructions_key: member}
    return RenderedRequest(rendered, writer.changed, members)


class _MarkerWriter:
    """Puts markers at messages of the client's, while there is `room`."""

    def __init__(self, form: Format, body: SplitBody, sent: RenderedRequest, preamble: int, room: int) -> None:
        self.changed = dict(sent.changed)
        self.room = room
        self._form = form
        self._body = body
        self._preamble = preamble

    def set(self, place: int, lifetime: str) -> None:
        """Put a marker at a message, given by its index after the preamble, unless it has one or cannot have one."""
        span = self._body.items[self._preamble + place]
        raw = self.changed.get(place, self._body.content[span.start : span.end])
        if self.room <= 0 or self._form.parse_structure(raw).markers:
            return
        if marked := self._form.set_marker(raw, lifetime):
            self.changed[place] = marked
            self.room -= 1


def apply(
    body: SplitBody,
    preamble: int,
    through: int,
    rendered: Sequence[bytes],
    changed: Mapping[int, bytes] = NO_CHANGES,
    *,
    members: Mapping[str, bytes] = NO_MEMBERS,
    spans: Sequence[tuple[range, Sequence[bytes]]] = (),
) -> bytes:
    """Return the body with these messages in place of the `through` items after its preamble.

    `changed` has what is sent in place of other items, by their index after the preamble, whose own items have negative
    ones; `members` what is sent in place of top-level members; `spans` what is sent in place of several items, whatever
    `changed` has of them. Raises ValueError if there is nothing to replace or
    nothing to replace it with, or if the items to cut out are not between separators.
    """
    stop = preamble + through
    if not (rendered and preamble >= 0 < through and stop <= len(body.items)):
        raise ValueError(f"no {through} of {len(body.items)} items behind {preamble} for {len(rendered)} messages")
    content = body.content
    start, end = body.items[preamble].start, body.items[stop - 1].end
    if not _BEFORE.fullmatch(content, body.gap_before(preamble), start) or not _BEHIND.match(content, end):
        raise ValueError("the items are not between separators")
    replaced = {place for places, _ in spans for place in places}
    kept = {place: raw for place, raw in changed.items() if place not in replaced} if replaced else changed
    changes = [(start, end, b",".join(rendered)), *_place_changes(body, preamble, kept)]
    for places, messages in spans:
        first, last = body.items[preamble + places.start], body.items[preamble + places.stop - 1]
        changes.append((first.start, last.end, b",".join(messages)))
    changes += [(body.members[name].start, body.members[name].end, raw) for name, raw in members.items()]
    return b"".join(_splice(body.content, changes))


def change_items(body: SplitBody, preamble: int, changed: Mapping[int, bytes]) -> bytes:
    """Return the body with some items changed, given by their index after the preamble."""
    return b"".join(_splice(body.content, _place_changes(body, preamble, changed)))


def _place_changes(body: SplitBody, preamble: int, changed: Mapping[int, bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield where changed items stand in a body, and what is sent in their place."""
    for place, raw in changed.items():
        span = body.items[preamble + place]
        yield span.start, span.end, raw


def _splice(content: bytes, changes: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a body with parts of it replaced."""
    view, at = memoryview(content), 0
    for start, end, raw in sorted(changes):
        yield view[at:start]
        yield raw
        at = end
    yield view[at:]


def lower_output(body: SplitBody, tokens: int) -> bytes:
    """Return the body with its output limits lowered to `tokens`, or unchanged if its thinking budget is not below."""
    return b"".join(_splice(body.content, list_lower_limits(body, tokens)))


def list_lower_limits(body: SplitBody, tokens: int) -> list[tuple[int, int, bytes]]:
    """Return what `lower_output` changes: where it is, and what is there instead."""
    thinking = read_object(body.member("thinking").decode(errors="replace"))
    budget = thinking.get("budget_tokens") if thinking else None
    if isinstance(budget, int) and budget >= tokens:
        return []
    spans = [body.members[name] for name in OUTPUT_LIMITS if name in body.members]
    asked = [(span, body.content[span.start : span.end]) for span in spans]
    return [(span.start, span.end, b"%d" % tokens) for span, raw in asked if raw.isdigit() and int(raw) > tokens]


def _render_edit(form: Format, edit: Edit, messages: Sequence[bytes], role: Role) -> bytes:
    if isinstance(edit, Compacted):
        return edit.block.encode()
    if isinstance(edit, Written):
        return form.write_message(role, encode_text(edit.text))
    raw = drop_markers(messages[edit.place])
    return _replace(form, raw, edit) if isinstance(edit, Replaced) else raw


def _replace(form: Format, raw: bytes, edit: Replaced) -> bytes:
    value = read_object(raw.decode(errors="replace"))
    if value is None:
        return raw
    if edit.kind == "detached":
        raw = form.detach(raw)
    if edit.arguments:
        raw = _replace_arguments(raw, dict(edit.arguments))
    if not edit.text:
        return raw
    if form.read_item_kind(value) == "message":
        return _replace_content(form, raw, read_text(value.get("role")), edit)
    return form.replace_output(raw, value, edit.text)


def _replace_content(form: Format, raw: bytes, role: str, edit: Replaced) -> bytes:
    text = edit.text
    content = read_member(raw, "content")
    if content[:1] != b"[":
        return set_member(raw, "content", encode_text(text))
    parts = list_elements(content)
    kinds = [_read_kind(part) for part in parts]
    if "tool_result" in kinds:
        written = list(_replace_results(parts, kinds, text, dict(edit.arguments)))
    elif role in ("tool", "function") or (role == "user" and edit.kind == "tombstone"):
        written = [form.write_text_part(role, encode_text(text))]
    else:
        written = _replace_texts(parts, kinds, form.write_text_part(role, encode_text(text)))
    return set_member(raw, "content", join_array(written))


def _replace_arguments(raw: bytes, arguments: Mapping[str, str]) -> bytes:
    """Return a message, or an item, with new arguments in its calls."""

    def change(name: str, value: bytes) -> bytes | None:
        if name in _MARKED_LISTS and value[:1] == b"[":
            return join_array(_replace_call(element, arguments) for element in list_elements(value))
        return value

    return change_members(_replace_call(raw, arguments), change)


def _replace_call(raw: bytes, arguments: Mapping[str, str]) -> bytes:
    """Return a call with its new arguments, which are in the call itself or in its `function` or `custom` member."""
    value = read_object(raw.decode(errors="replace")) or {}
    new = arguments.get(read_text(value.get("call_id")) or read_text(value.get("id")))
    if new is None:
        return raw
    for name in _CALLED:
        if isinstance(called := value.get(name), dict):
            return set_member(raw, name, _set_arguments(read_member(raw, name), called, new))
    return _set_arguments(raw, value, new)


def _set_arguments(raw: bytes, value: Mapping[str, object], new: str) -> bytes:
    """Return a called function with new arguments, as JSON if the old ones are an object, else as a string."""
    for name in _ARGUMENTS:
        if isinstance(value.get(name), str):
            return set_member(raw, name, encode_text(new))
        if isinstance(value.get(name), dict):
            return set_member(raw, name, new.encode())
    return raw


def _read_kind(part: bytes) -> str:
    """Return the type of a part; attached text counts as text."""
    value = read_object(part.decode(errors="replace"))
    return ("text" if is_attached_text(value) else read_text(value.get("type"))) if value else ""


def _read_part_text(part: bytes) -> str:
    value = read_object(part.decode(errors="replace"))
    return read_text(value.get("text")) if value else ""


def _replace_texts(parts: Sequence[bytes], kinds: Sequence[str], text: bytes) -> list[bytes]:
    """Replace all text parts with one, at the place of the first or else before the calls. Other parts stay."""
    place = next((i for i, kind in enumerate(kinds) if kind in TEXTS or kind == "tool_use"), len(parts))
    rest = [part for part, kind in zip(parts[place:], kinds[place:], strict=True) if kind not in TEXTS]
    return [*parts[:place], text, *rest]


def _replace_results(
    parts: Sequence[bytes], kinds: Sequence[str], text: str, outputs: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the parts with the results replaced by `outputs`, which has texts by ids of calls; the other results stay.

    Without any, the text is in the first result and a note in the others. Short texts beside the results stay, unless
    `outputs` has one for all of them.
    """
    left, beside = text, outputs.get(BESIDE)
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "tool_result" and outputs:
            value = read_object(part.decode(errors="replace")) or {}
            new = outputs.get(read_text(value.get("tool_use_id")))
            yield part if new is None else _replace_result(part, new)
        elif kind == "tool_result":
            yield _replace_result(part, left)
            left = _BESIDE
        elif kind in TEXTS and beside is not None:
            yield from (_TEXT_PART % encode_text(beside),) if beside else ()
            beside = ""
        elif kind in TEXTS and len(_read_part_text(part)) <= MOST_BESIDE:
            yield part


def _replace_result(block: bytes, text: str) -> bytes:
    is_list = read_member(block, "content")[:1] == b"["
    content = encode_text(text)
    return set_member(block, "content", join_array([_TEXT_PART % content]) if is_list else content)


def drop_markers(raw: bytes, depth: int = 2) -> bytes:
    """Return a message without cache markers, where a format allows them. A tool's input is not changed."""
    if CACHE_MARKER not in raw:
        return raw

    def change(name: str, value: bytes) -> bytes | None:
        if name == _MARKER:
            return None
        if depth and name in _MARKED_LISTS and value[:1] == b"[" and CACHE_MARKER in value:
            return join_array(drop_markers(element, depth - 1) for element in list_elements(value))
        return value

    return change_members(raw, change)


def _join_neighbours(form: Format, rendered: Sequence[bytes], are_ours: Sequence[bool]) -> list[bytes]:
    joined: list[bytes] = []
    are_user: list[bool] = []
    ours: list[bool] = []
    for raw, is_ours in zip(rendered, are_ours, strict=True):
        is_user = form.parse_structure(raw).role == "user"
        if joined and is_user and are_user[-1] and (is_ours or ours[-1]):
            joined[-1] = _join(form, joined[-1], raw, keeps_first=is_ours)
            ours[-1] = True
            continue
        joined.append(raw)
        are_user.append(is_user)
        ours.append(is_ours)
    return joined


def _join(form: Format, first: bytes, second: bytes, *, keeps_first: bool) -> bytes:
    """Return two user messages as one. `keeps_first`: its other members are those of the first, else of the second."""
    parts = [*_list_parts(form, first), *_list_parts(form, second)]
    return set_member(first if keeps_first else second, "content", join_array(parts))


def _list_parts(form: Format, raw: bytes) -> list[bytes]:
    content = read_member(raw, "content")
    if content[:1] == b'"':
        return [form.write_text_part("user", content)]
    return list_elements(content) if content[:1] == b"[" else []
