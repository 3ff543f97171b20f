"""Prompts are rendered and answers checked in processes with limits; what ends one is told, and nothing else fails."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from pickle import PicklingError, UnpicklingError, dumps
from typing import Any

import pytest

from proxy.engine.mapping.sandbox import Limits, PromptTemplate, RunSandbox, TaskFailed, Unfit, pack_item, unpack_item
from proxy.model.errors import WorkerLost
from proxy.worker.sandbox import SandboxProcesses
from tests.support.scripted import LIMIT

PLAIN = PromptTemplate("Say {{ item.x }}")
FILTERED = PromptTemplate("SAY {{ item.x | string }}")
ENDLESS = "{% for i in range(99999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
BACKTRACKING = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
BACKTRACKED = '{"a": "' + "a" * 50 + '!"}'


@dataclass
class Point:
    """An item that is an object of a program's own."""

    x: int


@pytest.fixture
async def sandbox() -> AsyncIterator[SandboxProcesses]:
    made = SandboxProcesses(Limits(cpu_seconds=0.5))
    yield made
    await made.close()
    assert not made.pids


async def fail(sandbox: SandboxProcesses, template: str, item: Any = "x") -> str:
    """Return why a template is not rendered."""
    with pytest.raises(TaskFailed) as caught:
        await RunSandbox(sandbox, "r").render(PromptTemplate(template), item)
    return str(caught.value)


async def test_prompts_are_rendered_and_answers_read(sandbox: SandboxProcesses) -> None:
    run, schema = RunSandbox(sandbox, "r"), json.dumps({"type": "object", "required": ["a"]})
    assert not sandbox.pids, "the first task starts a process"
    prompts = await asyncio.gather(*[run.render(PLAIN, {"x": n}) for n in range(200)])
    assert prompts == [f"Say {n}" for n in range(200)]
    assert await run.read(schema, 'Here: {"a": 1}') == {"a": 1}
    with pytest.raises(Unfit, match="'a' is a required property"):
        await run.read(schema, "{}")
    with pytest.raises(Unfit, match="not JSON"):
        await run.read("", "no")
    assert await run.read("", "[1.5, 123456789012345678901234567890]") == [1.5, 123456789012345678901234567890]
    assert len(sandbox.pids) == 1


async def test_an_item_is_the_same_there(sandbox: SandboxProcesses) -> None:
    run, plain = RunSandbox(sandbox, "r"), PromptTemplate("{{ item }}")
    for item in ("\ud800 é", 2**80, float("inf"), (1, 2), {3}, {"a": [None, True, b"x"]}, {1: {2: 3}}, bytearray(b"a")):
        assert await run.render(plain, item) == str(item)


async def test_a_template_of_names_needs_the_process_only_to_be_checked(sandbox: SandboxProcesses) -> None:
    run = RunSandbox(sandbox, "r")
    template = await run.check("\ud800{{ item.x }}, {{ item['y'][0] }}", "")
    await sandbox.restart()
    assert await run.render(template, {"x": 1, "y": ["a"]}) == "\ud8001, a"
    assert not sandbox.pids
    assert await run.render(template, {"x": [1], "y": ["a"]}) == "\ud800[1], a"
    assert len(sandbox.pids) == 1
    assert not (await run.check("{{ item | upper }}", "")).parts


@pytest.mark.parametrize("item", [Point(3), [Point(3)], date(2026, 1, 1), print, Point])
async def test_what_has_a_class_of_its_own_is_rendered_here(sandbox: SandboxProcesses, item: Any) -> None:
    run = RunSandbox(sandbox, "r")
    assert await run.render(PromptTemplate("", render_here=lambda item: f"here: {item}"), item) == f"here: {item}"
    assert not sandbox.pids
    with pytest.raises(PicklingError, match="no plain data"):
        await run.render(PromptTemplate("{{ item }}"), item)


def test_what_is_unpacked_runs_nothing() -> None:
    assert unpack_item(pack_item({"a": [1]})) == {"a": [1]}
    with pytest.raises(UnpicklingError, match=r"builtins\.print is no plain data"):
        unpack_item(dumps(print))


async def test_a_template_that_takes_too_much_fails_alone(sandbox: SandboxProcesses) -> None:
    run = RunSandbox(sandbox, "r")
    for template, why in [
        (ENDLESS + "{{ item }}", "takes more than 0.5 s of processor time: use fewer loops"),
        ("{{ 9 ** (9 ** 9) }}{{ item }}", "takes more than 0.5 s of processor time: use fewer loops"),
        ("{{ 'a' * 2000000000 }}{{ item }}", "takes more than 512 MB of memory: use fewer loops"),
        ("{{ item | center(1500000000) }}", "takes more than 512 MB of memory: use fewer loops"),
        ("{{ '%1000000000d' | format(1) }}{{ item }}", "takes more than 512 MB of memory: use fewer loops"),
        ("{{ range(99999) | join(item * 99999) }}", "takes more than 512 MB of memory: use fewer loops"),
        ("{{ item | center(10000000) }}", "failed: ValueError: the result has more than 8 MB"),
        ("{{ item.missing }}", "failed: UndefinedError: 'str object' has no attribute 'missing'"),
        ("{{ item.__class__.__mro__ }}", "failed: SecurityError"),
    ]:
        before, told, after = await asyncio.gather(
            run.render(PLAIN, {"x": 1}), fail(sandbox, template), run.render(PLAIN, {"x": 2})
        )
        assert (before, after) == ("Say 1", "Say 2")
        assert told.startswith(f"rendering the prompt template {why}")
        assert len(told) < 400


