"""Fakes of the engine's ports. Rule: the test decides when anything happens; nothing sleeps or looks at a clock."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, NoReturn, TypeVar

from proxy.engine.call.calls import Calls
from proxy.engine.call.relay import Relay
from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import build_histories
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.lineage.identity import Tenants
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import ALL_SESSIONS, MOST_UNREAD, MOST_UNREAD_BYTES, Archive, Client, Clock, RequestBody
from proxy.engine.recall.rounds import RecallRounds, Run, build_offers
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.engine.stages.order import order_stages
from proxy.engine.stages.stage import Stage
from proxy.model.card import Card
from proxy.model.errors import NotFound, ProxyError, StoreUnavailable, UpstreamUnreachable
from proxy.model.events import Event
from proxy.model.exchange import ClientRequest, Headers, Opening, Outcome, Reading, ReceivedRow, SessionKey
from proxy.model.lineage import Lineage, StoredSession
from proxy.model.log import (
    ArchiveHealth,
    BranchRow,
    ExchangeRow,
    Record,
    Selection,
    SessionRow,
    UnreadRow,
    Verification,
)
from proxy.model.manifest import Manifest, make_manifest
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses
from tests.support import scripted
from tests.support.ancestry import Trees
from tests.support.events import hear_all
from tests.support.managing import make_controller
from tests.support.unmanaged import UnmanagedLog

LIMIT = scripted.LIMIT
STREAM: Headers = ((b"content-type", b"text/event-stream"),)
JSON: Headers = ((b"content-type", b"application/json"),)
HEALTHY = ArchiveHealth(problem="", pending=0, pending_bytes=0, dropped=0, generation=0)

Ending = Literal["open", "eof", "last", "cut", "whole"]
R = TypeVar("R")


class Commit(asyncio.Future[bool]):
    """A commit that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = asyncio.Event()

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.awaited.set()
        super().add_done_callback(fn, context=context)


@dataclass(frozen=True)
class Appended:
    """One call of `append`."""

    records: tuple[Record, ...]
    commit: Commit
    is_urgent: bool


