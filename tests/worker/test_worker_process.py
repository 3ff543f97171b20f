"""The worker process gives the results that this process would, and what happens to it never hangs a caller."""

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, ConversationIndex, PlanInputs
from proxy.context.message_features import extract_features
from proxy.context.outline import OutlineJob, outline
from proxy.engine.context.epoch_planner import PlanJob, RenderedPlan, compute_plan
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.text_jobs import TextJob, TextJobs, index_plan
from proxy.engine.token_counter import Measured, MeasureJob, TokenCounter, measure
from proxy.model.errors import WorkerLost
from proxy.model.shared_list import extend_shared
from proxy.upstream.tokenizer import CountingTokenizer
from proxy.worker import process
from proxy.worker.frames import LENGTH_BYTES, Result, make_frame, serve
from proxy.worker.process import MOST_BYTES, WorkerProcess
from proxy.worker.program import Job, Jobs, WorkerSettings, count_text, main
from tests.support.embedding import ESTIMATOR
from tests.support.managing import QuarterTokens, make_history, make_planner, make_subject
from tests.support.scripted import LIMIT

SETTINGS = WorkerSettings(BuilderPolicy(), 1 << 20)
TOKENIZER = CountingTokenizer()  # to load and warm an encoder takes 0.2 s
BUDGET = make_budget(1_000_000, None, None, BudgetPolicy(ceiling_tokens=8_000))
CONTENTS = MeasureJob(
    "o200k_base",
    [(b'{"role":"user","content":"How are you?"}', "message"), (b"[]", "tools"), (b"a b c", "text")],
    "chat_completions",
)
# A worker that reads its first job and then does as the rest of the line says.
READER = "import sys, time, os; sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4))); "


async def make_job(steps: int = 40) -> PlanJob:
    request = make_subject(make_history(steps, 1600))
    history = await HistoryCounter(TokenCounter(QuarterTokens())).follow(request)
    return make_planner().make_job(request, history, PlanInputs(BUDGET))


@pytest.fixture
async def worker() -> AsyncIterator[WorkerProcess]:
    """A worker that counts words, so that its start takes half the time."""
    made = WorkerProcess(msgspec.structs.replace(SETTINGS, estimator=ESTIMATOR), job_seconds=LIMIT)
    yield made
    await made.close()
    assert made.pid is None


@pytest.fixture
async def counting() -> AsyncIterator[WorkerProcess]:
    """A worker that counts tokens."""
    made = WorkerProcess(SETTINGS, job_seconds=LIMIT)
    yield made
    await made.close()
    assert made.pid is None


def make_misbehaving(line: str, job_seconds: float = LIMIT, most_bytes: int = MOST_BYTES) -> WorkerProcess:
    return WorkerProcess(SETTINGS, (sys.executable, "-c", READER + line), job_seconds, most_bytes)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio waits for its processes otherwise")
