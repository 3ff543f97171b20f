"""Telling of agents that go round in circles (`context/loops`): an event, a line in the log, and a response header.

A call is looked at when its response has been read, since that makes the newest call of a tool. By then the head of the
response has left, so that the header comes with the next one of the conversation. No call is held.

If the settings say so (`annotate`), the model is told, too, by a note behind the output that completes a loop of equal
outputs. It depends only on the messages up to that one, so that it is the same in every later request, and after a
restart; an epoch shows its messages without. Reasoning may be signed over all that precedes it (`context/verbatim`), a
note as well: such a history, which must stay valid without us, has none.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import islice

from msgspec.structs import replace

from proxy.context.loops.detection import find_repeated_call, write_note
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.response_stream import LabellingClient
from proxy.engine.policy import LoopAction
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus
from proxy.engine.stages.stage import Call, Stage
from proxy.model import Value
from proxy.model.events import AnswerRead, DoomLoopDetectedEvent
from proxy.model.exchange import Headers
from proxy.model.lru import LruCache
from proxy.model.messages import Message
from proxy.wire import FORMATS
from proxy.wire.json_values import encode_text

LABEL: Headers = ((b"x-palimpsest-doom-loop", b"true"),)
_MOST_BYTES = 32 * 1024 * 1024  # of requests whose responses were not read yet
_MOST_SESSIONS = 1024
# What a response has in any format if it calls a tool. Most have not, and need not be looked at again.
_TOOL_CALL = re.compile(rb"tool_calls|tool_use|function_call|custom_tool_call|_shell_call")

_log = logging.getLogger("palimpsest.loops")


class _Loop(Value):
    """A loop of a session: where the request stood whose response went on with it, and how long it was when told."""

    depth: int
    tip: bytes
    told: int


class _SeenNotes(Value):
    """The notes of a view's first messages, by index: of so many, which end with `tip`."""

    depth: int
    tip: bytes
    notes: Mapping[int, bytes]


class LoopWatch(Stage):
    """Watches the responses of conversations for calls that are made `threshold` times in a row."""

    def __init__(self, bus: EngineBus, threshold: int, action: LoopAction = "notify") -> None:
        self._is_annotating = action == "annotate"
        self._noted = LruCache[tuple[str, str], _SeenNotes](_MOST_SESSIONS)
        self._least = threshold - 1  # most calls are too short to be looked at
        self._bus = bus
        self._threshold = threshold
        self._open = LruCache[str, ManagedRequest](_MOST_BYTES, weigh=lambda _, request: len(request.split.content))
        self._loops = LruCache[str, _Loop](_MOST_SESSIONS)
        bus.subscribe(AnswerRead, self.note_answer)

    def is_looping(self, session: str) -> bool:
        """Return whether the newest response with calls has gone on with a loop."""
        return self._loops.peek(session) is not None

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        """Watch the response to a request. Return its client, with the header if the conversation was in a loop."""
        client = exchange.client
        if len(request.split.items) <= self._least or request.is_side or request.mode == "bypass":
            return client
        self._open.put(request.exchange, request)
        loop, nodes = self._loops.get(request.session.id), request.nodes
        if loop is None or len(nodes) <= loop.depth or nodes[loop.depth - 1] != loop.tip:
            return client
        return LabellingClient(client, LABEL)

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        """Return a request with the notes that its model is to read, if models are told."""
        is_managed = request.mode == "manage" and request.lineage is not None and not request.is_side
        if not (self._is_annotating and is_managed) or len(request.split.items) <= self._least:
            return request
        notes = self._find_notes(request)
        return replace(request, notes=notes) if notes else request

    def _find_notes(self, request: ManagedRequest) -> Mapping[int, bytes]:
        """Return the notes of a request. Of what continues the request before only the new messages are looked at."""
        nodes, key = request.nodes, (request.session.id, request.view)
        before, start = self._noted.get(key), 0
        notes: dict[int, bytes] = {}
        if before is not None and 0 < before.depth <= len(nodes) and nodes[before.depth - 1] == before.tip:
            start, notes = before.depth, dict(before.notes)
        decode = cache(partial(_decode, request))
        for place in range(max(start, self._least), len(nodes)):
            if not request.chain.items[place].results:
                continue
            note = write_note(map(decode, range(place, -1, -1)), self._threshold)
            if note and not _is_bound(request, place):
                notes[place] = encode_text(f"\n\n{note}")
        if depth := len(request.kept_nodes):
            kept = {place: note for place, note in notes.items() if place < depth}
            self._noted.put(key, _SeenNotes(depth, nodes[depth - 1], kept))
        return notes

    def note_answer(self, event: AnswerRead) -> None:
        """Look for a loop that a response goes on with. Subscribed to the bus."""
        if event.is_hidden or not _TOOL_CALL.search(event.content):
            return
        request = self._open.pop(event.exchange)
        if request is None:
            return
        session, before = request.session.id, self._loops.peek(request.session.id)
        found = find_repeated_call(_read_back(request, event.content), self._threshold)
        if found is None:
            self._loops.pop(session)
            return
        told = before.told if before is not None else 0
        if found.count >= 2 * told or found.count < told:  # a long loop is told again whenever it has doubled
            told = found.count
            _log.warning(
                "the model has called %s %d times in a row with the same arguments, with %s output",
                found.tool[:100],
                found.count,
                "the same" if found.has_same_output else "other",
                extra={"session": session},
            )
            self._bus.publish(
                DoomLoopDetectedEvent(
                    session=session,
                    exchange=event.exchange,
                    tool=found.tool,
                    count=found.count,
                    has_same_output=found.has_same_output,
                )
            )
        self._loops.put(session, _Loop(len(request.nodes), request.chain.tip, told))


def _decode(request: ManagedRequest, place: int) -> Message:
    return FORMATS[request.wire].parse_message(request.load_message(place)[1])


def _is_bound(request: ManagedRequest, place: int) -> bool:
    """Return whether reasoning that may be bound to what precedes it stands before a message."""
    if not may_bind_reasoning(request.model):
        return False
    strip = FORMATS[request.wire].strip_reasoning
    return any(strip(raw) is not raw for raw in request.list_raws()[:place])


def _read_back(request: ManagedRequest, answer: bytes) -> Iterator[Message]:
    """Yield the messages of a response and of its request, the newest first, as they are asked for."""
    form, split = FORMATS[request.wire], request.split
    for raw in reversed(form.list_echoes(answer)):
        yield form.decode_message(raw).message
    for span in islice(reversed(split.items), len(split.items) - request.chain.preamble.count):
        yield form.decode_message(split.content[span.start : span.end]).message
