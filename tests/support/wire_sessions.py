"""Sessions of an agent on a wire whose upstream checks all its rules (`strict_messages`, `strict_responses`).

Rule: as in `bound_sessions`; what differs between wires is in the classes that derive from this one.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from proxy.model.epoch import Plan
from proxy.model.events import Planned
from proxy.model.exchange import ClientRequest
from tests.support.bound_sessions import BoundSession
from tests.support.engine import RecordingClient, wait_out
from tests.support.strict_upstream import Check
from tests.support.talking import NAME

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class WireSession(BoundSession):
    """One session; `body` has further members of its requests, `options` are those of `BoundSession`."""

    count_target: bytes
    counted: tuple[str, ...]  # the members of a request whose tokens are counted

    def __init__(
        self,
        ceiling: int,
        *,
        model: str,
        other: str,
        check: Check = "error",
        is_stream: bool = True,
        body: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self.plans: list[Plan] = []
        super().__init__(ceiling, check=check, **options)
        self.model, self.own, self.other = model, model, other
        self.is_stream, self.more = is_stream, body

    def _listen(self) -> None:
        super()._listen()
        self.talk.engine.bus.subscribe(Planned, lambda event: self.plans.append(event.plan))

    async def try_direct(self, request: dict[str, Any]) -> str:
        """Send a request without the proxy. Return why it is refused, or nothing."""
        response = await self.upstream.send("POST", self.target, (), json.dumps(request).encode())
        told = json.loads(response.pieces[0]) if response.status >= 400 else {"error": {"message": ""}}
        return str(told["error"]["message"])

    async def count(self, mode: str = "") -> RecordingClient:
        """Let the upstream count the tokens of the next call."""
        body, client = json.loads(self.write()), RecordingClient()
        kept = {name: body[name] for name in self.counted if name in body}
        headers = (*NAME, (b"x-palimpsest-mode", mode.encode())) if mode else NAME
        request = ClientRequest("POST", self.count_target, headers, json.dumps(kept).encode())
        await wait_out(self.talk.engine.begin_count(request, self.wire, client))
        return client
