"""Reading messages of any format: text, media, roles, reasoning and cache markers, what costs tokens or may be cleared.

Nothing here raises. An object of unknown shape is read as JSON text; base64 is never text. Of media, only the
properties that a price depends on are read; an unreadable one is 0.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain

from msgspec.structs import replace

from proxy.model.epoch import ClearingTerms
from proxy.model.messages import CountedContent, MediaKind, Medium
from proxy.wire.identity import name_role
from proxy.wire.json_values import (
    JSON_ERRORS,
    encode_canonical,
    format_json,
    load_lenient,
    read_count,
    read_objects,
    read_text,
)

TEXTS = frozenset({"text", "input_text", "output_text"})
THINKING = frozenset({"thinking", "redacted_thinking"})
_REASONING = THINKING | {"reasoning", "reasoning_content"}
_THOUGHTS = ("reasoning_content", "reasoning")
_LISTED = ("reasoning_details", "thinking_blocks")
_NO_DIGEST = b"unspelt"
CLEAR_USES = "clear_tool_uses_"
"""How the types of edits begin that clear the results of tools."""
_OF_USES = frozenset({"type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"})
_OF_THINKING = frozenset({"type", "keep"})
_DEFAULT_TRIGGER, _DEFAULT_TURNS = 100_000, 1
_ALL = ("all", {"type": "all"})
# Members to leave out when an object is formatted as JSON for a plan.
_UNTOLD = frozenset({"type", "id", "call_id", "status", "cache_control", "encrypted_content"})


def read_role(message: Mapping[str, object]) -> str:
    """Return the role of a message, by its name in MessageStructure."""
    return name_role(read_text(message.get("role")))


def digest_reasoning(values: Sequence[object]) -> bytes:
    """Return a digest of opaque values: empty for none, and a fixed one for values that cannot be encoded."""
    if not values:
        return b""
    try:
        return sha256(encode_canonical(values)).digest()[:16]
    except JSON_ERRORS:
        return _NO_DIGEST


def is_empty(content: object) -> bool:
    """Return whether content is empty or blank, or has an empty text part."""
    if isinstance(content, str):
        return not content or content.isspace()
    texts = [part.get("text") for part in read_objects(content) if read_text(part.get("type")) in TEXTS]
    return not content or not all(texts)


def is_not_text(content: object) -> bool:
    """Return whether there is anything but text in content."""
    return any([read_text(part.get("type")) not in TEXTS for part in read_objects(content)])


def are_ids_invalid(ids: Sequence[str], longest: int) -> bool:
    """Return whether any id is empty or too long."""
    return any([not 0 < len(each) <= longest for each in ids])


def is_result(kind: str) -> bool:
    """Return whether a Responses item of this type answers a call."""
    return kind.endswith("_output") or kind == "mcp_approval_response"


_REMINDER = re.compile(r"<(?:[\w-]{0,40}reminder|environment_details|environment_context)\b", re.IGNORECASE)
_REMINDER_HEAD = 60
_NUMBER = re.compile(r"\d+")


def identify_reminder(text: str) -> bytes:
    """Return what texts have in common that are the same reminder: all but their numbers; of a tagged one its head."""
    said = text.strip()
    known = said[:_REMINDER_HEAD] if _REMINDER.match(said) else said
    return sha256(_NUMBER.sub("0", known).encode(errors="replace")).digest()[:8] if said else b""


def read_markers(value: object) -> tuple[str, ...]:
    """Return the retentions of the cache markers in a list of decoded blocks, tools or messages, in order."""
    return tuple(chain.from_iterable(map(find_markers, read_objects(value))))


def find_markers(message: Mapping[str, object], depth: int = 2) -> Iterator[str]:
    """Yield the retentions of a message's cache markers: in its parts, in results, in its calls, and last its own."""
    inner = (message.get("content"), message.get("tool_calls")) if depth else ()
    for part in chain.from_iterable(map(read_objects, inner)):
        yield from find_markers(part, depth - 1)
    marker = message.get("cache_control")
    if isinstance(marker, dict):
        yield read_text(marker.get("ttl")) or "5m"


CACHE_MARKER = b'"cache_control"'
_MARKER_VALUE = re.compile(rb'"cache_control"\s*:\s*\{([^{}]*)\}')
_TTL_VALUE = re.compile(rb'"ttl"\s*:\s*"(\d{1,6}[smhd])"')


def list_markers(body: bytes) -> tuple[str, ...]:
    """Return the retentions of the cache markers of a whole request, each once, without reading it as JSON."""
    found = (_TTL_VALUE.search(marker) for marker in _MARKER_VALUE.findall(body))
    return tuple(sorted({ttl[1].decode() if ttl else "5m" for ttl in found}))


