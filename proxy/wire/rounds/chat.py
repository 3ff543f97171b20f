"""Calls of our tool inside responses of Chat Completions.

The client gets the id, time and model of the first round in all chunks, and one role. Text of several rounds is one
text, a delta after a delta. Structured reasoning, which providers sign, is withheld in later rounds: its blocks have
indexes that begin again in each round. Plain reasoning is not signed and passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from proxy.model.manifest import compute_digest
from proxy.wire.body import SplitBody
from proxy.wire.chat_completions import ChatCompletions, join_name
from proxy.wire.json_values import (
    change_members,
    encode_text,
    encode_value,
    join_array,
    list_elements,
    load_lenient,
    read_member,
    read_object,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.rounds.stitching import (
    END,
    EventBlock,
    OutputNames,
    OwnCall,
    OwnResult,
    RoundEnd,
    RoundStitcher,
    add_earlier,
    cut_blocks,
    is_named,
    may_begin,
    read_name,
    spell_arguments,
)
from proxy.wire.rounds.tool import OwnTool, RoundWire
from proxy.wire.streams import read_events, set_members

_USAGE = OutputNames("completion_tokens", "completion_tokens_details", "total_tokens")
_HEAD = ("id", "created", "model")
_SIGNED = ("reasoning_details", "thinking_blocks")
_PLAIN_REASONING = ("reasoning_content", "reasoning")
_OF_CALLS = frozenset({"tool_calls", "function_call"})
_FREE = (b"", b"null", b'"auto"', b'"required"')
_UNSET = (b"", b"null", b"[]", b"false")
_UNUSED = (b"null", b"[]")
_STOP = b'"stop"'


class _ChatRounds(RoundWire):
    """Chat Completions."""

    form = ChatCompletions()
    result_key = b'"tool_call_id"'

    def make_stitcher(
        self, tool: str, *, is_stream: bool, binds_reasoning: bool, is_stored: bool = False, echo: bytes = b""
    ) -> RoundStitcher:
        options = {"binds_reasoning": binds_reasoning, "is_stored": is_stored}
        return _ChatStitcher(self, tool, is_stream=is_stream, echo=echo, **options)

    def read_round(self, tool: str, received: bytes, *, is_stream: bool) -> RoundEnd:
        if is_stream:
            answer = self.form.read_events(read_events(received))
            message = next((each.get("message") for each in read_objects(answer.value.get("choices"))), None)
            raw = encode_value(_join_thinking(message)) if isinstance(message, dict) else b""
        else:
            answer = self.read_body(received)
            raw = _find_message(received)
        raw, own, others = _spell_message(raw, tool)
        return self.make_end(answer, (raw,) if raw else (), own, others)

    # Requests

    def list_names(self, tool: Mapping[str, object]) -> list[str]:
        return [read_name(tool.get(kind)) for kind in ("function", "custom")]

    def spell_tool(self, tool: OwnTool) -> bytes:
        return b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}' % tool.spell()

    def find_obstacle(self, body: SplitBody) -> str:
        if body.member("n") not in (*_UNSET, b"1"):
            return "the request asks for several alternatives"
        if body.member("audio") not in _UNSET or b'"audio"' in body.member("modalities"):
            return "the request asks for audio"
        if body.member("functions") not in _UNSET or body.member("function_call") not in _UNSET:
            return "the request has functions in their older form"
        return ""

    def is_choice_free(self, body: SplitBody) -> bool:
        return body.member("tool_choice") in _FREE

    def forbid_calls(self) -> bytes:
        return b'"none"'

    def spell_results(self, results: Sequence[OwnResult]) -> list[bytes]:
        return [
            b'{"role":"tool","tool_call_id":%b,"content":%b}' % (encode_text(each.id), encode_text(each.text))
            for each in results
        ]

    def rename_calls(self, answer: Sequence[bytes], tool: str, ids: Iterator[str]) -> tuple[bytes, ...]:
        return tuple([_rename_calls(raw, tool, ids) for raw in answer])

    def drop_calls(self, answer: Sequence[bytes], tool: str, answered: frozenset[str]) -> tuple[bytes, ...]:
        return tuple([kept for raw in answer if (kept := _drop_calls(raw, tool, answered))])


def _rename_calls(raw: bytes, tool: str, ids: Iterator[str]) -> bytes:
    def change(name: str, value: bytes) -> bytes | None:
        if name != "tool_calls":
            return value
        calls = list_elements(value)
        return join_array(
            [
                set_member(each, "id", encode_text(next(ids))) if _is_own(load_lenient(each), tool) else each
                for each in calls
            ]
        )

    return change_members(raw, change)


def _find_message(body: bytes) -> bytes:
    choice = next(iter(list_elements(read_member(body, "choices") or b"[]")), b"{}")
    message = read_member(choice, "message")
    return message if message[:1] == b"{" else b""


def _join_thinking(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a streamed message with whole `thinking_blocks`, whose fragments have no index: a signature ends each."""
    fragments = read_objects(message.get("thinking_blocks"))
    if not fragments:
        return message
    blocks: list[dict[str, object]] = []
    is_open = False
    for fragment in fragments:
        is_text = read_text(fragment.get("type")) != "redacted_thinking"
        if is_open and is_text:
            said = read_text(blocks[-1].get("thinking")) + read_text(fragment.get("thinking"))
            set_members(blocks[-1], {**fragment, "thinking": said})
        else:
            blocks.append(fragment)
        is_open = is_text and not fragment.get("signature")
    return {**message, "thinking_blocks": blocks}


