"""An engine whose upstream says what it is told to, and the messages of a made-up conversation."""

import json
from collections.abc import Sequence
from typing import Any

from proxy.engine.policy import EnginePolicy
from proxy.model.exchange import ClientRequest, Headers, Opening
from proxy.model.lineage import Adoption, Lineage
from tests.support.engine import JSON, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream
from tests.support.scripted import LIMIT

Message = dict[str, Any]
SHORT = "Indeed."
KEEP: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_Zk93fQpX", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def bot(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Setup:
    """An engine whose upstream says what it is told to."""

    def __init__(self, after: "Setup | None" = None, **policy: Any) -> None:
        chosen = EnginePolicy(**policy)
        self.upstream = ScriptedUpstream()
        self.engine: Engine = Engine(self.upstream, chosen, is_instant=True, after=after.engine if after else None)

    async def send(
        self, *messages: Message, answer: Message | None = None, key: str = "k", name: str = "", **fields: Any
    ) -> Lineage:
        """A call that goes all the way. `fields`: status, ending, and what else the body has."""
        status, ending = fields.pop("status", 200), fields.pop("ending", "whole")
        choices = fields.pop("choices", [{"index": 0, "message": answer or bot(SHORT), "finish_reason": "stop"}])
        content = json.dumps({"choices": choices}).encode()
        self.upstream.answer(ScriptedResponse(content, status=status, headers=JSON, ending=ending))
        await self.call(messages, key, name, **fields)
        return self.lineage

    async def call(self, messages: Sequence[Message], key: str = "k", name: str = "", **fields: Any) -> None:
        headers: Headers = ((b"authorization", f"Bearer {key}".encode()),)
        headers += ((b"x-session-id", name.encode()),) if name else ()
        body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
        request = ClientRequest("POST", b"/v1/chat/completions", headers, body)
        await self.engine.exchanges.carry(request, "chat_completions", RecordingClient())

    @property
    def lineage(self) -> Lineage:
        return self.engine.archive.of(Lineage)[-1]

    @property
    def session(self) -> str:
        return self.engine.archive.of(Opening)[-1].session.id

    @property
    def adoptions(self) -> list[Adoption]:
        return self.engine.archive.of(Adoption)

    async def settle(self) -> None:
        assert await self.engine.tasks.finish(LIMIT)

    def assert_nothing_in_mind(self) -> None:
        lineage = self.engine.lineage
        assert (lineage.open_exchanges, lineage.unread) == ({}, {})


CHAIN = (user("a"), bot(SHORT), user("b"))
