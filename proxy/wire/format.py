"""The base class of wire formats: everything the proxy has to know of one API."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from proxy.model.card import UNASKED, CacheTerms
from proxy.model.epoch import ClearedContext, ClearingTerms
from proxy.model.exchange import Answer, Headers, MissCause
from proxy.model.memory import EPISODIC_HEAD, RECENT_HEAD, SEMANTIC_HEAD
from proxy.model.messages import LEDGER_HEAD, CountedContent, Message, MessageStructure
from proxy.wire.body import ByteRange, SplitBody
from proxy.wire.identity import Item, ItemReader
from proxy.wire.json_values import (
    JSON_ERRORS,
    encode_text,
    encode_value,
    format_json,
    join_array,
    limit_depth,
    list_elements,
    load_json,
    load_lenient,
    read_member,
    read_object,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.messages import (
    CACHE_MARKER,
    THINKING,
    find_markers,
    identify_reminder,
    list_markers,
    read_counted_content,
    read_markers,
)
from proxy.wire.streams import ServerEvent
from proxy.wire.validity import Rules

DEFAULT_LIFETIME = "5m"
"""The lifetime of a cache marker that states none."""

CACHE_MEMBER = "cache_control"
"""The member that marks a block, or a whole request, which stands for its last block."""

_CACHE_OPTIONS, _CACHE_RETENTION = "prompt_cache_options", "prompt_cache_retention"
_OUR_HEADS = (EPISODIC_HEAD, SEMANTIC_HEAD, RECENT_HEAD)
_OUR_SIGNS = (LEDGER_HEAD.encode(), b'"[tool: ', b'"[FILE: ', *(b'"%b' % head.encode() for head in _OUR_HEADS))
COMPACTION_SIGNS = (b'"compaction', b'"context_compaction"')
"""How the names of compactions begin that a provider may put into messages."""
_COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
# As `context/references` writes them.
_PRUNED = re.compile(
    r"\[tool: (?:(?! — output pruned; completed)[^\n])*+ — output pruned; completed[^\n]*; ref:[a-z2-7]{10}\]"
)
_FILE = re.compile(r"\[FILE: [^\n]*\]\nref:[a-z2-7]{10} · ")


def is_set(value: object) -> bool:
    """Return whether a member is set: not null, false or empty."""
    return bool(value)


MANAGING_MEMBERS: Mapping[str, Callable[[object], bool]] = {
    "context_management": is_set,
    "truncation": lambda value: value == "auto",
    "transforms": is_set,
    "cached_content": is_set,
    "cachedContent": is_set,
    "background": is_set,
}
"""Request members of any API that turn on context management by others, each with a test for such values."""


CACHED_PARAMETERS = (
    *("tool_choice", "parallel_tool_calls", "thinking", "reasoning", "reasoning_effort", "output_config", "effort"),
    *("response_format", "output_format", "text", "verbosity", "speed", "service_tier"),
)
"""Request members of any API, beside the prompt, on which providers' caches may depend."""


# Anthropic's `cache_miss_reason`. OpenAI's diagnostics name what differs in words of their own.
_TOLD: tuple[tuple[str, MissCause], ...] = (
    ("model", "model"),
    ("tool", "tools"),
    ("system", "system"),
    ("instruction", "system"),
    ("message", "message"),
    ("input", "message"),
    ("setting", "parameters"),
    ("parameter", "parameters"),
)


def read_diagnosis(answer: Mapping[str, object]) -> MissCause | Literal[""]:
    """Return why the cache missed according to the provider; empty if its response (`Answer.value`) does not say."""
    own, other = answer.get("diagnostics"), answer.get("prompt_cache_diagnostics")
    found: object = None
    if isinstance(own, dict):
        found = own.get("cache_miss_reason")
    elif isinstance(other, dict) and other.get("type") == "cache_miss":
        found = other.get("reason")
    text = read_text(found.get("type")) if isinstance(found, dict) else read_text(found)
    if text in ("", "previous_message_not_found"):
        return ""
    return next((cause for word, cause in _TOLD if word in text), "")


