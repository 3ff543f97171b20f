"""Telling when summaries are made, and what came of it: each one that was begun ends in the log, or with a reason."""

from collections.abc import Awaitable, Callable
from typing import Any

from proxy.context.compaction.spans import WITHOUT_MODEL
from proxy.engine.compaction.job import SummaryJob
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Summary
from proxy.model.events import (
    CompactionCompletedEvent,
    CompactionFailedEvent,
    CompactionTriggeredEvent,
    SummaryAddedEvent,
)

_STOPPED = "it was stopped: a call of the client came first, or the server stops"
_UNASKED = "no model may be asked now, or another process or branch is at the same"
_NO_BETTER = "it is no better, or no shorter, than what it would replace"


class CompactionProgress:
    """Publishes what happens to the jobs of a worker. `now` returns monotonic seconds.

    A summary that was put together without asking anybody is added, but was never begun.
    """

    def __init__(self, bus: EngineBus, now: Callable[[], float]) -> None:
        self.bus = bus
        self._now = now
        self._began: dict[int, float] = {}  # by the identity of the job, which its caller holds until it has ended

    async def watch(self, job: SummaryJob, making: Awaitable[Summary | None]) -> Summary | None:
        """Tell that a summary is about to be made, and if none came of it. Return the summary."""
        self._begin(job)
        problem, summary = _STOPPED, None
        try:
            summary = await making
            problem = _UNASKED
        finally:
            if summary is None:
                self.fail(job, problem)
        return summary

    def is_in_vain(self, job: SummaryJob, summary: Summary) -> bool:
        """Return whether a summary that should improve another one does not, and tell so."""
        return not self.check(job, is_good=not job.supersedes or summary.level != WITHOUT_MODEL)

    def check(self, job: SummaryJob, *, is_good: bool, problem: str = _NO_BETTER) -> bool:
        """Return whether the summary of a job can be kept; tell why it is not."""
        if not is_good:
            self.fail(job, problem)
        return is_good

    def _begin(self, job: SummaryJob) -> None:
        self._began[id(job)] = self._now()
        self.bus.publish(
            CompactionTriggeredEvent(
                **_identify(job),
                messages=job.span.stop - job.span.start,
                tokens=job.covered,
            )
        )

    def add(self, job: SummaryJob, summary: Summary) -> None:
        """Tell of a summary that is in the log."""
        self.bus.publish(
            SummaryAddedEvent(
                session=summary.session,
                exchange=summary.exchange,
                summary=summary.id,
                kind=summary.kind,
                level=summary.level,
                covered=summary.covered,
                tokens=summary.tokens,
            )
        )
        if (elapsed_ms := self._end(job)) is not None:
            self.bus.publish(
                CompactionCompletedEvent(
                    **_identify(job),
                    summary=summary.id,
                    level=summary.level,
                    messages=summary.stop - summary.start,
                    tokens_before=summary.covered,
                    tokens_after=summary.tokens,
                    elapsed_ms=elapsed_ms,
                    reason=summary.reason,
                )
            )

    def fail(self, job: SummaryJob, error: str) -> None:
        """Tell why no summary came of a job. Do nothing if it has ended already."""
        if (elapsed_ms := self._end(job)) is not None:
            self.bus.publish(CompactionFailedEvent(**_identify(job), error=error, elapsed_ms=elapsed_ms))

    def _end(self, job: SummaryJob) -> int | None:
        began = self._began.pop(id(job), None)
        return None if began is None else round(1000 * (self._now() - began))


def _identify(job: SummaryJob) -> dict[str, Any]:
    """Return the members that all events of a job have."""
    request = job.request
    return {
        "session": request.session,
        "exchange": request.state.request.exchange,
        "is_manual": job.options is not None,
    }
