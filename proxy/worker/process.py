"""Processes that do jobs, as seen from the serving process: starts one when needed, sends it jobs, restarts it.

The worker process is one (`program`); those that render and check for operators are others (`sandbox`).
"""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from proxy.context.outline import Outline, OutlineJob
from proxy.engine.context.epoch_planner import PlanJob, RenderedPlan
from proxy.engine.runtime import attempt
from proxy.engine.text_jobs import TextJob
from proxy.engine.token_counter import Measured, MeasureJob
from proxy.model.errors import StoreUnavailable, WorkerLost
from proxy.model.search import IndexHealth
from proxy.retrieval.vectors import PassageBatch, VectorBatch
from proxy.worker.frames import LENGTH_BYTES, Result, make_frame
from proxy.worker.indexing import IndexJob, PassageJob, VectorJob
from proxy.worker.program import COUNTED_IN, WorkerSettings

PROGRAM = (sys.executable, "-P", "-m", "proxy.worker.program")
# Seconds for one job, including the start of the process. The longest plans take 1 s on an idle machine and 10 s beside
# eight busy loops on two cores. Callers wait for less.
JOB_SECONDS = 20.0
# For how many seconds jobs are refused after the process was lost twice in a row; doubled each time up to the maximum.
LEAST_PAUSE, _MOST_PAUSE = 1.0, 60.0
# The most jobs in the queue of those made ahead, which no call waits for yet.
_MOST_AHEAD = 8
# The most bytes of all jobs together: each job holds a conversation in memory.
MOST_BYTES = 32 * 1024 * 1024
_READ_BYTES = 1024 * 1024
# How often the process is asked how current the index is, which also starts it again if it was lost.
ASK_SECONDS = 5.0
# How long the process has for ending by itself, so that the index is closed and leaves no journal.
_CLOSING_SECONDS = 1.0

_STOPPING = "the server is stopping"
_BUSY = "too many jobs wait for the worker process"

_log = logging.getLogger("palimpsest.worker")
_results = msgspec.msgpack.Decoder(Result)
_plans = msgspec.msgpack.Decoder(RenderedPlan)
_measured = msgspec.msgpack.Decoder(list[Measured])
_outlines = msgspec.msgpack.Decoder(Outline)
_health = msgspec.msgpack.Decoder(IndexHealth)
_problems = msgspec.msgpack.Decoder(str)
_passages = msgspec.msgpack.Decoder(PassageBatch)


class SizedJob(Protocol):
    """A job: a struct that knows how much memory it takes."""

    @property
    def weight(self) -> int:
        """Its bytes, about."""
        ...


class _Waiting(msgspec.Struct, gc=False, eq=False):
    """A queued job, the future for its result, and the result's decoder. `job` is None once nobody waits for it."""

    job: SizedJob | None
    result: "asyncio.Future[Any]"
    decode: Callable[[bytes], Any]


