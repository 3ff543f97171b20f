"""Calls of our tool inside responses of Responses.

Items of all rounds are items of one response: their indexes and the numbers of events go on from round to round, and
the object that ends the response has all items. Nowhere in it is our tool among the `tools` that it repeats.

The provider ties an item of reasoning, whose content it encrypts, to the item that follows it, and refuses one without
the other. So all events of such an item wait for what follows, and are withheld if that is a call of ours: an item that
is announced is finished. Items behind it then have other ids, because by theirs the provider would look for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from proxy.model.manifest import compute_digest
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
from proxy.wire.responses import Responses
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
    read_name,
    spell_arguments,
)
from proxy.wire.rounds.tool import OwnTool, RoundWire
from proxy.wire.streams import read_events

_USAGE = OutputNames("output_tokens", "output_tokens_details", "total_tokens")
_FREE = (b"", b"null", b'"auto"', b'"required"')
_CALL = "function_call"
_RESPONSE = b'"response"'  # the member of events that repeat the request
# Items that the client has to answer; calls of other kinds are the provider's own.
_CLIENT_CALLS = frozenset(
    {
        _CALL,
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
        "mcp_approval_request",
    }
)
_HEAD = ("id", "created_at", "model", "tool_choice", "max_output_tokens")
_BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PLAIN = "response.reasoning_text.delta"  # of reasoning that is not encrypted

_IsGone = Callable[[Mapping[str, object]], bool]


class _ResponsesRounds(RoundWire):
    """Responses."""

    form = Responses()
    result_key = b'"call_id"'

    def make_stitcher(
        self, tool: str, *, is_stream: bool, binds_reasoning: bool, is_stored: bool = False, echo: bytes = b""
    ) -> RoundStitcher:
        options = {"binds_reasoning": binds_reasoning, "is_stored": is_stored}
        return _ResponsesStitcher(self, tool, is_stream=is_stream, echo=echo, **options)

    def read_round(self, tool: str, received: bytes, *, is_stream: bool) -> RoundEnd:
        if is_stream:
            answer = self.form.read_events(read_events(received))
            items, output = _list_done(received), read_objects(answer.value.get("output"))
            items = items if len(items) >= len(output) else list(map(encode_value, output))
        else:
            answer = self.read_body(received)
            items = list_elements(read_member(received, "output") or b"[]")
        spelled, own, others = _spell_items(items, tool)
        return self.make_end(answer, spelled, own, others)

    # Requests

    def list_names(self, tool: Mapping[str, object]) -> list[str]:
        return [read_name(tool), *map(read_name, read_objects(tool.get("tools")))]

    def spell_tool(self, tool: OwnTool) -> bytes:
        # Without `strict` the provider would demand that all parameters are required.
        return b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":false}' % tool.spell()

    def find_obstacle(self, body: SplitBody) -> str:
        return "the request asks for audio" if b'"audio"' in body.member("modalities") else ""

    def is_choice_free(self, body: SplitBody) -> bool:
        return body.member("tool_choice") in _FREE

    def forbid_calls(self) -> bytes:
        return b'"none"'

    def spell_results(self, results: Sequence[OwnResult]) -> list[bytes]:
        return [
            b'{"type":"function_call_output","call_id":%b,"output":%b}' % (encode_text(each.id), encode_text(each.text))
            for each in results
        ]

    def rename_calls(self, answer: Sequence[bytes], tool: str, ids: Iterator[str]) -> tuple[bytes, ...]:
        return tuple(
            [set_member(raw, "call_id", encode_text(next(ids))) if _is_own(_read(raw), tool) else raw for raw in answer]
        )

    def drop_calls(self, answer: Sequence[bytes], tool: str, answered: frozenset[str]) -> tuple[bytes, ...]:
        return tuple(
            _leave_out(answer, lambda item: _is_own(item, tool) and read_text(item.get("call_id")) not in answered)
        )


def _list_done(stream: bytes) -> list[bytes]:
    """Return the whole items in the events of a stream, as they were sent."""
    found: list[tuple[int, bytes]] = []
    for block in cut_blocks(stream):
        event = EventBlock(block)
        if _DONE.encode() in block and event.kind == _DONE:
            index = (event.value or {}).get("output_index")
            found.append((index if type(index) is int else len(found), read_member(event.data, "item")))
    return [item for _, item in sorted(found, key=lambda each: each[0]) if item[:1] == b"{"]


def _spell_items(items: Iterable[bytes], tool: str) -> tuple[list[bytes], tuple[OwnCall, ...], int]:
    """Return items as requests have them, the calls of our tool, and the number of the others."""
    spelled: list[bytes] = []
    own: list[OwnCall] = []
    others = 0
    for each in items:
        item, raw = _read(each), each
        if _is_own(item, tool):
            arguments = read_text(item.get("arguments"))
            own.append(OwnCall(read_text(item.get("call_id")), arguments))
            spelling = spell_arguments(arguments)
            raw = raw if spelling == arguments else set_member(raw, "arguments", encode_text(spelling))
            raw = raw if read_name(item) == tool else set_member(raw, "name", encode_text(tool))
        else:
            others += read_text(item.get("type")) in _CLIENT_CALLS
        spelled.append(raw)
    return spelled, tuple(own), others


def _read(raw: bytes) -> Mapping[str, object]:
    return read_object(raw.decode(errors="replace")) or {}


def _is_own(item: object, tool: str) -> bool:
    return isinstance(item, Mapping) and item.get("type") == _CALL and is_named(read_name(item), tool)


def _is_tied(item: object) -> bool:
    """Return whether an item is reasoning that the provider reads only together with the item behind it."""
    if not isinstance(item, Mapping) or item.get("type") != "reasoning":
        return False
    return not item.get("content")


def _leave_out(items: Iterable[bytes], is_gone: _IsGone) -> list[bytes]:
    """Return items without those that are gone, and without reasoning that is tied to one of these, or to nothing."""
    kept: list[bytes] = []
    tied: list[bytes] = []
    lacks_calls = has_calls = is_loose = False
    for raw in items:
        item = _read(raw)
        if is_gone(item):
            lacks_calls, is_loose, tied = True, is_loose or bool(tied), []
            continue
        has_calls = has_calls or read_text(item.get("type")) in _CLIENT_CALLS
        kept += tied
        tied = [raw] if _is_tied(item) else []
        is_loose = is_loose and not tied
        kept += [] if tied else [_detach(raw) if is_loose else raw]
    return kept if lacks_calls and not has_calls else [*kept, *tied]


def _detach(item: bytes) -> bytes:
    """Return an item with another id, by which the provider finds no reasoning that it needs."""
    return change_members(item, lambda name, value: _rename(value) if name == "id" else value)


def _rename(id: bytes) -> bytes:
    """Return another raw id of the same kind."""
    kind, _, _ = id.partition(b"_")
    return b'%b_%b"' % (kind, compute_digest(id).hex()[:32].encode()) if kind[:1] == b'"' else id


def _list_items(event: EventBlock) -> Sequence[Mapping[str, object]]:
    """Return the items of an event: the one that it begins or ends, or those of the whole response."""
    sent = event.value or {}
    response = sent.get("response")
    output = response.get("output") if isinstance(response, Mapping) and event.kind in _ENDS else None
    return read_objects([sent.get("item")]) + read_objects(output)


def _is_of_item(sent: Mapping[str, object]) -> bool:
    return "output_index" in sent or "item_id" in sent or "item" in sent


class _ResponsesStitcher(RoundStitcher):
    """Stitches events, or response objects."""

    telling, numbered = (b"output_item", b"response.created", _PLAIN.encode()), b'"sequence_number"'
    awaited = b'"reasoning"'
    _head: Mapping[str, bytes] = MappingProxyType({})
    _next = 0  # the index of the client's next item
    _number = 0  # of the client's next event
    _is_renumbered = False
    _said: tuple[bytes, ...] = ()  # the items of the rounds before that the client gets
    _is_loose = False  # the reasoning before the next item is withheld

    def _begin(self) -> None:
        self._places: dict[object, int | None] = {}  # the client's index of each item; None: it is a call of ours
        self._queue: list[EventBlock] = []  # reasoning that may be withheld, and events behind it
        self._has_own = self._has_client = self._is_loose = False
        self._loose: set[object] = set()  # items behind reasoning that is withheld
        self._is_renumbered = self._round > 0
        self._said = (*self._said, *_leave_out(self._ended.answer, lambda item: _is_own(item, self._tool)))
        self._next = max(self._next, len(self._said))  # some upstreams tell items only at the end

    @property
    def _is_hiding(self) -> bool:
        return self._has_own and not self._has_client

    def _opens(self, event: EventBlock) -> bool:
        return any(_is_own(item, self._tool) for item in _list_items(event))

    def _must_wait(self, event: EventBlock) -> bool:
        return self.awaited in event.raw and event.kind in (_ADDED, _DONE) and any(map(_is_tied, _list_items(event)))

    def _decides(self, event: EventBlock) -> bool:
        return event.kind in _ENDS or self._frees(self._awaiting, event)

    def _frees(self, withheld: EventBlock, event: EventBlock) -> bool:
        """Return whether an event says that withheld reasoning passes: another item follows, or it is not tied."""
        sent = event.value or {}
        if not _is_of_item(sent):
            return False
        if _find_key(sent) != _find_key(withheld.value or {}):
            return True
        return event.kind == _PLAIN or ("item" in sent and not _is_tied(sent["item"]))

    @property
    def next_number(self) -> int:
        return self._number

    @property
    def begun_as(self) -> str:
        return read_text(load_lenient(self._head.get("id", b'""'))) if self._is_stored and self._is_stream else ""

    def _flush(self) -> bytes:
        return self._release(withholds=True)  # the stream broke off

    # Events

    def _rewrite(self, event: EventBlock) -> bytes:
        sent, kind = event.value or {}, event.kind
        if kind in _BEGINNINGS:
            return self._take_beginning(event)
        if kind in _ENDS:
            return self._take_end(event)
        if event.data.startswith(END) and self._is_hiding:
            return self._withhold(event)
        if self._queue and not self._frees(self._queue[0], event):
            self._queue.append(event)
            return b""
        if not _is_of_item(sent):
            return self._emit(event)
        key, written = _find_key(sent), b""
        if self._queue and key == _find_key(self._queue[0].value or {}):
            written = self._release(withholds=False)
        elif kind == _ADDED or key not in self._places:
            if self._must_wait(event):
                written = self._release(withholds=False)
                self._queue.append(event)
                return written
            written = self._place(key, sent.get("item"))
        if self._places[key] is None:
            self._is_renumbered = True
            return written
        return written + self._emit(event)

    def _take_beginning(self, event: EventBlock) -> bytes:
        if self._round:
            return b""
        response = read_member(event.data, "response")
        self._head = {name: raw for name in _HEAD if (raw := read_member(response, name))} or self._head
        return self._emit(EventBlock(self._edit_echo(event)))

    def _take_end(self, event: EventBlock) -> bytes:
        items = _list_items(event)  # of which some upstreams have told nothing before
        self._has_own = self._has_own or any(_is_own(item, self._tool) for item in items)
        self._has_client = self._has_client or any(map(self._is_clients, items))
        if not self._is_hiding:
            return self._release(withholds=False) + self._emit(EventBlock(self._edit_end(event)))
        return self._release(withholds=True) + self._withhold(event)

    def _place(self, key: object, item: object) -> bytes:
        """Give an item the client's index, or none if it is a call of ours. Return what has waited for it."""
        if _is_own(item, self._tool):
            self._has_own, self._places[key] = True, None
            self._is_loose = self._is_loose or bool(self._queue)
            return self._release(withholds=True)
        released = self._release(withholds=False)
        self._has_client = self._has_client or self._is_clients(item)
        if self._is_loose:
            self._loose.add(key)
        self._take_index(key)
        return released

    def _take_index(self, key: object) -> None:
        self._places[key] = self._next
        self._next += 1

    def _is_clients(self, item: object) -> bool:
        """Return whether an item is a call that the client answers."""
        is_call = isinstance(item, Mapping) and read_text(item.get("type")) in _CLIENT_CALLS
        return is_call and not _is_own(item, self._tool)

    def _release(self, *, withholds: bool) -> bytes:
        """Return the events that wait, without those of the reasoning if that is withheld."""
        queue, self._queue = self._queue, []
        if not queue:
            return b""
        if withholds:
            self._is_renumbered = True
            queue = [event for event in queue if not _is_of_item(event.value or {})]
        else:
            self._is_loose = False
            self._take_index(_find_key(queue[0].value or {}))
        return b"".join(map(self._emit, queue))

    def _emit(self, event: EventBlock) -> bytes:
        """Return an event with the client's index of its item, and its own number."""
        sent, data = event.value or {}, event.data
        key = _find_key(sent)
        place, number = self._places.get(key), sent.get("sequence_number")
        if place is not None and sent.get("output_index") not in (None, place):
            data = set_member(data, "output_index", b"%d" % place)
        if key in self._loose:
            data = change_members(
                data, lambda name, raw: _rename(raw) if name == "item_id" else _detach(raw) if name == "item" else raw
            )
        if type(number) is int:
            if self._is_renumbered and number != self._number:
                data, number = set_member(data, "sequence_number", b"%d" % self._number), self._number
            self._number = number + 1
        return event.raw if data is event.data else event.replace_data(data)

    def _close_event(self, event: EventBlock) -> bytes:
        return self._emit(EventBlock(self._edit_end(event)))

    # Response objects

    def _edit_echo(self, event: EventBlock) -> bytes:
        if event.value is None and _RESPONSE in event.data:
            return b""  # it broke off within what may name our tool, and no client reads a part of an event
        response = read_member(event.data, "response")
        stripped = self._strip_tools(response) if response else response
        return event.raw if stripped == response else event.replace_data(set_member(event.data, "response", stripped))

    def _edit_end(self, event: EventBlock) -> bytes:
        response = read_member(event.data, "response")
        edited = self._edit_response(response) if response else response
        return event.raw if edited == response else event.replace_data(set_member(event.data, "response", edited))

    def _strip_tools(self, raw: bytes) -> bytes:
        tools = read_member(raw, "tools")
        if self._name not in tools:
            return raw
        kept = [each for each in list_elements(tools) if read_name(load_lenient(each)) != self._tool]
        return set_member(raw, "tools", self._echo or join_array(kept))

    def _edit_response(self, raw: bytes) -> bytes:
        """Return the object that ends the response: with all items, and the first round's id, model and parameters."""
        edited = self._strip_tools(raw)
        for name, value in self._head.items() if self._round else ():
            edited = edited if name == "id" and self._is_stored else set_member(edited, name, value)
        usage = read_member(edited, "usage")
        if self._round and usage[:1] == b"{":
            edited = set_member(edited, "usage", add_earlier(usage, self._earlier, _USAGE))
        output = list_elements(read_member(edited, "output") or b"[]")
        items = [*self._said, *_leave_out(output, lambda item: _is_own(item, self._tool))]
        # ChatGPT's own backend ends with an empty `output`, because it sent the items before.
        is_told = bool(output) or not self._places
        return set_member(edited, "output", join_array(items)) if is_told and items != output else edited

    def _write_body(self) -> bytes:
        body = self._bodies[-1] if self._bodies else b""
        if self._is_quiet or not read_member(body, "output"):
            return body
        first = self._bodies[0]
        self._head = {name: raw for name in _HEAD if (raw := read_member(first, name))}
        return self._edit_response(body)


def _find_key(sent: Mapping[str, object]) -> object:
    """Return what tells the items of a round apart: their indexes, else their ids."""
    index, item = sent.get("output_index"), sent.get("item")
    if type(index) is int:
        return index
    return read_text(sent.get("item_id")) or (read_text(item.get("id")) if isinstance(item, Mapping) else "")


RESPONSES: RoundWire = _ResponsesRounds()
"""Our tool in this format."""
