"""Message identity: how a message is recognised when a client sends it again.

The normal form is unchanged by every change that clients make to messages they echo, and by no other.
Each format has a closed list of what participates (its `_read_item`). Text counts exactly, white space included, except
at the end of a response in a format where a client drops it. Forms are compared, never sent. Every element has a form:
an unknown shape is identified by its canonical JSON, and invalid JSON by its bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from json import dumps
from typing import Generic, TypeVar

import msgspec

from proxy.wire.body import ByteRange
from proxy.wire.json_values import JSON_ERRORS, encode_canonical, load_json, normalize_object, parse_number, read_text

FORM_SIZE = 16

# Synonyms of roles: OpenAI's newer name for system, and its older one for tool. The other roles are listed so that all
# messages share one string object per role: decoding makes a new one, of 64 bytes, for each.
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system", "function": "tool"}

_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode
_UNUSED = b"\xc1"  # no MessagePack begins with it

T = TypeVar("T")
NormalPart = str | bytes | tuple[object, ...]


class Item(msgspec.Struct, frozen=True, gc=False):
    """The identity of one element of a conversation.

    `role` is system (for developer messages, too), user, assistant or tool, or else what the client sent. Whatever has
    a tool's result is tool, an Anthropic user message too.
    """

    role: str
    form: bytes  # hash of the normal form, empty for an element that does not participate (Responses reasoning)
    calls: tuple[str, ...] = ()  # ids of the tool calls that it makes
    results: tuple[str, ...] = ()  # ids of the tool calls that it answers
    weight: int = 0  # characters of text and arguments: how strong the evidence is if the form matches
    reference: str = ""  # the id that a Responses `item_reference` refers to


class Part(msgspec.Struct, gc=False):
    """A part of a message's content, of which only text is decoded."""

    type: str | None = None
    text: str | None = None


class ItemPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of an item, to decode it as a whole in the rare cases that need it."""

    content: bytes
    span: ByteRange

    def load(self) -> object:
        """Return the item as decoded JSON."""
        return load_json(self.content[self.span.start : self.span.end])


def count_preamble(items: Iterable[Item]) -> int:
    """Return the number of leading system and developer messages, which are not part of the chain."""
    count = 0
    for item in items:
        if item.role != "system":
            break
        count += 1
    return count


def name_role(role: str) -> str:
    """Return a role by its name in Item and MessageStructure."""
    return _ROLES.get(role, role)


def digest_form(form: tuple[object, ...]) -> bytes:
    """Return the hash of a normal form, which begins with the format's name.

    It consists of strings, bytes, None, True, tuples and lists. Tuples and lists hash alike, so where both are possible
    something else must distinguish them.
    """
    try:
        packed = _pack(form)
    except UnicodeEncodeError:  # a lone surrogate
        packed = _UNUSED + ascii(form).encode()
    # SHA-256 is faster here, since processors have instructions for it (1.4 µs per KB, BLAKE2b 2.5).
    return sha256(packed).digest()[:FORM_SIZE]


def collapse(parts: list[NormalPart]) -> NormalPart | list[NormalPart] | None:
    """Return the content that parts make: None for no parts, and the plain string for a single text part."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def normalize_values(values: object, texts: frozenset[str], dropped: frozenset[str] = frozenset()) -> list[NormalPart]:
    """Return the normal parts of decoded content: parts of a type in `texts` as text, all others whole."""
    if values is None or isinstance(values, str):
        return [values] if values else []
    if not isinstance(values, list):
        return [("whole", encode_canonical(values))]  # must differ from a list with this element
    parts: list[NormalPart] = []
    for value in values:
        kind = read_text(value.get("type")) if isinstance(value, dict) else ""
        if kind in texts and isinstance(value.get("text"), str | None):
            parts += [value["text"]] if value.get("text") else []
        elif kind not in dropped:
            parts.append(normalize_object(value))
    return parts


