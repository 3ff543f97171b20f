"""Clients whose history we hold, on each wire. Rule: the upstream gives the answers that the test has queued."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from proxy.engine.history.policy import NudgePolicy
from proxy.engine.policy import Provider
from proxy.engine.ports import RequestBody
from proxy.engine.recall.rounds import Run
from proxy.model.exchange import ClientRequest, Headers
from proxy.wire import FORMATS
from tests.support.engine import (
    JSON,
    LIMIT,
    STREAM,
    Engine,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    Sent,
    wait_out,
)
from tests.support.kept_log import KeptLog

Wire = Literal["chat_completions", "responses", "anthropic_messages"]
WIRES: tuple[Wire, ...] = ("chat_completions", "responses", "anthropic_messages")
Message = dict[str, Any]

_PATHS = {
    "chat_completions": b"/v1/chat/completions",
    "responses": b"/v1/responses",
    "anthropic_messages": b"/v1/messages",
}
KEY: Headers = ((b"authorization", b"Bearer sk-1"),)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def result(wire: Wire, call: str, text: str = "done") -> Message:
    """The result of a call."""
    if wire == "chat_completions":
        return {"role": "tool", "tool_call_id": call, "content": text}
    if wire == "responses":
        return {"type": "function_call_output", "call_id": call, "output": text}
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


def answer(wire: Wire, text: str = "", *calls: str, finish: str = "") -> Message:
    """A response with a text and calls."""
    if wire == "chat_completions":
        spelled = [{"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id in calls]
        message: Message = {"role": "assistant", "content": text or None, "refusal": None}
        if spelled:
            message["tool_calls"] = spelled
        done = finish or ("tool_calls" if calls else "stop")
        return {"id": "c1", "choices": [{"index": 0, "message": message, "finish_reason": done}]}
    if wire == "responses":
        said = [{"type": "output_text", "text": text, "annotations": []}]
        items: list[Message] = (
            [{"type": "message", "id": "msg_1", "role": "assistant", "content": said}] if text else []
        )
        items += [
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "ls", "arguments": "{}"} for id in calls
        ]
        return {"id": "resp_1", "object": "response", "status": "completed", "output": items}
    blocks: list[Message] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": id, "name": "ls", "input": {}} for id in calls]
    done = finish or ("tool_use" if calls else "end_turn")
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": blocks, "stop_reason": done}


class QueuedUpstream(ScriptedUpstream):
    """Answers with what is queued; without anything queued, with another word each time."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.wire: Wire = wire
        self.queue: deque[ScriptedResponse | Exception] = deque()
        self.words = 0

    def reply(self, value: Message, status: int = 200) -> None:
        """Queue a response that is no stream."""
        self.queue.append(ScriptedResponse(json.dumps(value).encode(), status=status, headers=JSON, ending="whole"))

    def stream(self, *pieces: bytes, ending: Any = "eof") -> ScriptedResponse:
        """Queue a stream."""
        response = ScriptedResponse(*pieces, headers=STREAM, ending=ending)
        self.queue.append(response)
        return response

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        self.calls.append(Sent(method, target, headers, body))
        if not self.queue:
            self.words += 1
            self.reply(answer(self.wire, f"word {self.words}"))
        response = self.queue.popleft()
        if isinstance(response, Exception):
            raise response
        return response

    @property
    def sent(self) -> Message:
        """The body that was sent last."""
        body = self.calls[-1].body
        assert isinstance(body, bytes)
        whole: Message = json.loads(body)
        return whole


class HeldClient:
    """A client that sends only what is new, and the engine over a log."""

    def __init__(
        self,
        wire: Wire,
        *,
        ceiling: int | None = None,
        nudges: NudgePolicy | None = None,
        run: Run | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.wire: Wire = wire
        self.form = FORMATS[wire]
        self.upstream = QueuedUpstream(wire)
        self._options: dict[str, Any] = {"ceiling": ceiling, "nudges": nudges, "run": run, "provider": provider}
        self.log: Any = KeptLog()
        self.engine: Engine
        self.client = RecordingClient()
        self.lost = 0  # records that the log has refused
        self._open(None)

    def _open(self, after: Engine | None) -> None:
        self.engine = Engine(self.upstream, archive=self.log, after=after, **self._options)
        if after is not None:
            self.engine.clock.advance(after.clock.monotonic() - self.engine.clock.monotonic())

    async def call(
        self,
        messages: Sequence[Message] | str = (),
        *headers: tuple[bytes, bytes],
        history: str = "server",
        session: str = "tick",
        **members: Any,
    ) -> RecordingClient:
        """Make one call, and wait for its end. `headers` come before those of the session."""
        task, client = self.begin(messages, *headers, history=history, session=session, **members)
        await wait_out(task)
        return client

    def begin(
        self,
        messages: Sequence[Message] | str = (),
        *headers: tuple[bytes, bytes],
        history: str = "server",
        session: str = "tick",
        **members: Any,
    ) -> "tuple[asyncio.Task[None], RecordingClient]":
        """Begin a call."""
        own = [(b"x-palimpsest-session", session.encode())] if session else []
        own += [(b"x-palimpsest-history", history.encode())] if history else []
        brought = messages if isinstance(messages, str) else list(messages)
        body = json.dumps({"model": "m", self.form.items_key: brought, **members}).encode()
        request = ClientRequest("POST", _PATHS[self.wire], (*headers, *KEY, *own), body)
        self.client = RecordingClient()
        return self.engine.begin(request, self.wire, self.client), self.client

    @property
    def items(self) -> list[Message]:
        """The messages that were sent last."""
        found: list[Message] = self.upstream.sent[self.form.items_key]
        return found

    @property
    def words(self) -> list[str]:
        """What the messages say that were sent last; of a call and a result its id."""
        told = [self.form.parse_message(json.dumps(each).encode()) for each in self.items]
        return [each.text or "".join(call.id for call in each.calls) for each in told]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.engine.clock.advance(seconds)

    async def reopen(self) -> None:
        """Stop, and start again with the same log."""
        assert await self.engine.tasks.finish(LIMIT)
        await self.log.reopen()
        self._open(self.engine)

    async def close(self) -> None:
        """Stop for good; nothing may be wrong with the log."""
        assert await self.engine.tasks.finish(LIMIT)
        faults, dropped = (await self.log.verify()).faults, self.log.health.dropped
        await self.log.close()
        assert (faults, dropped) == ((), self.lost)

    async def find_session(self) -> str:
        """The id of the only session."""
        (row,) = await self.log.list_sessions()
        found: str = row.id
        return found
