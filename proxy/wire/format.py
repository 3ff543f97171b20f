"""A wire format: everything the proxy has to know of one API, and what the formats have in common."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from proxy.model.exchange import Answer
from proxy.model.messages import LEDGER_HEAD, CountedContent, Message, MessageStructure
from proxy.wire.body import ByteRange, SplitBody
from proxy.wire.identity import Item, ItemReader
from proxy.wire.json_values import (
    JSON_ERRORS,
    format_json,
    limit_depth,
    load_json,
    load_lenient,
    read_objects,
    read_text,
)
from proxy.wire.messages import find_markers, read_counted_content, read_markers
from proxy.wire.streams import ServerEvent
from proxy.wire.validity import Rules

_MARKER = "cache_control"
_OUR_SIGNS = (LEDGER_HEAD.encode(), b'"[tool: ', b'"[FILE: ')
_COMPACTION_SIGNS = (b'"compaction', b'"context_compaction"')
_COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
# As `context/references` writes them.
_PRUNED = re.compile(r"\[tool: [^\n]* — output pruned; completed[^\n]*; ref:[a-z2-7]{10}\]")
_FILE = re.compile(r"\[FILE: [^\n]*\]\nref:[a-z2-7]{10} · ")


def is_set(value: object) -> bool:
    """Return whether a member says something: it is not null, false or empty."""
    return bool(value)


MANAGING_MEMBERS: Mapping[str, Callable[[object], bool]] = {
    "context_management": is_set,
    "truncation": lambda value: value == "auto",
    "transforms": is_set,
    "cached_content": is_set,
    "cachedContent": is_set,
    "background": is_set,
}
"""The members of a request, of any API, by which somebody else manages its context, and the values that do."""


class Format(ABC):
    """One API's format. To add a wire, write one subclass and list it in `proxy.wire.FORMATS`.

    Class attributes: `name` is also what the log and the settings call it; `path_ending` is how the paths end under
    which it is spoken. `items_key` is the top-level member whose
    array elements are the conversation; `instructions_key` the one beside it that tells the model who it is, empty
    where only messages do; `previous_key` the one that names a stored response that a request goes on from, empty if
    there is none. `end_marker` matches, in raw bytes, at a line that ends a stream as a whole. `is_managed`: the
    context of its requests may be shortened. `is_itemised`: calls, texts and reasoning are items of their own.
    `takes_markers`: messages may have cache markers. `has_compaction`: a provider may put compactions of its own into
    messages. `managing_members` as MANAGING_MEMBERS. `limit_headers` are the request headers that change a model's
    window. `reader` reads what identifies a message.
    """

    name: ClassVar[str]
    path_ending: ClassVar[str]
    items_key: ClassVar[str]
    instructions_key: ClassVar[str] = ""
    previous_key: ClassVar[str] = ""
    end_marker: ClassVar[re.Pattern[bytes]]
    is_managed: ClassVar[bool] = False
    is_itemised: ClassVar[bool] = False
    takes_markers: ClassVar[bool] = True
    has_compaction: ClassVar[bool] = True
    managing_members: ClassVar[Mapping[str, Callable[[object], bool]]] = MANAGING_MEMBERS
    limit_headers: ClassVar[tuple[bytes, ...]] = ()
    reader: ClassVar[ItemReader[Any]]

    # Responses

    @abstractmethod
    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """Return the response in a non-streamed body."""

    @abstractmethod
    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """Return the response that a stream adds up to, as far as it came, in the shape of a non-streamed one."""

    @abstractmethod
    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """Return, for each alternative of a response (`Answer.value`), what a client echoes of it in its history.

        `read_items` of the echo gives the same forms. An error has no alternatives.
        """

    @abstractmethod
    def list_echoes(self, answer: bytes) -> list[bytes]:
        """Return the raw elements that a client adds to its conversation for a raw response (`Answer.value`)."""

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """Return the ids by which later requests may refer to the items of a response; on most wires there are none."""
        return ()

    # What identifies the elements of a conversation

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """Return the conversation's elements at these spans of a request body; spans of what is new are enough.

        Total: whatever stands there has a form. The leading items of role system are the preamble, which is no part of
        the chain: `identity.count_preamble` counts them, in a list that begins where the conversation does.
        """
        return self.reader.read_items(content, spans)

    def read_input(self, member: bytes) -> list[Item]:
        """Return the elements in the raw member under `items_key` where it is no array; most wires have none."""
        return []

    def read_instructions(self, member: bytes) -> bytes:
        """Return what makes the raw member under `instructions_key` the same when it comes again."""
        return b""

    # What messages say

    def decode_message(self, raw: bytes) -> "DecodedMessage":
        """Decode one raw message, or item, of which more than one thing is asked."""
        return DecodedMessage(self, raw)

    def parse_message(self, raw: bytes) -> Message:
        """Return what one raw message, or item, says."""
        return DecodedMessage(self, raw).message

    def parse_structure(self, raw: bytes) -> MessageStructure:
        """Return the structure of one raw message, or item."""
        return DecodedMessage(self, raw).structure

    @abstractmethod
    def _read_structure(
        self, message: Mapping[str, object], markers: tuple[str, ...], says_json: bool
    ) -> MessageStructure:
        """Return the structure of a decoded message, whose cache markers and words were looked for already."""

    @abstractmethod
    def _read_message(self, message: Mapping[str, object]) -> Message:
        """Return what a decoded message says."""

    # Writing messages

    def read_item_kind(self, item: Mapping[str, object]) -> str:
        """Return the kind of a decoded element of the conversation, which on most wires is `message`."""
        return "message"

    def write_message(self, role: str, text: bytes) -> bytes:
        """Return a raw message of a role with a text, given as raw JSON string."""
        return b'{"role":"%b","content":%b}' % (role.encode(), text)

    def write_text_part(self, role: str, text: bytes) -> bytes:
        """Return the raw part of a message of a role that has a text, given as raw JSON string."""
        return b'{"type":"text","text":%b}' % text

    # Requests

    def read_rules(self, body: SplitBody, leading: int = 0, *, is_alternating: bool = False) -> Rules:
        """Return what a request demands of its messages behind the `leading` ones, which always stay.

        The members beside the messages go out as the client sent them; one that cannot be read demands nothing.
        `is_alternating` is what is known of its upstream.
        """
        text = _load(body, "text")  # where the Responses wire has the output format
        wanted = text.get("format") if isinstance(text, dict) else _load(body, "response_format")
        is_json_wanted = isinstance(wanted, dict) and wanted.get("type") == "json_object"
        own = read_markers([{_MARKER: _load(body, _MARKER)}]) if _MARKER in body.members else ()
        return Rules(
            is_itemised=self.is_itemised,
            is_alternating=is_alternating,
            needs_json=is_json_wanted and not _say_json(body, leading),
            markers=tuple(chain(_read_marked(body, "tools"), _read_marked(body, "system"), own)),
        )

    def find_management(self, body: SplitBody, known: int = 0) -> str:
        """Return what manages the context of a request already, in a few words; empty where nothing does (B7).

        Only what steers is looked at: some members, and of the messages those that have a suspicious word in their
        bytes. The first `known` items are passed over: they were looked at with an earlier request, and nothing was
        found. A person who quotes a ledger does not turn managing off: ours begin with it.
        """
        for name, manages in self.managing_members.items():
            if name in body.members and manages(_load(body, name)):
                return f"the request has {name}"
        if known >= len(body.items):
            return ""
        start, end = body.items[known].start, body.items[-1].end
        # Every word to look for is half a millisecond in a long first request.
        signs = (*_OUR_SIGNS, *_COMPACTION_SIGNS) if self.has_compaction else _OUR_SIGNS
        found = [at for sign in signs if (at := body.content.find(sign, start, end)) >= 0]
        first = min(found, default=end)
        for span in body.items[known:] if found else ():
            raw = body.content[span.start : span.end]
            is_suspicious = span.end > first and any(sign in raw for sign in (*_OUR_SIGNS, *_COMPACTION_SIGNS))
            if is_suspicious and (managing := self._find_managing_message(raw)):
                return managing
        return ""

    def _find_managing_message(self, raw: bytes) -> str:
        message = self.parse_message(raw)
        if message.role in ("user", "assistant") and LEDGER_HEAD in message.text.partition("\n")[0]:
            return "the messages have a ledger of palimpsest"
        if message.role in ("user", "tool") and (_PRUNED.match(message.text) or _FILE.match(message.text)):
            return "the messages have references of palimpsest"
        # a provider's own compaction is an item, or a part of a message
        value = load_lenient(raw)
        parts = [value, *read_objects(value.get("content"))] if isinstance(value, dict) else []
        is_compacted = any(read_text(part.get("type")) in _COMPACTIONS for part in parts)
        return "the messages have a compaction" if is_compacted else ""


class DecodedMessage:
    """One raw message, or item, decoded once; what is asked of it is read from the decoded value when it is asked.

    Text is looked at only where a plan is made, and content only where a message is counted for the first time, so
    neither is read before.
    """

    __slots__ = ("_format", "_raw", "_value")

    def __init__(self, form: Format, raw: bytes) -> None:
        self._format = form
        self._raw = raw
        try:
            self._value = load_json(raw)
        except JSON_ERRORS:
            self._value = raw.decode(errors="replace")

    @property
    def structure(self) -> MessageStructure:
        """Its structure. What cannot be read has the role "" and a flaw.

        Flaws are strict, since they count only against what we wrote ourselves: whatever the client sent is the
        upstream's to judge.
        """
        value, raw = self._value, self._raw
        if not isinstance(value, dict):
            return MessageStructure("", flaws=("unreadable",))
        # Most messages are a text, which need not be searched for a word that may be in it.
        if not (isinstance(value.get("content"), list) or value.get("tool_calls")):
            markers = tuple(find_markers(value)) if _MARKER in value else ()
        else:  # a name may be written with escapes
            markers = tuple(find_markers(value)) if b"cache_control" in raw or b"\\u" in raw else ()
        return self._format._read_structure(value, markers, b"json" in raw.lower())

    @property
    def message(self) -> Message:
        """What it says. What cannot be read, or is nested too deeply, is its own text.

        Text is what a person would read: results of tools in any form, words of user and assistant, JSON where there is
        nothing plainer. Reasoning is none, and media are described in words.
        """
        value = limit_depth(self._value, self._raw)
        if not isinstance(value, dict):
            return Message(self.structure.role, value if isinstance(value, str) else format_json(value))
        return self._format._read_message(value)

    @property
    def content(self) -> CountedContent:
        """What of it costs tokens."""
        return read_counted_content(limit_depth(self._value, self._raw))


def _say_json(body: SplitBody, leading: int) -> bool:
    """Return whether one of the leading messages has the word that the output format wants said."""
    return any(b"json" in body.content[span.start : span.end].lower() for span in body.items[:leading])


def _read_marked(body: SplitBody, name: str) -> tuple[str, ...]:
    """Return the markers in a member, decoded only where there may be some: tools are long, and always there."""
    raw = body.member(name)
    # a name may be written with escapes
    return read_markers(_load(body, name)) if _MARKER.encode() in raw or b"\\u" in raw else ()


def _load(body: SplitBody, name: str) -> object:
    """Return a member's value; None where it is absent, null or unreadable, which is the upstream's to judge."""
    if name not in body.members:
        return None
    try:
        return load_json(body.member(name))
    except JSON_ERRORS:
        return None
