"""Functions that read much text, called in the worker process.

A call of such a function is a job with its name and values. Short texts, and those that cannot be transferred, are read
in a thread of this process: every pattern takes time linear in its text (`tests/test_patterns.py`).
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, get_type_hints

import msgspec

from proxy.context.compaction.acceptance import check_summary
from proxy.context.compaction.digest import digest_messages, digest_summaries
from proxy.context.compaction.prompts import render_summaries, render_transcript
from proxy.context.conversation import BuilderPolicy, ConversationIndex, index_conversation
from proxy.context.memory.learning import learn_facts
from proxy.context.message_features import FeatureExtractor
from proxy.context.outline import outline
from proxy.engine.context.epoch_planner import PlanJob, make_plan_request
from proxy.model.errors import WorkerLost

_T = TypeVar("_T")

# Bytes of the values from which on a function is called in the worker process.
APART_BYTES = 64 * 1024
# Seconds for which a caller waits for its turn and for the result.
WAIT_SECONDS = 60.0

Tools = Mapping[str, Callable[..., Any]]
"""What functions get by these names in either process, since it is no value: `count` and `extract`."""


def index_plan(job: PlanJob, policy: BuilderPolicy, extract: FeatureExtractor) -> ConversationIndex:
    """Return the index of the conversation that a plan is made for."""
    return index_conversation(make_plan_request(job), policy, extract)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        index_plan,
        render_transcript,
        render_summaries,
        check_summary,
        digest_messages,
        digest_summaries,
        learn_facts,
        outline,
    )
}


class TextJob(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """A call of a function by its name, with its values in MessagePack."""

    function: str
    values: bytes

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return len(self.values)


class TextWorker(Protocol):
    """Calls functions in another process. Raises WorkerLost, or RuntimeError if the function has failed there."""

    def compute(self, job: TextJob, result: Any) -> "asyncio.Future[Any]":
        """Return a future for what the function of a job returns, which is of type `result`."""
        ...


def compute(job: TextJob, tools: Tools) -> Any:
    """Call the function of a job. Raises what it raises."""
    function = _FUNCTIONS[job.function]
    hints, raws = get_type_hints(function), msgspec.msgpack.decode(job.values, type=list[msgspec.Raw])
    named = zip(_list_values(function, tools), raws, strict=False)
    return _call(function, tools, [msgspec.msgpack.decode(raw, type=hints[name]) for name, raw in named])


class TextJobs:
    """Calls functions with much text in the worker process; without one, in a thread."""

    def __init__(self, tools: Tools, worker: TextWorker | None = None) -> None:
        self._tools = tools
        self._worker = worker

    @property
    def count(self) -> Callable[[str], int]:
        """Returns the tokens of a text, in the thread that calls it."""
        return self._tools["count"]

    async def run(self, function: Callable[..., _T], *values: object) -> _T:
        """Return what a function returns for values, those of its parameters that are no tools, in their order.

        Raises WorkerLost if the worker process was lost, or did not get to it in time, and what the function raises.
        """
        found: _T
        job = self._make_job(function, values)
        if self._worker is not None and job is not None:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    found = await self._worker.compute(job, get_type_hints(function)["return"])
                return found
            except TimeoutError:
                raise WorkerLost(f"the worker process had no time for {function.__name__}") from None
            except RuntimeError:
                pass  # such as a result that cannot be transferred; if the function has failed, it does so again
        return await asyncio.to_thread(_call, function, self._tools, values)

    async def run_surely(self, function: Callable[..., _T], *values: object) -> _T:
        """Return what `run` does, in a thread where the worker process is what has failed."""
        try:
            return await self.run(function, *values)
        except WorkerLost:
            return await asyncio.to_thread(_call, function, self._tools, values)

    def _make_job(self, function: Callable[..., Any], values: Sequence[object]) -> TextJob | None:
        """Return the job of a call, None if its values are small, or cannot be transferred."""
        try:
            content = msgspec.msgpack.encode(values)
        except (TypeError, ValueError, OverflowError):
            return None
        return TextJob(function.__name__, content) if len(content) >= APART_BYTES else None


def _list_values(function: Callable[..., Any], tools: Tools) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in tools]


def _call(function: Callable[..., _T], tools: Tools, values: Sequence[object]) -> _T:
    names = inspect.signature(function).parameters
    named = zip(_list_values(function, tools), values, strict=False)  # the last parameters may have defaults
    return function(**dict(named), **{name: tool for name, tool in tools.items() if name in names})