class FakeArchive(UnmanagedLog):
    """Keeps what is appended; commits are resolved by the test, unless that is to happen at once or soon."""

    def __init__(self, *, is_instant: bool = False, is_soon: bool = False) -> None:
        self.health = HEALTHY
        self._is_instant, self._is_soon = is_instant, is_soon
        self.appended: list[Appended] = []
        self.trees = Trees()
        self.refuses_recall = False
        self.recalled: list[tuple[tuple[bytes, ...], tuple[str, ...], str]] = []
        self._grown, self.flushed = asyncio.Event(), asyncio.Event()

    def append(self, *records: Record, is_urgent: bool = True) -> "asyncio.Future[bool]":
        commit = Commit()
        if self._is_instant:
            commit.set_result(True)
        elif self._is_soon:
            asyncio.get_running_loop().call_soon(commit.set_result, True)
        self.appended.append(Appended(records, commit, is_urgent))
        for record in records:
            self.trees.take(record)
        self._grown.set()
        return commit

    def of(self, kind: type[R]) -> list[R]:
        """All records of a kind, in order."""
        return [record for each in self.appended for record in each.records if isinstance(record, kind)]

    @property
    def outcome(self) -> Outcome:
        """The only outcome; fails if there is none, or a second one."""
        (only,) = self.of(Outcome)
        return only

    @property
    def opening(self) -> Opening:
        """The only opening."""
        (only,) = self.of(Opening)
        return only

    async def number_calls(self, exchanges: Sequence[str]) -> dict[str, int]:
        """Number the exchanges of each session in the order in which they were opened."""
        counts: dict[str, int] = {}
        numbers: dict[str, int] = {}
        for opening in self.of(Opening):
            counts[opening.session.id] = numbers[opening.exchange] = counts.get(opening.session.id, 0) + 1
        return {each: numbers[each] for each in exchanges if each in numbers}

    def commit_of(self, kind: type[Record]) -> Commit:
        """The commit of the first record of this kind."""
        return next(each.commit for each in self.appended if any(isinstance(r, kind) for r in each.records))

    async def wait_for(self, kind: type[R], least: int = 1) -> list[R]:
        """Wait until that many records of a kind were appended."""
        async with asyncio.timeout(LIMIT):
            while len(self.of(kind)) < least:
                self._grown.clear()
                await self._grown.wait()
        return self.of(kind)

    async def wait_until_awaited(self, kind: type[Record]) -> Commit:
        """Wait until somebody waits for the commit of a record of this kind."""
        await self.wait_for(kind)
        async with asyncio.timeout(LIMIT):
            await (commit := self.commit_of(kind)).awaited.wait()
        return commit

    def flush(self) -> None:
        self.flushed.set()

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        return ()

    async def find_session(self, session: str) -> SessionRow:
        _miss(session)

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        return ()

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        _miss(session)

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        _miss(session)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        _miss(session)

    async def load_request(self, exchange: str) -> bytes:
        _miss(exchange)

    async def load_sent(self, exchange: str, k: int) -> bytes:
        _miss(exchange)

    load_received = load_sent

    async def load_held(self, exchange: str) -> bytes:
        _miss(exchange)

    async def list_held(self, session: str) -> Sequence[ReceivedRow]:
        return ()

    async def recall(
        self, nodes: Sequence[bytes], fingerprints: Sequence[str], session: SessionKey
    ) -> Sequence[StoredSession]:
        self.recalled.append((tuple(nodes), tuple(fingerprints), session.id))
        if self.refuses_recall:
            raise StoreUnavailable("the log cannot be read")
        return self.trees.recall(nodes, fingerprints, session)

    async def count_links(self, links: Sequence[bytes]) -> int:
        stored = {piece.link for opening in self.of(Opening) for piece in opening.body.slices}
        return sum(link in stored for link in links)

    async def has_sessions(self) -> bool:
        return bool(self.trees.by_id)

    async def list_unread(self, limit: int = MOST_UNREAD, most_bytes: int = MOST_UNREAD_BYTES) -> Sequence[UnreadRow]:
        openings = {opening.exchange: opening for opening in self.of(Opening)}
        steps = {step.exchange: step for step in self.of(Lineage)}
        is_read = {reading.exchange for reading in self.of(Reading)}
        return [
            UnreadRow(
                *(outcome.exchange, outcome.k, openings[outcome.exchange].wire, openings[outcome.exchange].session),
                *(steps[outcome.exchange].tip if outcome.exchange in steps else b"", outcome.headers, outcome.received),
            )
            for outcome in self.of(Outcome)[: -limit - 1 : -1]
            if outcome.received and openings[outcome.exchange].wire and outcome.exchange not in is_read
        ]

    async def verify(self) -> Verification:
        return Verification(0, 0, 0, 0, ())

    async def reopen(self) -> None:
        """Another process has the log now."""

    async def close(self) -> None:
        return None


def _miss(name: str) -> NoReturn:
    raise NotFound(f"{name} is not here")


class ScriptedResponse:
    """An answer whose pieces come one by one: each `read` gives one. `ending` says what follows the last piece.

    "eof": an empty read; "last": nothing, the last piece ends it; "cut": UpstreamUnreachable, at every further read;
    "whole": everything was there from the beginning; "open": the test has more to say. A slow one yields.
    """

    def __init__(self, *pieces: bytes, status: int = 200, headers: Headers = STREAM, ending: Ending = "open") -> None:
        self.status = status
        self.headers = headers
        self.is_ended = self.is_closed = self.is_slow = False
        self.is_received = ending == "whole"
        self.starved = asyncio.Event()
        self.pieces = deque(pieces)
        self._ending = ending
        self._fed = asyncio.Event()

    @property
    def left(self) -> int:
        """How many pieces nobody has read."""
        return len(self.pieces)

    def feed(self, *pieces: bytes, ending: Ending = "open") -> None:
        """More pieces come, and perhaps the end."""
        self.pieces.extend(pieces)
        self._ending = ending
        self.starved.clear()
        self._fed.set()

    async def wait_until_starved(self) -> None:
        """Wait until somebody reads while nothing is there: all before has been dealt with."""
        async with asyncio.timeout(LIMIT):
            await self.starved.wait()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        while not self.is_received:
            await self._wait_for_more()
            if not self.pieces and self._ending == "cut":
                raise UpstreamUnreachable("the upstream broke off")
            if not self.pieces or (len(self.pieces) == 1 and self._ending == "last"):
                self.is_received = True
            elif not take(self.pieces.popleft()):
                return

    async def _wait_for_more(self) -> None:
        if self.is_slow:
            await asyncio.sleep(0)
        while not self.pieces and self._ending == "open":
            self._fed.clear()
            self.starved.set()
            await self._fed.wait()

    async def read(self) -> bytes:
        await self._wait_for_more()
        if self._ending == "whole":
            self.is_received = self.is_ended = True
            content = b"".join(self.pieces)
            self.pieces.clear()
            return content
        if self.pieces:
            piece = self.pieces.popleft()
            self.is_received = self.is_ended = not self.pieces and self._ending == "last"
            return piece
        if self._ending == "cut":
            raise UpstreamUnreachable("the upstream broke off")
        self.is_received = self.is_ended = True
        return b""

    def close(self) -> None:
        self.is_closed = True


