"""The calls under way: each is registered, opened with its credentials, and bound to what sends it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proxy.engine.call.open_exchange import CappedBuffer, OpenExchange
from proxy.engine.call.relay import Relay, Send
from proxy.engine.lineage.misplaced_keys import MisplacedKeys
from proxy.engine.options import read_options
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import Client, RequestBody, UpstreamResponse
from proxy.engine.request import ResolvedRequest
from proxy.engine.runtime import TaskRunner
from proxy.model.epoch import Epoch
from proxy.model.errors import BadRequest, ProxyError, StoreUnavailable
from proxy.model.exchange import Headers, RequestOptions
from proxy.wire.format import Format
from proxy.wire.headers import OWN_PREFIX, accept_identity_only, drop_beta, drop_encoding, list_credentials

TraceHeaders = Callable[[OpenExchange, Headers, bytes], Headers]
"""Returns the headers of a request as they are sent, with its place in a trace. The body is empty if it streams."""


class Calls:
    """Keeps every call until its record is complete. `trace` is None unless calls are traced."""

    def __init__(
        self, policy: EnginePolicy, relay: Relay, tasks: TaskRunner, *, trace: TraceHeaders | None = None
    ) -> None:
        self.policy = policy
        self.relay = relay
        self.tasks = tasks
        self.misplaced = MisplacedKeys(policy.places)
        self._trace = trace
        self._sessions: dict[asyncio.Task[Any], str] = {}  # of the calls under way
        self._unasked = RequestOptions(policy.mode)
        named = (principal.header for principal in policy.principals.values() if principal.header)
        self._tenant_headers = tuple(name.lower().encode("latin-1") for name in named)

    def read_options(self, headers: Headers) -> RequestOptions:
        """Return what the headers of a request ask for. Its mode is the configured one if they ask for none.

        Raises BadRequest for unknown values.
        """
        own = tuple([header for header in headers if header[0].startswith(OWN_PREFIX)])
        return read_options(own, self.policy.mode) if own else self._unasked

    def read_plain_options(self, headers: Headers) -> RequestOptions:
        """Return the options of a request that can have no history. Raises BadRequest."""
        options = self.read_options(headers)
        if options.history is not None:
            raise BadRequest("x-palimpsest-history is for calls to a model that are read, not for this path or mode")
        return options

    @contextmanager
    def keep(self, client: Client) -> Iterator[None]:
        """Register the current task until its call has ended. Report errors to the client."""
        task = _get_task()
        self.tasks.running.add(task)
        try:
            yield
        except ProxyError as error:
            client.fail(error)
        except asyncio.CancelledError:
            client.dismiss()
            raise
        finally:
            client.abort()
            self.tasks.running.discard(task)
            self._sessions.pop(task, None)

    def check_log(self) -> None:
        """Raise StoreUnavailable if calls cannot be recorded and must not be carried unrecorded."""
        if self.policy.on_failure == "refuse" and (problem := self.relay.problem):
            raise StoreUnavailable(f"calls are refused while they cannot be recorded (store.on_failure): {problem}")

    def is_open(self, session: str) -> bool:
        """Return whether a call of a session is under way."""
        return session in self._sessions.values()

    def open(self, request: ResolvedRequest, form: Format | None, client: Client) -> OpenExchange:
        """Return the exchange of a resolved request. `form` is None if its response is not read."""
        self._sessions[_get_task()] = request.session.id
        credentials = list_credentials(request.headers, request.target, self._tenant_headers)
        self.misplaced.note(request.upstream.name, credentials)
        return OpenExchange(
            request.exchange,
            self.relay.archive,
            None,
            form,
            request.upstream.name,
            client,
            CappedBuffer(self.policy.record_cap_bytes),
            (*self.policy.own_keys, *credentials),
        )

    async def commit(self, exchange: OpenExchange, epoch: Epoch) -> bool:
        """Write an epoch to the log after the opening of its exchange. Return whether it is durable.

        The wait is longer for an epoch that the ceiling needs: without it the request is sent above that.
        """
        exchange.record(epoch)
        seconds = self.policy.hard_wait_seconds if epoch.why in ("hard", "overflow") else 0.0
        return await self.relay.confirm(exchange, seconds)

    def bind(self, request: ResolvedRequest, exchange: OpenExchange, form: Format | None = None) -> Send:
        """Return a function that sends a body with the method, target and headers of the client's request.

        A response that may be withheld must be readable, and so must one that is edited: such requests ask for no
        content-encoding. A body of ours may need a header that the client does not send, and has no content-encoding.
        """
        is_read = exchange.is_guarded or exchange.rounds is not None or exchange.is_edited
        own = accept_identity_only(request.headers) if is_read else request.headers
        trace = self._trace
        own = drop_beta(own, exchange.dropped_beta) if exchange.dropped_beta else own

        def send(body: bytes | RequestBody) -> Awaitable[UpstreamResponse]:
            # a retry may have rounds where what it replaces had none
            headers, sent = (own if exchange.rounds is None or is_read else accept_identity_only(own)), body
            if isinstance(body, bytes):
                sent = request.find_sent(body)
            if request.encoded and sent is body:
                headers = drop_encoding(headers)
            if form is not None and isinstance(body, bytes) and body is not request.body:
                headers = form.add_needed_headers(headers, body)
            if trace is not None:
                headers = trace(exchange, headers, body if isinstance(body, bytes) else b"")
            return request.upstream.send(request.method, request.target, headers, sent)

        return send


def add_labels(client: Client, request: ResolvedRequest, labels: Headers = ()) -> None:
    """Add response headers with the session and exchange of the call in the log, unless bypassed, and the labels."""
    session, exchange = request.session.id.encode(), request.exchange.encode()
    named = ((b"x-palimpsest-session", session), (b"x-palimpsest-exchange", exchange))
    client.label(labels if request.mode == "bypass" else (*named, *labels))


def _get_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None, "every call is carried in a task"
    return task
