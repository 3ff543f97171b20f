"""The way out is tested on both loops: uvloop, which production runs on, and asyncio's own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from proxy.engine.tasks import TaskRunner
from proxy.upstream.forwarder import Forwarder
from proxy.upstream.policy import UpstreamPolicy
from tests.support.loops import MovableLoop, MovableUvloop
from tests.support.scripted import LIMIT, ScriptedUpstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test here runs twice."""
    return {"uvloop": MovableUvloop, "asyncio": MovableLoop}


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRunner]:
    """Uploads run here; none may be left."""
    runner = TaskRunner()
    yield runner
    assert await runner.finish(LIMIT)


@pytest.fixture
async def forwarder(upstream: ScriptedUpstream, tasks: TaskRunner) -> AsyncIterator[Forwarder]:
    """A forwarder to the scripted upstream."""
    made = Forwarder(UpstreamPolicy("scripted", upstream.url, idle_timeout=LIMIT), tasks.spawn)
    yield made
    made.close()