def format_arguments(arguments: object) -> str:
    """Return a call's arguments as text: a string as it is, anything else as JSON."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else format_json(arguments)


def read_content(content: object) -> tuple[str, tuple[str, ...]]:
    """Return the text of content of any shape, and a description of each of its media."""
    if isinstance(content, str):
        return content, ()
    texts: list[str] = []
    media: list[str] = []
    left = [content]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left.extend(reversed(found))
        elif isinstance(found, dict):
            kind = read_text(found.get("type"))
            if kind in TEXTS:
                left.append(found.get("text"))
            else:
                left.extend(reversed(_open(kind, found, media)))
        elif found is not None and found != "":
            texts.append(found if isinstance(found, str) else format_json(found))
    return "\n".join(texts), tuple(media)


def _open(kind: str, part: Mapping[str, object], media: list[str]) -> tuple[object, ...]:
    """Return what a part contains. Return nothing for reasoning or a medium, whose description goes to `media`."""
    if kind == "refusal":
        return (part.get("refusal"),)
    if kind in _REASONING:
        return ()
    if kind.endswith("tool_result"):
        return (part.get("content"),)
    medium = read_medium(part)
    if medium is not None:
        media.append(format_medium(medium))
        return ()
    source = part.get("source")
    if kind == "search_result":
        return (part.get("title"), source, part.get("content"))
    if kind == "document" and isinstance(source, dict):
        return (part.get("title"), source.get("data"), source.get("content"))
    rest = list_unknown(part)
    return (format_json(rest),) if rest else ()


def is_attached_text(part: Mapping[str, object]) -> bool:
    """Return whether a part of a message is a document that is given as text, or a search result."""
    kind, source = read_text(part.get("type")), part.get("source")
    is_text = isinstance(source, dict) and source.get("type") in ("text", "content")
    return kind == "search_result" or (kind == "document" and is_text)


def list_unknown(item: Mapping[str, object]) -> dict[str, object]:
    """Return the members of an object of unknown kind that are worth reading."""
    return {name: value for name, value in item.items() if name not in _UNTOLD}


# Media

_KINDS: Mapping[str, MediaKind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "image_generation_call": "image",
    "file": "document",
    "input_file": "document",
    "document": "document",
    "input_audio": "audio",
    "audio": "audio",
}
_CONTAINERS = ("source", "image_url", "file", "input_audio")
_CONTENTS = ("data", "url", "image_url", "file_data", "file_url", "result")
_ADDRESSES = ("http:", "https:", "file-")
_HEAD = 256 * 1024  # of base64; a JPEG's size stands behind its thumbnail
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PAGE_COUNT = re.compile(
    rb"/Type\s*/Pages\b(?:(?!/Type\s*/Pages\b)[^>])*?/Count\s+(\d+)"
    rb"|/Count\s+(\d++)(?:(?!/Count\s)[^>])*?/Type\s*/Pages\b"
)
_MOST_SIDE = 1 << 16


def read_medium(part: Mapping[str, object]) -> Medium | None:
    """Return the medium in a part of a message, or None if there is none. A document given as text is not a medium."""
    kind = _KINDS.get(read_text(part.get("type")))
    if kind is None:
        return None
    containers = [part, *(inner for name in _CONTAINERS if isinstance(inner := part.get(name), dict))]
    if any(container.get("type") in ("text", "content") for container in containers[1:]):
        return None
    given = next((text for each in containers for name in _CONTENTS if (text := read_text(each.get(name)))), "")
    is_low = any(container.get("detail") == "low" for container in containers)
    if given.startswith(_ADDRESSES) or not given:
        id = next((text for each in containers if (text := read_text(each.get("file_id")))), "")
        return Medium(kind, is_low=is_low, reference=given or id)
    return _describe(kind, given, is_low=is_low)


def format_medium(medium: Medium) -> str:
    """Return a short description of a medium: `image 640x480`, `PDF, 3 pages`, `audio, 12 seconds`."""
    if medium.width:
        return f"{medium.kind} {medium.width}x{medium.height}"
    if medium.pages:
        return f"PDF, {medium.pages} page{'s' if medium.pages > 1 else ''}"
    if medium.seconds:
        return f"{medium.kind}, {medium.seconds:.0f} seconds"
    return f"{medium.kind}, {medium.size:,} bytes" if medium.size else medium.kind


def _describe(kind: MediaKind, given: str, *, is_low: bool) -> Medium:
    encoded = given[given.find(",") + 1 :] if given.startswith("data:") else given
    size = len(encoded) * 3 // 4
    if kind == "image":
        width, height = read_image_size(_decode(encoded[:_HEAD]))
        return Medium(kind, width=width, height=height, size=size, is_low=is_low)
    if kind == "document":
        return Medium(kind, pages=count_pages(_decode(encoded)), size=size)
    return Medium(kind, seconds=read_seconds(_decode(encoded[:64])), size=size)


def _decode(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def read_image_size(head: bytes) -> tuple[int, int]:
    """Return width and height of a PNG, GIF, WebP or JPEG; (0, 0) of anything else."""
    width, height = 0, 0
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head.startswith(b"GIF8") and len(head) >= 10:
        width, height = _little(head[6:8]), _little(head[8:10])
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        width, height = _read_webp(head)
    elif head.startswith(b"\xff\xd8"):
        width, height = _read_jpeg(head)
    return (width, height) if 0 < width < _MOST_SIDE and 0 < height < _MOST_SIDE else (0, 0)


def _read_webp(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8 ":
        return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return _little(head[24:27]) + 1, _little(head[27:30]) + 1


def _read_jpeg(head: bytes) -> tuple[int, int]:
    """Return the size in the first start-of-frame segment."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return 0, 0


