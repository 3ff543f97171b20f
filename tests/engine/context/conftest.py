"""A conversation that the engine carries."""

from collections.abc import AsyncIterator

import pytest

from tests.support.talking import Talk


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    """An engine whose budget is some thousand tokens, and a log in memory."""
    talk = Talk()
    yield talk
    await talk.close()
