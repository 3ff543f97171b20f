"""An engine that makes summaries, over fakes: whoever is asked for one answers as the test says."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from benchmarks import chat_wires
from proxy.context.budget import BudgetPolicy
from proxy.context.conversation import BuilderPolicy, SnapshotPolicy
from proxy.context.message_features import extract_features
from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.call.calls import Calls
from proxy.engine.compaction.credentials import CredentialCache
from proxy.engine.compaction.job import SentRequest
from proxy.engine.compaction.model_call import ModelCaller
from proxy.engine.compaction.policy import CompactionPolicy, PromptHook
from proxy.engine.compaction.spending import SpendBudget
from proxy.engine.compaction.summarizer import Summarizer
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.context.controller import ContextController
from proxy.engine.context.fallback import FallbackChain
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.session_context import SessionContext
from proxy.engine.exchange import ExchangeService
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.snapshots import SnapshotMemory
from proxy.engine.models import Models
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import RequestBody
from proxy.engine.request_resolver import Route
from proxy.engine.stages.order import order_stages
from proxy.engine.stages.summaries import SummaryWatch
from proxy.engine.text_jobs import TextJobs
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import Card
from proxy.model.epoch import Epoch, Summary
from proxy.model.events import AnswerRead, ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, Opening, Usage
from proxy.wire import FORMATS
from proxy.wire.summary_request import make_target
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
from tests.support.leases import MemoryLeases
from tests.support.managed import NAMED, spell_as_client
from tests.support.managing import MODEL, Message, QuarterTokens, StatedCatalog, make_planner, make_subject

REPORT = """## Goal
- The tests of the parser are to be mended.

## Completed
- The parts up to here were looked at.

## Remaining
- The other parts are pending.
"""
FREE = CompactionPolicy(spend_fraction=100.0)
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run it.", "parameters": {"type": "object"}}}
OWN = (b"written by the proxy palimpsest", b'"You write ')

CHAT = "chat_completions"
WIRES = {CHAT: chat_wires.WIRES["chat"], "responses": chat_wires.WIRES["responses"]}
WIRES["anthropic_messages"] = chat_wires.WIRES["messages"]
"""How the messages of tests are written on each wire, and read."""
_FINISHES = {"responses": {"length": "max_output_tokens"}, "anthropic_messages": {"length": "max_tokens"}}

NO_PROVIDERS: Mapping[str, Provider] = MappingProxyType({})

Reply = bytes | ScriptedResponse | Exception | None
Summarise = Callable[[bytes], Reply]


def is_own(body: bytes) -> bool:
    """Whether a call is one of ours."""
    return any(sign in body for sign in OWN)


def say(text: str | None, *, finish: str = "stop", sent: int | None = 0, **message: Any) -> bytes:
    """An answer, which says nothing of its usage where `sent` is None."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": sent, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": sent}}
    used = {} if sent is None else {"usage": usage}
    return json.dumps({"id": "a", "object": "chat.completion", "choices": [choice], **used}).encode()


def spell_request(wire: str, value: Any) -> bytes:
    """A client's request on a wire, from one of Chat Completions."""
    if wire == CHAT:
        return spell_as_client(value)
    messages = value.pop("messages")
    return json.dumps({**value, **WIRES[wire].write(messages, [TOOL])}, ensure_ascii=False).encode()


def read_request(wire: str, body: bytes) -> list[Message]:
    """The messages of a request as those of Chat Completions."""
    return list(WIRES[wire].read(json.loads(body), chat_wires.Spelling()))