def _is_own(call: object, tool: str) -> bool:
    return isinstance(call, Mapping) and is_named(read_name(call.get("function")), tool)


def _spell_message(raw: bytes, tool: str) -> tuple[bytes, tuple[OwnCall, ...], int]:
    """Return a message as requests have it, the calls of our tool in it, and the number of the others.

    Members that are not set are left out, and indexes of calls. Calls of ours without an id get one.
    """
    own: list[OwnCall] = []
    others = 0

    def change(name: str, value: bytes) -> bytes | None:
        nonlocal others
        if value in _UNUSED and name != "content":
            return None
        if name != "tool_calls":
            return value
        calls = []
        for place, each in enumerate(list_elements(value)):
            call, read = (
                change_members(each, lambda inner, value: None if inner == "index" else value),
                load_lenient(each),
            )
            if isinstance(read, dict) and _is_own(read, tool):
                call_id = read_text(read.get("id")) or _make_id(raw, place)
                function = read.get("function")
                arguments = function.get("arguments") if isinstance(function, dict) else None
                said = arguments if isinstance(arguments, str) else encode_value(arguments or {}).decode()
                own.append(OwnCall(call_id, said))
                called = set_member(read_member(call, "function"), "arguments", encode_text(spell_arguments(said)))
                called = called if read_name(function) == tool else set_member(called, "name", encode_text(tool))
                call = set_member(set_member(call, "id", encode_text(call_id)), "function", called)
            else:
                others += 1
            calls.append(call)
        return join_array(calls)

    spelled = change_members(raw, change) if raw else raw
    return spelled, tuple(own), others


def _make_id(raw: bytes, place: int) -> str:
    """Return an id that all providers take: nine letters and digits."""
    return compute_digest(b"%d %b" % (place, raw)).hex()[:9]


def _drop_calls(raw: bytes, tool: str, answered: frozenset[str]) -> bytes:
    """Return a message without the calls of our tool that have no answer; empty if it has nothing else."""

    def change(name: str, value: bytes) -> bytes | None:
        if name != "tool_calls":
            return value
        calls = [each for each in list_elements(value) if not _is_unanswered(load_lenient(each), tool, answered)]
        return join_array(calls) if calls else None

    kept = change_members(raw, change) if tool.encode() in raw else raw
    message = read_object(kept.decode(errors="replace")) or {}
    return kept if message.get("content") or message.get("tool_calls") else b""


def _is_unanswered(call: object, tool: str, answered: frozenset[str]) -> bool:
    return isinstance(call, dict) and _is_own(call, tool) and read_text(call.get("id")) not in answered