class Format(ABC):
    """One API's format. To add a wire, write one subclass and list it in `proxy.wire.FORMATS`.

    `name` is also the format's name in the log and in the settings. `end_marker` matches, in raw bytes, at a line that
    ends a stream as a whole.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # as people say it
    short_name: ClassVar[str]  # as programs say it
    api: ClassVar[str] = "openai"  # whose API it is, where nothing else tells
    path_ending: ClassVar[str]  # the end of the paths at which the API is served
    count_ending: ClassVar[str] = ""  # the end of the paths at which an upstream counts the tokens of a request
    items_key: ClassVar[str]  # the top-level array member that holds the conversation
    instructions_key: ClassVar[str] = ""  # the top-level member with the system prompt, empty if it is a message
    previous_key: ClassVar[str] = ""  # the member that names a stored response to continue from, if there is one
    reference_sign: ClassVar[bytes] = b""  # in each element that names a stored one, if there are such
    end_marker: ClassVar[re.Pattern[bytes]]
    limit_keys: ClassVar[tuple[str, ...]]  # the members with the limit of the output, that of newer models first
    own_members: ClassVar[Mapping[str, object]] = {}  # members that a request of ours has besides
    own_headers: ClassVar[Headers] = ()  # headers that the API demands, where no request of a client has them
    has_compaction: ClassVar[bool] = False  # whether some provider compacts a conversation itself
    goes_on: ClassVar[bool] = False  # whether a history that ends with an answer asks for more of that answer
    is_itemised: ClassVar[bool] = False  # whether calls, texts and reasoning are items of their own
    takes_markers: ClassVar[bool] = True  # whether messages may have cache markers
    foreign_signs: ClassVar[tuple[bytes, ...]] = COMPACTION_SIGNS  # in messages that a provider keeps or has compacted
    managing_members: ClassVar[Mapping[str, Callable[[object], bool]]] = MANAGING_MEMBERS
    limit_headers: ClassVar[tuple[bytes, ...]] = ()  # request headers that change a model's window
    clearing_key: ClassVar[str] = ""  # the member that asks the provider to clear context, and tells what was cleared
    clearing_beta: ClassVar[bytes] = b""  # how the value in `anthropic-beta` begins that goes with it
    clearing_sign: ClassVar[bytes] = b""  # in each event of a stream that tells what was cleared
    signed_names: ClassVar[tuple[bytes, ...]] = ()  # one of them is in each message with signed reasoning
    reader: ClassVar[ItemReader[Any]]  # reads what identifies a message

    # Responses

    @abstractmethod
    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """Return the response in a non-streamed body."""

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """Return the response in the events of a stream, which may be incomplete. Their values are used up."""
        value, is_ended, error = self._assemble(events)
        answer = self.read_answer(value)
        return replace(answer, is_ended=is_ended, error=error or answer.error)

    @abstractmethod
    def _assemble(self, events: Iterable[ServerEvent]) -> tuple[dict[str, object], bool, str]:
        """Assemble events into the shape of a non-streamed response.

        Return it, whether the format's own end marker was seen, and the message of an error event, if any.
        """

    @abstractmethod
    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """Return, for each alternative of a response (`Answer.value`), the items that a client adds to its history.

        `read_items` returns the same forms for what the client sends. An error has no alternatives.
        """

    def spell_error(self, error: Mapping[str, object], number: int) -> bytes:
        """Return an error as an event of a stream, the event with this number. It has a type and a message."""
        return b"data: %b\n\n" % encode_value({"error": error})

    @abstractmethod
    def list_echoes(self, answer: bytes) -> list[bytes]:
        """Return the raw elements that a client adds to its conversation for a raw response (`Answer.value`)."""

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """Return the ids by which later requests may refer to the items of a response; most formats have none."""
        return ()

    # What identifies the elements of a conversation

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """Return the conversation's elements at these spans of a request body, which may be those of new ones only.

        Never raises: every element has a form. The leading items of role system are the preamble, which is not part of
        the chain. `identity.count_preamble` counts them, in a list that begins with the conversation.
        """
        return self.reader.read_items(content, spans)

    def read_input(self, member: bytes) -> list[Item]:
        """Return the elements in the raw member under `items_key` if it is not an array; most formats have none."""
        return []

    def read_instructions(self, member: bytes) -> bytes:
        """Return the normal form of the raw member under `instructions_key`, by which it is recognised."""
        return b""

    # What messages say

    def decode_message(self, raw: bytes) -> "DecodedMessage":
        """Decode one raw message, or item, once, to read several things from it."""
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
        """Return the structure of a decoded message, given its cache markers and whether it has the word "json"."""

    @abstractmethod
    def _read_message(self, message: Mapping[str, object]) -> Message:
        """Return what a decoded message says."""

    def strip_reasoning(self, raw: bytes) -> bytes:
        """Return a raw message, or item, without the reasoning that is signed (`MessageStructure.signed`).

        One that has none is returned as it is. One that has nothing else says that its reasoning was removed.
        """
        return raw

    def is_reference(self, item: Mapping[str, object]) -> bool:
        """Return whether a decoded element only names what the provider stores; in most formats none does."""
        return False

    def detach(self, raw: bytes) -> bytes:
        """Return a raw item without its own id (`MessageStructure.item_id`)."""
        return raw

    # Writing messages

    def read_item_kind(self, item: Mapping[str, object]) -> str:
        """Return the kind of a decoded element of the conversation, which in most formats is `message`."""
        return "message"

    def write_message(self, role: str, text: bytes) -> bytes:
        """Return a raw message with a role and a text, which is given as a raw JSON string."""
        return b'{"role":"%b","content":%b}' % (role.encode(), text)

    def replace_output(self, raw: bytes, item: Mapping[str, object], text: str) -> bytes:
        """Return a raw item that is no message with a text in place of its output, in the shape that it has.

        `item` is the same, decoded. One whose output has to keep its shape is returned as it is.
        """
        return raw

    def append_output(self, raw: bytes, line: bytes) -> bytes:
        """Return a raw message, or item, with a text behind the newest tool's output in it.

        The text is a raw JSON string. An output that cannot have it stays as it is.
        """
        return self.append_text(raw, "content", line)

    def append_text(self, raw: bytes, name: str, text: bytes) -> bytes:
        """Return a raw object with a text behind the one, or the parts, in this member."""
        content = read_member(raw, name)
        if content[:1] == b'"':
            return set_member(raw, name, content[:-1] + text[1:])
        if content[:1] != b"[":
            return raw
        return set_member(raw, name, join_array([*list_elements(content), self.write_text_part("tool", text)]))

    def write_text_part(self, role: str, text: bytes) -> bytes:
        """Return a raw text part for a message of a role; the text is given as a raw JSON string."""
        return b'{"type":"text","text":%b}' % text

    def set_marker(self, raw: bytes, lifetime: str) -> bytes:
        """Return a raw message with a cache marker at its last part; empty if that part cannot have one."""
        limit = b"" if lifetime == DEFAULT_LIFETIME else b',"ttl":%b' % encode_text(lifetime)
        marker, content = b'{"type":"ephemeral"%b}' % limit, read_member(raw, "content")
        if content[:1] == b'"' and content != b'""':
            part = set_member(b'{"type":"text","text":%b}' % content, CACHE_MEMBER, marker)
            return set_member(raw, "content", join_array([part]))
        parts = list_elements(content) if content[:1] == b"[" else []
        last = read_object(parts[-1].decode(errors="replace")) if parts else None
        if not last or read_text(last.get("type")) in THINKING or last.get("text") == "":
            return b""
        return set_member(raw, "content", join_array([*parts[:-1], set_member(parts[-1], CACHE_MEMBER, marker)]))

    def set_instructions_marker(self, body: SplitBody, lifetime: str) -> bytes:
        """Return the raw system prompt with a cache marker at its last part; empty if it cannot have one."""
        member = body.member(self.instructions_key)
        marked = self.set_marker(b'{"content":%b}' % member, lifetime) if member else b""
        return read_member(marked, "content") if marked else b""

    def add_needed_headers(self, headers: Headers, body: bytes) -> Headers:
        """Return a request's headers with what a body of ours needs beside what the client sends."""
        return headers

    # Clearing that a client leaves to the provider, and that we do in its place

    def read_clearing(self, body: SplitBody) -> ClearingTerms | None:
        """Return what a request asks the provider to clear. Return None if it asks for nothing, or for more than that.

        Most APIs have no such member.
        """
        return None

    def count_reasoning(self, raw: bytes) -> int:
        """Return the characters of the reasoning in a raw message that the provider may clear, at least 1 if any."""
        return 0

    def add_cleared(self, raw: bytes, terms: ClearingTerms, cleared: ClearedContext) -> bytes:
        """Return a raw response, or the data of an event, with what was cleared, if the API has it there."""
        return raw

    def add_original_count(self, raw: bytes, cleared: int) -> bytes:
        """Return a raw count of tokens with that of the client's own request, from which so many were cleared."""
        return raw

    # Requests

    def read_rules(self, body: SplitBody, leading: int = 0, *, is_alternating: bool = False) -> Rules:
        """Return the rules for a request's messages after the `leading` ones, which are never rewritten.

        The members beside the messages are sent unchanged; one that cannot be read adds no rule. `is_alternating` says
        whether its upstream requires alternating roles.
        """
        text = _load(body, "text")  # where the Responses wire has the output format
        wanted = text.get("format") if isinstance(text, dict) else _load(body, "response_format")
        is_json_wanted = isinstance(wanted, dict) and wanted.get("type") == "json_object"
        return Rules(
            is_itemised=self.is_itemised,
            is_alternating=is_alternating,
            needs_thinking=self.needs_thinking(body),
            needs_json=is_json_wanted and not _say_json(body, leading),
            markers=(*_read_head_markers(body, leading), *_read_own_marker(body)),
        )

    def needs_thinking(self, body: SplitBody) -> bool:
        """Return whether a turn under way, of calls and their results, has to begin with thinking."""
        return False

    def read_cache_terms(self, body: SplitBody, leading: int, markers: Sequence[str] = ()) -> CacheTerms:
        """Return what a request states about caching. `markers` are those of the messages after the `leading` ones."""
        lifetime, is_explicit = _read_cache_options(body)
        return CacheTerms(
            head=_read_head_markers(body, leading),
            messages=(*markers, *_read_own_marker(body)),
            lifetime=lifetime,
            has_leading=leading > 0 or (self.takes_markers and self.instructions_key in body.members),
            is_explicit=is_explicit,
        )

    def read_terms(self, body: SplitBody) -> CacheTerms:
        """Return what a whole request states about caching, all of its markers among those of `messages`, each once.

        Its messages are not read as JSON.
        """
        has_options = _CACHE_OPTIONS in body.members or _CACHE_RETENTION in body.members
        if not has_options and CACHE_MARKER not in body.content:
            return UNASKED
        lifetime, is_explicit = _read_cache_options(body)
        return CacheTerms(messages=list_markers(body.content), lifetime=lifetime, is_explicit=is_explicit)

    def is_aside(self, body: SplitBody) -> bool:
        """Return whether a request says itself that it is no part of the conversation: it asks for a compaction."""
        return False

    def find_management(self, body: SplitBody, known: int = 0) -> str:
        """Return a short description of what already manages the context of a request; empty if nothing does.

        Looks at some members, and at the messages whose bytes contain a suspicious word. Skips the first `known` items,
        in which an earlier request found nothing. A quoted ledger does not count: a message of ours begins with it.
        """
        for name, manages in self.managing_members.items():
            if name in body.members and manages(_load(body, name)):
                return f"the request has {name}"
        if known >= len(body.items):
            return ""
        start, end = body.items[known].start, body.items[-1].end
        # Searching a long first request costs half a millisecond per word.
        signs = (*_OUR_SIGNS, *self.foreign_signs)
        found = [at for sign in signs if (at := body.content.find(sign, start, end)) >= 0]
        first = min(found, default=end)
        for span in body.items[known:] if found else ():
            raw = body.content[span.start : span.end]
            is_suspicious = span.end > first and any(sign in raw for sign in signs)
            if is_suspicious and (managing := self._find_managing_message(raw)):
                return managing
        return ""

    def _find_managing_message(self, raw: bytes) -> str:
        message = self.parse_message(raw)
        if message.role in ("user", "assistant") and LEDGER_HEAD in message.text.partition("\n")[0]:
            return "the messages have a ledger of palimpsest"
        if message.role in ("user", "assistant") and message.text.startswith(_OUR_HEADS):
            return "the messages have memory of palimpsest"
        if message.role in ("user", "tool") and (_PRUNED.match(message.text) or _FILE.match(message.text)):
            return "the messages have references of palimpsest"
        # a provider's own compaction is an item, or a part of a message
        value = load_lenient(raw)
        parts = [value, *read_objects(value.get("content"))] if isinstance(value, dict) else []
        kinds = {read_text(part.get("type")) for part in parts}
        if isinstance(value, dict) and self.is_reference(value):
            return "the messages have references to what the provider stores"
        return "the messages have a compaction" if kinds & _COMPACTIONS else ""