async def test_a_process_that_has_just_ended_by_itself_is_reaped_by_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine the loop looks at it late."""
    may_look, wait = threading.Event(), os.waitpid

    def wait_late(pid: int, options: int) -> tuple[int, int]:
        may_look.wait(LIMIT)
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", wait_late)  # `subprocess` has its own
    asyncio.get_running_loop().call_later(3.0, may_look.set)
    ended = make_misbehaving("os._exit(3)")
    with pytest.raises(WorkerLost, match="IncompleteReadError"):
        await ended.start()
    assert ended.exit_code in (3, -signal.SIGKILL)  # the latter if the kill came before its end
    assert "Unknown child process" not in caplog.text
    await ended.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_plan_is_the_one_that_this_process_would_make(counting: WorkerProcess) -> None:
    job = await make_job()
    here = compute_plan(job, ContextBuilder(BuilderPolicy(), lambda text: count_text(TOKENIZER, text)))
    assert await counting.plan(job) == here
    assert here.plan.references
    minimal = msgspec.structs.replace(job, is_minimal=True)
    assert (await counting.plan(minimal)).plan.rung == "minimal"


async def test_it_is_starting_from_its_first_job_to_its_first_answer_and_so_after_a_loss(worker: WorkerProcess) -> None:
    assert not worker.is_starting
    for _ in range(2):
        job = asyncio.ensure_future(worker.measure(CONTENTS))
        await asyncio.sleep(0)
        assert worker.is_starting
        await job
        assert not worker.is_starting
        again = asyncio.ensure_future(worker.measure(CONTENTS))
        await asyncio.sleep(0)
        assert not worker.is_starting
        await again
        await worker.restart()


async def test_a_content_is_outlined_as_this_process_would(worker: WorkerProcess) -> None:
    job = OutlineJob("import os\n\n\nclass Parser:\n    pass\n", "src/a.py")
    assert job.weight == len(job.text)
    found = await worker.outline(job)
    assert found == outline(job.text, job.path)
    assert found.structure == ("imports os", "class Parser · lines 4-5")


async def test_a_function_with_much_text_gives_what_it_gives_here(worker: WorkerProcess) -> None:
    job = await make_job()
    texts = TextJobs({"extract": extract_features}, worker)
    assert job.weight > 64 * 1024
    assert await texts.run(index_plan, job, BuilderPolicy()) == index_plan(job, BuilderPolicy(), extract_features)
    asked = TextJob("index_plan", msgspec.msgpack.encode((job, BuilderPolicy())))
    assert asked.weight == len(asked.values)
    done = list[str]()
    ahead, text, urgent = worker.plan(job, is_ahead=True), worker.compute(asked, ConversationIndex), worker.plan(job)
    for name, each in (("ahead", ahead), ("text", text), ("urgent", urgent)):
        each.add_done_callback(lambda _, name=name: done.append(name))  # type: ignore[misc]
    await asyncio.gather(ahead, text, urgent)
    assert done == ["urgent", "text", "ahead"]


async def test_a_function_of_the_users_counts_in_the_worker_too(tmp_path: Path) -> None:
    (tmp_path / "our_tokens.py").write_text("def estimate(text, model=None):\n    return 1000 + len(model or '')\n")
    settings = msgspec.structs.replace(SETTINGS, estimator="our_tokens.estimate", search_path=(str(tmp_path),))
    worker = WorkerProcess(settings, job_seconds=LIMIT)
    try:
        found = await worker.measure(msgspec.structs.replace(CONTENTS, model="m"))
        assert [each.weight.text_tokens for each in found if each.structure is None] == [1001, 1001]
        job = await make_job()
        there, here = (await worker.plan(job)).plan, compute_plan(job, ContextBuilder(BuilderPolicy(), count_thousand))
        assert there == here.plan
    finally:
        await worker.close()


def count_thousand(text: str) -> int:
    """What the worker counts by the function above, of what no model reads yet."""
    return 1000


async def test_what_is_measured_is_what_this_process_would_measure(counting: WorkerProcess) -> None:
    here = measure(CONTENTS, TOKENIZER)
    assert await counting.measure(CONTENTS) == here
    assert [each.structure is not None for each in here] == [True, False, False]


async def test_a_job_that_fails_says_why_and_the_process_goes_on(worker: WorkerProcess) -> None:
    job = msgspec.structs.replace(await make_job(), tokens=[1])
    with pytest.raises(RuntimeError, match=r"^ValueError: zip"):
        await worker.plan(job)
    before = worker.pid
    await worker.start()
    assert worker.pid == before


@pytest.mark.parametrize(
    ("change", "error"), [({"session": "\ud800"}, UnicodeEncodeError), ({"head": 1 << 80}, OverflowError)]
)
async def test_a_job_that_cannot_be_sent_says_why_and_others_are_done(
    worker: WorkerProcess, change: dict[str, Any], error: type[Exception]
) -> None:
    job = await make_job()
    wrong, right = worker.plan(msgspec.structs.replace(job, **change)), worker.plan(job)
    with pytest.raises(error):
        await wrong
    assert (await right).plan.references


async def test_a_history_that_grew_can_be_sent(worker: WorkerProcess) -> None:
    """Nodes that are shared with earlier requests are of a type that has no form in MessagePack."""
    request = make_subject(make_history(40, 1600))
    chain = msgspec.structs.replace(
        request.chain, nodes=extend_shared(list(request.nodes[:-1]), len(request.nodes) - 1, request.nodes[-1:])
    )
    request = msgspec.structs.replace(request, chain=chain)
    history = await HistoryCounter(TokenCounter(QuarterTokens())).follow(request)
    job = make_planner().make_job(request, history, PlanInputs(BUDGET))
    assert (await worker.plan(job)).plan.references


async def test_it_has_no_environment_of_ours(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    await worker.start()
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()  # noqa: ASYNC240 - it is no file on a disk
    names = {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry}
    assert names == {b"PYTHONPATH"}


async def test_one_that_is_killed_loses_its_job_and_is_started_again(worker: WorkerProcess) -> None:
    await worker.start()
    killed = worker.pid
    assert killed is not None
    os.kill(killed, signal.SIGSTOP)
    job = worker.plan(await make_job())
    await asyncio.sleep(0)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await job
    await worker.start()
    assert worker.pid != killed


async def test_one_that_ends_between_jobs_loses_none(worker: WorkerProcess, caplog: pytest.LogCaptureFixture) -> None:
    await worker.start()
    killed = worker.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    while worker.pid is not None:  # noqa: ASYNC110 - nothing else tells of its end
        await asyncio.sleep(0)
    assert (await worker.plan(await make_job())).plan.references
    assert worker.pid not in (None, killed)
    assert [record.getMessage() for record in caplog.records] == [
        "the worker process has ended (code -9; -9: the system lacked memory) and is started again"
    ]


async def test_one_whose_pipes_are_closed_loses_its_job_and_is_started_again(worker: WorkerProcess) -> None:
    """A loop has errors of its own for that: uvloop's is no OSError."""
    closing = make_misbehaving("os.close(0); os.write(1, b'\\0' * 5); time.sleep(600)")
    jobs = [closing.plan(await make_job(2)) for _ in range(3)]
    lost = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in lost] == [WorkerLost] * 3
    await closing.close()


