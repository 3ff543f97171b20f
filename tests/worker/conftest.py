"""The worker process is tested on both loops: uvloop, which production runs on, and asyncio's own."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test here runs twice."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
