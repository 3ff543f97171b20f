"""Tests of the engine run on a loop whose time they can put forward."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.loops import MovableLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which loop that is."""
    return {"asyncio": MovableLoop}