async def test_one_that_stands_still_is_ended(worker: WorkerProcess) -> None:
    await worker.start()
    stopped = worker.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    worker.job_seconds = 0.05
    with pytest.raises(WorkerLost, match=r"more than 0\.05 s"):
        await worker.plan(await make_job())
    assert not is_running(stopped)


async def test_one_that_is_lost_again_and_again_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = make_misbehaving("sys.exit()")
    jobs = [broken.plan(await make_job(2)) for _ in range(4)]
    lost = await asyncio.gather(*jobs, return_exceptions=True)
    assert ["again later" in str(error) for error in lost] == [False, False, True, True]
    with pytest.raises(WorkerLost, match="again later"):
        await broken.start()
    await broken.close()
    monkeypatch.setattr(process, "LEAST_PAUSE", 0.0)
    broken = make_misbehaving("sys.exit()")
    for _ in range(4):
        with pytest.raises(WorkerLost, match="was lost: IncompleteReadError"):
            await broken.start()
    await broken.close()


async def test_one_that_cannot_be_started_is_lost() -> None:
    missing = WorkerProcess(SETTINGS, ("/does/not/exist",))
    with pytest.raises(WorkerLost, match="FileNotFoundError"):
        await missing.start()
    await missing.close()


async def test_what_is_no_frame_is_a_loss() -> None:
    garbled = make_misbehaving("sys.stdout.buffer.write(b'\\0\\0\\0\\1x'); sys.stdout.flush(); time.sleep(600)")
    with pytest.raises(WorkerLost, match=r"DecodeError|ValidationError"):
        await garbled.start()
    await garbled.close()


