"""Sessions of an agent whose provider compacts conversations itself, and checks what it gets back.

Rule: as in `wire_sessions`; what goes on beside a call ends before the next one.
"""

import json
from typing import Any

from proxy.engine.policy import Provider
from proxy.model.epoch import Summary
from tests.support.compacting import FREE, REPORT, Workshop, is_own
from tests.support.engine import RecordingClient, ScriptedResponse
from tests.support.message_sessions import MessageSession
from tests.support.response_sessions import ResponseSession
from tests.support.strict_messages import StrictMessages
from tests.support.strict_messages import answer as answer_message
from tests.support.strict_responses import StrictResponses
from tests.support.strict_responses import answer as answer_response
from tests.support.talking import Talk
from tests.support.wire_sessions import WireSession

COMPACTING = Provider(has_compaction=True)
ASKED = (b'"compaction":{"type":"summarize"}', b'{"type":"compaction_trigger"}')


def is_asked(body: bytes) -> bool:
    """Whether a request of ours asks for something."""
    return is_own(body) or any(sign in body for sign in ASKED)


class CompactingTalk(Talk):
    """The engine with summaries, on one wire."""

    wire = "anthropic_messages"

    def set_provider(self, provider: Provider) -> None:
        """Have other settings from the next start on."""
        self._provider = provider

    def build(self, log: Any, ceiling: int | None, provider: Provider | None, after: Any) -> Any:
        assert ceiling is not None
        options = {"archive": log, "ceiling": ceiling, "provider": provider, "after": after, "upstream": self.upstream}
        return Workshop(policy=FREE, wire=self.wire, **options)


class ResponsesTalk(CompactingTalk):
    """The same on the Responses wire."""

    wire = "responses"


class ReportingMessages(StrictMessages):
    """Writes reports where it is asked for one."""

    async def send(self, method: str, target: bytes, headers: Any, body: Any) -> ScriptedResponse:
        response = await super().send(method, target, headers, body)
        if response.status != 200 or not is_own(body):
            return response
        blocks = [{"type": "text", "text": f"{REPORT}- And so on ({len(body)}).\n"}]
        usage = {"input_tokens": len(body) // 4, "output_tokens": 99}
        message = {"id": "msg_0", "type": "message", "role": "assistant", "model": "m", "content": blocks}
        return answer_message(
            message | {"stop_reason": "end_turn", "usage": usage}, is_stream=b'"stream": true' in body
        )


class ReportingResponses(StrictResponses):
    """Writes reports where it is asked for one. It reads nearly all of each request from its cache."""

    def _respond(self, request: dict[str, Any], report: str) -> dict[str, Any]:
        response = super()._respond(request, report)
        response["usage"]["input_tokens_details"]["cached_tokens"] = int(0.95 * response["usage"]["input_tokens"])
        return response

    async def send(self, method: str, target: bytes, headers: Any, body: Any) -> ScriptedResponse:
        response = await super().send(method, target, headers, body)
        if response.status != 200 or not is_own(body):
            return response
        part = {"type": "output_text", "text": f"{REPORT}- And so on ({len(body)}).\n"}
        usage = {"input_tokens": len(body) // 4, "output_tokens": 99}
        output = [{"id": "msg_0", "type": "message", "role": "assistant", "content": [part]}]
        whole = {"id": "resp_0", "object": "response", "status": "completed", "output": output, "usage": usage}
        return answer_response(whole, is_stream=b'"stream": true' in body)


class _Compacting(WireSession):
    """What both wires have in common."""

    async def call(self, mode: str = "", *, keeps: bool = True, is_pinned: bool = False) -> RecordingClient:
        client = await super().call(mode, keeps=keeps, is_pinned=is_pinned)
        await self.talk.engine.settle()
        return client

    def _count(self, client: RecordingClient, sent: list[Any], told: int) -> None:
        super()._count(client, [call for call in sent if not is_asked(call.body)], told)

    @property
    def asked(self) -> list[Any]:
        """The calls in which the provider was asked for a compaction."""
        return [call for call in self.upstream.calls if any(sign in call.body for sign in ASKED)]

    @property
    def sent_bodies(self) -> list[bytes]:
        """What went upstream for the client."""
        return [call.body for call in self.upstream.calls if not is_asked(call.body)]

    @property
    def sent_requests(self) -> list[dict[str, Any]]:
        """The same, decoded."""
        return [json.loads(body) for body in self.sent_bodies]

    def find_block(self, request: dict[str, Any]) -> Any:
        """The compaction that a request begins with."""
        items = [each for each in request[self.items_key] if each.get("role") != "developer"]
        content = items[0].get("content")
        parts = [items[0], *(content if isinstance(content, list) else ())]
        return next((part for part in parts if part.get("type") == "compaction"), None)

    async def list_summaries(self) -> list[Summary]:
        """All summaries in the log."""
        return list(await self.talk.log.list_summaries(self.talk.session))

    async def run_until(self, blocks: int, most: int = 300) -> None:
        """Carry calls until so many of them had a compaction."""
        for _ in range(most):
            await self.act()
            if sum(self.find_block(request) is not None for request in self.sent_requests) >= blocks:
                return
        raise AssertionError("there was no compaction")


class CompactingMessages(_Compacting, MessageSession):
    """A session on Anthropic's wire."""

    def make_upstream(self, check: Any, member: Any, seed: int) -> StrictMessages:
        upstream = ReportingMessages(check, seed)
        upstream.has_compaction = True
        return upstream

    def make_talk(self, ceiling: int, provider: Provider | None, **options: Any) -> Talk:
        return CompactingTalk(ceiling, self.upstream, provider or COMPACTING, **options)


class CompactingResponses(_Compacting, ResponseSession):
    """A session on the Responses wire."""

    def make_upstream(self, check: Any, member: Any, seed: int) -> StrictResponses:
        return ReportingResponses(seed)

    def make_talk(self, ceiling: int, provider: Provider | None, **options: Any) -> Talk:
        return ResponsesTalk(ceiling, self.upstream, provider or COMPACTING, **options)