def spell_answer(answer: bytes, wire: str) -> bytes:
    """An answer on a wire, from one of Chat Completions."""
    if wire == CHAT:
        return answer
    told = json.loads(answer)
    (choice,), used = told["choices"], told["usage"]
    message, reason = choice["message"], choice["finish_reason"]
    finish, sent = _FINISHES[wire].get(reason, ""), used["prompt_tokens"]
    if wire == "responses":
        usage: dict[str, Any] = {"input_tokens": sent, "output_tokens": used["completion_tokens"]}
        usage["input_tokens_details"] = {"cached_tokens": sent}
        ended = {"status": "incomplete" if finish else "completed", "incomplete_details": {"reason": finish}}
        return json.dumps({"output": chat_wires.write_items(message), "usage": usage, **ended}).encode()
    usage = {"input_tokens": 0, "cache_read_input_tokens": sent, "output_tokens": used["completion_tokens"]}
    content = chat_wires.write_blocks(message)
    ended = {"role": "assistant", "stop_reason": finish or "end_turn"}
    return json.dumps({"type": "message", "content": content, "usage": usage, **ended}).encode()


def give_report(body: bytes) -> bytes:
    """A model that does as it is asked, each time in other words."""
    return say(f"{REPORT}- And so on ({len(body)}).\n", sent=len(body) // 4)


def fail(body: bytes) -> ScriptedResponse:
    """A model that is broken."""
    return ScriptedResponse(b'{"error":{"message":"broken"}}', status=500, headers=JSON, ending="whole")


class Model(ScriptedUpstream):
    """Answers clients with a word, and us by `summarise`; None never comes. `count` says how long a prompt was."""

    def __init__(self, summarise: Summarise = give_report, name: str = "main", wire: str = CHAT) -> None:
        super().__init__(name)
        self.count: Callable[[bytes], int | None] = lambda body: len(body) // 4
        self.wire = wire
        self.summarise = summarise
        self.sent: list[bytes] = []
        self.asked: list[bytes] = []
        self.was_asked = asyncio.Event()

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        self.calls.append(Sent(method, target, headers, body))
        reply: Reply
        if is_own(body):
            self.asked.append(body)
            self.was_asked.set()
            reply = self.summarise(body)
        else:
            self.sent.append(body)
            reply = say("Looking.", sent=self.count(body))
        if reply is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(reply, Exception):
            raise reply
        assert reply is not None
        if not isinstance(reply, bytes):
            return reply
        return ScriptedResponse(spell_answer(reply, self.wire), headers=JSON, ending="whole")


class Workshop(Engine):
    """The engine, over a log of its own unless another is given. What is to be done later is in `later`."""

    def __init__(
        self,
        summarise: Summarise = give_report,
        policy: CompactionPolicy = FREE,
        *,
        ceiling: int = 8_000,
        window: int | None = 1_000_000,
        provider: Provider | None = None,
        providers: Mapping[str, Provider] = NO_PROVIDERS,
        others: Sequence[ScriptedUpstream] = (),
        hook: PromptHook | None = None,
        wire: str = CHAT,
        archive: Any = None,
        after: "Workshop | None" = None,
        upstream: Any = None,
        card: Card | None = None,
    ) -> None:
        """Make one whose upstream is the one given, or a model that writes summaries."""
        engine_policy = EnginePolicy(commit_wait_ms=60_000)
        self.model: Model = upstream or Model(summarise, wire=wire)
        self.wire = wire
        log: Any = archive or (after.archive if after is not None else KeptLog())
        super().__init__(self.model, engine_policy, archive=log, is_fresh=after is None, after=after, provider=provider)
        self.log = log
        self.later: list[Callable[[], object]] = []
        self.catalog = StatedCatalog(window, card)
        providers = {**providers, "main": provider} if provider is not None else {**providers}
        models = Models(
            self.catalog,
            TokenCounter(QuarterTokens()),
            BudgetPolicy(ceiling),
            self.clock,
            self.tasks.spawn,
            providers=providers,
        )
        self.memory, planner = ContextCaches(log, models.counter, 1 << 26), make_planner(providers=providers)
        self.leases = MemoryLeases(self.clock)
        count = lambda text: QuarterTokens().count(text, "o200k_base")[0]  # noqa: E731
        texts = TextJobs({"count": count, "extract": extract_features})
        caller = ModelCaller(policy, engine_policy, self.relay, self.memory, models, self.ids)
        routes = [Route(self.model), *map(Route, others)]
        self.summarizer = Summarizer(caller, hook, routes, b"secret", texts)
        self.remembered = SessionMemory(archive=log, gate=self.gate, clock=self.clock, texts=texts)
        call_later = lambda seconds, work: self.later.append(work)  # noqa: E731
        self.jobs = BackgroundJobs(
            bus=self.bus,
            models=models,
            call_later=call_later,
            leases=self.leases,
            owner="me",
            lease_seconds=2 * policy.time_limit_seconds,
        )
        self.worker = SummaryWorker(
            summarizer=self.summarizer,
            planner=planner,
            builder_policy=BuilderPolicy(),
            credentials=CredentialCache(self.clock, call_later),
            jobs=self.jobs,
            remember=self.remembered.remember,
        )
        snapshots = SnapshotMemory(memory=self.remembered, worker=self.worker, policy=SnapshotPolicy())
        self.watch = SummaryWatch(worker=self.worker, start_memory=snapshots.start)
        states = StateReader(self.memory, models, self.bus, self.clock, is_asked=self.remembered.is_due)
        chain = FallbackChain(states, planner, self.bus, hard_wait_seconds=30.0, memory=snapshots)
        self.controller = ContextController(states, chain, self.worker, self.bus)
        calls = Calls(engine_policy, self.relay, self.tasks)
        stages = order_stages(self.controller, calls, summaries=self.watch)
        self.exchanges = ExchangeService(calls, FORMATS, self.reception, self.controller, stages)

    async def call(
        self, messages: Sequence[Message], headers: Headers = (), *, model: str = MODEL, **members: Any
    ) -> RecordingClient:
        """A client's call, to its end; what comes of it goes on beside."""
        client = RecordingClient()
        body = spell_request(self.wire, {"model": model, "messages": messages, **members})
        request = ClientRequest("POST", make_target(FORMATS[self.wire]), (*NAMED, *headers), body)
        await wait_out(self.begin(request, self.wire, client))
        assert client.is_whole, client.error
        return client

    async def read_state(self, messages: Sequence[Message], **options: Any) -> SentRequest:
        """How a request stands, as if it had been sent as it came."""
        subject = make_subject(messages, **options)
        context = await self.memory.contexts.open(subject)
        epoch, state_reader = context.find(subject.model, subject), self.controller.states
        state = await state_reader.read(subject, context, epoch, state_reader.find_budget(subject))
        return SentRequest(state, subject.split.content)

    async def settle(self) -> None:
        """Have all done that goes on beside the calls."""
        assert await self.tasks.finish(LIMIT)

    async def ask(self, messages: Sequence[Message], headers: Headers = (), **members: Any) -> list[Message]:
        """A client's call with all that comes of it; the messages that went upstream."""
        await self.call(messages, headers, **members)
        await self.settle()
        return read_request(self.wire, self.model.sent[-1])

    @property
    def session(self) -> str:
        """The only session's id."""
        (only,) = {str(opening.session.id) for opening in self.log.of(Opening)}
        return only

    @property
    def context(self) -> SessionContext:
        """What holds in it."""
        context = self.memory.contexts.get(self.session)
        assert context is not None
        return context

    @property
    def summaries(self) -> list[Summary]:
        """All in the log, oldest first."""
        return list(self.log.of(Summary))

    @property
    def epochs(self) -> list[Any]:
        """All in the log, oldest first."""
        return list(self.log.of(Epoch))


def record_usage(budget: SpendBudget, session: str, usage: Usage) -> None:
    """Have a call of the session's own cost so much."""
    told: Any = ("x0", session, "managed", "chat_completions", "main", 200, "complete", 1, 1, 0.1, 0.1)
    ended = ExchangeRecorded(*told)
    budget.record_exchange(msgspec.structs.replace(ended, is_readable=True, model=MODEL))
    budget.record_answer(AnswerRead("x0", 0, usage))


def list_reports(messages: Sequence[Message]) -> list[Message]:
    """The summaries in what was sent."""
    return [each for each in messages if str(each["content"]).startswith("[Report by palimpsest")]


async def in_time(work: Awaitable[Any]) -> Any:
    """What comes of it; a failure where it takes too long."""
    async with asyncio.timeout(LIMIT):
        return await work
