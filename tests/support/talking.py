"""A conversation carried by the engine, with a small ceiling. Rule: nothing is made up but the words.

With steps of 300 characters and a ceiling of 4,000 tokens epochs open where they pay, long before the high mark.
"""

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.policy import Provider
from proxy.engine.ports import RequestBody
from proxy.engine.recall.rounds import Run
from proxy.model.card import Card
from proxy.model.exchange import ClientRequest, Headers
from tests.support.compacting import Workshop
from tests.support.engine import (
    JSON,
    LIMIT,
    Engine,
    RecordingClient,
    ScriptedResponse,
    ScriptedUpstream,
    Sent,
    wait_out,
)
from tests.support.kept_log import KeptLog
from tests.support.managing import Message, make_history, spell

NAME: Headers = ((b"x-palimpsest-session", b"talk"), (b"authorization", b"Bearer sk-1"))
MOST_STEPS = 150
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


class TalkingUpstream(ScriptedUpstream):
    """Answers every request with another word."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count(1)

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        self.calls.append(Sent(method, target, headers, body))
        message = {"role": "assistant", "content": f"word {next(self._numbers)}"}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return ScriptedResponse(json.dumps(answer).encode(), headers=JSON, ending="whole")

    @property
    def bodies(self) -> list[bytes]:
        """What was sent, in order."""
        return [call.body for call in self.calls if isinstance(call.body, bytes)]


class Talk:
    """The engine over a log; `ask` is a call of the client's, `reopen` a restart."""

    def __init__(
        self,
        ceiling: int | None = 4000,
        upstream: ScriptedUpstream | None = None,
        provider: Provider | None = None,
        *,
        card: Card | None = None,
        has_reports: bool = False,
        run: Run | None = None,
    ) -> None:
        """`card` is what is known of every model; with `has_reports` the upstream is asked for summaries.

        Models recall by `run`, or not at all.
        """
        self._run = run
        self._ceiling = ceiling
        self._provider = provider
        self._card, self._has_reports = card, has_reports
        self.upstream: Any = upstream or TalkingUpstream()
        self.exchanges: list[str] = []
        self.session = ""
        self.engine: Engine
        self.step = self.opened = 0
        self.was_opened = False
        self.log: Any = KeptLog()
        self._open(None)

    def _open(self, after: Engine | None) -> None:
        parts = self.engine = self.build(self.log, self._ceiling, self._provider, after)
        gate = DurabilityWaiter(self.log, 5_000)
        self.care = EpochAdmin(parts.controller.states, self.log, gate, parts.bus, parts.ids)

    def build(self, log: Any, ceiling: int | None, provider: Provider | None, after: Any) -> Any:
        """The engine, after another one that was stopped, if that is given."""
        known: Any = {"archive": log, "after": after, "provider": provider, "card": self._card}
        if self._has_reports:
            return Workshop(policy=CompactionPolicy(), ceiling=ceiling or 0, upstream=self.upstream, **known)
        return Engine(self.upstream, ceiling=ceiling, run=self._run, **known)

    async def ask(self, messages: Sequence[Message], *headers: tuple[bytes, bytes], **members: Any) -> RecordingClient:
        """One call, carried to its end; its answer is read when that is needed."""
        client = RecordingClient()
        request = ClientRequest(
            "POST", b"/v1/chat/completions", (*NAME, *headers), spell(messages, tools=TOOLS, **members)
        )
        await wait_out(self.engine.begin(request, "chat_completions", client))
        labels = dict(client.labels)
        self.exchanges.append(labels[b"x-palimpsest-exchange"].decode())
        self.session = labels[b"x-palimpsest-session"].decode()
        self.was_opened = labels.get(b"x-palimpsest-notice", b"").startswith(b"compacted")
        self.opened += self.was_opened
        return client

    async def grow(self, steps: int, start: int = 1, size: int = 300) -> list[Message]:
        """The calls of an agent that takes so many steps, from one on; its history after them."""
        history = make_history(steps, size)
        for self.step in range(start, steps + 1):
            await self.ask(history[: 2 + 2 * self.step])
        return history

    async def grow_to(self, epochs: int, size: int = 300) -> list[Message]:
        """The calls of an agent, from where it is, until so many epochs have been opened and one more call was made."""
        history = make_history(MOST_STEPS, size)
        while self.opened < epochs or self.was_opened:
            self.step += 1
            assert self.step <= MOST_STEPS, f"{MOST_STEPS} steps have opened {self.opened} epochs"
            await self.ask(history[: 2 + 2 * self.step])
        return history[: 2 + 2 * self.step]

    async def settle(self) -> None:
        """Have all done that goes on beside the calls."""
        assert await self.engine.tasks.finish(LIMIT)

    async def reopen(self) -> None:
        """Stop, and start again with the same log."""
        await self.settle()
        await self.log.reopen()
        self._open(self.engine)

    async def close(self) -> None:
        """Stop for good; nothing may be wrong with the log."""
        assert await self.engine.tasks.finish(LIMIT)
        faults, dropped = (await self.log.verify()).faults, self.log.health.dropped
        await self.log.close()
        assert (faults, dropped) == ((), 0)