class JobProcess:
    """Does one job at a time in a process of its own: first those that calls wait for, last those made ahead.

    A job raises WorkerLost if the process dies or the job takes longer than `job_seconds`; the next job restarts the
    process. A job also raises WorkerLost if all jobs together would exceed `most_bytes`, and, if `pauses`, for a while
    after the process was lost twice in a row.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        job_seconds: float = JOB_SECONDS,
        most_bytes: int = MOST_BYTES,
        pauses: bool = True,
    ) -> None:
        self._name = name  # as the log and errors call it
        self._command = tuple(command)
        self._most_bytes = most_bytes
        self._pauses = pauses
        self.job_seconds = job_seconds
        self.bytes = 0  # of all jobs that wait or are under way
        self.exit_code: int | None = None  # of the last process that has ended
        self._process: asyncio.subprocess.Process | None = None
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._urgent: deque[_Waiting] = deque()
        self._texts: deque[_Waiting] = deque()
        self._ahead: deque[_Waiting] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._losses = 0
        self._refused_until = 0.0
        self._is_closed = self._is_idle = False  # idle: the process has started, and has no job
        self._has_answered = False  # since it was started

    @property
    def pid(self) -> int | None:
        """The id of the process, or None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def is_starting(self) -> bool:
        """Whether the process was asked for a job, and has not answered since it was started."""
        is_ready = self._has_answered and self.pid is not None
        return not is_ready and self._serving is not None and not self._serving.done()

    def ask(self, job: SizedJob, decode: Callable[[bytes], Any]) -> "asyncio.Future[Any]":
        """Return a future for the result of a job, as `decode` reads it.

        It raises WorkerLost, or RuntimeError if the job has failed.
        """
        return self._ask(job, self._urgent, decode)

    async def finish(self) -> None:
        """Return when no job waits, and none is under way."""
        while self._serving is not None and not self._serving.done():
            await asyncio.wait((self._serving,))

    async def restart(self) -> None:
        """End the process once the jobs that wait are done; the next one starts it, with nothing in memory."""
        if self._serving is not None:
            await asyncio.wait((self._serving,), timeout=self.job_seconds)
        await self._end(_CLOSING_SECONDS if self._is_idle else 0.0)

    async def close(self) -> None:
        """End the process. Jobs that wait raise WorkerLost."""
        self._is_closed = True
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait((self._serving,))
        await self._end(_CLOSING_SECONDS if self._is_idle else 0.0)
        for waiting in (*self._urgent, *self._texts, *self._ahead):
            _fail(waiting, WorkerLost(_STOPPING))

    def _ask(self, job: SizedJob, queue: deque[_Waiting], decode: Callable[[bytes], Any]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop.create_future(), decode)
        if self._is_closed:
            _fail(waiting, WorkerLost(_STOPPING))
        elif loop.time() < self._refused_until:
            _fail(waiting, WorkerLost(self._refusal))
        elif self._is_full(job.weight) or (queue is self._ahead and len(queue) >= _MOST_AHEAD):
            _fail(waiting, WorkerLost(_BUSY))
        else:
            self.bytes += job.weight
            waiting.result.add_done_callback(partial(self._forget, waiting))
            queue.append(waiting)
            if self._serving is None or self._serving.done():
                self._serving = loop.create_task(self._serve())  # not a client's call: a shutdown does not wait for it
        return waiting.result

    @property
    def _refusal(self) -> str:
        return f"{self._name} was lost several times; it is started again later"

    def _is_full(self, weight: int) -> bool:
        """Return whether there is no room for a job of `weight` bytes. A job that is alone always has room."""
        return self.bytes > 0 and self.bytes + weight > self._most_bytes

    def _forget(self, waiting: _Waiting, _: object) -> None:
        """Drop a job that is done, or whose caller has gone."""
        if waiting.job is not None:
            self.bytes -= waiting.job.weight
        waiting.job = None

    async def _serve(self) -> None:
        """Do jobs until none waits. Each caller gets a result or an error."""
        while queue := self._urgent or self._texts or self._ahead:
            waiting, problems = queue.popleft(), list[Exception]()
            if asyncio.get_running_loop().time() < self._refused_until:
                _fail(waiting, WorkerLost(self._refusal))
            if waiting.result.done():  # it was refused, or its caller has gone
                continue
            try:
                await attempt(self._do(waiting), problems.append)
                for problem in problems:  # of any type: each event loop has its own errors for a closed pipe
                    await self._lose(waiting, problem)
            finally:
                _fail(waiting, WorkerLost(_STOPPING))

    async def _do(self, waiting: _Waiting) -> None:
        """Do one job. Raises any error of the process or of its pipes."""
        assert waiting.job is not None, "its result is not there"
        try:
            frame = make_frame(waiting.job)
        except (TypeError, ValueError, OverflowError) as error:
            _fail(waiting, error)
            return
        try:
            async with asyncio.timeout(self.job_seconds):
                result = await self._exchange(frame)
        except TimeoutError:
            raise TimeoutError(f"it took more than {self.job_seconds:g} s for one job") from None
        value = None if result.problem else waiting.decode(result.content)
        self._losses = 0
        if result.problem:
            _fail(waiting, RuntimeError(result.problem))
        elif not waiting.result.done():
            waiting.result.set_result(value)

    async def _exchange(self, frame: bytes) -> Result:
        """Send the frame of a job and return its result. Start the process if it does not run."""
        if self._process is not None and self._process.returncode is not None:
            _log.warning(
                "%s has ended (code %d; -9: the system lacked memory) and is started again",
                self._name,
                self._process.returncode,
            )
            self._process = None
        process = self._process or await self._start()
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        self._is_idle = False
        process.stdin.write(frame)
        await process.stdin.drain()
        length = await process.stdout.readexactly(LENGTH_BYTES)
        result = _results.decode(await process.stdout.readexactly(int.from_bytes(length)))
        self._is_idle = self._has_answered = True
        return result

    async def _start(self) -> asyncio.subprocess.Process:
        self._has_answered = False
        starting = asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # no API keys
            start_new_session=True,  # Ctrl-C must not reach it
            limit=_READ_BYTES,
        )
        self.exit_code = None
        self._starting = asyncio.get_running_loop().create_task(starting)
        await asyncio.wait((self._starting,))  # if this is cancelled, `_end` ends the process
        self._process, self._starting = self._starting.result(), None
        return self._process

    async def _lose(self, waiting: _Waiting, error: Exception) -> None:
        """End a process that has failed, log the problem, and refuse jobs for a while if it fails repeatedly."""
        problem = f"{type(error).__name__}: {error}"
        self._losses += 1
        if self._pauses and self._losses > 1:
            pause = min(_MOST_PAUSE, LEAST_PAUSE * 2 ** (self._losses - 2))
            self._refused_until = asyncio.get_running_loop().time() + pause
        _log.warning("%s was lost: %s; it is started again when it is needed", self._name, problem)
        # One whose output has ended is about to end: asyncio does not learn the exit code of one that is killed then.
        await self._end(_CLOSING_SECONDS if isinstance(error, EOFError) else 0.0)
        _fail(waiting, WorkerLost(f"{self._name} was lost: {problem}"))

    async def _end(self, seconds: float = 0.0) -> None:
        """End the process. For so many seconds it may close the index."""
        starting, self._starting = self._starting, None
        if starting is not None:
            await asyncio.wait((starting,))
            if starting.exception() is None:
                self._process = starting.result()
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None and seconds:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
        if process.returncode is None:
            # Its own `kill` polls first, and so may reap the process in place of the loop, which then says on stderr
            # that it knows no such process.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.exit_code = await process.wait()