class DecodedMessage:
    """One raw message, or item, decoded once. Its properties are computed on each access.

    Text is needed only to make a plan, and content only to count a message for the first time.
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
        """The structure of the message. An unreadable one has the role "" and a flaw.

        Flaws are strict, since they count only against messages that we wrote: the upstream judges the client's own.
        """
        value, raw = self._value, self._raw
        if not isinstance(value, dict):
            return MessageStructure("", flaws=("unreadable",))
        # Most messages are plain text, which need not be searched for the marker's name.
        if not (isinstance(value.get("content"), list) or value.get("tool_calls")):
            markers = tuple(find_markers(value)) if CACHE_MEMBER in value else ()
        else:  # a name may be written with escapes
            markers = tuple(find_markers(value)) if b"cache_control" in raw or b"\\u" in raw else ()
        structure = self._format._read_structure(value, markers, b"json" in raw.lower())
        if structure.role != "system" or "content" not in value:  # an item that sets something is no reminder
            return structure
        return replace(structure, reminder=identify_reminder(self.message.text))

    @property
    def message(self) -> Message:
        """What the message says. If it is unreadable or nested too deeply, its text is the raw JSON.

        Text is what a person would read: results of tools in any form, words of user and assistant, else JSON. It does
        not include reasoning, and media are described in words.
        """
        value = limit_depth(self._value, self._raw)
        if not isinstance(value, dict):
            return Message(self.structure.role, value if isinstance(value, str) else format_json(value))
        return self._format._read_message(value)

    @property
    def content(self) -> CountedContent:
        """The parts of the message that cost tokens."""
        return read_counted_content(limit_depth(self._value, self._raw))


def _say_json(body: SplitBody, leading: int) -> bool:
    """Return whether one of the leading messages has the word "json", which the JSON output format requires."""
    return any(b"json" in raw.lower() for raw in _list_leading(body, leading))


def _read_cache_options(body: SplitBody) -> tuple[str, bool]:
    """Return the lifetime that a request asks for, empty if none, and whether only marked blocks are to be cached."""
    wanted = _load(body, _CACHE_OPTIONS)
    options = wanted if isinstance(wanted, dict) else {}
    lifetime = read_text(options.get("ttl")) or read_text(_load(body, _CACHE_RETENTION))
    return lifetime, options.get("mode") == "explicit"


def _read_head_markers(body: SplitBody, leading: int) -> tuple[str, ...]:
    """Return the cache markers in what precedes the conversation, in the order in which providers read it."""
    items = [load_lenient(raw) for raw in _list_leading(body, leading) if CACHE_MEMBER.encode() in raw or b"\\u" in raw]
    return (*_read_marked(body, "tools"), *_read_marked(body, "system"), *read_markers(items))


def _list_leading(body: SplitBody, leading: int) -> list[bytes]:
    return [body.content[span.start : span.end] for span in body.items[:leading]]


def _read_own_marker(body: SplitBody) -> tuple[str, ...]:
    """Return the marker of the request as a whole, which stands for one at its last block."""
    return read_markers([{CACHE_MEMBER: _load(body, CACHE_MEMBER)}]) if CACHE_MEMBER in body.members else ()


def _read_marked(body: SplitBody, name: str) -> tuple[str, ...]:
    """Return the cache markers in a member, which is decoded only if it may have some, because tools are long."""
    raw = body.member(name)
    # a name may be written with escapes
    return read_markers(_load(body, name)) if CACHE_MEMBER.encode() in raw or b"\\u" in raw else ()


def _load(body: SplitBody, name: str) -> object:
    """Return a member's value, or None if it is absent, null or unreadable. The upstream judges unreadable ones."""
    if name not in body.members:
        return None
    try:
        return load_json(body.member(name))
    except JSON_ERRORS:
        return None
