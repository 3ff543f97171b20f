"""Sessions of programs in this process: each call brings what is new, and the log has the rest (`engine/history`)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from proxy.engine.compaction.scheduling import JobSchedule
from proxy.engine.compaction.trigger import CompactionTrigger
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import LOG_SECONDS
from proxy.engine.history.loading import load_path
from proxy.engine.models import Models, PriceList
from proxy.engine.ports import Archive, Clock
from proxy.engine.request_resolver import RequestResolver
from proxy.engine.response_reader import ResponseReader
from proxy.engine.runtime import EngineBus, SystemIds, TaskRunner
from proxy.engine.turns.answers import (
    OnPart,
    PartReader,
    ReadAnswer,
    list_parts,
    read_message,
    read_response,
    tell,
    write_messages,
)
from proxy.engine.turns.calls import LocalResponse, make_call
from proxy.engine.turns.recording import CHAT, NewSession, RecordedTurn, TurnLog, TurnRecorder
from proxy.engine.turns.tools import ProgramTool, run_calls
from proxy.model.errors import BadRequest, Conflict, StoreUnavailable, UpstreamRefused
from proxy.model.events import DoomLoopDetected, EpochOpened, ReplyRecorded
from proxy.model.exchange import ClientRequest, Headers, ProgramCall, SessionKey
from proxy.model.lru import LruCache
from proxy.model.parts import MessagePart, ToolPart
from proxy.model.results import RecordResult, TokenUsage, TurnResult, count_usage
from proxy.wire.json_values import list_elements, read_object, read_text
from proxy.wire.streams import read_error
from proxy.wire.summary_request import list_headers, make_target

MOST_TURNS = 20
"""How many answers a model gives with tools unless a program says otherwise."""

_SUCCESS = range(200, 300)
_MOST_REPLIES, _MOST_QUOTED = 256, 300
_JSON: Headers = ((b"content-type", b"application/json"),)
_NO_TOKENS = TokenUsage()
_LEADING = frozenset({"system", "developer"})


class AnsweredTurn(msgspec.Struct, frozen=True):
    """An answer: the result for the program, the calls that it makes, and the exchange that the log has it as."""

    result: TurnResult
    calls: tuple[ToolPart, ...] = ()
    exchange: str = ""


class KnownHistory(NamedTuple):
    """What a session's history comes to: its system prompt, its answers, and the calls that wait for results."""

    system: str
    steps: int
    waiting: tuple[ToolPart, ...]


class _TurnNotes(msgspec.Struct, gc=False):
    """What has happened in a session since its last message was sent."""

    is_compacted: bool = False
    has_loop: bool = False