class WorkerProcess(JobProcess):
    """The worker process: plans epochs, measures, makes outlines.

    While it has no job, it indexes the log (`settings.log`); `index_health` is what it last told of that.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        program: Sequence[str] = PROGRAM,
        job_seconds: float = JOB_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        command = (*program, msgspec.json.encode(settings).decode())
        super().__init__("the worker process", command, job_seconds=job_seconds, most_bytes=most_bytes)
        self._watching: asyncio.Task[None] | None = None
        self._indexes = bool(settings.log)
        self.index_health = IndexHealth()

    async def start(self) -> None:
        """Start the process and wait until it is ready for its first job. Raises WorkerLost."""
        if self._indexes and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())  # no client's call
        await self.measure(MeasureJob(COUNTED_IN, ()))

    def plan(self, job: PlanJob, is_ahead: bool = False) -> "asyncio.Future[RenderedPlan]":
        """Return a future for the plan of a job. It raises WorkerLost, or RuntimeError if planning has failed."""
        return self._ask(job, self._ahead if is_ahead else self._urgent, _plans.decode)

    def prioritise(self, plan: "asyncio.Future[RenderedPlan]") -> None:
        """Let a plan made ahead take its turn with those that calls wait for: now one waits for it."""
        waiting = next((each for each in self._ahead if each.result is plan), None)
        if waiting is not None:
            self._ahead.remove(waiting)
            self._urgent.append(waiting)

    async def measure(self, job: MeasureJob) -> list[Measured]:
        """Return the measurements of each content. Raises WorkerLost, or RuntimeError if measuring has failed."""
        measured: list[Measured] = await self._ask(job, self._urgent, _measured.decode)
        return measured

    async def outline(self, job: OutlineJob) -> Outline:
        """Return the outline of a content. Raises like `measure`."""
        found: Outline = await self._ask(job, self._urgent, _outlines.decode)
        return found

    def compute(self, job: TextJob, result: Any) -> "asyncio.Future[Any]":
        """Return a future for what a function returns, of type `result`, once no call waits. It raises like `plan`."""
        return self._ask(job, self._texts, partial(msgspec.msgpack.decode, type=result))

    async def rebuild_index(self) -> IndexHealth:
        """Have the index made anew. Raises WorkerLost and StoreUnavailable."""
        try:
            self.index_health = await self._ask(IndexJob(is_rebuilt=True), self._urgent, _health.decode)
        except RuntimeError as error:
            raise StoreUnavailable(f"the index could not be made anew: {error}") from error
        return self.index_health

    async def list_passages(self, session: str, model: str) -> PassageBatch:
        """Return the next passages of a session that need a vector, when there is no other job.

        Raises WorkerLost and StoreUnavailable.
        """
        batch: PassageBatch = await self._ask_index(PassageJob(session, model), _passages.decode)
        return batch

    async def keep_vectors(self, session: str, model: str, batch: VectorBatch) -> str:
        """Store vectors, when there is no other job. Return why they cannot be kept, if so.

        Raises like `list_passages`.
        """
        problem: str = await self._ask_index(VectorJob(session, model, batch), _problems.decode)
        return problem

    async def _ask_index(self, job: PassageJob | VectorJob, decode: Callable[[bytes], Any]) -> Any:
        try:
            return await self._ask(job, self._ahead, decode)
        except RuntimeError as error:
            raise StoreUnavailable(f"the index has failed: {error}") from error

    async def close(self) -> None:
        """End the process. Jobs that wait raise WorkerLost."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        await super().close()

    async def _watch(self) -> None:
        """Ask now and then how current the index is."""
        while True:
            try:
                self.index_health = await self._ask(IndexJob(), self._urgent, _health.decode)
            except (WorkerLost, RuntimeError) as error:
                self.index_health = replace(self.index_health, fault=str(error))
            await asyncio.sleep(ASK_SECONDS)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.result.done():
        waiting.result.set_exception(error)
