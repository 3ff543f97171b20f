"""Functions with much text are called in the worker process, and give there what they give here."""

import asyncio
from typing import Any

import msgspec
import pytest

from proxy.context.compaction.acceptance import SummaryTask, check_summary
from proxy.context.compaction.digest import digest_messages, digest_summaries
from proxy.context.compaction.prompts import render_summaries, render_transcript
from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.summary_text import SummaryFrame
from proxy.context.conversation import BuilderPolicy
from proxy.context.memory.learning import learn_facts
from proxy.context.message_features import extract_features
from proxy.context.outline import outline
from proxy.engine.text_jobs import TextJob, TextJobs, compute, index_plan
from proxy.model.errors import WorkerLost
from tests.support.compacting import Workshop
from tests.support.managing import make_history

TOOLS: dict[str, Any] = {"count": lambda text: len(text) // 4, "extract": extract_features}
FRAME = SummaryFrame("abcdefghij", "m", "2026-11-28")
ANSWER = "## Goal\nMend the parser.\n## Completed\nRead files.\n## Remaining\nTests.\n## Facts\n- [decision] Use x."


class OtherProcess:
    """Does jobs as the worker process does: from bytes to bytes. Fails with `fault`, if there is one."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.fault, self.jobs = fault, list[TextJob]()

    def compute(self, job: TextJob, result: Any) -> "asyncio.Future[Any]":
        self.jobs.append(job)
        future = asyncio.get_running_loop().create_future()
        if isinstance(self.fault, TimeoutError):
            return future
        if self.fault is not None:
            future.set_exception(self.fault)
        else:
            future.set_result(msgspec.msgpack.decode(msgspec.msgpack.encode(compute(job, TOOLS)), type=result))
        return future


async def read_plan() -> Any:
    shop, planned = Workshop(), list[Any]()
    request = await shop.read_state(make_history(20, 1600))
    run = shop.summarizer.texts.run

    async def note(function: Any, *values: Any) -> Any:
        planned[:] = values
        return await run(function, *values)

    shop.summarizer.texts.run = note  # type: ignore[method-assign]
    index = await shop.worker.index_conversation(request)
    return planned[0], index, MessageRange(0, 20, request.state.history.count(0, 20)), list(request.nodes)


async def test_each_function_gives_the_same_in_either_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.text_jobs.APART_BYTES", 0)
    plan, index, span, nodes = await read_plan()
    task = SummaryTask(index, span, 1, 2000, span.tokens)
    calls: list[tuple[Any, ...]] = [
        (index_plan, plan, BuilderPolicy()),
        (render_transcript, index, span, 2000, None),
        (render_transcript, index, span, 2000, 500),
        (render_summaries, ["one report", "another"], 2000, None),
        (check_summary, ANSWER, task, FRAME),
        (check_summary, "", task, FRAME),
        (digest_messages, index, span, FRAME, ("bcdefghijk",)),
        (digest_summaries, [ANSWER, ANSWER], span, FRAME),
        (learn_facts, index, span, nodes, ("- [decision] Use x.",), ANSWER, frozenset({2})),
        (outline, "def f():\n    pass\n"),
    ]
    there, here = OtherProcess(), TextJobs(TOOLS)
    for call in calls:
        assert await TextJobs(TOOLS, there).run(*call) == await here.run(*call)
    assert len(there.jobs) == len(calls)


async def test_short_texts_and_what_cannot_be_transferred_are_read_here() -> None:
    worker = OtherProcess()
    texts = TextJobs(TOOLS, worker)
    assert "few words" in await texts.run(render_summaries, ["few words"], 2000, None)
    assert "\ud800" in await texts.run(render_summaries, ["\ud800" + "word " * 20_000], 100_000, None)
    assert not worker.jobs
    assert "word" in await texts.run(render_summaries, ["word " * 20_000], 100_000, None)
    assert len(worker.jobs) == 1


async def test_what_has_failed_there_is_tried_here_unless_the_process_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.text_jobs.WAIT_SECONDS", 0.01)
    long = (render_summaries, ["word " * 20_000], 100_000, None)
    assert "word" in await TextJobs(TOOLS, OtherProcess(RuntimeError("no"))).run(*long)
    for fault in (WorkerLost("gone"), TimeoutError()):
        texts = TextJobs(TOOLS, OtherProcess(fault))
        with pytest.raises(WorkerLost):
            await texts.run(*long)
        assert "word" in await texts.run_surely(*long)
