"""Reports on long sessions that are asked for again and again: what has been read of a session is kept, and extended.

A call is kept once it is over, and all before it are. Nothing is kept where the prices of a model have changed since.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.context.loops.detection import Repetition, find_repeated_call, follow_run
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import list_raws, load_body
from proxy.engine.recorded.lookup import find_session
from proxy.model.card import Card
from proxy.model.errors import NotFound
from proxy.model.exchange import CONVERSATION
from proxy.model.figures import RoundFigures
from proxy.model.log import ExchangeRow
from proxy.model.lru import LruCache
from proxy.read.cache import CacheCall, CacheReader, CacheReport, sum_causes
from proxy.read.savings import SavingsInputs, group_calls, load_saving, remember_cards
from proxy.read.timeline import (
    MOST_CALLS,
    CallFigures,
    EpochSummary,
    Loop,
    Mark,
    Timeline,
    list_marks,
    make_timeline,
    read_call,
    summarize_epochs,
)
from proxy.wire import FORMATS

_MOST_SESSIONS = 16
_PAGE = 100
# Answers whose calls the next one is compared with, and messages that may lie between two of these.
_MOST_RUNS, _MOST_BETWEEN = 256, 64
# A call that is open for longer was cut off; and what a response says is read within this time.
_LONGEST_MS, _READ_WITHIN_MS = 3_600_000, 60_000


class LoopReader:
    """Finds the loops of one session in its answers (`context/loops`); a request is read only where one begins."""

    def __init__(self, log: LogReader, session: str, threshold: int) -> None:
        self._log = log
        self._session = session
        self._threshold = threshold
        self._runs: LruCache[bytes, tuple[Repetition, Loop | None]] = LruCache(_MOST_RUNS)
        self.found: list[Loop] = []

    async def read(self, parents: Mapping[bytes, bytes], after: int, limit: int) -> None:
        """Read calls after number `after`, in order. Those before were read before; `parents` are the nodes of all."""
        for start in range(after, after + limit, _PAGE) if self._threshold else ():
            for row in await self._log.list_exchanges(self._session, start, min(_PAGE, after + limit - start)):
                if row.kind in CONVERSATION and row.wire in FORMATS and row.tip and not row.is_side and row.rounds:
                    await self._note(row, parents)

    async def _note(self, row: ExchangeRow, parents: Mapping[bytes, bytes]) -> None:
        form = FORMATS[row.wire]
        answer = [form.parse_message(raw) for raw in form.list_echoes(row.rounds[-1].answer or b"{}")]
        before, loop = self._find_before(row.tip, parents)
        run = follow_run(answer, before)
        if run is None:
            return
        is_going_on = before is not None and run.count > before.count
        loop = loop if is_going_on else None
        if loop is not None:
            loop.last, loop.count = row.n, run.count
        elif run.count >= self._threshold:
            loop = await self._confirm(row)
            if loop is None:
                run = follow_run(answer, None) or run
            else:
                self.found.append(loop)
        self._runs.put(row.tip, (run, loop))

    def _find_before(self, tip: bytes, parents: Mapping[bytes, bytes]) -> tuple[Repetition | None, Loop | None]:
        """Return what the answer ends with that the request with this tip goes on from."""
        node, distance = tip, 0
        while node in parents and distance < _MOST_BETWEEN:
            node, distance = parents[node], distance + 1
            if (known := self._runs.peek(node)) is not None:
                return known if distance <= known[0].reach else (None, None)
        return None, None

    async def _confirm(self, row: ExchangeRow) -> Loop | None:
        """Return the loop that a call goes on with, judged by its request as well."""
        form = FORMATS[row.wire]
        try:
            raws = list_raws(await load_body(self._log, row))
        except NotFound:
            return None
        raws += form.list_echoes(row.rounds[-1].answer)
        found = find_repeated_call(map(form.parse_message, reversed(raws)), self._threshold)
        if found is None:
            return None
        return Loop(row.n, row.n, found.tool, found.count, has_same_output=found.has_same_output)


async def load_loops(log: LogReader, session: str, threshold: int) -> list[Loop]:
    """Load the loops of a session, given by its id: calls made so many times in a row. Raises NotFound."""
    reader = LoopReader(log, session, threshold)
    parents = {each.node: each.parent for each in await log.list_nodes(session)} if threshold else {}
    await reader.read(parents, 0, (await log.find_session(session)).recorded)
    return reader.found


@dataclass(slots=True)
class _Known:
    """What is known of a session up to its call `until`, and the cards that this was priced by."""

    reader: CacheReader
    loops: LoopReader
    until: int = 0
    rounds: list[RoundFigures] = field(default_factory=list)
    calls: list[CallFigures] = field(default_factory=list)
    uses: list[CacheCall] = field(default_factory=list)
    cards: dict[tuple[str, str], Card] = field(default_factory=dict)
    branches: Mapping[int, int] = field(default_factory=dict)
    branched: int = 0  # calls when the branches were read
    judged: int = 0  # the last call whose use of the cache was judged
    epochs: list[EpochSummary] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    summed: tuple[int, int, int] = (-1, 0, 0)  # what epochs and marks were made of
    # Held while it is brought up to date: of two requests at once, each would add the same calls.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SessionReports:
    """Timelines, epochs and uses of the cache of sessions."""

    def __init__(self, log: LogReader, inputs: SavingsInputs, loop_threshold: int = 0) -> None:
        self._log = log
        self._inputs = inputs
        self._loop_threshold = loop_threshold
        self.known: LruCache[str, _Known] = LruCache(_MOST_SESSIONS)

    async def load_timeline(self, prefix: str, after: int = 0, limit: int = MOST_CALLS) -> Timeline:
        """Return the calls after number `after` of the session whose id has this prefix. Raises NotFound."""
        session = await find_session(self._log, prefix)
        known = self._find(session)
        async with known.lock:
            newer = await self._extend(session, known)
            _, marks = await self._sum_up(session, known, newer)
            prices = remember_cards(self._inputs).prices
            calls = [*known.calls, *(read_call(call, prices) for call in group_calls(newer))]
            return make_timeline(calls, marks, known.branches, after, limit)

    async def load_epochs(self, prefix: str) -> list[EpochSummary]:
        """Return the epochs of the session whose id has this prefix, oldest first. Raises NotFound."""
        session = await find_session(self._log, prefix)
        known = self._find(session)
        async with known.lock:
            return (await self._sum_up(session, known, await self._extend(session, known)))[0]

    async def load_cache(self, prefix: str) -> CacheReport:
        """Return how the calls of that session that are over used the provider's cache. Raises NotFound."""
        session = await find_session(self._log, prefix)
        known = self._find(session)
        async with known.lock:
            await self._extend(session, known)
            saved = await load_saving(self._log, session, self._inputs)
            return CacheReport(session, [*known.uses], sum_causes(known.uses), saved)

    def forget(self, session: str) -> None:
        """Forget what was read of a session, given by its id."""
        self.known.pop(session)

    async def _sum_up(
        self, session: str, known: _Known, newer: Sequence[RoundFigures]
    ) -> tuple[list[EpochSummary], list[Mark]]:
        """Return the epochs of a session, and what happened in it."""
        found = await self._log.list_epochs(session)
        key = known.until, len(newer), len(found)
        if known.summed != key:
            rounds = [*known.rounds, *newer]
            known.epochs = summarize_epochs(found, rounds, remember_cards(self._inputs).prices)
            known.marks = list_marks(rounds, known.epochs, known.uses, known.loops.found)
            known.summed = key
        return known.epochs, known.marks

    def _find(self, session: str) -> _Known:
        """Return what is known of a session, as far as it was read."""
        known = self.known.get(session)
        if known is None or any(self._find_card(*name) != card for name, card in known.cards.items()):
            reader = CacheReader(self._log, session, remember_cards(self._inputs))
            known = _Known(reader, LoopReader(self._log, session, self._loop_threshold))
            self.known.put(session, known)
        return known

    async def _extend(self, session: str, known: _Known) -> Sequence[RoundFigures]:
        """Bring what is known of a session up to date. Return its rounds after that."""
        count = (await self._log.find_session(session)).recorded
        rounds = await self._log.load_rounds(session, known.until, max(0, count - known.until))
        done = self._keep(known, rounds)
        if known.judged < known.until:
            async for use in known.reader.read(known.judged, known.until - known.judged):
                known.uses.append(use)
            await known.loops.read(known.reader.parents, known.judged, known.until - known.judged)
            known.judged = known.until
        if known.branched != count:
            branches = await self._log.list_branches(session)
            known.branches = {call.n: place for place, branch in enumerate(branches) for call in branch.own}
            known.branched = count
        return rounds[done:]

    def _keep(self, known: _Known, rounds: Sequence[RoundFigures]) -> int:
        """Keep the first calls that are over. Return the number of their rounds."""
        done, now_ms = 0, self._inputs.now_ms()
        prices = remember_cards(self._inputs).prices
        for call in group_calls(rounds):
            if any(_is_open(row, now_ms) for row in call):
                break
            known.calls.append(read_call(call, prices))
            known.rounds += call
            known.until = call[-1].n
            done += len(call)
            for row in call:
                name = row.upstream, row.model
                if name not in known.cards:
                    known.cards[name] = prices.find_card(*name)
        return done

    def _find_card(self, upstream: str, model: str) -> Card:
        return self._inputs.prices.find_card(upstream, model)


def _is_open(row: RoundFigures, now_ms: int) -> bool:
    """Return whether there may be more to come of a round."""
    if row.status is None:
        return now_ms - row.at_ms < _LONGEST_MS
    ended_ms = row.at_ms + (row.total_ms or 0.0)
    return row.input is None and row.kind in CONVERSATION and now_ms - ended_ms < _READ_WITHIN_MS