class _ChatStitcher(RoundStitcher):
    """Stitches chunks, or completions."""

    telling = (b'"tool_calls"', b'"role"')
    awaited = b'"name"'
    _has_role = False
    _head: Mapping[str, bytes] = MappingProxyType({})  # what identifies the response, from the first round

    def _begin(self) -> None:
        self._calls: dict[
            int, tuple[str, bool]
        ] = {}  # by place: the id of the newest call there, and whether it is ours
        self._queue: list[EventBlock] = []  # calls whose names may still become ours
        self._own_places: set[int] = set()
        self._own_names: set[int] = set()  # places of calls of ours whose names come in pieces
        self._client_places: set[int] = set()
        self._last_place = 0

    @property
    def _is_hiding(self) -> bool:
        return bool(self._own_places) and not self._client_places

    def _opens(self, event: EventBlock) -> bool:
        return any(is_named(name, self._tool) for name in self._read_names(event).values())

    def _must_wait(self, event: EventBlock) -> bool:
        """Return whether the name of a call that begins with an event, or in those that wait, may still become ours."""
        if not event.data:
            return bool(self._waiting or self._queue)  # a comment
        if not (self._waiting or self._queue or self.awaited in event.raw):
            return False
        calls = _list_calls(event)
        is_named_only = bool(calls) and not any([_has_arguments(call) for call in calls])
        return is_named_only and any(may_begin(name, self._tool) for name in self._read_names(event).values())

    def _read_names(self, event: EventBlock) -> Mapping[int, str]:
        """Return the names of the calls in an event and in those that wait for it, by place."""
        names: dict[int, str] = {}
        for each in (*map(EventBlock, cut_blocks(self._waiting)), *self._queue, event):
            for call in _list_calls(each):
                index = call.get("index")
                place = index if type(index) is int else max(names, default=self._last_place)
                call_id, name = read_text(call.get("id")), read_name(call.get("function"))
                if call_id or name or place in names:
                    names[place] = join_name("" if call_id else names.get(place, ""), name)
        return names

    def _flush(self) -> bytes:
        queue, self._queue = self._queue, []
        return b"".join(map(self._rewrite_now, queue))

    def _rewrite(self, event: EventBlock) -> bytes:
        if self._must_wait(event):
            self._queue.append(event)
            return b""
        if not self._queue:
            return self._rewrite_now(event)
        names = self._read_names(event)
        self._own_names = {place for place, name in names.items() if is_named(name, self._tool)}
        written = self._flush() + self._rewrite_now(event)
        self._own_names = set()
        return written

    def _rewrite_now(self, event: EventBlock) -> bytes:
        if event.data.startswith(END):
            return self._withhold(event) if self._is_hiding else event.raw
        chunk = event.value
        if chunk is None:
            return event.raw
        choices = read_objects(chunk.get("choices"))
        if not self._head and chunk.get("id"):
            self._head = {name: raw for name in _HEAD if (raw := read_member(event.data, name))}
        kept = [self._place_calls(read_objects(_read_delta(choice).get("tool_calls"))) for choice in choices]
        has_own = any(None in each for each in kept)
        is_end = any(choice.get("finish_reason") for choice in choices) or (not choices and bool(chunk.get("usage")))
        is_withheld = is_end and self._is_hiding
        is_moved = bool(self._own_places) and any(kept)  # calls of the client behind one of ours
        if not (has_own or is_moved or is_withheld or self._round):
            self._has_role = self._has_role or any(_read_delta(choice).get("role") for choice in choices)
            return event.raw
        if is_withheld:
            self._withhold(EventBlock(event.replace_data(_empty_deltas(event.data))))
        if (has_own or is_withheld) and not any(map(self._says_more, choices, kept)):
            return b""
        said = event.replace_data(self._edit(event.data, kept, without_end=is_withheld))
        self._has_role = self._has_role or any(_read_delta(choice).get("role") for choice in choices)
        return said

    def _place_calls(self, fragments: Sequence[Mapping[str, object]]) -> list[int | None]:
        """Return the client's index of each fragment of a call, or None if it is of a call of ours."""
        return [self._place_call(fragment) for fragment in fragments]

    def _place_call(self, fragment: Mapping[str, object]) -> int | None:
        index, call_id = fragment.get("index"), read_text(fragment.get("id"))
        name = read_name(fragment.get("function"))
        place = self._last_place = index if type(index) is int else self._last_place
        known = self._calls.get(place)
        # As the format reads them: some servers give all calls the index 0, others none, or an id to each fragment.
        is_other = known is not None and bool(call_id) and call_id != known[0]
        if known is None or (is_other and (index is None or (known[0] and name))):
            known = self._calls[place] = (call_id, place in self._own_names or is_named(name, self._tool))
            (self._own_places if known[1] else self._client_places).add(place)
        return None if known[1] else place - sum(own < place for own in self._own_places - self._client_places)

    def _says_more(self, choice: Mapping[str, object], kept: Sequence[int | None]) -> bool:
        """Return whether a chunk has something for the client beside calls of ours and its end."""
        delta = _read_delta(choice)
        if any(place is not None for place in kept):
            return True
        unsaid = {"role", "tool_calls", *(_SIGNED if self._round else ())}
        return any(value for name, value in delta.items() if name not in unsaid)

    def _edit(self, data: bytes, kept: Sequence[Sequence[int | None]], *, without_end: bool) -> bytes:
        """Return a chunk as the client gets it."""

        def change(name: str, value: bytes) -> bytes | None:
            if name == "choices":
                choices = list_elements(value)
                places = [*kept, *([[]] * (len(choices) - len(kept)))]
                return join_array(
                    [self._edit_choice(*each, without_end=without_end) for each in zip(choices, places, strict=True)]
                )
            if name == "x_groq":
                return change_members(value, change_usage)
            return self._head.get(name) or change_usage(name, value) if self._round else change_usage(name, value)

        def change_usage(name: str, value: bytes) -> bytes | None:
            return value if name != "usage" else None if without_end else self._edit_usage(value)

        return change_members(data, change)

    def _edit_choice(self, raw: bytes, places: Sequence[int | None], *, without_end: bool) -> bytes:
        def change(name: str, value: bytes) -> bytes | None:
            if name in ("delta", "message"):
                return self._edit_delta(value, places)
            if without_end:
                return b"null" if name == "finish_reason" else None if name == "usage" else value
            return self._edit_usage(value) if name == "usage" else value

        return change_members(raw, change)

    def _edit_delta(self, raw: bytes, places: Sequence[int | None]) -> bytes:
        def change(name: str, value: bytes) -> bytes | None:
            if name == "tool_calls":
                fragments = [
                    _set_index(fragment, place)
                    for fragment, place in zip(list_elements(value), places, strict=False)
                    if place is not None
                ]
                return join_array(fragments) if fragments else None
            is_repeated = name == "role" and self._has_role
            return None if self._round and (is_repeated or name in _SIGNED) else value

        return change_members(raw, change)

    def _edit_usage(self, raw: bytes) -> bytes:
        return add_earlier(raw, self._earlier, _USAGE) if raw[:1] == b"{" else raw

    def _close_event(self, event: EventBlock) -> bytes:
        if event.value is None:
            return event.raw
        data = self._edit(event.data, [], without_end=False)

        def change(name: str, value: bytes) -> bytes | None:
            if name == "choices":
                return join_array([change_members(each, change) for each in list_elements(value)])
            return _STOP if name == "finish_reason" and _ends_with_calls(value) else value

        return event.replace_data(change_members(data, change))

    def _write_body(self) -> bytes:
        body = self._bodies[-1] if self._bodies else b""
        message = _find_message(body)
        if self._is_untouched or not message:
            return body
        calls = list_elements(read_member(message, "tool_calls") or b"[]")
        kept = [each for each in calls if not _is_own(load_lenient(each), self._tool)]

        def change(name: str, value: bytes) -> bytes | None:
            if name == "tool_calls":
                return join_array(kept) if kept else None
            return None if name in _SIGNED and self._round else value

        said, messages = change_members(message, change), list(map(_find_message, self._bodies))
        for name in ("content", *_PLAIN_REASONING):
            if contents := [raw for each in messages if (raw := read_member(each, name))]:
                said = set_member(said, name, _join_contents(contents))
        for name in _SIGNED:  # of the first round alone
            if self._round and (raw := read_member(messages[0], name)):
                said = set_member(said, name, raw)
        return self._write_choice(body, said, is_hidden=bool(calls) and not kept)

    def _write_choice(self, body: bytes, message: bytes, *, is_hidden: bool) -> bytes:
        def change(name: str, value: bytes) -> bytes | None:
            if name == "choices":
                first, *more = list_elements(value)
                return join_array([change_members(first, change_choice), *more])
            if name == "usage":
                return self._edit_usage(value)
            return read_member(self._bodies[0], name) or value if name in _HEAD else value

        def change_choice(name: str, value: bytes) -> bytes | None:
            if name == "finish_reason" and is_hidden and _ends_with_calls(value):
                return _STOP
            return message if name == "message" else value

        return change_members(body, change)


