"""Calls that somebody stands by. Rule: the rescuer knows two words, and the test decides when it is done."""

import asyncio
from collections import deque
from typing import Any

from proxy.engine.call.calls import Calls
from proxy.engine.call.open_exchange import OpenExchange, Refusal, Retry, Start
from proxy.engine.call.relay import Relay, Send
from proxy.engine.exchange import ExchangeService
from proxy.engine.policy import EnginePolicy
from proxy.engine.ports import RequestBody
from proxy.engine.stages.order import order_stages
from proxy.model.epoch import Plan
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import Headers, Round
from proxy.model.manifest import make_manifest
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.responses import Responses
from tests.support.engine import LIMIT, Engine, ScriptedResponse, ScriptedUpstream, Sent

SHORT = b'{"model":"m","messages":[],"short":true}'
TOO_LONG = b'{"error":{"message":"too long","code":"context_length_exceeded"}}'
TOO_LONG_EVENT = b"data: " + TOO_LONG + b"\n\n"


class ScriptedRescuer:
    """Takes an answer with "too long" in it for a refusal, and one with "content" for an answer."""

    def __init__(self, *, is_guarded: bool = False, retry: bytes | None = SHORT, plan: Plan | None = None) -> None:
        self.is_guarded = is_guarded
        self.retry = retry
        self.plan = plan
        self.exchange = ""
        self.upstream = ""
        self.refusals: list[Refusal] = []
        self.read = self.accepted = 0
        self.looked, self.asked, self.may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    def read_start(self, content: bytes) -> Start:
        self.read += 1
        self.looked.set()
        whole = content[: content.rfind(b"\n\n") + 1]
        return "refused" if b"too long" in whole else "content" if b'"content"' in whole else "undecided"

    async def find_retry(self, refusal: Refusal, hop: int = 0) -> Retry | None:
        self.refusals.append(refusal)
        self.asked.set()
        await self.may_answer.wait()
        retry, self.retry = self.retry, None
        if retry is None or b"too long" not in refusal.content:
            return None
        return Retry(retry, Round(self.exchange, 1, self.upstream, make_manifest(retry)), self.plan)

    async def accept(self) -> None:
        self.accepted += 1

    async def wait_until_asked(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.asked.wait()


class RescuedRelay(Relay):
    """Every call of it has the rescuer standing by."""

    def __init__(self, rescuer: ScriptedRescuer, *parts: Any) -> None:
        super().__init__(*parts)
        self._rescuer = rescuer

    async def carry(self, exchange: OpenExchange, send: Send, body: bytes | RequestBody) -> None:
        exchange.make_retries, exchange.is_guarded = lambda: self._rescuer, self._rescuer.is_guarded
        self._rescuer.exchange, self._rescuer.upstream = exchange.id, exchange.upstream
        await super().carry(exchange, send, body)


class RescuedEngine(Engine):
    """The engine's parts with such a relay."""

    def __init__(self, rescuer: ScriptedRescuer, upstream: ScriptedUpstream, **options: Any) -> None:
        super().__init__(upstream, **options)
        parts = (self.archive, self.gate, self.readings, self.bus, self.clock)
        self.relay = RescuedRelay(rescuer, *parts)
        formats = {form.name: form for form in (ChatCompletions(), Responses(), AnthropicMessages())}
        policy = options.get("policy") or EnginePolicy()
        calls = Calls(policy, self.relay, self.tasks)
        stages = order_stages(self.controller, calls)
        self.exchanges = ExchangeService(calls, formats, self.reception, self.controller, stages)


class UpstreamInTurn(ScriptedUpstream):
    """Gives one answer after the other; None never comes."""

    def __init__(self, *answers: ScriptedResponse | Exception | None) -> None:
        super().__init__()
        self._answers = deque(answers)
        self.starved = asyncio.Event()
        self.listings: list[Headers] = []

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        if target == b"/v1/models":
            self.listings.append(headers)
            raise UpstreamUnreachable("there is no list of models")
        self.calls.append(Sent(method, target, headers, body))
        answer = self._answers.popleft()
        if answer is None:
            self.starved.set()
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    @property
    def is_ready(self) -> bool:
        """Whether there is an answer for the next call."""
        return bool(self._answers)

    def prepare(self, answer: ScriptedResponse | Exception | None) -> None:
        """One more answer."""
        self._answers.append(answer)

    async def wait_until_starved(self) -> None:
        """Wait until somebody asks for an answer that never comes."""
        async with asyncio.timeout(LIMIT):
            await self.starved.wait()