async def test_an_answer_that_takes_too_much_fails_alone(sandbox: SandboxProcesses) -> None:
    run, schema = RunSandbox(sandbox, "r"), json.dumps(BACKTRACKING)
    good, failed = await asyncio.gather(
        run.read(schema, '{"a": "aaa"}'), run.read(schema, BACKTRACKED), return_exceptions=True
    )
    assert good == {"a": "aaa"}
    assert isinstance(failed, TaskFailed)
    assert "checking the answer against output_schema takes more than 0.5 s of processor time: make its" in str(failed)


async def test_a_template_and_a_schema_are_checked_within_the_limits(sandbox: SandboxProcesses) -> None:
    run = RunSandbox(sandbox, "r")
    await run.check("{{ item }}", "")
    for template, schema, why in [
        ("{{ item", "", "the prompt template is not valid"),
        ("{{ item }}", '{"$ref": "#"}', "never ends"),
        ("{{ item }}{{ [1] * (9 ** (9 ** 9)) }}", "", "takes more than 0.5 s of processor time: make them smaller"),
    ]:
        with pytest.raises(TaskFailed, match=why):
            await run.check(template, schema)
            await run.render(PromptTemplate(template), "x")


async def test_a_run_that_has_a_process_does_not_keep_another_from_one() -> None:
    sandbox = SandboxProcesses(Limits(cpu_seconds=600.0))
    try:
        first, second = RunSandbox(sandbox, "a"), RunSandbox(sandbox, "b")
        endless = [asyncio.ensure_future(first.render(PromptTemplate(ENDLESS + "{{ item }}"), n)) for n in range(5)]
        async with asyncio.timeout(LIMIT):
            for n in range(3):
                assert await second.render(PLAIN, {"x": n}) == f"Say {n}"
        assert len(sandbox.pids) == 2
        assert not any(each.done() for each in endless)
    finally:
        await sandbox.close()
    told = await asyncio.gather(*endless, return_exceptions=True)
    assert [type(each) for each in told] == [WorkerLost] * 5
    with pytest.raises(WorkerLost):
        await second.render(PLAIN, {"x": 1})
    assert not sandbox.pids


async def test_more_runs_than_processes_take_turns(sandbox: SandboxProcesses) -> None:
    async def render(name: str) -> list[str]:
        run = RunSandbox(sandbox, name)
        return [await run.render(PLAIN, {"x": name}) for _ in range(20)]

    async with asyncio.timeout(LIMIT):
        prompts = await asyncio.gather(*[render(str(n)) for n in range(6)])
    assert prompts == [[f"Say {n}"] * 20 for n in range(6)]
    assert len(sandbox.pids) == 2


async def test_a_process_that_is_killed_is_told_and_started_again() -> None:
    sandbox = SandboxProcesses(Limits(cpu_seconds=600.0))
    try:
        run = RunSandbox(sandbox, "r")
        dead = set[int]()
        for _ in range(4):
            failing = asyncio.ensure_future(fail(sandbox, ENDLESS + "{{ item }}"))
            while not (running := {*sandbox.pids} - dead) and not failing.done():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            dead |= running
            assert "has ended the process that did it (code -9)" in await failing
        assert await run.render(FILTERED, {"x": 2}) == "SAY 2", "no pause follows, however often it is lost in a row"
    finally:
        await sandbox.close()


async def test_a_restarted_one_remembers_nothing(sandbox: SandboxProcesses) -> None:
    run = RunSandbox(sandbox, "r")
    await run.render(PLAIN, {"x": 1})
    before = sandbox.pids
    await sandbox.restart()
    assert await run.render(PLAIN, {"x": 1}) == "Say 1"
    assert sandbox.pids != before


async def test_without_a_process_nothing_is_done() -> None:
    sandbox = SandboxProcesses(program=("/does/not/exist",))
    with pytest.raises(WorkerLost):
        await RunSandbox(sandbox, "r").render(PLAIN, {"x": 1})
    await sandbox.close()


async def test_a_task_whose_caller_has_gone_is_not_done(sandbox: SandboxProcesses) -> None:
    run = RunSandbox(sandbox, "r")
    gone = [asyncio.ensure_future(run.render(PromptTemplate(ENDLESS + "{{ item }}"), n)) for n in range(3)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    assert await run.render(PLAIN, {"x": 1}) == "Say 1"
