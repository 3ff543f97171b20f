"""Telling of agents that go round in circles (`context/loops`): an event, a line in the log, and a response header.

A call is looked at when its response has been read, since that makes the newest call of a tool. By then the head of the
response has left, so that the header comes with the next one of the conversation. No call is held or changed.
"""

import logging
from collections.abc import Iterator
from itertools import islice

import msgspec

from proxy.context.loops.detection import find_repeated_call
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest
from proxy.engine.response_stream import PassingClient
from proxy.engine.runtime import EngineBus
from proxy.model.events import DoomLoopDetected, ToolsCalled
from proxy.model.exchange import Headers
from proxy.model.lru import LruCache
from proxy.model.messages import Message
from proxy.wire import FORMATS

LABEL: Headers = ((b"x-palimpsest-doom-loop", b"true"),)
_MOST_BYTES = 32 * 1024 * 1024  # of requests whose responses were not read yet
_MOST_SESSIONS = 1024

_log = logging.getLogger("palimpsest.loops")


class _Loop(msgspec.Struct, frozen=True, gc=False):
    """A loop of a session: where the request stood whose response went on with it, and how long it was when told."""

    depth: int
    tip: bytes
    told: int


class LoopWatch:
    """Watches the responses of conversations for calls that are made `threshold` times in a row.

    `least` is how many messages a request has before it can be one of a loop, or of one after it.
    """

    def __init__(self, bus: EngineBus, threshold: int) -> None:
        self.least = threshold - 1
        self._bus = bus
        self._threshold = threshold
        self._open = LruCache[str, ManagedRequest](_MOST_BYTES, weigh=lambda _, request: len(request.split.content))
        self._loops = LruCache[str, _Loop](_MOST_SESSIONS)
        bus.subscribe(ToolsCalled, self.note_calls)

    def watch(self, request: ManagedRequest, client: Client) -> Client:
        """Watch the response to a request. Return its client, with the header if the conversation was in a loop."""
        if request.is_side or request.mode == "bypass":
            return client
        self._open.put(request.exchange, request)
        loop, nodes = self._loops.get(request.session.id), request.nodes
        if loop is None or len(nodes) <= loop.depth or nodes[loop.depth - 1] != loop.tip:
            return client
        return LabellingClient(client, LABEL)

    def note_calls(self, event: ToolsCalled) -> None:
        """Look for a loop that a response goes on with. Called behind calls, by the bus."""
        request = self._open.pop(event.exchange)
        if request is None:
            return
        session, before = request.session.id, self._loops.peek(request.session.id)
        found = find_repeated_call(_read_back(request, event.answer), self._threshold)
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
            named = (event.exchange, session, found.tool, found.count)
            self._bus.publish(DoomLoopDetected(*named, has_same_output=found.has_same_output))
        self._loops.put(session, _Loop(len(request.nodes), request.chain.tip, told))


class LabellingClient(PassingClient):
    """Passes a response on with headers of its own beside those that it is given."""

    def __init__(self, client: Client, own: Headers) -> None:
        super().__init__(client)
        self._own = own

    def label(self, fields: Headers) -> None:
        """Add headers to the head of the response."""
        super().label((*fields, *self._own))


def _read_back(request: ManagedRequest, answer: bytes) -> Iterator[Message]:
    """Yield the messages of a response and of its request, the newest first, as they are asked for."""
    form, split = FORMATS[request.wire], request.split
    for raw in reversed(form.list_echoes(answer)):
        yield form.decode_message(raw).message
    for span in islice(reversed(split.items), len(split.items) - request.chain.preamble.count):
        yield form.decode_message(split.content[span.start : span.end]).message
