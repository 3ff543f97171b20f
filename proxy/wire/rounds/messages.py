"""Calls of our tool inside responses of Anthropic Messages.

Text of several rounds stands in consecutive blocks of one message. Where reasoning is bound to all that precedes it,
that of the first round passes, because the client has what precedes it. That of later rounds is bound to calls and
results that the client never gets: it is withheld. `RoundEnd.answer` has it, so that it is sent back as it came.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import SplitBody
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
from proxy.wire.messages import THINKING
from proxy.wire.rounds.stitching import (
    EventBlock,
    OutputNames,
    OwnCall,
    OwnResult,
    RoundEnd,
    RoundStitcher,
    add_earlier,
    is_named,
    read_name,
)
from proxy.wire.rounds.tool import OwnTool, RoundWire
from proxy.wire.streams import read_events

_USAGE = OutputNames("output_tokens", "output_tokens_details")
# Counts of the prompt. The client was told those of the first round when that began.
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation")
_FREE = frozenset({"auto", "any"})
_CALL, _ENDED = "tool_use", b'"end_turn"'
_BLOCK_EVENTS = frozenset({"content_block_delta", "content_block_stop"})


class _MessagesRounds(RoundWire):
    """Anthropic Messages."""

    form = AnthropicMessages()
    result_key = b'"tool_use_id"'

    def make_stitcher(
        self, tool: str, *, is_stream: bool, binds_reasoning: bool, is_stored: bool = False, echo: bytes = b""
    ) -> RoundStitcher:
        options = {"binds_reasoning": binds_reasoning, "is_stored": is_stored}
        return _MessagesStitcher(self, tool, is_stream=is_stream, echo=echo, **options)

    def read_round(self, tool: str, received: bytes, *, is_stream: bool) -> RoundEnd:
        if is_stream:
            answer = self.form.read_events(read_events(received))
            blocks = list(map(encode_value, read_objects(answer.value.get("content"))))
        else:
            answer = self.read_body(received)
            blocks = list_elements(read_member(received, "content") or b"[]")
        spelled, own, others = _spell_blocks(blocks, tool)
        return self.make_end(answer, _write_answer(spelled), own, others)

    # Requests

    def list_names(self, tool: Mapping[str, object]) -> list[str]:
        return [read_name(tool)]

    def spell_tool(self, tool: OwnTool) -> bytes:
        return b'{"name":%b,"description":%b,"input_schema":%b}' % tool.spell()

    def find_obstacle(self, body: SplitBody) -> str:
        return ""

    def is_choice_free(self, body: SplitBody) -> bool:
        choice = load_lenient(body.member("tool_choice") or b"null")
        return choice is None or (isinstance(choice, dict) and read_text(choice.get("type")) in _FREE)

    def forbid_calls(self) -> bytes:
        return b""

    def spell_results(self, results: Sequence[OwnResult]) -> list[bytes]:
        return [b'{"role":"user","content":%b}' % join_array(_spell_results(results))] if results else []

    def rename_calls(self, answer: Sequence[bytes], tool: str, ids: Iterator[str]) -> tuple[bytes, ...]:
        renamed = []
        for raw in answer:
            blocks = [
                set_member(each, "id", encode_text(next(ids))) if _is_own(load_lenient(each), tool) else each
                for each in list_elements(read_member(raw, "content"))
            ]
            renamed.append(set_member(raw, "content", join_array(blocks)))
        return tuple(renamed)

    def drop_calls(self, answer: Sequence[bytes], tool: str, answered: frozenset[str]) -> tuple[bytes, ...]:
        kept: list[bytes] = []
        for raw in answer:
            blocks = list_elements(read_member(raw, "content"))
            left = [each for each in blocks if not _is_unanswered(load_lenient(each), tool, answered)]
            says_more = any(_read_kind(each) not in THINKING for each in left)
            kept += [set_member(raw, "content", join_array(left)) if len(left) < len(blocks) else raw] * says_more
        return tuple(kept)

    def join_results(self, results: Sequence[OwnResult], following: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the following user message with our results first: all results of a turn stand in one message."""
        if not results or not following or read_member(following[0], "role") != b'"user"':
            return super().join_results(results, following)
        content = read_member(following[0], "content")
        parts = list_elements(content) if content[:1] == b"[" else [b'{"type":"text","text":%b}' % content]
        joined = set_member(following[0], "content", join_array([*_spell_results(results), *parts]))
        return (joined, *following[1:])


def _spell_results(results: Iterable[OwnResult]) -> list[bytes]:
    return [
        b'{"type":"tool_result","tool_use_id":%b,"content":%b}' % (encode_text(each.id), encode_text(each.text))
        for each in results
    ]


def _spell_blocks(blocks: Iterable[bytes], tool: str) -> tuple[list[bytes], tuple[OwnCall, ...], int]:
    """Return blocks as requests have them, the calls of our tool, and the number of the others."""
    spelled: list[bytes] = []
    own: list[OwnCall] = []
    others = 0
    for each in blocks:
        block, raw = read_object(each.decode(errors="replace")) or {}, each
        kind = block.get("type")
        if kind == "text" and not block.get("text"):
            continue  # it is refused in requests
        if kind == _CALL:
            said = block.get("input")
            if is_named(read_name(block), tool):
                own.append(OwnCall(read_text(block.get("id")), _spell_input(said)))
                raw = raw if read_name(block) == tool else set_member(raw, "name", encode_text(tool))
            else:
                others += 1
            raw = raw if isinstance(said, dict) else set_member(raw, "input", b"{}")
        spelled.append(raw)
    return spelled, tuple(own), others


