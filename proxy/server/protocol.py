"""The HTTP/1.1 protocol of the way in: uvicorn's on httptools, with the limits it lacks.

Rule: what is not one well-formed request within the caps is answered 400, 408 or 431 and closed before anything else
sees it. httptools refuses CL+TE and obs-fold; head size, head time, Host, and noticing that a client has left or takes
nothing of its answer are ours.
"""

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote
from weakref import ref

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.engine.runtime import Descriptors, WriteBatcher
from proxy.server.cycle import Cycle
from proxy.server.ending import Ending, Look
from proxy.server.errors import render_plain
from proxy.server.pipeline import Pipeline
from proxy.server.policy import ServerPolicy

_log = logging.getLogger("palimpsest.server")

# Weak references, these two: what its own scope holds would wait for the garbage collector.
CONNECTION = "palimpsest.connection"
CYCLE = "palimpsest.cycle"
TARGET = "palimpsest.target"

_READ_AHEAD = 1024 * 1024
_HEEDED = frozenset({b"host", b"expect", b"transfer-encoding", b"upgrade"})
# What nearly all requests have; the parser would say the same of it.
_PLAIN_PATH = re.compile(rb"/(?:[A-Za-z0-9_.-][A-Za-z0-9_./-]*)?")


class GuardedProtocol(HttpToolsProtocol):
    """One client connection."""

    cycle: Cycle
    ending: Ending

    def __init__(
        self,
        policy: ServerPolicy,
        writes: WriteBatcher,
        descriptors: Descriptors,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._policy = policy
        self._writes = writes
        self._descriptors = descriptors
        self._most_head = policy.max_header_bytes
        self._head_size = self._unparsed = self._hosts = 0
        self._is_in_head = True
        self._is_read_anew = self._offers_upgrade = self._has_moved = False
        self._takes_no_more = False
        self._data = b""
        self._refusal = (400, "bad_request", "this is not a valid HTTP/1.1 request")
        self._head_timer: asyncio.TimerHandle | None = None
        self._watching: list[Callable[[], object]] = []
        self._pipeline = Pipeline()

    @property
    def is_idle(self) -> bool:
        """Whether all that was asked is answered, and nothing of another request has come."""
        return self.cycle is not None and self.cycle.response_complete and not self._is_in_head

    # --- for the application -----------------------------------------------------------------------------------------

    def watch(self, notify: Callable[[], object]) -> None:
        """Call this when the client has left, at once if it has."""
        self._watching.append(notify)
        if self.parser is None:
            notify()
        elif not self.cycle.more_body:
            self.flow.resume_reading()  # or leaving would not be seen

    def unwatch(self, notify: Callable[[], object]) -> None:
        """The opposite of `watch`."""
        self._watching.remove(notify)

    def pause(self) -> None:
        """Read no more for now, but notice a client that leaves."""
        self.flow.pause_reading()
        self._look.start()

    def break_off(self, cycle: Cycle) -> None:
        """End the connection after what was written, without ending this answer."""
        cycle.break_off()
        self._pipeline.disconnect()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Part of asyncio's Protocol."""
        super().connection_made(transport)
        self._look = Look(self.loop, transport, self.flow)
        self.ending = Ending(self.loop, transport, self._policy.stall_timeout)
        self._watch_head()
        if self._descriptors.is_scarce(transport.get_extra_info("socket").fileno()) and not self._descriptors.relieve():
            self._takes_no_more = True
            transport.write(render_plain(503, "too_many_connections", "no file descriptor is free; try again"))
            self.ending.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's Protocol. uvicorn tells only the newest request; the ones before it are told here."""
        for timer in (self._head_timer, self._look, self.ending):
            if timer is not None:
                timer.cancel()
        self._pipeline.disconnect()
        super().connection_lost(exc)
        for notify in tuple(self._watching):
            notify()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's Protocol."""
        if self._takes_no_more:
            return
        self._data = data
        super().data_received(data)
        self._data = b""  # an idle connection holds nothing
        if self.transport.is_closing():
            return
        # The parser keeps a field until it ends, so that an endless one would never be counted by `on_header`.
        self._unparsed = 0 if self._has_moved else self._unparsed + len(data)
        self._has_moved = False
        if self._unparsed > self._most_head:
            self._refusal = _describe_too_large(self._most_head)
            self.send_400_response("")
        elif self._is_in_head:
            if self._head_timer is None:
                self._watch_head()
        elif self.cycle.response_complete and self.timeout_keep_alive_task is None:  # answered before it was read
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.ending.close)

    def pause_writing(self) -> None:
        """Part of asyncio's Protocol."""
        super().pause_writing()
        self.ending.hurry()

    def resume_writing(self) -> None:
        """Part of asyncio's Protocol."""
        self.ending.relax()
        super().resume_writing()

    # --- httptools callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Part of httptools' protocol."""
        super().on_message_begin()
        self._is_in_head = True
        self._is_read_anew = self._offers_upgrade = False
        self._has_moved = True
        self._head_size = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """Part of httptools' protocol."""
        self._has_moved = True
        self._head_size += len(url)
        if self._head_size > self._most_head:
            self._refuse_head()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' protocol."""
        self._has_moved = True
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._most_head:
            self._refuse_head()
        if not self._is_in_head:
            return  # a trailer: no field of the request
        name = name.lower()
        self.headers.append((name, value))
        if name in _HEEDED:
            self._heed(name, value)

    def on_headers_complete(self) -> None:
        """Part of httptools' protocol."""
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse("HTTP/1.1 is spoken here")
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            self._refuse("a request has exactly one Host field")
        if self._offers_upgrade and self.parser.should_upgrade() and self._get_upgrade() != b"websocket":
            self._is_read_anew = True
            return
        self._begin(version)

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol. Reads further ahead than uvicorn, whose reader wakes up for every 64 KB."""
        self._has_moved = True
        if not self.cycle.response_complete and self.cycle.put(body) > _READ_AHEAD:
            self.pause()

    def on_message_complete(self) -> None:
        """Part of httptools' protocol."""
        if not self._is_read_anew:
            self.cycle.more_body = False
            super().on_message_complete()

    def shutdown(self) -> None:
        """uvicorn's: close if no request is under way."""
        self._writes.flush()
        super().shutdown()

    # --- inner -------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answer what never became a request; uvicorn's hook for it."""
        if self._takes_no_more:
            return
        self._writes.flush()
        self._log_refusal(self._refusal[2])
        if self._pipeline.can_refuse:
            self.transport.write(render_plain(*self._refusal))
        self.ending.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Where uvicorn would only warn.

        A websocket is for the application to refuse. Any other offer (`h2c`) is passed over: the parser skipped the
        body of that request, so head and rest are read again without the offer.
        """
        if not self._is_read_anew:
            return
        offset = getattr(sys.exc_info()[1], "args", (len(self._data),))[0]
        head, rest = _render_head(self.parser.get_method(), self.url, self.headers), self._data[offset:]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(head + rest)

    def _begin(self, version: str) -> None:
        """Start serving a request, or queue it behind the one before it on the same connection; as uvicorn does."""
        path, query = _split_url(self.url)
        cycle = Cycle(
            self._writes,
            self.ending.close,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["http_version"] = version
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path.decode("ascii"))
        scope["raw_path"] = path
        scope["query_string"] = query
        scope["headers"] = tuple(self.headers)
        scope["extensions"] = {CONNECTION: ref(self), CYCLE: ref(cycle), TARGET: self.url}
        if not self._pipeline.add(cycle):
            # What comes is read and thrown away: left in the kernel, it would have the close reset the last answers.
            self._takes_no_more = True
            self.flow.resume_reading()
            self._log_refusal("too many requests ahead of their answers")
            raise ValueError("what comes now is not parsed")
        before, self.cycle = self.cycle, cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.pause()
            self.pipeline.appendleft((cycle, self.app))

    def _heed(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"expect":
            self.expect_100_continue |= value.lower() == b"100-continue"
        elif name == b"upgrade":
            self._offers_upgrade = True
        elif value.strip().lower() != b"chunked":
            self._refuse("the only transfer coding understood here is chunked")

    def _log_refusal(self, reason: str) -> None:
        if self.cycle is None and not (self._data or self._head_size or self._unparsed):
            return  # nothing came
        cause = sys.exc_info()[1]
        if isinstance(cause, httptools.HttpParserError) and not isinstance(cause, httptools.HttpParserCallbackError):
            reason = f"{reason}: {cause}"
        _log.warning("a request from %s was refused: %s", self.client[0] if self.client else "somebody", reason)

    def _refuse_head(self) -> None:
        self._refusal = _describe_too_large(self._most_head)
        raise ValueError(self._refusal[2])

    def _refuse(self, message: str) -> None:
        self._refusal = (400, "bad_request", message)
        raise ValueError(message)

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self._policy.header_timeout, self._give_up_on_head)

    def _give_up_on_head(self) -> None:
        self._head_timer = None
        if not self._pipeline.can_refuse:
            self._watch_head()  # an answer is on its way, which must not end for this
            return
        self._refusal = (408, "head_timeout", "the head of the request took too long (server.header_timeout)")
        self.send_400_response("")


def close_idle(connections: Iterable[object]) -> int:
    """Close client connections that carry no request; how many there were."""
    idle = [one for one in connections if isinstance(one, GuardedProtocol) and one.is_idle]
    for one in idle:
        one.ending.close()
    return len(idle)


def _describe_too_large(limit: int) -> tuple[int, str, str]:
    return 431, "headers_too_large", f"the head of the request exceeds server.max_header_bytes ({limit})"


def _render_head(method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a request whose body is still to be read, without its offer to speak otherwise."""
    fields = b"".join(b"%s: %s\r\n" % field for field in headers if field[0] != b"upgrade")
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, url, fields)


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query. Raises httptools' error for what is none."""
    if _PLAIN_PATH.fullmatch(url):
        return url, b""
    parsed = httptools.parse_url(url)
    return parsed.path, parsed.query or b""
