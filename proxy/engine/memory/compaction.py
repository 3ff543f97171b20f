"""Making memory of whole turns: reports and facts, by a model where one may be asked, else without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from proxy.context.memory.traces import Turn, list_covered, list_turns, read_turn_number
from proxy.engine.compaction.job import JobResult, ManualOptions, SentRequest
from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.path import load_path
from proxy.model.errors import BadRequest, Conflict
from proxy.model.memory import MemoryBundle

NO_MODEL = ManualOptions(level=3)
"""Memory is put together without a model."""
_NOTHING = "there is no whole turn that memory has not been made of, but for the current one"


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
