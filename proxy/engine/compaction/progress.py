"""Telling when summaries are made, and what came of it: each one that was begun ends in the log, or with a reason."""

from collections.abc import Awaitable, Callable

from proxy.context.compaction.spans import WITHOUT_MODEL
from proxy.engine.compaction.job import SummaryJob
from proxy.engine.runtime import EngineBus
from proxy.model.epoch import Summary
from proxy.model.events import CompactionEnded, CompactionStarted, SummaryAdded

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
        messages = job.span.stop - job.span.start
        session, exchange, is_manual = _name(job)
        self.bus.publish(CompactionStarted(session, exchange, messages, job.covered, is_manual))

    def add(self, job: SummaryJob, summary: Summary) -> None:
        """Tell of a summary that is in the log."""
        made = (summary.id, summary.session, summary.exchange, summary.kind, summary.level)
        self.bus.publish(SummaryAdded(*made, summary.covered, summary.tokens))
        if (seconds := self._end(job)) is None:
            return
        session, exchange, is_manual = _name(job)
        self.bus.publish(
            CompactionEnded(
                session,
                exchange,
                seconds,
                is_manual,
                summary=summary.id,
                level=summary.level,
                messages=summary.stop - summary.start,
                covered=summary.covered,
                tokens=summary.tokens,
                reason=summary.reason,
            )
        )

    def fail(self, job: SummaryJob, error: str) -> None:
        """Tell why no summary came of a job. Do nothing if it has ended already."""
        if (seconds := self._end(job)) is not None:
            session, exchange, is_manual = _name(job)
            self.bus.publish(CompactionEnded(session, exchange, seconds, is_manual, error))

    def _end(self, job: SummaryJob) -> float | None:
        began = self._began.pop(id(job), None)
        return None if began is None else self._now() - began


def _name(job: SummaryJob) -> tuple[str, str, bool]:
    return job.request.session, job.request.state.request.exchange, job.options is not None
