"""The way in is tested as it runs: on uvloop, over sockets, with nobody's errors unread."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest

from tests.support.loops import MovableUvloop
from tests.support.scripted import ScriptedUpstream
from tests.support.serving import Plan, Served, serving


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test here runs on the loop that production runs on."""
    return {"uvloop": MovableUvloop}


@pytest.fixture(autouse=True)
def no_errors_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An exception that only reaches a log is a failure, too."""
    yield
    texts = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not texts, texts


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def plan(upstream: ScriptedUpstream) -> Plan:
    """How the server of this test is set up; a test that needs it otherwise serves a changed copy itself."""
    return Plan(upstream.url)


@pytest.fixture
async def served(plan: Plan) -> AsyncIterator[Served]:
    """The server in front of the scripted upstream."""
    async with serving(plan) as running:
        yield running