def count_pages(content: bytes) -> int:
    """Return the number of pages of a PDF, from its page objects or its page tree; 0 if both are compressed."""
    if not content.startswith(b"%PDF"):
        return 0
    listed = sum(1 for _ in _PAGE.finditer(content))
    counted = (int(found[1] or found[2]) for found in _PAGE_COUNT.finditer(content))
    return max(listed, *counted, 0)


def read_seconds(head: bytes) -> float:
    """Return the duration of a WAV in seconds according to its header; 0 for any other format."""
    if not head.startswith(b"RIFF") or head[8:12] != b"WAVE" or len(head) < 44:
        return 0.0
    bytes_per_second = _little(head[28:32])
    return _little(head[4:8]) / bytes_per_second if bytes_per_second else 0.0


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")


# A message is framed by three tokens, and a name costs one more (OpenAI's cookbook, "How to count tokens").
_MESSAGE_FRAME, _NAME_FRAME = 3, 1
# The frames of a function, of its properties, of one property, of an enum's members, and of all functions (the same).
_FUNCTION, _PROPERTIES, _PROPERTY, _ENUM, _MEMBER, _END = 7, 3, 3, -3, 3, 12

# Members that the model is not shown. Ids of calls count: some templates show them, and for the others the ratio that
# is learned from usage corrects the count.
_UNREAD = frozenset(["type", "cache_control", "signature", "status", "index", "is_error"])
# Items of which a model reads what it has encrypted: base64 of about four bytes a token.
_ENCRYPTED = frozenset(["reasoning", "compaction", "compaction_summary", "context_compaction"])
_SEALED = "encrypted_content"
# Members whose objects a model reads as JSON.
_JSON = frozenset(["input", "arguments", "action", "parameters", "input_schema", "schema"])


def read_counted_content(value: object) -> CountedContent:
    """Return the parts of a decoded message, of any format, that cost tokens."""
    texts: list[str] = []
    media: list[Medium] = []
    left, frame = [value], _MESSAGE_FRAME
    while left:
        found = left.pop()
        if isinstance(found, str):
            texts.append(found)
        elif isinstance(found, list):
            left.extend(reversed(found))
        elif isinstance(found, dict):
            medium = read_medium(found)
            if medium is not None:
                media.append(medium)
            elif read_text(found.get("type")) in _ENCRYPTED:
                frame += len(read_text(found.get(_SEALED))) * 3 // 16
                left.extend(_list_members({name: part for name, part in found.items() if name != _SEALED}))
            else:
                left.extend(_list_members(found))
        elif found is not None:
            texts.append(format_json(found))
    named = _NAME_FRAME if isinstance(value, dict) and value.get("name") else 0
    return CountedContent("\n".join(texts), tuple(media), frame + named)


def _list_members(value: Mapping[str, object]) -> list[object]:
    """Return the members of an object that a model reads, in reverse order."""
    read = [(name, member) for name, member in value.items() if name not in _UNREAD]
    return [
        format_json(member) if name in _JSON and isinstance(member, dict) else member for name, member in reversed(read)
    ]


def read_counted_tools(raw: bytes) -> CountedContent:
    """Return what a `tools` array costs, by OpenAI's published rule; other providers' prompts are much the same."""
    texts: list[str] = []
    frame = 0
    tools = read_objects(load_lenient(raw))
    for tool in tools:
        function = tool.get("function")
        inner = function if isinstance(function, dict) else tool
        schema = inner.get("parameters", inner.get("input_schema"))
        if isinstance(schema, dict):
            texts.append(f"{read_text(inner.get('name'))}:{read_text(inner.get('description')).rstrip('.')}")
            frame += _FUNCTION + _read_schema(schema, texts)
        else:
            texts.append(format_json(tool))
            frame += _FUNCTION
    return CountedContent("\n".join(texts), (), frame + _END if tools else 0)