class RecordingClient:
    """Keeps what it is given, and in which order. Ends once: what comes after is ignored, as the port says."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.labels: Headers = ()
        self.writes: list[bytes] = []
        self.error: ProxyError | None = None
        self.is_whole = self.is_aborted = False
        self.can_take = asyncio.Event()
        self.can_take.set()
        self.stalled = asyncio.Event()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    async def wait_for_body(self, size: int) -> bytes:
        """Wait until that many bytes have come."""
        async with asyncio.timeout(LIMIT):
            while len(self.body) < size:
                self._changed.clear()
                await self._changed.wait()
        return self.body

    def label(self, fields: Headers) -> None:
        if not self.started.is_set():
            self.labels = fields

    def start(self, status: int, headers: Headers) -> None:
        if not self.started.is_set() and not self.ended.is_set():
            self.status, self.headers = status, headers
            self.started.set()

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        assert self.started.is_set() or self.ended.is_set(), "a body before its head"
        if not self.ended.is_set():
            self.writes.append(content)
            self.is_whole = is_last
            self._changed.set()
            if is_last:
                self.ended.set()
        return self.can_take.is_set()

    async def drain(self) -> None:
        if not self.can_take.is_set():
            self.stalled.set()
            await self.can_take.wait()

    def fail(self, error: ProxyError) -> None:
        if self.started.is_set():
            self.abort()
        elif not self.ended.is_set():
            self.error = error
            self.ended.set()

    def dismiss(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.ended.is_set():
            self.is_aborted = True
            self.ended.set()


class FedBody:
    """A streaming request body, fed by the test; empty bytes end it."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.feed(*pieces)

    def feed(self, *pieces: bytes) -> None:
        """More pieces come."""
        for piece in pieces:
            self._pieces.put_nowait(piece)

    async def read(self) -> bytes:
        return await self._pieces.get()


@dataclass
class Sent:
    """One call of an upstream."""

    method: str
    target: bytes
    headers: Headers
    body: bytes | RequestBody
    uploaded: bytes = b""


class ScriptedUpstream:
    """Answers as it was told, or when the test says so. Reads at most `reads` pieces of a streaming body first."""

    def __init__(
        self, name: str = "main", answer: ScriptedResponse | Exception | None = None, reads: int | None = None
    ) -> None:
        self.name = name
        self.calls: list[Sent] = []
        self.called, self._answered = asyncio.Event(), asyncio.Event()
        self._reads = reads
        self._answer = answer
        if answer is not None:
            self._answered.set()

    def answer(self, answer: ScriptedResponse | Exception) -> None:
        """Let the answer's head come, or the failure."""
        self._answer = answer
        self._answered.set()

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        call = Sent(method, target, headers, body)
        self.calls.append(call)
        self.called.set()
        while not isinstance(body, bytes) and self._reads != 0:
            piece = await body.read()
            call.uploaded += piece
            self._reads = self._reads and self._reads - 1
            if not piece:
                break
        await self._answered.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        assert self._answer is not None
        return self._answer


class FixedClock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self._now_ms, self._monotonic = 1_700_000_000_000, 100.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic


class CountingIds:
    """x1, x2, x3 …"""

    def __init__(self) -> None:
        self._numbers = count(1)

    def next_exchange(self) -> str:
        return f"x{next(self._numbers)}"


