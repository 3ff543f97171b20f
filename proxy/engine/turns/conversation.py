"""Sessions of programs in this process: each call brings what is new, and the log has the rest (`engine/history`)."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from proxy.engine.background.jobs import SUMMARY, BackgroundJobs
from proxy.engine.call.response_stream import LocalClient
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import LOG_SECONDS
from proxy.engine.history.loading import load_path
from proxy.engine.models import Models
from proxy.engine.recall.scope import is_conversation
from proxy.engine.runtime import SystemIds
from proxy.engine.stages.loops import LoopWatch
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
from proxy.engine.turns.calls import make_call, make_request
from proxy.engine.turns.recording import RecordedTurn, SessionRequest, TurnLog, TurnRecorder, is_beginning
from proxy.engine.turns.tools import ProgramTool, run_calls
from proxy.model.epoch import Epoch, Kept, Replaced, Summary, Written
from proxy.model.errors import BadRequest, Conflict, NotFound, StoreUnavailable, UpstreamRefused
from proxy.model.events import AnswerRead, CompactionCompletedEvent, EpochOpened
from proxy.model.exchange import SUCCESS, ClientRequest, LocalCall, SessionKey
from proxy.model.log import ExchangeRow
from proxy.model.lru import LruCache
from proxy.model.parts import MessagePart, ToolPart
from proxy.model.results import CompactionResult, RecordResult, TokenUsage, TurnFigures, TurnResult, count_usage
from proxy.wire import OWN_FORMAT
from proxy.wire.headers import read_rate_limits
from proxy.wire.json_values import list_elements, read_object, read_text
from proxy.wire.streams import read_error

MOST_TURNS = 20
"""How many answers a model gives with tools unless a program says otherwise."""

_MOST_REPLIES, _MOST_QUOTED = 256, 300
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


@dataclass(slots=True)
class _TurnNotes:
    """What has happened in a session: with the message that is being sent, and since the last one, its newest summary.

    `epoch` is one that has opened with a call of the message.
    """

    epoch: Epoch | None = None
    summary: CompactionResult | None = None


@dataclass(eq=False)
class Conversations:
    """The sessions of programs at one engine. `cap` bounds the bytes of an answer that is kept."""

    exchanges: ExchangeService
    archive: TurnLog
    models: Models
    jobs: BackgroundJobs
    loops: LoopWatch | None
    cap: int

    def __post_init__(self) -> None:
        exchanges, relay = self.exchanges, self.exchanges.calls.relay
        self.tasks, self.bus, self.reader = exchanges.calls.tasks, relay.bus, relay.reader
        self.prices = self.models.prices
        self.recorder = TurnRecorder(exchanges, self.archive, self.models, SystemIds(), self.jobs)
        self.open = WeakValueDictionary[str, ProgramSession]()  # one for each, however often it is loaded
        self.replies = LruCache[str, str](_MOST_REPLIES)  # the newest node of an answer, by its exchange
        self._is_listening = False

    async def create(self, wanted: SessionRequest) -> "ProgramSession":
        """Begin a session, which is in the log then. Raises BadRequest, NotFound, Conflict and StoreUnavailable."""
        key = await self.recorder.create(wanted)
        self.listen()
        found = ProgramSession(self, key, wanted.model, wanted.system_prompt)
        return self.open.setdefault(key.id, found)

    async def open_named(self, wanted: SessionRequest) -> "ProgramSession":
        """Return the session of a name, begun if there is none. Raises as `create` and `load` do."""
        try:
            return await self.create(wanted)
        except Conflict:
            return await self.load(self.recorder.resolver.make_key(wanted.name, wanted.model).id)

    async def load(self, session: str) -> "ProgramSession":
        """Return a session of the log. Raises NotFound, StoreUnavailable, and Conflict if it cannot go on here."""
        if (known := self.open.get(session)) is not None:
            return known
        key, begun = await self.archive.find_key(session), await self._load_begun(session)
        history = await self.load_history(session)
        if begun is None and history is None:
            raise Conflict("this session has no complete answer, so that there is nothing to go on with")
        row = await self.archive.find_session(session)
        self.listen()
        own = begun or SessionRequest(row.model, system_prompt=history.system if history is not None else "")
        found = ProgramSession(self, key, row.model or own.model, own.system_prompt, await self.sum_usage(session))
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
        if path.wire != OWN_FORMAT.name:
            raise Conflict(f"its history is in the format {path.wire}; programs speak {OWN_FORMAT.name}")
        raws = list_elements(path.content[path.content.index(b"[") :] + b"]")
        first = read_object(raws[0].decode(errors="replace")) if raws else None
        system = read_text(first.get("content")) if first and first.get("role") in _LEADING else ""
        calls = [call for raw in path.answer for call in read_message(OWN_FORMAT, raw)[2]]
        steps = sum([OWN_FORMAT.reader.read_item(raw).role == "assistant" for raw in raws]) + len(path.answer)
        return KnownHistory(system, steps, tuple([call for call in calls if call.tool_call_id in path.waiting]))

    async def _load_begun(self, session: str) -> SessionRequest | None:
        """Return how a session was begun by a program, None if it was not."""
        for row in await self.archive.list_calls(session, 0, 1):
            if is_beginning(row):
                return SessionRequest(**msgspec.json.decode(await self.archive.load_request(row.id)))
        return None

    async def sum_usage(self, session: str) -> TokenUsage:
        """Return the tokens of all calls of a session so far."""
        total = TokenUsage()
        for tally in await self.archive.load_tallies([session]):
            used = tally.usage
            if not tally.is_auxiliary:
                counts = used.input or 0, used.output or 0, used.cached or 0, used.written or 0
                total += TokenUsage(*counts, sum(counts))
        return total

    def listen(self) -> None:
        """Listen to what happens in sessions, from the first one on that is opened."""
        if not self._is_listening:
            self._is_listening = True
            self.bus.subscribe(AnswerRead, self._note_reply)
            self.bus.subscribe(EpochOpened, self._note_epoch)
            self.bus.subscribe(CompactionCompletedEvent, self._note_summary)

    def _note_reply(self, event: AnswerRead) -> None:
        if event.reply is not None and event.reply.nodes:
            self.replies.put(event.exchange, event.reply.nodes[-1].node.hex())

    def _note_epoch(self, event: EpochOpened) -> None:
        epoch = event.epoch
        if epoch.exchange and not epoch.is_reversion and (session := self.open.get(epoch.session)) is not None:
            session.notes.epoch = epoch

    def _note_summary(self, event: CompactionCompletedEvent) -> None:
        if (session := self.open.get(event.session)) is not None:
            session.notes.summary = event.payload


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
        self.notes = _TurnNotes()
        self._home = home
        self._lock = asyncio.Lock()
        self._recording = set[asyncio.Task[RecordResult]]()
        self._telling = set[asyncio.Task[Any]]()  # those that are within `on_part` of a message
        self.steps = 0  # answers in the history
        # Results that a call brought which has failed, as far as is known here: the log knows.
        self._unsent: list[bytes] = []
        self._is_uncertain = False

    @property
    def is_compacting(self) -> bool:
        """Whether a summary of the session is being made."""
        return bool(self._home.jobs.list_jobs(self.key.id, SUMMARY))

    def restore(self, history: KnownHistory | None) -> None:
        """Take up a history as the log has it."""
        if history is not None:
            self.waiting, self.steps = history.waiting, history.steps

    async def wait_for_compaction(self) -> None:
        """Wait until no summary of the session is being made."""
        while jobs := self._home.jobs.list_jobs(self.key.id, SUMMARY):
            await asyncio.wait([job.task for job in jobs])

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
        raws = write_messages(OWN_FORMAT, message)
        self._expect_free()
        async with self._lock:
            return await self._send(raws, tools, on_part, system_prompt, members or {})

    async def record(self, turn: RecordedTurn) -> RecordResult:
        """Record a turn that was made elsewhere, to its end once begun. Raises as `TurnRecorder.record` does."""
        self._expect_free()
        await self._lock.acquire()
        recording = asyncio.get_running_loop().create_task(self._record(turn))
        self._recording.add(recording)
        recording.add_done_callback(self._end_recording)
        return await asyncio.shield(recording)

    def _end_recording(self, recording: "asyncio.Task[RecordResult]") -> None:
        self._lock.release()
        self._recording.discard(recording)
        if not recording.cancelled():
            recording.exception()  # perhaps nobody waits for it any more

    async def _record(self, turn: RecordedTurn) -> RecordResult:
        if self._is_uncertain:
            await self._find_out()
        kept = await self._home.recorder.record(self.key, turn, system=self.system_prompt)
        self.waiting, self._unsent = read_message(OWN_FORMAT, turn.answered[-1])[2], []
        self.steps += sum([OWN_FORMAT.reader.read_item(raw).role == "assistant" for raw in turn.answered])
        self.usage += kept.result.tokens
        await self._home.reader.read_now(kept.exchange)
        return kept.result

    def _expect_free(self) -> None:
        """Raise Conflict if the call that the current one would wait for waits for the current one."""
        if asyncio.current_task() in self._telling:
            raise Conflict("a message of this session is under way, and waits for its on_part: send when it has ended")

    async def _tell(self, on_part: OnPart, part: MessagePart) -> None:
        task = asyncio.current_task()
        assert task is not None, "it is called in a task"
        self._telling.add(task)
        try:
            await tell(on_part, part)
        finally:
            self._telling.discard(task)

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
        self._expect_free()
        async with self._lock:
            if self._is_uncertain:
                await self._find_out()
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
        home = self._home
        if self._is_uncertain:
            await self._find_out()
        results = [raw for raw in raws if OWN_FORMAT.reader.read_item(raw).results]
        again = {call for raw in results for call in OWN_FORMAT.reader.read_item(raw).results}
        left = [raw for raw in self._unsent if again.isdisjoint(OWN_FORMAT.reader.read_item(raw).results)]
        brought = [*left, *raws]  # a program that repeats a call brings its results once more
        request = self._write_request(brought, tools, system_prompt, members, is_stream=on_part is not None)
        reader = PartReader(OWN_FORMAT, self.steps + 1, partial(self._tell, on_part)) if on_part is not None else None
        had_job, notes = self.is_compacting, self.notes
        notes.epoch = None
        self._is_uncertain, self._unsent = True, [*left, *results]
        response = await self._call(request, reader)
        answer = read_response(OWN_FORMAT, response, await home.reader.read_now(response.exchange))
        if not answer.error:
            self._is_uncertain, self._unsent = False, []
            self.waiting, self.steps = answer.calls, self.steps + 1
        self.usage += count_usage(answer.usage)
        if reader is not None:
            await reader.finish(answer)
        is_begun, compacted = self.is_compacting and not had_job, notes.summary
        if compacted is None and notes.epoch is not None:
            compacted = await self._describe_epoch(notes.epoch)
        self.notes = _TurnNotes()
        result = self._make_result(response, answer)
        if is_begun or compacted is not None:
            result = msgspec.structs.replace(
                result, compaction_triggered=is_begun or notes.epoch is not None, compaction_result=compacted
            )
        return AnsweredTurn(result, answer.calls, response.exchange)

    async def _describe_epoch(self, opened: Epoch) -> CompactionResult:
        """Return what an epoch has shortened, by the newest summary that it shows, or by a ledger only."""
        edits = opened.list_edits()
        written = [each for each in edits if isinstance(each, Written)]
        covered = {place for each in written for place in range(each.start, each.stop)}
        covered |= {each.place for each in edits if isinstance(each, Replaced)}
        reports = {each.report for each in written if each.report}
        known: Sequence[Summary] = ()
        if reports:
            with contextlib.suppress(NotFound, StoreUnavailable):  # the answer is there, whatever becomes of this
                known = await self._home.archive.list_summaries(self.key.id)
        shown = next((each for each in reversed(known) if each.id in reports), None)
        return CompactionResult(
            session_id=opened.session,
            summary_message_id=shown.id if shown is not None else None,
            level_used=shown.level if shown is not None else 3,
            compacted_message_count=len(covered - {each.place for each in edits if isinstance(each, Kept)}),
            summary_token_count=shown.tokens if shown is not None else 0,
            tokens_before=opened.tokens_before,
            tokens_after=opened.tokens_after,
            elapsed_ms=0,
        )

    async def load_history(self) -> list[TurnFigures]:
        """Return what each answered call of the conversation has taken. Raises StoreUnavailable."""
        figures, after = list[TurnFigures](), 0
        while rows := await self._home.archive.list_calls(self.key.id, after):
            figures += [
                self._measure(row)
                for row in rows
                if is_conversation(row) and row.rounds and row.rounds[-1].status in SUCCESS
            ]
            after = rows[-1].n
        return figures

    def _measure(self, row: ExchangeRow) -> TurnFigures:
        used = [each.usage for each in row.rounds if each.usage is not None]
        costs = [self._home.prices.price(self.key.upstream, row.model, usage).money for usage in used]
        known = [cost for cost in costs if cost is not None]
        times = [each.timings.total_ms for each in row.rounds if each.timings is not None]
        return TurnFigures(
            n=row.n,
            exchange=row.id,
            at_ms=row.opened_ms,
            model=row.model,
            tokens=sum(map(count_usage, used), _NO_TOKENS),
            cost=sum(known) if known and len(known) == len(costs) else None,
            seconds=sum(times) / 1000,
        )

    async def _find_out(self) -> None:
        """Ask the log what has become of a call that has failed, or whose answer was not taken."""
        self.restore(await self._home.load_history(self.key.id))
        left = {call.tool_call_id for call in self.waiting}
        self._unsent = [raw for raw in self._unsent if left.issuperset(OWN_FORMAT.reader.read_item(raw).results)]
        self.usage = await self._home.sum_usage(self.key.id)
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
        leading = [OWN_FORMAT.write_message("system", msgspec.json.encode(system))] if system else []
        body[OWN_FORMAT.items_key] = [msgspec.Raw(raw) for raw in (*leading, *brought)]
        if tools:
            body["tools"] = [tool.describe() for tool in tools]
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return make_request(OWN_FORMAT, msgspec.json.encode(body))

    async def _call(self, request: ClientRequest, reader: PartReader | None) -> LocalClient:
        """Make a call. Raises UpstreamRefused if the upstream does not answer it."""
        home, take = self._home, reader.take if reader is not None else None
        local = LocalCall(self.key)
        response = await make_call(home.exchanges, home.tasks, request, OWN_FORMAT.name, take, local=local)
        if response.status not in SUCCESS:
            told = read_object(response.content.decode(errors="replace"))
            said = read_error(told) if told is not None else response.content[:_MOST_QUOTED].decode(errors="replace")
            what = f"{self.key.upstream} has refused the call with status {response.status}: {said}"
            pause = read_rate_limits(response.headers, home.recorder.clock.now_ms()).retry_after
            raise UpstreamRefused(what, response.status, response.content, pause)
        return response

    def _make_result(self, response: LocalClient, answer: ReadAnswer) -> TurnResult:
        usage, loops = answer.usage, self._home.loops
        cost = None if usage is None else self._home.prices.price(self.key.upstream, self.model, usage).money
        return TurnResult(
            message_id=self._home.replies.get(response.exchange) or response.exchange,
            text=answer.text,
            finish_reason=answer.finish,
            tokens=count_usage(usage),
            cost=cost,
            doom_loop_detected=bool(answer.calls) and loops is not None and loops.is_looping(self.key.id),
        )


def _add_results(before: TurnResult, last: TurnResult) -> TurnResult:
    """Return the last result of a loop, with what all of its calls have taken."""
    is_priced = before.cost is not None and last.cost is not None
    return msgspec.structs.replace(
        last,
        tokens=before.tokens + last.tokens,
        cost=(before.cost or 0.0) + (last.cost or 0.0) if is_priced else None,
        compaction_result=last.compaction_result or before.compaction_result,
        compaction_triggered=before.compaction_triggered or last.compaction_triggered,
        doom_loop_detected=before.doom_loop_detected or last.doom_loop_detected,
    )