async def test_what_is_waited_for_goes_before_what_is_made_ahead(worker: WorkerProcess) -> None:
    done: list[int] = []

    def note(number: int, _: object) -> None:
        done.append(number)

    job = await make_job(4)
    jobs = [worker.plan(job, is_ahead=True) for _ in range(3)] + [worker.plan(job) for _ in range(2)]
    for number, each in enumerate(jobs):
        each.add_done_callback(partial(note, number))
    await asyncio.gather(*jobs)
    assert done == [3, 4, 0, 1, 2]


async def test_only_some_plans_are_made_ahead(worker: WorkerProcess) -> None:
    job = await make_job(4)
    jobs = [worker.plan(job, is_ahead=True) for _ in range(9)]
    made = await asyncio.gather(*jobs, return_exceptions=True)
    assert [isinstance(each, WorkerLost) for each in made] == [False] * 8 + [True]


async def test_only_so_many_bytes_wait() -> None:
    """Each job holds a conversation: what would be too much goes elsewhere at once, and what nobody needs is let go."""
    job = await make_job(4)
    hanging = make_misbehaving("time.sleep(600)", most_bytes=2 * job.weight)
    jobs = [hanging.plan(job) for _ in range(3)]
    with pytest.raises(WorkerLost, match="too many jobs"):
        await jobs[2]
    assert hanging.bytes == 2 * job.weight
    jobs[1].cancel()
    await asyncio.sleep(0)
    assert hanging.bytes == job.weight
    taken = hanging.plan(job)
    await hanging.close()
    for each in (jobs[0], taken):
        with pytest.raises(WorkerLost, match="stopping"):
            await each
    await asyncio.sleep(0)
    assert hanging.bytes == 0


async def test_a_job_that_is_alone_is_done_whatever_it_weighs() -> None:
    small, job = WorkerProcess(SETTINGS, job_seconds=LIMIT, most_bytes=1), await make_job(4)
    for _ in range(2):
        assert (await small.plan(job)).rendered is not None
        await asyncio.sleep(0)
    assert small.bytes == 0
    await small.close()


async def test_a_job_whose_caller_has_gone_is_not_done(worker: WorkerProcess) -> None:
    bad = msgspec.structs.replace(await make_job(4), wire="no such wire")
    first, gone = worker.plan(bad), worker.plan(bad)
    gone.cancel()
    with pytest.raises(RuntimeError, match="no such wire"):
        await first
    await worker.start()
    left = worker.plan(bad)
    await asyncio.sleep(0)
    left.cancel()  # it is at work by now, and its result is dropped
    await worker.start()


async def test_a_stop_ends_it_and_all_who_wait() -> None:
    hanging = make_misbehaving("time.sleep(600)")
    running, waiting = hanging.plan(await make_job(2)), hanging.plan(await make_job(2), is_ahead=True)
    while hanging.pid is None:  # noqa: ASYNC110 - nothing tells of the start of a process that does not respond
        await asyncio.sleep(0)
    pid = hanging.pid
    await hanging.close()
    assert not is_running(pid)
    for job in (running, waiting, hanging.plan(await make_job(2))):
        with pytest.raises(WorkerLost, match="stopping"):
            await job


async def test_a_stop_while_it_starts_leaves_no_process() -> None:
    """What is left would be an unclosed resource, which fails the test."""
    for steps in range(4):
        starting = WorkerProcess(SETTINGS, (sys.executable, "-c", "import time; time.sleep(600)"))
        job = starting.plan(await make_job(2))
        for _ in range(steps):
            await asyncio.sleep(0)
        await starting.close()
        with pytest.raises(WorkerLost, match="stopping"):
            await job
        assert starting.pid is None


