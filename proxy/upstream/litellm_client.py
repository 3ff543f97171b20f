"""Requests to the providers that litellm knows; implements the port `Upstream`, so that the engine knows no difference.

What the engine has recorded as sent is what litellm is handed: the members of the body, as keyword arguments. No HTTP
lies between. litellm makes one call and repeats none. Headers of the client do not reach the provider, but for its key.
"""

import asyncio
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.ports import RequestBody, UpstreamResponse
from proxy.model.errors import BadRequest, NotFound, ProxyError, TooLarge, UpstreamUnreachable
from proxy.model.exchange import Headers
from proxy.upstream.client import Spawn
from proxy.upstream.litellm_errors import ProviderRefusal, mapping_errors, pick_headers
from proxy.upstream.litellm_library import (
    ENTRY_POINTS,
    EntryPoint,
    close_stream,
    find_call,
    iterate,
    write_whole,
)
from proxy.upstream.origin import is_near
from proxy.upstream.policy import UpstreamPolicy
from proxy.wire import FORMATS, find_wire
from proxy.wire.body import decode_content
from proxy.wire.headers import HOP, find_credential, find_header, list_hops, strip_scheme

_STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
# A body that comes in pieces is kept whole, up to this size.
_MOST_BYTES = 64 * 1024 * 1024
# The head of a stream waits so long for its first piece, with which most providers say what is wrong.
_HEAD_SECONDS = 5.0
_HIGH_WATER = 256 * 1024
# Sent where neither the settings nor the client have a key: litellm would take one from the environment.
_NO_KEY = "none"
_PATTERN = frozenset("*?[")


Load = Callable[[], Any]


class LitellmClient:
    """Sends requests to one upstream of kind litellm. `library` is litellm; `spawn` starts a task that receives.

    Without a `library` the first request loads it, in a thread, with `load`.
    """

    def __init__(
        self, policy: UpstreamPolicy, library: Any, spawn: Spawn, *, hop_id: str = "", load: Load | None = None
    ) -> None:
        self.name = policy.name
        self._policy = policy
        self._library = library
        self._load = load
        self._loading = asyncio.Lock()
        self._spawn = spawn
        self._hop_id = hop_id.encode() if is_near(urlsplit(policy.base_url).hostname or "") else b""

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> UpstreamResponse:
        """Hand one request to litellm. Raises NotFound for a path that no function of litellm serves."""
        path = target.partition(b"?")[0].decode("latin-1")
        if method == "GET" and path.endswith("/models"):
            return self._list_models()
        wire = find_wire(path)
        if method != "POST" or not wire:
            endings = ", ".join(form.path_ending for form in FORMATS.values())
            raise NotFound(
                f"the upstream {self.name!r} is of kind litellm and serves {endings} and /models, not {path}"
            )
        content = body if isinstance(body, bytes) else await _read_all(body)
        try:
            await self._find_library()
            members = ENTRY_POINTS[wire].read_members(_decode(headers, content))
            self._check_model(members.get("model"))
            return await self._call(wire, members, self._make_options(headers))
        except ProviderRefusal as refusal:
            return WholeResponse(refusal.status, refusal.headers, refusal.body)

    async def aclose(self) -> None:
        """Close the connections that litellm keeps."""
        if self._library is not None:
            await self._library.close_litellm_async_clients()

    async def _find_library(self) -> None:
        if self._library is None and self._load is not None:
            async with self._loading:
                self._library = self._library or await asyncio.to_thread(self._load)

    async def _call(self, wire: str, members: dict[str, Any], options: dict[str, Any]) -> UpstreamResponse:
        with mapping_errors(self.name, (self._policy.api_key,)):
            call, handed = find_call(self._library, ENTRY_POINTS[wire], members)
            if call is None:
                raise BadRequest(f"litellm has no {FORMATS[wire].path_ending} for the upstream {self.name!r}")
            async with asyncio.timeout(self._policy.idle_timeout):
                answer = await call(**handed, **options)
        if not hasattr(answer, "__aiter__"):
            return WholeResponse(200, pick_headers(_find_headers(answer)), write_whole(answer))
        headers = pick_headers(_find_headers(answer))
        response = LitellmStream(answer, ENTRY_POINTS[wire], self._policy, headers, self._spawn)
        try:
            await response.wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    def _make_options(self, headers: Headers) -> dict[str, Any]:
        """Return how litellm is to make the call."""
        policy = self._policy
        options: dict[str, Any] = {
            "timeout": httpx.Timeout(policy.idle_timeout, connect=policy.connect_timeout),
            "max_retries": 0,
            "drop_params": True,  # of what the API has and the provider has not
        }
        if policy.auth != "none":
            own = strip_scheme(find_credential(headers)).decode("latin-1")
            options["api_key"] = policy.api_key or own or _NO_KEY
        if policy.base_url:
            options["api_base"] = policy.base_url
        if self._hop_id:
            hops = b", ".join([*list_hops(headers), self._hop_id])
            options["extra_headers"] = {HOP.decode(): hops.decode("latin-1")}
        return options

    def _check_model(self, model: object) -> None:
        """Raise BadRequest for a model that is not this upstream's: its key must go to no other provider."""
        if not isinstance(model, str) or not model:
            raise BadRequest("the request names no model")
        patterns = self._policy.models
        if patterns and not any(fnmatchcase(model, pattern) for pattern in patterns):
            raise BadRequest(f"no upstream takes the model {model[:200]!r}; add it to the models of one")

    def _list_models(self) -> WholeResponse:
        """Return the models of the settings. litellm cannot ask a provider for its own."""
        names = [name for name in self._policy.models if not _PATTERN.intersection(name)]
        if not names:
            what = "has no list of models: litellm has none to ask for, and the settings name no model, only patterns"
            raise NotFound(f"the upstream {self.name!r} {what}")
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": self.name} for name in names]
        return WholeResponse(200, (), orjson.dumps({"object": "list", "data": listed}))


