"""What a running server still does for a session, and what its memory has of sessions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from proxy.engine.compaction.scheduling import JobSchedule
from proxy.engine.context.epoch_planner import FeatureCache
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.exchange import ExchangeService
from proxy.engine.history.held import HeldHistories
from proxy.engine.lineage.tracker import LineageTracker
from proxy.engine.memory.memory import SessionMemory
from proxy.engine.request_resolver import RequestResolver
from proxy.engine.response_reader import ResponseReader


@dataclass(frozen=True, slots=True)
class LiveSessions:
    """What settles sessions, and forgets them. `restarts` end the processes whose memory has messages, too."""

    exchanges: ExchangeService
    lineage: LineageTracker
    reader: ResponseReader
    resolver: RequestResolver
    schedule: JobSchedule
    caches: ContextCaches
    histories: HeldHistories
    memory: SessionMemory
    features: FeatureCache
    restarts: Sequence[Callable[[], Awaitable[None]]]

    async def settle(self, session: str) -> str:
        """Read the answers of a session that wait to be read. Return what goes on in it, or an empty text."""
        if self.exchanges.is_open(session):
            return "a call is under way"
        if self.schedule.has_job(session):
            return "a summary of it is being made"
        for exchange in self.lineage.list_open(session):
            await self.reader.read_now(exchange)
        return "an answer to it is being read" if self.lineage.list_open(session) else ""

    async def forget(self, sessions: Sequence[str]) -> None:
        """Drop what memory has of sessions. Caches are dropped as a whole: they are soon filled again."""
        self.resolver.forget_lost()
        self.caches.forget_lost()
        self.caches.histories.clear()
        self.features.clear()
        self.memory.forget()
        for session in sessions:
            self.histories.forget(session)
        for restart in self.restarts:
            await restart()
