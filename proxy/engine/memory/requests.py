"""Memory that somebody asked for: made behind the next response of its session, once.

Sessions of the strategy `snapshot` begin anew from it with the request after that. An order stays in the log until it
was carried out, so that it outlives a restart.
"""

import logging
from functools import partial

from proxy.context.epoch_decision import LATE, SIDE
from proxy.engine.memory.compaction import MemoryCompaction
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import read_view
from proxy.model.errors import Conflict, NotFound
from proxy.model.events import ExchangeRecorded, Planned
from proxy.model.exchange import CONVERSATION, SUCCESS

_UNASKED = (SIDE, LATE)  # calls that could open no epoch, whatever was asked for

_log = logging.getLogger("palimpsest.memory")


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


def _log_failure(session: str, error: Exception) -> None:
    _log.error(
        "memory could not be made, though it was asked for; ask again", exc_info=error, extra={"session": session}
    )
