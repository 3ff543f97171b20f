"""What a running server still does for a session, and what its memory has of sessions."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.engine.background.jobs import SUMMARY
from proxy.engine.compaction.worker import SummaryWorker
from proxy.engine.exchange import ExchangeService
from proxy.engine.memory.memory import SessionMemory


class OtherProcess(Protocol):
    """Processes of ours, whose memory has messages, too."""

    async def restart(self) -> None:
        """End them. Others are started when they are needed."""
        ...


@dataclass(frozen=True, slots=True)
class LiveSessions:
    """Settles sessions, and forgets them."""

    exchanges: ExchangeService
    summaries: SummaryWorker
    memory: SessionMemory
    planning: OtherProcess
    sandbox: OtherProcess

    async def settle(self, session: str) -> str:
        """Read the answers of a session that wait to be read, and end what is done behind its calls.

        Return what goes on in it that keeps it from being erased, or an empty text.
        """
        if self.exchanges.calls.is_open(session):
            return "a call is under way"
        if self.summaries.jobs.list_jobs(session, SUMMARY):
            return "a summary of it is being made"
        self.summaries.credentials.forget(session)
        await self.summaries.jobs.end(session)
        reader = self.exchanges.calls.relay.reader
        for exchange in reader.lineage.list_open(session):
            await reader.read_now(exchange)
        return "an answer to it is being read" if reader.lineage.list_open(session) else ""

    async def forget(self, sessions: Sequence[str]) -> None:
        """Drop what memory has of sessions. Caches are dropped as a whole: they are soon filled again."""
        self.exchanges.forget(sessions)
        self.summaries.caches.forget(sessions)
        self.memory.forget()
        await asyncio.gather(self.planning.restart(), self.sandbox.restart())
