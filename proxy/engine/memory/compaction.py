"""Making memory of whole turns: reports and facts, by a model where one may be asked, else without.

Memory that somebody asked for is made behind the next response of its session, once. Sessions of the strategy
`snapshot` begin anew from it with the request after that. An order stays in the log until it was carried out, so that
it outlives a restart.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from proxy.context.epoch_decision import LATE, SIDE
from proxy.context.memory.traces import Turn, list_covered, list_turns, read_turn_number
from proxy.engine.compaction.job import JobResult, ManualOptions, SentRequest
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.path import load_path
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import read_view
from proxy.model.errors import BadRequest, Conflict, NotFound
from proxy.model.events import ExchangeRecorded, Planned
from proxy.model.exchange import CONVERSATION, SUCCESS
from proxy.model.memory import MemoryBundle

NO_MODEL = ManualOptions(level=3)
"""Memory is put together without a model."""
_UNASKED = (SIDE, LATE)  # calls that could open no epoch, whatever was asked for
_NOTHING = "there is no whole turn that memory has not been made of, but for the current one"

_log = logging.getLogger("palimpsest.memory")


class MemoryResult(msgspec.Struct, frozen=True, gc=False):
    """What came of making memory: the turns, the new items, the calls of models and their cost, and problems."""

    session: str
    turn_ids: tuple[str, ...]
    items: MemoryBundle
    calls: tuple[str, ...]
    cost: float
    reason: str


@dataclass(kw_only=True, eq=False)
class MemoryCompaction:
    """Makes memory of the turns of sessions. `manual` loads a request as it would be sent now."""

    memory: SessionMemory
    manual: ManualCompaction

    async def compact(
        self, session: str, turn_ids: Sequence[str] = (), options: ManualOptions | None = None, branch: str = ""
    ) -> MemoryResult:
        """Make memory of turns of a session's newest conversation, or of a branch: of these, or of all but the current.

        Turns that memory was made of are left out unless they are named. Of a session that is only observed it is made
        without a model. Raises NotFound, BadRequest for an unknown turn, and Conflict if there is nothing to do.
        """
        request, wanted = await self.load(session, options, branch)
        return await self.compact_request(request, turn_ids, wanted)

    async def load(
        self, session: str, options: ManualOptions | None = None, branch: str = ""
    ) -> tuple[SentRequest, ManualOptions]:
        """Return what would be sent now of a session's newest conversation, or of a branch, and how to make memory.

        Raises NotFound, and Conflict where there is nothing.
        """
        row = (await load_path(self.memory.archive, session, branch)).row
        wanted = NO_MODEL if row.mode != "manage" else options or ManualOptions()
        return await self.manual.load_request(row), wanted

    async def compact_request(
        self, request: SentRequest, turn_ids: Sequence[str] = (), options: ManualOptions | None = None
    ) -> MemoryResult:
        """Make memory of turns of a request. Without options the limits of what is spent on a session are kept to.

        Raises as `compact` does.
        """
        session, nodes = request.session, request.nodes
        index = await self.manual.worker.index_conversation(request)
        turns = list_turns(index.messages)
        chosen = _choose_turns(turns, turn_ids, await self.memory.list_spans(session, nodes))
        before = await self.memory.list_items(session, nodes)
        most, count = self.manual.worker.count_most(request), request.state.history.count
        spans = list(join_turns([(turn.start, turn.stop) for turn in chosen], most, count))
        result: JobResult = await self.manual.worker.summarize_turns(request, spans, options)
        if await self.memory.is_requested(session):
            await self.memory.order(session, "clear")
        known = {each.id for each in before.episodic} | {each.id for each in before.semantic}
        after = await self.memory.list_items(session, nodes)
        return MemoryResult(
            session=session,
            turn_ids=tuple(turn.id for turn in chosen),
            items=MemoryBundle(
                tuple(item for item in after.episodic if item.id not in known),
                tuple(item for item in after.semantic if item.id not in known),
            ),
            calls=tuple(dict.fromkeys(result.calls)),
            cost=result.cost.tokens,
            reason="; ".join(result.problems),
        )


class MemoryRequests:
    """Carries out orders for memory: from now on, and those of before once they are loaded."""

    def __init__(self, compaction: MemoryCompaction, bus: EngineBus) -> None:
        self._compaction = compaction
        self._memory = compaction.memory
        self._jobs = compaction.manual.worker.jobs
        bus.subscribe(ExchangeRecorded, self.note_exchange)
        bus.subscribe(Planned, self.note_plan)

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Make memory behind a response, if it was asked for. Subscribed to the bus."""
        memory, session = self._memory, event.session
        if session not in memory.asked or event.kind not in CONVERSATION:
            return
        if event.is_final and event.status in SUCCESS and event.completeness == "complete":
            memory.asked.discard(session)
            self._memory.due.add(session)
            self._jobs.start(session, "memory", partial(self._make, session), note=partial(_log_failure, session))

    def note_plan(self, event: Planned) -> None:
        """Have a session of the strategy `snapshot` begin anew once only. Subscribed to the bus."""
        plan = event.plan
        if event.session in self._memory.due and read_view(plan.view)[1] == "snapshot" and plan.reason not in _UNASKED:
            self._memory.due.discard(event.session)

    async def _make(self, session: str) -> None:
        memory = self._memory
        try:
            request, options = await self._compaction.load(session)
            if request.state.request.strategy != "snapshot":  # no other one begins anew from memory
                self._memory.due.discard(session)
            await self._compaction.compact_request(request, options=options)
        except (Conflict, NotFound) as error:
            _log.info("no memory was made, though it was asked for: %s", error, extra={"session": session})
        if await memory.is_requested(session):
            await memory.order(session, "clear")


def _choose_turns(turns: Sequence[Turn], ids: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[Turn]:
    """Return the turns with these ids or, without any, all but the last of which there is no memory."""
    if ids:
        wanted = set(map(read_turn_number, ids))
        if unknown := [id for id in ids if not 1 <= read_turn_number(id) <= len(turns)]:
            raise BadRequest(f"there is no turn {unknown[0][:40]!r}; the newest is {turns[-1].id if turns else 'none'}")
        return [turn for turn in turns if turn.number in wanted]
    covered = list_covered(turns, spans)
    chosen = [turn for turn in turns[:-1] if turn.number not in covered]
    if not chosen:
        raise Conflict(_NOTHING)
    return chosen


def join_turns(
    turns: Sequence[tuple[int, int]], most: int, count: Callable[[int, int], int]
) -> Iterator[tuple[int, int]]:
    """Yield from which place up to which turns are reported on together: adjacent ones of at most `most` tokens."""
    start = stop = -1
    for begin, end in turns:
        if begin == stop and count(start, end) <= most:
            stop = end
            continue
        if stop >= 0:
            yield start, stop
        start, stop = begin, end
    if stop >= 0:
        yield start, stop


def _log_failure(session: str, error: Exception) -> None:
    _log.error(
        "memory could not be made, though it was asked for; ask again", exc_info=error, extra={"session": session}
    )