def _spell_input(said: object) -> str:
    return said if isinstance(said, str) else encode_value({} if said is None else said).decode()


def _write_answer(blocks: Sequence[bytes]) -> tuple[bytes, ...]:
    return (b'{"role":"assistant","content":%b}' % join_array(blocks),) if blocks else ()


def _is_unanswered(block: object, tool: str, answered: frozenset[str]) -> bool:
    return _is_own(block, tool) and isinstance(block, dict) and read_text(block.get("id")) not in answered


def _is_own(block: object, tool: str) -> bool:
    return isinstance(block, dict) and block.get("type") == _CALL and is_named(read_name(block), tool)


def _read_kind(block: bytes) -> str:
    return read_text((read_object(block.decode(errors="replace")) or {}).get("type"))


class _MessagesStitcher(RoundStitcher):
    """Stitches events, or messages."""

    telling = (b"content_block_start", b"message_start")
    _next = 0  # the index of the client's next block

    def _begin(self) -> None:
        self._places: dict[int, int | None] = {}  # the client's index of each block; None: it is withheld
        self._last = 0
        self._has_own = self._has_client = False
        self._prompt: Mapping[str, bytes] = {}

    @property
    def _is_hiding(self) -> bool:
        return self._has_own and not self._has_client

    def _opens(self, event: EventBlock) -> bool:
        return _is_own((event.value or {}).get("content_block"), self._tool)

    def _rewrite(self, event: EventBlock) -> bytes:
        sent = event.value
        if sent is None:
            return event.raw
        kind = event.kind
        if kind == "content_block_start":
            return self._start_block(event, sent)
        if kind in _BLOCK_EVENTS:
            return self._place(event, _read_index(sent, self._last))
        if kind == "message_start" and self._round:
            usage = read_member(read_member(event.data, "message"), "usage")
            self._prompt = {name: raw for name in _INPUT if (raw := read_member(usage, name))}
            return b""
        if kind == "message_delta":
            return self._withhold(event) if self._is_hiding else self._edit_delta(event)
        return self._withhold(event) if kind == "message_stop" and self._is_hiding else event.raw

    def _start_block(self, event: EventBlock, sent: Mapping[str, object]) -> bytes:
        index, block = _read_index(sent, self._next), sent.get("content_block")
        is_own = _is_own(block, self._tool)
        self._has_own = self._has_own or is_own
        if isinstance(block, dict) and block.get("type") == _CALL and not is_own:
            self._has_client = True
        self._places[index] = None if is_own or self._withholds(block) else self._take_index()
        return self._place(event, index)

    def _withholds(self, block: object) -> bool:
        return self._round > 0 and self._binds and isinstance(block, dict) and read_text(block.get("type")) in THINKING

    def _take_index(self) -> int:
        self._next += 1
        return self._next - 1

    def _place(self, event: EventBlock, index: int) -> bytes:
        """Return an event of a block with the client's index; nothing if the block is withheld."""
        self._last = index
        if index not in self._places:  # its beginning was lost
            self._places[index] = self._take_index()
        place = self._places[index]
        if place is None:
            return b""
        return event.raw if place == index else event.replace_data(set_member(event.data, "index", b"%d" % place))

    def _edit_delta(self, event: EventBlock) -> bytes:
        """Return the event that ends the message, with what the prompt of this round took and the output of all."""
        if not self._round:
            return event.raw
        usage = read_member(event.data, "usage")
        if usage[:1] != b"{":
            return event.raw
        usage = add_earlier(usage, self._earlier, _USAGE)
        for name, raw in self._prompt.items():
            if read_member(usage, name) in (b"", b"null"):
                usage = set_member(usage, name, raw)
        return event.replace_data(set_member(event.data, "usage", usage))

    def _close_event(self, event: EventBlock) -> bytes:
        edited = EventBlock(self._edit_delta(event))
        return edited.replace_data(_end_turn(edited.data, "delta"))

    def _write_body(self) -> bytes:
        body = self._bodies[-1] if self._bodies else b""
        contents = [read_member(each, "content") for each in self._bodies]
        if self._is_untouched or contents[-1][:1] != b"[":
            return body
        kept: list[bytes] = []
        has_calls = False
        for place, content in enumerate(contents):
            for raw in list_elements(content):
                block = read_object(raw.decode(errors="replace"))
                is_bound = place > 0 and self._binds and _read_kind(raw) in THINKING
                if not (_is_own(block, self._tool) or is_bound):
                    kept.append(raw)
                    has_calls = has_calls or _read_kind(raw) == _CALL
        first = self._bodies[0]

        def change(name: str, value: bytes) -> bytes | None:
            if name == "content":
                return join_array(kept)
            if name == "usage":
                return add_earlier(value, self._earlier, _USAGE) if value[:1] == b"{" else value
            return read_member(first, name) or value if name in ("id", "model") else value

        stitched = change_members(body, change)
        return stitched if has_calls else _end_turn(stitched)


def _read_index(sent: Mapping[str, object], default: int) -> int:
    index = sent.get("index")
    return index if type(index) is int else default


def _end_turn(raw: bytes, container: str = "") -> bytes:
    """Return an object that has no calls left without the reason that it stopped for calls."""
    ended = read_member(raw, container) if container else raw
    if read_member(ended or b"{}", "stop_reason") != b'"tool_use"':
        return raw
    ended = set_member(ended, "stop_reason", _ENDED)
    return set_member(raw, container, ended) if container else ended


MESSAGES: RoundWire = _MessagesRounds()
"""Our tool in this format."""
