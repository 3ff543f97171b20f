"""Recorded sessions played through the proxy: a scripted upstream, and the client that extends its history.

A session is a JSON line `{id, tools, steps: [{delta: [messages], response_message}]}`; a file may be gzipped. A step's
request is all deltas and responses before it, plus its own delta. The scripted upstream answers it with the recorded
response. Every other request is the proxy's own, for a summary: a `Summariser` answers it, or it fails. Usage is
counted, with a prompt cache that holds the messages of earlier requests.
"""

import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from benchmarks.picture import MODEL, LoopbackServer, load_counting_encoder, respond

RawMessage = dict[str, Any]
Recorded = dict[str, Any]
Summariser = Callable[[Sequence[RawMessage]], str]

_SECONDS = 120.0
_FRAME = 4
_LEAST_CACHED, _BLOCK = 1024, 128


def read_sessions(file: Path, numbers: Sequence[int] | None = None) -> list[Recorded]:
    """Read the sessions of a file with these numbers, counted from 0; all of them for None."""
    read = gzip.open if file.suffix == ".gz" else open
    with read(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for i, line in enumerate(lines) if line.strip() and (numbers is None or i in numbers)]


def get_text(message: RawMessage) -> str:
    """Return the text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def strip(message: RawMessage) -> RawMessage:
    """Return a recorded message as a client sends it."""
    return {name: value for name, value in message.items() if not name.startswith("_")}


class TokenCounter:
    """Counts the tokens of messages; equal ones once."""

    def __init__(self) -> None:
        self._encoder = load_counting_encoder()
        self._known: dict[str, int] = {}

    def count_text(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = self._encoder.count(text)
        return self._known[text]

    def count(self, message: RawMessage) -> int:
        """Return the tokens of a message, with what a template puts around it."""
        said = [get_text(message)]
        for call in message.get("tool_calls") or ():
            said += [call["function"]["name"], call["function"]["arguments"] or ""]
        return _FRAME + sum(map(self.count_text, said))


@dataclass
class Spent:
    """The usage of requests."""

    calls: int = 0
    read: int = 0
    fresh: int = 0
    output: int = 0

    def price(self, read: float, output: float) -> float:
        """Return the cost in uncached input tokens, where these are the prices of a cached and of an output token."""
        return self.fresh + read * self.read + output * self.output


@dataclass
class OwnRequest:
    """A request of the proxy's own."""

    messages: list[RawMessage]
    answer: str | None
    step: int


@dataclass
class _Script:
    """What the client sent last, what the upstream has to answer, and what arrived."""

    messages: Sequence[RawMessage] = ()
    response: RawMessage = field(default_factory=dict)
    step: int = 0
    arrived: list[RawMessage] | None = None


class ScriptedUpstream(LoopbackServer):
    """Answers the client's requests with the recorded responses, and the proxy's own by `summarise`."""

    def __init__(self, counter: TokenCounter, summarise: Summariser | None = None) -> None:
        self.counter = counter
        self.main, self.own = Spent(), Spent()
        self.own_requests: list[OwnRequest] = []
        self._summarise = summarise
        self._lock = threading.Lock()
        self._script = _Script()
        self._cache: set[str] = set()
        self._head = 0
        super().__init__()

    def begin(self, tools: Sequence[Any]) -> None:
        """Begin a session: nothing of it is cached."""
        with self._lock:
            self._cache.clear()
            self._head = self.counter.count_text(json.dumps(tools)) if tools else 0

    def expect(self, step: int, messages: Sequence[RawMessage], response: RawMessage) -> None:
        """Set what the client sends next, and the response to it."""
        with self._lock:
            self._script = _Script(messages, response, step)

    def take(self) -> list[RawMessage]:
        """Return the messages that arrived for the client's request."""
        with self._lock:
            arrived = self._script.arrived
        if arrived is None:
            raise RuntimeError(f"step {self._script.step}: no request ended with the client's newest message")
        return arrived

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        messages = body["messages"]
        with self._lock:
            script = self._script
            is_main = script.arrived is None and is_same_end(messages, script.messages)
            if is_main:
                script.arrived = messages
            read, fresh = self._look_up(messages)
        if is_main:
            message = script.response
        else:
            text = self._summarise(messages) if self._summarise is not None else None
            with self._lock:
                self.own_requests.append(OwnRequest(messages, text, script.step))
            if text is None:
                respond(handler, 500, {"error": {"message": "no summaries here", "type": "server_error"}})
                return
            message = {"role": "assistant", "content": text}
        said = self.counter.count(message)
        with self._lock:
            spent = self.main if is_main else self.own
            spent.calls, spent.read = spent.calls + 1, spent.read + read
            spent.fresh, spent.output = spent.fresh + fresh, spent.output + said
        usage = {
            "prompt_tokens": read + fresh,
            "completion_tokens": said,
            "total_tokens": read + fresh + said,
            "prompt_tokens_details": {"cached_tokens": read},
        }
        send(handler, body, message, usage)

    def _look_up(self, messages: Sequence[RawMessage]) -> tuple[int, int]:
        """Return the tokens of a request that earlier ones began with, in blocks, and the others."""
        whole, same, is_cached, prefix = self._head, self._head if self._cache else 0, True, ""
        for message in messages:
            tokens = self.counter.count(message)
            prefix = str(hash((prefix, json.dumps(message, sort_keys=True))))
            is_cached = is_cached and prefix in self._cache
            same += tokens if is_cached else 0
            whole += tokens
            self._cache.add(prefix)
        read = same // _BLOCK * _BLOCK if same >= _LEAST_CACHED else 0
        return read, whole - read


def is_same_end(messages: Sequence[RawMessage], client: Sequence[RawMessage]) -> bool:
    last, wanted = messages[-1], client[-1]
    return last["role"] == wanted["role"] and get_text(wanted) in get_text(last)


def send(handler: BaseHTTPRequestHandler, body: RawMessage, message: RawMessage, usage: RawMessage) -> None:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    head = {"id": "chatcmpl-played", "created": 1, "model": body.get("model")}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        respond(handler, 200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        return
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
    delta = {"role": "assistant", "content": message.get("content"), **({"tool_calls": calls} if calls else {})}
    chunks = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    )
    events = [json.dumps({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    stream = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
    respond(handler, 200, stream, "text/event-stream")


@dataclass
class PlayedStep:
    """A step: what the client sent, what arrived upstream, and the labels of the response."""

    number: int
    client: list[RawMessage]
    arrived: list[RawMessage]
    labels: dict[str, str]


def play(
    recorded: Recorded,
    port: int,
    upstream: ScriptedUpstream,
    *,
    stop: int | None = None,
    model: str = "",
    pause: float = 0,
) -> Iterator[PlayedStep]:
    """Play a session up to step `stop`, excluded, with `pause` seconds behind each call; yields its steps."""
    history: list[RawMessage] = []
    tools = recorded.get("tools") or []
    upstream.begin(tools)
    headers = {"authorization": "Bearer sk-mock", "content-type": "application/json", "x-session-id": recorded["id"]}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)) as connection:
        for number, step in enumerate(recorded["steps"][:stop]):
            history += map(strip, step["delta"])
            response = strip(step["response_message"])
            upstream.expect(number, history, response)
            body = {"model": model or MODEL, "messages": history, **({"tools": tools} if tools else {})}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"step {number}: status {answer.status}: {content[:300]!r}")
            labels = {name: value for name, value in answer.getheaders() if name.startswith("x-palimpsest-")}
            yield PlayedStep(number, list(history), upstream.take(), labels)
            history.append(response)
            time.sleep(pause)