class LitellmStream:
    """A streamed response; implements the port `UpstreamResponse`.

    A task of its own receives it: a cancelled read would end the stream, but readers may stop waiting and read again
    later. Each chunk is written as the wire has it. The task waits while more than `_HIGH_WATER` bytes are unread.
    """

    def __init__(self, stream: Any, entry: EntryPoint, policy: UpstreamPolicy, headers: Headers, spawn: Spawn) -> None:
        self.status = 200
        self.headers: Headers = (*_STREAM, *headers)
        self.is_received = False
        self._stream = stream
        self._entry = entry
        self._policy = policy
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._error: ProxyError | ProviderRefusal | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_head_sent = self._is_started = self._is_closed = False
        self._task = spawn(self._receive())

    async def wait_for_head(self) -> None:
        """Wait until something has come, for seconds at most. Raises ProviderRefusal or ProxyError."""
        await asyncio.wait((self._begun,), timeout=_HEAD_SECONDS)
        self._is_head_sent = True
        if self._error is not None and not self._pieces:
            raise self._error

    @property
    def is_ended(self) -> bool:
        """Whether every byte has been read."""
        return self.is_received and not self._pieces

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end."""
        while not self._pieces:
            if self.is_received:
                return b""
            await self._wait()
        return self._take()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Pass received bytes to `take` until that returns False or the whole response has come."""
        while not self.is_received:
            if not self._pieces:
                await self._wait()
            elif not take(self._take()):
                return

    def close(self) -> None:
        """Stop receiving unless the whole response has come."""
        self._is_closed = True
        if self._is_started and not self.is_received:
            self._task.cancel()

    async def _receive(self) -> None:
        """Receive the body, then close the stream. What ends it early is raised to the reader."""
        self._is_started = True
        try:
            if not self._is_closed:
                await self._receive_body()
                self.is_received = self._error is None
        except ProxyError as error:
            self._error = error
        finally:
            if not self.is_received and self._error is None:
                self._error = UpstreamUnreachable("the response was given up")
            _resolve(self._arrival)
            _resolve(self._begun)
            await close_stream(self._stream)

    async def _receive_body(self) -> None:
        iterator, policy = iterate(self._stream), self._policy
        try:
            with mapping_errors(policy.name, (policy.api_key,)):
                while True:
                    async with asyncio.timeout(policy.idle_timeout):
                        chunk = await anext(iterator, None)
                    if chunk is None:
                        break
                    _resolve(self._begun)
                    await self._put(self._entry.write_event(chunk))
            if end := self._entry.end:
                await self._put(end)
        except ProviderRefusal as refusal:
            if self._is_head_sent or self._begun.done():
                await self._put(self._entry.write_error(refusal.body))
            else:
                self._error = refusal

    async def _put(self, piece: bytes) -> None:
        """Take a piece of the body; wait while too much is unread."""
        self._pieces.append(piece)
        self._buffered += len(piece)
        _resolve(self._arrival)
        if self._buffered > _HIGH_WATER:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def _wait(self) -> None:
        """Wait until the task has received something. Raises the error that ended the response."""
        if self._error is not None:
            raise self._error
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _take(self) -> bytes:
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        _resolve(self._room)
        return content


def _resolve(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def _read_all(body: RequestBody) -> bytes:
    content = bytearray()
    while piece := await body.read():
        content += piece
        if len(content) > _MOST_BYTES:
            raise TooLarge(f"a request to an upstream of kind litellm may have {_MOST_BYTES} bytes at most")
    return bytes(content)


def _decode(headers: Headers, content: bytes) -> bytes:
    try:
        return decode_content(content, find_header(headers, b"content-encoding").decode("latin-1"), _MOST_BYTES)
    except ValueError as error:
        raise BadRequest(f"the body cannot be decoded: {error}") from error


def _find_headers(answer: Any) -> object:
    """Return the headers of the provider's response, as far as litellm has them."""
    hidden = getattr(answer, "_hidden_params", None)
    return hidden.get("additional_headers") if isinstance(hidden, dict) else None