async def test_long_messages_are_measured_in_it_and_in_a_thread_where_it_is_lost(counting: WorkerProcess) -> None:
    request = make_subject(make_history(200, 1600))
    raws = request.list_raws()
    assert sum(map(len, raws)) > 100_000
    broken = make_misbehaving("sys.exit()")
    counters = [TokenCounter(TOKENIZER, worker=each) for each in (counting, None, broken)]
    counts = [await counter.measure("chat_completions", "gpt-4o", raws) for counter in counters]
    assert counts[0] == counts[1] == counts[2]
    assert counting.pid is not None
    pieces = [await counter.count_messages("gpt-4o", raws) for counter in counters]
    assert pieces == [counts[0][1]] * 3
    await broken.close()


async def test_what_has_no_form_between_processes_is_measured_in_a_thread(counting: WorkerProcess) -> None:
    """Half a character in an id: JSON can spell it, and UTF-8 cannot."""
    raws = make_subject(make_history(200, 1600)).list_raws()
    raws.append(b'{"role": "tool", "tool_call_id": "\\ud800", "content": "x"}')
    counters = [TokenCounter(TOKENIZER, worker=each) for each in (counting, None)]
    counts = [await counter.measure("chat_completions", "gpt-4o", raws) for counter in counters]
    assert counts[0] == counts[1]
    assert counting.pid is not None


async def test_a_worker_that_takes_too_long_to_measure_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine.token_counter.APART_SECONDS", 0.05)
    hanging, raws = make_misbehaving("time.sleep(600)"), make_subject(make_history(200, 1600)).list_raws()
    counts = await TokenCounter(TOKENIZER, worker=hanging).measure("chat_completions", "gpt-4o", raws)
    assert counts == await TokenCounter(TOKENIZER).measure("chat_completions", "gpt-4o", raws)
    await hanging.close()


async def test_the_program_does_each_job_of_its_input() -> None:
    job = await make_job()
    bad = msgspec.structs.replace(job, tokens=[1])
    sink = io.BytesIO()
    jobs = Jobs(SETTINGS)
    frames = io.BytesIO(make_frame(job) + make_frame(bad) + make_frame(CONTENTS))
    serve(jobs.do, msgspec.msgpack.Decoder(Job).decode, frames, sink)
    results, written = [], sink.getvalue()
    while written:
        size = int.from_bytes(written[:LENGTH_BYTES])
        results.append(msgspec.msgpack.decode(written[LENGTH_BYTES : LENGTH_BYTES + size], type=Result))
        written = written[LENGTH_BYTES + size :]
    plan, failed, measured = results
    assert msgspec.msgpack.decode(plan.content, type=RenderedPlan).plan.through
    assert failed.problem.startswith("ValueError: ")
    assert msgspec.msgpack.decode(measured.content, type=list[Measured]) == measure(CONTENTS, TOKENIZER)


def test_the_program_ends_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        buffer = io.BytesIO()

    limits: list[object] = []
    monkeypatch.setattr("proxy.worker.program.end_with_parent", lambda: None)
    monkeypatch.setattr("resource.setrlimit", lambda *limit: limits.append(limit))
    monkeypatch.setattr(sys, "argv", ["program", msgspec.json.encode(SETTINGS).decode()])
    monkeypatch.setattr(sys, "stdin", Pipe)
    main()
    assert limits


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
async def test_the_program_ends_with_its_parent_though_its_input_goes_on() -> None:
    """It would not read the end of its input while a job takes for ever."""
    command = [*process.PROGRAM, msgspec.json.encode(SETTINGS).decode()]
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    async with asyncio.timeout(LIMIT):
        parent.stdin.write(make_frame(MeasureJob("o200k_base", ())))
        assert await parent.stdout.readexactly(LENGTH_BYTES)
        parent.kill()
        await parent.stdout.read()  # to its end: nobody holds the other end any more
        await parent.wait()