def _read_schema(schema: Mapping[str, object], texts: list[str]) -> int:
    """Append the lines of a schema to `texts`, and return the tokens of their frames. Nested schemas count alike."""
    frame = 0
    left: list[object] = [schema]
    while left:
        found = left.pop()
        if not isinstance(found, dict):
            continue
        properties = found.get("properties")
        if isinstance(properties, dict) and properties:
            frame += _PROPERTIES
            for name, each in properties.items():
                frame += _PROPERTY + _read_property(name, each, texts)
            left.extend(properties.values())
        left.extend(_list_inner(found))
    return frame


def _list_inner(schema: Mapping[str, object]) -> list[object]:
    """Return the schemas inside a schema, except its properties."""
    defined = schema.get("$defs")
    inner = [schema.get("items"), *(defined.values() if isinstance(defined, dict) else ())]
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner += read_objects(schema.get(name))
    return inner


def _read_property(name: str, schema: object, texts: list[str]) -> int:
    if not isinstance(schema, dict):
        texts.append(f"{name}:{format_json(schema)}")
        return 0
    kind = schema.get("type")
    texts.append(
        f"{name}:{kind if isinstance(kind, str) else format_json(kind)}:{read_text(schema.get('description'))}"
    )
    members = schema.get("enum")
    if not isinstance(members, list) or not members:
        return 0
    texts += [each if isinstance(each, str) else format_json(each) for each in members]
    return _ENUM + _MEMBER * len(members)


def read_clearing_terms(edits: Iterable[Mapping[str, object]]) -> ClearingTerms:
    """Return what these edits of Anthropic's `context_management` clear, each of which clears results or reasoning."""
    terms = ClearingTerms()
    for edit in edits:
        is_of_uses = read_text(edit.get("type")).startswith(CLEAR_USES)
        terms = _read_clearing_uses(terms, edit) if is_of_uses else _read_clearing_thinking(terms, edit)
    return terms


def _read_amount(edit: Mapping[str, object], name: str, unit: str) -> int | None:
    """Return the amount that an option of an edit has in a unit, None if it has none, or in another unit."""
    option = edit.get(name)
    return read_count(option.get("value")) if isinstance(option, dict) and option.get("type") == unit else None


def _read_clearing_uses(terms: ClearingTerms, edit: Mapping[str, object]) -> ClearingTerms:
    """Return the terms with those of an edit that clears results of tools."""
    trigger, uses = _read_amount(edit, "trigger", "input_tokens"), _read_amount(edit, "trigger", "tool_uses")
    keep, least = _read_amount(edit, "keep", "tool_uses"), _read_amount(edit, "clear_at_least", "input_tokens")
    named = edit.get("exclude_tools")
    excluded = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    read = {"trigger": trigger if uses is None else uses, "keep": keep, "clear_at_least": least}
    unread = [name for name, amount in read.items() if amount is None and edit.get(name) is not None]
    return replace(
        terms,
        tool_uses=read_text(edit.get("type")),
        trigger=_DEFAULT_TRIGGER if trigger is None and uses is None else trigger,
        trigger_uses=uses,
        keep=terms.keep if keep is None else keep,
        at_least=least or 0,
        excluded=tuple(excluded),
        clears_inputs=bool(edit.get("clear_tool_inputs")),
        unknown=(*terms.unknown, *unread, *sorted(edit.keys() - _OF_USES)),
    )


def _read_clearing_thinking(terms: ClearingTerms, edit: Mapping[str, object]) -> ClearingTerms:
    """Return the terms with those of an edit that clears reasoning."""
    keep = edit.get("keep")
    turns = None if keep in _ALL else _read_amount(edit, "keep", "thinking_turns")
    is_unread = turns is None and keep not in (None, *_ALL)
    return replace(
        terms,
        thinking=read_text(edit.get("type")),
        thinking_turns=_DEFAULT_TURNS if keep is None else turns,
        unknown=(*terms.unknown, *(["keep"] if is_unread else ()), *sorted(edit.keys() - _OF_THINKING)),
    )


def read_reasoning(members: Mapping[str, object]) -> str:
    """Return the readable reasoning in a decoded message, or item, of any format; empty if there is none."""
    said = [text for name in _THOUGHTS if (text := read_text(members.get(name)))]
    for name in _LISTED if not said else ():
        said += [_read_thought(part) for part in read_objects(members.get(name))]
    if read_text(members.get("type")) == "reasoning":
        for name in ("summary", "content"):
            said += [_read_thought(part) for part in read_objects(members.get(name))]
    else:
        parts = read_objects(members.get("content"))
        said += [_read_thought(part) for part in parts if read_text(part.get("type")) in THINKING]
    return "\n".join(filter(None, said))


def _read_thought(part: Mapping[str, object]) -> str:
    return next((text for name in ("thinking", "text", "summary") if (text := read_text(part.get(name)))), "")
