"""Memory as files of one JSON object a line, and a mirror that keeps them current while calls are made.

Below `agents/SESSION/` are `raw_traces.jsonl` with the traces of turns that no report covers yet,
`raw_traces_archive.jsonl` with the others, `episodic.jsonl` and `semantic.jsonl`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from proxy.context.memory.facts import list_items, list_spans
from proxy.context.memory.traces import list_covered
from proxy.engine.background.jobs import BackgroundJobs
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.memory.path import MemoryReader, load_path
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import find_session
from proxy.model.errors import NotFound
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import CONVERSATION

FILES = ("raw_traces.jsonl", "raw_traces_archive.jsonl", "episodic.jsonl", "semantic.jsonl")

_WAIT_SECONDS = 1.0
# A mirror takes at most this share of the time: long sessions are written less often.
_SHARE = 0.05

_log = logging.getLogger("palimpsest.memory")

Write = Callable[[str, Mapping[str, bytes]], object]
"""Writes the files of a session, given its id; each file is replaced as a whole. Blocks. Raises OSError."""


async def load_files(log: MemoryReader, prefix: str, branch: str = "") -> tuple[str, dict[str, bytes]]:
    """Load the memory of a session's newest conversation, or of a branch, as files. Raises NotFound."""
    session = await find_session(log, prefix)
    path = await load_path(log, session, branch)
    stored = await log.load_memory(session)
    items = list_items(stored, path.nodes)
    covered = list_covered(path.turns, list_spans(stored, path.nodes))
    archived = {turn.id for turn in path.turns if turn.number in covered}
    traces = path.list_traces()
    found: tuple[Sequence[msgspec.Struct], ...] = (
        [each for each in traces if each.turn_id not in archived],
        [each for each in traces if each.turn_id in archived],
        items.episodic,
        items.semantic,
    )
    lines = [b"".join(map(write_json, each)) for each in found]
    return session, dict(zip(FILES, lines, strict=True))


@dataclass(kw_only=True, eq=False)
class MemoryMirror:
    """Writes the memory of sessions as files after their calls, and when it has changed.

    A failure is logged once, until writing succeeds again.
    """

    log: MemoryReader
    write: Write
    jobs: BackgroundJobs
    now: Callable[[], float]
    _waiting: set[str] = field(default_factory=set, init=False)
    _running: set[str] = field(default_factory=set, init=False)
    _fault: str = field(default="", init=False)

    def note_exchange(self, event: ExchangeRecorded) -> None:
        """Have the memory of a session written after a call. Subscribed to the bus."""
        if event.is_final and event.kind in CONVERSATION:
            self.note_change(event.session)

    def note_change(self, session: str, seconds: float = _WAIT_SECONDS) -> None:
        """Have the memory of a session written soon."""
        if session not in self._waiting:
            self._waiting.add(session)
            if session not in self._running:
                self.jobs.later(seconds, partial(self._start, session))

    def _start(self, session: str) -> None:
        self._waiting.discard(session)
        self._running.add(session)
        self.jobs.start(session, "mirror", partial(self._run, session), note=self._note_fault)

    async def _run(self, session: str) -> None:
        began = self.now()
        try:
            await self._write(session)
        finally:
            took = self.now() - began
            self._running.discard(session)
            if session in self._waiting:
                self._waiting.discard(session)
                self.note_change(session, max(_WAIT_SECONDS, took / _SHARE))

    async def _write(self, session: str) -> None:
        try:
            _, files = await load_files(self.log, session)
        except NotFound:  # of a session without a conversation there is no memory
            return
        await asyncio.to_thread(self.write, session, files)
        self._fault = ""

    def _note_fault(self, error: Exception) -> None:
        if str(error) != self._fault:
            self._fault = str(error)
            _log.error(
                "the memory of sessions cannot be written to files, the log has it; check memory.mirror: %s", error
            )


def mirror_memory(memory: SessionMemory, write: Write, jobs: BackgroundJobs) -> None:
    """Keep the memory of sessions current in files."""
    mirror = MemoryMirror(log=memory.archive, write=write, jobs=jobs, now=asyncio.get_running_loop().time)
    memory.listeners.append(mirror.note_change)
    jobs.bus.subscribe(ExchangeRecorded, mirror.note_exchange)