@dataclass(kw_only=True, eq=False)
class Conversations:
    """The sessions of programs at one engine. `cap` bounds the bytes of an answer that is kept."""

    exchanges: ExchangeService
    archive: Archive
    reader: ResponseReader
    recorder: TurnRecorder
    schedule: JobSchedule
    prices: PriceList
    tasks: TaskRunner
    bus: EngineBus
    cap: int
    noted: dict[str, _TurnNotes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.open = WeakValueDictionary[str, ProgramSession]()  # one for each, however often it is loaded
        self.replies = LruCache[str, str](_MOST_REPLIES)  # the newest node of an answer, by its exchange
        self._is_listening = False

    async def create(self, wanted: NewSession) -> "ProgramSession":
        """Begin a session, which is in the log then. Raises BadRequest, NotFound, Conflict and StoreUnavailable."""
        key = await self.recorder.create(wanted)
        found = ProgramSession(self, key, wanted.model, wanted.system_prompt)
        return self.open.setdefault(key.id, found)

    async def load(self, session: str) -> "ProgramSession":
        """Return a session of the log. Raises NotFound, StoreUnavailable, and Conflict if it cannot go on here."""
        if (known := self.open.get(session)) is not None:
            return known
        key, begun = await self.archive.find_key(session), await self._load_begun(session)
        history = await self.load_history(session)
        if begun is None and history is None:
            raise Conflict("this session has no complete answer, so that there is nothing to go on with")
        row = await self.archive.find_session(session)
        own = begun or NewSession(row.model, system_prompt=history.system if history is not None else "")
        found = ProgramSession(self, key, row.model or own.model, own.system_prompt, await self._sum_usage(session))
        found.restore(history)
        return self.open.setdefault(session, found)

    async def load_history(self, session: str) -> "KnownHistory | None":
        """Return the history of a session, None if it has none. Raises NotFound, StoreUnavailable and Conflict."""
        try:
            async with asyncio.timeout(LOG_SECONDS):
                path, _ = await load_path(self.archive, session, cap=self.cap, scan=0)
        except TimeoutError:
            raise StoreUnavailable("the log did not give the history of the session in time") from None
        if path is None:
            return None
        if path.wire != CHAT.name:
            raise Conflict(f"its history is in the format {path.wire}; programs speak {CHAT.name}")
        raws = list_elements(path.content[path.content.index(b"[") :] + b"]")
        first = read_object(raws[0].decode(errors="replace")) if raws else None
        system = read_text(first.get("content")) if first and first.get("role") in _LEADING else ""
        calls = [call for raw in path.answer for call in read_message(CHAT, raw)[2]]
        steps = sum([CHAT.reader.read_item(raw).role == "assistant" for raw in raws]) + len(path.answer)
        return KnownHistory(system, steps, tuple([call for call in calls if call.tool_call_id in path.waiting]))

    async def _load_begun(self, session: str) -> NewSession | None:
        """Return how a session was begun by a program, None if it was not."""
        for row in await self.archive.list_calls(session, 0, 1):
            if row.kind == "recorded" and not row.wire:
                return msgspec.json.decode(await self.archive.load_request(row.id), type=NewSession)
        return None

    async def _sum_usage(self, session: str) -> TokenUsage:
        """Return the tokens of all calls of a session so far."""
        total = TokenUsage()
        for tally in await self.archive.load_tallies([session]):
            used = tally.usage
            if not tally.is_auxiliary:
                counts = used.input or 0, used.output or 0, used.cached or 0, used.written or 0
                total += TokenUsage(*counts, sum(counts))
        return total

    def listen(self) -> None:
        """Listen to what happens in sessions, from the first call on."""
        if not self._is_listening:
            self._is_listening = True
            self.bus.subscribe(ReplyRecorded, self._note_reply)
            self.bus.subscribe(EpochOpened, self._note_epoch)
            self.bus.subscribe(DoomLoopDetected, self._note_loop)

    def _note_reply(self, event: ReplyRecorded) -> None:
        if event.nodes:
            self.replies.put(event.exchange, event.nodes[-1].hex())

    def _note_epoch(self, event: EpochOpened) -> None:
        if (noted := self.noted.get(event.session)) is not None:
            noted.is_compacted = True

    def _note_loop(self, event: DoomLoopDetected) -> None:
        if (noted := self.noted.get(event.session)) is not None:
            noted.has_loop = True


class ProgramSession:
    """A session of a program. Its calls are made one after another; a second one waits for the first."""

    def __init__(
        self, home: Conversations, key: SessionKey, model: str, system_prompt: str, usage: TokenUsage = _NO_TOKENS
    ) -> None:
        self.key = key
        self.model = model
        self.system_prompt = system_prompt
        self.waiting: tuple[ToolPart, ...] = ()  # the calls of the newest answer, until their results are sent
        self.usage = usage  # of all its calls
        self._home = home
        self._lock = asyncio.Lock()
        self.steps = 0  # answers in the history
        # Results that a call brought which has failed, as far as is known here: the log knows.
        self._unsent: list[bytes] = []
        self._is_uncertain = False

    @property
    def is_compacting(self) -> bool:
        """Whether a summary of the session is being made."""
        return self._home.schedule.has_job(self.key.id)

    def restore(self, history: KnownHistory | None) -> None:
        """Take up a history as the log has it."""
        if history is not None:
            self.waiting, self.steps = history.waiting, history.steps

    async def wait_for_compaction(self) -> None:
        """Wait until no summary of the session is being made."""
        while tasks := self._home.schedule.list_tasks(self.key.id):
            await asyncio.wait(tasks)

    async def send(
        self,
        message: str | Sequence[MessagePart],
        *,
        tools: Sequence[ProgramTool] = (),
        on_part: OnPart | None = None,
        system_prompt: str | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> AnsweredTurn:
        """Send a message, and return the answer, which is in the log then. `members` are others of the request.

        Raises BadRequest for a message that does not continue the history, UpstreamRefused, UpstreamUnreachable and
        StoreUnavailable. After an error, or if it is cancelled, the history is as it was before; results of tools that
        the message brought are kept, and go out with the next one.
        """
        raws = write_messages(CHAT, message)
        async with self._lock:
            return await self._send(raws, tools, on_part, system_prompt, members or {})

    async def record(self, turn: RecordedTurn) -> RecordResult:
        """Record a turn that was made elsewhere. Raises as `TurnRecorder.record` does."""
        async with self._lock:
            kept = await self._home.recorder.record(self.key, turn, system=self.system_prompt)
            self.waiting, self._unsent = read_message(CHAT, turn.answered[-1])[2], []
            self.steps += sum([CHAT.reader.read_item(raw).role == "assistant" for raw in turn.answered])
            self.usage += kept.result.tokens
            return kept.result

    async def run_tools(
        self,
        message: str | Sequence[MessagePart] | None,
        tools: Sequence[ProgramTool],
        *,
        max_turns: int = MOST_TURNS,
        on_part: OnPart | None = None,
        system_prompt: str | None = None,
    ) -> AnsweredTurn:
        """Send a message, execute the calls of the answer, send their results, and so on.

        It ends with an answer without calls, or with the answer number `max_turns`, whose calls are left waiting. Calls
        that wait already are executed first. Tokens and cost of the result are those of all calls to the model.
        """
        if max_turns < 1:
            raise BadRequest("max_turns is at least 1")
        known = {tool.name: tool for tool in tools}
        options: dict[str, Any] = {"tools": tools, "on_part": on_part, "system_prompt": system_prompt}
        brought = [] if message is None else [*list_parts(message)]
        if self.waiting and not any(isinstance(part, ToolPart) for part in brought):
            brought = [*await self._execute(known, on_part), *brought]
        turn = await self.send(brought, **options)
        total = turn.result
        for _ in range(max_turns - 1):
            if not turn.calls:
                break
            turn = await self.send(await self._execute(known, on_part), **options)
            total = _add_results(total, turn.result)
        return msgspec.structs.replace(turn, result=total)

    async def _execute(self, tools: Mapping[str, ProgramTool], on_part: OnPart | None) -> list[ToolPart]:
        results = await run_calls(tools, self.waiting)
        if on_part is not None:
            for result in results:
                await tell(on_part, result)
        return results

    async def _send(
        self,
        raws: Sequence[bytes],
        tools: Sequence[ProgramTool],
        on_part: OnPart | None,
        system_prompt: str | None,
        members: Mapping[str, Any],
    ) -> AnsweredTurn:
        home, session = self._home, self.key.id
        home.listen()
        if self._is_uncertain:
            await self._find_out()
        again = {call for raw in raws for call in CHAT.reader.read_item(raw).results}
        left = [raw for raw in self._unsent if again.isdisjoint(CHAT.reader.read_item(raw).results)]
        brought = [*left, *raws]  # a program that repeats a call brings its results once more
        request = self._write_request(brought, tools, system_prompt, members, is_stream=on_part is not None)
        reader = PartReader(CHAT, self.steps + 1, on_part) if on_part is not None else None
        had_job, noted = self.is_compacting, _TurnNotes()
        home.noted[session] = noted
        self._is_uncertain, self._unsent = True, [raw for raw in brought if CHAT.reader.read_item(raw).results]
        try:
            response = await self._call(request, reader)
            answer = read_response(CHAT, response)
            await home.reader.read_now(response.exchange)
        finally:
            del home.noted[session]
        if not answer.error:
            self._is_uncertain, self._unsent = False, []
            self.waiting, self.steps = answer.calls, self.steps + 1
        if reader is not None:
            await reader.finish(answer)
        self.usage += count_usage(answer.usage)
        noted.is_compacted |= self.is_compacting and not had_job
        return AnsweredTurn(self._make_result(response, answer, noted), answer.calls, response.exchange)

    async def _find_out(self) -> None:
        """Ask the log what has become of a call that has failed, or whose answer was not taken."""
        self.restore(await self._home.load_history(self.key.id))
        left = {call.tool_call_id for call in self.waiting}
        self._unsent = [raw for raw in self._unsent if left.issuperset(CHAT.reader.read_item(raw).results)]
        self._is_uncertain = False

    def _write_request(
        self,
        brought: Sequence[bytes],
        tools: Sequence[ProgramTool],
        system_prompt: str | None,
        members: Mapping[str, Any],
        *,
        is_stream: bool,
    ) -> ClientRequest:
        system = self.system_prompt if system_prompt is None else system_prompt
        body: dict[str, Any] = {"model": self.model, **members}
        leading = [CHAT.write_message("system", msgspec.json.encode(system))] if system else []
        body[CHAT.items_key] = [msgspec.Raw(raw) for raw in (*leading, *brought)]
        if tools:
            body["tools"] = [tool.describe() for tool in tools]
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = (*_JSON, *list_headers(CHAT))
        return ClientRequest("POST", make_target(CHAT), headers, msgspec.json.encode(body))

    async def _call(self, request: ClientRequest, reader: PartReader | None) -> LocalResponse:
        """Make a call. Raises UpstreamRefused if the upstream does not answer it."""
        home, take = self._home, reader.take if reader is not None else None
        program = ProgramCall(self.key)
        response = await make_call(home.exchanges, home.tasks, request, CHAT.name, take, program=program)
        if response.status not in _SUCCESS:
            told = read_object(response.content.decode(errors="replace"))
            said = read_error(told) if told is not None else response.content[:_MOST_QUOTED].decode(errors="replace")
            what = f"{self.key.upstream} has refused the call with status {response.status}: {said}"
            raise UpstreamRefused(what, response.status, response.content)
        return response

    def _make_result(self, response: LocalResponse, answer: ReadAnswer, noted: _TurnNotes) -> TurnResult:
        usage = answer.usage
        cost = None if usage is None else self._home.prices.price(self.key.upstream, self.model, usage).money
        return TurnResult(
            message_id=self._home.replies.get(response.exchange) or response.exchange,
            text=answer.text,
            finish_reason=answer.finish,
            tokens=count_usage(usage),
            cost=cost,
            compaction_triggered=noted.is_compacted,
            doom_loop_detected=noted.has_loop,
        )


def _add_results(before: TurnResult, last: TurnResult) -> TurnResult:
    """Return the last result of a loop, with what all of its calls have taken."""
    is_priced = before.cost is not None and last.cost is not None
    return msgspec.structs.replace(
        last,
        tokens=before.tokens + last.tokens,
        cost=(before.cost or 0.0) + (last.cost or 0.0) if is_priced else None,
        compaction_triggered=before.compaction_triggered or last.compaction_triggered,
        doom_loop_detected=before.doom_loop_detected or last.doom_loop_detected,
    )


def build_conversations(
    exchanges: ExchangeService,
    resolver: RequestResolver,
    reader: ResponseReader,
    gate: DurabilityWaiter,
    trigger: CompactionTrigger,
    *,
    archive: TurnLog,
    tasks: TaskRunner,
    bus: EngineBus,
    models: Models,
    clock: Clock,
    cap: int,
) -> Conversations:
    """Return what makes and records the calls of programs in this process."""
    schedule = trigger.worker.schedule
    recorder = TurnRecorder(
        exchanges=exchanges,
        resolver=resolver,
        archive=archive,
        gate=gate,
        models=models,
        tasks=tasks,
        bus=bus,
        clock=clock,
        ids=SystemIds(),
        has_job=schedule.has_job,
    )
    return Conversations(
        exchanges=exchanges,
        archive=archive,
        reader=reader,
        recorder=recorder,
        schedule=schedule,
        prices=PriceList(models.card, trigger.providers),
        tasks=tasks,
        bus=bus,
        cap=cap,
    )