def normalize_parts(
    parts: list[Part], position: ItemPosition, texts: frozenset[str], dropped: frozenset[str] = frozenset()
) -> list[NormalPart]:
    """Return the normal parts of an item's `content`. Decode the item as a whole only if a part is not text."""
    if all(part.type in texts for part in parts):
        return [part.text for part in parts if part.text]
    return normalize_values(load_elements(position, "content"), texts, dropped)


def load_elements(position: ItemPosition, name: str) -> list[object]:
    """Return the fully decoded elements of a list member of an item."""
    value = position.load()
    elements = value.get(name) if isinstance(value, dict) else None
    return elements if isinstance(elements, list) else []


def weigh(normalized: object) -> int:
    """Return the number of characters of text and arguments in a normal part. In a tuple they come last."""
    if isinstance(normalized, str | bytes):
        return len(normalized)
    if isinstance(normalized, list):
        return sum(map(weigh, normalized))
    return weigh(normalized[-1]) if isinstance(normalized, tuple) else 0


class ItemReader(Generic[T]):
    """A reader of a format's items. `shape` has the members that participate; decoding skips all others."""

    def __init__(self, wire: str, shape: type[T], read: Callable[[T, ItemPosition], Item]) -> None:
        self._wire = wire
        self._shape = shape
        self._read = read
        self._decoder = msgspec.json.Decoder(shape, float_hook=parse_number)
        self._list_decoder = msgspec.json.Decoder(list[shape], float_hook=parse_number)  # type: ignore[valid-type]

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """Return the items at these spans, in the order of the body."""
        if not spans:
            return []
        try:  # decoding all at once takes three quarters of the time
            shapes = self._list_decoder.decode(b"[%b]" % content[spans[0].start : spans[-1].end])
            read = self._read
            if len(shapes) == len(spans):
                return [read(shape, ItemPosition(content, span)) for shape, span in zip(shapes, spans, strict=True)]
        except JSON_ERRORS:
            pass
        return [self.read_item(content[span.start : span.end]) for span in spans]

    def read_item(self, raw: bytes) -> Item:
        """Return the item in a raw JSON value."""
        position = ItemPosition(raw, ByteRange(0, len(raw)))
        try:
            return self._read(self._decoder.decode(raw), position)
        except JSON_ERRORS:
            return self._read_odd(position)

    def read_value(self, value: dict[str, object]) -> Item:
        """Return the item in a decoded value, exactly as if it had come in a body."""
        return self.read_item(_render(value))

    def _read_odd(self, position: ItemPosition) -> Item:
        """Return the item in a value that msgspec refuses: valid JSON even so, an unknown shape, or invalid JSON."""
        try:
            value = position.load()
        except JSON_ERRORS:
            return self._know_by_bytes(position, "")
        try:
            return self._read(msgspec.convert(value, self._shape), position)
        except JSON_ERRORS:
            return self._read_other(value, position)

    def _read_other(self, value: object, position: ItemPosition) -> Item:
        role = name_role(read_text(value.get("role"))) if isinstance(value, dict) else ""
        try:
            whole = encode_canonical(value)
        except JSON_ERRORS:
            return self._know_by_bytes(position, role)
        return Item(role, digest_form((self._wire, "other", whole)), weight=len(whole))

    def _know_by_bytes(self, position: ItemPosition, role: str) -> Item:
        raw = position.content[position.span.start : position.span.end]
        return Item(role, digest_form((self._wire, "raw", raw)), weight=len(raw))


def _render(value: dict[str, object]) -> bytes:
    """Return a value as JSON, by the fastest encoder that accepts it; empty if it is nested too deeply."""
    try:
        return _encode(value)
    except (*JSON_ERRORS, msgspec.MsgspecError, OverflowError, TypeError):  # lone surrogates, integers of any size
        pass
    try:
        return dumps(value).encode()
    except JSON_ERRORS:
        return b""
