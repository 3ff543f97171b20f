"""The access log: a line for each request but successful probes, with how it ended and how many tokens it took.

It has no body, no header and no query: these may hold what is private, or a key.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.engine.runtime import EngineBus
from proxy.model.events import AnswerRead, CallUnreadableEvent, ExchangeRecorded, Planned
from proxy.telemetry.log_lines import ACCESS

_log = logging.getLogger(ACCESS)

_MOST_WAITING = 1000
_PATH_CHARACTERS = 200
# Asked every few seconds by whatever watches the server: no line is written of those that succeed.
_PROBES = frozenset({"/-/live", "/-/ready", "/-/metrics"})
_OK = 200

ReadStatus = Callable[[Scope], int]
"""Returns the status of the response to a request, by its ASGI scope; 0 if there was none."""


@dataclass(slots=True)
class _Request:
    """One request, and what is known of it so far. Tokens of a call with several rounds are added up."""

    method: str
    path: str
    client: str
    began: float
    status: int = 0
    seconds: float | None = None  # once it has ended
    ended: float = 0.0  # seconds since 1970: the time of its line, which is written later
    is_unread: bool = False  # its response is recorded and not read yet
    facts: dict[str, str | int] = field(default_factory=dict)

    def add(self, name: str, count: int | None) -> None:
        """Add to a count, unless it is unknown."""
        if count is not None:
            known = self.facts.get(name, 0)
            self.facts[name] = count + (known if isinstance(known, int) else 0)


# The request that the current task serves. Events of a call are published by its own task.
_current: ContextVar[_Request | None] = ContextVar("request", default=None)


class AccessLog:
    """Wraps the server's application and writes a line for each request, once its response was read.

    Responses are read behind calls. If too many wait, the oldest is written without the tokens of its response.
    """

    def __init__(self, app: ASGIApp, read_status: ReadStatus, now: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._read_status = read_status
        self._now = now
        self._waiting: OrderedDict[str, _Request] = OrderedDict()  # by exchange

    def subscribe(self, bus: EngineBus) -> None:
        """Follow the calls of a bus."""
        bus.subscribe(Planned, self.note_plan)
        bus.subscribe(ExchangeRecorded, self.note_round)
        bus.subscribe(AnswerRead, self.note_answer)
        bus.subscribe(CallUnreadableEvent, self.note_unread)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and write its line."""
        client = (scope.get("client") or ("",))[0]
        request = _Request(scope["method"], scope["path"][:_PATH_CHARACTERS], client, self._now())
        token = _current.set(request)
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)
            request.status, request.seconds = self._read_status(scope), self._now() - request.began
            request.ended = time.time()
            self._write_if_complete(request)

    def note_plan(self, event: Planned) -> None:
        """Note how many tokens a request has, as the client made it and as it is sent."""
        request = _current.get()
        if request is not None:
            named = {"client_tokens": event.plan.tokens_client, "sent_tokens": event.plan.tokens_upstream}
            request.facts |= {name: count for name, count in named.items() if count is not None}

    def note_round(self, event: ExchangeRecorded) -> None:
        """Note which call a request was, and whether its response will be read."""
        request = _current.get()
        if request is None or event.kind == "auxiliary":
            return
        named = {"upstream": event.upstream, "model": event.model, "completeness": event.completeness}
        request.facts |= {"session": event.session, "exchange": event.exchange, **named}
        request.is_unread = event.is_readable and event.is_final
        if event.is_readable:
            self._waiting[event.exchange] = request
            if len(self._waiting) > _MOST_WAITING:
                _, oldest = self._waiting.popitem(last=False)
                oldest.is_unread = False
                self._write_if_complete(oldest)

    def note_answer(self, event: AnswerRead) -> None:
        """Note what the provider counted, and write the line of a call whose response was read."""
        if request := self._waiting.get(event.exchange):
            request.add("input_tokens", event.usage.input)
            request.add("cached_tokens", event.usage.cached)
            request.add("output_tokens", event.usage.output)
            if not event.is_hidden:
                self.note_unread(event)

    def note_unread(self, event: AnswerRead | CallUnreadableEvent) -> None:
        """Write the line of a call of whose response nothing more will be read."""
        if request := self._waiting.get(event.exchange):
            request.is_unread = False
            self._write_if_complete(request)

    def close(self) -> None:
        """Write the requests whose responses were not read."""
        while self._waiting:
            _, request = self._waiting.popitem(last=False)
            request.is_unread = False
            self._write_if_complete(request)

    def _write_if_complete(self, request: _Request) -> None:
        if request.seconds is None or request.is_unread or not _log.isEnabledFor(logging.INFO):
            return
        if request.path in _PROBES and request.status == _OK:
            return
        self._waiting.pop(str(request.facts.get("exchange", "")), None)
        named = {"method": request.method, "path": request.path, "status": request.status, "client": request.client}
        facts: dict[str, object] = {**named, "seconds": request.seconds, **request.facts}
        record = _log.makeRecord(ACCESS, logging.INFO, __file__, 0, "request served", (), None, extra=facts)
        record.created = request.ended
        _log.handle(record)