def _list_calls(event: EventBlock) -> list[Mapping[str, object]]:
    """Return the fragments of calls in an event."""
    choices = read_objects((event.value or {}).get("choices"))
    return [call for choice in choices for call in read_objects(_read_delta(choice).get("tool_calls"))]


def _has_arguments(call: Mapping[str, object]) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("arguments"))


def _read_delta(choice: Mapping[str, object]) -> Mapping[str, object]:
    delta = choice.get("delta") or choice.get("message")
    return delta if isinstance(delta, dict) else {}


def _ends_with_calls(raw: bytes) -> bool:
    return load_lenient(raw) in _OF_CALLS


def _set_index(fragment: bytes, place: int) -> bytes:
    index = read_member(fragment, "index")
    return set_member(fragment, "index", b"%d" % place) if index.isdigit() and int(index) != place else fragment


def _empty_deltas(data: bytes) -> bytes:
    """Return a chunk that says nothing but its end."""

    def change(name: str, value: bytes) -> bytes | None:
        if name == "choices":
            return join_array([change_members(each, change) for each in list_elements(value)])
        return b"{}" if name in ("delta", "message") else value

    return change_members(data, change)


def _join_contents(contents: Sequence[bytes]) -> bytes:
    """Return the content of several messages as one: strings joined, or a list of parts."""
    said = [content for content in contents if content not in (b"null", b'""', b"[]")]
    if not said:
        return contents[-1]
    if all(content[:1] == b'"' for content in said):
        return b'"%b"' % b"".join(content[1:-1] for content in said)
    parts = [
        part
        for content in said
        for part in (list_elements(content) if content[:1] == b"[" else [b'{"type":"text","text":%b}' % content])
    ]
    return join_array(parts)


CHAT: RoundWire = _ChatRounds()
"""Our tool in this format."""