def make_lineage(archive: Archive, clock: Clock, policy: EnginePolicy, *, is_fresh: bool = True) -> LineageTracker:
    """Lineage over an archive, as the assembly makes it."""
    tenants = Tenants(b"salt", clock, policy.principals)
    return LineageTracker(archive, tenants, clock, policy.cache_bytes // 4, is_fresh=is_fresh)


class Engine:
    """The engine's parts, wired over fakes as the assembly wires them over shells."""

    def __init__(
        self,
        upstream: ScriptedUpstream | None = None,
        policy: EnginePolicy | None = None,
        *,
        is_instant: bool = False,
        is_soon: bool = False,
        is_fresh: bool = True,
        own_keys: tuple[bytes, ...] = (),
        ceiling: int | None = None,
        after: "Engine | None" = None,
        archive: FakeArchive | None = None,
        tasks: TaskRunner | None = None,
        provider: Provider | None = None,
        card: Card | None = None,
        run: Run | None = None,
        nudges: NudgePolicy | None = None,
        stages: Sequence[Stage] = (),
    ) -> None:
        """`after` is an engine that was ended: this one goes on with its log. Else its log is `archive`, or an own.

        Models recall by `run`, or not at all. `stages` follow those of the product.
        """
        policy = policy or EnginePolicy(commit_wait_ms=60_000)
        self.upstream = upstream or ScriptedUpstream()
        own = archive or FakeArchive(is_instant=is_instant, is_soon=is_soon)
        self.archive: FakeArchive = after.archive if after else own
        self.clock = FixedClock()
        self.ids: CountingIds = after.ids if after else CountingIds()
        self.tasks = TaskRunner() if tasks is None else tasks
        self.bus = EngineBus(self.tasks)
        self.events: list[Event] = []
        hear_all(self.bus, self.events.append)
        self.gate = DurabilityWaiter(self.archive, policy.commit_wait_ms, is_strict=policy.on_failure == "refuse")
        self.lineage = make_lineage(self.archive, self.clock, policy, is_fresh=is_fresh and after is None)
        self.readings = ResponseReader(self.archive, self.bus, self.tasks, self.lineage, policy.record_cap_bytes)
        self.relay = Relay(self.archive, self.gate, self.readings, self.bus, self.clock)
        routes = [Route(self.upstream)]
        self.reception = RequestResolver(policy, routes, reader=self.readings, clock=self.clock, ids=self.ids)
        forms: tuple[Format, ...] = (ChatCompletions(), Responses(), AnthropicMessages())
        formats: Mapping[str, Format] = {form.name: form for form in forms}
        self.controller = make_controller(
            *(self.archive, self.bus, self.clock, self.tasks),
            ceiling=ceiling,
            provider=provider,
            card=card,
            offers=build_offers(is_on=run is not None),
        )
        parts = self.controller.states, self.lineage
        recall = RecallRounds(run, *parts, bus=self.bus, max_hops=4, record_cap=1 << 26) if run is not None else None
        policy = replace(policy, own_keys=own_keys)
        calls = Calls(policy, self.relay, self.tasks)
        own_stages = order_stages(
            self.controller,
            calls,
            recall=recall,
            histories=build_histories(
                nudges or NudgePolicy(),
                policy,
                self.archive,
                self.reception,
                bus=self.bus,
                clock=self.clock,
                providers={"main": provider} if provider else {},
            ),
        )
        self.exchanges = ExchangeService(calls, formats, self.reception, self.controller, [*own_stages, *stages])

    def begin(self, request: ClientRequest, wire: str, client: Client) -> "asyncio.Task[None]":
        """A call in a task of its own, as the server has one for each."""
        return asyncio.create_task(self.exchanges.carry(request, wire, client))

    def begin_count(self, request: ClientRequest, wire: str, client: Client) -> "asyncio.Task[None]":
        """The same for a request whose tokens are to be counted."""
        return asyncio.create_task(self.exchanges.counting.carry(request, wire, client))

    def begin_stream(self, request: ClientRequest, body: RequestBody | None, client: Client) -> "asyncio.Task[None]":
        """The same for a body that streams."""
        return asyncio.create_task(self.exchanges.unread.carry(request, body, client))


async def wait_out(task: "asyncio.Task[None]") -> None:
    """Wait for a task's end, whichever it is."""
    done, _ = await asyncio.wait((task,), timeout=LIMIT)
    assert done, "the task is still running"


def make_opening(exchange: str = "x1", body: Manifest | None = None) -> Opening:
    """An opening as a managed call has it."""
    return Opening(
        exchange,
        SessionKey("s1", b"t" * 16, "main", exchange),
        *("managed", "chat_completions", "manage", "m", "POST", "/v1/chat/completions"),
        JSON,
        make_manifest(b"{}") if body is None else body,
        1,
    )


def make_reading(exchange: str = "x1") -> Reading:
    """A reading that says nothing; the one place that knows the fields of one."""
    return Reading(exchange, 0, b"", None, "stop", "")
