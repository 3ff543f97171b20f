"""The processes that render prompts and check answers for operators, as seen from the serving process.

There are two at most. The first is started by the first task; the second while another run has the first one. A run
has one at a time, for a batch of its tasks, and then lets others go first. A batch that fails is done again, task by
task: what is wrong with one is no matter of the others.
"""

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Sequence

import msgspec

from proxy.engine.mapping.sandbox import Batch, Kind, Limits, Task, TaskFailed, TaskOutcome
from proxy.model.errors import WorkerLost
from proxy.worker.process import JobProcess

PROGRAM = (sys.executable, "-P", "-m", "proxy.worker.sandbox_program")
PROCESSES = 2
_BATCH_TASKS, _BATCH_BYTES = 64, 1024 * 1024
# Seconds of one job where the limit of processor time ends nothing: on a machine that is overloaded, or out of memory.
_JOB_SECONDS = 120.0
_LONGEST_PROBLEM = 300

_WHAT: dict[Kind, str] = {
    "check": "checking the prompt template and output_schema",
    "render": "rendering the prompt template",
    "read": "checking the answer against output_schema",
}
_ADVICE: dict[Kind, str] = {
    "check": "make them smaller",
    "render": "use fewer loops, repetitions and filters in it, or shorter inputs",
    "read": "make its patterns, references and combinations (anyOf, oneOf, uniqueItems) simpler",
}

_outcomes = msgspec.msgpack.Decoder(list[TaskOutcome])


class _WaitingTask(msgspec.Struct, gc=False, eq=False):
    """A task that waits to be done, and the future for what it comes to."""

    task: Task
    outcome: "asyncio.Future[TaskOutcome]"
    is_alone: bool = False


class SandboxProcesses:
    """The port `Sandbox`."""

    def __init__(self, limits: Limits | None = None, program: Sequence[str] = PROGRAM) -> None:
        self._limits = limits or Limits()
        command = (*program, msgspec.json.encode(self._limits).decode())
        self._processes = [
            JobProcess("the process of operators", command, job_seconds=_JOB_SECONDS, pauses=False)
            for _ in range(PROCESSES)
        ]
        self._free: asyncio.LifoQueue[JobProcess] = asyncio.LifoQueue()
        for process in reversed(self._processes):
            self._free.put_nowait(process)
        self._is_closed = False
        self._runs: dict[str, deque[_WaitingTask]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes that run."""
        return [process.pid for process in self._processes if process.pid is not None]

    async def do(self, run: str, task: Task) -> TaskOutcome:
        """Return what a task of a run comes to. Raises TaskFailed, and WorkerLost if there is no process to do it."""
        loop = asyncio.get_running_loop()
        waiting = _WaitingTask(task, loop.create_future())
        if run in self._runs:
            self._runs[run].append(waiting)
        else:
            self._runs[run] = deque((waiting,))
            serving = loop.create_task(self._serve(run))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        return await waiting.outcome

    async def restart(self) -> None:
        """End the processes once their jobs are done; the next task starts one, with nothing in memory."""
        await asyncio.gather(*[process.restart() for process in self._processes])

    async def close(self) -> None:
        """End the processes. Tasks that wait raise WorkerLost."""
        self._is_closed = True
        await asyncio.gather(*[process.close() for process in self._processes])
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, run: str) -> None:
        """Do the tasks of a run until none waits."""
        queue = self._runs[run]
        while queue:
            process = await self._free.get()
            try:
                await self._do_some(process, queue)
            finally:
                self._free.put_nowait(process)
        del self._runs[run]

    async def _do_some(self, process: JobProcess, queue: deque[_WaitingTask]) -> None:
        """Do tasks at the head of a queue. Put them back, to be done one by one, if that fails."""
        batch = _take(queue)
        if not batch:
            return
        try:
            outcomes = await process.ask(Batch(tuple([each.task for each in batch])), _outcomes.decode)
        except (WorkerLost, RuntimeError) as error:
            if len(batch) > 1:
                queue.extendleft(_WaitingTask(each.task, each.outcome, is_alone=True) for each in reversed(batch))
            else:
                _fail(batch[0], self._explain(batch[0].task.kind, error, process.exit_code))
            return
        for each, outcome in zip(batch, outcomes, strict=True):
            if not each.outcome.done():
                each.outcome.set_result(outcome)

    def _explain(self, kind: Kind, error: Exception, exit_code: int | None) -> Exception:
        """Return the error of a task that was done alone, and failed."""
        what, advice = _WHAT[kind], _ADVICE[kind]
        limits = self._limits
        if isinstance(error, RuntimeError):
            if str(error).startswith("MemoryError"):
                return TaskFailed(f"{what} takes more than {limits.memory_bytes >> 20} MB of memory: {advice}")
            return TaskFailed(f"{what} failed: {str(error)[:_LONGEST_PROBLEM]}")
        if exit_code is None or self._is_closed:  # there was no process
            return error
        if exit_code == -signal.SIGPROF:
            return TaskFailed(f"{what} takes more than {limits.cpu_seconds:g} s of processor time: {advice}")
        return TaskFailed(f"{what} has ended the process that did it (code {exit_code}): {advice}")


def _take(queue: deque[_WaitingTask]) -> list[_WaitingTask]:
    """Take the tasks that are done next. Drop those whose callers have gone."""
    taken, size = list[_WaitingTask](), 0
    while queue and len(taken) < _BATCH_TASKS:
        if queue[0].outcome.done():
            queue.popleft()
            continue
        size += queue[0].task.weight
        if taken and (size > _BATCH_BYTES or queue[0].is_alone):
            break
        taken.append(queue.popleft())
        if taken[0].is_alone:
            break
    return taken


def _fail(waiting: _WaitingTask, error: Exception) -> None:
    if not waiting.outcome.done():
        waiting.outcome.set_exception(error)
