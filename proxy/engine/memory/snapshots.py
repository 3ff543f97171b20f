"""Memory of the turns that leave the context of the strategy `snapshot`: made behind answers, or else before an epoch.

Behind an answer whose prompt has filled its budget, models report on the turns that the next request will not show.
What they have not reported on when that request comes, is put together without a model.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from proxy.context.conversation import MemoryText, SnapshotPolicy, list_turn_starts
from proxy.context.memory.bundle import render_bundle
from proxy.context.memory.facts import is_on_path
from proxy.context.strategies.snapshot import choose_tail
from proxy.engine.compaction.job import JobResult, ManualOptions, SentRequest, make_turns_job
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.context.history_counter import decode_messages
from proxy.engine.context.request_state import RequestState
from proxy.engine.memory.compaction import NO_MODEL, join_turns
from proxy.engine.memory.memory import SessionMemory
from proxy.model.errors import StoreUnavailable
from proxy.model.memory import StoredMemory

# Characters of a token in what memory shows, on the safe side, and the tokens of a report that is still to be made.
_CHARACTERS_OF_A_TOKEN, _REPORT_TOKENS = 3, 512

_log = logging.getLogger("palimpsest.memory")


@dataclass(kw_only=True, eq=False)
class SnapshotMemory:
    """Makes memory of turns that leave, and says what is shown of it."""

    memory: SessionMemory
    worker: SummaryWorker
    policy: SnapshotPolicy

    def start(self, request: SentRequest, may_ask: bool) -> None:
        """Start to make memory of the turns that the request after this one may not show, behind its answer."""
        options = None if may_ask else NO_MODEL
        upstream = request.state.request.session.upstream if may_ask else ""
        self.worker.start_work(request, partial(self._report, request, options), upstream)

    async def add(self, state: RequestState, seconds: float) -> RequestState:
        """Return a state with what memory has, made of the turns that leave, after at most so many seconds."""
        if state.request.strategy != "snapshot":
            return state
        request = SentRequest(state, b"")
        starts = await asyncio.to_thread(_list_starts, request)
        try:
            async with asyncio.timeout(seconds):
                await self._cover(request, starts)
        except (StoreUnavailable, TimeoutError):
            _log.warning(
                "memory of turns that are to leave was not made in time; they leave without it, the log has them",
                extra={"session": request.session},
            )
        return await self.show(state)

    async def show(self, state: RequestState) -> RequestState:
        """Return a state with what memory has already."""
        if state.request.strategy != "snapshot":
            return state
        request = SentRequest(state, b"")
        try:
            stored = await self.memory.load(request.session)
            text = await self._render(request)
        except StoreUnavailable:
            return state
        return msgspec.structs.replace(state, memory=MemoryText(text, count_covered(stored, request.nodes)))

    async def _cover(self, request: SentRequest, starts: Sequence[int]) -> None:
        """Make memory, without a model, of the turns that the plan of a request will not show."""
        spans = await self._list_missing(request, starts, await self._choose_start(request, starts))
        if not spans:
            return
        index = await self.worker.index_conversation(request)
        for start, stop in spans:
            job = make_turns_job(request, index, start, stop)
            made = await self.worker.summarizer.write_without_model(job)
            await self.worker.keep_for_memory(job, made)

    async def _report(self, request: SentRequest, options: ManualOptions | None) -> None:
        """Have models report on the turns that the next request may not show: it may begin a turn, or go on with one.

        The newest turn is not whole: the request has not its answer.
        """
        starts = await asyncio.to_thread(_list_starts, request)
        if not starts:
            return
        chosen = [await self._choose_start(request, each) for each in (starts, [*starts, len(request.nodes)])]
        spans = await self._list_missing(request, starts, min(starts[-1], max(chosen)))
        result = JobResult()
        if spans:
            await self.worker.work_on_turns(request, spans, options, result)
        for problem in result.problems:
            _log.info("a report on turns is no better: %s", problem, extra={"session": request.session})

    async def _choose_start(self, request: SentRequest, starts: Sequence[int]) -> int:
        """Choose the place from which on messages stay, as the plan does once it has what memory shows."""
        history, budget = request.state.history, request.state.budget
        shown = len(await self._render(request)) // _CHARACTERS_OF_A_TOKEN + _REPORT_TOKENS
        before, stop = history.head.tokens + shown, len(request.nodes)
        turns = self.policy.raw_tail_turns
        return choose_tail(starts, lambda place: before + history.count(place, stop), budget.soft, turns).start

    async def _render(self, request: SentRequest) -> str:
        most, facts = self.policy.max_episodic_items, self.policy.max_semantic_items
        items = await self.memory.retrieve(request.session, request.nodes, max_episodic=most, max_semantic=facts)
        return render_bundle(items)

    async def _list_missing(self, request: SentRequest, starts: Sequence[int], stop: int) -> list[tuple[int, int]]:
        """Return from which place up to which there are whole turns before `stop` that memory was not made of."""
        stored = await self.memory.load(request.session)
        covered = {place for start, end in _list_spans(stored, request.nodes) for place in range(start, end)}
        most, count = self.worker.count_most(request), request.state.history.count
        turns = zip(starts, [*starts[1:], len(request.nodes)], strict=True)
        missing = [each for each in turns if each[1] <= stop and not covered.issuperset(range(*each))]
        return list(join_turns(missing, most, count))


def count_covered(stored: StoredMemory, nodes: Sequence[bytes]) -> int:
    """Count the first messages of a path that memory was made of without a gap."""
    reach = 0
    for start, stop in sorted(_list_spans(stored, nodes)):
        if start > reach:
            break
        reach = max(reach, stop)
    return reach


def _list_spans(stored: StoredMemory, nodes: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return from which place up to which memory was made of a path, whatever a person has retracted since."""
    return [(entry.start, entry.stop) for _, entry in stored.entries if is_on_path(entry, nodes)]


def _list_starts(request: SentRequest) -> list[int]:
    return list_turn_starts(decode_messages(request.state.request))
